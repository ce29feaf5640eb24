"""
The user that Salt has authenticated. Jobs and batches record it, so that the rights can be checked again later.

A name alone proves nothing: an API user may be called root, and may name another user beside a token. The record has what
Salt has checked: the kind of proof, the backend, and the name that came with them. It must never come from a request's
own claims, nor from a record that anyone but this master could have written.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

#: The field of a load in the job cache that holds the identity. A value that comes with the load is dropped, unless one
#: of our engines made the load.
WHO = "saltext_jobs_who"

#: root or the user of the master, and the master's own schedule, reactor and engines.
MASTER = "master"
#: A user who acts as one of these by ``sudo``: limited as long as ``sudo_acl`` is set.
SUDO = "sudo"
#: A user of publisher_acl, by a key file.
KEY = "key"
#: Users of a backend of external_auth, by a token and by a password.
TOKEN, PASSWORD = "token", "password"
#: A minion, by ``peer`` (it had the master publish) and by ``peer_run`` (it called a runner).
PEER, PEER_RUN = "peer", "peer_run"
#: A user of a master above this one; that master limits them.
ABOVE = "above"
_KINDS = (MASTER, SUDO, KEY, TOKEN, PASSWORD, PEER, PEER_RUN, ABOVE)


@dataclasses.dataclass(frozen=True)
class Identity:
    """
    A user, and how Salt authenticated them.

    ``kind`` is one of the above, ``name`` the name in Salt's lists. ``backends``: those of external_auth; empty if unknown,
    several if a token may belong to any of them. ``at``: when Salt checked it, in Unix time.
    """

    kind: str
    name: str
    backends: tuple[str, ...] = ()
    at: float = 0.0

    def as_record(self) -> dict[str, Any]:
        """Return its form on disk."""
        return {"kind": self.kind, "name": self.name, "backends": list(self.backends), "at": self.at}

    @classmethod
    def from_record(cls, record: Any) -> Identity | None:
        """Return the identity in a stored record, or None. :raises ValueError: when it is malformed."""
        if not record:
            return None
        try:
            found = cls(record["kind"], record["name"], tuple(record["backends"]), float(record["at"]))
        except (TypeError, KeyError, ValueError) as exc:
            raise ValueError(f"it is no identity: {record!r:.200}") from exc
        if found.kind not in _KINDS or not all(isinstance(text, str) for text in (found.name, *found.backends)):
            raise ValueError(f"it is no identity: {record!r:.200}")
        return found


def are_one(one: Identity, other: Identity) -> bool:
    """Tell whether two identities certainly are the same user."""
    if {one.kind, other.kind} <= {TOKEN, PASSWORD}:
        return one.name == other.name and one.backends == other.backends and len(one.backends) == 1
    return (one.kind, one.name) == (other.kind, other.name)


def of_publish() -> Identity | None:
    """
    Return the user of the publish that this master is about to store.

    None outside a publish, and if the master's own key has published in another's name.
    """
    found = _publish()
    return None if found is None else _publisher(found)


def in_publish() -> bool:
    """Tell whether this master calls us because it is about to publish."""
    return _publish() is not None


def _publish() -> Mapping[str, Any] | None:
    wanted = codes("salt.master", "ClearFuncs", "publish")
    return next((frame.f_locals for frame in frames_of_this_call() if frame.f_code in wanted), None)


def _publisher(found: Mapping[str, Any]) -> Identity | None:
    """:param found: the local variables of ``ClearFuncs.publish``, once it has authorized the request."""
    opts, extra, now = found["self"].opts, found["extra"], time.time()
    name = str(found["clear_load"].get("user") or "")
    if found["auth_type"] == "token":
        # A backend that the request names beside its token is only the user's claim.
        return Identity(TOKEN, name, _backend_of_token(found["self"].loadauth, extra["token"]), now)
    if found["auth_type"] == "eauth":
        return Identity(PASSWORD, name, (str(extra["eauth"]),), now)
    if found["auth_list"]:
        if found["auth_list"] is found["syndic_auth_list"]:
            return Identity(ABOVE, name, (), now)
        return Identity(SUDO if _sudoer(name) else KEY, _sudoer(name) or name, (), now)
    if extra.get("id"):
        return Identity(PEER, str(extra["id"]), (), now)
    if _sudoer(name):
        return Identity(SUDO, _sudoer(name), (), now)
    return Identity(MASTER, name, (), now) if name in ("", "root", opts.get("user", "root")) else None


def _backend_of_token(loadauth: Any, token: Any) -> tuple[str, ...]:
    try:
        return (str(loadauth.get_tok(token)["eauth"]),)
    except Exception:  # it has just expired, or the store of tokens fails
        return ()


def _sudoer(name: str) -> str:
    """Return the user who came by sudo, if Salt's name says so."""
    return name[len("sudo_") :] if name.startswith("sudo_") else ""


