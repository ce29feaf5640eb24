"""
Record the loads and returns that the job cache ``salt_cache`` has, into one or more returners; and send people notices, by a
signed webhook and by Salt's own returners: a batch was halted, has failed or waits for an approval; owed jobs were given up;
an engine hangs; or one of these is over.

.. code-block:: yaml

    engines:
      - job_recorder: {}

    job_recorder:
      returners:
        - pgjsonb
        - rawfile_json: {ret_config: audit}

    job_notices:
      url: https://ops.example.com/hooks/salt
      secret: sdb://vault/notices

Its options are under ``job_recorder:`` and ``job_notices:`` in the master's configuration; ``docs/job_recorder.md`` and
``docs/notices.md`` describe them. The ``job_recorder`` runner shows what it does.

This file only wires: policy is in ``core/recorder/pipeline.py`` and ``core/recorder/notices.py``, input and output in
``core/recorder/consumer.py`` and ``core/recorder/shell.py``.
"""

from __future__ import annotations

import functools
import socket
from collections.abc import Iterable, Mapping
from typing import Any

from saltext.jobs.core import lines
from saltext.jobs.core.batch import summary
from saltext.jobs.core.batch.catalog import Catalog
from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.disk.lease import SILENT, Lease
from saltext.jobs.core.engine import process as engine
from saltext.jobs.core.engine.names import BATCH_MANAGER, JOB_RECORDER, JOB_RETRY
from saltext.jobs.core.engine.requests import Service
from saltext.jobs.core.errors import Refused
from saltext.jobs.core.ledger.batches import Kind
from saltext.jobs.core.ledger.tables import Tables
from saltext.jobs.core.master.bus import Bus
from saltext.jobs.core.options import is_configured
from saltext.jobs.core.options.engines import RecorderSettings, ReturnerChoice
from saltext.jobs.core.recorder.consumer import Consumer, outbox_of
from saltext.jobs.core.recorder.notices import GivenUp, Reported, Seen, plain
from saltext.jobs.core.recorder.pipeline import Pipeline
from saltext.jobs.core.recorder.recipients import Send, ToPeople, ToReturner, Webhook
from saltext.jobs.core.recorder.returner import NOTICES, ReturnerModule, notices_of, settings_of
from saltext.jobs.core.recorder.shell import Look, RecorderShell, Watch, known_of
from saltext.jobs.core.retry.entry import State
from saltext.jobs.core.retry.store import RetryStore, owed_of
from saltext.jobs.core.site import site_of

log = lines.logger(__name__)

__virtualname__ = JOB_RECORDER

# Salt's loader brings these.
__opts__: Mapping[str, Any]

#: Seconds for which a returner may wait for its server, unless it sets a time-out itself. The one for mail sets none,
#: and would wait for ever.
_PATIENCE = 30.0
#: Most seconds before a notice that did not arrive is sent again.
_LONGEST = 300.0
#: Seconds between two looks at batches, at those that have ended without success, at the retry queue and at the engines.
_BATCHES, _ENDED, _QUEUE, _ENGINES = 2.0, 15.0, 15.0, 5.0
#: Kinds of notices after which nothing is wrong.
_GOOD = ("recovered", "test")


def __virtual__() -> str:
    return __virtualname__


def start(**options: Any) -> None:
    """
    Run until the master stops. Called by Salt.

    :param options: engine options; those under ``job_recorder:`` in the master's configuration are read first.
    """
    engine.run(__opts__, JOB_RECORDER, lambda: settings_of(__opts__, __opts__.get(JOB_RECORDER), options), _wired)


