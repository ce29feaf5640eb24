"""
Starting a batch: makes its Spec from what an operator typed, or from another batch or job (``like=JID``, ``batch.retry``).
It reads the options (``spec.py``), matches the target, and has access checked. Blocks.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import salt.loader
import salt.utils.args
import salt.utils.jid

from saltext.jobs.core.batch.member import Outcome
from saltext.jobs.core.batch.minion_data import find_groups, without_data
from saltext.jobs.core.batch.permission import CallerRights, load_of
from saltext.jobs.core.batch.spec import NOT_KNOWN, OPTIONS, TRAVELLING, WITHOUT, Check, Spec
from saltext.jobs.core.batch.state import Batch
from saltext.jobs.core.batch.summary import BAD, in_numbers, latest, unmended
from saltext.jobs.core.batch.summary import minions as records_of
from saltext.jobs.core.display.command import HIDDEN, divided, has_hidden
from saltext.jobs.core.display.text import counted
from saltext.jobs.core.errors import Refused
from saltext.jobs.core.functions import RUNNERS, kind_of
from saltext.jobs.core.master.caller import Caller, matching
from saltext.jobs.core.options import kinds
from saltext.jobs.core.options.kinds import Kind
from saltext.jobs.core.windows import find_zone, own_zone, parse_moment

#: The states of minions that ``batch.retry`` may take, and what reads its ``which``.
_RETRIABLE = (*(state for state in BAD if state != "queued"), "pending")
WHICH = kinds.some_of(*_RETRIABLE, "all")

#: A time of the day; and as what YAML reads one from 1:00, which is never meant as Unix time: 22:00 becomes 1320.
_CLOCK, _SEXAGESIMAL = re.compile(r"[0-9]{1,2}:[0-9]{2}"), range(60, 24 * 60)
#: The first Unix time that no calendar has: milliseconds end up there.
_YEAR_10000 = 253402300800
#: What batch.start takes by name; any other keyword goes to the function.
NAMES = ("tgt", "fun", "tgt_type", "arg", "kwarg", *OPTIONS, *TRAVELLING)
#: Names that are refused, and the options that they must mean.
_ALIASES = {
    **dict.fromkeys(("failhard", "fail_hard"), "max_failures=0"),
    **dict.fromkeys(("batch_size", "batchsize", "size", "batch_safe_limit", "batch_safe_size"), "batch"),
    **dict.fromkeys(("expr_form", "target_type"), "tgt_type"),
    **dict.fromkeys(("return", "returner"), "ret"),
    "args": "arg",
    "dry_run": "batch.preview",
    "subset": "a target of fewer minions",
}


def new_batch(
    opts: Mapping[str, Any], who: Caller, args: tuple[Any, ...], given: Mapping[str, Any], parent: str | None = None
) -> Spec:
    """
    Return the batch that ``batch.start`` was asked for: ``args`` of the function, and what is ``given`` by name: target,
    function, our options, and more for the function. ``parent``: the jid of the batch that it retries; its minions may be
    too few for the check.

    :raises Refused: for bad input, and if ``who`` may not publish the job to these minions.
    """
    rights = CallerRights(opts, who)
    # Before the target is matched: what it matches tells the caller about grains and pillar of minions.
    rights.require_allowed_peer()
    options, kwargs = _split(given)
    rights.permit_options(options)
    fields = fields_of(opts, options)
    if "check" in fields:
        fields["check"] = check_of(opts, rights, fields["check"])
    fun = kinds.function(given["fun"])
    arg = (*args, *kinds.SEQUENCE.given("arg", options.get("arg")))
    if has_hidden(arg, kwargs):
        raise Refused(f"An argument is {HIDDEN}, which stands for a secret that is not shown: type its value")
    tgt, tgt_type = kinds.target(given["tgt"], options.get("tgt_type", "glob"))
    without_data(opts, tgt, tgt_type, ())  # refuses a target by data that the master does not keep
    permit = functools.partial(rights.permit, load_of(fun, arg, kwargs))
    spec = Spec(
        parent=parent,
        jid=str(salt.utils.jid.gen_jid(opts)),
        fun=fun,
        arg=arg,
        kwargs=kwargs,
        tgt=tgt,
        tgt_type=tgt_type,
        minions=tuple(matching(opts, tgt, tgt_type, permit)),
        user=who.name,
        owner=who.owner(),
        on_behalf=who.limits(),
        options=_read(TRAVELLING, options),
        **fields,
    )
    if spec.check.get("kind") == "function":
        rights.permit(load_of(spec.check["fun"], spec.check["arg"], spec.check["kwargs"]), spec.minions)
    rights.permit_groups(spec)
    rights.require_approvers(spec)
    unsure = without_data(opts, tgt, tgt_type, spec.minions)
    minions = tuple(minion for minion in spec.minions if minion not in unsure)
    if not minions:
        raise Refused(
            f"The master has no grains and pillar of {counted(len(unsure), 'minion')} that the target {tgt!r} may match; "
            "salt '*' saltutil.refresh_pillar brings them"
        )
    groups = find_groups(opts, spec.by, minions, parent is not None) if spec.by else ()
    # A batch's events show groups to every user of salt-api, whatever their rights. So numbers replace values of minions.
    plain = [group.name for group in groups] if spec.by.startswith("nodegroups:") else (WITHOUT, NOT_KNOWN)
    names = [name if name in plain else str(number) for number, (name, _) in enumerate(groups, 1)]
    spec = dataclasses.replace(
        spec,
        minions=tuple(minion for group in groups for minion in group.minions) or minions,
        groups=tuple(zip(names, (len(group.minions) for group in groups), strict=True)),
        unsure=tuple(sorted(unsure)),
    )
    if spec.check and parent is None and len(spec.stages) == 1:
        found = ", and its minions are one group" if groups else ""
        raise Refused(
            f"this batch has one stage{found}, and a check needs several; give it a ramp, such as batch=1,100%, or several "
            "groups with by="
        )
    return spec


# -- options -----------------------------------------------------------------------------------------------------------


def _read(known: Mapping[str, Kind[Any]], options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: kind.given(name, options[name]) for name, kind in known.items() if name in options}


def _split(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """
    Split keyword arguments into our options and those of the function. An option that is None counts as not given.

    :raises Refused: for a name so close to one of ours that it must be a typo; in ``kwarg`` any name is accepted.
    """
    options = {name: value for name, value in given.items() if name in NAMES and value is not None}
    kwargs = {name: value for name, value in given.items() if name not in NAMES}
    for name, value in kwargs.items():
        if meant := _ALIASES.get(name) or kinds.slip_of(name, ("like", *NAMES)):
            raise Refused(
                f"There is no option {name}; did you mean {meant}? If {name} is meant for the function, give it as"
                f" kwarg='{{{name}: {value}}}'"
            )
    return options, {**kwargs, **kinds.MAPPING.given("kwarg", options.pop("kwarg", None))}


def fields_of(opts: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a Spec that options become. :raises Refused: if malformed, or if the start has passed."""
    zone = kinds.TIMEZONE.given("timezone", options.get("timezone", ""))
    given = {**{name: opts[name] for name in ("timeout", "gather_job_timeout")}, **options}
    if options.get("window") and not zone:  # another master, in another time zone, may go on with the batch
        given["timezone"] = own_zone()
    if "start_at" in options:
        given["start_at"] = _start_at(options["start_at"], find_zone(zone) if zone else None)
    return _read({name: field.metadata["kind"] for name, field in OPTIONS.items()}, given)


