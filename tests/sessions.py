"""
What the pages show of a console: read from their Markdown, and compared with what is printed.

A session is a block of the language ``console``: a line that begins with ``$`` is typed, what follows is printed. A command
without anything below it has to succeed, whatever it prints. Comments above the block say the rest, one a line:

    <!-- not run: REASON -->        none of it is typed in a test
    <!-- only 3008: REASON -->      it is not so on other releases; the tests type it on 3008
    <!-- first: SETTING -->         what is done before, one of ``SETTINGS``
    <!-- status: 1 -->              the exit status of the commands, where it is not 0

Values that differ from run to run are compared by their kind. A jid of the page must always stand for the same jid of the
run. A date, a time, an age, a size or a pace may be any other. Blanks are blanks. ``…`` stands for anything in a line;
alone, for any lines. Pure.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Iterator, Mapping

CHECKOUT = pathlib.Path(__file__).resolve().parents[1]
#: Pages whose blocks are looked at.
PAGES = [CHECKOUT / "README.md", *sorted(CHECKOUT.glob("docs/**/*.md"))]
#: What a page may have done before a block.
SETTINGS = ("web3 is stopped", "web3 starts again", "test.version has run twice")
#: Languages of a block that is nothing to type.
NOT_TYPED = {"yaml", "python", "nginx", "text", "{toctree}", "{eval-rst}", "{generated}"}

_FENCE = re.compile(r"^( *)```+(.*)$")
_NOTE = re.compile(r"^ *<!-- (not run|only 3008|first|status): (.+) -->$")
_PROMPT = "$ "
JID = re.compile(r"\b\d{20}\b")
#: Values that are compared by their kind -> what they may be.
_KINDS = {
    r"…": r".*",
    r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\b": r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d",
    r"\b\d\d:\d\d:\d\d\b": r"\d\d:\d\d:\d\d",
    r"\bnow\b|(?:\bin )?\b\d+ (?:s|min|h|d)\b(?: ago\b)?": r"(?:now|(?:in )?\d+ (?:s|min|h|d)(?: ago)?)",
    r"\b\d[\d.]*(?:/min| a minute)": r"\d[\d.]*(?:/min| a minute)",
    r"\b\d[\d.]* (?:B|kB|MB|GB|TB)\b": r"\d[\d.]* (?:B|kB|MB|GB|TB)",
    r" +": r" +",
}
_KIND = re.compile("|".join(f"({pattern})" for pattern in (JID.pattern, *_KINDS)))


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of code of a page. ``notes``: the comments above it, by their kind."""

    page: str
    line: int
    language: str
    lines: tuple[str, ...]
    notes: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclasses.dataclass(frozen=True)
class Command:
    """What is typed, and what is then printed; nothing if the page does not show it."""

    typed: str
    printed: tuple[str, ...]


def blocks(text: str, page: str = "") -> list[Block]:
    """Return the blocks of code of a page in their order. One that is only indented has the language ``indented``."""
    found: list[Block] = []
    lines, notes, at = text.split("\n"), dict[str, str](), 0
    while at < len(lines):
        if fence := _FENCE.match(lines[at]):
            end = next(i for i in range(at + 1, len(lines)) if lines[i].strip() == "```")
            inside = tuple(line.removeprefix(fence[1]) for line in lines[at + 1 : end])
            found.append(Block(page, at + 1, fence[2].split(" ")[0], inside, notes))
            at, notes = end, {}
        elif lines[at].startswith("    ") and at and not lines[at - 1].strip():
            found.append(Block(page, at + 1, "indented", (lines[at],), notes))
            notes = {}
        elif note := _NOTE.match(lines[at]):
            notes = {**notes, note[1]: note[2]}
        elif lines[at].strip():
            notes = {}
        at += 1
    return found


def commands(block: Block) -> list[Command]:
    r"""Return what a session types; a line that ends with ``\`` goes on. :raises ValueError: if there is no prompt."""
    found: list[tuple[list[str], list[str]]] = []
    for line in block.lines:
        if line.startswith(_PROMPT):
            found.append(([line.removeprefix(_PROMPT)], []))
        elif not found:
            raise ValueError(f"{block} does not begin with {_PROMPT!r}")
        elif not found[-1][1] and found[-1][0][-1].endswith("\\"):
            found[-1][0].append(line)
        else:
            found[-1][1].append(line)
    return [Command("\n".join(typed), _trimmed(printed)) for typed, printed in found]


def problem_of(block: Block) -> str:
    """Return why a block is neither run by a test nor marked as not run; empty if it is."""
    if block.language in NOT_TYPED:
        return f"{block} is a session" if any(line.startswith(_PROMPT) for line in block.lines) else ""
    if block.language != "console":
        return f"{block} is {block.language or 'of no language'}: what is typed is console, with a prompt"
    if block.notes.get("first") not in (None, *SETTINGS):
        return f"{block}: nothing is known of {block.notes['first']!r}"
    try:
        commands(block)
    except ValueError as exc:
        return str(exc)
    return ""


def to_run(text: str, page: str = "") -> list[Block]:
    """Return the sessions of a page that are typed in a test."""
    return [block for block in blocks(text, page) if block.language == "console" and "not run" not in block.notes]


def known_jids(command: str, known: Mapping[str, str]) -> str:
    """Return a command with the jids of this run. :raises ValueError: where nothing has shown one of them yet."""

    def of_this_run(shown: re.Match[str]) -> str:
        if shown[0] not in known:
            raise ValueError(f"{command!r}: nothing above shows {shown[0]}")
        return known[shown[0]]

    return JID.sub(of_this_run, command)


def compared(shown: tuple[str, ...], printed: str, known: Mapping[str, str]) -> dict[str, str] | None:
    """
    Compare what a page shows with what was printed.

    :param known: ``{jid of the page: jid of this run}``.
    :returns: ``known`` with the jids that were found; None if the two differ.
    """
    names: dict[str, str] = {}
    pattern = "".join(_line_pattern(line, known, names) for line in shown)
    printed = "".join(f"{line}\n" for line in _trimmed(printed.split("\n")))
    found = re.fullmatch(pattern, printed)
    return None if found is None else {**known, **{jid: found[name] for jid, name in names.items()}}


def _line_pattern(line: str, known: Mapping[str, str], names: dict[str, str]) -> str:
    if line.strip() == "…":
        return r"(?:.*\n)*?"
    return "".join(_parts(line.rstrip(), known, names)) + r" *\n"


def _parts(line: str, known: Mapping[str, str], names: dict[str, str]) -> Iterator[str]:
    at = 0
    for found in _KIND.finditer(line):
        yield re.escape(line[at : found.start()])
        at = found.end()
        if found.lastindex != 1:
            yield list(_KINDS.values())[(found.lastindex or 0) - 2]
        elif found[0] in known:
            yield known[found[0]]
        elif found[0] in names:
            yield f"(?P={names[found[0]]})"
        else:
            names[found[0]] = f"jid{len(names)}"
            yield rf"(?P<{names[found[0]]}>\d{{20}})"
    yield re.escape(line[at:])


def _trimmed(lines: list[str]) -> tuple[str, ...]:
    """Return lines without empty ones at either end."""
    filled = [number for number, line in enumerate(lines) if line.strip()]
    return tuple(lines[filled[0] : filled[-1] + 1]) if filled else ()
