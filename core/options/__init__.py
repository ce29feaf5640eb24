"""
The options of this extension, validated where they are read: one schema, of which the documentation has the tables.

A field of a class of options (``engines.py``, ``postgresql.py``) has a default, a kind of values (``kinds.py``), which
reads it and says what is accepted, and a line of help. An unknown option, or a value that is not accepted, raises
SettingsError, whose message names the option, the value and what is accepted. Nothing is silently ignored or adjusted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from saltext.jobs.core.errors import SettingsError
from saltext.jobs.core.options.kinds import Kind

S = TypeVar("S")


class Hidden(str):
    """A text that no line of a log and no error shows. An option with such a default never shows its value."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'…'"


def option(default: Any, kind: Kind[Any], about: str = "", **more: Any) -> Any:
    """Declare an option. :param about: what it means, in Markdown. :param more: what else is said of it there."""
    return dataclasses.field(default=default, metadata={"kind": kind, "about": about, **more})


def read_settings(kind: type[S], section: str, *sources: Any) -> S:
    """Return a section's settings from mappings (None or True: empty); a later one overrides. :raises SettingsError:"""
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    given, values, wrong = dict[str, Any](), dict[str, Any](), list[str]()
    for source in sources:
        if not (source is None or source is True or isinstance(source, Mapping)):
            # its value may have a secret, as of a section with a dash before each option
            raise SettingsError(f"{section} is no mapping; accepted is a mapping of options")
        given.update(source if isinstance(source, Mapping) else {})
    if unknown := [name for name in given if name not in fields]:  # their values may be secrets
        wrong.append(
            f"{section} has no option {', '.join(map(repr, unknown))}; accepted are {', '.join(sorted(fields))}"
        )
    for name in (name for name in given if name in fields):
        accepted: Kind[Any] = fields[name].metadata["kind"]
        is_hidden = isinstance(fields[name].default, Hidden)
        try:
            found = accepted.read(given[name])
            values[name] = Hidden(found) if is_hidden else found
        except (ValueError, TypeError):
            shown = Hidden() if is_hidden or "{" in repr(given[name]) else given[name]  # a mapping may have a password
            wrong.append(f"{section}: {name} is {shown!r}; accepted is {accepted.accepts}")
    if wrong:
        raise SettingsError("; ".join(wrong))
    return kind(**values)


def require_seconds(opts: Mapping[str, Any]) -> None:
    """:raises SettingsError: for an option of Salt's own that is to be a number of seconds, and is none, such as 30d."""
    for name in ("timeout", "gather_job_timeout", "keep_jobs_seconds"):
        if not isinstance(opts.get(name, 0), (int, float)):
            raise SettingsError(f"{name} is {opts[name]!r}; accepted is a number of seconds, since Salt reads no other")


def engine_options(opts: Mapping[str, Any], engine: str) -> tuple[Any, Any]:
    """
    Return what the master's configuration says of an engine: its section, and its entry under ``engines:``, which wins. An
    engine gets its entry when it starts; a runner looks here, so both use the same options.
    """
    return opts.get(engine), entries_of(opts).get(engine)


def is_configured(opts: Mapping[str, Any], engine: str) -> bool:
    """Whether the master is to run an engine: it is under ``engines:``, as a name or with its options."""
    return engine in entries_of(opts)


def section_of(opts: Mapping[str, Any], engine: str) -> str:
    """Return the section of the master's configuration that has options for an engine; empty if there is none."""
    sections = (engine, "job_notices") if engine == "job_recorder" else (engine,)
    return next((section for section in sections if opts.get(section)), "")


def entries_of(opts: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``{engine: its options, or None}`` of what is under ``engines:``."""
    entries, found = opts.get("engines") or (), dict[str, Any]()
    for entry in [entries] if isinstance(entries, (str, Mapping)) else entries:
        found.update(entry if isinstance(entry, Mapping) else {str(entry): None})
    return found
