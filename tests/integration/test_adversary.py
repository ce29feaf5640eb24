"""
A hostile minion against a master with all three engines: it controls nothing, delays no other and fills nothing.

For as long as SALTEXT_JOBS_ADVERSARY says, in seconds; by default for a quarter of a minute.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time

import psutil
import pytest
import salt.config
from saltfactories.utils import random_string

from saltext.jobs.core.engine import requests
from saltext.jobs.core.lines import LONGEST
from tests.integration.adversary import COMMANDS
from tests.integration.conftest import ask_runner, log_of, look_at, make_master, make_minion, minions, salt_cli
from tests.integration.faults import CountedJob
from tests.waiting import load, wait_for

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("SALTEXT_JOBS_ADVERSARY", "15"))
#: Processes that attack at a time.
ATTACKERS = 2
GENUINE = ("g1", "g2")
ENGINES = ("batch_manager", "job_retry", "job_recorder")
#: Seconds in which an engine answers a runner on a machine that is not busy.
ANSWER = 5.0
#: Bytes by which an engine may grow after the first rounds, and lines a minute that this extension may log above INFO.
GROWTH, LINES = 64 << 20, 60
#: Most characters of such a line, including what Salt's log puts before it.
LONGEST_LINE = LONGEST + 200
_SCRIPT = pathlib.Path(__file__).with_name("adversary.py")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return tmp_path_factory.mktemp("recorded") / "returns"


@pytest.fixture(scope="module")
def master(salt_factories, recorded):
    daemon = make_master(
        salt_factories,
        engines=[{"job_retry": {}}, {"batch_manager": {}}, {"job_recorder": {}}],
        job_recorder={"returners": ["rawfile_json"]},
        **{"rawfile_json.filename": str(recorded)},
    )
    daemon.slow_stop = False
    with daemon.started(), minions(daemon, *GENUINE):
        # Both are accepted, and then stopped: the attack uses the keys of evil, and a job is owed to the other.
        evil, away = make_minion(daemon, "evil"), make_minion(daemon, "away")
        for minion in (evil, away):
            with minion.started():
                pass
        daemon.evil = evil
        yield daemon


@pytest.fixture
def attack(master, tmp_path):
    """Attack for so many seconds, in processes of its own; a function that returns what was sent, at the end."""
    jids, running = tmp_path / "jids", []
    jids.touch()

    def begin(seconds):
        for seed in range(ATTACKERS):
            words = [sys.executable, str(_SCRIPT), master.evil.config_file, str(jids), str(seconds), str(seed)]
            out, err = (tmp_path / f"{seed}.out").open("w+b"), (tmp_path / f"{seed}.err").open("w+b")
            root = _SCRIPT.parents[2]
            running.append((subprocess.Popen(words, stdout=out, stderr=err, cwd=root), out, err))
        return finish

    def finish():
        sent = {}
        for process, out, err in running:
            process.wait()
            out.seek(0), err.seek(0)
            assert process.returncode == 0, err.read()[-2000:]
            for name, count in json.load(out).items():
                sent[name] = sent.get(name, 0) + count
        return sent

    begin.jids = jids
    yield begin
    for process, out, err in running:
        process.kill()
        process.wait()
        out.close(), err.close()


def engine_processes(master):
    """The process of each engine that runs."""
    found = {name: requests.process_of(master.config, name) for name in ENGINES}
    return {name: psutil.Process(process.pid) for name, process in found.items() if process}


def answer_time(opts, engine, request):
    """Seconds that an engine takes to answer a request, as they would be on an idle machine."""
    began, busy = time.monotonic(), load()
    requests.ask(opts, engine, request, patience=300)
    return (time.monotonic() - began) / max(busy, load())


def lines_of_ours(master):
    """Lines above INFO that this extension has written into the master's log."""
    above = ("[WARNING", "[ERROR", "[CRIT")
    return [line for line in log_of(master).splitlines() if "saltext.jobs" in line and any(map(line.count, above))]


