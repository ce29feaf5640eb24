"""A webhook's receiver: a real HTTP server that does what a test says, and keeps what it was sent."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading


class Receiver:
    """
    ``answer`` is a status, or ``hang`` (takes the request and says nothing) or ``flood`` (a success, and text without end).
    It answers 400 to notices of the kind that it ``refuses``. ``got`` are ``(notice, headers, body)`` of those that were
    answered with success, ``tried`` the ids of all.
    """

    def __init__(self):
        self.answer, self.refuses = 204, ""
        self.got, self.tried = [], []
        self.sent = 0
        self.over = threading.Event()

    def ids(self):
        return [notice["id"] for notice, _, _ in self.got]

    def kinds(self):
        return [notice["kind"] for notice, _, _ in self.got]


@contextlib.contextmanager
def receiving(port=0):
    """Run a receiver; yields it, with its ``url``."""
    receiver = Receiver()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            notice, answer = json.loads(body), receiver.answer
            answer = 400 if receiver.refuses and notice["kind"] == receiver.refuses else answer
            receiver.tried.append(notice["id"])
            if answer == "hang":
                receiver.over.wait(60)
                return
            if answer == "flood":
                with contextlib.suppress(OSError):
                    self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
                    while not receiver.over.wait(0.001):
                        receiver.sent += self.wfile.write(b"x" * 2**20)
                return
            if answer == 204:
                receiver.got.append((notice, dict(self.headers), body))
            self.send_response(answer)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}/hooks/salt?token=of-the-address"
    receiver.port = server.server_address[1]
    try:
        yield receiver
    finally:
        receiver.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
