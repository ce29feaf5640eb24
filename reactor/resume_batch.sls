#!py
"""
Resumes a paused batch when an operator's event says so:

    salt-run event.send operations/resume/20260516101112131415

Map a tag of your own to it:

    reactor:
      - 'operations/resume/*':
        - /…/saltext/jobs/reactor/resume_batch.sls

Any accepted minion can fire such an event and so resume a batch that you have paused. Do not use it where a pause must hold
against your minions, and never map ``salt/batch/*/paused`` to it: a batch that paused for a reason would go on at once.

Only the jid in the event's tag is used, which must have the form of a jid. The runner refuses it unless it is the jid of a
paused batch. One batch is resumed at most five times an hour, and all batches together sixty times.
"""

import re

from saltext.jobs.core.master.reactions import may_act

_TAG = re.compile(r"operations/resume/([0-9]{20}(_[0-9]{1,9})?)")  # unique_jid adds the process id


def run():
    match = _TAG.fullmatch(tag)
    if not match or not may_act("resume_batch", (5, 3600), match[1], in_all=(60, 3600)):
        return {}
    return {"resume": {"runner.batch.resume": [{"args": [{"jid": match[1]}]}]}}
