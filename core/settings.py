"""
The options of this extension, validated where they are read.

Each option is defined once, in its class, with default, unit and what is accepted. An unknown option, or a value that
is not accepted, raises SettingsError, whose message names the option, the value and what is accepted. Nothing is
silently ignored or adjusted.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from saltext.jobs.core.errors import SettingsError
from saltext.jobs.core.options import (
    FILE,
    FOLDER,
    GLOBS,
    IDS,
    TIMEZONE,
    WEB,
    WINDOW,
    Check,
    number,
    option,
    seconds,
    some_of,
    whole,
)

S = TypeVar("S")

#: The kinds of notices of the job_notices engine.
NOTICES = ("approval", "paused", "halted", "failed", "dead", "engine", "recovered")


@dataclasses.dataclass(frozen=True)
class BatchSettings:
    """Options under ``batch_manager:`` in the master's configuration."""

    #: How many minions may be in flight at once over all batches, which share it evenly; None for any number.
    max_in_flight: int | None = option(None, whole(1))
    #: Minions that may start and control batches if ``peer_run`` lets them: they may run anything on any minion.
    allow_peers: tuple[str, ...] = option((), IDS)
    #: Grains and pillar keys that are not secret, such as ``grains:rack``: users who may start a batch may group it by
    #: them (``by``), and their values are shown as names of groups. Groups by any other key are shown by number.
    show_groups_of: tuple[str, ...] = option((), GLOBS)
    #: Directory into which the engine's figures are written for Prometheus, every 15 seconds.
    metrics_dir: str = option("", FOLDER)


@dataclasses.dataclass(frozen=True)
class RetrySettings:
    """Options under ``job_retry:`` in the master's configuration."""

    #: Seconds for which a job is owed to a minion, counted from its publish; a job may set its own.
    ttl: float = option(86400.0, seconds(1))
    #: How often a job may be begun on a minion: with more than 1, one that was interrupted is run again; a job may set
    #: its own.
    max_attempts: int = option(1, whole(1))
    #: Seconds before a job whose receipt the minion did not confirm is sent again; each further try waits twice as
    #: long, up to an hour. A start of the minion ends the wait.
    backoff: float = option(60.0, seconds(1, 86400))
    #: Seconds for which minions that are owed the same job are gathered into one publish.
    gather: float = option(2.0, seconds(0, 3600))
    #: When jobs are replayed; a job may set its own.
    window: str = option("", WINDOW)
    #: The zone whose clock decides when a window is open; a job may set its own.
    timezone: str = option("", TIMEZONE)
    #: Functions that are kept for absent minions.
    include: tuple[str, ...] = option(("*",), GLOBS)
    #: Functions that are not kept; replaces the default.
    exclude: tuple[str, ...] = option(
        (
            "saltutil.*",
            "test.ping",
            "sys.*",
            "mine.*",
            "minion.restart",
            "minion.kill",
            "system.reboot",
            "system.shutdown",
            "system.poweroff",
            "system.halt",
            "system.init",
            "power.*",
        ),
        GLOBS,
    )
    #: Ids of syndics below this master. Their keys are accepted, and they are no minions: nothing is owed to them.
    syndics: tuple[str, ...] = option((), IDS)
    #: A newer job of one of these functions with the same arguments replaces the older one in the queue.
    supersede: tuple[str, ...] = option((), GLOBS)
    #: Most publishes a second, questions included.
    rate: float = option(10.0, number())
    #: Seconds between two pings of all minions with a queue.
    sweep: float = option(3600.0, seconds(10))
    #: Most entries for one minion; further jobs are not queued.
    max_queue_per_minion: int = option(100, whole(1))
    #: Most entries in all.
    max_queue: int = option(200_000, whole(1))
    #: Seconds for which an entry that has expired, was cancelled or was given up stays in the list.
    keep: float = option(86400.0, seconds(0))
    #: Directory into which the engine's figures are written for Prometheus, every 15 seconds.
    metrics_dir: str = option("", FOLDER)


@dataclasses.dataclass(frozen=True)
class ReturnerChoice:
    """A returner to record to; ``ret_config`` is the prefix of its alternative configuration, or empty."""

    returner: str
    ret_config: str = ""

    @property
    def label(self) -> str:
        """What it is called in statistics and on disk."""
        return f"{self.returner}@{self.ret_config}" if self.ret_config else self.returner


_NAME = re.compile(r"[A-Za-z0-9_]+")


def _returner(item: Any) -> ReturnerChoice:
    name: Any = item
    options: Any = {}
    if isinstance(item, Mapping):
        ((name, options),) = item.items()
        options = {} if options is None else options
    if not isinstance(options, Mapping) or not set(options) <= {"ret_config"}:
        raise ValueError(item)
    choice = ReturnerChoice(name, options.get("ret_config", ""))
    if not _NAME.fullmatch(choice.returner) or (choice.ret_config and not _NAME.fullmatch(choice.ret_config)):
        raise ValueError(item)
    return choice


