"""
Writes the file that a master of an earlier version with ``cache: sqlite`` leaves behind, by that version's own code, into
``database_of_0_2_0/`` or the like. Run once for each version, by

    git worktree add /tmp/v/saltext/jobs 43f4e58        # the last commit of 0.2.0; aa23e38 of 0.3.0, 7e63e7e of 0.4.0
    PYTHONPATH=/tmp/v .venv/bin/python tests/functional/upgrade/write_database.py 0.2.0

It must never be run with the code of another version: what it writes shows that this one reads what that one wrote.
"""

import os
import pathlib
import shutil
import sys

import salt.config

import saltext.jobs.returners.salt_cache as returner

try:
    from saltext.jobs.core.sqlite.banks import banks_of
except ImportError:
    from saltext.jobs.core.disk.sqlite_banks import banks_of

#: The number of the tables that each version has in its files.
TABLES = {"0.2.0": 3, "0.3.0": 4, "0.4.0": 5}
VERSION = sys.argv[1] if len(sys.argv) > 1 else ""
OUT = pathlib.Path(__file__).resolve().parent / f"database_of_{VERSION.replace('.', '_')}"
OPTS = {
    **salt.config.master_config(None),
    "id": "here_master",
    "cachedir": str(OUT),
    "cache": "sqlite",
    "master_job_cache": "salt_cache",
    "cluster_id": None,
}
JOBS = [f"2026112203000{number}000000" for number in range(10)]
FLEET = [f"web{number}" for number in range(60)]


def write():
    returner.__opts__ = OPTS
    returner.__salt__ = returner.__context__ = {}
    for number, jid in enumerate([*JOBS, "0", "20261122-special"]):
        load = {"jid": jid, "fun": f"test.f{number % 3}", "arg": [number], "tgt": "web*", "tgt_type": "glob"}
        load.update(user="anna" if number % 2 else "root", ret="", kwargs={"metadata": {"ticket": number}})
        returner.save_load(jid, load, minions=FLEET if number % 2 else FLEET[:3])
        for minion in FLEET[: number % 4]:
            answer = {"return": "é", "retcode": number % 5, "success": number % 5 == 0}
            returner.returner({"jid": jid, "id": minion, "fun": load["fun"], "fun_args": load["arg"], **answer})
    returner.save_load("20261122040000000000", {"fun": "test.other", "arg": [], "tgt": "db1", "user": "root"})
    returner.returner({"jid": "20261122050000000000", "id": "db1", "fun": "test.ping", "return": b"\xff\x00"})
    banks = banks_of(OPTS)
    banks.store("grains", "web1", {"os": "Debian"})
    banks.store("tokens", "t", {"name": "anna"}, expires=1e9)
    banks.store("job_retry/jobs", JOBS[1], {"owner": "here_master"})
    if TABLES[VERSION] >= 5:  # since then large values are squeezed
        banks.store("mine", "web1", {"network.interfaces": "lo " * 20_000})
    with banks.transaction() as sql:
        assert sql.execute("PRAGMA user_version").fetchone()[0] == TABLES[VERSION], (
            "this is the code of another version"
        )


if __name__ == "__main__":
    shutil.rmtree(OUT, ignore_errors=True)
    os.makedirs(OUT)
    write()
    banks_of(OPTS).backup(str(OUT / "copy"))
    for name in os.listdir(OUT):
        if name != "copy":
            path = OUT / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    os.rename(OUT / "copy", OUT / "cache.sqlite")
