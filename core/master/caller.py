"""
The caller of a runner, as Salt itself has authenticated them; never a bare user name.

On every release a runner gets only the name of a user (``__user__``), by which root at the command line cannot be told from
an API user called root, or from a minion. So this module looks at the call itself: the method of the master that has
authenticated the request is on the stack, with the name, and the grants that came with the password or the token.

* ``ClearFuncs.runner``: a request with a password, a token or a key file. Its grants are the limit. Only the key files
  of the master's own user come without grants, and without limit.
* ``RemoteFuncs.minion_runner``: a minion that ``peer_run`` lets call runners.
* Neither, in the master: its own schedule, reactor or engines, set up by its configuration. No limit.
* A process in which an engine calls a runner for a user (``core/batch/effects.py``): that user, with their grants.
* Outside the master: ``salt-run`` or Python, run by a user who may write the master's files. No limit but ``sudo_acl``.

A runner may call others in threads (``salt.parallel_runners``), so the stacks of all threads are searched: a process of the
master serves one request at a time.

It must never treat a call of unknown origin as the master's own: such a call is refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import salt.acl
import salt.auth
import salt.client
import salt.client.mixins
import salt.exceptions
import salt.utils.user

from saltext.jobs.core.compat import matched_minions, minion_keys
from saltext.jobs.core.display.text import some
from saltext.jobs.core.errors import Refused
from saltext.jobs.core.ids import is_plain
from saltext.jobs.core.master import identity
from saltext.jobs.core.master.access import Access
from saltext.jobs.core.master.identity import codes, frames_of_all_threads
from saltext.jobs.core.users import KEY, MASTER, PASSWORD, PEER_RUN, SUDO, TOKEN, WHO, Identity, are_one

#: Names with a meaning to Salt or this extension. An API user of such a name is shown as ``<backend>:<name>``, or as
#: ``token:<name>`` if the backend is uncertain.
_RESERVED = ("", "root", "UNKNOWN", "Reactor")
#: The kinds of identities that are users of this machine.
_LOCAL = (MASTER, SUDO, KEY)


@dataclasses.dataclass(frozen=True)
class Caller:
    """Who asks."""

    name: str
    grants: tuple[Any, ...] | None = None  # the access list that limits the caller; None for a caller without limit
    # What is recorded, so that the rights can be checked again.
    who: Identity | None = dataclasses.field(default=None, compare=False)

    @property
    def peer(self) -> bool:
        """Whether the caller is a minion."""
        return self.who is not None and self.who.kind == PEER_RUN

    def owner(self) -> dict[str, Any]:
        """Return what batches and the retry queue record of the caller, in plain values; empty if Salt did not tell."""
        return {} if self.who is None else self.who.as_record()

    def limits(self) -> dict[str, Any]:
        """Return the argument of ``act_for``, in plain values; empty for a caller without limit."""
        return {} if self.grants is None else {"name": self.name, "who": self.owner(), "grants": list(self.grants)}


class _Process:
    """The caller that this process acts for, if there is only one."""

    acts_for: Caller | None = None


def act_for(limits: Mapping[str, Any]) -> None:
    """Apply these limits to everything that this process calls from now on."""
    _Process.acts_for = Caller(limits["name"], tuple(limits["grants"]), Identity.from_record(limits["who"]))


def caller(opts: Mapping[str, Any], user: str | None) -> Caller:
    """
    Return the caller of the current runner. ``user``: the name that Salt gave the runner, if any.

    :raises Refused: when the master got the call from outside and its origin is unknown.
    """
    if _Process.acts_for is not None:
        return _Process.acts_for
    remote = False
    for frame in frames_of_all_threads():
        code = frame.f_code
        if code in codes("salt.daemons.masterapi", "RemoteFuncs", "minion_runner"):
            minion = str(frame.f_locals["load"]["id"])
            return Caller(minion, (), identity.known_now(PEER_RUN, minion))
        if code in codes("salt.master", "ClearFuncs", "runner", "_sync_runner"):
            return _authenticated(opts, frame.f_locals)
        remote = remote or code is salt.client.mixins.AsyncClientMixin._proc_function.__func__.__code__
    if remote and _in_master():
        # ClearFuncs.runner is not on the stack, as with master_async_mworker on Salt 3008.
        raise Refused("Refused, because it is not known who asks")
    name = user if user not in (None, "", "UNKNOWN") else salt.utils.user.get_specific_user()
    if _in_master():
        return Caller(str(name), who=identity.known_now(MASTER, str(name)))
    # outside the master: a user who may write the master's files, or who came by sudo
    grants = Access(opts).sudo_grants(str(name))
    return Caller(str(name), None if grants is None else tuple(grants), identity.of_local(MASTER, str(name)))


def require_right(
    opts: Mapping[str, Any],
    who: Caller,
    load: Mapping[str, Any],
    minions: Iterable[str],
    named_as: str = "all of these minions",
) -> None:
    """
    Refuse a job (``fun``, and ``arg`` as it is published) that the caller may not publish: the right to call a runner does
    not include it. A user who may not publish to minions must not learn which ones exist, or what a target matches: so the
    refusal names none, and is the same if none matches.

    :param named_as: what the refusal calls the minions.
    :raises Refused: naming the function and ``named_as``, or the user if ``publisher_acl_blacklist`` names them.
    """
    if who.grants is None:
        return
    # Salt checks the user of a publish in the same way; for an API user, it checks the user that runs salt-api.
    barred = salt.acl.PublisherACL(opts.get("publisher_acl_blacklist") or {})
    if (who.who is None or who.who.kind not in (TOKEN, PASSWORD)) and barred.user_is_blacklisted(who.name):
        raise Refused(f"{who.name} may not publish anything: publisher_acl_blacklist names that user")
    wanted = list(minions)
    if not wanted or Access(opts).denied(who.grants, load, wanted):
        raise Refused(f"{who.name} may not publish {load.get('fun')} to {named_as}, or there is no such minion")


def sees_all(opts: Mapping[str, Any], who: Caller) -> bool:
    """Tell whether a caller sees arguments and returns of all jobs: whoever may call ``jobs.list_job``, which has them."""
    return who.grants is None or Access(opts).may_run(who.grants, "jobs.list_job", (), {})


def sight(opts: Mapping[str, Any], user: str | None) -> Callable[[Mapping[str, Any]], bool]:
    """Return a function that tells whether the caller may see a load's arguments: of none if it is not known who calls."""
    try:
        who = caller(opts, user)
    except Refused:
        return lambda _load: False

    def is_own(load: Mapping[str, Any]) -> bool:
        with contextlib.suppress(ValueError):
            owner = Identity.from_record(load.get(WHO))
            return bool(owner and who.who and are_one(owner, who.who))
        return False

    return (lambda _load: True) if sees_all(opts, who) else is_own


