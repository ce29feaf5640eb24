#!py
"""
Applies the highstate to all minions, a tenth of them at a time, when an operator asks for it with an event:

    salt-run event.send operations/highstate

In the master's configuration (the directory is that of the installed package):

    reactor:
      - operations/highstate:
        - /…/saltext/jobs/reactor/batched_highstate.sls

Any accepted minion can fire an event with any tag. So nothing of the event is used here: it can start only this job. The job
is started at most twice an hour. Do not map a frequent tag to this file, and do not read ``data`` in it.
"""

from saltext.jobs.core.master.reactions import may_act


def run():
    if not may_act("batched_highstate", (2, 3600)):
        return {}
    return {"batched highstate": {"runner.batch.start": [{"args": [{"tgt": "*"}, {"fun": "state.apply"}, {"batch": "10%"}]}]}}
