"""The errors of this extension. They derive from Salt's own, so that code that catches Salt's errors catches them."""

from __future__ import annotations

from salt.exceptions import CommandExecutionError, NotImplemented, SaltException


class JobsError(SaltException):  # type: ignore[misc]
    """The base of all errors that this extension raises."""


class SettingsError(JobsError):
    """An option has a value that is not accepted. The message names the option, the value, and the accepted values."""


class StateError(JobsError):
    """A file that belongs to this extension cannot be read or written. The message names the file."""


class NotYet(JobsError):
    """The subject of a request cannot be read now, so the right action is not known. The request is taken again later."""


class NotNow(JobsError, CommandExecutionError):  # type: ignore[misc]
    """A request was not carried out, because a disk, a job cache or a server fails. It may be made again later."""


class JobCacheError(JobsError):
    """The master's job cache, or its cache of grains and pillar, could not be read or written."""


class SiteAway(OSError, JobsError):
    """The storage that the masters of a site share cannot be reached now, or cannot be used."""


class AnotherDatabase(SiteAway):
    """The database is another one than before, as after a damaged one was set aside. Nothing was written into it."""


class RowRefused(SiteAway):
    """The server is there, and will never take this row."""


class PublishFailed(JobsError):
    """
    The master did not confirm a publish. ``certain``: nothing was published, because the master refused, or the engine could
    not be sure that it leads; else minions may have the job, as after a time-out. ``forbidden``: the master will refuse the
    same publish again: the user may not publish it, or no user may (``publisher_acl_blacklist``).
    """

    def __init__(self, message: str, certain: bool = False, forbidden: bool = False) -> None:
        super().__init__(message)
        self.certain, self.forbidden = certain, forbidden


class NoMinionMatched(PublishFailed):
    """The master published nothing, because it knows none of the named minions."""

    def __init__(self, message: str) -> None:
        super().__init__(message, certain=True)


class EngineAbsent(JobsError, CommandExecutionError):  # type: ignore[misc]
    """No engine of this version has answered a runner's request in time."""


class Refused(JobsError, CommandExecutionError, NotImplemented):  # type: ignore[misc]
    """
    A runner refuses a request. The message is one line that names the value and what to do. Salt's NotImplemented is the
    only error that Salt shows without a traceback. See ``core.runner``.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def check_format(what: object, number: object, known: object) -> None:
    """
    Refuse stored data (a file or table) of another format: a number that rises when a version with another one would misread
    the data. :raises StateError: with what to do.
    """
    if number != known:
        raise StateError(
            f"{what} is of format {number}, and this version of saltext-jobs knows {known}: install the version that wrote "
            "it, or move it away to begin anew"
        )
