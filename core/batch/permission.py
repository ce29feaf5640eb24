"""
Whether the owner of a batch still may publish its job, by the current access lists. Blocks.

The lists of some backends are known with the password only (``rest``, LDAP groups without a bind user). Then the grants that
Salt gave when it saw the password or the token count as long as Salt accepts a token (``token_expire``), and no longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import salt.utils.args

from saltext.jobs.core.batch.spec import Spec
from saltext.jobs.core.master.access import Access
from saltext.jobs.core.master.identity import MASTER, PEER_RUN, Identity
from saltext.jobs.core.settings import BatchSettings

#: Salt's own default of token_expire, in seconds.
_TOKEN_EXPIRE = 43200.0


class Permission:
    """
    :param opts: the master's options.
    :param settings: the engine's.
    :param wall: returns Unix time.
    """

    def __init__(self, opts: Mapping[str, Any], settings: BatchSettings, wall: Callable[[], float] = time.time) -> None:
        self._access, self._settings, self._wall = Access(opts), settings, wall
        self._trusted = float(opts.get("token_expire") or _TOKEN_EXPIRE)

    def lacking(self, spec: Spec, owner: Mapping[str, Any], limits: Mapping[str, Any], minions: tuple[str, ...]) -> str:
        """
        Return why the owner of a batch may not run it on these minions any more; empty if they may.

        :param owner: the record of an Identity; empty if none was kept, and then everything is permitted.
        :param limits: as ``Caller.limits``.
        :raises Exception: anything that an eauth module raises if it cannot tell now.
        """
        who = Identity.from_record(owner)
        if who is None or not self._settings.check_acl:
            return ""
        if who.kind == PEER_RUN:
            allowed = who.name in self._settings.allow_peers
            return "" if allowed else f"the minion {who.name} is not among allow_peers any more"
        check = spec.check
        jobs = [(spec.fun, spec.arg, spec.kwargs)]
        if check.get("kind") == "function":
            jobs.append((check["fun"], check["arg"], check["kwargs"]))
        for fun, arg, kwargs in jobs:
            load = {"fun": fun, "arg": salt.utils.args.condition_input(list(arg), dict(kwargs))}
            standing = self._access.of_identity(who, load, minions)
            if standing.denied:
                return f"{who.name} may not publish {fun} to {len(standing.denied)} of its minions any more"
            if standing.unsure and self._wall() - who.at > self._trusted:
                return next(iter(standing.unsure.values()))
        if check.get("kind") == "runner":
            arg, kwargs = salt.utils.args.parse_input(list(check["arg"]), condition=False)
            grants = self.limits(owner, limits).get("grants")
            if grants is not None and not self._access.may_run(grants, check["fun"], arg, kwargs):
                return f"{who.name} may not call the runner function {check['fun']} any more"
        return ""

    def limits(self, owner: Mapping[str, Any], limits: Mapping[str, Any]) -> dict[str, Any]:
        """
        Return the limits of a runner function that is called for an owner, with the current access list.

        :raises Exception: as ``lacking``.
        """
        who = Identity.from_record(owner)
        lists = None if who is None or who.kind in (MASTER, PEER_RUN) else self._access.lists_of(who)
        if who is None or lists is None:
            return dict(limits)
        return {"name": who.name, "account": "", "eauth": "", "who": dict(owner), **limits, "grants": lists}
