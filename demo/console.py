"""
The demo's fleet with the console, to look around: a salt-api, some users, and something to see.

It runs until it is interrupted. The password is a new one each time, and salt-api listens on loopback only.
"""

from __future__ import annotations

import secrets
import signal

from demo import screen
from demo.fleet import MINIONS, Fleet, StepFailed
from demo.processes import wait_for

#: The users, and their rights.
USERS = {
    "admin": [".*", "@runner"],
    "reader": [{"@runner": ["batch.list", "batch.status", "batch.minions", "job_retry.list", "job_retry.stats"]}],
    "batcher": ["test.*", {"@runner": ["batch.*"]}],
}


def serve(fleet: Fleet) -> None:
    """Start everything, say where it is, and wait for a signal, whose handler ends the demo."""
    password = secrets.token_urlsafe(9)
    address = fleet.start_with_api(
        sharedsecret=password, external_auth={"sharedsecret": USERS}, netapi_enable_clients=["runner"]
    )
    for minion in MINIONS:
        fleet.start_minion(minion)
    fleet.wait_for_minions(*MINIONS)
    fleet.start_api(next(iter(USERS)), password)
    _give_something_to_see(fleet)
    print(f"\nThe console:      {address}")
    print(f"User:             {', '.join(USERS)}")
    print(f"Password:         {password}")
    print("Authentication:   sharedsecret")
    print("\nCtrl-C stops everything and removes it.", flush=True)
    while True:
        signal.pause()


def _give_something_to_see(fleet: Fleet) -> None:
    """A batch that has ended, one that runs, and a minion that is away and is owed a job."""
    absent = MINIONS[-1]
    fleet.run("batch.start", "*", "test.version", "batch=2")
    fleet.stop_minion(absent)
    screen.say(f"the minion {absent} is down, and misses a job")
    jid = fleet.publish("*", "cmd.run", "echo made it")
    if not wait_for(lambda: fleet.ask("jobs.lookup_jid", jid), 60.0):
        raise StepFailed(f"a return of {jid}")
    fleet.ask("job_retry.enqueue", jid, [absent])
    fleet.run("batch.start", f"L@{','.join(MINIONS[:-1])}", "test.sleep", "600", "tgt_type=compound", "batch=1")
