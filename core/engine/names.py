"""The names of the engines: in `engines:`, as sections of the master's configuration, in tags and in paths."""

from __future__ import annotations

BATCH_MANAGER = "batch_manager"
JOB_RETRY = "job_retry"
JOB_RECORDER = "job_recorder"
ENGINES = (BATCH_MANAGER, JOB_RETRY, JOB_RECORDER)
