"""The driver etcd, safe with a frozen server and with concurrent writers."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from typing import Any

import salt.payload

from saltext.jobs.core.store.calling import run
from saltext.jobs.core.store.drivers import Driver

READ_SECONDS = 1  # the client tries four times before it gives up


class Etcd(Driver):
    """The driver etcd. By default its client waits a minute at each try; a time-out that operators set is kept."""

    def __init__(self, opts: Mapping[str, Any]) -> None:
        super().__init__(opts)
        self._opts.setdefault("etcd.read_timeout", READ_SECONDS)

    def store_new(self, bank: str, key: str, value: Any, durable: bool = False) -> bool:
        data = base64.b64encode(salt.payload.dumps(value))

        def work(modules: Any, calls: dict[str, Any], fixed: dict[str, Any]) -> bool:
            own = self.own(calls)
            run(modules, own["_init_client"])
            client, name = own["client"], f"{own['path_prefix']}/{bank}/{key}"
            try:
                client.write(name, data, prevExist=False)
            except own["etcd"].EtcdAlreadyExist:
                return False
            client.write(f"{name}{own['_tstamp_suffix']}", int(time.time()))
            return True

        return bool(self._try("store", bank, key, work))
