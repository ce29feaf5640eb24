"""Many records at a time into a real PostgreSQL: those that come twice, are bad or old, and servers that die or hang."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import threading
import time

import hypothesis
import pytest
from hypothesis import strategies as st

from saltext.jobs.core.errors import JobsError
from saltext.jobs.core.options.postgresql import Options, read_options
from saltext.jobs.core.recorder.pipeline import failure_of
from saltext.jobs.core.recorder.returner import ReturnerModule
from tests.faults import freeze, thaw
from tests.functional.options import options_in
from tests.missing import missing
from tests.postgresql import PostgreSQL
from tests.waiting import stretched

from .stage import Stage

with contextlib.suppress(ImportError):
    from saltext.jobs.core.postgresql.connections import NoAnswer
    from saltext.jobs.core.postgresql.sink import Sink

JID = "20260516101112131415"
#: In the month of JID.
NOW = datetime.datetime(2026, 5, 20, tzinfo=datetime.timezone.utc).timestamp()


@pytest.fixture(scope="module")
def postgresql():
    if "Sink" not in globals():
        missing("the Python module psycopg is not installed")
    server = PostgreSQL()
    yield server
    server.remove()


@pytest.fixture
def no_tables(postgresql):
    postgresql.start() if postgresql.process is None else None
    postgresql.clear()


@pytest.fixture(params=["Salt's tables", "our own tables"])
def tables(request, no_tables, postgresql):
    """Empty tables as Salt documents them, or none."""
    if request.param == "Salt's tables":
        postgresql.make_tables()
    return request.param


@pytest.fixture
def options(postgresql):
    return {"host": "127.0.0.1", "port": postgresql.port, "user": "salt", "password": "", "db": "postgres"}


@pytest.fixture
def sink(options):
    made = []

    def make(clock=lambda: NOW, **more):
        made.append(Sink(Options(**{**options, **more}), "the-master", clock))
        return made[-1]

    yield make
    for one in made:
        one.close()


def backends(postgresql):
    """The server's processes that serve the recorder."""
    return postgresql.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'salt job_recorder'")


def a_return(minion="m1", jid=JID, value="x", **more):
    data = {"id": minion, "jid": jid, "fun": "test.echo", "return": value, "retcode": 0, "success": True, **more}
    return {"kind": "return", "jid": jid, "minion": minion, "time": NOW, "data": data}


def a_load(jid=JID, **more):
    return {"kind": "load", "jid": jid, "time": NOW, "data": {"jid": jid, "fun": "test.echo", "user": "anna", **more}}


def an_event(tag="salt/auth", at=NOW, **data):
    return {"kind": "event", "tag": tag, "time": at, "data": {"act": "accept", **data}}


# -- what is stored ----------------------------------------------------------------------------------------------------


def test_the_stored_rows_are_those_of_pgjsonb(tables, sink, postgresql):
    assert sink().take([a_load(), a_return(value={"a": [1, None, 2.5]}), a_return("m2", success=False)]) == {}
    assert postgresql.execute("SELECT jid, load->>'user' FROM jids") == [(JID, "anna")]
    rows = postgresql.execute("SELECT fun, jid, id, return, success, full_ret->'retcode' FROM salt_returns ORDER BY id")
    one, other = ("m1", {"a": [1, None, 2.5]}, "true", 0), ("m2", "x", "false", 0)
    assert rows == [("test.echo", JID, *one), ("test.echo", JID, *other)]


def test_records_that_come_twice_change_nothing(tables, sink, postgresql):
    records = [a_load(), a_return(), a_return("m2"), an_event(), an_event(at=NOW + 1), an_event("salt/key")]
    one = sink()
    one.take(records)
    before = postgresql.execute("SELECT * FROM salt_returns ORDER BY id")
    assert one.take([*records, *records]) == {}
    sink().take(records)
    assert postgresql.execute("SELECT * FROM salt_returns ORDER BY id") == before
    assert postgresql.execute("SELECT count(*) FROM jids") == [(1,)]
    assert postgresql.execute("SELECT count(*), count(DISTINCT tag) FROM salt_events") == [(3, 2)]