def _wired(settings: RecorderSettings, loop: Any, lease: Lease) -> RecorderShell:
    opts, tables, notices = __opts__, site_of(__opts__), notices_of(__opts__)
    consumers, targets = list[Consumer](), list[Consumer]()
    for choice, module in _modules(settings.returners):
        returner, outbox = ToReturner(module, opts, settings), outbox_of(tables, choice.label, lease)
        consumers.append(Consumer(loop, choice.label, returner, outbox))
    sends: list[Send] = [_to_returner(opts["id"], module) for _, module in _modules(notices.returners)]
    if notices.url:
        sends.insert(0, Webhook(notices.url, notices.secret, notices.ca_file))
    for name, send in zip(notices.targets, sends, strict=True):
        outbox = outbox_of(tables, name, lease)
        targets.append(Consumer(loop, name, ToPeople(name, send), outbox, Pipeline(longest=_LONGEST)))
    watch = None
    if targets:
        socket.setdefaulttimeout(_PATIENCE)
        reported = Reported(opts["id"], notices.kinds, notices.console, known_of(tables))
        watch = Watch(_looks(opts, tables, reported), reported, targets, tables)
    bus = Bus(opts, loop, JOB_RECORDER)
    service = Service(opts, JOB_RECORDER, loop, lease)
    return RecorderShell(loop, bus, service, [*consumers, *targets], watch)


def _modules(choices: Iterable[ReturnerChoice]) -> list[tuple[ReturnerChoice, ReturnerModule]]:
    found = [(choice, ReturnerModule(__opts__, choice.returner, choice.ret_config)) for choice in choices]
    for choice, module in found:
        if why := module.why_absent():
            log.error("%s gets nothing: %s", choice.label, why)
    return found


def _to_returner(master: str, returner: ReturnerModule) -> Send:
    def send(notice: Mapping[str, Any]) -> None:
        good = notice["kind"] in _GOOD
        returner.store_return(
            {
                "id": master,
                "jid": notice.get("jid", ""),
                "fun": f"{NOTICES}.{notice['kind']}",
                "fun_args": [],
                "return": plain(notice["text"]),
                "success": good,
                "retcode": 0 if good else 1,
            }
        )

    return send


def _looks(opts: Mapping[str, Any], tables: Tables, reported: Reported) -> dict[str, tuple[Look, float]]:
    store, queue = BatchStore(opts), RetryStore(tables) if is_configured(opts, JOB_RETRY) else None

    def batches(now: float, ended: bool = False) -> None:
        jids, catalog = store.jids(Kind.OPEN, Kind.ENDED), Catalog(opts, owed=functools.partial(owed_of, opts))
        seen = {jid: found for jid in reported.to_read(jids, ended) if (found := _look(catalog, jid))}
        reported.take_batches(seen, jids, now)

    def owed(now: float) -> None:
        reported.take_given_up({} if queue is None else _given_up(queue), now)

    absent = dict[str, float]()  # since when no process is an engine that is configured

    def others(now: float) -> None:
        for name in (BATCH_MANAGER, JOB_RETRY):
            lead, is_on = tables.lead(name), is_configured(opts, name) and (name != JOB_RETRY or opts.get(JOB_RETRY))
            if lead is not None or not is_on:
                absent.pop(name, None)
                reported.take_engine(name, lead.hangs if lead else 0.0, now)
            elif now - absent.setdefault(name, now) > SILENT:  # else it may be about to start
                reported.take_engine(name, now - absent[name], now)

    return {
        "batches": (batches, _BATCHES),
        "ended batches": (functools.partial(batches, ended=True), _ENDED),
        "owed jobs": (owed, _QUEUE),
        "engines": (others, _ENGINES),
    }


def _look(catalog: Catalog, jid: str) -> Seen | None:
    try:
        found = catalog.find(jid)
    except Refused:  # it cannot be read: the batch_manager engine says so in the log, and sets it aside
        return None
    return Seen({**found.summary, "halted_reason": summary.why_halted(found.summary)}, found.minions())


def _given_up(queue: RetryStore) -> dict[str, GivenUp]:
    """Return the jobs of the retry queue that were given up for some minions. :raises OSError: when it cannot be read."""
    dead, names = dict[str, dict[str, str]](), dict[str, str]()
    for entry, job in queue.entries():
        if entry.state is State.DEAD:
            names[entry.jid] = ",".join(job.funs)
            dead.setdefault(entry.jid, {})[entry.minion] = entry.reason
    return {jid: GivenUp(jid, names[jid], minions) for jid, minions in dead.items()}