def _start_at(value: Any, zone: datetime.tzinfo | None) -> float:
    now = time.time()

    def read(value: Any) -> float:
        if value in _SEXAGESIMAL:
            value = f"{int(value) // 60}:{int(value) % 60:02}"
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(min(value, _YEAR_10000))
        text = str(value).strip()
        if _CLOCK.fullmatch(text):
            today = datetime.datetime.fromtimestamp(now, zone)
            days = (today, today + datetime.timedelta(days=1))
            return next(at for day in days if (at := parse_moment(f"{day:%Y-%m-%d} {text:0>5}", zone)) >= now)
        return now + kinds.duration(text[1:]) if text.startswith("+") else parse_moment(text, zone)

    accepted = "a date and time ('2026-11-28 02:00'), a time of the day (22:00), '+90m', or Unix time in seconds"
    moment = Kind(read, accepted).given("start_at", value)
    if not moment >= now:  # or it is not a number
        raise Refused(f"start_at is {value!r}, which has passed; accepted is {accepted}")
    if moment >= _YEAR_10000:
        raise Refused(f"start_at is {value!r}, which is after the year 9999: Unix time is in seconds")
    return moment


def check_of(opts: Mapping[str, Any], rights: CallerRights, check: Check) -> dict[str, Any]:
    """
    Return the check between stages, as a Spec has it. The right to a function on the minions must be checked elsewhere.

    :raises Refused: if it is a runner function that the caller may not call or this master does not have.
    """
    if check.kind == "function" and check.kwargs is None:
        arg, kwargs = salt.utils.args.parse_input(check.arg, condition=False)
        check = check._replace(arg=arg, kwargs=kwargs)
    if check.kind == "runner":
        rights.permit_runner(check.fun, check.arg)
        runners = salt.loader.runner(dict(opts))
        if check.fun not in runners:
            why = runners.missing_fun_string(check.fun)
            raise Refused(f"check is runner:{check.fun}, and this master has no such runner function: {why}")
    return {**check._asdict(), "arg": list(check.arg), "kwargs": dict(check.kwargs or {})}


