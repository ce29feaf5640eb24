"""Whatever goes wrong: nothing is lost, nothing that is known to have begun runs again, nothing loops."""

from __future__ import annotations

import pytest

from tests.many_worlds import quiet
from tests.unit.retry import sites
from tests.unit.retry.adversary import (
    PROFILES,
    Adversary,
    Clocks,
    CutOff,
    Failing,
    Operators,
    Power,
    PowerOnce,
    live_through,
)


@pytest.mark.parametrize("profile", PROFILES + sites.PROFILES)
def test_nothing_is_lost_and_nothing_that_has_begun_runs_again(profile):
    with quiet():
        for seed in range(30 if profile is Adversary else 12):
            live_through(profile, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [12, 1000, 1200])
@pytest.mark.parametrize("profile", PROFILES + sites.PROFILES)
def test_nothing_is_lost_and_nothing_that_has_begun_runs_again_in_many_worlds(profile, seed):
    with quiet():
        for each in range(seed, seed + 25):
            live_through(profile, each)


@pytest.mark.parametrize(
    ("profile", "seed"),
    [
        (Failing, 3),  # a record that could not be read for a moment was set aside
        (Failing, 100327),  # a search that found a kill again undid what the log had told
        (CutOff, 100039),  # a further publish that a search found while others were asked was forgotten
        (Adversary, 101075),  # a kill that the checkpoint had, still to be read, counted for nothing
        (Power, 1400728),  # a return that a power cut had left in the log alone counted for its entry only
        (Power, 74004054),  # the same, although the log still had an earlier kill and a publish after it
        (Power, 1400119),  # a publish that the log told again seemed to follow a kill that the log had lost
        (PowerOnce, 1400119),  # the same
        (Adversary, 1420173),  # a search found a job before the part of it that a minion had begun, and forgot that
        (Power, 8000716),  # a kill was forgotten before a power cut brought back what it had ended
        (PowerOnce, 8003634),  # the same
        (Clocks, 20002607),  # that a minion said it runs a part which a search had not found yet was forgotten
        (sites.Sites, 20004899),  # a kill from before a takeover counted after it, once the engine had started anew
        (Operators, 40015320),  # a job whose time to live was over was found by its younger record, and run again
        (Operators, 44012966),  # a minion said that it runs the job: forgotten, since replays were paused meanwhile
        (Power, 44017341),  # a checkpoint stood for what had not been read of a log that was then lost
        (Operators, 40014551),  # a start was forgotten that was heard while other minions were asked
        # Faults of the judge: what a request was about was looked up before earlier requests and kills were carried out.
        (sites.Sites, 20002946),
        (sites.Sites, 104004795),  # what a minion had said of a job of another master counted after it was adopted
        (sites.Refusing, 110002282),  # a kill of everything counted for a job that was still in the queue for the store
        (Adversary, 30003368),
        (Power, 40010020),  # a start counted that was heard after the claim of the job and before its publish
        (sites.Sites, 40013901),  # everything was killed while no engine ran, and the queue could not tell what ran
        (PowerOnce, 40006560),  # a power cut took the note about a killed entry that was purged a moment before
        (sites.Sites, 44019951),  # everything was killed between another master's publish and the takeover of its queue
        (Clocks, 40002606),  # the clock was set between a claim and its publish, which went by the window of before
        (sites.Sites, 40006870),  # two jobs seemed to wait for each other whose windows are never open at the same time
        (sites.Sites, 41000491),  # a wish for a job that is not kept counted although the job was killed since
        (sites.Refusing, 44008169),  # an entry whose removal the store refused was there again
        (sites.Refusing, 44018603),  # a job was cancelled whose record could not be read any more
        (
            Clocks,
            66009509,
        ),  # the clock was set after a request and a kill, whose order the next engine cannot tell then
        (Clocks, 66010338),
        (PowerOnce, 69014341),  # a request came between a kill and the moment when the master had stored the kill
        (sites.RefusingPower, 61018249),  # an entry was given up while a retry was carried out, which concerned it too
        (CutOff, 68005188),  # a minion lost its record of a job by a replay that it ignored
        (sites.Refusing, 40003669),  # a job that could not be read in its time to live was published again after a kill
    ],
)
def test_worlds_that_once_went_wrong_go_right(profile, seed):
    live_through(profile, seed)
