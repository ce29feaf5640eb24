"""What tests and the fleet of the benchmarks cause is really caused, and to the right process."""

from __future__ import annotations

import multiprocessing.connection
import socket
import subprocess
import sys

from tests.faults import freeze, is_frozen, thaw

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
