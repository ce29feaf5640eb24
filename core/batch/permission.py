"""
Who may start, control and approve a batch; and whether the current access lists still let its owner publish its job. Blocks.

Some backends need the user's password to tell the access lists (``rest``, LDAP groups without a bind user). Then the
grants from the user's login count, for as long as Salt accepts a token (``token_expire``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import salt.utils.args

from saltext.jobs.core.batch.spec import TRAVELLING, Spec, parse_by
from saltext.jobs.core.batch.state import Batch
from saltext.jobs.core.compat import minion_keys
from saltext.jobs.core.engine.names import BATCH_MANAGER
from saltext.jobs.core.errors import Refused
from saltext.jobs.core.master.access import Access
from saltext.jobs.core.master.caller import Caller, groups_of, names_of, require_no_peer, require_right
from saltext.jobs.core.options import engine_options, read_settings
from saltext.jobs.core.options.engines import BatchSettings
from saltext.jobs.core.users import MASTER, PEER_RUN, Identity


def load_of(fun: str, arg: Iterable[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is published for a call of a function."""
    return {"fun": fun, "arg": salt.utils.args.condition_input(list(arg), dict(kwargs))}


def _loads_of(spec: Spec) -> list[dict[str, Any]]:
    """Return what a batch publishes: its job, and its check if that is a function on the minions."""
    check = spec.check
    checks = [load_of(check["fun"], check["arg"], check["kwargs"])] if check.get("kind") == "function" else []
    return [load_of(spec.fun, spec.arg, spec.kwargs), *checks]


# -- what the engine asks: the rights of a batch's owner ----------------------------------------------------------------


class Permission:
    """The rights of the owners of batches. :param wall: returns Unix time."""

    def __init__(self, opts: Mapping[str, Any], settings: BatchSettings, wall: Callable[[], float] = time.time) -> None:
        self._opts, self._access, self._settings, self._wall = opts, Access(opts), settings, wall
        self._trusted = float(opts.get("token_expire") or 43200.0)  # seconds, as Salt

    def strangers(self, minions: Iterable[str]) -> list[str]:
        """Return those of some minions whose keys this master has not accepted. Blocks. :raises OSError:"""
        return sorted(frozenset(minions) - minion_keys(self._opts)[0])

    def lacking(self, spec: Spec, minions: tuple[str, ...]) -> str:
        """
        Return why the owner of a batch may not run it on these minions any more; empty if they may, or no owner was kept.

        :raises Exception: anything that an eauth module raises if it cannot tell now.
        """
        who = Identity.from_record(spec.owner)
        if who is None:
            return ""
        if who.kind == PEER_RUN:
            allowed = who.name in self._settings.allow_peers
            return "" if allowed else f"the minion {who.name} is not among allow_peers any more"
        for load in _loads_of(spec):
            standing = self._access.of_identity(who, load, minions)
            if standing.denied:
                return f"{who.name} may not publish {load['fun']} to {len(standing.denied)} of its minions any more"
            if standing.unsure and self._wall() - who.at > self._trusted:
                return next(iter(standing.unsure.values()))
        check = spec.check
        if check.get("kind") == "runner":
            arg, kwargs = salt.utils.args.parse_input(list(check["arg"]), condition=False)
            grants = self.limits(spec).get("grants")
            if grants is not None and not self._access.may_run(grants, check["fun"], arg, kwargs):
                return f"{who.name} may not call the runner function {check['fun']} any more"
        return ""

    def limits(self, spec: Spec) -> dict[str, Any]:
        """Return the limits of a runner function that is called for a batch's owner. :raises Exception: as ``lacking``."""
        who = Identity.from_record(spec.owner)
        lists = None if who is None or who.kind in (MASTER, PEER_RUN) else self._access.lists_of(who)
        if who is None or lists is None:
            return dict(spec.on_behalf)
        return {"name": who.name, "who": dict(spec.owner), **spec.on_behalf, "grants": lists}


# -- what the runner asks: the rights of its caller ---------------------------------------------------------------------