def ask(
    opts: Mapping[str, Any], who: Caller, tgt: Any, tgt_type: str, fun: str, arg: Iterable[Any] = (), **options: Any
) -> tuple[list[str], Mapping[str, Any]]:
    """
    Ask the minions that a target matches, if the caller may ask them all. Blocks. They are asked by name: minions match a
    target themselves, so with a target, minions that the caller may not ask might answer.

    :param options: further arguments of ``LocalClient.cmd``.
    :return: the minions, and their answers as Salt's client returns them.
    :raises Refused: when ``who`` may not ask them, when the target matches no minion, or the master publishes nothing.
    """
    permit = functools.partial(require_right, opts, who, {"fun": fun, "arg": list(arg)})
    matched = matching(opts, tgt, tgt_type, permit)
    try:
        with salt.client.get_local_client(mopts=dict(opts)) as client:
            return matched, client.cmd(matched, fun, list(arg), tgt_type="list", **options) or {}
    except salt.exceptions.SaltException as exc:
        raise Refused(f"The minions cannot be asked: {exc}") from exc


def matching(opts: Mapping[str, Any], tgt: Any, tgt_type: str, permit: Callable[..., None]) -> list[str]:
    """
    Return the minions that a target matches, sorted, if ``permit`` lets the caller publish to them: it takes minions, and
    what to call them, as ``require_right`` does. Blocks. If none matches, or a listed one does not exist, it takes all: who
    may not publish to all is not told what a target matches, since that would reveal grains and pillar. :raises Refused:
    """
    named, matched = f"target {tgt!r} of type {tgt_type!r}", list[str]()
    is_compound = tgt_type == "glob" and re.search(r"(^|[\s(])[A-Z]@|\s(and|or)\s|^not\s", str(tgt))
    hint = "; a compound target needs tgt_type=compound" if is_compound else ""
    wrong = Refused(f"The {named} matches no accepted minion{hint}")
    try:
        matched = [minion for minion in matched_minions(opts, tgt, tgt_type) if is_plain(minion)]
        if tgt_type == "list" and (unknown := sorted({*tgt}.difference(matched))):
            matched, wrong = [], Refused(f"No accepted minion has this name: {some(unknown, 10)} (of the list in tgt)")
    except Exception as exc:  # the matcher may raise anything
        wrong = Refused(f"The {named} can't be matched: {exc}")
    everyone = matched
    if not matched:
        with contextlib.suppress(OSError):  # keys that cannot be read are nobody's
            everyone = sorted(minion_keys(opts)[0])
    permit(everyone, f"all that the {named} matches")
    if not matched:
        raise wrong
    return matched


