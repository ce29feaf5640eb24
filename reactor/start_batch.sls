#!py
"""
Starts a batch that an operator asks for with an event:

    salt-run event.send operations/batch '{"tgt": "web*", "fun": "state.apply", "batch": "10%"}'

Map a tag of your own to it, and list in the master's configuration the functions that may be started, with their arguments:

    reactor:
      - operations/batch:
        - /…/saltext/jobs/reactor/start_batch.sls

    saltext_jobs_start_batch:
      state.apply: {}
      pkg.upgrade: {dist_upgrade: False}

**Any accepted minion can put an event of any tag on the master's bus, and so start what you list, on any target.** List only
what every minion may do to all others, and never a function that runs its arguments. Without a list, nothing is started.
Never map a tag to it that minions fire in their daily work (``salt/minion/*``, ``salt/job/*``, beacons).

Fields: ``tgt`` (a glob), ``fun`` (one of those listed), ``batch`` (a count, a percentage, or a ramp such as 1,10%,50%). Each is
checked: an event that lacks a field, has a further field, or has a malformed value starts nothing. Arguments come from your
configuration alone. At most ten batches an hour are started in all.
"""

import re

from saltext.jobs.core.master.reactions import ignore, may_act

_TARGET = re.compile(r"[A-Za-z0-9*?][A-Za-z0-9_.*?-]{0,252}")
_BATCH = re.compile(r"[0-9]{1,6}%?(,[0-9]{1,6}%?){0,9}")
_FIELDS = {"tgt", "fun", "batch"}


def run():
    allowed = __opts__.get("saltext_jobs_start_batch") or {}
    # An event with more fields than these and its time stamp is not even searched.
    is_short = isinstance(data, dict) and len(data) <= len(_FIELDS) + 1
    fields = {name: value for name, value in data.items() if name != "_stamp"} if is_short else {}
    tgt, fun, batch = (fields.get(name) for name in ("tgt", "fun", "batch"))
    if (
        set(fields) != _FIELDS
        or not all(isinstance(value, str) for value in (tgt, fun))
        or isinstance(batch, bool)
        or not isinstance(batch, (int, str))
        or not _TARGET.fullmatch(tgt)
        or not _BATCH.fullmatch(str(batch))
        or fun not in allowed
    ):
        shown = (not is_short and "it has other fields too") or {name: value[:100] if isinstance(value, str) else type(value).__name__ for name, value in fields.items()}
        ignore("start_batch.sls", "Starting no batch, because the event is not as start_batch.sls says: %.200s", shown)
        return {}
    if not may_act("start_batch", (10, 3600)):
        return {}
    args = [{"tgt": tgt}, {"fun": fun}, {"batch": str(batch)}, {"kwarg": dict(allowed[fun] or {})}]
    return {"start batch": {"runner.batch.start": [{"args": args}]}}
