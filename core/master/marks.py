"""
The mark of what an engine of ours publishes: a digest in the load, with the key of the log. Only the master's user can read
that key, so nobody else can make the mark.

The master's worker takes it out of the load again before it is stored. It must never be sent where a load is stored without
that.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.errors import StateError
from saltext.jobs.core.log import segments
from saltext.jobs.core.master.events import function_of

log = logging.getLogger(__name__)

#: Under which name the mark stands among the options of a load.
FIELD = "saltext_jobs"
#: In place of an engine: the load is only stored, and nothing is published.
ONLY_KEPT = "kept"


def mark_of(opts: Mapping[str, Any], jid: str, fun: Any, origin: str) -> dict[str, Any]:
    """Return what the options of a load get by which the log says that ``origin`` has published it; {} where none can."""
    if not origin or opts.get("master_job_cache") != "salt_cache" or opts.get("ext_job_cache"):
        return {}
    try:
        return {FIELD: {"origin": origin, "proof": _proof(_key(opts), jid, fun, origin)}}
    except (OSError, StateError) as exc:
        log.debug("Job %s is published without a mark: %s", jid, exc)
        return {}


def origin_of(opts: Mapping[str, Any], load: Mapping[str, Any], jid: str) -> str:
    """Return which engine of ours has published a load; empty for everybody else."""
    options = load.get("kwargs")
    found = options.get(FIELD) if isinstance(options, Mapping) else None
    if not isinstance(found, Mapping):
        return ""
    origin, proof = found.get("origin"), found.get("proof")
    if not isinstance(origin, str) or not isinstance(proof, str) or not proof.isascii():
        return ""
    try:
        return origin if hmac.compare_digest(proof, _proof(_key(opts), jid, load.get("fun"), origin)) else ""
    except (OSError, StateError):
        return ""


def _proof(key: bytes, jid: str, fun: Any, origin: str) -> str:
    text = "\0".join((jid, function_of({"fun": fun}), origin)).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, key=key, digest_size=16).hexdigest()


def _key(opts: Mapping[str, Any]) -> bytes:
    return segments.found(segments.folder_of(opts["cachedir"], opts.get("id"))).key
