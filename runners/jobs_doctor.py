"""
See in one place what does not work in this extension, before anything else.

.. code-block:: bash

    salt-run jobs_doctor.run
"""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

# Every salt-run imports this file. What a call needs beyond these, it imports itself.
from saltext.jobs.core import runner
from saltext.jobs.core.engine.names import BATCH_MANAGER, ENGINES, JOB_RETRY
from saltext.jobs.core.findings import Finding, advice, examined, fault
from saltext.jobs.core.options import kinds

__virtualname__ = "jobs_doctor"

# Salt's loader brings these.
__opts__: Mapping[str, Any]
__salt__: Mapping[str, Callable[[], dict[str, Any]]]

_JOB_CACHE = "job_cache"
#: The runner whose ``doctor`` examines a part.
_DOCTORS = {BATCH_MANAGER: "batch", **{part: part for part in (_JOB_CACHE, *ENGINES[1:])}}
#: Our own names in the master's configuration, and what else of ours may be misspelt there.
_SECTIONS = (*ENGINES, "job_notices", "saltext_jobs_site", "salt_cache", "sqlite_cache_path", "postgresql")
_VALUES = {"cache": ("sqlite", "postgresql"), "master_job_cache": ("salt_cache",), "saltext_jobs_site": ("postgresql",)}


def __virtual__() -> str:
    return __virtualname__


@runner.verb
def run() -> dict[str, Any]:
    """
    Return what does not work, of all that is configured or has open work; below that, advice.

    It asks the doctors of ``batch``, ``job_retry``, ``job_cache`` and ``job_recorder``, and looks for names of this
    extension that are misspelt in the master's configuration. The exit status of ``salt-run`` is 1 if something that is
    configured, or has open work, does not work.

    :return: a dict with parts (``{part: how it stands}``), findings (each a dict with code, severity, text, do and part;
        faults first, then advice), faults (how many of the findings are faults) and retcode (the exit status).

    CLI Example:

    .. code-block:: bash

        salt-run jobs_doctor.run
    """
    from saltext.jobs.core.options import section_of

    _require_no_peer()
    parts, found = dict[str, str](), [*_misspelt(__opts__), *_left_behind(__opts__), *_advised(__opts__)]
    for part in (_JOB_CACHE, *ENGINES):
        configured, work = _is_configured(part), _open_work(part)
        if not configured and not work and not (part in ENGINES and section_of(__opts__, part)):
            parts[part] = "not configured"
            continue
        standing = _examined(part)
        well = standing.get("engine", standing.get("usable", False))
        parts[part] = "works" if well and not standing["faults"] else "runs" if well else "does not work"
        if work and not well and not configured:
            told = f"{work}, and no {part} engine is configured"
            found.append(
                fault("work-without-engine", told, "add it to `engines:` and restart the master")._replace(part=part)
            )
        # That an engine is not configured has been said: here it has open work.
        found += (Finding(**item) for item in standing["findings"] if item["code"] != "engine-unconfigured")
    first = dict[tuple[str, str], Finding]()  # the same may be said of several parts
    for one in found:
        first.setdefault((one.code, str(one)), one)
    return examined({"parts": parts}, first.values())


def _is_configured(part: str) -> bool:
    from saltext.jobs.core.options import is_configured

    return is_configured(__opts__, part) if part in ENGINES else __opts__.get("master_job_cache") == "salt_cache"


def _examined(part: str) -> dict[str, Any]:
    """Return what the doctor of a part says. A doctor that fails is a fault of its part: nothing is known to be well."""
    try:
        return {**__salt__[f"{_DOCTORS[part]}.doctor"]()}
    except Exception as exc:
        return examined({}, [fault("doctor", f"it cannot be examined: {exc}")], part)


def _open_work(part: str) -> str:
    """Return in words what an engine has to do; empty for nothing, and for a part whose work is not kept by us."""
    try:
        return _work_in(__opts__, part)
    except Exception as exc:  # then it is not known that there is none
        return f"what is left to do is not known ({exc})"


