"""
Jobs and returns as a master makes them, without minions: the job cache is written and the events are fired by Salt's own
code, so that thousands of returns can be had in seconds.
"""

from __future__ import annotations

import contextlib
import sys
import time

import salt.minion
import salt.utils.event
import salt.utils.jid
import salt.utils.job


class Load:
    """
    :param opts: the configuration of a master that runs.
    """

    def __init__(self, opts):
        self.opts = dict(opts)
        self._stack = contextlib.ExitStack()
        self._mminion = self._stack.enter_context(salt.minion.MasterMinion(self.opts, states=False, rend=False))
        self._event = self._stack.enter_context(
            salt.utils.event.get_master_event(self.opts, self.opts["sock_dir"], listen=False)
        )
        # The loaders of a process share their modules. A module works for the master whose loader loaded it last, so this
        # loader gets one that no other loader knows.
        self._forget_job_cache()
        self._mminion.returners[f"{self.opts['master_job_cache']}.get_load"]
        self._forget_job_cache()
        #: (jid, minion) of every return that was made.
        self.made = []

    def _forget_job_cache(self):
        for name in [name for name in sys.modules if name.endswith(f".returner.{self.opts['master_job_cache']}")]:
            del sys.modules[name]

    def close(self):
        self._stack.close()

    def publish(self, minions, fun="test.echo", arg=("x",), cached=True, fires=True, jid=None, **more):
        """Announce a job and keep its load, as the master's publish does. Returns its jid."""
        jid = jid or salt.utils.jid.gen_jid(self.opts)
        load = {"jid": jid, "tgt": list(minions), "tgt_type": "list", "user": "anna", "fun": fun, "arg": list(arg)}
        returners = self._mminion.returners
        name = self.opts["master_job_cache"]
        if cached:
            returners[f"{name}.prep_jid"](passed_jid=jid)
        if fires:
            self._event.fire_event({**load, "minions": list(minions), "missing": []}, f"salt/job/{jid}/new")
        if cached:
            full = {
                **load,
                "cmd": "publish",
                "ret": "",
                "kwargs": {"metadata": {"ticket": 7}, "token": "secret"},
                **more,
            }
            returners[f"{name}.save_load"](jid, full, minions=list(minions))
        return jid

    def give_back(self, jid, minion, value="x", fun="test.echo", fires=True, **more):
        """Store a minion's return and fire its event, as the master does when one comes in."""
        load = {"cmd": "_return", "id": minion, "jid": jid, "fun": fun, "fun_args": ["x"]}
        load.update({"return": value, "retcode": 0, "success": True}, **more)
        salt.utils.job.store_job(self.opts, load, event=self._event if fires else None, mminion=self._mminion)
        self.made.append((jid, minion))

    def run(self, rate, seconds, minions=50, while_running=None):
        """Give back ``rate`` returns a second for some seconds, in jobs of ``minions`` minions each."""
        start, made, jid = time.monotonic(), 0, None
        while (elapsed := time.monotonic() - start) < seconds:
            if while_running:
                while_running(elapsed)
            while made < elapsed * rate:
                if made % minions == 0:
                    jid = self.publish([f"m{n}" for n in range(minions)])
                self.give_back(jid, f"m{made % minions}", value={"number": made, "text": "y" * 200})
                made += 1
            time.sleep(0.005)
