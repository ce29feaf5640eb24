"""The findings of the doctors that are the same for every engine. Nothing is changed here."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from saltext.jobs.core.disk.surroundings import READABLE, about_disk, about_files
from saltext.jobs.core.engine import masters, requests
from saltext.jobs.core.engine.feeder import why_unproven
from saltext.jobs.core.engine.names import JOB_RECORDER
from saltext.jobs.core.errors import EngineAbsent, JobCacheError, SettingsError, StateError
from saltext.jobs.core.findings import Finding, advice, examined, fault
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.options import entries_of, is_configured, kinds, require_seconds, section_of
from saltext.jobs.core.site import site_of

#: Seconds by which a master's clock may differ from the site's.
SKEW = 2.0
#: Findings that say why an engine does not run: the log says no more.
_CAUSES = frozenset({"cannot-start", "engine-off"})


def examine(opts: Mapping[str, Any], engine: str, own: Iterable[Finding], **more: Any) -> dict[str, Any]:
    """
    Return what the doctor of an engine returns: how the engine stands, with ``more``, and what was found. ``own``: the
    findings about the engine's own options and work; if that raises, it becomes a finding.
    """
    found = around(opts, engine)
    try:
        require_seconds(opts)
        site_of(opts).open()
        for finding in own:
            found.append(finding)
    except (SettingsError, StateError) as exc:
        found.append(fault("cannot-start", f"the engine does not start: {exc}"))
    except EngineAbsent as exc:
        found.append(fault("engine-silent", str(exc)))
    except OSError as exc:
        found.append(fault("unreadable", f"not all that the engine works on can be read: {exc}"))
    if _CAUSES.intersection(finding.code for finding in found):
        found = [finding for finding in found if finding.code != "engine-down"]
    lead = site_of(opts).lead(engine)
    is_well = lead is not None and not lead.hangs
    return examined({**requests.leading(opts, engine), "engine": is_well, **more}, found, engine)


def around(opts: Mapping[str, Any], engine: str) -> list[Finding]:
    """Return the findings about an engine's process, files, disk and masters, and about how the master is configured."""
    site = site_of(opts)
    path = site.folder(engine)
    kept = [] if path is None else [path, pathlib.Path(site.place)]
    return [
        *about_engine(opts, engine),
        *_about_folders(opts, kept),
        *(about_disk(path) if path is not None else ()),
        *_about_cluster(opts),
        *about_masters(opts, engine),
    ]


def about_name(opts: Mapping[str, Any], engine: str) -> list[Finding]:
    """Return a finding for each name under ``engines:`` that is nearly that of an engine."""
    return [
        fault("misspelt", f"`engines:` names {name!r}, which is no engine", f"correct it to {engine}")
        for name in entries_of(opts)
        if name != engine and kinds.slip_of(name, (engine,))
    ]


def about_engine(opts: Mapping[str, Any], engine: str) -> list[Finding]:
    """Return a finding if an engine does not run, hangs, or runs as another user, or differs."""
    site, user = site_of(opts), str(opts.get("user") or "root")
    lead = site.lead(engine)
    if lead is None:
        section = section_of(opts, engine)
        if misspelt := about_name(opts, engine):
            return misspelt
        if not is_configured(opts, engine) and section:
            told = f"the master's configuration has `{section}:`, but `engines:` does not name {engine}"
            return [fault("engine-unnamed", told, "add it there")]
        if not is_configured(opts, engine):
            told = f"no {engine} engine runs, and none is configured"
            return [advice("engine-unconfigured", told, "add it to `engines:` if it is wanted")]
        do = "restart the master if it is new in the configuration, or else see the master's log"
        return [fault("engine-down", f"no {engine} engine runs", do)]
    if lead.hangs:
        told = f"the {engine} engine has not answered for {lead.hangs:.0f} s: it hangs or is stopped"
        return [fault("engine-hangs", told, "see the master's log; if you end its process, the master starts it anew")]
    process = lead.process
    if process is not None and process.user != user:
        whose = f"the {engine} engine (process {process.pid}) runs as {process.user}, and the master as {user}"
        do = f"end that process, and make {user} the owner of {site.folder(engine) or site.place}"
        return [fault("engine-user", f"{whose}, who cannot read the engine's files", do)]
    return [fault("engine-differs", other)] if (other := requests.differs(opts, engine, process)) else []


