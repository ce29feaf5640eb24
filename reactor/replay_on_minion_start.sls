#!py
"""
Replays what a minion is owed when it starts, on masters whose job_retry engine does not do so by itself
(``job_retry: {triggers: presence}``).

Map ``salt/minion/*/start`` to it:

    reactor:
      - 'salt/minion/*/start':
        - /…/saltext/jobs/reactor/replay_on_minion_start.sls

A minion can fire this event in another's name. At worst the other's queue is tried too early: jobs that it has
not received stay owed to it. The replay is for the minion that the tag names, and the event's ``id`` must be the same.
Nothing else is used.

At most three replays of one minion are started in ten minutes, and a thousand in all. Beyond that, owed jobs wait for the
next sign of life.

Do not map other tags to it, least of all frequent ones (beacons, returns).
"""

import re

from saltext.jobs.core.master.reactions import may_act

_START = re.compile(r"salt/minion/([^/]+)/start")
# No character of these has a meaning in a target of type list.
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,252}")


def run():
    match = _START.fullmatch(tag)
    minion = match[1] if match else ""
    if not _ID.fullmatch(minion) or not isinstance(data, dict) or data.get("id") != minion:
        return {}
    if not may_act("replay_on_minion_start", (3, 600), minion, in_all=(1000, 600)):
        return {}
    return {"replay": {"runner.job_retry.replay": [{"args": [{"minion": minion}]}]}}
