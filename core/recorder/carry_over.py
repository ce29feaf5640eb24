"""
Converts a spool of version 0.1.0 to the current format, once, before anything else is opened; refuses the spool of a
later version.

That version's segments end in ``.log`` and have frames of length, checksum and payload; its progress files have plain
numbers. It must never remove an old segment before its records are on the disk in the new format: after a crash the
conversion is done again.
"""

from __future__ import annotations

import os
import pathlib
import struct
import zlib
from collections.abc import Iterator

from saltext.jobs.core import formats, lines
from saltext.jobs.core.disk import files
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.recorder.files import aside_form, marked
from saltext.jobs.core.recorder.record import summary_of
from saltext.jobs.core.recorder.spool import LONGEST, SUFFIX, framed

log = lines.logger(__name__)

#: The format of everything in the recorder's folder, noted in a file there: see ``core/formats.py``. Without that file,
#: version 0.1.0 may have written it.
FORMAT = 2
_FORMAT_FILE = "format"

_OLD_SUFFIX = ".log"
_OLD_FRAME = struct.Struct(">II")
_OLD_NUMBER = struct.Struct(">Q")


def carry_over(folder: pathlib.Path) -> None:
    """
    Convert the spool in the recorder's folder, if it is an old one, and note the current format.

    :raises LaterVersion: when a later version of this extension has written to the folder; nothing is touched then.
    :raises StateError: when there are old and new segments, which no upgrade leaves behind.
    :raises OSError: when it cannot be read or written; nothing is lost then.
    """
    number = check_format(folder)
    old = _segments(folder / "spool", _OLD_SUFFIX)
    if old:
        _carry_all(folder, old)
    if not number:
        for path in sorted((folder / "returners").glob("*/aside/*.p")):
            _carry_aside(path)
    if number != FORMAT:
        files.write_atomic(folder / _FORMAT_FILE, b"%d\n" % FORMAT, durable=True)


def check_format(folder: pathlib.Path) -> int:
    """
    Return the format of the recorder's folder, 0 if it is not noted.

    :raises LaterVersion: when it is from a later version of this extension.
    :raises StateError: when the note is not a valid number.
    :raises OSError: when it cannot be read.
    """
    path = folder / _FORMAT_FILE
    try:
        text = path.read_bytes().strip()
    except FileNotFoundError:
        return 0
    if not text.strip(b"\0"):  # a power cut
        return 0
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text
    try:
        formats.check(path, number, FORMAT, "nothing is recorded")
    except ValueError as exc:
        raise StateError(f"{exc}; remove it if no later version of saltext-jobs was ever here") from exc
    return int(text)


def _carry_all(folder: pathlib.Path, old: dict[int, pathlib.Path]) -> None:
    # Records below the oldest old segment were converted before a crash.
    if newer := [first for first in _segments(folder / "spool", SUFFIX).keys() - old.keys() if first > min(old)]:
        raise StateError(
            f"{folder / 'spool'} has segments of version 0.1.0 (*{_OLD_SUFFIX}) beside newer ones, from record {min(newer)} "
            f"on; move the *{_OLD_SUFFIX} files away to start without the records in them"
        )
    count = sum(_carry_segment(path, first) for first, path in sorted(old.items()))
    for path in sorted((folder / "returners").glob("*/progress")):
        _carry_progress(path)
    for _, path in sorted(old.items()):
        path.unlink()
    files.sync_directory(folder / "spool")
    log.warning("%d records in the spool of version 0.1.0 were carried over", count)


def _segments(folder: pathlib.Path, suffix: str) -> dict[int, pathlib.Path]:
    names = os.listdir(folder) if folder.is_dir() else []
    stems = [name[: -len(suffix)] for name in names if name.endswith(suffix)]
    return {int(stem): folder / (stem + suffix) for stem in stems if stem.isascii() and stem.isdigit()}


def _carry_segment(path: pathlib.Path, first: int) -> int:
    data = path.read_bytes()
    payloads = list(_old_payloads(data))
    rest = len(data) - sum(_OLD_FRAME.size + len(payload) for payload in payloads)
    if rest:
        log.error("The last %d bytes of %s are damaged, and what was in them is lost", rest, path)
    frames = b"".join(framed(number, payload) for number, payload in enumerate(payloads, first))
    files.write_atomic(path.with_suffix(SUFFIX), frames, durable=True)
    return len(payloads)


def _old_payloads(data: bytes) -> Iterator[bytes]:
    """Yield payloads up to the first damaged frame: nothing marks where the next one begins."""
    at = 0
    while at + _OLD_FRAME.size <= len(data):
        length, checksum = _OLD_FRAME.unpack_from(data, at)
        at += _OLD_FRAME.size
        payload = data[at : at + length]
        if not 0 < len(payload) == length <= LONGEST or zlib.crc32(payload) != checksum:
            return
        yield payload
        at += length


def _carry_aside(path: pathlib.Path) -> None:
    """Convert a record that was set aside: the file of version 0.1.0 is one mapping that contains the record."""
    try:
        found = files.read_msgpack(path)
    except StateError:
        return  # it is converted already
    payload = found.get("payload") if isinstance(found, dict) else None
    if isinstance(payload, str):  # its bytes happen to be text
        payload = payload.encode()
    if not isinstance(payload, bytes):
        return
    about = {name: found.get(name) for name in ("reason", "tries", "time")}
    files.write_atomic(path, aside_form({**about, **summary_of(payload)}, payload), durable=True)


def _carry_progress(path: pathlib.Path) -> None:
    data = path.read_bytes()
    numbers = [number for (number,) in _OLD_NUMBER.iter_unpack(data[: len(data) - len(data) % _OLD_NUMBER.size])]
    # The first number is the lowest. A file that was converted before a crash has a checksum after it.
    if not numbers or data.startswith(marked(numbers[0])) or min(numbers) < numbers[0]:
        return
    files.write_atomic(path, b"".join(map(marked, numbers)), durable=True)
