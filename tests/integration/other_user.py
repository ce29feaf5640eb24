"""Daemons that are not root's: root gives a user their folder and starts them as that user."""

from __future__ import annotations

import os
import pathlib
import pwd

from saltfactories.daemons.master import SaltMaster
from saltfactories.daemons.minion import SaltMinion

from tests.user import OTHER, USER

#: The user: one other than root. If root does not run the tests, the user who does.
OWNER = pwd.getpwnam(OTHER if os.geteuid() == 0 else USER)
# The checkout and Python may belong to root alone: let that user read them.
_READS = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
#: What comes before a command that this user runs.
AS_OWNER = (
    ("setpriv", f"--reuid={OWNER.pw_uid}", f"--regid={OWNER.pw_gid}", "--clear-groups", *_READS)
    if os.geteuid() == 0
    else ()
)
#: What comes before a command of root's that becomes this user by itself, for the same reason.
AS_ROOT = ("setpriv", "--securebits=+no_setuid_fixup") if os.geteuid() == 0 else ()


def give(daemon):
    """Have the files of a daemon that has not been started be that user's."""
    root = pathlib.Path(daemon.config["root_dir"])
    root.parent.chmod(0o755)
    for path in (root, *root.rglob("*")):
        os.chown(path, OWNER.pw_uid, OWNER.pw_gid)
    if os.geteuid() == 0:
        os.chmod("/dev/shm", 0o1777)  # as on any Linux, and not in some containers: Python's semaphores are there
    return daemon


class _Theirs:
    def cmdline(self, *args):
        return [*AS_OWNER, *super().cmdline(*args)]


class Master(_Theirs, SaltMaster):
    """A master whose option ``user`` is that user's name."""


class Minion(_Theirs, SaltMinion):
    """A minion, likewise."""
