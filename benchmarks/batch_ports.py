"""
Shared by benchmarks of the batch engine: a batch, and the ports of an engine. All ports are real except the bus, the
publisher and the service, which the caller passes.
"""

from __future__ import annotations

from saltext.jobs.core.batch.live import Ports
from saltext.jobs.core.batch.minion_data import may_have_started
from saltext.jobs.core.batch.permission import Permission
from saltext.jobs.core.batch.spec import Spec
from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.engine.feeder import Feeder
from saltext.jobs.core.engine.loop import Clock, Worker
from saltext.jobs.core.engine.proof import Returns
from saltext.jobs.core.ledger.log import Reader, Writer
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.master.questions import Questions
from saltext.jobs.core.options.engines import BatchSettings
from saltext.jobs.core.site import site_of


class Cache(JobCache):
    """Loads cost the same on both sides: the master's workers keep them."""

    def keep_load(self, *_):
        pass


def spec_of(jid, minions, size, **more) -> Spec:
    """A batch over these minions, ``size`` of them at a time."""
    return Spec(
        jid=jid,
        fun="state.apply",
        arg=(),
        kwargs={},
        tgt="*",
        tgt_type="glob",
        minions=tuple(minions),
        batch=str(size),
        **more,
    )


def ports_of(opts, loop, *, bus, publisher, service, logged=True) -> Ports:
    """The ports of an engine, on a master that keeps a log, or on one whose job cache keeps none."""
    cache, worker, site = Cache(opts), Worker(loop), site_of(opts)
    questions = Questions(loop, publisher)

    def log_for(*of_shell):
        if not logged:
            Feeder(loop, bus, cache, worker, Writer(site), *of_shell, questions.wants, "")
        return Reader(site)

    return Ports(
        loop=loop,
        clock=Clock(),
        bus=bus,
        publisher=publisher,
        questions=questions,
        cache=cache,
        returns=Returns(site, cache, is_fed=not logged),
        log=log_for,
        store=BatchStore(opts),
        service=service,
        cache_worker=worker,
        disk_worker=Worker(loop),
        runner=_no_runner,
        can_queue=lambda: True,
        permission=Permission(opts, BatchSettings()),
        rights_worker=Worker(loop),
        master_age=lambda: 86400.0,
        restarted=lambda since: may_have_started(opts, since),
        acks=True,
        keep=86400.0,
    )


async def _no_runner(function, arguments, timeout, on_behalf):
    raise AssertionError(f"no benchmark calls a runner, but {function} was called")
