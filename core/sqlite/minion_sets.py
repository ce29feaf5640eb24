"""
A set of minions as bytes: a list of their numbers if they are few, else a bit for each number, compressed if it pays.

Equal sets are equal bytes. Pure.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Collection, Iterable

_LIST, _BITS, _SQUEEZED = b"\0", b"\1", b"\2"  # the first byte
DIGIT = ord("1")
_WIDTH = 4  # bytes of a number in a list


def pack(numbers: Collection[int]) -> bytes:
    """Return the bytes of a set of numbers, which are 0 or more."""
    top = max(numbers, default=0)
    if _is_listed(len(numbers), top):
        return _listed(set(numbers))
    digits = bytearray(b"0") * (top + 1)
    for number in numbers:
        digits[number] = DIGIT
    return of_digits(digits)


def of_digits(digits: bytearray) -> bytes:
    """Return the bytes of a set from one digit for each number from 0 on: ``DIGIT`` if the number is in the set."""
    return _of_mask(int(digits[::-1], 2))  # setting the bits of an integer one by one would copy it each time


def _of_mask(mask: int) -> bytes:
    if not _is_listed(mask.bit_count(), mask.bit_length() - 1):
        return _packed_bits(mask)
    digits = bin(mask)[:1:-1]
    return _listed(number for number, digit in enumerate(digits) if digit == "1")


def _is_listed(count: int, top: int) -> bool:
    return _WIDTH * count <= top // 8 + 1


def _listed(numbers: Iterable[int]) -> bytes:
    found = array("I", sorted(numbers))
    if sys.byteorder == "big":
        found.byteswap()
    return _LIST + found.tobytes()


def _packed_bits(mask: int) -> bytes:
    bits = mask.to_bytes(mask.bit_length() // 8 + 1, "little")
    squeezed = zlib.compress(bits, 1)
    return _SQUEEZED + squeezed if len(squeezed) < len(bits) else _BITS + bits


def has(data: bytes, number: int) -> bool:
    """Tell whether a number is in a set."""
    if data[:1] == _LIST:
        wanted = number.to_bytes(_WIDTH, "little")
        at = data.find(wanted, 1)
        while at > 0 and (at - 1) % _WIDTH:
            at = data.find(wanted, at + 1)
        return at > 0
    bits = _bits(data)
    return number >> 3 < len(bits) and bits[number >> 3] >> (number & 7) & 1 == 1


def trace_of(number: int) -> tuple[bytes, bytes]:
    """Return the first byte of sets that are lists, and bytes that those with this number contain; others may too."""
    return _LIST, number.to_bytes(_WIDTH, "little")


def may_have(data: bytes, number: int) -> bool:
    """As ``has``; also True if the set is damaged."""
    try:
        return has(data, number)
    except Exception:  # zlib has an error of its own
        return True


def digits_of(data: bytes) -> str:
    """Return one digit for each number from 0 on: "1" if it is in the set. :raises Exception: if it is damaged."""
    if data[:1] == _LIST:
        numbers = _numbers(data)
        digits = bytearray(b"0") * (max(numbers, default=0) + 1)
        for number in numbers:
            digits[number] = DIGIT
        return digits.decode("ascii")
    return bin(int.from_bytes(_bits(data), "little"))[:1:-1]


def count(data: bytes) -> int:
    """Return how many numbers are in a set. :raises Exception: ValueError or zlib's own, if it is damaged."""
    if data[:1] == _LIST:
        return (len(data) - 1) // _WIDTH
    return int.from_bytes(_bits(data), "little").bit_count()


def union(sets: Iterable[bytes]) -> bytes:
    """Return the union of some sets."""
    numbers: set[int] = set()
    mask = 0
    for data in sets:
        if data[:1] == _LIST:
            numbers.update(_numbers(data))
        else:
            mask |= int.from_bytes(_bits(data), "little")
    if not mask:
        return pack(numbers)
    listed = pack(numbers)
    if listed[:1] == _LIST:
        for number in numbers:
            mask |= 1 << number
    else:
        mask |= int.from_bytes(_bits(listed), "little")
    return _of_mask(mask)


def _numbers(data: bytes) -> array[int]:
    found = array("I", data[1:])
    if sys.byteorder == "big":
        found.byteswap()
    return found


def _bits(data: bytes) -> bytes:
    """:raises ValueError: if it is not a set."""
    kind = data[:1]
    if kind == _BITS:
        return data[1:]
    if kind != _SQUEEZED:
        raise ValueError(f"a set of minions begins with {kind!r}")
    return zlib.decompress(data[1:])