def _returners(value: Any) -> tuple[ReturnerChoice, ...]:
    if not isinstance(value, (list, tuple)):
        value = [value]
    choices = tuple(_returner(item) for item in value)
    if len(set(choices)) < len(choices) or not choices:
        raise ValueError(value)
    return choices


@dataclasses.dataclass(frozen=True)
class RecorderSettings:
    """Options under ``job_recorder:`` in the master's configuration."""

    #: Returners to record to, each once: names, or mappings of a name to its ``ret_config``.
    returners: tuple[ReturnerChoice, ...] = option(
        (),
        Check(_returners, "a list of returners, such as ['pgjsonb', {'rawfile_json': {'ret_config': 'audit'}}]"),
    )
    #: Functions whose jobs are recorded.
    include: tuple[str, ...] = option(("*",), GLOBS)
    #: Functions whose jobs are not recorded; replaces the default, which leaves out the questions of the engines and
    #: presence pings.
    exclude: tuple[str, ...] = option(
        ("saltutil.find_job", "saltutil.find_cached_job", "saltutil.running", "match.compound", "test.ping"), GLOBS
    )
    #: Events that are recorded too, by their tags.
    events: tuple[str, ...] = option(
        (), Check(GLOBS.read, "a list of globs over tags of events, such as ['salt/auth']")
    )
    #: Seconds to look back in the job cache when the log lacks records; 0 for not at all.
    catch_up: float = option(3600.0, seconds(0))
    #: Directory into which the engine's figures are written for Prometheus, every 15 seconds.
    metrics_dir: str = option("", FOLDER)


class Hidden(str):
    """A text that no line of a log and no error shows."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'…'"


def _hidden(value: Any) -> Hidden:
    # Any value is taken, so that no error shows it.
    return Hidden("" if value is None else value)


@dataclasses.dataclass(frozen=True)
class NoticesSettings:
    """Options under ``job_notices:`` in the master's configuration."""

    #: Where notices are sent as JSON.
    url: str = option(Hidden(""), Check(_hidden, "the address of a webhook, https:// or http://"))
    #: The secret that signs notices. An ``sdb://`` address is looked up by Salt when the master starts.
    secret: str = option(Hidden(""), Check(_hidden, "a text, or sdb://…"))
    #: A file with the CA certificates to trust for the webhook, in place of the system's.
    ca_file: str = option("", FILE)
    #: Salt's returners that get each notice too, such as ``smtp``: names, or mappings of a name to its ``ret_config``.
    returners: tuple[ReturnerChoice, ...] = option((), Check(_returners, "a list of returners, such as ['smtp']"))
    #: The kinds of notices that are sent.
    kinds: tuple[str, ...] = option(NOTICES, some_of(*NOTICES))
    #: The address of the console, for links to it.
    console: str = option("", WEB)
    #: Seconds after which a notice that did not arrive is given up.
    keep: float = option(86400.0, seconds(60))
    #: Directory into which the engine's figures are written for Prometheus, every 15 seconds.
    metrics_dir: str = option("", FOLDER)


def engine_options(opts: Mapping[str, Any], engine: str) -> tuple[Any, Any]:
    """
    Return what the master's configuration says of an engine: its section, and its entry under ``engines:``, which wins.

    An engine gets its entry when it starts; a runner looks here, so both use the same options.
    """
    entries = opts.get("engines") or ()
    entries = [entries] if isinstance(entries, Mapping) else entries
    found: Any = None
    for entry in entries:
        if isinstance(entry, Mapping) and engine in entry:
            found = entry[engine]
    return opts.get(engine), found


def is_configured(opts: Mapping[str, Any], engine: str) -> bool:
    """Whether the master is to run an engine: it is under ``engines:``, as a name or with its options."""
    entries = opts.get("engines") or ()
    entries = [entries] if isinstance(entries, (str, Mapping)) else entries
    return any(entry == engine or (isinstance(entry, Mapping) and engine in entry) for entry in entries)


def read_settings(kind: type[S], section: str, *sources: Any) -> S:
    """
    Return the settings of one section; a later source overrides an earlier one.

    :param kind: the settings class.
    :param section: the section's name, for messages.
    :param sources: mappings; None and True stand for an empty one.
    :raises SettingsError: naming the option, its value and what is accepted.
    """
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for source in sources:
        if source is None or source is True:
            continue
        if not isinstance(source, Mapping):
            raise SettingsError(f"{section} is {source!r}; accepted is a mapping of options")
        for name, value in source.items():
            if name not in fields:
                known = ", ".join(sorted(fields))
                # the value of a misspelt option may be a secret
                hides = any(isinstance(field.default, Hidden) for field in fields.values())
                shown = "" if hides else f" (its value is {value!r})"
                raise SettingsError(f"{section} has no option {name!r}{shown}; accepted are {known}")
            values[name] = _checked(section, name, value, fields[name].metadata["check"])
    return kind(**values)


def _checked(section: str, name: str, value: Any, check: Check) -> Any:
    try:
        return check.read(value)
    except (ValueError, TypeError):
        raise SettingsError(f"{section}: {name} is {value!r}; accepted is {check.accepts}") from None
