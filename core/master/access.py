"""
Whether the user of a job may still publish it to these minions. Blocks: use it in a Worker.

It runs Salt's own checks with the access lists as they are now. It must never grant more than a publish by that user would
get today. A list that cannot be known without the user's password is neither a grant nor a denial.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

import salt.auth
import salt.utils.master
import salt.utils.minions
from salt.defaults import DEFAULT_TARGET_DELIM

from saltext.jobs.core.users import ABOVE, KEY, MASTER, PASSWORD, PEER, SUDO, TOKEN, WHO, Identity

#: The prefix by which ``salt`` names a user who came by sudo.
_SUDO = "sudo_"
#: How many of several functions are named, and most characters of each.
_MOST, _LONGEST = 5, 100


def calls_of(load: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """
    Return each function of a job with its arguments, as they came; None where these are missing. Salt's own check ends at
    the first permitted one of several (``CkMinions.auth_check``), so each is checked alone.
    """
    fun, arg = load.get("fun"), load.get("arg") or []
    if not isinstance(fun, (list, tuple)):
        return [(fun, arg)]
    given = list(arg) if isinstance(arg, (list, tuple)) else []
    return list(zip(fun, [*given, *[None] * len(fun)], strict=False))


def shown(load: Mapping[str, Any]) -> str:
    """Return the function of a job, or its functions, in a few words."""
    names = [str(fun)[:_LONGEST] for fun, _ in calls_of(load)[: _MOST + 1]]
    return names[0] if len(names) == 1 else "each of " + ", ".join([*names[:_MOST], *["…"][: len(names) > _MOST]])


@dataclasses.dataclass(frozen=True)
class Standing:
    """To which minions a job may not be published, each as ``{minion: reason}``."""

    denied: Mapping[str, str] = dataclasses.field(default_factory=dict)  # a job may not be published to them
    unsure: Mapping[str, str] = dataclasses.field(default_factory=dict)  # that cannot be determined


class _Checks(salt.utils.minions.CkMinions):  # type: ignore[misc]
    """Salt's own checks, which match an entry of an access list once, and not for each minion."""

    def __init__(self, opts: Mapping[str, Any]) -> None:
        super().__init__(opts)
        self._covered: dict[str, frozenset[str]] = {}

    def forget(self) -> None:
        """Match again: keys and grains may have changed."""
        self._covered.clear()

    def validate_tgt(self, valid: str, expr: Any, tgt_type: str, minions: Any = None, expr_form: Any = None) -> bool:
        """Tell, as Salt's own function, whether an entry of an access list covers all of ``minions``."""
        if minions is None or valid.startswith("@"):
            return bool(super().validate_tgt(valid, expr, tgt_type, minions=minions))
        if valid == "*":
            return True
        if valid not in self._covered:
            # ``check_minions`` takes all for unmatched if the data of minions cannot be read now
            found = self._check_compound_minions(valid, DEFAULT_TARGET_DELIM, True)
            self._covered[valid] = frozenset(found.get("minions", ()))
        return self._covered[valid].issuperset(minions)


