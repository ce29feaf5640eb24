"""Foreign text on a terminal: nothing in it acts on the terminal, and its width is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saltext.jobs.core.display.text import clean, cut, width_of, wrap

ANYTHING = st.text(st.characters(exclude_categories=()), max_size=60)
#: What terminals obey, and what makes text look like another.
HARMFUL = [
    *("\x1b[2J", "\x1b]0;title\x07", "\x9b31m"),  # the last is the one-byte form of an escape sequence
    *("\r", "\n", "\b\b", "\x7f", "\u200b", "\u2028", "\ufeff", "\ud800", "\U000e0041"),
    "\u202e",  # from right to left
]


@pytest.mark.parametrize("harmful", HARMFUL, ids=ascii)
def test_control_characters_are_shown_as_their_escapes(harmful):
    shown = clean(f"web{harmful}1")
    assert shown.isprintable() and shown.isascii()
    assert shown.startswith("web\\") and shown.endswith("1")


@given(ANYTHING)
def test_whatever_the_text_is_what_is_shown_is_printable(text):
    assert clean(text).isprintable()
    assert clean(clean(text)) == clean(text)


def test_plain_text_stays_as_it_is():
    for text in ("web1.example.com", "café", "服务器-1", "straße", "ภาษาไทย", "e\u0301"):
        assert clean(text) == text


@pytest.mark.parametrize(
    ("text", "width"),
    [("web1", 4), ("服务器", 6), ("e\u0301", 1), ("ＷＥＢ", 6), ("한글", 4), ("ภาษาไทย", 7), ("🚀", 2)],
)
def test_wide_characters_take_two_columns_and_marks_none(text, width):
    assert width_of(clean(text)) == width


@given(ANYTHING, st.integers(0, 40), st.booleans())
def test_cut_text_is_never_wider_than_it_may_be(text, width, middle):
    text = clean(text)
    shown = cut(text, width, middle=middle)
    assert width_of(shown) <= width
    assert shown == text or width_of(text) > width


@given(ANYTHING, st.integers(2, 60), st.sampled_from(["", "  ", "      "]))
def test_lines_are_never_wider_than_they_may_be_and_no_character_is_lost(text, width, indent):
    text = clean(text)
    lines = wrap(text, width, indent)
    assert all(width_of(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_lines_end_between_words_and_never_after_a_number():
    assert wrap("38 completed, 2 failed, 50 pending", 30, "  ") == ["38 completed, 2 failed,", "  50 pending"]
