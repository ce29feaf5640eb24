"""What tests and the fleet of the benchmarks cause is really caused, and to the right process."""

from __future__ import annotations

import multiprocessing.connection
import os
import socket
import subprocess
import sys

from benchmarks.fleet.watch import engine_pid, kill_all, processes_of
from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.site import FileSite
from tests.faults import freeze, is_frozen, thaw
from tests.interrupted import FORK
from tests.waiting import wait_for

ANSWERING = """
import socket, threading, time
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    end = server.accept()[0]
def answer():
    while word := end.recv(1):
        end.sendall(word)
threading.Thread(target=answer, daemon=True).start()
time.sleep(600)
"""
#: A master whose children come while it is being killed.
BEGINNING = """
import os, time
while True:
    time.sleep(0.005)
    if not os.fork():
        time.sleep(60)
        os._exit(0)
"""


def test_a_frozen_process_answers_nothing_though_another_of_its_threads_would():
    process = subprocess.Popen([sys.executable, "-c", ANSWERING], stdout=subprocess.PIPE)
    try:
        with socket.create_connection(("127.0.0.1", int(process.stdout.readline()))) as end:
            for _ in range(50):
                end.sendall(b"?")
                assert end.recv(1) == b"?"
                freeze(process.pid)
                end.sendall(b"!")
                assert not multiprocessing.connection.wait([end], 0.01)
                thaw(process.pid)
                assert end.recv(1) == b"!"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert is_frozen(process.pid)


def test_a_process_that_has_ended_is_still_and_is_not_thawed():
    process = subprocess.Popen([sys.executable, "-c", ""])
    wait_for(lambda: is_frozen(process.pid), what="it has ended")  # and was not waited for
    freeze(process.pid)
    process.wait()
    thaw(process.pid)


def test_the_process_of_an_engine_is_the_one_that_leads_and_none_that_looks_who_does(tmp_path):
    opts = {"cachedir": str(tmp_path), "id": "m"}
    site, begun = FileSite(opts), FORK.Event()
    lease = site.lease(JOB_RETRY)
    assert lease.take() and engine_pid(opts, JOB_RETRY) == os.getpid()
    lease.release()

    def look():
        while not site.is_led(JOB_RETRY):
            begun.set()

    looking = FORK.Process(target=look, daemon=True)
    looking.start()
    wait_for(begun.is_set, what="it looks")
    assert {engine_pid(opts, JOB_RETRY) for _ in range(1000)} == {None}
    looking.kill()
    looking.join()


def test_a_process_that_is_begun_while_its_parent_is_killed_is_killed_too(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", BEGINNING, str(tmp_path)])
    wait_for(lambda: len(processes_of(tmp_path)) > 5, what="it has begun some")
    kill_all(tmp_path)
    process.wait()
    assert processes_of(tmp_path) == []
