"""
Run the job_recorder engine with notices, as Salt's loader has it, in a process of its own: ``run.py FOLDER OPTIONS MORE``,
where ``OPTIONS`` are those of notices and ``MORE`` those of the master.
"""

from __future__ import annotations

import json
import logging
import sys

import salt.loader

from tests.event_bus import options


def main(folder, given, more):
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr, force=True)
    opts = {
        **options(folder),
        "job_notices": json.loads(given),
        "hash_type": "sha256",
        "engines": ["job_retry"],
        **json.loads(more),
    }
    salt.loader.engines(opts, {}, {}, {})["job_recorder.start"]()


if __name__ == "__main__":
    main(*sys.argv[1:])
