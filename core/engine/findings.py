"""
What an operator may want to change around an engine, whichever it is: a sentence for each thing. It changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.engine import requests
from saltext.jobs.core.master.job_cache import JobCache

#: Seconds after which a request that an engine has not taken says that the engine does not work. It looks every ten.
LONGEST_WAIT = 30.0


def about_engine(opts: Mapping[str, Any], engine: str) -> list[str]:
    """Return what is to be said of an engine that does not run, or that runs and takes no requests."""
    wait = requests.longest_wait(opts, engine)
    if not requests.is_running(opts, engine):
        left = "; what it was asked for waits until it does" if wait else ""
        return [f"no {engine} engine runs: add it to `engines:`, and look for it in the master's log{left}"]
    if wait > LONGEST_WAIT:
        return [f"the {engine} engine runs, and has not taken a request for {wait:.0f} s: look in the master's log"]
    return []


def about_returns(opts: Mapping[str, Any], cache: JobCache) -> list[str]:
    """Return how somebody could have a return counted that its minion did not make."""
    if cache.unproven:
        return [f"a return or an answer that a minion forges on the bus counts as genuine: {cache.unproven}"]
    if opts.get("require_minion_sign_messages") and opts.get("drop_messages_signature_fail"):
        return []
    return [
        "an accepted minion can have returns of others stored, as a syndic does, unless "
        "require_minion_sign_messages and drop_messages_signature_fail are set, and every minion signs its messages "
        "(minion_sign_messages)"
    ]
