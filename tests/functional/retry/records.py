"""What the tests of job retry store: loads, snapshots, entries, keys."""

from __future__ import annotations

import datetime
import pathlib

import salt.loader

from saltext.jobs.core.retry.entry import Entry, Key, Kind
from saltext.jobs.core.retry.store import RetryStore
from saltext.jobs.core.site import site_of

#: Of yesterday: a search passes over jids that are older by days.
JID = f"{datetime.date.today() - datetime.timedelta(days=1):%Y%m%d}101112131415"


def accept(opts, *minions, kind="minions"):
    for minion in minions:
        place = pathlib.Path(opts["pki_dir"], kind, minion)
        place.write_text("-----BEGIN PUBLIC KEY-----\nx\n-----END PUBLIC KEY-----\n")


def returners(opts):
    """The returners as Salt's master loads them: what minions and syndics bring goes through these."""
    return salt.loader.returners(opts, salt.loader.minion_mods(opts, utils=salt.loader.utils(opts)))


def load_of(**more):
    return {"jid": JID, "fun": "state.apply", "arg": ["web"], "tgt": "*", "tgt_type": "glob", "user": "root", **more}


def snapshot_of(**more):
    return {"published_at": 100.0, "load": load_of(**more)}


def record_of(minion, jid=JID):
    return Entry(minion, jid, 100.0, 1e10, "was away").as_record()


def queue_of(opts):
    """The queue of a master, as another process sees it."""
    return RetryStore(site_of(opts))


def changes(jobs=(), entries=(), watched=()):
    """What is to be written: snapshots and what is watched by jid, entries by minion and jid."""
    return {
        **{Key(Kind.JOB, jid): snapshot for jid, snapshot in dict(jobs).items()},
        **{Key(Kind.ENTRY, jid, minion): record for (minion, jid), record in dict(entries).items()},
        **{Key(Kind.WATCHED, jid): record for jid, record in dict(watched).items()},
    }
