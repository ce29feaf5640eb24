"""Records in a segment: what is whole is read, whatever lies between."""

from __future__ import annotations

import pytest

from saltext.jobs.core.log import framing, records

RECORDS = [records.Returned(f"2026112300000000000{n}", f"web{n}", "state.apply", n, n == 0, 1.5) for n in range(4)]
FRAMES = [framing.pack(record.fields()) for record in RECORDS]


def read(data, final=False):
    piece = framing.scan(data, final)
    return [records.read(found.body) for found in piece.records], piece


def test_a_packed_record_is_read():
    assert read(b"".join(FRAMES))[0] == RECORDS


def test_a_record_that_is_cut_at_any_byte_is_waited_for_and_then_damage():
    first = FRAMES[0]
    for cut in range(len(FRAMES[1])):
        data = first + FRAMES[1][:cut]
        assert read(data)[0] == RECORDS[:1]
        assert read(data)[1].end == len(first), "what may still be being written is not passed over"
        assert read(data)[1].damaged == 0
        found, piece = read(data, final=True)
        assert (found, piece.end, piece.damaged) == (RECORDS[:1], len(data), cut)
        # A later writer has appended behind it.
        found, piece = read(data + FRAMES[2] + FRAMES[3])
        assert (found, piece.damaged) == ([RECORDS[0], *RECORDS[2:]], cut)


def test_zeros_anywhere_cost_the_records_that_they_hit_and_no_other():
    data = b"".join(FRAMES)
    bounds = [sum(map(len, FRAMES[:n])) for n in range(5)]
    for begin in range(0, len(data), 3):
        for length in (1, 7, 100):
            end = min(begin + length, len(data))
            broken = data[:begin] + bytes(end - begin) + data[end:]
            whole = [RECORDS[n] for n in range(4) if broken[bounds[n] : bounds[n + 1]] == FRAMES[n]]
            assert read(broken, final=True)[0] == whole


@pytest.mark.parametrize("garbage", [b"\0" * 5000, b"\xc1" * 5000, b"{'a': 1}\n" * 50, bytes(range(256)) * 9])
def test_garbage_is_passed_over(garbage):
    found, piece = read(FRAMES[0] + garbage + FRAMES[1])
    assert found == RECORDS[:2]
    assert piece.damaged == len(garbage)


def test_no_text_of_a_minion_is_read_as_a_record_if_the_record_around_it_is_torn():
    forged = framing.pack(records.Returned("20261123000000000009", "web9", "state.apply", 0, True, 1.5).fields())
    text = forged.decode("latin-1")
    for name in (text, forged.decode("utf-8", "surrogateescape"), forged.decode("utf-8", "replace")):
        for retcode in (-0x3E3E3E3F, 0):
            carrier = framing.pack(records.Returned("20261123000000000000", "web1", name, retcode, True, 1.5).fields())
            for cut in range(len(carrier)):
                found, _ = read(carrier[:cut] + FRAMES[1], final=True)
                assert found == [RECORDS[1]]


def published(minions, origin="", **more):
    load = {"fun": "test.ping", "user": "root", **more}
    return records.publish_of("20261123000000000000", load, minions, "0" * 32, origin, True)


def test_a_publish_reads_back_as_it_was():
    record = published(
        ["db1", "web1"], "job_retry", fun=["saltutil.kill_job", "saltutil.kill_all_jobs"], arg=[["2"], []]
    )
    assert record.ends == ("2", records.EVERY_JOB)
    assert read(framing.pack(record.fields()))[0] == [record]


def test_a_publish_for_very_many_minions_refers_to_them():
    minions = [f"web{n}.example.com" for n in range(50_000)]
    record = published(minions)
    assert record.minions is None
    assert record.total == 50_000
    assert len(framing.pack(record.fields())) < 250


def test_a_record_has_few_bytes():
    record = records.Returned("20261123000000000000", "web1234.example.com", "state.apply", 0, True, 1700000000.123)
    assert len(framing.pack(record.fields())) <= 100
    few = published(["web1.example.com", "web2.example.com"])
    assert len(framing.pack(few.fields())) <= 250
