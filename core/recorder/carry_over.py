"""
Brings what version 0.1.0 left in the spool over into the form of today, once, before anything else is opened; refuses what a
later version has left.

That version's segments end in ``.log`` and have frames of length, checksum and payload; its progress files have plain
numbers. It must never remove an old segment before all that was in it is on the disk anew: a crash at any moment means that
it is done again.
"""

from __future__ import annotations

import os
import pathlib
import struct
import zlib
from collections.abc import Iterator

from saltext.jobs.core import formats, lines
from saltext.jobs.core.disk import files
from saltext.jobs.core.disk.spool import LONGEST, SUFFIX, framed
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.recorder.files import aside_form, marked
from saltext.jobs.core.recorder.record import summary_of

log = lines.logger(__name__)

#: Of all that is in the recorder's folder, as a file there says: see ``core/formats.py``. Where there is none, version 0.1.0
#: may have written it.
FORMAT = 2
_FORMAT_FILE = "format"

_OLD_SUFFIX = ".log"
_OLD_FRAME = struct.Struct(">II")
_OLD_NUMBER = struct.Struct(">Q")


def carry_over(folder: pathlib.Path) -> None:
    """
    Carry over the spool in the recorder's folder, if there is an old one, and note in which format it is from now on.

    :raises LaterVersion: when a later version of this extension has written what is in the folder; nothing is touched then.
    :raises StateError: when old and new segments lie beside each other, which no upgrade leaves behind.
    :raises OSError: when it can't be read or written; then nothing is lost.
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
    Return the format of what is in the recorder's folder, 0 where it is not noted.

    :raises LaterVersion: when it is from a later version of this extension.
    :raises StateError: when it is none.
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
    # Below the oldest that is left are those that were carried over before a crash.
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
    """Yield payloads up to the first frame that is damaged: nothing marks where the next one begins."""
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
    """Bring a record that was set aside into the form of today: that version's file is one mapping, the record in it."""
    try:
        found = files.read_msgpack(path)
    except StateError:
        return  # it has that form already
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
    # The first number is the lowest. One that was carried over before a crash has a checksum behind it.
    if not numbers or data.startswith(marked(numbers[0])) or min(numbers) < numbers[0]:
        return
    files.write_atomic(path, b"".join(map(marked, numbers)), durable=True)
