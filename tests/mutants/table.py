"""
The ways in which ``make test-mutants`` breaks the code: one line each, at the heart of a promise.

A mutant says what a user would suffer from, and names the tests that must notice it. Better than tests of one function are
worlds and stories: they outlive the code.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """
    In ``file``, ``old`` becomes ``new``; it must be there once. ``tests``: arguments of pytest.

    :param name: what goes wrong.
    """

    name: str
    file: str
    old: str
    new: str
    tests: str


#: Simulated worlds with their own ground truth: the retry queue, and both engines in one world.
QUEUE = "tests/worlds/test_adversary.py -k 'not many'"
TOGETHER = "tests/worlds/test_together.py -k 'not many'"
#: Kinds of the latter, for what happens there only.
CUTS = "tests/worlds/test_together.py -k 'Cuts and not many'"
QUIET = "tests/worlds/test_together.py -k 'Quiet and not many'"
RESTARTS = "tests/worlds/test_together.py -k 'Restarts and not many'"
ROLLOUTS = "tests/worlds/test_together.py -k 'Rollouts and not many'"
CLOCKS = "tests/worlds/test_together.py -k 'Clocks and not many'"

#: The fields of each mutant, by what it concerns.
_TABLE = (
    # batches
    (
        "a slot is freed by time: silence once is enough",
        "core/batch/member.py",
        "member.unanswered >= spec.probe_attempts:",
        "member.unanswered >= 1:",
        TOGETHER,
    ),
    (
        "the size of a batch is off by one",
        "core/batch/pace.py",
        "min(self.size - flying - len(self.cooling),",
        "min(self.size + 1 - flying - len(self.cooling),",
        TOGETHER,
    ),
    (
        "batch_wait is not waited for",
        "core/batch/pace.py",
        "if self.spec.batch_wait:\n            self.cooling",
        "if False:\n            self.cooling",
        "tests/unit/batch/test_shell_sending.py -k batch_wait_are_waited_for",
    ),
    (
        "the first wave of a ramp sends on before it has ended",
        "core/batch/spec.py",
        "Stage(group, size, size)",
        "Stage(group, size, math.inf)",
        "tests/unit/batch/test_shell_sending.py::test_a_ramp_sends_wave_by_wave_and_then_slides",
    ),
    (
        "a job is published before it is written down",
        "core/batch/live.py",
        "self.when_durable(lambda: live.gone or self._perform(self._ports, live, effects))",
        "self._perform(self._ports, live, effects)",
        "tests/unit/batch/test_shell_start.py -k published_is_on_the_disk_before",
    ),
    (
        "after a crash a publish under way counts as never sent",
        "core/batch/machine.py",
        "    ending.doubt_silence(batch, fact, now)\n    batch.publishing = ()",
        "    for minion in batch.publishing:\n        batch.flights.pop(minion, None)\n    batch.publishing = ()",
        CUTS,
    ),
    (
        "a publish without a confirmation counts as not sent",
        "core/batch/machine.py",
        "if not fact.certain:\n",
        "if False:\n",
        QUIET,
    ),
    (
        "a minion that restarted is sent the job a second time",
        "core/batch/ending.py",
        "batch.change(minion).starts(now)",
        "batch.change(minion).claimed = False",
        RESTARTS,
    ),
    (
        "a job that is killed goes out again",
        "core/batch/member.py",
        "(member.restarted or member.kills)",
        "member.restarted",
        "tests/unit/batch/test_shell_control.py -k killed_is_said_only",
    ),
    (
        "what had ended before a kill counts as killed",
        "core/batch/member.py",
        "if member.killed and member.idle:",
        "if member.kills and member.idle:",
        TOGETHER,
    ),
    (
        "a kill misses the minions whose publish is under way",
        "core/batch/machine.py",
        "if batch.killing and",
        "if batch.killing and batch.publishing and",
        "tests/unit/batch/test_shell_control.py::test_a_kill_reaches_minions_whose_publish_was_under_way",
    ),
    (
        "a paused batch sends on",
        "core/batch/machine.py",
        "if batch.halted or batch.paused or not pending:",
        "if batch.halted or not pending:",
        "tests/unit/batch/test_shell_control.py::test_a_paused_batch_sends_nothing_until_it_is_resumed",
    ),
    (
        "a publish that waits for the disk goes out after a stop",
        "core/batch/state.py",
        'if self.halted:\n            return "stopped"',
        'if False:\n            return "stopped"',
        "tests/unit/batch/test_shell_rollout.py -k disk_held_up",
    ),
    (
        "one failure more than allowed is allowed",
        "core/batch/state.py",
        "used > budgets[group])",
        "used > budgets[group] + 1)",
        "tests/unit/batch/test_shell_sending.py -k more_failures_than_allowed",
    ),
    (
        "the budget of a group is forgotten",
        "core/batch/state.py",
        "self.pending.group_of(minion) if len(self.spec.budgets) > 1 else 0",
        "0",
        "tests/unit/batch/test_shell_sending.py -k more_failures_than_allowed",
    ),
    (
        "a window does not shut",
        "core/batch/pace.py",
        "(found.closes or math.inf) if self.open else found.opens",
        "math.inf if self.open else found.opens",
        CLOCKS,
    ),
    (
        "a stage begins before the one before it was checked",
        "core/batch/machine.py",
        "if pace.spec.check and pace.passed != pace.stage:",
        "if False:",
        ROLLOUTS,
    ),
    (
        "an approval is for any stage",
        "core/batch/machine.py",
        "fact.stage != batch.pace.to_approve",
        "batch.pace.to_approve is None",
        "tests/unit/batch/test_shell_control.py::test_an_approval_is_for_the_stage_that_it_names",
    ),
    (
        "a minion may exceed max_runtime",
        "core/batch/member.py",
        "is_too_long = member.expired or (limit is not None and now >= member.ran_since + limit)",
        "is_too_long = False",
        ROLLOUTS,
    ),
    (
        "rights that were taken away are not looked at",
        "core/batch/pace.py",
        'return self.spec.owner.get("kind") not in (None, "master")',
        "return False",
        "tests/unit/batch/test_shell_rollout.py::test_a_batch_whose_owner_has_lost_the_right_sends_nothing_more_until_it_is_given_back",
    ),
    (
        "more minions are in flight over all batches than may be",
        "core/batch/live.py",
        "while heap and given.total() < free:",
        "while heap and given.total() <= free:",
        TOGETHER,
    ),
    (
        "a halted batch hands minions over to the retry queue",
        "core/batch/ending.py",
        "if waits or batch.halted or not batch.hands_over():",
        "if waits or not batch.hands_over():",
        TOGETHER,
    ),
    # where both meet
    (
        "a batch ends, and the retry queue does not get what it has handed over",
        "core/batch/store.py",
        "    if handed:\n        asks",
        "    if False:\n        asks",
        TOGETHER,
    ),
    (
        "the retry queue takes the job of a batch for one that it owes",
        "core/retry/reader.py",
        'kept_out = bool(load.get(BATCH_MARK) or options.get("nocache"))',
        'kept_out = bool(options.get("nocache"))',
        TOGETHER,
    ),
    (
        "a kill ends no job that a batch has handed over",
        "core/retry/reader.py",
        "if record.ends:",
        "if False:",
        TOGETHER,
    ),
    (
        "a paused batch hands minions over",
        "core/batch/ending.py",
        "waits = batch.paused or batch.pending",
        "waits = batch.pending",
        TOGETHER,
    ),
    (
        "minions are handed over while others still run the job",
        "core/batch/ending.py",
        "batch.pending or batch.flights or",
        "batch.pending or",
        TOGETHER,
    ),
    # the retry queue
    ("a claim is not stored", "core/retry/effects.py", "its._writer.durable()", "compat.sleep(0)", QUEUE),
    (
        "a newer job overtakes an older one",
        "core/retry/replay.py",
        "key=lambda entry: (jobs[entry.jid].published_at,",
        "key=lambda entry: (-jobs[entry.jid].published_at,",
        "tests/unit/retry/test_machine.py::test_jobs_are_replayed_oldest_first_one_at_a_time",
    ),
    (
        "an interrupted job runs again unasked",
        "core/retry/policy.py",
        "if attempts >= case.max_attempts:",
        "if False:",
        QUEUE,
    ),
    ("what was killed is delivered", "core/retry/capture.py", "if minion in watched.killed:", "if False:", QUEUE),
    (
        "a kill cancels what was published after it",
        "core/retry/capture.py",
        "if kill.again and kill.at < fact.minions.get(name, 0.0)}",
        "if False}",
        "tests/unit/retry/test_capture.py -k published_after_it",
    ),
    (
        "nothing expires",
        "core/retry/replay.py",
        'self.end(entry, State.EXPIRED, "its time to live has passed")',
        "pass",
        "tests/unit/retry/test_machine.py::test_an_entry_expires_and_is_kept_for_a_while_with_the_reason",
    ),
    (
        "lost events are not made up for",
        "core/retry/machine.py",
        "facts.Gap: lambda fact: self._look_again(fact.returns),",
        "facts.Gap: lambda fact: None,",
        "tests/unit/retry/test_machine.py::test_minions_that_could_not_be_pinged_are_pinged_again",
    ),
    (
        "a job whose minions are not known yet is forgotten in a crash",
        "core/retry/shell.py",
        "facts.Restored(watched)",
        "facts.Restored({})",
        QUEUE,
    ),
    (
        "a job goes to a machine whose key was deleted",
        "core/retry/owing.py",
        "for minion in sorted(keyless.keys() - self._keyless.keys()):",
        "for minion in ():",
        "tests/unit/retry/test_machine.py -k without_an_accepted_key",
    ),
    ("a right that was lost is not asked for", "core/retry/policy.py", "if case.denied:", "if False:", QUEUE),
    (
        "publishes are not limited by the rate",
        "core/retry/waiting.py",
        "self._tokens -= 1\n",
        "\n",
        "tests/unit/retry/test_machine.py::test_publishes_keep_to_the_rate",
    ),
    (
        "minions that come at once get a publish each",
        "core/retry/replay.py",
        "self._gathered.join(key, minion, now, gather, longest)",
        "self._gathered.join(key, minion, now, 0.0, 0.0)",
        "tests/unit/retry/test_machine.py::test_minions_owed_the_same_job_are_one_publish",
    ),
    # job_once, on minions
    (
        "a job that ended runs again",
        "executors/job_once.py",
        'if state != "never" and not goes_on and not (state == "interrupted" and options.get("rerun")):',
        'if state == "interrupted" and not options.get("rerun"):',
        "tests/functional/executors/test_job_once.py::test_a_job_that_arrives_again_is_not_run_and_returns_what_it_returned",
    ),
    (
        "an interrupted job runs again",
        "executors/job_once.py",
        'self.state, known = "interrupted" if text else "never", False',
        'self.state, known = "never", False',
        "tests/functional/executors/test_job_once.py::test_a_record_that_is_cut_anywhere_never_lets_the_job_run_again",
    ),
    (
        "a job runs before its record is on the disk",
        "executors/job_once.py",
        "        os.fsync(file.fileno())\n        if not before:",
        "        if not before:",
        "tests/functional/executors/test_job_once.py::test_a_job_is_on_the_disk_before_its_function_runs",
    ),
    # the job cache
    (
        "the first return is overwritten",
        "core/store/records.py",
        "if store.driver.store_new(bank, minion, record):",
        "if store.store(bank, minion, record) is None:",
        "tests/functional/store/test_contract.py::TestLocalfs::test_the_first_return_of_a_minion_is_kept",
    ),
    (
        "a load that nobody published is believed",
        "core/store/records.py",
        "return bool(self.load) and (self.publication is None or self.publication.load == digest(self.load))",
        "return bool(self.load)",
        "tests/functional/store/test_contract.py::TestLocalfs::test_a_load_that_took_the_place_of_the_published_one_is_not_believed",
    ),
    (
        "a return of another function counts as the job's",
        "core/store/records.py",
        'if not job.digest or not load.get("fun"):',
        "if True:",
        "tests/functional/store/test_contract.py::TestLocalfs::test_a_run_under_a_borrowed_jid_is_no_return_of_the_job",
    ),
    (
        "returns of a job with nocache are in the log",
        "returners/salt_cache.py",
        "if not (job.stored or job.asked):\n        return None",
        "if False:\n        return None",
        "tests/functional/store/test_log.py::test_a_return_that_is_not_stored_is_no_record",
    ),
    (
        "a password is stored with a load",
        "core/master/secrets.py",
        'frozenset(("token", "eauth_token", "password", "key", "tok", "sig"))',
        'frozenset(("token", "eauth_token", "key", "tok", "sig"))',
        "tests/functional/store/test_contract.py::TestLocalfs::test_secrets_are_not_stored_and_the_load_in_use_is_not_touched",
    ),
    (
        "a job that an engine needs is removed",
        "core/store/retention.py",
        "{*queue.owed(tables, jids.values()), ",
        "{",
        "tests/functional/store/test_contract.py::TestLocalfs::test_no_job_is_removed_that_an_engine_still_needs",
    ),
    (
        "an old job stays for ever",
        "core/store/retention.py",
        "store.driver.remove(part, now - keep)",
        "pass",
        "tests/functional/store/test_contract.py::TestLocalfs::test_an_old_job_is_removed_with_all_that_belongs_to_it",
    ),
    (
        "the database can be read by other users",
        "core/sqlite/file.py",
        "os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)",
        "os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)",
        "tests/functional/ledger/test_log.py::test_only_its_owner_may_read_it",
    ),
    (
        "a search overlooks failed returns",
        "core/store/search.py",
        "if isinstance(record, SaltCacheError) or has_failed(record):\n            failed.add(name)",
        "if False:\n            failed.add(name)",
        "tests/functional/store/test_search.py::TestOneAtATime",
    ),
    # the log
    (
        "a record that could not be written leaves no gap",
        "core/ledger/log.py",
        "self._unmarked = not self._tables.note_gap()",
        "self._unmarked = False",
        "tests/functional/ledger/test_log.py::test_a_database_that_cannot_be_written_refuses_nothing_and_the_reader_learns_of_it_once",
    ),
    (
        "a job since which a record is missing is looked up in the log alone",
        "core/ledger/log.py",
        "and not tables.read(_GAP_AFTER, (found[0][0],))",
        "",
        "tests/functional/ledger/test_log.py::test_of_a_job_since_which_a_record_may_be_missing_the_log_does_not_have_all",
    ),
    # the recorder
    (
        "a return that comes twice is recorded twice",
        "core/ledger/tables.py",
        'f"INSERT INTO {LOG} (jid, minion, mark, body) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",',
        'f"INSERT OR REPLACE INTO {LOG} (jid, minion, mark, body) VALUES (?, ?, ?, ?)",',
        "tests/functional/recorder/test_recording.py::test_a_return_that_comes_twice_is_recorded_once",
    ),
    (
        "a load is recorded with each return",
        "core/recorder/recipients.py",
        "not job.has_load and (kind == LOAD or not job.is_published)",
        "True",
        "tests/functional/recorder/test_recording.py::test_a_load_is_recorded_once_over_restarts",
    ),
    (
        "the place moves past a record that no returner has",
        "core/recorder/consumer.py",
        "self._outbox.add(rows, news.position)",
        "self._outbox.add([], news.position)",
        "tests/functional/recorder/test_recording.py::test_what_a_returner_has_not_got_goes_out_after_a_restart",
    ),
    (
        "a refused record is tried for ever",
        "core/recorder/pipeline.py",
        "None if count >= self._tries else _pause(count - 1)",
        "_pause(count - 1)",
        "tests/unit/recorder/test_pipeline.py",
    ),
    # who may
    (
        "anybody may publish under the jid of a batch",
        "core/master/passes.py",
        "return None if plain(text) and Batches(site).kind_of(str(text)) is not None else named",
        "return named",
        "tests/functional/master/test_passes.py::test_only_a_publish_with_a_pass_may_use_the_jid_of_a_batch",
    ),
    (
        "an engine that has lost the lead publishes",
        "core/master/passes.py",
        "return (jid if leads else None), origin",
        "return jid, origin",
        "tests/functional/master/test_passes.py::test_an_engine_publishes_as_long_as_it_leads",
    ),
    (
        "one permitted function of several permits all",
        "core/master/access.py",
        "return bool(lists and calls) and all(",
        "return bool(lists and calls) and any(",
        "tests/functional/retry/test_access.py::test_each_of_several_functions_needs_the_right_with_its_own_arguments",
    ),
    (
        "a load says itself who has published it",
        "returners/salt_cache.py",
        "    kept.pop(users.WHO, None)\n",
        "",
        "tests/functional/store/test_store_job.py::test_no_load_says_itself_who_has_published_it",
    ),
    (
        "the user who started a batch approves it",
        "core/batch/permission.py",
        'raise Refused(f"{who.name} has started',
        'log = (f"{who.name} has started',
        "tests/functional/batch/test_approval.py::test_the_user_who_started_a_batch_may_not_approve_it_even_if_named",
    ),
    # who leads
    (
        "two engines lead at once",
        "core/disk/lease.py",
        "is_free = files.hold(handle)",
        "is_free = True",
        "tests/functional/site/test_contract.py -k second_master",
    ),
    (
        "a frozen leader goes on writing",
        "core/postgresql/tables.py",
        "if isinstance(lease, TableLease):",
        "if False:",
        "tests/functional/site/test_contract.py::TestValues::test_a_former_leader_changes_no_value",
    ),
    (
        "a frozen leader publishes",
        "core/master/publisher.py",
        "self._lease.check()",
        "self._lease.beat",
        "tests/functional/master/test_publisher.py::test_an_engine_that_has_lost_the_lead_publishes_nothing",
    ),
    # requests to engines, and questions to minions
    (
        "a request is answered twice",
        "core/engine/requests.py",
        "if each.id not in self._underway]",
        "]",
        "tests/functional/engine/test_requests.py::test_a_request_that_is_being_carried_out_is_not_taken_a_second_time",
    ),
    (
        "a request that was taken before a crash is forgotten",
        "core/engine/requests.py",
        "if not (taken or self._requests.take(request_id)):",
        "if taken or not self._requests.take(request_id):",
        "tests/functional/engine/test_requests.py::test_a_request_taken_before_a_crash_is_taken_again_first",
    ),
    ("an answer that nobody proves counts", "core/master/questions.py", "if question.is_hint:", "if True:", CLOCKS),
    # commands, what they show, and options
    (
        "a control character acts on the terminal",
        "core/display/text.py",
        "char if char.isprintable() else",
        "char if True else",
        "tests/unit/batch/test_failures.py::test_control_characters_of_minions_do_not_act_on_the_terminal",
    ),
    (
        "a password among arguments is shown",
        "core/display/command.py",
        "if _IS_SECRET(name):",
        "if False:",
        "tests/unit/display/test_command.py::test_an_argument_named_like_a_secret_is_hidden",
    ),
    (
        "a refused command ends with status 0",
        "core/runner.py",
        "    _show_refusal(function.__globals__, name, refusal)\n    raise refusal from None",
        "    _show_refusal(function.__globals__, name, refusal)\n    return None",
        "tests/functional/runners/test_refusals.py::test_a_wrong_call_is_one_line_on_standard_error_and_no_success",
    ),
    (
        "an unknown option is ignored",
        "core/runner.py",
        "            if option not in options:\n                raise",
        "            if False:\n                raise",
        "tests/unit/test_runner.py::test_an_unknown_option_is_refused_with_what_must_have_been_meant",
    ),
    (
        "a duration below 0 is taken",
        "core/options/kinds.py",
        "and 0 <= value",
        "and -1e9 <= value",
        "tests/unit/test_options.py::test_a_negative_duration_is_refused",
    ),
)

MUTANTS = [Mutant(*fields) for fields in _TABLE]
