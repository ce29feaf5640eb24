"""Salt's functions that are not ordinary jobs: signals to other jobs, and questions. Pure: names only."""

from __future__ import annotations

import signal

#: Signals to other jobs: a job that they end is not delivered any more.
KILLS = frozenset(
    {
        "saltutil.kill_job",
        "saltutil.term_job",
        "saltutil.signal_job",
        "saltutil.kill_all_jobs",
        "saltutil.term_all_jobs",
    }
)

#: What ``saltutil.signal_job`` can send to a job without ending it, as text: SIGUSR1 makes Salt dump its stack.
HARMLESS = frozenset(
    str(int(number))
    for number in (
        0,
        signal.SIGUSR1,
        signal.SIGSTOP,
        signal.SIGTSTP,
        signal.SIGTTIN,
        signal.SIGTTOU,
        signal.SIGCONT,
        signal.SIGCHLD,
        signal.SIGURG,
        signal.SIGWINCH,
    )
)

#: Kills, and questions about other jobs: they mean nothing later. A ``salt`` command that waits for its job publishes
#: ``saltutil.find_job`` every few seconds.
NEVER_OWED = KILLS | {"saltutil.find_job", "saltutil.find_cached_job", "saltutil.is_running", "saltutil.running"}
#: Questions about which minions are there and what runs, from people, Salt's own commands and the engines.
LOOKS = frozenset(
    {"test.ping", "saltutil.find_job", "saltutil.running", "saltutil.find_cached_job", "saltutil.is_running"}
)
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
