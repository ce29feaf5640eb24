"""Which notices there are of a batch or an engine, and how often."""

from __future__ import annotations

import pytest

from saltext.jobs.core.options.engines import NOTICES
from saltext.jobs.core.recorder.notices import NAMED, GivenUp, Reported, Seen, plain

JID, RETRY = "20260516101112131415", "20260516111112131415"
COUNTS = dict.fromkeys(
    ("total", "completed", "active", "pending", "failed", "timed_out", "lost", "killed", "offline"), 0
)


def seen(state="running", jid=JID, minions=(), **more):
    found = {"jid": jid, "fun": "state.apply", "user": "anna", "tgt": "*", "state": state, "finished": 1000.0}
    return Seen({**found, **COUNTS, **more}, {name: {"state": of} for name, of in dict(minions).items()})


HALTED = seen("halted", halted_reason="more than 2 failures", total=4, completed=1, failed=3, stopped_by="")
WAITS = seen("paused", paused_by="approval", approve=1)
STATES = {"z": "offline", "a": "completed", "b": "failed"}
FAILED = seen("complete", success=False, total=2, completed=1, failed=1, minions=STATES)
WELL = seen("complete", success=True, total=2, completed=2)


class Stage:
    """What was reported, after one look, so that its first start is over."""

    def __init__(self, kinds=NOTICES, console="", record=None):
        self.reported = Reported("m", kinds, console, record)
        self.now, self._notices = 1000.0, []
        if record is None:
            self.look()

    def look(self, *batches):
        found = {one.summary["jid"]: one for one in batches}
        self.now += 1
        for ended in (False, True):
            read = {jid: found[jid] for jid in self.reported.to_read(found, ended)}
            self.reported.take_batches(read, list(found), self.now)

    @property
    def notices(self):
        self._notices += self.reported.written()
        return self._notices

    @property
    def told(self):
        return [notice["kind"] for notice in self.notices]


@pytest.fixture
def stage():
    return Stage()


@pytest.mark.parametrize(
    "batch, kind",
    [
        (HALTED, "halted"),
        (FAILED, "failed"),
        (WAITS, "approval"),
        (seen("paused", paused_by="publish", paused_reason="6 publishes failed"), "paused"),
        (seen("paused", paused_by="permission", paused_reason="its owner may not run it any more"), "paused"),
    ],
)
def test_what_needs_an_operator_is_reported_once(stage, batch, kind):
    stage.look(batch)
    stage.look(batch)
    assert stage.told == [kind]


@pytest.mark.parametrize(
    "batch", [seen(), WELL, *(seen("paused", paused_by=by) for by in ("operator", "window", "start", "rights"))]
)
def test_a_batch_that_needs_no_operator_causes_no_notice(stage, batch):
    stage.look(batch)
    assert stage.told == []


def test_an_approval_that_was_given_is_reported_and_the_next_stage_is_another(stage):
    for batch in (WAITS, seen(), seen("paused", paused_by="approval", approve=2)):
        stage.look(batch)
    assert stage.told == ["approval", "recovered", "approval"]
    stage.look(seen("paused", paused_by="approval", approve=3))  # the engine was faster than the look
    assert stage.told[3:] == ["approval"]


@pytest.mark.parametrize("ended", [FAILED, HALTED])
def test_what_was_reported_of_a_batch_is_over_once_its_retries_have_left_nothing(stage, ended):
    lefts = [{"failed": 2, "queued": 1}, {"pending": 2, "queued": 1}, {"active": 2}, {"queued": 1}, {}, {}]
    for left in lefts if ended is HALTED else (lefts[0], *lefts[2:]):
        stage.look(ended, seen("complete", RETRY, success=True, parent=JID))
        ended = Seen({**ended.summary, "retries": [RETRY], "unmended": left}, ended.minions)
    first, recovered = stage.told
    assert (first, recovered) == ("halted" if ended.summary["state"] == "halted" else "failed", "recovered")
    assert f"Batch {JID} is mended by {RETRY}." in stage.notices[1]["text"]


def test_a_batch_whose_rest_is_queued_is_reported_once_the_queue_has_given_up_on_a_minion(stage):
    queued = seen("complete", success=False, total=3, completed=1, queued=2)
    given_up = seen("complete", success=False, total=3, completed=1, queued=1, offline=1)
    for batch, told in ((queued, []), (given_up, ["failed"]), (queued, ["failed"]), (WELL, ["failed", "recovered"])):
        stage.look(batch)
        assert stage.told == told


def test_a_batch_that_ended_a_week_ago_is_not_looked_at_any_more(stage):
    stage.now += 8 * 86400
    for batch in (FAILED, WELL):
        stage.look(batch)
    assert stage.told == ["failed"]


def test_an_engine_that_hangs_and_answers_again_is_reported(stage):
    for silent in (0, 80, 90, 0, 0):
        stage.reported.take_engine("batch_manager", silent, stage.now)
    assert stage.told == ["engine", "recovered"]
    first = stage.notices[0]
    assert first["text"] == "The batch_manager engine has not answered for 80 s: it hangs or does not run"


