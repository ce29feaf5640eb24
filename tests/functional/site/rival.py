"""
A process that wants to lead a site in PostgreSQL, and acts as an engine does: ``python -m tests.functional.site.rival
OPTIONS NAME TTL``. It prints a line for each thing that it has done.
"""

from __future__ import annotations

import json
import os
import sys
import time

from saltext.jobs.core.boot import since_boot
from saltext.jobs.core.ledger.batches import Batches, Change, Kind
from saltext.jobs.core.postgresql.lease import TableLease
from saltext.jobs.core.site import site_of
from tests.functional.site.conftest import SHARED

ENGINE, JID = "batch_manager", "1"


def tell(*words):
    os.write(1, f"{' '.join(map(str, words))}\n".encode())


def lead(site, lease):
    """Write down what is to be published, and publish it, until the lead is lost."""
    found = Batches(site).rows(JID)
    number = 1 + (int(max(found[2])) if found else 0)
    while True:
        parts = {f"{number:09}": str(lease.epoch).encode()}
        Batches(site, lease).write([Change(JID, Kind.OPEN, lambda: b"", b"", parts)])
        tell("confirmed", lease.epoch, number)
        time.sleep(0.005)  # most freezes and kills hit it here, where the lead may be lost before it publishes
        at = since_boot()
        lease.check()
        tell("published", lease.epoch, number, at)
        number += 1


def main():
    opts, name, ttl = json.loads(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    site = site_of({**opts, **SHARED, "id": name})
    site.lead(ENGINE)
    while True:
        lease = TableLease(site, ENGINE, name, ttl=ttl)
        try:
            if lease.take():
                tell("leads", lease.epoch, 0, since_boot())
                lead(site, lease)
        except OSError as exc:
            tell("trouble", lease.epoch, 0, type(exc).__name__)
        lease.release()
        time.sleep(0.05)


if __name__ == "__main__":
    main()
