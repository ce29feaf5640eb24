"""What a batch makes of a minion's own records: one with the executor ``job_once`` can say that it has not begun a job."""

from __future__ import annotations

import pytest

from saltext.jobs.core.batch import facts
from tests.unit.batch.bench import Bench, published


def given_up(bench, minion, never=True):
    """A minion says twice that it does not run the job, then that it has never begun it; the effects of the last look."""
    assert facts.AskRecords((minion,)) in bench.twice_idle(minion)
    if never:
        bench.tell(facts.NeverBegun((minion,)))
    return bench.looked(bench.wait(12))


def test_without_records_a_minion_that_may_have_begun_without_saying_so_is_lost():
    bench = Bench("a", "1")
    bench.sent()
    given_up(bench, "a", never=False)
    assert bench.state_of("a") == "lost"


def test_the_records_of_a_minion_outweigh_a_forged_acknowledgement():
    bench = Bench("a", "1", acks=True)
    bench.sent()
    bench.tell(facts.Acknowledged("a"))
    assert published(given_up(bench, "a")) == ["a"]


def test_a_minion_that_runs_the_job_after_all_is_not_sent_to_again():
    bench = Bench("a", "1")
    bench.sent()
    bench.twice_idle("a")
    bench.tell(facts.NeverBegun(("a",)))
    bench.tell(facts.Acknowledged("a"))
    assert bench.state_of("a") == "active"
    assert not published(bench.wait(30))


def test_a_minion_is_put_back_only_so_often():
    bench = Bench("a", "1", probe_attempts=2)
    bench.sent()
    for _ in range(2):
        assert published(given_up(bench, "a")) == ["a"]
        bench.sent()
    given_up(bench, "a")
    assert bench.state_of("a") == "lost"


def test_records_of_a_minion_that_has_not_said_that_it_is_idle_count_for_nothing():
    bench = Bench("a", "1", max_runtime=1.0)
    bench.sent()
    bench.tell(facts.NeverBegun(("a", "nobody")))
    assert not bench.batch.flights["a"].never_begun


@pytest.mark.parametrize("seconds", [0, 12])
def test_an_engine_that_starts_asks_for_records_again_because_the_answer_was_lost(seconds):
    bench = Bench("a", "1")
    bench.sent()
    assert facts.AskRecords(("a",)) in bench.twice_idle("a")
    bench.wait(seconds)  # in the end it is looked for a last time
    assert facts.Probe(("a",)) in bench.looked(bench.tell(facts.Recovered(taken_over=True)))
    assert bench.state_of("a") == "active"
    assert facts.AskRecords(("a",)) in bench.probed(idle="a")


def test_a_minion_whose_records_could_not_be_asked_for_is_asked_again_and_not_lost():
    bench = Bench("a", "1")
    bench.sent()
    bench.twice_idle("a")
    bench.probed(unasked="a")
    bench.until_probe(12)
    assert bench.state_of("a") == "active"
    assert facts.AskRecords(("a",)) in bench.probed(idle="a")


def asked_for_records(bench, minion):
    """A minion that is overdue says twice that it does not run the job, and is asked for its records."""
    bench.until_probe(62)
    bench.probed(idle=minion)
    bench.until_probe(12)
    assert facts.AskRecords((minion,)) in bench.tell(facts.Probed(idle=(minion,)))


def test_a_minion_is_not_given_up_before_what_its_records_say_is_known():
    bench = Bench("a", "1")
    bench.sent()
    asked_for_records(bench, "a")
    bench.wait(600)
    assert bench.state_of("a") == "active"
    bench.tell(facts.Recorded(("a",)))
    bench.looked(bench.wait(12))
    assert bench.state_of("a") == "lost"


def test_silence_about_records_is_no_evidence():
    bench = Bench("a", "1")
    bench.sent()
    asked_for_records(bench, "a")
    bench.tell(facts.Recorded(silent=("a",)), after=10)
    bench.until_probe(12)
    assert facts.AskRecords(("a",)) in bench.tell(facts.Probed(idle=("a",)))
    bench.tell(facts.Recorded(("a",)))
    assert bench.returns("a")
    assert bench.state_of("a") == "completed"


def test_a_minion_that_never_says_what_its_records_are_is_given_up_in_the_end():
    bench = Bench("a", "1", probe_attempts=3)
    bench.sent()
    asked_for_records(bench, "a")
    for _ in range(3):
        bench.tell(facts.Recorded(silent=("a",)))
        assert bench.state_of("a") == "active"
        bench.until_probe(12)
        bench.tell(facts.Probed(idle=("a",)))
    bench.tell(facts.Recorded(silent=("a",)))
    bench.looked(bench.wait(12))
    assert bench.state_of("a") == "lost"
