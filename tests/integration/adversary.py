"""
An accepted minion that has turned: ``adversary.py CONFIG JIDS SECONDS SEED``.

With the keys of the minion whose configuration that is, it sends the master every command that it takes from a minion, as
fast as the master answers, with crafted and random fields: each command once, however long that takes. The file JIDS has the
jids of jobs that it would like to disturb. At its end it prints what it has sent.

Things that Salt itself lets a minion do are left out: to store returns of others, as a syndic does, or on Salt 3008 a minion
with resources; and to remove its own key from the master.
"""

from __future__ import annotations

import collections
import json
import pathlib
import random
import sys
import time

import salt.channel.client
import salt.config

VICTIMS = ("g1", "g2", "away")
ENGINES = ("batch_manager", "job_retry", "job_recorder")
#: Events in one request: the master takes them as fast as it can put them on its bus.
BURST = 50
#: Commands that do much in the master for each request are sent less often than events.
COMMANDS = {
    "_minion_event": 60,
    "_return": 12,
    "_syndic_return": 6,
    **dict.fromkeys(("pub_ret", "minion_pub", "minion_publish", "minion_runner"), 4),
    **dict.fromkeys(("_mine", "_mine_get"), 3),
    **dict.fromkeys(("_mine_delete", "_file_recv", "_file_hash", "_serve_file", "verify_minion"), 2),
    **dict.fromkeys(("_mine_flush", "_file_list", "_master_opts", "_master_tops", "_pillar"), 1),
    **dict.fromkeys(("_register_resources", "no_such_command"), 1),
}
FIELDS = (
    *("jid", "id", "fun", "fun_args", "arg", "return", "retcode", "success", "minions", "tgt", "tgt_type", "user"),
    *("new", "lost", "act", "result", "n", "signature", "state", "metadata", "ret", "nocache", "_stamp", "cmd"),
    *("data", "out"),
)
ODD = (
    *(None, True, -1, 0, 2**63 - 1, 2**64 - 1, float("inf"), float("nan"), 1e308, "", "0", "9" * 30, "\u0663" * 20),
    *("../../x", "\0", "x" * 3000, b"\xff\xfe", "\ud7ff", [], {}, [[[[]]]], {"a": {"b": []}}, [None] * 50, {"": ""}),
)


