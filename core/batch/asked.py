"""
Makes the Spec of a new batch from what an operator typed: reads the options, matches the target, checks access.

Each option is listed once, with the function that reads it. The default of one that is not given is in the Spec. Blocks.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import salt.utils.args
import salt.utils.jid
import salt.utils.minions

from saltext.jobs.core import arguments
from saltext.jobs.core.batch import rollout
from saltext.jobs.core.batch.machine import Batch
from saltext.jobs.core.batch.minion_data import check_limit, doubts_about
from saltext.jobs.core.batch.plan import APPROVE, failures_allowed, sizes_of
from saltext.jobs.core.batch.spec import OFFLINE, PRESENCE, Spec
from saltext.jobs.core.batch.summary import minions as minions_of
from saltext.jobs.core.compat import minion_keys
from saltext.jobs.core.engine.names import BATCH_MANAGER
from saltext.jobs.core.errors import Refused
from saltext.jobs.core.grouping import parse_by
from saltext.jobs.core.ids import is_plain
from saltext.jobs.core.master.access import Access
from saltext.jobs.core.master.caller import Caller, groups_of, names_of, require_no_peer, require_right
from saltext.jobs.core.master.outcome import minions_of as job_minions
from saltext.jobs.core.settings import BatchSettings, InFlightLimit, engine_options, read_settings

#: The size of a batch if none is given.
BATCH = "10%"
#: For each ``which`` of a retry: the states of the minions that it includes.
RETRIABLE = {
    "failed": {"failed"},
    "lost": {"lost"},
    "offline": {"offline"},
    "timed_out": {"timed_out"},
    "all": {"failed", "lost", "offline", "timed_out", "killed", "pending"},
}


def _approvers(name: str, value: Any) -> tuple[str, ...]:
    found = arguments.names(name, value)
    if not found:
        raise Refused(f"{name} is {value!r}; name at least one user or, after a %, group")
    return found


_CLAIM = re.compile(r"[A-Za-z0-9_-]+")


def _exclusive(name: str, value: Any) -> bool | tuple[str, ...]:
    if isinstance(value, bool):
        return value or ()
    found = tuple(dict.fromkeys(arguments.names(name, value)))
    if not found or not all(map(_CLAIM.fullmatch, found)):
        raise Refused(
            f"{name} is {value!r}; accepted is True, for batches of the same module (state, pkg, …), or names, with commas "
            "or as a list: of modules, or of your own"
        )
    return found


_Reader = Callable[[str, Any], Any]
_positive = functools.partial(arguments.seconds, above=0)
#: Options that are read without others.
_READERS: dict[str, _Reader] = {
    "batch_wait": arguments.seconds,
    "failhard": arguments.flag,
    "min_executed": arguments.whole,
    "timeout": _positive,
    "gather_job_timeout": _positive,
    "max_runtime": _positive,
    "check_timeout": _positive,
    "approve_timeout": _positive,
    "approve_by": _approvers,
    "exclusive": _exclusive,
    "presence": functools.partial(arguments.choice, accepted=PRESENCE),
    "offline": functools.partial(arguments.choice, accepted=OFFLINE),
    "ret": arguments.word,
}
#: Options that go into the job's load unchanged.
_TRAVELLING: dict[str, _Reader] = {
    "metadata": arguments.mapping,
    "module_executors": arguments.sequence,
    "executor_opts": arguments.mapping,
    "ret_config": arguments.word,
    "ret_kwargs": arguments.mapping,
}
#: All options of batch.start; any other keyword goes to the function.
OPTIONS = ("batch", "tgt_type", "max_failures", *rollout.OPTIONS, *_READERS, *_TRAVELLING, "arg", "kwarg")
#: Other names for options of ours.
_ALIASES = {
    "batch_size": "batch",
    "size": "batch",
    "expr_form": "tgt_type",
    "target_type": "tgt_type",
    "args": "arg",
    "return": "ret",
    "returner": "ret",
}
_PEERS = " (batch_manager: allow_peers names the minions that may)"


def new_batch(
    opts: Mapping[str, Any], who: Caller, tgt: Any, fun: Any, args: tuple[Any, ...], given: Mapping[str, Any]
) -> Spec:
    """
    Return the batch that ``batch.start`` was asked for.

    :param opts: the master's options.
    :param who: who asks.
    :param given: the keyword arguments of batch.start: our options, and those for the function.
    :raises Refused: for bad input, and if ``who`` may not publish the job to these minions.
    """
    settings = _settings(opts)
    arguments.accepted(check_limit, opts, settings)
    # Before anything is matched: whether a target matches tells the asker about grains and pillar of minions.
    require_no_peer(who, settings.allow_peers, _PEERS)
    options, kwargs = _split(given)
    fun = arguments.function(fun)
    arg = (*args, *arguments.sequence("arg", options.get("arg")))
    tgt, tgt_type = arguments.target(tgt, options.get("tgt_type", "glob"))
    matched = _match_and_permit(opts, settings, who, tgt, tgt_type, fun, arg, kwargs)
    check = rollout.check_of(opts, who, options)
    if check.get("kind") == "function":
        _permit(opts, settings, who, check["fun"], check["arg"], check["kwargs"], matched)
    _permit_groups(opts, settings, who, options.get("by"), matched)
    rollout.require_known(opts, check)
    _require_approvers(who, check, _approvers("approve_by", options["approve_by"]) if "approve_by" in options else ())
    unsure, condition = arguments.accepted(doubts_about, opts, tgt, tgt_type, matched)
    batch = options.get("batch", BATCH)
    layout = rollout.layout_of(opts, options, batch, matched, settings.show_groups_of)
    rollout.require_gates(check, layout)
    wanted = {"timeout": opts["timeout"], "gather_job_timeout": opts["gather_job_timeout"], **options}
    return Spec(
        jid=_new_jid(opts),
        fun=fun,
        arg=arg,
        kwargs=kwargs,
        tgt=tgt,
        tgt_type=tgt_type,
        batch=str(batch),
        user=who.name,
        owner=who.owner(),
        on_behalf=who.limits(),
        check=check,
        **rollout.times_of(options),
        **layout,
        max_failures=options.get("max_failures"),
        unsure=unsure,
        condition=condition,
        options={name: reader(name, options[name]) for name, reader in _TRAVELLING.items() if name in options},
        **{name: reader(name, wanted[name]) for name, reader in _READERS.items() if name in wanted},
    )


def next_batch(opts: Mapping[str, Any], who: Caller, batch: Batch, which: str) -> Spec:
    """
    Return a new batch of the same job, for minions of ``batch`` on which it did not succeed.

    :param which: which of them: a key of RETRIABLE.
    :raises Refused: if there are none, or if ``who`` may not publish the job to them.
    """
    spec = batch.spec
    states = RETRIABLE[which] - ({"pending"} if not batch.finished else set())
    chosen = tuple(minion for minion, record in minions_of(batch).items() if record["state"] in states)
    if not chosen:
        raise Refused(f"No minion of batch {spec.jid} is {which if which != 'all' else 'unsuccessful'}")
    settings = _settings(opts)
    arguments.accepted(check_limit, opts, settings)
    _permit_all(opts, settings, who, spec, chosen)
    _permit_groups(opts, settings, who, spec.by or None, chosen)
    _require_approvers(who, spec.check, spec.approve_by)
    data = spec.as_dict()
    data.update(jid=_new_jid(opts), tgt=list(chosen), tgt_type="list", user=who.name, parent=spec.jid, start_at=None)
    data.update(owner=who.owner(), on_behalf=who.limits())
    data.update(minions=chosen, sizes=sizes_of(spec.batch, len(chosen)))
    data.update(unsure=spec.unsure.intersection(chosen))
    if spec.failures_allowed is not None and spec.max_failures is not None:  # a percentage counts this batch's minions
        data.update(failures_allowed=failures_allowed(spec.max_failures, len(chosen)))
    if spec.groups:
        data.update(rollout.layout_again(spec, chosen, settings.show_groups_of))
    return Spec.from_dict(data)


def _split(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """
    Split keyword arguments into our options and those of the function. An option that is None counts as not given.

    :raises Refused: for a name so close to one of ours that it must be a typo; in ``kwarg`` any name is accepted.
    """
    options = {name: value for name, value in given.items() if name in OPTIONS and value is not None}
    kwargs = {name: value for name, value in given.items() if name not in OPTIONS}
    for name, value in kwargs.items():
        meant = _ALIASES.get(name) or arguments.slip_of(name, ("tgt", "fun", "like", *OPTIONS))
        if meant:
            raise Refused(
                f"There is no option {name}; did you mean {meant}? If {name} is meant for the function, give it as"
                f" kwarg='{{{name}: {value}}}'"
            )
    return options, {**kwargs, **arguments.mapping("kwarg", options.pop("kwarg", None))}


def _match(opts: Mapping[str, Any], tgt: Any, tgt_type: str) -> tuple[str, ...]:
    """Return the accepted minions that a target matches, sorted, as a publish would match them."""
    if tgt_type == "list":
        unknown = sorted(set(tgt) - minion_keys(opts)[0])
        if unknown:
            names = ", ".join(unknown[:10]) + (", …" if len(unknown) > 10 else "")
            raise Refused(f"No accepted minion has this name: {names} (of the list in tgt)")
    try:
        matched = salt.utils.minions.CkMinions(opts).check_minions(tgt, tgt_type).get("minions") or []
    except Exception as exc:  # the matcher may raise anything
        raise Refused(f"The target {tgt!r} of type {tgt_type!r} can't be matched: {exc}") from exc
    found = tuple(sorted(minion for minion in matched if is_plain(minion)))
    if not found:
        raise Refused(f"The target {tgt!r} of type {tgt_type!r} matches no accepted minion")
    return found


def limit_of(opts: Mapping[str, Any]) -> InFlightLimit | None:
    """Return how many minions may be in flight over all batches. :raises Refused: where the options are wrong."""
    return _settings(opts).max_in_flight


def permit_control(opts: Mapping[str, Any], who: Caller, batch: Batch | None = None) -> None:
    """
    Refuse to a minion control over batches that it is not allowed; with ``batch``, to anyone who may not run its job.

    :raises Refused: with what is missing.
    """
    settings = _settings(opts)
    if batch is None:
        require_no_peer(who, settings.allow_peers, _PEERS)
    else:
        _permit_all(opts, settings, who, batch.spec, batch.spec.minions)


def permit_job(opts: Mapping[str, Any], who: Caller, jid: str, load: Mapping[str, Any]) -> None:
    """
    Refuse a batch made from a job to anyone who may not publish that job to all its minions: its arguments may be secrets.

    :param load: the job's load from the job cache.
    :raises Refused: with what is missing.
    """
    settings = _settings(opts)
    require_no_peer(who, settings.allow_peers, _PEERS)
    if settings.check_acl and not who.peer:
        require_right(opts, who, load, job_minions(load), f"all minions of job {jid}")


def permit_approval(opts: Mapping[str, Any], who: Caller, batch: Batch) -> None:
    """
    Refuse an approval to a user who may not approve a batch. With ``approve_by``, only the users it names may, except those
    on whose behalf the batch runs. Without it, everyone may who may run the job.

    :raises Refused: with who may.
    """
    spec, taken_over = batch.spec, batch.rights.taken_over
    if not spec.approve_by:
        permit_control(opts, who, batch)
        return
    require_no_peer(who)
    started = {
        _person(spec.owner, spec.user),
        _person(taken_over.get("owner"), str(taken_over.get("user") or spec.user)),
    }
    if _person(who.owner(), who.name) in started:
        raise Refused(f"{who.name} has started or taken over batch {spec.jid}: somebody else has to approve it")
    wanted = set(spec.approve_by)
    if not wanted & names_of(who) and not wanted & {f"%{name}" for name in groups_of(opts, who)}:
        raise Refused(f"{who.name} may not approve batch {spec.jid}; {', '.join(spec.approve_by)} may (approve_by)")


def _person(owner: Any, name: str) -> str:
    """
    Return a user's login name, without the backend and in lower case: LDAP and others ignore case and surrounding spaces.

    :param owner: the user's kept identity, if there is one.
    """
    kept = owner.get("name") if isinstance(owner, Mapping) else None
    return " ".join(str(kept or name).rpartition(":")[2].removeprefix("sudo_").split()).casefold()


def _require_approvers(who: Caller, check: Mapping[str, Any], approve_by: tuple[str, ...]) -> None:
    """:raises Refused: if no approval is wanted, or if nobody could give it."""
    if approve_by and check.get("kind") != APPROVE:
        raise Refused("approve_by is given, and nobody is to approve: it goes with check=approve")
    if approve_by and {_person(None, name) for name in approve_by} == {_person(who.owner(), who.name)}:
        raise Refused(f"approve_by names nobody but {who.name}, who starts the batch: somebody else has to approve it")


def _match_and_permit(
    opts: Mapping[str, Any],
    settings: BatchSettings,
    who: Caller,
    tgt: Any,
    tgt_type: str,
    fun: str,
    arg: Iterable[Any],
    kwargs: Mapping[str, Any],
) -> tuple[str, ...]:
    """
    Return the minions that a target matches, if ``who`` may publish to them.

    :raises Refused: for a limited user in the same words, whether the target matches nothing or forbidden minions: what a
        target by grains or pillar matches would tell their values.
    """
    whom = f"all that the target {tgt!r} of type {tgt_type!r} matches"
    try:
        matched = _match(opts, tgt, tgt_type)
    except Refused:
        if who.grants is not None:  # a user who may publish to all minions may know what matches
            _permit(opts, settings, who, fun, arg, kwargs, tuple(sorted(minion_keys(opts)[0])), whom)
        raise
    _permit(opts, settings, who, fun, arg, kwargs, matched, whom)
    return matched


def _permit_all(
    opts: Mapping[str, Any], settings: BatchSettings, who: Caller, spec: Spec, minions: tuple[str, ...]
) -> None:
    """:raises Refused: if ``who`` may not run the batch's job, or its check, on these minions."""
    whom, check = f"all minions of batch {spec.jid}", spec.check
    _permit(opts, settings, who, spec.fun, spec.arg, spec.kwargs, minions, whom)
    if check.get("kind") == "function":
        _permit(opts, settings, who, check["fun"], check["arg"], check["kwargs"], minions, whom)
    elif check.get("kind") == "runner":
        rollout.require_runner(opts, who, check["fun"], check["arg"])


