"""
Send people notices, by a signed webhook and by Salt's own returners: a batch was halted, has failed or waits for an
approval; owed jobs were given up; an engine hangs; or one of these is over.

.. code-block:: yaml

    engines:
      - job_notices: {}

    job_notices:
      url: https://ops.example.com/hooks/salt
      secret: sdb://vault/notices

Its options are under ``job_notices:`` in the master's configuration; ``docs/notices.md`` describes them. The ``job_notices``
runner shows whether notices arrive.

This file only wires: ``core/notices/ledger.py`` decides what to report, input and output are in ``core/notices/shell.py``.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from typing import Any

from saltext.jobs.core import lines
from saltext.jobs.core.batch import summary, words
from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.engine import process as engine
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import BATCH_MANAGER, JOB_NOTICES, JOB_RECORDER, JOB_RETRY
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.ledger.batches import Kind
from saltext.jobs.core.master.bus import Bus
from saltext.jobs.core.notices.ledger import Ledger
from saltext.jobs.core.notices.notice import GivenUp, Seen, plain
from saltext.jobs.core.notices.shell import NoticesShell, Ports, Send, Target
from saltext.jobs.core.notices.store import NoticesStore
from saltext.jobs.core.notices.usable import check
from saltext.jobs.core.notices.webhook import Webhook
from saltext.jobs.core.options import is_configured, read_settings
from saltext.jobs.core.options.engines import NoticesSettings
from saltext.jobs.core.recorder.returner import ReturnerAbsent, ReturnerModule
from saltext.jobs.core.retry.entry import State
from saltext.jobs.core.retry.store import RetryStore
from saltext.jobs.core.site import site_of

log = lines.logger(__name__)

__virtualname__ = JOB_NOTICES

# Salt's loader brings these.
__opts__: Mapping[str, Any]

#: Seconds for which a returner may wait for its server, unless it sets a time-out itself. The one for mail sets none,
#: and would wait for ever.
_PATIENCE = 30.0
#: Kinds after which nothing is wrong.
_GOOD = ("recovered", "test")


def __virtual__() -> str:
    return __virtualname__


def start(**options: Any) -> None:
    """
    Run until the master stops. Called by Salt.

    :param options: engine options; those under ``job_notices:`` in the master's configuration are read first.
    """
    engine.run(__opts__, JOB_NOTICES, lambda: _settings(options), _wired)


def _settings(options: Mapping[str, Any]) -> NoticesSettings:
    settings = read_settings(NoticesSettings, JOB_NOTICES, __opts__.get(JOB_NOTICES), options)
    check(settings)
    return settings


def _wired(settings: NoticesSettings, loop: Any, lease: Lease) -> NoticesShell:
    opts = dict(__opts__)
    socket.setdefaulttimeout(_PATIENCE)
    tables, store = site_of(opts).tables, BatchStore(opts)
    notices = NoticesStore(tables, lease)
    record, waiting = notices.read()
    delivered = (record or {}).get("delivered", {})
    targets = {
        name: Target(send, Worker(loop), waiting.get(name, []), delivered.get(name))
        for name, send in _senders(opts, settings).items()
    }
    queue = RetryStore(tables) if is_configured(opts, JOB_RETRY) else None
    ledger = Ledger(opts["id"], settings.kinds, settings.console, record)
    ports = Ports(
        loop=loop,
        wall=time.time,
        steady=time.monotonic,
        bus=Bus(opts, loop, JOB_NOTICES),
        inbox=requests.Inbox(opts, JOB_NOTICES, lease),
        disk=Worker(loop),
        store=notices,
        jids=lambda: store.jids(Kind.OPEN, Kind.ENDED),
        look=lambda jid: _look(store, jid),
        given_up=lambda: {} if queue is None else _given_up(queue),
        silent=lambda: {name: requests.silent_for(opts, name) for name in (BATCH_MANAGER, JOB_RETRY, JOB_RECORDER)},
        targets=targets,
    )
    return NoticesShell(ports, ledger, settings.keep)


def _senders(opts: Mapping[str, Any], settings: NoticesSettings) -> dict[str, Send]:
    webhook = Webhook(settings.url, settings.secret, settings.ca_file)
    senders: dict[str, Send] = {"webhook": webhook} if settings.url else {}
    for choice in settings.returners:
        returner = ReturnerModule(opts, choice.returner, choice.ret_config)
        try:
            returner.has("returner")
        except ReturnerAbsent as exc:
            log.error("No notice reaches %s: %s", choice.label, exc)
        senders[choice.label] = _to_returner(opts["id"], returner)
    return senders


def _to_returner(master: str, returner: ReturnerModule) -> Send:
    def send(notice: Mapping[str, Any]) -> None:
        good = notice["kind"] in _GOOD
        returner.store_return(
            {
                "id": master,
                "jid": notice.get("jid", ""),
                "fun": f"{JOB_NOTICES}.{notice['kind']}",
                "fun_args": [],
                "return": plain(notice["text"]),
                "success": good,
                "retcode": 0 if good else 1,
            }
        )

    return send


def _look(store: BatchStore, jid: str) -> Seen | None:
    try:
        batch = store.read(jid)
    except StateError:  # the batch_manager engine says so in the log, and sets it aside
        return None
    if batch is None:
        return None
    found = summary.summary(batch, time.time())
    return Seen({**found, "halted_reason": words.why_halted(found)}, summary.minions(batch))


def _given_up(queue: RetryStore) -> dict[str, GivenUp]:
    """Return the jobs of the retry queue that were given up for some minions. :raises OSError: when it cannot be read."""
    dead, names = dict[str, dict[str, str]](), dict[str, str]()
    for entry, snapshot in queue.entries():
        if entry.state is State.DEAD:
            fun = snapshot["load"].get("fun")
            names[entry.jid] = ",".join(map(str, fun)) if isinstance(fun, (list, tuple)) else str(fun)
            dead.setdefault(entry.jid, {})[entry.minion] = entry.reason
    return {jid: GivenUp(jid, names[jid], minions) for jid, minions in dead.items()}
