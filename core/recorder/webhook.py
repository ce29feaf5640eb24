"""
Sends a notice as a signed POST of JSON.

It blocks: use it in a Worker of its own. Neither the secret nor the address, which may
hold a secret too, may ever be logged or be in an error.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from saltext.jobs.core.errors import JobsError

#: The header that a receiver checks: ``sha256=`` and the HMAC of the body in hexadecimal.
SIGNATURE = "X-Salt-Signature"
#: Most seconds for one network operation.
_PATIENCE = 10.0


class Undelivered(JobsError):
    """A notice has not arrived, as far as known; the message says why."""


class Webhook:
    """
    :param url: the address of the receiver.
    :param secret: the secret that signs notices; empty for no signature.
    :param ca_file: certificates against which that of the receiver is checked; empty for those of the system.
    """

    def __init__(self, url: str, secret: str = "", ca_file: str = "", patience: float = _PATIENCE) -> None:
        self._url, self._secret, self._ca_file, self._patience = urlsplit(url), secret, ca_file, patience

    def __call__(self, notice: Mapping[str, Any]) -> None:
        """Send a notice. :raises Undelivered: if anything goes wrong."""
        try:
            status = self._post(json.dumps(notice).encode())
        except (OSError, http.client.HTTPException, ValueError) as exc:
            raise Undelivered(_said(exc)) from None  # the cause may name the address
        if not 200 <= status < 300:
            raise Undelivered(f"the receiver answers {status}")

    def _post(self, body: bytes) -> int:
        headers = {"Content-Type": "application/json", "User-Agent": "saltext-jobs", "Connection": "close"}
        if self._secret:
            headers[SIGNATURE] = signature(self._secret.encode(), body)
        connection = self._connection(self._url)
        try:
            path = f"{self._url.path or '/'}{f'?{self._url.query}' if self._url.query else ''}"
            connection.request("POST", path, body, headers)
            return connection.getresponse().status  # a redirect counts as a refusal
        finally:
            connection.close()

    def _connection(self, url: SplitResult) -> http.client.HTTPConnection:
        host = url.hostname or ""
        if url.scheme == "http":
            return http.client.HTTPConnection(host, url.port, timeout=self._patience)
        trusted = ssl.create_default_context(cafile=self._ca_file or None)
        return http.client.HTTPSConnection(host, url.port, timeout=self._patience, context=trusted)


def signature(secret: bytes, body: bytes) -> str:
    """Return the value of the header ``SIGNATURE`` for a body."""
    return f"sha256={hmac.new(secret, body, hashlib.sha256).hexdigest()}"


def _said(exc: Exception) -> str:
    """Return what went wrong, without the secrets that an error may name."""
    if isinstance(exc, TimeoutError):
        return "the receiver does not answer in time"
    if isinstance(exc, ssl.SSLError):
        return f"TLS: {exc.reason or type(exc).__name__}"
    if isinstance(exc, OSError) and exc.strerror:
        return exc.strerror
    return str(exc) if type(exc) is ValueError else type(exc).__name__
