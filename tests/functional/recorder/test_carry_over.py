"""
A spool that version 0.1.0 has written is delivered by this one.

``spool_0_1_0`` was written by that version: a load and the returns of m0 to m10 in two segments. Returner ``one`` has had
the records 0, 1, 2 and 4, returner ``two`` none.
"""

from __future__ import annotations

import os
import pathlib
import shutil

import pytest

from saltext.jobs.core.errors import LaterVersion, StateError
from saltext.jobs.core.recorder.carry_over import FORMAT, carry_over, check_format
from saltext.jobs.core.recorder.files import Progress
from saltext.jobs.core.recorder.record import unpacked
from saltext.jobs.core.recorder.spool import Reader, Spool

OLD = pathlib.Path(__file__).with_name("spool_0_1_0")


@pytest.fixture
def folder(tmp_path):
    return pathlib.Path(shutil.copytree(OLD, tmp_path / "job_recorder"))


def minions(folder):
    spool = Spool(folder / "spool", 1 << 20)
    found = Reader(spool, spool.first).read(100, 1 << 20)
    spool.close()
    return {number: unpacked(payload).minion for number, payload in found}


def done(folder, returner):
    progress = Progress(folder / "returners" / returner / "progress", 0, 12)
    progress.close()
    return progress.is_lost, progress.base, progress.done


WHOLE = {0: "", **{number + 1: f"m{number}" for number in range(11)}}


def is_carried_over(folder):
    return (
        minions(folder) == WHOLE
        and done(folder, "one") == (False, 2, {2, 4})
        and done(folder, "two") == (False, 0, set())
        and not list((folder / "spool").glob("*.log"))
    )


def test_every_record_keeps_its_number_and_every_returner_its_place(folder):
    carry_over(folder)
    assert is_carried_over(folder)
    assert Spool(folder / "spool", 1 << 20).next == 12


def test_a_spool_is_carried_over_once(folder):
    carry_over(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    carry_over(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_without_an_old_spool_nothing_happens(tmp_path):
    carry_over(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["format"]


@pytest.mark.parametrize("step", range(4))
def test_a_crash_on_the_way_loses_nothing(folder, monkeypatch, step):
    replace, left = os.replace, [step]

    def dies(*names):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        replace(*names)

    monkeypatch.setattr(os, "replace", dies)
    with pytest.raises(KeyboardInterrupt):
        carry_over(folder)
    monkeypatch.undo()
    carry_over(folder)
    assert is_carried_over(folder)


def test_a_crash_between_two_removals_loses_nothing(folder, monkeypatch):
    carry_over(folder)
    shutil.copy(OLD / "spool" / f"{6:020d}.log", folder / "spool")
    carry_over(folder)
    assert is_carried_over(folder)


def test_damage_loses_only_what_follows_it_in_its_segment(folder, caplog):
    path = folder / "spool" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[-200] ^= 1
    path.write_bytes(data)
    carry_over(folder)
    found = minions(folder)
    assert set(range(6, 12)) <= found.keys()
    assert {number: WHOLE[number] for number in found} == found
    assert len(found) < 12
    assert "are damaged" in caplog.text


def test_old_segments_beside_newer_ones_are_refused_with_what_to_do(folder):
    (folder / "spool" / f"{40:020d}.spool").write_bytes(b"")
    with pytest.raises(StateError, match=r"move the \*\.log files away"):
        carry_over(folder)


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_carried_over_spool_has_a_format(folder):
    carry_over(folder)
    assert check_format(folder) == FORMAT
    before = content(folder)
    carry_over(folder)
    assert content(folder) == before


@pytest.mark.parametrize("number", [str(FORMAT + 1), "12"])
def test_a_spool_of_a_later_version_is_refused_and_left_as_it_is(folder, number):
    (folder / "format").write_text(f"{number}\n")
    before = content(folder)
    with pytest.raises(
        LaterVersion, match=rf"format is of format {number}.*nothing is recorded until the later version"
    ):
        carry_over(folder)
    assert content(folder) == before


@pytest.mark.parametrize("text", ["two", "-1", "0", "2 2", "\u0662"])
def test_an_invalid_format_is_refused_with_what_to_do(folder, text):
    (folder / "format").write_text(text)
    with pytest.raises(StateError, match="remove it if no later version of saltext-jobs was ever here"):
        carry_over(folder)


def test_a_format_that_a_power_cut_has_emptied_counts_as_missing(folder):
    (folder / "format").write_bytes(b"\0\0")
    carry_over(folder)
    assert is_carried_over(folder)
