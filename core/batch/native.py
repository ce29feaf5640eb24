"""
Batches of Salt 3008's own manager or its CLI, as our runner shows them.

    <cachedir>/jobs/<jid_dir>/.batch.p  all that Salt 3008 knows of a batch; ``store.py`` writes one for each of ours
    <cachedir>/batch_active.p           Salt 3008's index of its own batches

It must never write: Salt's manager adopts every batch in its index when it starts, and publishes. Nor must it believe
``.batch.p``: Salt's manager writes anything into it that a forged event carries.
"""

from __future__ import annotations

import collections
import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import salt.utils.jid

from saltext.jobs.core import lines
from saltext.jobs.core.batch.summary import DRIVER, ENDED, minion_record
from saltext.jobs.core.disk import files
from saltext.jobs.core.display.command import HIDDEN, published_words
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.functions import retcode_of
from saltext.jobs.core.ids import is_plain

log = lines.logger(__name__)


def path_of(opts: Mapping[str, Any], jid: str) -> pathlib.Path:
    jobs = os.path.join(opts["cachedir"], "jobs")
    return pathlib.Path(salt.utils.jid.jid_dir(jid, jobs, opts.get("hash_type", "sha256"))) / ".batch.p"


def active(opts: Mapping[str, Any]) -> list[str]:
    """Return the jids of the batches that are active for Salt 3008; an unreadable index counts as empty."""
    try:
        jids = files.read_msgpack(pathlib.Path(opts["cachedir"], "batch_active.p"))
    except (StateError, OSError) as exc:
        log.warning("Salt's own batches may be missing: %s", exc)
        return []
    return [jid for jid in jids if is_plain(jid)] if isinstance(jids, (list, tuple)) else []


def read(opts: Mapping[str, Any], jid: str) -> dict[str, Any] | None:
    """Return the state of a batch of Salt's own; None if there is none, or none that is readable and of this job."""
    try:
        state: Any = files.read_msgpack(path_of(opts, jid)) if is_plain(jid) else None
    except (StateError, OSError) as exc:
        log.debug("Ignoring a file: %s", exc)
        return None
    if not _is_state(state) or state["jid"] != jid or state.get("driver") == DRIVER:
        return None
    return dict(state)


def _is_state(state: Any) -> bool:
    """
    Tell whether this has the form of a state of Salt's manager or CLI. The manager writes down the content of an event
    ``salt/batch/<jid>/new``, which any accepted minion can fire.
    """
    if not isinstance(state, Mapping):
        return False
    words = (state.get(name) for name in ("fun", "tgt_type", "driver", "user", "halted_reason"))
    times = (state.get(name) for name in ("created", "last_progress"))
    groups = [state.get(name) or () for name in ("all_minions", "pending", "active", "done", "failed")]
    return (
        is_plain(state.get("jid"))
        and all(word is None or isinstance(word, str) for word in words)
        and all(time is None or (type(time) in (int, float) and math.isfinite(time)) for time in times)
        and all(isinstance(group, (list, tuple, Mapping)) and all(map(is_plain, group)) for group in groups)
        and all(isinstance(state.get(name) or {}, Mapping) for name in ("active", "done"))
    )


def summary(state: Mapping[str, Any], now: float, is_seen: bool = True) -> dict[str, Any]:
    """Return the summary of a batch of Salt's own. ``now`` is Unix time; ``is_seen``: whether arguments are shown."""
    halted, progress = bool(state.get("halted")), state.get("last_progress")
    same = (
        "jid",
        "fun",
        "tgt",
        "tgt_type",
        "batch_size",
        "halted_reason",
        "driver",
        "user",
        "created",
        "last_progress",
    )
    counts = collections.Counter(record["state"] for record in minions(state).values())
    stands = "halted" if halted else "running" if counts["active"] or counts["pending"] else "complete"
    return {
        **{name: state.get(name) for name in same},
        "arguments": published_words(state.get("arg")) if is_seen else [HIDDEN],
        "total": len(state.get("all_minions") or ()),
        **{name: counts[name] for name in (*ENDED, "active", "pending")},
        "state": stands,
        "halted": halted,
        "success": None if stands == "running" else not (halted or counts["failed"]),
        "age_seconds": max(0.0, now - progress) if progress else None,
    }


def minions(state: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the minions of a batch of Salt's own in the form of ``summary.minions``."""
    found = {minion: minion_record("pending", state.get("created")) for minion in state.get("pending") or ()}
    found |= {name: minion_record("active", since, None, since) for name, since in (state.get("active") or {}).items()}
    for minion, data in (state.get("done") or {}).items():
        code = retcode_of(data) if isinstance(data, Mapping) else None
        found[minion] = minion_record("failed" if code else "completed", None, code)
    found |= {minion: minion_record("failed", None) for minion in state.get("failed") or {}}
    return {minion: found[minion] for minion in sorted(found)}
