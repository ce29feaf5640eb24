"""A batch sends from its start time on, and only while one of its windows is open."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.gates import Pause, PausedBy
from saltext.jobs.core.batch.summary import summary
from tests.unit.batch.bench import BEGIN, Bench, kinds, published

WINDOW = {"window": "02:00-05:00", "timezone": "UTC"}


def found(bench, opens, closes=None):
    """Answer when the batch may send, in seconds from now."""
    return bench.tell(facts.OpeningFound(bench.now + opens, None if closes is None else bench.now + closes))


def test_a_batch_without_a_window_asks_for_none():
    assert kinds(Bench("ab", "1").effects) == ["new", "Publish"]


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


def test_a_clock_that_was_set_back_delays_the_opening():
    bench = Bench("ab", "1", **WINDOW)
    found(bench, 600, 1200)
    bench.wait(601)
    assert not found(bench, 3600, 7200)
    assert not bench.wait(3599)
    assert kinds(bench.wait(2)) == ["FindOpening"]


def test_when_the_window_closes_nothing_more_is_sent_and_what_runs_goes_on():
    bench = Bench("abc", "1", **WINDOW)
    found(bench, 0, 30)
    bench.sent()
    assert kinds(bench.wait(31)) == ["FindOpening"]
    assert kinds(found(bench, 86400, 90000)) == ["paused"]
    assert not published(bench.returns("a"))
    assert bench.states() == {"a": "completed", "b": "pending", "c": "pending"}


def test_a_slot_that_is_free_the_moment_the_window_closes_is_not_used():
    bench = Bench("ab", "1", **WINDOW)
    found(bench, 0, 30)
    bench.sent()
    bench.now += 30
    assert kinds(bench.returns("a")) == ["FindOpening"]


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


def test_after_a_crash_the_window_is_checked_anew_before_anything_is_sent():
    bench = Bench("ab", "1", **WINDOW)
    found(bench, 0, 600)
    bench.sent()
    bench.returns("a")
    bench.tell(facts.PublishFailed("no", certain=True))
    bench.batch = bench.replayed()
    effects = bench.tell(facts.Recovered())
    assert kinds(effects) == ["LookUp", "FindOpening"]
    bench.looked(effects)
    assert not published(bench.wait(60))
    assert published(found(bench, 0, 600) + bench.wait(1)) == ["b"]


def test_a_stop_outside_the_window_ends_the_batch():
    bench = Bench("ab", "1", **WINDOW)
    found(bench, 600, 1200)
    assert kinds(bench.tell(facts.StopRequested(kill=False))) == ["halted", "Close"]
    assert bench.batch.next_due is None


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 500), st.sampled_from(["return", "fail", "crash", "pause", "resume", "tick"])),
        max_size=25,
    ),
    st.integers(50, 300),
    st.integers(50, 300),
)
def test_whatever_happens_nothing_is_sent_outside_the_window(history, open_for, shut_for):
    bench = Bench("abcdefg", "2", **WINDOW)
    cycle = open_for + shut_for

    def answer(effects):
        """Windows are open for the first part of each cycle."""
        for effect in effects:
            if isinstance(effect, facts.Publish):
                assert (bench.now - BEGIN) % cycle < open_for
            if isinstance(effect, facts.FindOpening):
                began = bench.now - (bench.now - BEGIN) % cycle
                opens = bench.now if bench.now - began < open_for else began + cycle
                answer(bench.tell(facts.OpeningFound(opens, (began if opens == bench.now else opens) + open_for)))

    answer(bench.effects)
    for pause, event in history:
        end = bench.now + pause
        while (due := bench.batch.next_due) is not None and due <= end:
            bench.now = max(bench.now, due)
            answer(bench.tell(facts.Tick()))
        bench.now = end
        if event == "return" and bench.batch.flights:
            answer(bench.returns(next(iter(bench.batch.flights))))
        elif event == "fail" and bench.batch.is_publishing():
            answer(bench.tell(facts.PublishFailed("no", certain=True)))
        elif event == "crash":
            bench.batch = bench.replayed()
            answer(bench.tell(facts.Recovered()))
        elif event == "pause":
            answer(bench.tell(facts.PauseRequested()))
        elif event == "resume":
            answer(bench.tell(facts.ResumeRequested()))
        else:
            answer(bench.tell(facts.Tick()))


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
