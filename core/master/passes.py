"""
Protects the jids of batches: only their engine may publish under one.

A user who may publish anything may name any jid, and a minion ignores it the second time: so a user could keep a batch's job
from running. So an engine names a *pass* in place of the jid: jid, engine, the epoch in which it leads, until when it is
valid, and a seal, which takes Salt's key for local clients. ``salt_cache.prep_jid`` redeems it in the master's worker,
before Salt sends anything. It refuses a batch's jid without a pass, and the pass of an engine that has lost the lead. Salt
may show a pass on the bus, so it is valid only for a short time.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import time
from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.ids import plain
from saltext.jobs.core.ledger.batches import Batches
from saltext.jobs.core.ledger.tables import Tables
from saltext.jobs.core.site import site_of

#: Seconds for which a pass is valid: a busy master takes a while to process it.
VALID = 300.0
_PASS = re.compile(r"(.+)~([a-z_]*)~([0-9]{1,18})~([0-9]{1,12})~([0-9a-f]{64})", re.DOTALL)


def pass_for(opts: Mapping[str, Any], jid: str, origin: str, epoch: int = 0, now: float | None = None) -> str:
    """
    Return the pass that an engine (``origin``) names in place of ``jid``; with a job cache but ours the jid itself.

    :param epoch: the epoch in which it leads; 0 if no other process could lead.
    :param now: by default that of the monotonic clock, which all processes of the machine share.
    :raises OSError: when Salt's key for local clients cannot be read.
    """
    if opts.get("master_job_cache") != "salt_cache":
        return jid
    until = f"{(time.monotonic() if now is None else now) + VALID:.0f}"
    return f"{jid}~{origin}~{epoch}~{until}~{_seal(opts, jid, origin, str(epoch), until)}"


def redeem(opts: Mapping[str, Any], named: Any, site: Tables | None = None) -> tuple[Any, str]:
    """
    Return (the jid to publish under, the engine).

    * For a valid pass: its jid and its engine. The jid is None if that engine has lost the lead.
    * For a pass that is invalid or cannot be checked, and for a batch's jid without a pass: None and an empty text.
    * For anything else: ``named`` as it is, and an empty text. The job cache takes numbers and bytes as jids, too.

    :raises OSError: when it cannot be told whether it is the jid of a batch.
    """
    text = named if isinstance(named, str) else plain(named)
    parts, site = _PASS.fullmatch(text or ""), site or site_of(opts)
    if parts is None:
        return None if plain(text) and Batches(site).kind_of(str(text)) is not None else named, ""
    jid, origin, epoch, until, seal = parts.groups()
    try:
        is_genuine = hmac.compare_digest(seal, _seal(opts, jid, origin, epoch, until))
        leader = site.leader(origin) if is_genuine and int(epoch) else None
    except OSError:
        return None, ""
    if not is_genuine or float(until) < time.monotonic():
        return None, ""
    leads = not int(epoch) or (leader is not None and leader.epoch == int(epoch))
    return (jid if leads else None), origin


def local_key(opts: Mapping[str, Any]) -> str:
    """Return Salt's key for local clients, which each start of the master makes anew. :raises OSError:"""
    with open(os.path.join(opts["cachedir"], f".{opts.get('user', 'root')}_key"), encoding="utf-8") as stream:
        return stream.read()


def _seal(opts: Mapping[str, Any], jid: str, origin: str, epoch: str, until: str) -> str:
    told = f"saltext.jobs {jid} {origin} {epoch} {until}"
    return hmac.new(local_key(opts).encode(), told.encode(), hashlib.sha256).hexdigest()
