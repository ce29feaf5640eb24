"""The digests that vouch for a load, and tell whether two jobs run the same."""

from __future__ import annotations

import datetime

import pytest
import salt.payload
from salt.utils.immutabletypes import freeze
from salt.utils.odict import OrderedDict

from saltext.jobs.core.ledger.records import work_of
from saltext.jobs.core.store.records import digest


def _nested(value, levels):
    for _ in range(levels):
        value = [value]
    return value


def _can_be_sent(value):
    try:
        return bool(salt.payload.dumps(value))
    except ValueError:
        return False


@pytest.mark.parametrize(
    ("value", "later"),
    [
        ("x", "x"),
        (b"x", "x"),
        (2**70, str(2**70)),
        ((1, (2,)), [1, [2]]),
        (datetime.date(2026, 1, 2), datetime.datetime(2026, 1, 2)),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (freeze([1, {"a": [2]}]), [1, {"a": [2]}]),
        ({"only"}, ["only"]),
    ],
)
def test_whatever_salt_can_send_keeps_its_digests_when_it_is_read_back(value, later):
    for most in (levels for levels in (1000, 900, 500, 499, 498, 497) if _can_be_sent({"arg": _nested(value, levels)})):
        load, read = ({"fun": "test.echo", "arg": _nested(deepest, most)} for deepest in (value, later))
        assert digest(load) == digest(read) != digest({**load, "arg": _nested(None, most)})
        assert work_of(load) == work_of(read) != work_of({**load, "arg": _nested(None, most)})
