"""
Tells apart errors of PostgreSQL that blame the record and errors that may pass.

No message contains a password: libpq's messages have none, and ours do not repeat the connection's parameters.
"""

from __future__ import annotations

import enum

import psycopg

from saltext.jobs.core.errors import StateError


class Trouble(StateError):
    """The request failed. The subclass says whether it may have been carried out."""


class Away(Trouble):
    """The server cannot do it now, but perhaps later. It may also have been done."""


class Rejected(Trouble):
    """The server is there and will never take this record."""


class Kind(enum.Enum):
    """What caused an error."""

    LOST = enum.auto()  # the connection, or the server as a whole
    CLASH = enum.auto()  # with other sessions; an immediate retry may work
    FULL = enum.auto()  # the server's disk or memory
    BUSY = enum.auto()  # no answer in time, a lock that others hold, too many connections
    SETUP = enum.auto()  # a password, a database, a table, a right: for an operator to fix
    RECORD = enum.auto()  # the record itself


class NoAnswer(psycopg.OperationalError):  # type: ignore[misc]
    """The server is connected and does not answer."""


_BY_STATE = {
    "08": Kind.LOST,
    "57P": Kind.LOST,
    "40": Kind.CLASH,
    "53100": Kind.FULL,
    "53200": Kind.FULL,
    "58": Kind.FULL,
    "53": Kind.BUSY,
    "55": Kind.BUSY,
    "57014": Kind.BUSY,
    "25006": Kind.SETUP,
    "28": Kind.SETUP,
    "3D": Kind.SETUP,
    "3F": Kind.SETUP,
    "42501": Kind.SETUP,
    "42P01": Kind.SETUP,
}
_ADVICE = {
    Kind.LOST: "check that the server runs and that this machine may reach it",
    Kind.CLASH: "other sessions change the same rows at the same time",
    Kind.FULL: "make room on its disk",
    Kind.BUSY: "look at its load, its locks (pg_stat_activity) and max_connections",
    Kind.SETUP: "check the options postgresql.* and the rights of that user there",
}


#: For a server that answers but refuses the login. libpq has no code for that; the word "FATAL" in its message tells.
#: Some languages have another word.
_CLOSED = "check the options postgresql.*, and on the server the user, the database, pg_hba.conf and max_connections"


def kind_of(exc: BaseException) -> Kind:
    """Return the cause of an error."""
    if isinstance(exc, NoAnswer):
        return Kind.BUSY
    if isinstance(exc, psycopg.Error):
        state = exc.sqlstate or ""
        for length in (5, 3, 2):
            if state[:length] in _BY_STATE:
                return _BY_STATE[state[:length]]
        if not state and isinstance(exc, (psycopg.OperationalError, psycopg.InterfaceError)):
            return Kind.LOST
    return Kind.RECORD


def told(exc: BaseException, place: str) -> Trouble:
    """
    Return the error to raise.

    :param place: the server and the database, for people.
    """
    kind, reason = kind_of(exc), " ".join(str(exc).split())[:500] or type(exc).__name__
    if kind is Kind.RECORD:
        return Rejected(f"PostgreSQL at {place} refuses it: {reason}")
    advice = _CLOSED if kind is Kind.LOST and "FATAL" in reason else _ADVICE[kind]
    return Away(f"PostgreSQL at {place} cannot be used: {reason}; {advice}")
