"""
The one list of fields of loads and returns that must never be stored on disk, in a database or in a cache.

Each function returns a copy, because Salt goes on using the original. Only ``event_for_history`` looks into the
*arguments* of a job: elsewhere a password that was typed as an argument is part of the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.users import WHO

#: Credentials: ``tok`` and ``sig`` come from minions with their returns, the others from users.
SECRETS = frozenset(("token", "eauth_token", "password", "key", "tok", "sig"))
#: Fields that a return must not carry to a returner: they would choose the server that gets the master's password.
ROUTING = frozenset(("ret_config", "ret_kwargs"))
_NOT_IN_HISTORY = SECRETS | {"eauth", WHO}
_NOT_IN_RETURNS = _NOT_IN_HISTORY | ROUTING


def without_secrets(load: Mapping[str, Any]) -> dict[str, Any]:
    """Return a load as the job cache and the retry queue store it; with ``eauth``, to check access before a replay."""
    return _without(load, SECRETS)


def load_for_history(load: Mapping[str, Any]) -> dict[str, Any]:
    """Return a load as the recorder stores it. ``eauth`` goes too: access is never checked there."""
    return _without(load, _NOT_IN_HISTORY)


def return_for_history(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a return as the recorder stores it, without the fields that would redirect the returner."""
    return {name: value for name, value in data.items() if name not in _NOT_IN_RETURNS}


def event_for_history(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event's data as the recorder stores it: secrets are removed from all mappings in it, however deep."""

    def cleaned(value: Any) -> Any:
        if isinstance(value, Mapping):
            kept = {}
            for name, item in value.items():  # a comprehension would halve the depth that Python 3.10 can follow
                if name not in _NOT_IN_HISTORY:
                    kept[name] = cleaned(item)
            return kept
        return list(map(cleaned, value)) if isinstance(value, (list, tuple)) else value

    return dict(cleaned(data))


def _without(load: Mapping[str, Any], unwanted: frozenset[str]) -> dict[str, Any]:
    kept = {name: value for name, value in load.items() if name not in unwanted}
    if isinstance(kept.get("kwargs"), Mapping):
        kept["kwargs"] = {name: value for name, value in kept["kwargs"].items() if name not in unwanted}
    return kept
