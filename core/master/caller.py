"""
Who asks: what Salt itself has authenticated, never a bare user name.

A runner is told the name of a user (``__user__``) and nothing else, on every release: not whether that is root at the
command line, an API user who happens to be called root, or a minion. So the call itself is looked at. The master runs a
runner below the method that has authenticated the request, in the same process or in a fork of it, so that method's frame is
on the stack, with what the authentication gave: the name, and the grants that came with the password or the token.

* ``ClearFuncs.runner``: a request with a password, a token or a key file. Its grants are the limit. The key files of the
  master's own user alone give none, and no limit.
* ``RemoteFuncs.minion_runner``: a minion that ``peer_run`` lets call runners.
  Either may call others in threads (``salt.parallel_runners``); a process of the master serves one request at a time.
* Neither, in the master: its own schedule, reactor or engines, which its configuration has set up. No limit.
* A process in which an engine calls a runner for somebody (``runner_call.py``): that one, with the grants of then.
* Outside the master: ``salt-run`` or Python of a user who may write the master's files. No limit but ``sudo_acl``.

It must never take a call whose origin it cannot tell for one of the master's own: such a call is refused.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import salt.client.mixins
import salt.utils.user

from saltext.jobs.core.errors import Refused
from saltext.jobs.core.master.access import Access

#: Names that mean something to Salt, or here. A user of the API who has one is shown with the backend before it.
_RESERVED = ("", "root", "UNKNOWN", "Reactor")


@dataclasses.dataclass(frozen=True)
class Caller:
    """
    Who asks.

    ``grants`` is the access list that limits the caller, and None for one without limit; ``peer`` says that it is a minion.
    ``account`` is the name under which Salt's lists have a user of the API, and ``eauth`` the backend that has them,
    empty where it is not known which: a token does not tell.
    """

    name: str
    grants: tuple[Any, ...] | None = None
    peer: bool = False
    account: str = ""
    eauth: str = ""

    def limits(self) -> dict[str, Any]:
        """Return what ``act_for`` takes, in plain values; empty for a caller without limit."""
        if self.grants is None:
            return {}
        return {"name": self.name, "grants": list(self.grants), "account": self.account, "eauth": self.eauth}


class _Process:
    """Whom this process acts for, if for one alone."""

    acts_for: Caller | None = None


def act_for(limits: Mapping[str, Any]) -> None:
    """Let whatever this process calls from now on count as called by one with these limits."""
    _Process.acts_for = Caller(**{**limits, "grants": tuple(limits["grants"])})


def caller(opts: Mapping[str, Any], user: str | None) -> Caller:
    """
    Return who has called the runner that asks.

    :param opts: the master's options.
    :param user: what Salt has told the runner, if anything.
    :raises Refused: when the master got the call from outside and nothing says from whom.
    """
    if _Process.acts_for is not None:
        return _Process.acts_for
    remote = False
    for frame in _stack():
        code = frame.f_code
        if code in _codes("salt.daemons.masterapi", "RemoteFuncs", "minion_runner"):
            return Caller(str(frame.f_locals["load"]["id"]), (), peer=True)
        if code in _codes("salt.master", "ClearFuncs", "runner", "_sync_runner"):
            return _authenticated(opts, frame.f_locals)
        remote = remote or code is salt.client.mixins.AsyncClientMixin._proc_function.__func__.__code__
    if remote and _in_master():
        # ClearFuncs.runner is not on the stack, as with master_async_mworker on Salt 3008.
        raise Refused("It cannot be told who has asked for this, so it is not done")
    name = user if user not in (None, "", "UNKNOWN") else salt.utils.user.get_specific_user()
    grants = Access(opts).sudo_grants(str(name)) if not _in_master() else None
    return Caller(str(name), None if grants is None else tuple(grants))


def require_right(opts: Mapping[str, Any], who: Caller, load: Mapping[str, Any], minions: Iterable[str]) -> None:
    """
    Refuse what a caller may not publish: a right to call a runner is none on every function.

    :param load: the job: ``fun``, and ``arg`` as it is published, keyword arguments included.
    :param minions: those that are to run it.
    :raises Refused: naming function and minions.
    """
    if who.grants is None:
        return
    denied = sorted(Access(opts).denied(who.grants, load, minions))
    if denied:
        names = ", ".join(denied[:5]) + (", …" if len(denied) > 5 else "")
        raise Refused(f"{who.name} may not publish {load.get('fun')} to {len(denied)} of these minions: {names}")


def require_no_peer(who: Caller, allowed: Iterable[str] = (), hint: str = "") -> None:
    """Refuse a minion, to which ``peer_run`` gives more than a look, unless it is one of ``allowed``."""
    if who.peer and who.name not in tuple(allowed):
        raise Refused(f"The minion {who.name} may look at this, and change nothing{hint}")


def _authenticated(opts: Mapping[str, Any], found: Mapping[str, Any]) -> Caller:
    """Return the caller whom ``ClearFuncs.runner`` has authenticated; ``found`` are its local names."""
    check, name = found["auth_check"], str(found["username"])
    if check.get("error"):
        raise Refused("It cannot be told who has asked for this, so it is not done")
    grants = tuple(check.get("auth_list") or ())
    if found["auth_type"] == "user":
        # By key file. Salt gives the list of a user of publisher_acl, and none for the master's own user.
        return Caller(name, grants or None)
    account, eauth = name, str(found["clear_load"].get("eauth") or "")
    if name in _RESERVED or name.startswith("sudo_") or name == opts.get("user"):
        name = f"{eauth or found['auth_type']}:{name}"
    return Caller(name, grants, account=account, eauth=eauth)


def _stack() -> Iterator[types.FrameType]:
    """Yield the frames of this call, and then those of all other threads: the one that has begun this is among them."""
    others = dict(sys._current_frames())
    others.pop(threading.get_ident(), None)
    for innermost in (sys._getframe(), *others.values()):
        frame: types.FrameType | None = innermost
        while frame is not None:
            yield frame
            frame = frame.f_back


def _codes(module: str, owner: str, *methods: str) -> list[types.CodeType]:
    """Return the code of methods; a module that nobody has loaded has not called us."""
    found = getattr(sys.modules.get(module), owner, None)
    return [getattr(found, method).__code__ for method in methods if hasattr(found, method)]


def _in_master() -> bool:
    """Whether this is a process of the master: only those hold the key that minions share with it."""
    return bool(getattr(getattr(sys.modules.get("salt.master"), "SMaster", None), "secrets", None))
