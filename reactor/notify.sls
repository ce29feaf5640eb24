#!py
"""
Tells people through a function of your choice that a batch was halted, or that a retried job was given up.

Map these two tags to it:

    reactor:
      - 'salt/batch/*/halted':
        - /…/saltext/jobs/reactor/notify.sls
      - 'salt/job_retry/*/*/dead':
        - /…/saltext/jobs/reactor/notify.sls

and name the function in the master's configuration:

    saltext_jobs_notify:
      fun: http.query
      kwarg: {url: 'https://chat.example.com/hooks/operations', method: POST}
      text: data

``fun`` is a runner; ``kwarg`` are its arguments, as you write them; ``text`` is the name of the argument that gets the text.

Minions can fire events with these tags too, so a message may be false: use it to inform people, never to trigger anything.
It holds ids and counts in plain characters only, and never what a job returned. At most three messages an hour are sent
about one batch or minion, and at most sixty in all.
"""

import re

from saltext.jobs.core.master.reactions import may_act

_HALTED = re.compile(r"salt/batch/([0-9]{20})/halted")
_DEAD = re.compile(r"salt/job_retry/([^/]+)/([0-9]{20})/dead")
# Everything that may mean something to a shell, to YAML, to Jinja or to a chat.
_UNSAFE = re.compile(r"[^A-Za-z0-9_.:@, -]")


def run():
    wanted = __opts__.get("saltext_jobs_notify")
    halted, dead = _HALTED.fullmatch(tag), _DEAD.fullmatch(tag)
    if not (halted or dead) or not isinstance(data, dict):
        return {}
    if not isinstance(wanted, dict) or not isinstance(wanted.get("fun"), str):
        return {}
    # All messages about one batch or minion count together. This is checked before anything is done with the event.
    if not may_act("notify", (3, 3600), (halted or dead)[1], in_all=(60, 3600)):
        return {}
    text = _text(halted, dead)
    kwarg = {**(wanted.get("kwarg") or {}), wanted.get("text", "message"): text}
    return {"notify": {f"runner.{wanted['fun']}": [{"args": [{name: value} for name, value in kwarg.items()]}]}}


def _text(halted, dead):
    if halted:
        counts = [f"{name} {data[name]}" for name in ("total", "completed", "failed") if isinstance(data.get(name), int)]
        return f"Batch {halted[1]} was halted: {_plain(data.get('halted_reason'))}. {', '.join(counts)}".strip()
    return f"Job {dead[2]} for {_plain(dead[1])} was given up: {_plain(data.get('reason'))}"


def _plain(value):
    # A value that is not a text is not made one: it may be as large as an event.
    text = value[:200] if isinstance(value, str) else f"no text but {type(value).__name__}"
    return _UNSAFE.sub("_", text)
