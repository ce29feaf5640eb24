"""The options of the ``pgjsonb_bulk`` returner."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.errors import SettingsError
from saltext.jobs.core.options import FLAG, Check, option, seconds, whole
from saltext.jobs.core.settings import read_settings

NAME = "pgjsonb_bulk"
#: Whose options hold where ours are not set, so that a master that used it goes on as it is.
_OF_SALT = "pgjsonb"


def _text(value: Any) -> str:
    if not isinstance(value, (str, int)) or isinstance(value, bool):
        raise ValueError(value)
    return str(value)


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


@dataclasses.dataclass(frozen=True)
class Options:
    """What stands under ``returner.pgjsonb_bulk``, or else, for the first ten, under ``returner.pgjsonb``."""

    #: The server, and who logs in to it.
    host: str = option("localhost", _TEXT, "0.2.0")
    port: int = option(5432, Check(_port, "a port number"), "0.2.0")
    user: str = option("salt", _TEXT, "0.2.0")
    password: str = option("salt", _TEXT, "0.2.0")
    db: str = option("salt", _TEXT, "0.2.0")
    #: As PostgreSQL's own clients have it.
    sslmode: str = option("", _FILE, "0.2.0")
    sslcert: str = option("", _FILE, "0.2.0")
    sslkey: str = option("", _FILE, "0.2.0")
    sslrootcert: str = option("", _FILE, "0.2.0")
    sslcrl: str = option("", _FILE, "0.2.0")
    #: Seconds for a connection to be made.
    connect_timeout: float = option(5.0, _SECONDS, "0.2.0")
    #: Seconds for the server to take one batch; a server that takes longer counts as down.
    timeout: float = option(30.0, _SECONDS, "0.2.0")
    #: Whether tables that are missing are made with a partition for each month.
    partitions: bool = option(True, FLAG, "0.2.0")
    #: Days for which records are kept; 0 for ever.
    keep_days: int = option(0, whole(), "0.2.0")


def read_options(opts: Mapping[str, Any]) -> Options:
    """:raises SettingsError: naming the option, its value and what is accepted."""
    own = _section(opts, NAME)
    names = {field.name for field in dataclasses.fields(Options)}
    shared = {name: value for name, value in _section(opts, _OF_SALT).items() if name in names}
    return read_settings(Options, f"returner.{NAME}", shared, own)


def _section(opts: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return what stands under ``returner.<name>``: a mapping, or options with that prefix, of which Salt knows two."""
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
