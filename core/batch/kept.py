"""
How the state of a batch is declared: once, where each part of it is defined.

Every attribute is a field of a dataclass with slots, so an undeclared one cannot be set. A field is either kept, which puts
it into the row of the batch, or not: then it is of single minions, made from what is kept, or forgotten with the engine.
Pure: stdlib only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any


def _same(value: Any) -> Any:
    return value


def nothing() -> None:
    """Return None, the first value of a field that is set later."""


def kept(
    make: Callable[[], Any],
    write: Callable[[Any], Any] = _same,
    read: Callable[[Any], Any] = _same,
) -> Any:
    """
    Declare a field of the row of a batch.

    :param make: returns its value in a new batch.
    :param write: returns its value in the form of a row: numbers, strings, lists and dicts.
    :param read: the inverse of ``write``.
    """
    return dataclasses.field(init=False, default_factory=make, metadata={"write": write, "read": read})


def made(make: Callable[[], Any]) -> Any:
    """Declare a field that is not in that row. :param make: returns its value in a new batch."""
    return dataclasses.field(init=False, default_factory=make)


class Kept:
    """A part of a batch's state. Subclasses are dataclasses with slots whose fields are declared as above."""

    __slots__ = ()

    def values(self) -> dict[str, Any]:
        """Return ``{name: value}`` of the kept fields, as plain values."""
        return {field.name: field.metadata["write"](getattr(self, field.name)) for field in _kept_fields(self)}

    def load(self, values: Mapping[str, Any]) -> None:
        """Set the kept fields from what ``values`` returned. :raises ValueError, KeyError, TypeError:"""
        for field in _kept_fields(self):
            setattr(self, field.name, field.metadata["read"](values[field.name]))


def _kept_fields(part: Any) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(part) if "write" in field.metadata]