class Access:
    """Salt's own checks, with the access lists as the master has them now."""

    def __init__(self, opts: Mapping[str, Any]) -> None:
        self._opts = dict(opts)

    @functools.cached_property
    def _auth(self) -> Any:
        return salt.auth.LoadAuth(self._opts)

    @functools.cached_property
    def _checks(self) -> _Checks:
        return _Checks(self._opts)

    def of_publisher(self, load: Mapping[str, Any], minions: Iterable[str]) -> Standing:
        """
        Return the ``minions`` to which the user of a job may not publish it any more. The identity that Salt authenticated
        decides, which the load records. A load has none if the master's own key has published it in another's name, as a
        syndic does; then it is not known whose rights count.

        :raises Exception: anything that an eauth module raises if it cannot tell now.
        """
        who = Identity.from_record(load.get(WHO))
        if who is None:
            user = str(load.get("user") or "")
            who = Identity(MASTER if user in ("", "root", self._opts.get("user", "root")) else ABOVE, user)
        return self.of_identity(who, load, minions)

    def of_identity(self, who: Identity, load: Mapping[str, Any], minions: Iterable[str]) -> Standing:
        """Return the ``minions`` to which a user may not publish a job now. :raises Exception: as ``of_publisher``."""
        if who.kind == MASTER or (who.kind == SUDO and self.sudo_grants(_SUDO + who.name) is None):
            return Standing()
        what, wanted = shown(load), list(minions)
        # A token may belong to any of several backends, so each of them must permit the job.
        systems = who.backends if who.kind in (TOKEN, PASSWORD) else ()
        sources: dict[str, list[Any] | None] = {system: self._external(system, who.name) for system in systems}
        name = f"minion {who.name}" if who.kind == PEER else who.name
        denied: dict[str, str] = {}
        unsure: dict[str, str] = {}
        for system, lists in (sources or {"": self.lists_of(who)}).items():
            refused, doubt = wanted, "it cannot be told which access list applies"
            if lists is not None:
                refused = self.denied(lists, load, wanted)
                doubt = self._doubt(system, who.name) if refused and system else ""
            if doubt:
                unsure |= dict.fromkeys(refused, f"whether {name} may still publish {what} is not known: {doubt}")
            else:
                denied |= dict.fromkeys(refused, f"{name} may not publish {what} to it any more")
        return Standing(denied, {minion: why for minion, why in unsure.items() if minion not in denied})

    def lists_of(self, who: Identity) -> list[Any] | None:
        """Return the current access list of a user; None if it is not known. :raises Exception: as ``of_publisher``."""
        if who.kind == SUDO:
            return self.sudo_grants(_SUDO + who.name)
        if who.kind == KEY:
            return self._publisher_list(who.name)
        if who.kind == PEER:
            return self._of_peer(who.name)
        if len(who.backends) != 1 or self._doubt(who.backends[0], who.name):
            return None
        return self._external(who.backends[0], who.name)

    def _publisher_list(self, name: str) -> list[Any]:
        return list(salt.utils.master.get_values_of_matching_keys(self._opts.get("publisher_acl") or {}, name))

    def _of_peer(self, minion: str) -> list[Any]:
        peers = self._opts.get("peer")
        found = peers.items() if isinstance(peers, Mapping) else ()
        return [
            grant for match, grants in found if re.match(match, minion) and isinstance(grants, list) for grant in grants
        ]

    def _doubt(self, system: str, user: str) -> str:
        """Return why a backend's grants to a user cannot be known without the user's password; empty if they are known."""
        config = (self._opts.get("external_auth") or {}).get(system)
        if config is None:
            return ""
        modules, needs = self._auth.auth, f"eauth {system} tells it with the password only"
        lists, groups = f"{self._opts.get('eauth_acl_module') or system}.acl", f"{system}.groups"
        if lists in modules:
            try:
                modules[lists](user)
            except Exception:  # a module may raise any exception of its client library
                return needs
        if groups not in modules or not any(str(name).endswith("%") for name in config):
            return "" if f"{system}.auth" in modules else f"eauth {system} cannot be used here"
        if system == "ldap" and self._opts.get("auth.ldap.binddn") and self._opts.get("auth.ldap.bindpw"):
            modules[groups](user)  # raises if the server cannot be asked now; Salt would take that for no groups
            return ""
        if system == "pam":
            return ""
        try:
            return "" if modules[groups](user) else needs
        except Exception:  # without a password or a server the grants are not known
            return needs

    def denied(self, grants: Iterable[Any], load: Mapping[str, Any], minions: Iterable[str]) -> list[str]:
        """Return the ``minions`` for which these grants, an access list in Salt's form, do not permit the job."""
        lists, wanted = list(grants), list(minions)
        self._checks.forget()
        if self._allows(lists, load, wanted):
            return []
        # Usually all are denied alike; else each is checked.
        return [minion for minion in wanted if len(wanted) == 1 or not self._allows(lists, load, [minion])]

    def sudo_grants(self, user: str) -> list[Any] | None:
        """Return the rights that ``sudo_acl`` leaves a user who came by sudo; None for all rights, and for other users."""
        is_limited = user.startswith(_SUDO) and self._opts.get("sudo_acl") and self._opts.get("publisher_acl")
        return self._publisher_list(user[len(_SUDO) :]) if is_limited else None

    def may_run(self, grants: Iterable[Any], fun: str, arg: Iterable[Any], kwarg: Mapping[str, Any]) -> bool:
        """Tell whether these grants permit a runner function of this master with these arguments."""
        return bool(self._checks.runner_check(list(grants), fun, {"arg": list(arg), "kwarg": dict(kwarg)}) is True)

    def _external(self, system: str, user: str) -> list[Any]:
        if system not in (self._opts.get("external_auth") or {}):
            return []
        return list(self._auth.get_auth_list({"eauth": system, "username": user}) or [])

    def _allows(self, lists: list[Any], load: Mapping[str, Any], minions: list[str]) -> bool:
        calls = calls_of(load)
        return bool(lists and calls) and all(self._allows_one(lists, fun, arg, minions) for fun, arg in calls)

    def _allows_one(self, lists: list[Any], fun: Any, arg: Any, minions: list[str]) -> bool:
        if not isinstance(fun, str) or not isinstance(arg, (list, tuple)):
            return False
        return bool(self._checks.auth_check(lists, fun, list(arg), minions, "list", minions=minions))
