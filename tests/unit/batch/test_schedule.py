"""A batch sends from its start time on, and only while one of its windows is open."""

from __future__ import annotations

from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.gates import Pause, PausedBy
from saltext.jobs.core.batch.summary import summary
from tests.unit.batch.bench import BEGIN, Bench, kinds, published

WINDOW = {"window": "02:00-05:00", "timezone": "UTC"}


def found(bench, opens, closes=None):
    """Answer when the batch may send, in seconds from now."""
    return bench.tell(facts.OpeningFound(bench.now + opens, None if closes is None else bench.now + closes))


def test_nothing_is_sent_before_it_is_known_when_the_window_opens():
    bench = Bench("ab", "1", **WINDOW)
    assert kinds(bench.effects) == ["new", "FindOpening"]
    assert bench.batch.state == "paused"
    assert not bench.wait(1000), "it is asked once"
    assert published(found(bench, 0, 60)) == ["a"]


def test_outside_its_window_a_batch_is_paused_and_says_when_it_goes_on():
    bench = Bench("ab", "1", **WINDOW)
    (paused,) = found(bench, 600, 1200)
    assert (paused.kind, paused.details) == (
        "paused",
        {"reason": "outside its window", "paused_by": "window", "opens_at": BEGIN + 600},
    )
    shown = summary(bench.batch, bench.now)
    assert (shown["state"], shown["paused_by"], shown["paused_reason"]) == ("paused", "window", "outside its window")
    assert shown["opens_at"] == BEGIN + 600


def test_when_the_window_opens_it_is_checked_once_more_before_anything_is_sent():
    bench = Bench("ab", "1", **WINDOW)
    found(bench, 600, 1200)
    assert not bench.wait(599)
    assert kinds(bench.wait(2)) == ["FindOpening"]
    assert kinds(found(bench, 0, 600)) == ["resumed", "Publish"]
    assert bench.batch.state == "running"
    assert summary(bench.batch, bench.now)["opens_at"] is None


def test_a_batch_that_has_sent_to_all_does_not_care_for_its_window():
    bench = Bench("a", "1", **WINDOW)
    found(bench, 0, 30)
    bench.sent()
    assert not bench.wait(50)
    assert bench.batch.state == "running"
    assert kinds(bench.returns("a")) == ["complete", "Close"]


def test_a_batch_with_a_start_time_asks_who_is_there_only_then():
    bench = Bench("ab", "1", start_at=BEGIN + 600, presence="ping")
    assert kinds(bench.effects) == ["new", "FindOpening"]
    (paused,) = found(bench, 600)
    assert (paused.details["reason"], paused.details["paused_by"]) == ("before its start time", "start")
    bench.wait(601)
    assert kinds(found(bench, 0)) == ["resumed", "Ping"]
    assert published(bench.tell(facts.Pinged(("b",)))) == ["b"]


def test_a_resume_does_not_open_a_window():
    bench = Bench("ab", "1", **WINDOW)
    found(bench, 600, 1200)
    assert kinds(bench.tell(facts.PauseRequested("ann"))) == ["paused"]
    assert bench.batch.waits_for() == Pause(PausedBy.OPERATOR, "ann")
    assert kinds(bench.tell(facts.ResumeRequested("ann"))) == ["resumed", "paused"]
    assert bench.batch.waits_for() == Pause(PausedBy.WINDOW)
    assert not published(bench.wait(500))


def test_an_open_window_does_not_end_a_pause():
    bench = Bench("ab", "1", **WINDOW)
    bench.tell(facts.PauseRequested("ann"))
    assert not found(bench, 0, 60)
    assert published(bench.tell(facts.ResumeRequested("ann"))) == ["a"]


def test_a_window_that_can_no_longer_be_read_is_shut_and_checked_again():
    bench = Bench("ab", "1", **WINDOW)
    (paused,) = bench.tell(facts.OpeningFound(None, trouble="no such zone"))
    assert "no such zone" in paused.details["reason"]
    assert kinds(bench.wait(61)) == ["FindOpening"]
    assert kinds(found(bench, 0, 60)) == ["resumed", "Publish"]


def test_a_stop_outside_the_window_ends_the_batch():
    bench = Bench("ab", "1", **WINDOW)
    found(bench, 600, 1200)
    assert kinds(bench.tell(facts.StopRequested(kill=False))) == ["halted", "Close"]
    assert bench.batch.next_due is None


def test_a_batch_that_waits_for_an_operator_names_no_opening():
    bench = Bench("abc", "1", publish_retries=0, **WINDOW)
    found(bench, 0, 30)
    bench.wait(31)
    found(bench, 86400, 90000)  # its window has closed while a publish is under way
    bench.tell(facts.PublishFailed("no", certain=False))
    shown = summary(bench.batch, bench.now)
    assert (shown["state"], shown["opens_at"]) == ("paused", None), "nothing goes on then"
    assert kinds(bench.tell(facts.ResumeRequested("ann"))) == ["resumed", "paused"]
    assert summary(bench.batch, bench.now)["opens_at"] == BEGIN + 31 + 86400


def test_a_batch_that_was_stopped_names_no_opening():
    bench = Bench("ab", "1", **WINDOW)
    found(bench, 0, 30)
    bench.sent()
    bench.wait(31)
    found(bench, 86400, 90000)
    bench.tell(facts.StopRequested(kill=False))
    assert summary(bench.batch, bench.now)["opens_at"] is None
