"""The options of the ``pgjsonb_bulk`` returner, and of ``cache: postgresql``. No error shows a password."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.errors import SettingsError
from saltext.jobs.core.options import Check, option, seconds, whole
from saltext.jobs.core.settings import read_settings

NAME = "pgjsonb_bulk"
#: The returner whose options are the defaults of ours, so that a master that used it needs no change.
_OF_SALT = "pgjsonb"
#: The section of ``cache: postgresql``.
CACHE = "postgresql"
_COMMITS = ("on", "off", "local", "remote_write", "remote_apply")


def _text(value: Any) -> str:
    if not isinstance(value, (str, int)) or isinstance(value, bool):
        raise ValueError(value)
    return str(value)


def _secret(value: Any) -> str:
    """As ``_text``; the error has no value, which may be a password."""
    try:
        return _text(value)
    except ValueError:
        raise SettingsError("password and dsn must be texts") from None


def _commit(value: Any) -> str:
    found = {True: "on", False: "off", None: ""}.get(value, value) if isinstance(value, (bool, type(None))) else value
    if found not in ("", *_COMMITS):
        raise ValueError(value)
    return str(found)


def _text_or_none(value: Any) -> str:
    return "" if value is None or value == "None" else _text(value)


def _port(value: Any) -> int:
    number = int(value)
    if isinstance(value, (bool, float)) or not 0 < number < 65536:
        raise ValueError(value)
    return number


def _seconds(value: Any) -> float:
    return float(
        _LIMITS.read(int(value) if isinstance(value, str) and value.isascii() and value.isdecimal() else value)
    )


_LIMITS = seconds(1, 3600)
_TEXT = Check(_text, "a text")
_FILE = Check(_text_or_none, "a text, or None")
_SECONDS = Check(_seconds, _LIMITS.accepts)
_SECRET = Check(_secret, "a text")
_COMMIT = Check(_commit, f"empty, or one of {', '.join(_COMMITS)}")


@dataclasses.dataclass(frozen=True)
class Server:
    """The address of a server and the login, by the names of Salt's pgjsonb returner."""

    #: The server, and the login.
    host: str = option("localhost", _TEXT)
    port: int = option(5432, Check(_port, "a port number"))
    user: str = option("salt", _TEXT)
    password: str = option("salt", _SECRET)
    db: str = option("salt", _TEXT)
    #: As the option of this name in PostgreSQL's own clients.
    sslmode: str = option("", _FILE)
    sslcert: str = option("", _FILE)
    sslkey: str = option("", _FILE)
    sslrootcert: str = option("", _FILE)
    sslcrl: str = option("", _FILE)
    #: Most seconds that connecting may take.
    connect_timeout: float = option(5.0, _SECONDS)


@dataclasses.dataclass(frozen=True)
class Options(Server):
    """Options under ``returner.pgjsonb_bulk``; those of ``Server`` default to ``returner.pgjsonb``."""

    #: Seconds for the server to take one batch; a server that takes longer counts as down.
    timeout: float = option(30.0, _SECONDS)
    #: Days for which records are kept; 0 for ever.
    keep_days: int = option(0, whole())


@dataclasses.dataclass(frozen=True)
class CacheOptions(Server):
    """Options under ``postgresql``, for ``cache: postgresql``."""

    #: Most seconds that connecting may take, with all tries while the server is away.
    connect_timeout: float = option(5.0, _SECONDS)
    #: Empty if the server needs none, or if libpq finds it in the password file of the user that the master runs as.
    password: str = option("", _SECRET)
    #: A connection string or URI for libpq. What it sets overrides the options above.
    dsn: str = option("", _SECRET)
    #: Seconds without an answer after which the server counts as away.
    timeout: float = option(5.0, _SECONDS)
    #: Most connections of one process of the master.
    connections: int = option(4, whole(1))
    #: When a write counts as done. Empty: as the server says, but not before it is on the server's own disk.
    synchronous_commit: str = option("", _COMMIT)


def read_options(opts: Mapping[str, Any]) -> Options:
    """:raises SettingsError: naming the option, its value and what is accepted."""
    own = _section(opts, NAME)
    names = {field.name for field in dataclasses.fields(Options)}
    shared = {name: value for name, value in _section(opts, _OF_SALT).items() if name in names}
    return read_settings(Options, f"returner.{NAME}", shared, own)


def read_cache_options(opts: Mapping[str, Any]) -> CacheOptions:
    """:raises SettingsError: naming the option and what is accepted, and the value unless it may be a password."""
    whole_section = opts.get(CACHE)
    if whole_section is not None and not isinstance(whole_section, Mapping):
        raise SettingsError(f"{CACHE} is no mapping of options; a connection string is the option {CACHE}.dsn")
    found = dict(whole_section or {})
    for key, value in opts.items():
        if isinstance(key, str) and key.startswith(f"{CACHE}."):
            found.setdefault(key[len(CACHE) + 1 :], value)
    if "pass" in found:
        found.setdefault("password", found.pop("pass"))
    known = {field.name for field in dataclasses.fields(CacheOptions)}
    unknown = sorted(str(name) for name in found.keys() - known)
    if unknown:
        raise SettingsError(f"{CACHE} has no option {', '.join(unknown)}; accepted are {', '.join(sorted(known))}")
    return read_settings(CacheOptions, CACHE, found)


def _section(opts: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the options under ``returner.<name>`` and ``<name>``, in a mapping or with dotted names."""
    found: dict[str, Any] = {}
    for prefix in (f"returner.{name}", name):
        whole_section = opts.get(prefix)
        if whole_section is not None and not isinstance(whole_section, Mapping):
            raise SettingsError(f"{prefix} is {whole_section!r}; accepted is a mapping of options")
        found = {**(whole_section or {}), **found}
    for prefix in (f"returner.{name}.", f"{name}."):
        for key, value in opts.items():
            if isinstance(key, str) and key.startswith(prefix):
                found.setdefault(key[len(prefix) :], value)
    if "pass" in found:
        found["password"] = found.pop("pass")
    return found