class CallerRights:
    """What the runner's caller may do with batches. All methods raise Refused, naming the missing right or bad option."""

    def __init__(self, opts: Mapping[str, Any], who: Caller) -> None:
        self._opts, self.who = opts, who
        self.settings = read_settings(BatchSettings, BATCH_MANAGER, *engine_options(opts, BATCH_MANAGER))

    def require_allowed_peer(self) -> None:
        """Refuse a minion that ``allow_peers`` does not name."""
        allowed = self.settings.allow_peers
        require_no_peer(self.who, allowed, " (batch_manager: allow_peers names the minions that may)")

    def permit(self, load: Mapping[str, Any], minions: Iterable[str], named_as: str = "all of these minions") -> None:
        """Refuse a caller who may not publish this load to the minions; the refusal calls them ``named_as``."""
        self.require_allowed_peer()
        if not self.who.peer:
            require_right(self._opts, self.who, load, minions, named_as)

    def permit_runner(self, fun: str, words: Iterable[str]) -> None:
        """Refuse a caller who may not call a runner function with these arguments on the master."""
        who, (arg, kwargs) = self.who, salt.utils.args.parse_input(list(words), condition=False)
        if who.peer or (who.grants is not None and not Access(self._opts).may_run(who.grants, fun, arg, kwargs)):
            raise Refused(f"{who.name} may not call the runner function {fun}, so it can't be a check")

    def permit_batch(self, spec: Spec, minions: Iterable[str] | None = None) -> None:
        """Refuse a caller who lacks the right to a batch's job on these minions (default: all), or to its check."""
        for load in _loads_of(spec):
            self.permit(load, spec.minions if minions is None else minions, f"all minions of batch {spec.jid}")
        if spec.check.get("kind") == "runner":
            self.permit_runner(spec.check["fun"], spec.check["arg"])

    def permit_approval(self, batch: Batch) -> None:
        """
        Refuse a user who may not approve a batch: with ``approve_by`` anyone it does not name, and the user who started the
        batch; without it, anyone who may not run the job.
        """
        who, spec = self.who, batch.spec
        if not spec.approve_by:
            self.permit_batch(spec)
            return
        require_no_peer(who)
        if _person(who.owner(), who.name) == _person(spec.owner, spec.user):
            others = ", ".join(spec.approve_by)
            raise Refused(f"{who.name} has started batch {spec.jid}: another user has to approve it ({others})")
        wanted = set(spec.approve_by)
        if not wanted & names_of(who) and not wanted & {f"%{name}" for name in groups_of(self._opts, who)}:
            raise Refused(f"{who.name} may not approve batch {spec.jid}; {', '.join(spec.approve_by)} may (approve_by)")

    # The options of a new batch.

    def require_approvers(self, spec: Spec) -> None:
        """Refuse ``approve_by`` without ``check=approve``, and one that names only the caller, who may not approve."""
        who = self.who
        if spec.approve_by and not spec.by_hand:
            raise Refused("approve_by goes with check=approve only")
        if {_person(None, name) for name in spec.approve_by} == {_person(who.owner(), who.name)}:
            raise Refused(f"approve_by names no user but {who.name}, who starts it: another user has to approve it")

    def permit_options(self, names: Iterable[str]) -> None:
        """Refuse options that say where returns go or how a job is run: as root on the minion, whatever the job may do."""
        chosen = sorted({"ret", *TRAVELLING}.difference({"metadata"}).intersection(names))
        if chosen and self.who.grants is not None and not self.who.peer:
            raise Refused(f"{self.who.name} may not set {chosen[0]}: users with limits choose no returner or executor")

    def permit_groups(self, spec: Spec) -> None:
        """Refuse groups by values that the caller may not read, since the groups show them."""
        who = self.who
        if not spec.by or who.grants is None or who.peer:
            return
        wanted = parse_by(spec.by)
        load = {"fun": f"{wanted.kind}.get", "arg": [wanted.key]}
        if wanted.kind != "nodegroups" and Access(self._opts).denied(who.grants, load, spec.minions):
            raise Refused(
                f"{who.name} may not group these minions by {wanted.kind}:{wanted.key}: that takes the right to"
                f" {load['fun']} {wanted.key} on all of them"
            )


def _person(owner: Any, name: str) -> str:
    """Return a user's login name without the backend, in lower case: LDAP and others ignore case and surrounding spaces."""
    kept = owner.get("name") if isinstance(owner, Mapping) else None
    return " ".join(str(kept or name).rpartition(":")[2].removeprefix("sudo_").split()).casefold()
