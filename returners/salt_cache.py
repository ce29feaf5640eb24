"""
Master job cache over :py:class:`salt.cache.Cache`.

Set ``master_job_cache: salt_cache`` and every job goes to the storage that ``cache:`` names: localfs (the
default), sqlite, redis, mysql, etcd, consul, or mmap_cache on Salt 3008. The layout is that of Salt 3008's own
``salt_cache``; ``core/store/records.py`` describes it.

Salt calls these short functions; ``core/store`` does the work. Salt loads this file in many processes, also in those
that never use it: loading it must never touch the storage.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import salt.utils.jid
import salt.utils.job
from salt.exceptions import SaltCacheError

from saltext.jobs.core import compat, lines, users
from saltext.jobs.core.banks import ENDTIMES, LOADS

# The options of the calling loader. All loaders of a process share the globals that they write into this module.
from saltext.jobs.core.compat import loader_opts as __opts__
from saltext.jobs.core.ids import plain
from saltext.jobs.core.ledger.records import publish_of, return_of
from saltext.jobs.core.master import identity, passes
from saltext.jobs.core.master.job_cache import BATCH_MARK, OwnLoad
from saltext.jobs.core.master.secrets import without_secrets
from saltext.jobs.core.store import records, retention
from saltext.jobs.core.store.drivers import Outage
from saltext.jobs.core.store.store import store_of

if TYPE_CHECKING:
    from saltext.jobs.core.master.access import Access
    from saltext.jobs.core.store.store import Store

log = lines.logger(__name__)

__virtualname__ = "salt_cache"

JID_TRIES = 5  # new tries after a collision
_ACCESS: dict[str, tuple[Mapping[str, Any], Access]] = {}  # this process's checks, and their options


def __virtual__() -> str:
    return __virtualname__


# ---------------------------------------------------------------------------------------------------------
# What the master writes
# ---------------------------------------------------------------------------------------------------------


def prep_jid(nocache: bool = False, passed_jid: Any = None) -> str | dict[str, str] | None:
    """
    Return the jid for a new job: ``passed_jid`` unchanged, or a new jid that no stored job and no other publish of this
    master has.

    nocache
        Store no returns of this job.
    passed_jid
        A jid, or the pass of an engine for one (``core/master/passes.py``).

    Returns None if ``passed_jid`` is refused: it is not a jid, belongs to a batch, or comes from an engine that has lost
    the lead. Salt then publishes nothing, and answers "Master failed to assign jid". If a publish could not be recorded,
    since the disk takes nothing or the site's database is away, returns ``{"error": …}``: Salt publishes nothing, and its
    client raises the text. Salt also calls this with the jid of each return, and ignores the answer.
    Raises SaltCacheError if five new jids in a row were taken, or if the driver fails.
    """
    store, origin = store_of(__opts__), ""
    if (why := store.why_closed()) and identity.in_publish():
        folder = store.driver.folder
        store.quiet.critical("full", "Nothing is published: the disk of %s is %s", folder, why)
        why_not = f"the disk of {folder} is {why}, and a job that is not recorded is forgotten"
        return {"error": f"Nothing was published: {why_not}"}
    if passed_jid:
        named, origin = _redeemed(store, passed_jid)
        key = None if named is None else store.key(named, "jid")
        jid = None if key is None else plain(named)
        store.publishes_for(jid, origin)  # in this thread Salt calls `save_load` next
    else:
        try:
            jid = key = _new_jid(store)
        except Outage as exc:
            return {"error": f"Nothing was published, because it could not be recorded: {exc}"}
        store.publishes_for(jid, "", fresh=True)
    if nocache and key is not None and not origin:
        with contextlib.suppress(Outage):  # the log has it, too
            records.store_no_returns(store, key)
    return jid


def _redeemed(store: Store, passed: Any) -> tuple[Any, str]:
    try:
        named, origin = passes.redeem(__opts__, passed, store.site)
    except OSError as exc:
        refusing = "Refusing the jid %.100s, because batches cannot be looked up now: %s"
        if identity.in_publish():
            store.quiet.error("batches", refusing, passed, exc)
        else:  # it is that of a return, and the answer is ignored
            log.debug(refusing, passed, exc)
        return None, ""
    if named is None:
        _tell_of_refusal(store, passed, origin)
    return named, origin


def _tell_of_refusal(store: Store, passed: Any, origin: str) -> None:
    if origin:
        store.quiet.error(
            ("refused", origin),
            "Refused a publish of the %s engine, since another one has taken over; nothing was sent",
            origin,
        )
        return
    who = identity.of_publish()  # None if the jid is that of a return
    if who is not None:
        store.quiet.warning(
            ("refused", who.name),
            "Refused to let %s publish under the jid %.100s, which belongs to a batch; nothing was sent",
            who.name,
            passed,
        )


def _new_jid(store: Store) -> str:
    for _ in range(1 + JID_TRIES):
        jid = str(salt.utils.jid.gen_jid(compat.plain_opts(__opts__)))
        try:
            is_free = not store.contains(LOADS, jid)
        except Outage:
            if store.site.is_far and identity.in_publish():
                raise  # the log is there, too: the job would be forgotten
            is_free = True  # two masters hardly ever make the same one
        if is_free and store.takes(jid):
            return jid
    raise SaltCacheError(
        f"No free jid after {JID_TRIES} new tries (driver {store.driver.name}, bank={LOADS!r} key={jid!r})"
    )


def returner(load: dict[str, Any]) -> bool | None:
    """
    Store the return of one minion. The first one is kept.

    load
        ``jid``, ``id`` and any of ``return``, ``retcode``, ``success`` and ``out``. In ``load`` the jid ``req`` is replaced
        by a new one.

    Returns None; False if the minion has returned already, or has run something else under the jid, or if an id is
    refused. A return from a peer's event is left to that peer if both are of one site.
    """
    if __opts__.get("cluster_id") and __opts__.get("saltext_jobs_site") and identity.told_by_peer():
        return None
    if load["jid"] == "req":
        load["jid"] = prep_jid(nocache=load.get("nocache", False))
    store = store_of(__opts__)
    jid = store.key(load["jid"], "jid")
    minion = store.key(load.get("id"), "minion id")
    if jid is None or minion is None:
        return False
    if not _is_of_a_command(load):
        return _take_return(store, jid, minion, load)
    try:
        store.contains(LOADS, jid)  # the log of a database that is away would say so, too
        return _take_return(store, jid, minion, load)
    except Outage as exc:
        log.error("What %s has returned on this master is not in the job cache: %s", load.get("fun"), exc)
        return None


def _take_return(store: Store, jid: str, minion: str, load: Mapping[str, Any]) -> bool | None:
    job = records.work(store, jid)
    if not (job.stored or job.asked):
        return None
    if not records.is_done(store, jid, job, load):
        return False
    record = return_of(store.decode(jid), store.decode(minion), load, job.asked, job.stored)
    if store.log is not None and not job.stored:
        store.log.append(record)
        return None
    return None if store.together(lambda: records.add_return(store, jid, minion, load), record) else False


def save_load(jid: Any, clear_load: Any, minions: Iterable[Any] | None = None) -> None:
    """
    Store the load of a job, without its secrets.

    minions
        The matched minions, if the caller is this master's publish. The first such load is kept as it is; later calls
        with ``minions`` only add theirs. A call without ``minions`` comes from a return, a syndic, salt-ssh or a runner:
        its load is kept only if the jid has none yet.
    """
    store = store_of(__opts__)
    key = store.key(jid, "jid")
    if key is None:
        return
    if not isinstance(clear_load, dict):
        store.quiet.warning(
            key, "Refusing the load of jid %s: it is a %s, not a dictionary", jid, type(clear_load).__name__
        )
    elif minions is not None:
        _publish(store, key, clear_load, minions)
    else:
        with contextlib.suppress(Outage) if _is_of_a_command(clear_load) else contextlib.nullcontext():
            if not records.is_published(store, key):
                # Its target is never matched: any minion may have sent it, and names the whole fleet at no cost.
                kept, listed = without_secrets(clear_load), clear_load.get("Minions")
                named = listed if isinstance(listed, (list, tuple)) else ()
                store.together(lambda: records.report(store, key, kept, named))


def _is_of_a_command(load: Mapping[str, Any]) -> bool:
    """
    Tell whether a load is that of a runner. Salt stores it before it prints the result, and what we raise is a traceback on
    the terminal; so ``returner`` says in one line what is not stored.
    """
    return bool(load.get("id") == load.get("tgt") == __opts__.get("id"))


def _publish(store: Store, key: str, clear_load: dict[str, Any], minions: Iterable[Any]) -> None:
    """Write what this master publishes to its log and to the job cache."""
    load, who = _as_published(clear_load)
    named = store.plain_minions(key, minions)
    jid = store.decode(key)
    origin, is_fresh = store.published_for(jid)
    is_own = isinstance(clear_load, OwnLoad)
    record = publish_of(jid, load, named, origin, not is_own, is_own or is_fresh, _is_limited(load, who))
    if store.log is not None and not record.listed:
        store.log.append(record)  # a question of an engine
        return
    try:
        store.together(
            lambda: records.publish(store, key, load, named, record.limited, record.fresh), record, durable=True
        )
    except SaltCacheError as exc:
        if not identity.in_publish():
            raise
        store.quiet.error("away", "Job %s is published, and not in the job cache: %s", key, exc)  # Salt publishes it
        return
    if isinstance(load.get("fun"), (list, tuple)):
        _look_at_several(store, load, named)


def _look_at_several(store: Store, load: Mapping[str, Any], minions: list[str]) -> None:
    """Log a publish that Salt has permitted for one of its functions, although its user may not publish the others."""
    from saltext.jobs.core.master.access import Access  # here, as it takes 0.1 s

    opts = compat.plain_opts(__opts__)
    known = _ACCESS.get("access")
    if known is None or known[0] is not opts:
        known = _ACCESS["access"] = opts, Access(opts)
    try:
        denied = known[1].of_publisher(load, [str(minion) for minion in minions]).denied
    except Exception as exc:  # an eauth module raises anything that its client library raises
        store.quiet.warning(
            "several", "Cannot check whether each function of job %s is permitted: %s", load.get("jid"), exc
        )
        return
    if denied:
        minion, why = next(iter(denied.items()))
        store.quiet.error(
            ("several", load.get("user")),
            "Salt has published functions that the user may not publish, because it checks only one of several: job %s, "
            "to %d minions such as %s: %s",
            load.get("jid"),
            len(denied),
            minion,
            why.removesuffix(" any more"),
        )


def _as_published(load: dict[str, Any]) -> tuple[dict[str, Any], users.Identity | None]:
    """
    Return a load without its secrets and with its publisher's identity, as Salt has authenticated it; and that identity.

    The load's own claims about its publisher, and about belonging to a batch, are dropped, unless one of our engines made
    the load.
    """
    kept = without_secrets(load)
    if isinstance(load, OwnLoad):
        return kept, None
    who = identity.of_publish()
    kept.pop(users.WHO, None)
    kept.pop(BATCH_MARK, None)
    return (kept, None) if who is None else ({**kept, users.WHO: who.as_record()}, who)


def _is_limited(load: Mapping[str, Any], who: users.Identity | None) -> bool:
    """Tell whether a user may not publish everything. One of external_auth may not, whatever the user's name is."""
    if (who and who.kind in (users.TOKEN, users.PASSWORD)) or (load.get("kwargs") or {}).get("eauth"):
        return True
    user = str(load.get("user") or "")  # who has used the key of the master's user
    if user.startswith("sudo_"):
        return bool(__opts__.get("sudo_acl"))
    return user not in ("", "root", __opts__.get("user"))


