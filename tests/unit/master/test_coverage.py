"""What a minion lacks for the executor ``job_once``, by what it answers."""

from __future__ import annotations

import pytest

from saltext.jobs.core.advice import Advice
from saltext.jobs.core.master.once import LACKS, NOTHING_RUNS, doubts_about, lack_of


@pytest.mark.parametrize(
    ("told", "lack"),
    [
        ({"jid": "0", "job_once": {"state": "never", "recorded_for": 9.0}}, ""),
        ("Local jobs cache directory not found; you may need to enable cache_jobs on this minion", LACKS),
        ("ERROR executing ...: Executor 'job_once' is not available", NOTHING_RUNS),
        (None, LACKS),
        ({"job_once": "text"}, LACKS),
    ],
)
def test_the_answer_of_a_minion_shows_what_it_lacks(told, lack):
    assert lack_of(told) == lack


def found(has=(), lacks=(), keeps=(), silent=()):
    return {"has": list(has), "lacks": dict.fromkeys(lacks, LACKS), "keeps": list(keeps), "silent": list(silent)}


def test_minions_that_keep_nothing_are_named():
    (told,) = doubts_about(found(has=["a"], lacks=["b", "c"], keeps=["c"]))
    assert told.startswith("1 of the 3 minions that answered keep nothing of what they have run")
    assert told.endswith("Minions without both: b")
    assert not isinstance(told, Advice)


def test_a_silent_minion_is_not_reported_as_one_that_keeps_nothing():
    (told,) = doubts_about(found(has=["a"], silent=["b"]))
    assert told == "whether silent minions keep what they have run is not known (1): b"
    assert isinstance(told, Advice)


def test_nothing_is_reported_if_all_minions_keep_what_they_have_run():
    assert doubts_about(found(has=["a"], lacks=["b"], keeps=["b"])) == []


def test_some_of_many_minions_are_named():
    names = [f"m{number:02}" for number in range(30)]
    (told,) = doubts_about(found(lacks=names))
    assert told.endswith("m18, m19, …; job_retry.coverage names all")