# -- like another batch or job -----------------------------------------------------------------------------------------
# Only what the earlier one was asked for is read. Access, target and sizes are worked out as for any new batch.


def of_batch(spec: Spec) -> dict[str, Any]:
    """Return what a batch was asked for, by the names of ``batch.start``."""
    told = {name: getattr(spec, name) for name in OPTIONS if getattr(spec, name) not in (None, "", (), {})}
    if told.get("start_at", 0.0) < time.time() + 1.0:
        told.pop("start_at", None)
    if spec.check:
        told["check"] = Check(**spec.check)
    job = {name: getattr(spec, name) for name in ("tgt", "fun", "tgt_type")}
    return {**told, **spec.options, **job, "arg": list(spec.arg), "kwarg": dict(spec.kwargs)}


def of_job(jid: str, load: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same of a job with this load in the job cache. :raises Refused: if a batch cannot run such a job."""
    fun = load.get("fun")
    if not isinstance(fun, str) or kind_of(fun) == RUNNERS:
        raise Refused(f"like is {jid}, which is not a job of one function on minions: a batch can't run it")
    arg, kwarg = divided(load.get("arg"))
    options = load.get("kwargs")
    given = {name: options.get(name) or None for name in TRAVELLING} if isinstance(options, Mapping) else {}
    found = {"tgt": load.get("tgt"), "tgt_type": load.get("tgt_type"), "ret": load.get("ret") or None}
    return {**given, **found, "fun": fun, "arg": arg, "kwarg": kwarg}


def asked_again(before: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return what is ``given``, and all else from ``before``; but not arguments for another function, nor the target type for
    another target.
    """
    taken = dict(before)
    if "tgt" in given:
        taken.pop("tgt_type", None)
    if "fun" in given:
        taken.update(arg=[], kwarg={})
    kwarg = {name: value for name, value in taken.pop("kwarg").items() if name in NAMES or name not in given}
    return {**taken, **given, "kwarg": {**kwarg, **kinds.MAPPING.given("kwarg", given.get("kwarg"))}}


def not_ended(batch: Batch) -> str:
    """Return on how many minions a batch has not ended. Whether and when it goes on there, its status says."""
    count = sum("open" in record for record in records_of(batch).values())
    return f"has not ended on {counted(count, 'minion')}; batch.status {batch.spec.jid} says how it stands"


def next_batch(
    opts: Mapping[str, Any], who: Caller, batch: Batch, which: Sequence[str], retries: Sequence[Batch] = ()
) -> Spec:
    """
    Return a batch like ``batch``, for its minions on which it did not succeed. ``which``: as ``WHICH`` reads it.

    :param retries: as for ``summary.latest``.
    :raises Refused: if there are none, or as ``new_batch``.
    """
    spec, stands = batch.spec, latest(batch, retries)
    wanted = _RETRIABLE if "all" in which else which
    chosen = [minion for minion, (_, state) in stands.items() if state in wanted]
    if not chosen:
        how = "unsuccessful" if "all" in which else " or ".join(which)
        told = [f"No minion of batch {spec.jid} {'is' if batch.finished else 'has ended as'} {how}"]
        if not batch.finished:
            told.append(f"it {not_ended(batch)}")
        if retries:
            told.append(f"it was retried by {', '.join(one.spec.jid for one in retries)}")
        if queued := batch.counts[Outcome.QUEUED]:
            told.append(f"job_retry owes it to {queued}: salt-run job_retry.list jid={spec.jid}")
        if left := {state: count for state, count in unmended(stands).items() if state in _RETRIABLE}:
            told.append(f"which={','.join(left)} takes {in_numbers(left, left)}")
        raise Refused("; ".join(told))
    CallerRights(opts, who).permit_batch(spec, chosen)
    return new_batch(opts, who, (), asked_again(of_batch(spec), {"tgt": chosen, "tgt_type": "list"}), parent=spec.jid)
