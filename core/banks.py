"""The banks of the job cache, as Salt 3008's own ``salt_cache`` has them; those from ``PUBLISHED`` on are ours."""

from __future__ import annotations

LOADS = "jobs/loads"
MINIONS = "jobs/minions"
RETURNS = "jobs/returns"  # a bank for each job in it
ENDTIMES = "jobs/endtimes"
NOCACHE = "jobs/nocache"
PUBLISHED = "jobs/published"
ASIDE = "jobs/corrupt"  # records that were set aside
OWED = "job_retry/jobs"  # of the retry queue: the jobs that minions are owed; keys are jids