def _about_folders(opts: Mapping[str, Any], kept: Sequence[pathlib.Path]) -> list[Finding]:
    """Return at most one finding about who may read what the master keeps to itself, or write above it."""
    user, cachedir = str(opts.get("user") or "root"), pathlib.Path(opts["cachedir"])
    found = [finding for path in kept if path.exists() for finding in about_files(user, path)]
    for path in sorted({path for folder in kept for path in folder.parents if path.is_relative_to(cachedir)}):
        found += about_files(user, path, 1, READABLE)
    return found[:1]


def _about_cluster(opts: Mapping[str, Any]) -> Iterator[Finding]:
    is_one = opts.get("cluster_isolated_filesystem") or opts.get("saltext_jobs_site")
    if opts.get("cluster_id") and not is_one:
        told = "no other master of this cluster can take over what this one has begun"
        do = "set `saltext_jobs_site: postgresql` on all of them, or cluster_isolated_filesystem if each is to keep its own"
        yield fault("cluster", told, do)


def about_masters(opts: Mapping[str, Any], engine: str) -> list[Finding]:
    """Return findings about differences between the masters of a site, about the site, and if none stands by."""
    site, here = site_of(opts), str(opts.get("id") or "")
    try:
        there = [master for master in masters.masters_of(site, engine) if master.is_known]
        found, ours = list(site.doubts()), masters.described(opts)
        leader = requests.process_of(opts, engine)
    except OSError as exc:
        return [fault("masters-unreadable", f"the state of the masters cannot be read: {exc}")]
    alike = {"version": "saltext-jobs", "salt": "Salt", "job_cache": "the job cache"}
    for master in there:
        name = master.name
        if abs(master.ahead) > SKEW:
            told = f"the clock of the master {name} differs from that of {site.place} by {abs(master.ahead):.0f} s"
            found.append(fault("clock", told, "set both by one time server"))
        where = "in its configuration" if name == here else f"on this one, {here}"
        found += [
            fault(
                "masters-differ",
                f"{what} is {getattr(master, field)} on the master {name}, and {ours[field]} {where}",
                "all masters of a site need the same; after a change restart the master",
            )
            for field, what in alike.items()
            if getattr(master, field) != ours[field] and (name != here or field == "job_cache")
        ]
        if name != here and master.keys != ours["keys"]:
            told = f"the masters {name} and {here} have not accepted the keys of the same minions"
            do = "accept them on both, or a batch fails on minions that the leading one does not know"
            found.append(fault("keys-differ", told, do))
    is_several = opts.get("saltext_jobs_site") and engine != JOB_RECORDER
    if leader and is_several and not any(master.name != leader.master for master in there):
        told = f"if {leader.master} dies, the engine's work stops until that master is back"
        do = "start the others: after the death of all masters of a cluster Salt 3008 publishes nothing until each is back"
        found.append(advice("no-standby", f"no master is known to stand by for {engine}: {told}", do))
    return found


def about_returns(opts: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding if returns cannot be read, if a forged one could be counted, or if the master stores none."""
    try:
        JobCache(opts).load("20000101000000000000")  # of no job
    except JobCacheError as exc:
        told = f"no batch is started and no owed job is delivered, since the job cache cannot be used: {exc}"
        yield fault("no-job-cache", told, "see job_cache.doctor")
    must_sign = opts.get("require_minion_sign_messages")
    if unproven := why_unproven(opts):
        told = f"a return or an answer that a minion forges on the bus counts as genuine: {unproven}"
        yield fault("returns-unproven", told)
    elif must_sign and not opts.get("signing_algorithm"):
        told = "this master stores no return: with require_minion_sign_messages it also needs signing_algorithm"
        do = "set it to that of the minions (PKCS1v15-SHA1 unless they set another): Salt has no default for it on masters"
        yield fault("returns-refused", told, do)
    elif not (must_sign and opts.get("drop_messages_signature_fail")):
        told = "a minion can store returns in another's name, unless all sign: docs/experts.md#forged-returns"
        yield advice("returns-unsigned", told)
