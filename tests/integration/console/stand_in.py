"""
Stands in for salt-api, in this process: it serves the page, answers as a test says, and sends its events. It does what a
real one cannot do in a test's time: ten thousand minions, hostile names, an outage at a chosen moment.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import mimetypes
import pathlib
import queue
import threading
import time

from tests.integration.console.browser import SECRET

CONSOLE = pathlib.Path(__file__).resolve().parents[3] / "console"


class No(Exception):
    """The runner refuses."""


class StandIn:
    """
    ``runners`` are functions by name, called with what the page has sent as keyword arguments; ``denied`` are names of those
    that the user may not call. ``calls`` are all calls there were.
    """

    def __init__(self):
        self.runners, self.denied, self.calls = {}, set(), []
        self.perms = ["@runner"]
        #: The path below which it answers, as behind a proxy.
        self.prefix = ""
        self.tokens: set[str] = set()
        self.down = False
        self.streams: list[queue.Queue] = []
        self.clear()

    def clear(self):
        """What an empty installation answers."""
        self.denied, self.down, self.perms, self.prefix = set(), False, ["@runner"], ""
        self.calls.clear()
        self.drop()
        self.runners = {
            "batch.list": _nothing,
            "job_retry.list": _nothing,
            "job_retry.stats": lambda: {"entries": 0, "states": {}, "engine": True, "paused": False},
            "batch.failures": lambda **_: {"groups": []},
            "job_cache.outcome": lambda **_: {"groups": []},
            "job_cache.search": lambda **_: {"jobs": [], "next": None},
            "job_console.choices": lambda: {"nodegroups": [], "sls": []},
            "jobs_doctor.run": lambda: {"parts": {"batch_manager": "works"}, "findings": [], "faults": 0},
            **{f"{name}.history": _nothing for name in ("batch", "job_retry", "job_recorder")},
        }

    def login(self, user="admin"):
        """What a login answers."""
        token = f"{len(self.tokens) + 1:040x}"
        self.tokens.add(token)
        told = {"token": token, "user": user, "eauth": "sharedsecret", "perms": self.perms}
        return {**told, "start": time.time(), "expire": time.time() + 3600}

    def fire(self, tag, data):
        """Send an event to every listener."""
        for stream in list(self.streams):
            stream.put(_sent(tag, data))

    def fire_all(self, events):
        """Send many events at once."""
        text = "".join(_sent(tag, data) for tag, data in events)
        for stream in list(self.streams):
            stream.put(text)

    def drop(self):
        """Cut all event streams."""
        for stream in list(self.streams):
            stream.put(None)

    def count(self, fun):
        """How often a function was called."""
        return sum(name == fun for name, _ in self.calls)

    def answer(self, low, token):
        """One call of a runner: status and answer."""
        fun, kwarg = low["fun"], low.get("kwarg") or {}
        self.calls.append((fun, kwarg))
        if token not in self.tokens or fun in self.denied:
            return None
        if fun not in self.runners:
            return {"data": {"return": f"{fun} is not available", "success": False, "retcode": 1}}
        try:
            return {"data": {"return": self.runners[fun](**kwarg), "success": True, "retcode": 0}}
        except No as refused:
            return {"data": {"return": str(refused), "success": False, "retcode": 1}}


def _nothing(**_):
    return []


def _sent(tag, data):
    return f"tag: {tag}\ndata: {json.dumps({'tag': tag, 'data': data})}\n\n"


class _Handler(http.server.BaseHTTPRequestHandler):
    api: StandIn
    protocol_version = "HTTP/1.1"

    def parse_request(self):
        fine = super().parse_request()
        if fine and self.api.prefix:  # as a proxy rewrites it; other paths belong to other applications
            inside = self.path.startswith(self.api.prefix)
            self.path = self.path.removeprefix(self.api.prefix) if inside else "/others"
        return fine

    def do_GET(self):
        if self.path == "/others":
            self._json(200, "another application, which has a login too")
        elif self.path == "/events":
            self._stream()
        elif self.path == "/login":
            self._json(200, {"return": "Please log in"})
        elif self.path.startswith("/console/"):
            self._file(self.path.removeprefix("/console/"))
        else:
            self._plain(404, b"<p>not here</p>", "text/html")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"null")
        token = self.headers.get("X-Auth-Token")
        if self.api.down:
            self._plain(503, b"<p>down</p>", "text/html")
        elif self.path == "/login":
            if body["password"] != SECRET:
                self._plain(401, b"<p>Could not authenticate</p>", "text/html")
                return
            self._json(200, {"return": [{**self.api.login(body["username"]), "eauth": body["eauth"]}]})
        elif self.path == "/logout":
            self.api.tokens.discard(token)
            self._json(200, {"return": "gone"})
        elif token not in self.api.tokens:
            self._plain(401, b"<p>No permission -- see authorization schemes</p>", "text/html")
        else:
            answers = [self.api.answer(low, token) for low in body]
            if None in answers:
                self._plain(401, b"<p>Authentication failure of type &quot;token&quot;</p>", "text/html")
            else:
                self._json(200, {"return": answers})

    def _stream(self):
        if self.api.down:
            self._plain(503, b"<p>down</p>", "text/html")
            return
        if self.headers.get("X-Auth-Token") not in self.api.tokens:
            self._plain(401, b"<p>no</p>", "text/html")
            return
        stream: queue.Queue = queue.Queue()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(b"retry: 400\n")
        self.wfile.flush()
        self.api.streams.append(stream)
        try:
            while (text := stream.get()) is not None:
                self.wfile.write(text.encode())
                self.wfile.flush()
        except OSError:
            pass
        finally:
            self.api.streams.remove(stream)
            self.close_connection = True

    def _file(self, name):
        path = (CONSOLE / name).resolve()
        if not path.is_relative_to(CONSOLE) or not path.is_file():
            self._plain(404, b"no", "text/plain")
            return
        self._plain(200, path.read_bytes(), mimetypes.guess_type(path.name)[0] or "text/plain")

    def _json(self, status, value):
        self._plain(status, json.dumps(value).encode(), "application/json")

    def _plain(self, status, body, kind):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the page has gone elsewhere
            self.wfile.write(body)

    def log_message(self, *args):
        pass


@contextlib.contextmanager
def serving(api):
    """Serve a StandIn on loopback; yields the address of the page."""
    handler = type("Handler", (_Handler,), {"api": api})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/console/index.html"
        api.drop()
        server.shutdown()