def test_a_table_that_was_renamed_is_made_anew(tables, sink, postgresql):
    sink().take([a_return()])
    postgresql.execute("ALTER TABLE salt_returns RENAME TO archive")
    sink().take([a_return("m2")])
    assert postgresql.returns() == [(JID, "m2")]


# -- bad records -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["nul \0 character", {"nul\0": 1}, float("nan"), float("inf"), "half \ud800 pair"])
def test_a_value_that_postgresql_cannot_hold_is_refused_before_it_is_sent(no_tables, sink, postgresql, value):
    assert list(sink().take([a_return("m1"), a_return("m2", value=value), a_return("m3")])) == [1]
    assert postgresql.returns() == [(JID, "m1"), (JID, "m3")]


def test_a_value_that_only_the_server_refuses_blames_the_data_and_nothing_is_stored(no_tables, sink, postgresql):
    with pytest.raises(Exception, match="too long") as raised:
        sink().take([a_return("m1"), a_return("m" * 300), a_load()])
    assert failure_of(raised.value).is_fault
    assert postgresql.returns() == []
    assert postgresql.execute("SELECT count(*) FROM jids") == [(0,)]


def test_a_master_that_is_refused_blames_no_data(no_tables, sink, postgresql):
    postgresql.execute("CREATE ROLE reader LOGIN")
    try:
        with pytest.raises(JobsError, match="make the table salt_returns") as raised:
            sink(user="reader").take([a_return()])
        assert not failure_of(raised.value).is_fault
    finally:
        postgresql.execute("DROP ROLE reader")


leaf = st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.binary(max_size=20))
leaf |= st.text(st.characters(), max_size=30)
anything = st.recursive(
    leaf, lambda part: st.lists(part, max_size=4) | st.dictionaries(leaf, part, max_size=4), max_leaves=12
)
fields = st.sampled_from(["return", "fun", "success", "retcode", "id", "jid"]) | st.text(max_size=5)


def test_whatever_msgpack_carries_is_stored_or_refused_and_costs_no_connection(no_tables, sink, postgresql):
    one, count = sink(), itertools.count()
    one.take([a_load(), a_return(), an_event()])
    backend = backends(postgresql)

    @hypothesis.settings(max_examples=40, deadline=None, derandomize=True)
    @hypothesis.given(st.dictionaries(fields, anything, max_size=6), st.text(min_size=1, max_size=20))
    def give(data, name):
        number = next(count)
        ret = a_return(name, jid=f"2026{number:016d}")
        for record in (ret, a_load(f"load{number}"), an_event(name, NOW + 1 + number)):
            assert set(one.take([{**record, "data": data}])) <= {0}
        assert backends(postgresql) == backend

    give()


# -- tables that are there already -------------------------------------------------------------------------------------


def test_a_table_with_duplicate_rows_is_left_alone_and_the_error_says_what_to_do(no_tables, sink, postgresql):
    postgresql.make_tables()
    row = "INSERT INTO salt_returns VALUES ('f', '1', '1', 'm1', 'true', '{}')"
    postgresql.execute(f"{row}; {row}")
    one = sink()
    for _ in range(2):
        with pytest.raises(JobsError, match="DELETE FROM salt_returns") as raised:
            one.take([a_return()])
        assert not failure_of(raised.value).is_fault
    assert postgresql.returns() == [("1", "m1")] * 2
    postgresql.execute(str(raised.value).partition("left: ")[2])
    assert one.take([a_return()]) == {}
    assert postgresql.returns() == [("1", "m1"), (JID, "m1")]


