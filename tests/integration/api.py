"""salt-api with both of its front ends, its users, and a server behind eauth ``rest``."""

from __future__ import annotations

import contextlib
import http.server
import importlib.util
import json
import threading
import urllib.error
import urllib.parse
import urllib.request

import psutil
import salt.exceptions
import salt.runner

from tests.functional.cache_servers import free_port
from tests.integration import warm
from tests.integration.conftest import COMMAND
from tests.missing import missing
from tests.waiting import stretched, wait_for

#: The password of every user, whatever the backend.
SECRET = "a long shared secret"
FRONTS = ("rest_cherrypy", "rest_tornado")


class Denied(Exception):
    """Salt itself has refused the call, before any runner."""


def fronts(*names):
    """Options of a master whose salt-api has these front ends, on loopback."""
    addresses = {"rest_cherrypy": {"host": "127.0.0.1"}, "rest_tornado": {"address": "127.0.0.1"}}
    options = {name: {"port": free_port(), "disable_ssl": True, **addresses[name]} for name in names}
    return {**options, "netapi_enable_clients": ["runner"]}


@contextlib.contextmanager
def salt_api(master):
    """A salt-api daemon of ``master``."""
    if "rest_cherrypy" in master.config and importlib.util.find_spec("cherrypy") is None:
        missing("cherrypy is not installed")
    # It may end between being seen and being told to.
    with contextlib.suppress(psutil.NoSuchProcess), master.salt_api_daemon(factory_class=warm.Api).started():
        yield


class Api:
    """One front end of a salt-api."""

    def __init__(self, master, front):
        self.url = f"http://127.0.0.1:{master.config[front]['port']}"

    def post(self, path, body, token=None):
        """Post JSON, and return what is answered; raises Denied."""
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        headers.update({"X-Auth-Token": token} if token else {})
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=stretched(COMMAND)) as answer:
                told = json.load(answer)["return"]
        except urllib.error.HTTPError as refused:
            if refused.code == 401:
                raise Denied(path) from None
            raise
        if told == ["Failed to authenticate"]:  # rest_tornado has no status for it
            raise Denied(path)
        return told

    def log_in(self, user, eauth="sharedsecret"):
        """Return the token of a session; waits for a salt-api that has just been started."""

        def ask():
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                return self.post("/login", {"username": user, "password": SECRET, "eauth": eauth})[0]["token"]

        return wait_for(ask, what=f"{user} is logged in")

    def call(self, fun, /, *arg, eauth="sharedsecret", user=None, password=SECRET, token=None, **kwarg):
        """Call a runner with a password, or in a session; what the event of its return tells."""
        low = {"client": "runner", "fun": fun, "arg": list(arg), "kwarg": kwarg, "full_return": True}
        if token:
            return self.post("/", [low], token)[0]["data"]
        return self.post("/run", [{**low, "username": user, "password": password, "eauth": eauth}])[0]["data"]


class Python:
    """Salt's own client, which does what the front ends do, and knows key files besides."""

    def __init__(self, opts, password=SECRET):
        self.opts, self.password = opts, password

    def call(self, fun, /, *arg, eauth="sharedsecret", user=None, key=None, **kwarg):
        """As ``Api.call``; with ``key`` the user shows a key file."""
        who = {"user": user, "key": key} if key else {"eauth": eauth, "username": user, "password": self.password}
        client = salt.runner.RunnerClient(dict(self.opts))
        try:
            answer = client.cmd_sync({"fun": fun, "arg": list(arg), "kwarg": kwarg, **who}, full_return=True)
        except salt.exceptions.EauthAuthenticationError as refused:
            raise Denied(fun) from refused
        return answer["data"]


class _Lists(http.server.BaseHTTPRequestHandler):
    """It gives the access list of a user with the password, and never without."""

    users: dict

    def do_POST(self):
        sent = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        (password,), (user,) = sent.get("password", [""]), sent.get("username", [""])
        known = password == SECRET and user in self.users
        body = json.dumps(self.users.get(user)).encode() if known else b"{}"
        self.send_response(200 if known else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@contextlib.contextmanager
def access_lists(users):
    """A server for eauth ``rest`` with these ``{user: access list}``; yields its URL."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Lists", (_Lists,), {"users": users})) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/acl"
        server.shutdown()
        thread.join()
