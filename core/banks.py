"""
The names of banks, as drivers of ``salt.cache`` get them: paths with slashes. Pure.

The banks of the job cache are those of Salt 3008's own ``salt_cache``; those from ``PUBLISHED`` on are ours.
"""

from __future__ import annotations

from typing import Any

from saltext.jobs.core.errors import StateError

LOADS = "jobs/loads"
MINIONS = "jobs/minions"
RETURNS = "jobs/returns"  # with a bank below it for each job
ENDTIMES = "jobs/endtimes"
NOCACHE = "jobs/nocache"
PUBLISHED = "jobs/published"
#: Those with a value for a job, its load first.
OF_JOBS = (LOADS, MINIONS, PUBLISHED, NOCACHE, ENDTIMES)


def plain_bank(bank: Any) -> str:
    """Return the normal form of a bank's name. :raises StateError: for an invalid one, and one that leads outside."""
    if not isinstance(bank, str):
        raise StateError(f"the bank is {bank!r}; accepted is a text")
    if "//" not in bank and "." not in bank and bank and bank[0] != "/" != bank[-1]:
        return bank
    parts = [part for part in bank.split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        raise StateError(f"the bank is {bank!r}; accepted are names with slashes between them, and none that leads out")
    return "/".join(parts)


def below(name: str) -> tuple[str, str]:
    """Return the two names between which the names of a bank's sub-banks sort."""
    return f"{name}/", f"{name}0"  # 0 comes after the slash
