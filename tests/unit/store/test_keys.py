"""Ids on their way to a driver's key: none is lost, none becomes another, none leaves its place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saltext.jobs.core.ids import Keys, are_plain, plain

TEXT = st.text(st.characters(), min_size=1, max_size=120)
DRIVERS = ["localfs", "redis", "mysql", "etcd", "consul", "somebody_s_own"]


def as_mysql_compares(key):
    """Without case, and with the blanks at the end cut; accents are encoded, so none may be left."""
    assert key.isascii()
    return key.lower().rstrip(" ")


@pytest.mark.parametrize("driver", DRIVERS)
@given(text=TEXT)
def test_a_key_reads_back_as_the_id_it_was_made_of(driver, text):
    keys = Keys(driver)
    key = keys.key(text)
    if key is not None:
        assert keys.decode(key) == text
        assert key not in (".", "..") and "/" not in key and "\0" not in key
        assert len(key.encode()) <= keys.longest


@given(one=TEXT, other=TEXT)
def test_no_two_ids_are_the_same_to_mysql(one, other):
    keys = Keys("mysql")
    first, second = keys.key(one), keys.key(other)
    if first is not None and second is not None and one != other:
        assert as_mysql_compares(first) != as_mysql_compares(second)


@given(text=TEXT)
def test_no_id_hides_behind_a_time_stamp_or_becomes_a_query(text):
    key = Keys("etcd").key(text)
    if key is not None:
        assert not key.endswith(".tstamp") and not key.startswith("_")
        assert not set("?#%&; ") & set(key)


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(
    "jid", ["20260516120000000000", "20260516120000000000_4711", "20260516-special", "web-1.x.org"]
)
def test_a_common_id_is_its_own_key_on_every_driver(driver, jid):
    assert Keys(driver).key(jid) == jid


@pytest.mark.parametrize(
    "value", ["", ".", "..", "a/b", "/", "a\\b", "a\0b", "a\nb", "x" * 256, "é" * 128, "\ud800", b"\xff"]
)
@pytest.mark.parametrize("driver", DRIVERS)
def test_an_id_that_is_no_plain_path_component_has_no_key(driver, value):
    assert Keys(driver).key(value) is None


@pytest.mark.parametrize("value", [None, True, False, 1.5, [], ["x"], {}, {"x": 1}, object()])
def test_an_id_that_is_no_text_has_no_key(value):
    assert Keys("localfs").key(value) is None


@pytest.mark.parametrize("value", [20260516120000000000, b"20260516120000000000"])
def test_a_number_or_bytes_from_a_command_line_is_a_jid(value):
    assert Keys("localfs").key(value) == "20260516120000000000"


@given(
    values=st.lists(
        st.one_of(st.text(max_size=5), st.sampled_from(["web1", "a" * 255, "a" * 256, "..", "x/y", "é", 7]))
    )
)
def test_ids_that_are_taken_together_are_each_plain(values):
    if are_plain(values):
        assert values and all(plain(value) == value for value in values)


@pytest.mark.parametrize("odd", ["", ".", "..", "a/b", "a\\b", "a\0b", "a\nb", "é", 7, None, b"web1", "x" * 256])
def test_with_one_unusual_id_among_many_all_are_checked_one_by_one(odd):
    many = ["web1.example.com", "web2"]
    assert are_plain(many)
    assert not any(are_plain(values) for values in ([odd, *many], [*many, odd], [odd]))
