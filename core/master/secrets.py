"""
What of a load or a return must not come to rest on disk, in a database or in a cache: the one list of it.

Each function returns a copy: Salt goes on using what it handed over. None of them looks into the *arguments* of a job: a
password that was typed as an argument is part of the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.master.identity import WHO

#: What proves who somebody is. ``password``, ``token``, ``eauth_token`` and ``key`` come from users, ``tok``, ``sig`` from
#: minions with their returns.
SECRETS = frozenset(("token", "eauth_token", "password", "key", "tok", "sig"))
#: What a return may not carry to a returner: it would choose the server to which the master's password is sent.
ROUTING = frozenset(("ret_config", "ret_kwargs"))
_NOT_IN_HISTORY = SECRETS | {"eauth", WHO}
_NOT_IN_RETURNS = _NOT_IN_HISTORY | ROUTING


def without_secrets(load: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return a load as the job cache and the retry queue keep it.

    ``eauth`` stays: before a replay the access of that backend's user is checked anew.
    """
    return _without(load, SECRETS)


def load_for_history(load: Mapping[str, Any]) -> dict[str, Any]:
    """Return a load as it is recorded elsewhere. ``eauth`` goes as well: nobody checks an access there."""
    return _without(load, _NOT_IN_HISTORY)


def return_for_history(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a return as it is recorded elsewhere, without what would redirect the returner."""
    return {name: value for name, value in data.items() if name not in _NOT_IN_RETURNS}


def event_for_history(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an event carries as it is recorded elsewhere: secrets go from all mappings in it, however deep."""

    def cleaned(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: cleaned(item) for name, item in value.items() if name not in _NOT_IN_HISTORY}
        return [cleaned(item) for item in value] if isinstance(value, (list, tuple)) else value

    return {name: cleaned(item) for name, item in data.items() if name not in _NOT_IN_HISTORY}


def _without(load: Mapping[str, Any], unwanted: frozenset[str]) -> dict[str, Any]:
    kept = {name: value for name, value in load.items() if name not in unwanted}
    if isinstance(kept.get("kwargs"), Mapping):
        kept["kwargs"] = {name: value for name, value in kept["kwargs"].items() if name not in unwanted}
    return kept