def require_no_peer(who: Caller, allowed: Iterable[str] = (), hint: str = "") -> None:
    """Refuse a minion that came by ``peer_run`` and wants more than to look, unless it is one of ``allowed``."""
    if who.peer and who.name not in tuple(allowed):
        raise Refused(f"The minion {who.name} may look at this, and change nothing{hint}")


def names_of(who: Caller) -> frozenset[str]:
    """
    Return the names of a caller: the one that batches show; a local user's own name, without ``sudo_``; and an API user's
    name with the backend before it, which is the only one if the name has a meaning to Salt (``root``).
    """
    known = who.who
    own = {who.name, *({known.name} if known and known.kind in _LOCAL else ())}
    # Some backends have users named "%ops" or "pam:anna", which mean a group or a user of another backend here.
    plain = {name for name in own if not name.startswith("%") and ":" not in name}
    return frozenset({*plain, *(f"{backend}:{known.name}" for backend in known.backends)} if known else plain)


def groups_of(opts: Mapping[str, Any], who: Caller) -> frozenset[str]:
    """
    Return the groups of a caller, as given by the backend of their login or by this machine; none if they are not known, as
    with a token that may belong to several backends. Blocks.
    """
    known = who.who
    if known is None or who.peer:
        return frozenset()
    if known.kind in _LOCAL:
        try:
            return frozenset(salt.utils.user.get_group_list(known.name))
        except KeyError:  # no user of this machine
            return frozenset()
    if len(known.backends) != 1:
        return frozenset()
    found = salt.auth.LoadAuth(dict(opts)).get_groups({"eauth": known.backends[0], "username": known.name})
    return frozenset(str(name) for name in found) if isinstance(found, (list, tuple, set)) else frozenset()


def _authenticated(opts: Mapping[str, Any], found: Mapping[str, Any]) -> Caller:
    """Return who made a request. ``found``: the local variables of ``ClearFuncs.runner`` once it has authorized that."""
    check, load, kind = found["auth_check"], found["clear_load"], found["auth_type"]
    if check.get("error"):
        raise Refused("Refused, because it is not known who asks")
    grants = tuple(check.get("auth_list") or ())
    if kind == "token" and "eauth" in load:
        # Salt may then have taken the list of that backend for any user named in the call.
        raise Refused("Refused, because it is not known who asks: the call has both a token and an eauth")
    if kind == "user":
        # By key file. Salt has a list for a user of publisher_acl, and none for the master's own user.
        name = str(found["username"])
        own = identity.of_local(KEY if grants else MASTER, str(load.get("user") or name))
        return Caller(name, grants or None, own)
    name = str(check["username"])
    if kind == "token":
        who = identity.known_now(TOKEN, name, identity.backends_of_token(found["self"].loadauth, name, list(grants)))
    else:
        who = identity.known_now(PASSWORD, name, [str(load["eauth"])])
    if name in _RESERVED or name.startswith("sudo_") or name == opts.get("user"):
        name = f"{who.backends[0] if len(who.backends) == 1 else kind}:{name}"
    return Caller(name, grants, who)


def _in_master() -> bool:
    """Whether this is a process of the master: only these hold the key that the master shares with its minions."""
    return bool(getattr(getattr(sys.modules.get("salt.master"), "SMaster", None), "secrets", None))
