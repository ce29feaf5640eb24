"""The options of the ``pgjsonb_bulk`` returner, and of ``cache: postgresql``. No error shows a password."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.errors import SettingsError
from saltext.jobs.core.options import Hidden, option, read_settings
from saltext.jobs.core.options.kinds import WORD, Kind, seconds, whole

NAME = "returner.pgjsonb_bulk"
#: The returner whose options are the defaults of ours, so that a master that used it needs no change.
_OF_SALT = "returner.pgjsonb"
#: The section of ``cache: postgresql``.
CACHE = "postgresql"

_SECONDS = seconds(1, 3600)
_OR_NONE = Kind(lambda value: "" if value in (None, "None") else WORD.read(value), "a text, or None")


def _of_libpq() -> Any:
    return option("", _OR_NONE, "as the option of this name in PostgreSQL's own clients")


@dataclasses.dataclass(frozen=True)
class Server:
    """The address of a server and the login, by the names of Salt's pgjsonb returner."""

    host: str = option("localhost", WORD, "the server, or the directory of its socket")
    port: int = option(5432, whole(1), "the server's port")
    user: str = option("salt", WORD, "the login")
    password: str = option(Hidden("salt"), WORD, "the password; `pass` is accepted too")
    db: str = option("salt", WORD, "the database")
    sslmode: str = _of_libpq()
    sslcert: str = _of_libpq()
    sslkey: str = _of_libpq()
    sslrootcert: str = _of_libpq()
    sslcrl: str = _of_libpq()
    connect_timeout: float = option(
        5.0, _SECONDS, "most seconds that connecting may take, with all tries while the server is away"
    )


@dataclasses.dataclass(frozen=True)
class Options(Server):
    """Options under ``returner.pgjsonb_bulk``; those of ``Server`` default to ``returner.pgjsonb``."""

    timeout: float = option(
        30.0,
        _SECONDS,
        "seconds that the server may take for one transaction; after that the connection is closed, and the records are "
        "sent again",
    )
    keep_days: int = option(0, whole(), "days for which records are kept; 0 for ever")


@dataclasses.dataclass(frozen=True)
class CacheOptions(Server):
    """Options under ``postgresql``, for ``cache: postgresql``."""

    password: str = option(
        Hidden(),
        WORD,
        "empty if the server needs none, or if libpq finds it in the password file of the user that the master runs as; "
        "`pass` is accepted too",
    )
    dsn: str = option(Hidden(), WORD, "a connection string or URI for libpq; what it sets overrides the options above")
    timeout: float = option(5.0, _SECONDS, "seconds without an answer after which the server counts as away")


def read_options(opts: Mapping[str, Any]) -> Options:
    """Return the returner's options. :raises SettingsError: naming the option, its value and what is accepted."""
    names = {field.name for field in dataclasses.fields(Options)}
    shared = {name: value for name, value in _section(opts, _OF_SALT).items() if name in names}
    return read_settings(Options, NAME, shared, _section(opts, NAME))


def read_cache_options(opts: Mapping[str, Any]) -> CacheOptions:
    """Return the options of ``cache: postgresql``. :raises SettingsError: naming the option, and no secret value."""
    return read_settings(CacheOptions, CACHE, _section(opts, CACHE))


def _section(opts: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the options under a name, in a mapping, which wins, or with dotted names."""
    if (whole_section := opts.get(name)) is not None and not isinstance(whole_section, Mapping):
        # the value may be a connection string with a password
        raise SettingsError(f"{name} is no mapping of options, such as host and dsn")
    head = f"{name}."
    dotted = {key[len(head) :]: opts[key] for key in opts if isinstance(key, str) and key.startswith(head)}
    found = {**dotted, **(whole_section or {})}
    if "pass" in found:
        found["password"] = found.pop("pass")
    return found