class Adversary:
    """:param jids: jids of jobs that are worth disturbing, read again now and then."""

    def __init__(self, own: str, jids: pathlib.Path, seed: int) -> None:
        self.own, self._file, self.random = own, jids, random.Random(seed)
        self._jids: list[str] = []
        #: What it tries first: each command once.
        self.untried = self.random.sample(list(COMMANDS), len(COMMANDS))

    def look(self):
        """Learn of new jobs, as a minion does that sees publishes."""
        self._jids = self._file.read_text().split()[-20:]

    def jid(self):
        kind = self.random.random()
        if self._jids and kind < 0.6:
            return self.random.choice(self._jids)
        now = time.strftime("%Y%m%d%H%M%S") + f"{self.random.randrange(10**6):06}"
        made_up = ["9" * 20, "0" * 20, "20260516101112131415", "UNKNOWN", "../..", now + "_2", "\u0663" * 20]
        return now if kind < 0.9 else self.random.choice(made_up)

    def victim(self):
        return self.random.choice([*VICTIMS, self.own, "../x", "", "nobody"])

    def value(self):
        kind = self.random.random()
        if kind < 0.7:
            return self.random.choice(ODD)
        if kind < 0.9:
            return self.random.choice([self.jid(), self.victim(), "cmd.run", "test.ping", "state.apply", ["id"], "*"])
        return {self.random.choice(FIELDS): self.random.choice(ODD) for _ in range(self.random.randrange(6))}

    def job(self, jid, minion):
        """A return or a published load that looks genuine except for a field or two."""
        data = {"jid": jid, "id": minion, "fun": "cmd.run", "fun_args": [], "return": "forged", "retcode": 0}
        data.update({"minions": list(VICTIMS), "tgt": "*", "tgt_type": "glob", "user": "root", "arg": ["id"]})
        for _ in range(self.random.choice([0, 0, 1, 1, 2, 4])):
            data[self.random.choice(FIELDS)] = self.value()
        return data

    def event(self):
        jid, minion, engine = self.jid(), self.victim(), self.random.choice(ENGINES)
        tag = self.random.choice(
            [
                *[f"salt/job/{jid}/ret/{minion}"] * 6,
                *[
                    f"salt/job/{jid}/start/{minion}",
                    f"salt/job/{jid}/new",
                    f"salt/job/{jid}/{minion}",
                    f"salt/job/{jid}",
                ]
                * 2,
                *[
                    f"salt/minion/{minion}/start",
                    f"salt/beacon/{minion}/load/",
                    "salt/presence/change",
                    "salt/key",
                    "salt/auth",
                ],
                *[f"salt/batch/{jid}/{kind}" for kind in ("stop", "new", "complete", "halted", "paused", "recover")],
                *[f"salt/job_retry/{minion}/{jid}/{kind}" for kind in ("done", "cancelled")],
                f"saltext/jobs/{engine}/beat/{self.random.randrange(10**5)}",
                *[
                    f"syndic/job/{jid}/ret/{minion}",
                    f"salt/run/{jid}/ret",
                    f"salt/run/{jid}/new",
                    jid,
                    str(self.value())[:200],
                ],
            ]
        )
        data = self.job(jid, minion) if self.random.random() < 0.8 else {"": self.value()}
        return {"tag": tag, "data": data}

    def request(self):
        command = self.untried.pop() if self.untried else self.random.choices(list(COMMANDS), COMMANDS.values())[0]
        load = {"cmd": command, "id": self.own}
        if command == "_minion_event":
            return {**load, "events": [self.event() for _ in range(BURST)], "pretag": None}
        if command == "_return":
            return {**self.job(self.jid(), self.own), **load}
        if command == "_syndic_return":
            # Not for a job of others: Salt stores what a syndic says.
            forged = {"jid": self.random.choice(["9" * 20, "0" * 20, "x"]), "id": self.own, "fun": self.value()}
            forged["return"] = {self.own: {"return": self.value(), "retcode": self.value()}}
            return {**load, **forged} if self.random.random() < 0.5 else {**load, "load": [forged]}
        if command in ("minion_pub", "minion_publish", "minion_runner", "pub_ret"):
            runner = self.random.choice(
                ["batch.start", "batch.stop", "job_retry.cancel", "job_retry.pause", "salt.execute"]
            )
            more = {
                "fun": runner if command == "minion_runner" else "cmd.run",
                "arg": ["*", "cmd.run", "id"],
                "tgt": "*",
            }
            return {**load, **more, "ret": "", "kwargs": {}, "jid": self.jid(), "tmo": 1}
        more = {self.random.choice(FIELDS): self.value() for _ in range(4)}
        return {**more, "path": "x", "saltenv": "base", "loc": 0, **load}


def main() -> None:
    config, jids, seconds, seed = sys.argv[1:]
    opts = salt.config.minion_config(config)
    opts["master_uri"] = f"tcp://127.0.0.1:{opts['master_port']}"
    adversary, sent = Adversary(opts["id"], pathlib.Path(jids), int(seed)), collections.Counter()
    end = time.monotonic() + float(seconds)
    while adversary.untried or time.monotonic() < end:
        with salt.channel.client.ReqChannel.factory(opts) as channel:
            token = channel.auth.gen_token(b"salt")
            for _ in range(500):
                if time.monotonic() >= end and not adversary.untried:
                    break
                if not sum(sent.values()) % 50:
                    adversary.look()
                load = adversary.request()
                sent[load["cmd"]] += 1
                try:
                    channel.send({**load, "tok": token}, tries=1, timeout=20)
                except Exception as exc:
                    # Whatever the master does with it, the next one follows.
                    sent[type(exc).__name__] += 1
                    break
    sent["events"] = sent["_minion_event"] * BURST
    print(json.dumps(sent))


if __name__ == "__main__":
    main()
