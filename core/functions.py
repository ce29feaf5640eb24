"""
Salt's functions that are not ordinary jobs (signals to other jobs, and questions); and the function and the success of a
return, whose fields may hold anything. Pure.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from typing import Any

#: Signals to other jobs: a job that they end is not delivered any more.
KILLS = frozenset(map("saltutil.{}".format, ("kill_job", "term_job", "signal_job", "kill_all_jobs", "term_all_jobs")))

#: What ``saltutil.signal_job`` can send to a job without ending it, as text: SIGUSR1 makes Salt dump its stack.
_NUMBERS = (0, signal.SIGUSR1, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCONT)
HARMLESS = frozenset(str(int(number)) for number in (*_NUMBERS, signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH))

#: Kills, and questions about other jobs, such as those of a ``salt`` command that waits: they mean nothing later.
NEVER_OWED = KILLS | {f"saltutil.{name}" for name in ("find_job", "find_cached_job", "is_running", "running")}
NEVER_OWED |= {"job_once.seen"}
#: Questions about which minions are there and what runs, from people, Salt's own commands and the engines.
LOOKS = NEVER_OWED - KILLS | {"test.ping"}
#: The prefix of functions of which Salt runs only one at a time on a minion.
_STATES = "state."
#: The prefixes of functions that were called on the master itself, as Salt stores them.
_ON_MASTER = ("runner.", "wheel.")
#: What ``kind_of`` returns.
JOBS, RUNNERS, LOOKING = KINDS = ("jobs", "runners", "looks")


def runs_states(fun: object) -> bool:
    """Tell whether Salt refuses to run a function on a minion that already runs another one of this kind."""
    return isinstance(fun, str) and fun.startswith(_STATES)


def kind_of(fun: str) -> str:
    """Return the kind of a job. :param fun: its function, or several with commas between them."""
    names = fun.split(",")
    if all(name.startswith(_ON_MASTER) for name in names):
        return RUNNERS
    return LOOKING if all(name in LOOKS for name in names) else JOBS


# -- what a return says ---------------------------------------------------------------------------------------------------

#: Retcodes have 32 bits, as exit codes do, so the engines can store them anywhere. Anything else is a failure.
_LOWEST, _HIGHEST = -(2**31), 2**31 - 1
_NUMBER = re.compile(r"-?[0-9]{1,10}")
#: Most characters of a name: that of one function, or those of several, joined.
LONGEST_NAME = 1000


def retcode_of(ret: Mapping[str, Any]) -> int:
    """
    Return the exit code of a return whose fields may hold anything: 0 for success, at most 32 bits. ``retcode`` may be
    missing (then success decides), a number, or a dict or list with one for each of several functions (the worst counts).
    ``success: False`` with a retcode of 0 (a minion could not run the function), and anything else, counts as 1.
    """
    code = ret.get("retcode")
    if type(code) is not int and isinstance(code, (Mapping, list, tuple)):
        codes = code.values() if isinstance(code, Mapping) else code
        number = max(map(_number, codes), default=0, key=abs)
    else:
        number = _number(code)
    return 1 if number == 0 and ret.get("success") is False else number


def _number(value: Any) -> int:
    if type(value) is int:
        return value if _LOWEST <= value <= _HIGHEST else 1
    if value is None:
        return 0
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = int(value)  # some job caches keep it as text
    # a database without integers returns a whole float; the limits keep out inf and nan
    if isinstance(value, (int, float)) and _LOWEST <= value <= _HIGHEST and value == int(value):
        return int(value)
    return 1


def function_of(data: Mapping[str, Any]) -> str:
    """Return the name of the function of a job or return; several are joined by commas. Empty if it is not a name."""
    fun = data.get("fun")
    if isinstance(fun, (list, tuple)) and len(fun) <= LONGEST_NAME and all(isinstance(name, str) for name in fun):
        fun = ",".join(fun)
    return fun if isinstance(fun, str) and len(fun) <= LONGEST_NAME else ""
