"""The banks of the job cache, as Salt 3008's own ``salt_cache`` has them; ``PUBLISHED`` and ``ASIDE`` are ours."""

from __future__ import annotations

LOADS = "jobs/loads"
MINIONS = "jobs/minions"
RETURNS = "jobs/returns"  # a bank for each job in it
ENDTIMES = "jobs/endtimes"
NOCACHE = "jobs/nocache"
PUBLISHED = "jobs/published"
ASIDE = "jobs/corrupt"  # records that were set aside
