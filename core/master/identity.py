"""Finds out which user Salt has authenticated, for a publish and for a call of a runner."""

from __future__ import annotations

import sys
import threading
import time
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from saltext.jobs.core.users import ABOVE, KEY, MASTER, PASSWORD, PEER, SUDO, TOKEN, Identity


def known_now(kind: str, name: str, backends: Iterable[str] = ()) -> Identity:
    """Return the identity of a user whom Salt has just authenticated."""
    return Identity(kind, name, tuple(backends), time.time())


def of_local(kind: str, name: str) -> Identity:
    """Return the identity of a user of this machine, who has come by sudo if Salt's name for them says so."""
    return known_now(SUDO, name.removeprefix("sudo_")) if name.startswith("sudo_") else known_now(kind, name)


def of_publish() -> Identity | None:
    """Return the user of the present publish; None outside one, and if the master's own key made it in another's name."""
    found = _publish()
    if found is None:
        return None
    # the local variables of ``ClearFuncs.publish``, once it has authorized the request
    opts, extra, name = found["self"].opts, found["extra"], str(found["clear_load"].get("user") or "")
    if found["auth_type"] == "token":
        # A backend that the request names beside its token is only the user's claim.
        return known_now(TOKEN, name, _backend_of_token(found["self"].loadauth, extra["token"]))
    if found["auth_type"] == "eauth":
        return known_now(PASSWORD, name, [str(extra["eauth"])])
    if found["auth_list"]:
        return known_now(ABOVE, name) if found["auth_list"] is found["syndic_auth_list"] else of_local(KEY, name)
    if extra.get("id"):
        return known_now(PEER, str(extra["id"]))
    is_own = name.startswith("sudo_") or name in ("", "root", opts.get("user", "root"))
    return of_local(MASTER, name) if is_own else None


def in_publish() -> bool:
    """Tell whether this master calls us because it is about to publish."""
    return _publish() is not None


def _publish() -> Mapping[str, Any] | None:
    wanted = codes("salt.master", "ClearFuncs", "publish")
    return next((frame.f_locals for frame in frames_of_this_call() if frame.f_code in wanted), None)


def _backend_of_token(loadauth: Any, token: Any) -> tuple[str, ...]:
    try:
        return (str(loadauth.get_tok(token)["eauth"]),)
    except Exception:  # it has just expired, or the store of tokens fails
        return ()


def backends_of_token(loadauth: Any, name: str, grants: list[Any]) -> tuple[str, ...]:
    """
    Return the backends that a user's token may belong to: Salt removes the token from the request before it calls a runner.
    So these are all backends for which a token of this user is stored, with the grants that Salt found.
    """
    known = list(loadauth.opts.get("external_auth") or {})
    if len(known) == 1:
        return (str(known[0]),)
    found = set()
    try:
        for token in map(loadauth.get_tok, loadauth.list_tokens()):
            may_be = token and token.get("name") == name and token.get("eauth") in known and token["eauth"] not in found
            if may_be and list(loadauth.get_auth_list({}, token=token) or ()) == grants:
                found.add(str(token["eauth"]))
    except Exception:  # the store of tokens may raise anything
        return ()
    return tuple(sorted(found))


# -- what Salt is doing at this moment ----------------------------------------------------------------------------------
# Salt does not pass all that it knows to a runner or a returner. Only the local variables of the authenticating method, and
# never those of another, say which user was authenticated.


def _outwards(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def frames_of_this_call() -> Iterator[types.FrameType]:
    """Yield the frames of this call, the innermost first."""
    return _outwards(sys._getframe(1))


def frames_of_all_threads() -> Iterator[types.FrameType]:
    """Yield the frames of this call, and then those of all other threads, including the thread that started this one."""
    innermost = dict(sys._current_frames())
    innermost.pop(threading.get_ident(), None)
    yield from frames_of_this_call()
    for frame in innermost.values():
        yield from _outwards(frame)


def codes(module: str, owner: str, *methods: str) -> list[types.CodeType]:
    """Return the code of methods; none if the module is not loaded, since it cannot have called us then."""
    found = getattr(sys.modules.get(module), owner, None)
    return [getattr(found, method).__code__ for method in methods if hasattr(found, method)]


def told_by_peer() -> bool:
    """
    Tell whether a return is being stored because a peer's event in a cluster tells of it (Salt 3008). That proves nothing:
    any accepted minion can fire one in another's name, and a peer of the site has itself stored what minions returned to it.
    """
    methods = codes("salt.master", "EventMonitor", "handle_event")
    return any(frame.f_code in methods and frame.f_locals.get("peer_id") for frame in frames_of_this_call())
