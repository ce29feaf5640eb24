"""The options of the engines, each under the name of its engine in the master's configuration or in ``engines:``."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.options import Hidden, kinds, option

#: The kinds of notices.
NOTICES = ("approval", "paused", "halted", "failed", "dead", "engine", "recovered")


@dataclasses.dataclass(frozen=True)
class EngineSettings:
    """What all engines have."""

    metrics_dir: str = option("", kinds.PATH, "directory for the engine's figures for Prometheus, each 15 seconds")


@dataclasses.dataclass(frozen=True)
class BatchSettings(EngineSettings):
    """Options under ``batch_manager:``."""

    max_in_flight: int | None = option(
        None, kinds.whole(1), "how many minions may be in flight at once over all batches, which share it evenly"
    )
    allow_peers: tuple[str, ...] = option(
        (),
        kinds.IDS,
        "minions that may start and control batches if `peer_run` lets them: they may run anything on any minion",
    )


@dataclasses.dataclass(frozen=True)
class RetrySettings(EngineSettings):
    """Options under ``job_retry:``."""

    ttl: float = option(
        86400.0,
        kinds.seconds(1),
        "how long a job is owed, from its publish; from the first one, if it is published again under its jid",
    )
    max_attempts: int = option(
        1,
        kinds.whole(1),
        "how often a job may be begun on a minion: with more than 1, one that was interrupted is run again; after the last "
        "time it is `held`",
    )
    backoff: float = option(
        60.0,
        kinds.seconds(1, 86400),
        "how long a job without a receipt waits before it is sent again; doubles each time, up to an hour; ends early when "
        "the minion starts; more for slow links",
    )
    gather: float = option(
        2.0,
        kinds.seconds(0, 3600),
        "a publish waits for other minions that are owed the same job, until none has come back for this long (or for as "
        "long as the last answer to a question took), and for at most 15 s, or `gather` if that is more; more saves "
        "publishes, each of which goes to the whole fleet",
    )
    window: str = option("", kinds.WINDOW, "when jobs are replayed")
    timezone: str = option("", kinds.TIMEZONE, "the zone whose clock decides when a window is open")
    include: tuple[str, ...] = option(("*",), kinds.GLOBS, "functions whose jobs are kept")
    exclude: tuple[str, ...] = option(
        (
            *("saltutil.*", "test.ping", "sys.*", "mine.*", "minion.restart", "minion.kill", "system.reboot"),
            *("system.shutdown", "system.poweroff", "system.halt", "system.init", "power.*"),
        ),
        kinds.GLOBS,
        "functions whose jobs are not kept; replaces the default",
    )
    syndics: tuple[str, ...] = option(
        (), kinds.IDS, "syndics below this master, whose keys are accepted here: nothing is owed to them"
    )
    supersede: tuple[str, ...] = option(
        (),
        kinds.GLOBS,
        "a newer job of one of these functions with the same arguments cancels the older one in the queue",
    )
    rate: int = option(10, kinds.whole(1), "most publishes a second, with questions; less for a slow master")
    sweep: float = option(3600.0, kinds.seconds(10), "time between two pings of all minions with a queue")
    max_queue_per_minion: int = option(
        100, kinds.whole(1), "most entries of one minion; a further job is not kept, with an event and a warning"
    )
    max_queue: int = option(
        200_000, kinds.whole(1), "most entries in all, of up to 1 kB of memory; the kB of their jobs' loads count too"
    )
    keep: float = option(
        86400.0, kinds.seconds(0), "how long an entry that expired, was cancelled or is dead stays in the list"
    )


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
    ((name, options),) = item.items() if isinstance(item, Mapping) else ((item, None),)
    choice = ReturnerChoice(name, **(options or {}))  # another option than ret_config is a TypeError
    if not _NAME.fullmatch(choice.returner) or not _NAME.fullmatch(choice.ret_config or "_"):
        raise ValueError(item)
    return choice


def _returners(value: Any) -> tuple[ReturnerChoice, ...]:
    choices = tuple(map(_returner, value if isinstance(value, (list, tuple)) else [value]))
    if len(set(choices)) < len(choices) or not choices:
        raise ValueError(value)
    return choices


RETURNERS = kinds.Kind(
    _returners, "a list of returners, such as ['pgjsonb', {'rawfile_json': {'ret_config': 'audit'}}]"
)


@dataclasses.dataclass(frozen=True)
class RecorderSettings(EngineSettings):
    """Options under ``job_recorder:``."""

    returners: tuple[ReturnerChoice, ...] = option(
        (),
        RETURNERS,
        "returners to record to, each once: names, or mappings of a name to its `ret_config`; none for notices only",
    )
    include: tuple[str, ...] = option(("*",), kinds.GLOBS, "functions whose jobs are recorded")
    exclude: tuple[str, ...] = option(
        ("saltutil.find_job", "saltutil.find_cached_job", "saltutil.running", "match.compound", "test.ping"),
        kinds.GLOBS,
        "functions whose jobs are not recorded; replaces the default, which leaves out the questions of the engines and "
        "presence pings",
    )


@dataclasses.dataclass(frozen=True)
class NoticesSettings:
    """Options under ``job_notices:``, of the job_recorder engine."""

    url: str = option(Hidden(), kinds.ADDRESS, "where notices are sent as JSON")
    secret: str = option(
        Hidden(),
        kinds.WORD,
        "the secret that signs notices; an `sdb://` address is looked up by Salt when the master starts",
    )
    ca_file: str = option("", kinds.PATH, "the CA certificates to trust for the webhook, in place of the system's")
    returners: tuple[ReturnerChoice, ...] = option(
        (),
        RETURNERS,
        "Salt's returners that get each notice too, such as `smtp`: names, or mappings of a name to its `ret_config`",
    )
    console: str = option("", kinds.ADDRESS, "the address of the console, for links to it")
    kinds: tuple[str, ...] = option(NOTICES, kinds.some_of(*NOTICES), "the kinds of notices that are sent")

    @property
    def targets(self) -> list[str]:
        """Who gets notices, as statistics name them."""
        return [*(["notices:webhook"] if self.url else []), *(f"notices:{choice.label}" for choice in self.returners)]


@dataclasses.dataclass(frozen=True)
class JobCacheSettings:
    """Options under ``salt_cache:``."""

    max_jobs: int | None = option(None, kinds.whole(1), "beyond so many jobs, the sweep removes the oldest")
    max_bytes: int | None = option(
        None, kinds.SIZE, "the same for the used part of the file that `cache: sqlite` has; other caches log an error"
    )
    log_size: int = option(128 << 20, kinds.SIZE, "beyond this size, the oldest records of the log go; 20,000 stay")