def _work_in(opts: Mapping[str, Any], part: str) -> str:
    from saltext.jobs.core.batch.store import BatchStore
    from saltext.jobs.core.ledger.batches import Kind
    from saltext.jobs.core.retry.entry import State
    from saltext.jobs.core.retry.store import RetryStore
    from saltext.jobs.core.site import site_of

    if part == BATCH_MANAGER:
        batches = len(BatchStore(opts).jids(Kind.OPEN))
        return f"batches that have not ended: {batches}" if batches else ""
    if part == JOB_RETRY:
        waits = (State.PENDING, State.CLAIMED, State.SENT, State.RUNNING)
        owed = sum(entry.state in waits for entry, _ in RetryStore(site_of(opts)).entries())
        return f"jobs that are owed to minions: {owed}" if owed else ""
    return ""


def _left_behind(opts: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding for work that is left in the file that was used before `cache:` became sqlite, or was sqlite."""
    from saltext.jobs.core.engine import requests
    from saltext.jobs.core.site import left_by, site_of

    with contextlib.suppress(Exception):  # a file that cannot be read has nothing that could go on
        if (other := left_by(opts)) is None:
            return
        place = site_of(other).place
        if any(process and process.place == place for process in (requests.process_of(opts, name) for name in ENGINES)):
            return  # they go on there until the master is restarted
        do = "set `cache:` back until these have ended; if nobody needs them, move the file and its -wal and -shm away"
        if batches := _work_in(other, BATCH_MANAGER):
            yield fault("batches-left-behind", f"{batches} in {place}, which is not used any more", do)
        if owed := _work_in(other, JOB_RETRY):
            yield fault("jobs-left-behind", f"{owed} in {place}, which is not used any more", do)


def _advised(opts: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield advice about the configuration: for a master that has not read it, and for users who may not read the file."""
    from saltext.jobs.core.engine import requests

    if opts.get("cache") == "sqlite" and opts.get("publisher_acl") and _is_configured(_JOB_CACHE):
        told = "users of `publisher_acl` may not read the file of `cache: sqlite`: `salt` prints a warning for each of them"
        yield advice("users-without-file", told, "use another `cache`, or have them call salt-api")
    with contextlib.suppress(OSError, KeyError, TypeError):  # no master runs here
        started = os.stat(opts["pidfile"]).st_mtime
        files = [
            opts["conf_file"],
            *glob.glob(os.path.join(os.path.dirname(opts["conf_file"]), opts["default_include"])),
        ]
        newer = sorted(name for name in files if os.stat(name).st_mtime > started)
        if newer and any(requests.is_running(opts, engine) for engine in ENGINES):
            told = f"{newer[0]} was changed after the master had started, and the master goes by what was there before"
            yield advice("configuration-changed", told, "restart the master")


def _misspelt(opts: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding for each name in the master's configuration that is nearly one of ours."""
    import salt.config

    from saltext.jobs.core.engine.findings import about_name

    def like(name: Any, known: Iterable[str]) -> str | None:
        return None if name in known else kinds.slip_of(str(name), known)

    for engine in ENGINES:
        yield from about_name(opts, engine)
    for name in sorted(map(str, opts.keys() - salt.config.DEFAULT_MASTER_OPTS.keys())):
        if not name.startswith("postgresql.") and (meant := like(name, _SECTIONS)):  # its options may stand alone
            told = f"the master's configuration has {name!r}, which is no option"
            yield fault("misspelt", told, f"correct it to {meant}")
    for name, known in _VALUES.items():
        if meant := like(opts.get(name), known):
            yield fault("misspelt", f"{name} is {opts[name]!r}", f"correct it to {meant}")


def _require_no_peer() -> None:
    from saltext.jobs.core.master import caller

    caller.require_no_peer(caller.caller(__opts__, globals().get("__user__")))
