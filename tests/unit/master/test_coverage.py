"""What a minion lacks for the executor ``job_once``, by what it answers."""

from __future__ import annotations

import pytest

from saltext.jobs.core.advice import Advice
from saltext.jobs.core.master.once import NEITHER, NOT_CONFIGURED, NOTHING_RUNS, doubts_about, lack_of

EXECUTORS, SYNCED = "config.get", "cp.is_cached"
HAS = {"jid": "0", "job_once": {"state": "never", "recorded_for": 9.0}}
FILE = "/var/cache/salt/minion/files/base/_executors/job_once.py"
NO_CACHE = "Local jobs cache directory not found; you may need to enable cache_jobs on this minion"


@pytest.mark.parametrize(
    ("told", "more", "lack"),
    [
        (HAS, None, ""),
        (NO_CACHE, {EXECUTORS: ["direct_call"], SYNCED: ""}, NEITHER),
        (NO_CACHE, {EXECUTORS: "", SYNCED: FILE}, NOT_CONFIGURED),
        (NO_CACHE, ["", FILE], NOT_CONFIGURED),  # ``multifunc_ordered``
        ("ERROR executing ...: Executor 'job_once' is not available", {}, NOTHING_RUNS),
        ("text", "text", NEITHER),
        (None, None, NEITHER),
        ({"job_once": "text"}, {SYNCED: "Traceback (most recent call last)"}, NEITHER),
    ],
)
def test_the_answers_of_a_minion_show_what_it_lacks(told, more, lack):
    assert lack_of(told, more) == lack


def found(has=(), lacks=(), keeps=(), silent=()):
    return {"has": list(has), "lacks": dict.fromkeys(lacks, NEITHER), "keeps": list(keeps), "silent": list(silent)}


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