def save_minions(jid: Any, minions: Iterable[Any] | None, syndic_id: Any = None) -> None:
    """Add ``minions`` to those of the job. ``syndic_id`` is the syndic that reports them."""
    store = store_of(__opts__)
    key = store.key(jid, "jid")
    if key is not None and (syndic_id is None or store.key(syndic_id, "syndic id") is not None):
        store.together(lambda: records.report_minions(store, key, minions))


def update_endtime(jid: Any, the_time: Any) -> None:
    """Store when the job ended."""
    store = store_of(__opts__)
    key = store.key(jid, "jid")
    if key is not None:
        store.store(ENDTIMES, key, the_time)


# ---------------------------------------------------------------------------------------------------------
# What operators read
# ---------------------------------------------------------------------------------------------------------


def get_load(jid: Any) -> dict[str, Any]:
    """The load of the job, with its minions as ``Minions``; ``{}`` if there is none."""
    store = store_of(__opts__)
    key = store.key(jid, "jid")
    return {} if key is None else records.load_of(store, key)


def get_jid(jid: Any) -> dict[str, dict[str, Any]]:
    """``{minion: {"return": …, "retcode": …, "success": …, "out": …}}`` of the job; absent fields are left out."""
    store = store_of(__opts__)
    key = store.key(jid, "jid")
    return {} if key is None else records.returns_of(store, key)