def _permit_groups(
    opts: Mapping[str, Any], settings: BatchSettings, who: Caller, by: Any, minions: tuple[str, ...]
) -> None:
    """:raises Refused: if ``who`` may not read the values by which the minions are grouped, since the groups show them."""
    if by is None or who.grants is None or who.peer or not settings.check_acl:
        return
    wanted = arguments.accepted(parse_by, by)
    if rollout.is_shown(wanted, settings.show_groups_of):
        return
    fun = f"{wanted.kind}.get"
    if not minions or Access(opts).denied(who.grants, {"fun": fun, "arg": [wanted.key]}, minions):
        raise Refused(
            f"{who.name} may not group these minions by {wanted.kind}:{wanted.key}: that takes the right to"
            f" {fun} {wanted.key} on all of them, or the key in batch_manager: show_groups_of"
        )


def _permit(
    opts: Mapping[str, Any],
    settings: BatchSettings,
    who: Caller,
    fun: str,
    arg: Iterable[Any],
    kwargs: Mapping[str, Any],
    minions: tuple[str, ...],
    whom: str = "all of these minions",
) -> None:
    require_no_peer(who, settings.allow_peers, _PEERS)
    if settings.check_acl and not who.peer:
        load = {"fun": fun, "arg": salt.utils.args.condition_input(list(arg), dict(kwargs))}
        require_right(opts, who, load, minions, whom)


def _settings(opts: Mapping[str, Any]) -> BatchSettings:
    settings: BatchSettings = arguments.accepted(
        read_settings, BatchSettings, BATCH_MANAGER, *engine_options(opts, BATCH_MANAGER)
    )
    return settings


def _new_jid(opts: Mapping[str, Any]) -> str:
    return str(salt.utils.jid.gen_jid(opts))
