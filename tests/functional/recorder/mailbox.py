"""A mail server: a real one, as far as a client without TLS and login goes, that keeps what it is sent."""

from __future__ import annotations

import contextlib
import email
import email.policy
import socketserver
import threading


class _Session(socketserver.StreamRequestHandler):
    def handle(self):
        self._say("220 localhost")
        to = []
        while line := self.rfile.readline().decode().strip():
            verb = line.partition(" ")[0].upper()
            if verb == "RCPT":
                to.append(line.partition("<")[2].rstrip(">"))
            if verb == "DATA":
                self._say("354 go on")
                self.server.mails.append((to, email.message_from_bytes(self._data(), policy=email.policy.default)))
            self._say("221 bye" if verb == "QUIT" else "250 localhost")
            if verb == "QUIT":
                return

    def _data(self):
        found = b""
        while (line := self.rfile.readline()) not in (b".\r\n", b""):
            found += line.removeprefix(b".")
        return found

    def _say(self, text):
        self.wfile.write(f"{text}\r\n".encode())


@contextlib.contextmanager
def mailbox():
    """Run a mail server; yields it, with its ``port``, and ``mails``: a list of (recipients, message)."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Session) as server:
        server.daemon_threads, server.mails, server.port = True, [], server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
