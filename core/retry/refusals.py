"""
Tells which errors of a driver are about the record itself, so that no further try can succeed. Pure.

It must never count any other error as one of these: a job that counts as refused is never delivered. A store that is full,
busy, closed or away takes the record later. After an unknown error the record is tried again.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

#: Errors of files: an impossible name; an obstacle to this one file; and EIO, which may be a bad block that only this record
#: uses. SQLite's error in ``_WORDS`` may be such a block too.
_NAME = {errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ}
_PLACE = {errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ELOOP, errno.EIO}
_NUMBERS = {"localfs": frozenset(_NAME | _PLACE)}
#: Names of exceptions of drivers and their clients. Rejected is that of core/postgresql/trouble.py.
_KINDS = {
    "sqlite": frozenset({"DataError"}),
    "postgresql": frozenset({"Rejected"}),
    "mysql": frozenset({"DataError"}),
}
#: Texts of errors: what servers say if a value is too large, and what SQLite says if it meets a bad block.
_WORDS = {
    "sqlite": "disk I/O error",
    "mysql": "max_allowed_packet",
    "etcd": "too large",
    "consul": "too large",
}
#: MySQL may close the connection instead: from this many bytes on, these error numbers mean that the value is too large.
_LARGE = 500_000
_CLOSED = frozenset({2006, 2013})
#: What decoders raise, and the names of what Salt and msgpack make of it.
_DECODING = (ValueError, TypeError, RecursionError)
_UNPACKING = frozenset({"SaltDeserializationError", "UnpackException", "OutOfData"})


def is_of_the_record(driver: str, error: BaseException, size: int) -> bool:
    """
    Tell whether an error means that the driver will always refuse this record, and no other.

    :param error: what the driver raised.
    :param size: of the record in bytes.
    """
    return any(_is_of_it(driver, each, size) for each in _chain(error))


def is_damage(error: BaseException) -> bool:
    """Tell whether an error comes from decoding: what was read is no record."""
    return any(isinstance(each, _DECODING) or type(each).__name__ in _UNPACKING for each in _chain(error))


def _is_of_it(driver: str, error: BaseException, size: int) -> bool:
    if isinstance(error, OSError) and error.errno in _NUMBERS.get(driver, ()):
        return True
    if type(error).__name__ in _KINDS.get(driver, ()):
        return True
    word = _WORDS.get(driver)
    # A SaltCacheError may quote the value, which may contain any word.
    if word is not None and type(error).__name__ != "SaltCacheError" and word in str(error):
        return True
    return driver == "mysql" and size >= _LARGE and bool(error.args) and error.args[0] in _CLOSED


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
