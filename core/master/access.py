"""
Whether the user of a job may still publish it to these minions. Blocks: use it in a Worker.

Asks Salt's own checks with the access lists as they are now. It must never grant more than a publish by that user would
get today: all to root, to the master's own user and to whom sudo_acl does not restrict; to others what the lists say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import salt.auth
import salt.utils.master
import salt.utils.minions

#: How ``salt`` names a user who came by sudo.
_SUDO = "sudo_"


class _Checks(salt.utils.minions.CkMinions):  # type: ignore[misc]
    """Salt's own checks, which find out once, and not for each minion, whom an entry of an access list covers."""

    def __init__(self, opts: Mapping[str, Any]) -> None:
        super().__init__(opts)
        self._covered: dict[str, frozenset[str]] = {}

    def forget(self) -> None:
        """Ask anew: keys and grains may have changed."""
        self._covered.clear()

    def validate_tgt(self, valid: str, expr: Any, tgt_type: str, minions: Any = None, expr_form: Any = None) -> bool:
        """As Salt's: whether an entry covers all of ``minions``."""
        if minions is None or valid.startswith("@"):
            return bool(super().validate_tgt(valid, expr, tgt_type, minions=minions))
        if valid == "*":
            return True
        if valid not in self._covered:
            self._covered[valid] = frozenset(self.check_minions(valid, "compound").get("minions", ()))
        return self._covered[valid].issuperset(minions)


class Access:
    """
    :param opts: the master's options.
    """

    def __init__(self, opts: Mapping[str, Any]) -> None:
        self._opts = dict(opts)
        self._tools: tuple[Any, Any] | None = None

    def denials(self, load: Mapping[str, Any], minions: Iterable[str]) -> dict[str, str]:
        """
        Return ``{minion: reason}`` of those of ``minions`` to which the job may not be published any more.

        :param load: the job's load; of its secrets none is needed.
        """
        user = str(load.get("user") or "")
        grants = self._access_lists(user, load.get("kwargs") or {})
        denied = [] if grants is None else self.denied(grants, load, minions)
        return {minion: f"{user} may not publish {load.get('fun')} to it any more" for minion in denied}

    def denied(self, grants: Iterable[Any], load: Mapping[str, Any], minions: Iterable[str]) -> list[str]:
        """Return those of ``minions`` to which these grants, an access list as Salt keeps them, do not let the job."""
        lists, wanted = list(grants), list(minions)
        if self._tools is not None:
            self._tools[1].forget()
        if self._allows(lists, load, wanted):
            return []
        # As a rule all are denied alike; else each is asked for.
        return [minion for minion in wanted if len(wanted) == 1 or not self._allows(lists, load, [minion])]

    def sudo_grants(self, user: str) -> list[Any] | None:
        """Return what ``sudo_acl`` leaves of the rights of one who came by sudo; None for everything, and for others."""
        return self._access_lists(user, {}) if user.startswith(_SUDO) else None

    def may_run(self, grants: Iterable[Any], fun: str, arg: Iterable[Any], kwarg: Mapping[str, Any]) -> bool:
        """Tell whether these grants let a runner function of this master be called with these arguments."""
        call = {"arg": list(arg), "kwarg": dict(kwarg)}
        return bool(self._loaded()[1].runner_check(list(grants), fun, call) is True)

    def _access_lists(self, user: str, options: Mapping[str, Any]) -> list[Any] | None:
        """Return what ``user`` has been granted, or None for one who may publish everything."""
        publishers, external = self._opts.get("publisher_acl") or {}, self._opts.get("external_auth") or {}
        if options.get("eauth"):
            return self._external(str(options["eauth"]), str(options.get("username") or user))
        if user.startswith(_SUDO):
            if not self._opts.get("sudo_acl") or not publishers:
                return None
            return list(salt.utils.master.get_values_of_matching_keys(publishers, user[len(_SUDO) :]))
        if user in ("", "root", self._opts.get("user", "root")):
            return None
        granted = list(salt.utils.master.get_values_of_matching_keys(publishers, user))
        # A job that came with a token names the user, and no longer by which system.
        for system in external:
            granted += self._external(system, user)
        return granted

    def _external(self, system: str, user: str) -> list[Any]:
        if system not in (self._opts.get("external_auth") or {}):
            return []
        return list(self._loaded()[0].get_auth_list({"eauth": system, "username": user}) or [])

    def _allows(self, lists: list[Any], load: Mapping[str, Any], minions: list[str]) -> bool:
        if not lists:
            return False
        checks = self._loaded()[1]
        return bool(checks.auth_check(lists, load.get("fun"), load.get("arg") or [], minions, "list", minions=minions))

    def _loaded(self) -> tuple[Any, Any]:
        if self._tools is None:
            self._tools = salt.auth.LoadAuth(self._opts), _Checks(self._opts)
        return self._tools
