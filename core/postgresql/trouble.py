"""
What an error of PostgreSQL means for whoever wants something stored: is the record at fault, or will another time do?

No message has a password in it: libpq puts none into its own, and none of ours tells what it was given to connect with.
"""

from __future__ import annotations

import enum

import psycopg

from saltext.jobs.core.errors import StateError


class Trouble(StateError):
    """What was asked for was not done."""


class Away(Trouble):
    """The server cannot do it now; the same may work later. What was sent may have been done all the same."""


class Rejected(Trouble):
    """The server is there and will not take just this, however often it is asked."""


class Kind(enum.Enum):
    """What an error is about."""

    LOST = enum.auto()  # the connection, or the server as a whole
    CLASH = enum.auto()  # with what others do at the moment; at once it may work
    NO_TABLE = enum.auto()  # somebody has removed it
    FULL = enum.auto()  # the server's disk or memory
    BUSY = enum.auto()  # no answer in time, a lock that others hold, too many connections
    SETUP = enum.auto()  # a password, a database, a right: an operator's
    RECORD = enum.auto()  # what was handed over


class NoAnswer(psycopg.OperationalError):  # type: ignore[misc]
    """The server is connected and says nothing."""


_BY_STATE = {
    "08": Kind.LOST,
    "57P": Kind.LOST,
    "40": Kind.CLASH,
    "42P01": Kind.NO_TABLE,
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
}
_ADVICE = {
    Kind.LOST: "see to it that it runs and that this machine may reach it",
    Kind.CLASH: "others change the same at the same time",
    Kind.NO_TABLE: "somebody removes its tables",
    Kind.FULL: "make room on its disk",
    Kind.BUSY: "look at its load, its locks (pg_stat_activity) and max_connections",
    Kind.SETUP: "see to the options postgresql.* and to the rights that the user has there",
}


#: Where it answers, and lets nobody in: libpq gives no code for that. In some languages the word is another one.
_CLOSED = (
    "see to the options postgresql.*, and on the server to the user, the database, pg_hba.conf and max_connections"
)


def kind_of(exc: BaseException) -> Kind:
    """Return what an error is about."""
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