def test_a_halt_is_reported_at_once_and_not_again_when_the_last_minion_has_ended(stage):
    stage.look(WAITS)
    for state in ("stopping", "halted"):
        stage.look(seen(state, halted_reason="stop", total=2, active=int(state == "stopping")))
        assert stage.told == ["approval", "halted"]
    assert "stop. 0 of 2 minions completed, 1 active" in stage.notices[1]["text"]


def test_a_batch_from_before_the_first_start_causes_no_notice():
    reported = Reported("m", NOTICES, "", None)
    reported.take_batches(
        {JID: HALTED, RETRY: seen("paused", RETRY, paused_by="approval", approve=1)}, [JID, RETRY], 1.0
    )
    assert reported.written() == []
    reported.take_batches({RETRY: seen("halted", RETRY, halted_reason="stop")}, [JID, RETRY], 2.0)
    assert [notice["kind"] for notice in reported.written()] == ["halted"]


def test_kinds_that_are_not_wanted_are_not_told_and_neither_is_their_end():
    stage = Stage(kinds=("halted", "recovered"))
    for batch in (WAITS, seen(), HALTED):
        stage.look(batch)
    assert stage.told == ["halted"]
    stage = Stage(kinds=("approval", "recovered"))
    for batch in (WAITS, HALTED):
        stage.look(batch)
    assert stage.told == ["approval"]


def test_nothing_is_reported_again_after_a_restart(stage):
    stage.look(HALTED)
    (first,) = stage.notices
    again = Stage(record=stage.reported.record())
    again.look(HALTED, seen("complete", RETRY, success=False, failed=1))
    (second,) = again.notices
    assert (first["kind"], second["kind"]) == ("halted", "failed") and first["id"] != second["id"]


def test_a_notice_says_which_minions_and_where_to_look(stage):
    stage = Stage(console="https://salt:8000/console/index.html#/jobs")
    stage.look(FAILED)
    (notice,) = stage.notices
    assert notice["link"] == f"https://salt:8000/console/index.html#/batches/{JID}"
    assert (notice["minions"], notice["minions_in_all"]) == (["b", "z"], 2), "worst first"
    assert notice["counts"]["failed"] == 1
    assert notice["text"] == (
        f"Batch {JID} has not succeeded. 1 of 2 minions completed, 1 failed. Minions: b, z. {notice['link']}"
    )


def test_a_text_for_a_returner_means_nothing_to_a_template():
    assert plain("Batch 1: {{ opts }} `id` $(id) {% x %} 5 of 6") == "Batch 1: __ opts __ _id_ _(id) _% x %_ 5 of 6"


def test_a_notice_is_short_however_long_the_target_and_the_reason_are(stage):
    many = [f"web{number}.example.com" for number in range(50_000)]
    stage.look(seen("halted", halted_reason="x" * 10**6, tgt=many, minions=dict.fromkeys(many, "failed")))
    (notice,) = stage.notices
    assert notice["tgt"] == [*many[:NAMED], "…"]
    assert len(str(notice)) < 20_000


# -- owed jobs that are given up ---------------------------------------------------------------------------------------

REASON = "it no longer matches the job's target"


def given_up(*minions, jid=JID):
    return {jid: GivenUp(jid, "state.apply", dict.fromkeys(minions, REASON))}


def test_owed_jobs_that_are_given_up_are_reported_once_with_their_minions_and_why(stage):
    stage.reported.take_given_up(given_up("a", jid="20260516000000000000"), 1000.0)  # before the first look
    for now in (1001.0, 1002.0):
        stage.reported.take_given_up({**given_up("b", "a"), **given_up("a", jid=RETRY)}, now)
    (notice,) = stage.notices
    assert (notice["kind"], notice["minions"], notice["minions_in_all"]) == ("dead", ["a", "b"], 2)
    assert notice["jobs"] == [{"jid": JID, "fun": "state.apply"}, {"jid": RETRY, "fun": "state.apply"}]
    assert (
        f"{JID} (state.apply) for 2 minions: {REASON}; {RETRY} (state.apply) for 1 minion: {REASON}." in notice["text"]
    )


def test_a_job_that_is_given_up_for_ever_more_minions_is_reported_again_when_they_are_twice_as_many(stage):
    stage.reported.take_given_up({}, 1000.0)
    for count in range(1, 1001):
        stage.reported.take_given_up(given_up(*(f"m{number}" for number in range(count))), 1000.0 + count)
    assert stage.told == ["dead"] * 10


def test_many_jobs_that_are_given_up_at_once_are_one_short_notice_that_leads_to_the_queue():
    stage = Stage(console="https://salt/index.html")
    stage.reported.take_given_up({}, 1000.0)
    jids = [f"202605161011121{number:05}" for number in range(300)]
    stage.reported.take_given_up({jid: GivenUp(jid, "f" * 9000, {"m" + jid: "r" * 9000}) for jid in jids}, 1001.0)
    (notice,) = stage.notices
    assert "; and 295 more jobs." in notice["text"] and notice["link"] == "https://salt/index.html#/queue"
    assert len(notice["text"]) < 4000 and len(notice["jobs"]) == NAMED and notice["minions_in_all"] == 300
