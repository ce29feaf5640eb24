"""
Sends a notice as a signed POST of JSON. It blocks: use it in a Worker of its own. Neither the secret nor the address, which
may hold a secret too, may ever be logged or be in an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import json
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

#: The header that a receiver checks: ``sha256=`` and the HMAC of the body in hexadecimal.
SIGNATURE = "X-Salt-Signature"
#: Most seconds for one network operation.
_PATIENCE = 10.0


class Webhook:
    """
    ``url``: of the receiver. ``secret`` signs notices; empty for no signature. ``ca_file``: certificates against which that
    of the receiver is checked; empty for those of the system.
    """

    def __init__(self, url: str, secret: str = "", ca_file: str = "", patience: float = _PATIENCE) -> None:
        self._url, self._secret, self._ca_file, self._patience = urlsplit(url), secret, ca_file, patience

    def __call__(self, notice: Mapping[str, Any]) -> None:
        """Send a notice. :raises OSError: saying why it has not arrived, as far as known."""
        body = json.dumps(notice).encode()
        headers = {"Content-Type": "application/json", "User-Agent": "saltext-jobs", "Connection": "close"}
        if self._secret:
            headers[SIGNATURE] = signature(self._secret.encode(), body)
        path = f"{self._url.path or '/'}{f'?{self._url.query}' if self._url.query else ''}"
        try:
            with contextlib.closing(self._connection(self._url.hostname or "")) as connection:
                connection.request("POST", path, body, headers)
                status = connection.getresponse().status  # a redirect counts as a refusal
        except (OSError, http.client.HTTPException, ValueError) as exc:
            raise ConnectionError(_said(exc)) from None  # the cause may name the address
        if not 200 <= status < 300:
            raise ConnectionError(f"the receiver answers {status}")

    def _connection(self, host: str) -> http.client.HTTPConnection:
        if self._url.scheme == "http":
            return http.client.HTTPConnection(host, self._url.port, timeout=self._patience)
        trusted = ssl.create_default_context(cafile=self._ca_file or None)
        return http.client.HTTPSConnection(host, self._url.port, timeout=self._patience, context=trusted)


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
