"""
What minions say that they run at this moment. Each minion's answer counts for that minion alone. Blocks.

It must never take a minion's silence for an answer.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

import salt.client
import salt.exceptions

from saltext.jobs.core.display.command import published_words
from saltext.jobs.core.errors import Refused
from saltext.jobs.core.functions import LOOKING, kind_of
from saltext.jobs.core.ids import is_plain, jid_time
from saltext.jobs.core.master.caller import Caller, minions_to_ask, require_no_peer
from saltext.jobs.core.returned import function_of

_QUESTION = "saltutil.running"
#: Most jobs of one minion that are shown.
_MOST = 200
#: ``{jid: fields}``: what else is known of jobs, which replaces what minions say.
Known = Mapping[str, Mapping[str, Any]]


def ask(
    opts: Mapping[str, Any], who: Caller, tgt: Any, tgt_type: str, timeout: float
) -> tuple[dict[str, Any], list[str]]:
    """
    Ask minions what they run. Blocks.

    :param timeout: seconds to wait for answers.
    :return: the answers, whatever they hold, and the minions that did not answer.
    :raises Refused: when ``who`` may not ask them, when the target matches no minion, or the master publishes nothing.
    """
    require_no_peer(who)
    matched = minions_to_ask(opts, who, tgt, tgt_type, (_QUESTION, []))
    try:
        with salt.client.get_local_client(mopts=dict(opts)) as client:
            # By name: minions match a target themselves, so others might answer than the caller was allowed to ask.
            answers = client.cmd(matched, _QUESTION, tgt_type="list", timeout=timeout) or {}
    except salt.exceptions.SaltException as exc:
        raise Refused(f"The minions cannot be asked: {exc}") from exc
    given = {minion: answers[minion] for minion in matched if isinstance(answers.get(minion), list)}
    return given, sorted(set(matched) - given.keys())


def running(answers: Mapping[str, Iterable[Any]], batches: Known, replays: Known) -> list[dict[str, Any]]:
    """
    Return what runs, a dict for each job; the job that runs on most minions comes first. See ``job_cache.running``.

    If minions name different functions or arguments under one jid, each of these gets a row of its own. So the answer of
    one minion changes nothing that is shown of another.

    :param answers: what each minion says. Questions are skipped, and so is anything that does not have the form of a job.
    :param batches: the batches that have not ended: each has a row, even if no minion runs it at this moment.
    :param replays: what the retry queue has under way.
    """
    found: dict[tuple[Any, ...], dict[str, Any]] = {
        (jid,): {"jid": jid, "kind": "batch", **about, "minions": [], "kill": f"salt-run batch.stop {jid} kill=True"}
        for jid, about in batches.items()
    }
    for minion, jobs in answers.items():
        for job in itertools.islice(jobs, _MOST):
            if not isinstance(job, Mapping):
                continue
            jid, fun = job.get("jid"), function_of(job)
            if not isinstance(jid, str) or not is_plain(jid) or not fun or kind_of(fun) == LOOKING:
                continue
            row = found[(jid,)] if jid in batches else _row_of(found, {**_said(jid, fun, job), **replays.get(jid, {})})
            if minion not in row["minions"][-1:]:
                row["minions"].append(minion)
    for row in found.values():
        row["minions"].sort()
    return sorted(found.values(), key=lambda row: (-len(row["minions"]), row["jid"]))


def _row_of(found: dict[tuple[Any, ...], dict[str, Any]], said: dict[str, Any]) -> dict[str, Any]:
    return found.setdefault((said["jid"], said["fun"], *said["arguments"]), said)


def _said(jid: str, fun: str, job: Mapping[str, Any]) -> dict[str, Any]:
    tgt = job.get("tgt")
    told = {name: value if isinstance(value := job.get(name), str) else None for name in ("tgt_type", "user")}
    return {
        "jid": jid,
        "kind": "job",
        "fun": fun,
        "arguments": published_words(job.get("arg")),
        "tgt": tgt if isinstance(tgt, (str, list)) else None,
        **told,
        "state": "running",
        "since": jid_time(jid),
        "minions": [],
        "kill": f"salt '*' saltutil.kill_job {shlex.quote(jid)}",
    }
