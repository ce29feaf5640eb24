"""
Runs the demo; with the word ``console``, its fleet and the console until Ctrl-C.

The demo exits with 0 only if every step held, with 1 and the tail of the right log if one did not, and with 128 and the
signal's number when it is interrupted. In every case it first stops what it has started and removes its files.
"""

from __future__ import annotations

import signal
import sys
import time
import traceback
from types import FrameType

from demo import screen
from demo.console import serve
from demo.fleet import MINIONS, Fleet, StepFailed, quiet_salt
from demo.steps import STEPS

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal asks the demo to end. Not an Exception, so that no code takes it for a step's failure."""


def _interrupt(number: int, _frame: FrameType | None) -> None:
    # From here on nothing may keep the clean-up from finishing; it takes ten seconds at most.
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted(number)


def main() -> int:
    """Run all steps and return the exit code."""
    for each in _SIGNALS:
        signal.signal(each, _interrupt)
    quiet_salt()
    begun = time.monotonic()
    try:
        with Fleet() as fleet:
            failed = _run(fleet, sys.argv[1:] == ["console"])
            for each in _SIGNALS:
                signal.signal(each, signal.SIG_IGN)
    except Interrupted as signalled:
        print(f"\nInterrupted: everything is stopped, and {fleet.root} is removed.", flush=True)
        return 128 + int(signalled.args[0])
    verdict = f"The step '{failed}' failed" if failed else "All steps held"
    print(f"\n{verdict}. {time.monotonic() - begun:.0f} s; no process and no file is left.", flush=True)
    return 1 if failed else 0


def _run(fleet: Fleet, console: bool) -> str | None:
    """Run the steps, or the console; returns the name of what failed."""
    name = "A master with both engines and four minions"
    try:
        print(f"{name}, in {fleet.root}. This takes one to two minutes.", flush=True)
        if console:
            name = "The console"
            serve(fleet)
        fleet.start_master()
        for minion in MINIONS:
            fleet.start_minion(minion)
        fleet.wait_for_minions(*MINIONS)
        screen.say(f"the minions {', '.join(MINIONS)} answer")
        for number, (name, step) in enumerate(STEPS, 1):
            screen.title(number, name)
            step(fleet)
    except StepFailed as failure:
        print(f"\nFAILED: {name}: {failure}", flush=True)
        _show_logs(fleet, failure.logs)
        return name
    except Exception:
        print(f"\nFAILED: {name}: an error in the demo itself\n{traceback.format_exc()}", flush=True)
        _show_logs(fleet, ("master",))
        return name
    return None


def _show_logs(fleet: Fleet, names: tuple[str, ...]) -> None:
    for name in names:
        print(f"\nThe end of the log of {name}:")
        for line in fleet.log_tail(name):
            print(f"   {line}")


if __name__ == "__main__":
    sys.exit(main())
