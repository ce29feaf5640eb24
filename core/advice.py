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
    :return: ``standing`` with ``findings``, and ``retcode``, the exit status of ``salt-run``: 1 if a finding is more
        than advice.
    """
    found = list(findings)
    trouble = any(not isinstance(finding, Advice) for finding in found)
    return {**standing, "findings": [str(finding) for finding in found], "retcode": int(trouble)}