def of_command_line(name: str) -> Identity:
    """Return who calls a runner outside the master: a user who may write the master's files, or who came by sudo."""
    return Identity(SUDO if _sudoer(name) else MASTER, _sudoer(name) or name, (), time.time())


def of_runner(found: Mapping[str, Any], grants: Iterable[Any]) -> Identity:
    """
    Return the caller of a runner.

    :param found: the local variables of ``ClearFuncs.runner``, once it has authorized the request.
    :param grants: the access list that Salt has found.
    """
    load, loadauth, now = found["clear_load"], found["self"].loadauth, time.time()
    name = str(found["auth_check"]["username"])
    if found["auth_type"] == "token":
        return Identity(TOKEN, name, _backends_of_token(loadauth, name, list(grants)), now)
    if found["auth_type"] == "eauth":
        return Identity(PASSWORD, name, (str(load["eauth"]),), now)
    name = str(load.get("user") or found["username"])
    if not grants:
        return Identity(SUDO, _sudoer(name), (), now) if _sudoer(name) else Identity(MASTER, name, (), now)
    return Identity(SUDO if _sudoer(name) else KEY, _sudoer(name) or name, (), now)


def _backends_of_token(loadauth: Any, name: str, grants: list[Any]) -> tuple[str, ...]:
    """
    Return the backends that a user's token may belong to.

    Salt removes the token from the request before it calls a runner, but its token store still has it. So the backend
    is one for which a token of this user is stored, and which grants what Salt found.
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
# Salt does not pass all that it knows to a runner or a returner. Only the local variables of the authenticating method
# say which user was authenticated. They must never be taken from a frame of any other method.


def frames_of_this_call() -> Iterator[types.FrameType]:
    """Yield the frames of this call, the innermost first."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def frames_of_all_threads() -> Iterator[types.FrameType]:
    """
    Yield the frames of this call, and then those of all other threads, including the thread that started this one.
    """
    yield from frames_of_this_call()
    others = dict(sys._current_frames())
    others.pop(threading.get_ident(), None)
    for innermost in others.values():
        frame: types.FrameType | None = innermost
        while frame is not None:
            yield frame
            frame = frame.f_back


def codes(module: str, owner: str, *methods: str) -> list[types.CodeType]:
    """Return the code of methods; none if the module is not loaded, since it cannot have called us then."""
    found = getattr(sys.modules.get(module), owner, None)
    return [getattr(found, method).__code__ for method in methods if hasattr(found, method)]


def told_by_peer() -> bool:
    """
    Tell whether Salt is storing a return at this moment because a peer's event in a cluster tells of it (Salt 3008).

    Such an event proves nothing: any accepted minion can fire one in another's name. A peer of the same site has itself
    stored what minions returned to it.
    """
    methods = codes("salt.master", "EventMonitor", "handle_event")
    return any(frame.f_code in methods and frame.f_locals.get("peer_id") for frame in frames_of_this_call())
