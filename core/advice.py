"""What the doctors return: how things stand, what an operator may want to change, and the exit status. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class Advice(str):
    """A finding that is only advice: everything works without the change."""


def examined(standing: Mapping[str, Any], findings: Iterable[str]) -> dict[str, Any]:
    """
    Return what a doctor returns.

    :param standing: how things stand, by name.
    :param findings: a sentence for each thing that an operator may want to change.
    :return: ``standing`` with ``findings``, faults first, then advice; ``faults``, how many of them are faults; and
        ``retcode``, the exit status of ``salt-run``: 1 if there is a fault.
    """
    found = sorted(findings, key=lambda finding: isinstance(finding, Advice))
    faults = sum(not isinstance(finding, Advice) for finding in found)
    return {**standing, "findings": [str(finding) for finding in found], "faults": faults, "retcode": int(faults > 0)}
