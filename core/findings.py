"""What the doctors return: how things stand, what an operator may want to change, and the exit status. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

FAULT, ADVICE = "fault", "advice"


class Finding(NamedTuple):
    """What an operator may want to change."""

    code: str  # names this kind of finding, and stays the same; docs/reference/findings.md lists them all
    severity: str  # FAULT, or ADVICE if everything works without the change
    text: str  # what is found, in a sentence
    do: str = ""  # what to do about it, unless the text says that
    part: str = ""  # the part of this extension that it is about; empty if it is about none

    def __str__(self) -> str:
        return f"{self.text}: {self.do}" if self.do else self.text


def fault(code: str, text: str, do: str = "") -> Finding:
    return Finding(code, FAULT, text, do)


def advice(code: str, text: str, do: str = "") -> Finding:
    return Finding(code, ADVICE, text, do)


def examined(standing: Mapping[str, Any], findings: Iterable[Finding], part: str = "") -> dict[str, Any]:
    """
    Return what a doctor returns: ``standing`` (how things stand, by name) with ``findings``, a mapping each, faults first;
    ``faults``, how many these are; and ``retcode``, the exit status of ``salt-run``: 1 if there is a fault.

    :param part: what is examined, for findings that name no part.
    """
    found = sorted(findings, key=lambda one: one.severity != FAULT)
    told = [one._replace(part=one.part or part)._asdict() for one in found]
    faults = sum(one.severity == FAULT for one in found)
    return {**standing, "findings": told, "faults": faults, "retcode": int(faults > 0)}