def get_jids() -> dict[str, dict[str, Any]]:
    """``{jid: description}`` of every job, as ``jobs.list_jobs`` shows it."""
    from saltext.jobs.core.store.search import all_jobs  # here, as most processes list no jobs

    return all_jobs(store_of(__opts__), with_end=bool(__opts__.get("job_cache_store_endtime")))


def get_jids_filter(count: Any, filter_find_job: bool = True) -> list[dict[str, Any]]:
    """
    Descriptions of the newest ``count`` jobs, oldest of them first.

    filter_find_job
        Leave ``saltutil.find_job`` out.
    """
    from saltext.jobs.core.store.search import newest_jobs

    return newest_jobs(store_of(__opts__), int(count), without_find_job=filter_find_job)


def get_endtime(jid: Any) -> Any:
    """When the job ended; None if that was not stored."""
    store = store_of(__opts__)
    key = store.key(jid, "jid")
    return (store.fetch(ENDTIMES, key) or None) if key is not None else None


def clean_old_jobs() -> None:
    """
    Remove the jobs older than ``keep_jobs_seconds`` (0 keeps all), and leftovers of jobs without a load.

    An error would end Salt's maintenance process, so a failing driver is only logged; the next sweep goes on.
    """
    keep = salt.utils.job.get_keep_jobs_seconds(compat.plain_opts(__opts__))
    try:
        store = store_of(__opts__)
        if keep:
            retention.sweep(store, keep, time.time())
        retention.trim(store, time.time())
    except SaltCacheError as exc:
        log.error("The job cache could not be cleaned: %s", exc)
