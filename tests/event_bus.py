"""Salt's own event publisher in a process of its own, without a master: python -m tests.event_bus FOLDER"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

from tests.waiting import wait_for


def options(folder):
    """The options of a master that has all its files in ``folder``."""
    import salt.config

    made = salt.config.master_config(None)
    made.update(dict.fromkeys(("sock_dir", "root_dir", "cachedir", "pki_dir"), str(folder)))
    return {**made, "conf_file": f"{folder}/master", "id": "m"}


@contextlib.contextmanager
def event_bus(folder):
    """Run the publisher in ``folder``, as the Salt release at hand has it, until the block ends."""
    # A fresh process, and not a fork: that would share the loop of this one.
    command = [sys.executable, "-m", "tests.event_bus", str(folder)]
    process = subprocess.Popen(command, start_new_session=True, stdin=subprocess.PIPE)
    try:
        path = os.path.join(folder, "master_event_pub.ipc")
        wait_for(lambda: os.path.exists(path), what="the publisher's socket")
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def main(folder):
    import salt.channel.server
    import salt.utils.event
    import salt.utils.process

    opts = options(folder)
    manager = salt.utils.process.ProcessManager()
    if hasattr(salt.channel.server, "MasterPubServerChannel"):
        salt.channel.server.MasterPubServerChannel.factory(opts).pre_fork(manager)
    else:  # Salt 3006; 3007 has this too, and does not use it
        manager.add_process(salt.utils.event.EventPublisher, args=(opts,))
    # Until the parent process ends, however it ends.
    sys.stdin.read()
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1])
