"""The recording of a terminal: its screen obeys what is written to it, and each frame has its time in the picture."""

from __future__ import annotations

import re
import xml.etree.ElementTree

from docs.recording import Recording, Screen, draw


def lines(text):
    screen = Screen()
    screen.write(text)
    return screen.lines


def test_a_line_is_redrawn():
    assert lines("$ x\r\n\r\x1b[K[#  ] 1/3\r\x1b[K[###] 3/3\r\n") == ["$ x", "[###] 3/3", ""]


def test_the_rest_of_a_longer_line_stays_unless_it_is_cleared():
    assert lines("long line\r\x1b[Kx") == ["x"]
    assert lines("long\rx") == ["xong"]


def test_colours_leave_no_trace():
    assert lines("\x1b[0;31mred\x1b[0m") == ["red"]


def test_a_picture_has_each_screen_once_and_shows_one_after_the_other():
    recording = Recording()
    for at, text in ((0.0, "$ "), (1.0, "a<b"), (1.5, ""), (9.0, "\r\nend"), (9.1, "\r\nunclosed Runner")):
        recording.show(at, text)
    assert [at for at, _ in recording.frames] == [0.0, 1.0, 9.0]
    picture = draw(recording.frames, "A title")
    xml.etree.ElementTree.fromstring(picture)
    assert re.findall(r"@keyframes f\d \{(.+) \}", picture) == [
        " 0.000% { visibility: visible; } 14.286% { visibility: hidden; }",
        " 0% { visibility: hidden; } 14.286% { visibility: visible; } 28.571% { visibility: hidden; }",
        " 0% { visibility: hidden; } 28.571% { visibility: visible; }",
    ]
    assert "a&lt;b" in picture