def test_a_hostile_accepted_minion_controls_nothing_and_delays_no_other(master, recorded, tmp_path, attack, capsys):
    def run(*args):
        return ask_runner(master, *args)

    opts = salt.config.master_config(master.config_file)
    parked = run("batch.start", "g*", "cmd.run", CountedJob(tmp_path, "parked").command, "start_at=+1d")["jid"]
    assert run("batch.pause", parked) is True
    assert salt_cli(master, "away", "--async", "test.echo", "owed").returncode == 0
    owed = next(jid for jid, job in run("jobs.list_jobs").items() if job["Target"] == "away")
    assert run("job_retry.enqueue", owed) == 1
    processes = wait_for(lambda: len(found := engine_processes(master)) == 3 and found, what="the engines run")
    told, genuine, batches = len(lines_of_ours(master)), {}, {parked}
    spent = {name: sum(process.cpu_times()[:2]) for name, process in processes.items()}
    answers, memory = {name: [] for name in ENGINES}, {name: [] for name in ENGINES}
    began = time.monotonic()
    attack.jids.write_text(f"{parked} {owed} ")
    finish = attack(SECONDS)
    rounds = 0
    while time.monotonic() - began < SECONDS or rounds < 2:
        rounds += 1
        word = random_string("word-")
        with attack.jids.open("a") as jids:
            # The jobs themselves write down that they ran.
            work, failing = (
                CountedJob(tmp_path, f"ok-{rounds}", 0.5),
                CountedJob(tmp_path, f"bad-{rounds}", 0.5, retcode=7),
            )
            good = run("batch.start", "g*", "cmd.run", work.command, "batch=1", "presence=none")["jid"]
            bad = run("batch.start", "g*", "cmd.run", failing.command, "batch=1", "presence=none", "max_failures=0")[
                "jid"
            ]
            jids.write(f"{good} {bad} ")
        batches |= {good, bad}
        for engine, request in {
            "batch_manager": {"do": "pause", "jid": parked, "user": "root"},
            "job_retry": {"do": "replay", "minion": "g1", "user": "root"},
            "job_recorder": {"do": "stats", "user": "root"},
        }.items():
            answers[engine].append(answer_time(opts, engine, request))
            memory[engine].append(processes[engine].memory_info().rss)
        echoed = salt_cli(master, "g1", "test.echo", word)
        assert echoed.data == word, echoed
        for jid in (good, bad):
            wait_for(lambda jid=jid: look_at(master, "batch.status", jid)["finished"], 120, what=f"batch {jid} ends")
        done, halted = run("batch.status", good), run("batch.status", bad)
        assert (done["completed"], done["success"], work.begun(), work.most_at_once()) == (2, True, 2, 1), done
        assert (halted["failed"], halted["halted"], halted["success"], failing.begun()) == (1, True, False, 1), halted
        genuine[good] = set(GENUINE)
    sent, seconds = finish(), time.monotonic() - began
    spent = {name: sum(process.cpu_times()[:2]) - spent[name] for name, process in processes.items()}

    # Nothing is controlled, and no engine had to be started again.
    assert {batch["jid"] for batch in run("batch.list", "limit=1000")} == batches
    assert run("batch.status", parked)["state"] == "paused"
    assert not CountedJob(tmp_path, "parked").begun()
    assert [(entry["minion"], entry["jid"], entry["state"]) for entry in run("job_retry.list")] == [
        ("away", owed, "pending")
    ]
    assert run("job_retry.stats")["paused"] is False
    assert {name: process.pid for name, process in engine_processes(master).items()} == {
        name: process.pid for name, process in processes.items()
    }

    # What came back is recorded as the job cache has it.
    def otherwise():
        lines = [json.loads(line) for line in recorded.read_text(encoding="utf-8").splitlines()]
        returns = {(line.get("jid"), line.get("id")): line.get("return") for line in lines}
        wanted = ((jid, minion) for jid, minions in genuine.items() for minion in minions)
        return {key: returns.get(key, "nothing") for key in wanted if returns.get(key) != ""}

    wait_for(lambda: not otherwise(), 180, what=lambda: f"recorded of the genuine jobs: {otherwise()}")
    lines = lines_of_ours(master)[told:]
    figures = {
        "seconds": round(seconds),
        "sent": sent,
        "rounds": rounds,
        "slowest answer": {name: round(max(times), 2) for name, times in answers.items()},
        "MB": {
            name: [round(rss / 2**20) for rss in (sizes[0], sizes[len(sizes) // 3], sizes[-1])]
            for name, sizes in memory.items()
        },
        "CPU in per cent": {name: round(100 * cpu / seconds) for name, cpu in spent.items()},
        "lines": len(lines),
        "longest line": max(map(len, lines), default=0),
    }
    with capsys.disabled():
        print(f"\n{figures}")
    assert COMMANDS.keys() <= sent.keys(), figures
    assert max(max(times) for times in answers.values()) <= ANSWER, figures
    assert all(sizes[-1] - sizes[len(sizes) // 3] <= GROWTH for sizes in memory.values()), figures
    assert len(lines) <= LINES * (seconds / 60 + 1), lines[-20:]
    assert max(map(len, lines), default=0) <= LONGEST_LINE, max(lines, key=len)[:3000]
    assert not [line for line in lines if "Traceback" in line]
