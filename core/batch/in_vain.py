"""
The answer to a request that would change nothing, since the batch has ended or is in that state already.

Pure: stdlib only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.batch.summary import word


def why(verb: str, found: Mapping[str, Any]) -> str:
    """
    Return why a request is not carried out.

    :param verb: stop, pause, resume or approve.
    :param found: the batch's summary.
    """
    batch, state = f"Batch {found['jid']}", found["state"]
    if state in ("complete", "halted"):
        return f"{batch} has ended ({word(found)}): there is nothing to {verb}"
    if state == "stopping":
        runs = f", and still runs on {found['active']} minions" if found.get("active") else ""
        more = "; with kill=True its job is ended there" if verb == "stop" and runs else ""
        return f"{batch} is stopped already{runs}{more}"
    if verb == "approve":
        waits = found.get("approve")
        return f"{batch} is {word(found)} and waits for " + (
            "no approval" if waits is None else f"the approval of stage={waits}, not of another one"
        )
    reason = f": {found['paused_reason']}" if found.get("paused_reason") else ""
    if verb == "pause":
        return f"{batch} is paused already{reason}"
    if verb == "resume":
        steps = f"; salt-run batch.approve {found['jid']} lets it go on" if found.get("approve") is not None else ""
        return f"{batch} is not paused by anybody: it is {word(found)}{reason}{steps}"
    return f"{batch} cannot be stopped: Salt's own manager could not be told"
