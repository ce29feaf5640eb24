"""What the tests of job retry store: loads, snapshots, entries, keys."""

from __future__ import annotations

import datetime
import pathlib

import salt.loader

from saltext.jobs.core.retry.entry import Entry, Key, Kind

#: Of yesterday: a search passes over jids that are older by days.
JID = f"{datetime.date.today() - datetime.timedelta(days=1):%Y%m%d}101112131415"


def accept(opts, *minions, kind="minions"):
    for minion in minions:
        (pathlib.Path(opts["pki_dir"]) / kind / minion).write_text(
            "-----BEGIN PUBLIC KEY-----\nx\n-----END PUBLIC KEY-----\n"
        )


def returners(opts):
    """The returners as Salt's master loads them: what minions and syndics bring goes through these."""
    return salt.loader.returners(opts, salt.loader.minion_mods(opts, utils=salt.loader.utils(opts)))


def load_of(**more):
    return {"jid": JID, "fun": "state.apply", "arg": ["web"], "tgt": "*", "tgt_type": "glob", "user": "root", **more}


def snapshot_of(*minions, owner="here_master", **more):
    return {"owner": owner, "published_at": 100.0, "load": load_of(**more), "minions": list(minions)}


def record_of(minion, jid=JID):
    return Entry(minion, jid, 100.0, 1e10, "was away").as_record()


def changes(jobs=(), entries=(), claims=(), notes=()):
    """What is to be written: snapshots and claims by jid, entries by minion and jid, notes by master and jid."""
    return {
        **{Key(Kind.JOB, jid): snapshot for jid, snapshot in dict(jobs).items()},
        **{Key(Kind.ENTRY, jid, minion): record for (minion, jid), record in dict(entries).items()},
        **{Key(Kind.CLAIMS, jid): record for jid, record in dict(claims).items()},
        **{Key(Kind.NOTE, jid, owner): record for (owner, jid), record in dict(notes).items()},
    }