def test_two_recorders_that_have_the_same_records_in_another_order_never_wait_for_each_other(tables, sink, postgresql):
    """As in a cluster, and behind two masters of the same minions: what they have in common is stored once."""
    jids = [f"202605161011{number:08d}" for number in range(300)]
    loads, returns = [a_load(jid) for jid in jids], [a_return("m1", jid) for jid in jids]
    sink().take([a_load(), a_return()])  # the tables are there
    failed = []

    def deliver(step):
        one = sink()
        try:
            for _ in range(15):
                one.take([*loads[::step], *returns[::step]])
        except Exception as exc:
            failed.append(exc)

    threads = [threading.Thread(target=deliver, args=(step,)) for step in (1, -1)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert failed == []
    assert postgresql.execute("SELECT count(*), count(DISTINCT jid) FROM jids") == [(301, 301)]
    assert postgresql.returns() == sorted([(JID, "m1"), *((jid, "m1") for jid in jids)])


# -- what is old -------------------------------------------------------------------------------------------------------


def test_only_rows_older_than_keep_days_are_removed(tables, sink, postgresql):
    def jid_at(at):
        return f"{datetime.datetime.fromtimestamp(at, datetime.timezone.utc):%Y%m%d%H%M%S%f}"

    now = [NOW]
    one = sink(clock=lambda: now[0], keep_days=100)
    for month in range(6):
        now[0] = NOW + month * 31 * 86400
        jid = jid_at(now[0])
        one.take([a_load(jid), {**a_return(jid=jid), "time": now[0]}, an_event(at=now[0])])
    one.take([a_return(jid="999"), a_load("17"), a_load("1-a")])
    one.take([{**a_return(jid="20000101000000000000"), "time": now[0]}])
    now[0] += 700
    one.take([])
    kept = [jid for (jid,) in postgresql.execute("SELECT jid FROM salt_returns ORDER BY jid")]
    expected = [jid_at(NOW + month * 31 * 86400) for month in range(6) if (5 - month) * 31 <= 100]
    assert kept == ["20000101000000000000", *expected, "999"], "the first was stored not long ago"
    jids = [jid for (jid,) in postgresql.execute("SELECT jid FROM jids ORDER BY jid")]
    assert jids == ["1-a", "17", *expected], "a jid without a time tells no age"
    assert len(postgresql.execute("SELECT 1 FROM salt_events")) == len(expected)
    assert sink(keep_days=10**6).take([a_return("for ever")]) == {}


def test_records_are_stored_while_old_rows_are_locked(no_tables, sink, postgresql):
    sink().take([a_return(), {**a_return("m2"), "time": NOW - 1e8, "jid": "20200101000000000000"}])
    one = sink(timeout=float(stretched(2)), keep_days=100)
    with contextlib.closing(postgresql.connect()) as other, other.cursor() as cursor:
        cursor.execute("BEGIN; SELECT FROM salt_returns WHERE id = 'm2' FOR UPDATE")
        one.take([a_return("m3")])
        one.take([a_return("m4")])
    assert [minion for _, minion in postgresql.returns()] == ["m2", "m1", "m3", "m4"]


# -- a server that is down, dies, hangs or comes back as another one ---------------------------------------------------


def test_a_server_that_is_frozen_is_given_up_after_the_time_that_is_set(no_tables, sink, postgresql):
    seconds = stretched(1)  # which is also enough for what is not frozen
    one = sink(timeout=float(seconds))
    one.take([a_return()])
    ((backend,),) = backends(postgresql)
    freeze(backend)
    try:
        begin = time.monotonic()
        with pytest.raises(NoAnswer, match=f"within {seconds} seconds") as raised:
            one.take([a_return("m2")])
        assert time.monotonic() - begin < stretched(10) + seconds
        assert not failure_of(raised.value).is_fault
    finally:
        thaw(backend)
    one.take([a_return("m2")])
    assert postgresql.returns() == [(JID, "m1"), (JID, "m2")]


#: A trigger with which the server notes under which ``synchronous_commit`` it stores a return.
NOTED = """
    CREATE TABLE noted (synchronous_commit text);
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN INSERT INTO noted VALUES (current_setting('synchronous_commit')); RETURN NEW; END $$;
    CREATE TRIGGER noting AFTER INSERT ON salt_returns FOR EACH ROW EXECUTE FUNCTION note();
"""


def test_a_stored_record_is_on_the_disk_even_if_the_server_would_answer_before(no_tables, sink, postgresql):
    postgresql.execute("ALTER ROLE salt SET synchronous_commit = off")
    one = sink()
    one.take([a_return()])
    postgresql.execute(NOTED)
    try:
        one.take([a_return("m2")])
        assert postgresql.execute("SELECT synchronous_commit FROM noted") == [("on",)]
    finally:
        postgresql.execute("DROP TRIGGER noting ON salt_returns; DROP FUNCTION note(); DROP TABLE noted")
        postgresql.execute("ALTER ROLE salt RESET synchronous_commit")


# -- through Salt's loader, behind the recorder ------------------------------------------------------------------------


@pytest.fixture
def opts(tmp_path, postgresql):
    return options_in(tmp_path, id="the-master", **postgresql.options)


def test_salts_own_options_will_do_and_ours_win(opts):
    found = read_options({**opts, "returner.pgjsonb_bulk.keep_days": 9, "returner.pgjsonb_bulk": {"host": "db"}})
    assert (found.host, found.port, found.keep_days) == ("db", opts["returner.pgjsonb.port"], 9)


def test_salt_can_use_it_as_an_ordinary_returner(tables, opts, postgresql):
    module = ReturnerModule(opts, "pgjsonb_bulk")
    assert module.has("store_many")
    module.store_load(JID, {"user": "anna"})
    module.store_return(a_return()["data"])
    with pytest.raises(ValueError, match="NUL"):
        module.store_return(a_return("m2", value="\0")["data"])
    assert postgresql.returns() == [(JID, "m1")]
    event_return = module._modules()["pgjsonb_bulk.event_return"]
    with pytest.raises(ValueError, match="NUL"):
        events = ("salt/auth", "m1"), ("salt/auth", "\0"), ("x" * 300, "m2"), ("salt/auth", "m1")
        event_return([{"tag": tag, "data": {"id": one, "token": "secret"}} for tag, one in events])
    assert postgresql.execute("SELECT data->>'id', data ? 'token' FROM salt_events") == [("m1", False)] * 2
    module._modules().pack["__context__"]["pgjsonb_bulk"].close()


@pytest.fixture
def stage(tmp_path, tables, opts):
    made = []

    def start(**options):
        if made:
            made[-1].close()
        made.append(Stage(tmp_path, ReturnerModule(opts, "pgjsonb_bulk"), **options))
        return made[-1]

    yield start
    made[-1].close()


def stored(postgresql):
    """(jid, minion) of every row; none where the table has not been made yet."""
    ((is_there,),) = postgresql.execute("SELECT to_regclass('salt_returns') IS NOT NULL")
    return postgresql.returns() if is_there else []


def fill(stage, count, jid=JID, bad=()):
    stage.job_cache.publish(jid)
    for number in range(count):
        value = "\0" if number in bad else {"text": "y" * 200, "number": number}
        stage.job_cache.give_back(jid, f"m{number}", value)


def test_bad_records_delay_no_others_and_are_set_aside(stage, postgresql):
    one = stage(tries=1)
    fill(one, 500, bad={7, 99})
    only_the_server_refuses = "9" * 20
    one.job_cache.publish(only_the_server_refuses, "x" * 900)
    one.job_cache.give_back(only_the_server_refuses, "m", fun="x" * 900)
    assert one.until(lambda: len(stored(postgresql)) >= 498 and one.figures["set_aside"] >= 3)
    assert one.until(lambda: one.figures["delivered"] == 498 + 2), "two loads too"
    assert len(stored(postgresql)) == 498
    assert one.figures["trouble"] is None


def test_a_server_that_is_killed_in_the_middle_of_batches_gets_each_record_once(stage, postgresql):
    one = stage()
    fill(one, 100)
    assert one.until(lambda: len(stored(postgresql)) == 100)
    made = 100
    for kill in range(2):
        jid = f"2026051610111213142{kill}"
        fill(one, 600, jid=jid)
        made += 600
        one.until(lambda before=made: len(stored(postgresql)) > before - 550, seconds=5)
        postgresql.stop()
        one.run(1.0)
        assert one.figures["set_aside"] == 0
        postgresql.start()
    assert one.until(lambda: len(stored(postgresql)) >= made, seconds=stretched(40))
    rows = stored(postgresql)
    assert len(rows) == len(set(rows)) == made
