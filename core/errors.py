"""The errors of this extension: one tree under Salt's own, so that callers of Salt catch them."""

from __future__ import annotations

from salt.exceptions import CommandExecutionError, NotImplemented, SaltException

__all__ = [
    "EngineAbsent",
    "JobCacheError",
    "JobsError",
    "LaterVersion",
    "NoMinionMatched",
    "PublishFailed",
    "Refused",
    "SettingsError",
    "SiteAway",
    "StateError",
]


class JobsError(SaltException):  # type: ignore[misc]
    """The base of all errors that this extension raises."""


class SettingsError(JobsError):
    """An option has a value that is not accepted. The message names option, value and what is accepted."""


class StateError(JobsError):
    """A file that belongs to this extension cannot be read or written. The message names the file."""


class LaterVersion(StateError):
    """A file or record was written by a later version of this extension: it is left as it is. See ``core.formats``."""


class JobCacheError(JobsError):
    """The master job cache could not be read or written."""


class SiteAway(OSError, JobsError):
    """What the masters of a site have in common cannot be reached now, or not be used."""


class PublishFailed(JobsError):
    """
    The master did not confirm a publish.

    ``certain`` is True when the master refused it, so that no minion has it, and False when nothing is known, as after
    a time-out: the minions may have received it. ``forbidden`` is True when it will refuse the same again: the user may
    not publish it, or no user may (``publisher_acl_blacklist``).
    """

    def __init__(self, message: str, certain: bool = False, forbidden: bool = False) -> None:
        super().__init__(message)
        self.certain, self.forbidden = certain, forbidden


class NoMinionMatched(PublishFailed):
    """The master published nothing, because it knows none of the named minions."""

    def __init__(self, message: str) -> None:
        super().__init__(message, certain=True)


class EngineAbsent(JobsError, CommandExecutionError):  # type: ignore[misc]
    """No engine took a runner's request in time."""


class Refused(JobsError, CommandExecutionError, NotImplemented):  # type: ignore[misc]
    """
    A runner refuses a request. The message is one line that names the value and what to do.

    It is a subclass of Salt's NotImplemented: only for that does Salt show the message without a traceback. See
    ``core.runner``.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))
