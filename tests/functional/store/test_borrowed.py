"""
Users publish under each other's jids. Minions run the first job that reaches them under a jid, and forget all jids when
they restart. What does the job cache then say about who has run what? The truth is what the minions have done.
"""

from __future__ import annotations

import random

import pytest
import salt.cache

from tests.functional.options import options_in
from tests.functional.store.test_contract import Returner

JOBS = [
    ("state.apply", ["web"]),
    ("state.apply", ["web", {"__kwarg__": True, "test": True}]),
    ("test.ping", []),
    ("saltutil.find_job", ["1"]),
    (["test.ping", "state.apply"], [[], ["web"]]),
    (["state.apply", "test.ping"], [["web"], []]),
]
MINIONS = ["m1", "m2", "m3"]


class World:
    """One jid, and the minions."""

    def __init__(self, job_cache, jid, chance):
        self.job_cache, self.jid, self.chance = job_cache, jid, chance
        self.job = chance.randrange(len(JOBS))  # whose jid it is
        self.known = dict.fromkeys(MINIONS, False)  # the minions that remember the jid
        self.away = {minion for minion in MINIONS if chance.random() < 0.4}
        self.on_the_way = []  # returns
        self.has_run, self.borrowed = set(), False

    def publish(self, number, user):
        fun, arg = JOBS[number]
        load = {"cmd": "publish", "jid": self.jid, "fun": fun, "arg": arg, "tgt": "*", "tgt_type": "glob", "user": user}
        passed = self.job_cache.prep_jid(nocache=number != self.job and self.chance.random() < 0.3, passed_jid=self.jid)
        assert passed == self.jid
        self.job_cache.save_load(self.jid, load, minions=MINIONS)
        self.borrowed |= number != self.job
        for minion in MINIONS:
            if minion not in self.away and not self.known[minion]:
                self.known[minion] = True
                self.on_the_way.append((minion, number))

    def deliver(self):
        minion, number = self.on_the_way.pop(self.chance.randrange(len(self.on_the_way)))
        fun, arg = JOBS[number]
        said = {"jid": self.jid, "id": minion, "fun": fun, "fun_args": arg, "return": number, "retcode": 0}
        stored = self.job_cache.returner(said)
        if number == self.job:
            assert stored is (False if minion in self.has_run else None)
            self.has_run.add(minion)
        else:
            assert stored is False

    def step(self):
        what, minion = self.chance.random(), self.chance.choice(MINIONS)
        if what < 0.25:
            self.publish(self.chance.randrange(len(JOBS)), "anna")
        elif what < 0.4:
            self.publish(self.job, "root")
        elif what < 0.55:
            self.known[minion] = False  # restarted
        elif what < 0.7:
            self.away ^= {minion}
        elif self.on_the_way:
            self.deliver()

    def check(self):
        found = self.job_cache.get_jid(self.jid)
        assert set(found) == self.has_run
        assert all(record["return"] == self.job for record in found.values())


@pytest.mark.parametrize("driver", ["localfs", "sqlite"])
@pytest.mark.parametrize("seed", range(2))
def test_the_job_cache_has_of_each_job_what_minions_ran_of_it_and_nothing_else(tmp_path, driver, seed):
    opts = options_in(tmp_path, master_job_cache="salt_cache", cache=driver)
    chance = random.Random(seed)
    for number in range(12):
        job_caches = [Returner(opts), Returner({**opts, "process": number})]
        world = World(job_caches[0], f"202605161200000{number:05}", chance)
        world.publish(world.job, "root")
        for _ in range(40):
            world.job_cache = chance.choice(job_caches)  # another worker, which remembers other things
            world.step()
        while world.on_the_way:
            world.deliver()
        world.check()


def test_a_load_that_the_publish_did_not_store_says_nothing_of_what_the_job_is(tmp_path):
    """A worker may read the load before another worker stores the publish, and the record of the publish after that."""
    opts = options_in(tmp_path, master_job_cache="salt_cache", cache="localfs")
    jid, job_cache = "20260516120000000000", Returner(opts)
    job_cache.save_load(jid, {"jid": jid, "fun": "state.apply", "arg": [], "tgt": "*", "user": "root"}, minions=["m1"])
    published = job_cache.fetch("jobs/published", jid)
    cache = salt.cache.Cache(opts)
    cache.store("jobs/loads", jid, {"jid": jid, "fun": "reported.before", "id": "m1", "return": 1})
    assert job_cache.returner({"jid": jid, "id": "m1", "fun": "state.apply", "fun_args": [], "return": 1}) is None
    assert (list(job_cache.get_jid(jid)), job_cache.fetch("jobs/published", jid)) == (["m1"], published)
