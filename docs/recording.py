"""
Records a batch as ``batch.watch`` shows it on a terminal, on a real master and eight real minions:

    python -m docs.recording docs/quickstart.svg

It draws what the terminal gets, when it gets it; but no pause is longer than a second, and what Salt 3008 complains of
itself when a command ends ("unclosed Runner") is left out. The picture is an SVG that moves by itself, and stands still
for viewers who prefer reduced motion.
"""

from __future__ import annotations

import codecs
import contextlib
import html
import os
import pathlib
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterable

from demo.fleet import Fleet, quiet_salt

MINIONS = tuple(f"web{number}" for number in range(1, 9))
START = ("salt-run", "batch.start", "web*", "cmd.run", "sleep 3; date +%T", "batch=2")

#: Columns of the terminal; letters that are typed at once, and seconds for each of them.
COLUMNS, AT_ONCE, TYPING = 84, 4, 0.04
#: Seconds for which one screen is shown at most, and for which the last one is.
LONGEST, PAUSE = 1.0, 5.0
_COMPLAINT = "unclosed "
_LINE, _LETTER, _MARGIN = 20, 8.43, 16
_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*([A-Za-z])")


class Screen:
    """Lines as a terminal has them that obeys what ``batch.watch`` writes: a new line, back to its beginning, clear it."""

    def __init__(self) -> None:
        self.lines = [""]
        self._column = 0

    def write(self, text: str) -> None:
        """Show a piece of text; a control sequence must be whole."""
        at = 0
        while at < len(text):
            if sequence := _SEQUENCE.match(text, at):
                at = sequence.end()
                if sequence[1] == "K":
                    self.lines[-1] = self.lines[-1][: self._column]
                continue
            letter = text[at]
            at += 1
            if letter == "\n":
                self.lines.append("")
                self._column = 0
            elif letter == "\r":
                self._column = 0
            else:
                line = self.lines[-1].ljust(self._column)
                self.lines[-1] = line[: self._column] + letter + line[self._column + 1 :]
                self._column += 1


class Recording:
    """What was on the screen, and from when on, in seconds."""

    def __init__(self) -> None:
        self.frames: list[tuple[float, tuple[str, ...]]] = []
        self._screen = Screen()

    def show(self, at: float, text: str) -> None:
        """Have the screen get a piece of text at a time."""
        self._screen.write(text)
        lines = tuple(line for line in self._screen.lines if not line.startswith(_COMPLAINT))
        if not self.frames or self.frames[-1][1] != lines:
            self.frames.append((at, lines))


def _without_waits(frames: Iterable[tuple[float, tuple[str, ...]]]) -> list[tuple[float, tuple[str, ...]]]:
    shown: list[tuple[float, tuple[str, ...]]] = []
    before = 0.0
    for at, lines in frames:
        shown.append((shown[-1][0] + min(at - before, LONGEST) if shown else 0.0, lines))
        before = at
    return shown


def draw(frames: Iterable[tuple[float, tuple[str, ...]]], title: str) -> str:
    """Return the frames as an SVG that shows one after the other, and begins anew at its end."""
    shown = _without_waits(frames)
    whole = shown[-1][0] + PAUSE
    height = max(len(lines) for _, lines in shown) * _LINE + 2 * _MARGIN
    width = COLUMNS * _LETTER + 2 * _MARGIN
    rules, groups = [], []
    for number, (at, lines) in enumerate(shown):
        last = number == len(shown) - 1
        begin, end = 100 * at / whole, 100.0 if last else 100 * shown[number + 1][0] / whole
        off = "" if last else f" {end:.3f}% {{ visibility: hidden; }}"
        first = "" if begin == 0 else " 0% { visibility: hidden; }"
        rules.append(f"    @keyframes f{number} {{{first} {begin:.3f}% {{ visibility: visible; }}{off} }}")
        rules.append(f"    #f{number} {{ animation-name: f{number}; }}")
        texts = "".join(
            f'<text x="{_MARGIN}" y="{_MARGIN + 14 + row * _LINE}">{html.escape(line)}</text>'
            for row, line in enumerate(lines)
            if line.strip()
        )
        kind = ' class="last"' if last else ""
        groups.append(f'  <g id="f{number}"{kind}>{texts}</g>')
    style = f"""\
    svg {{ color-scheme: dark; }}
    rect {{ fill: #0d1117; }}
    text {{ fill: #e6edf3; font: 14px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; white-space: pre; }}
    g {{ visibility: hidden; animation: {whole:.2f}s step-end infinite; }}
    @media (prefers-reduced-motion: reduce) {{ g {{ animation: none; }} .last {{ visibility: visible; }} }}"""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" width="{width:g}" role="img"',
            '  aria-labelledby="title" xml:space="preserve">',
            f'  <title id="title">{html.escape(title)}</title>',
            f"  <style>\n{style}",
            *rules,
            f'  </style>\n  <rect width="{width:g}" height="{height}" rx="8"/>',
            *groups,
            "</svg>\n",
        ]
    )


def _type(recording: Recording, at: float, words: Iterable[str]) -> float:
    """Show a command as it is typed; returns when it is entered."""
    recording.show(at, "$ ")
    line = " ".join(f"'{word}'" if re.search(r"[\s*]", word) else word for word in words)
    for number in range(0, len(line), AT_ONCE):
        recording.show(at + number * TYPING, line[number : number + AT_ONCE])
    at += len(line) * TYPING
    recording.show(at, "\r\n")
    return at


def _run(recording: Recording, at: float, fleet: Fleet, words: tuple[str, ...]) -> tuple[float, str]:
    """Run a command on a terminal, and show what it prints when it prints it; returns when it has ended, and its text."""
    at = _type(recording, at, words)
    ours, theirs = pty.openpty()
    program = os.path.join(os.path.dirname(sys.executable), words[0])
    command = [program, "-c", str(fleet.config("master")), "--no-color", "-l", "error", *words[1:]]
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm"}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    decoder, printed, begun = codecs.getincrementaldecoder("utf-8")(), "", 0.0
    with contextlib.suppress(OSError):  # what a terminal says whose other end was closed
        while piece := os.read(ours, 65536):
            # What Salt takes to begin is no part of the picture.
            begun = begun or time.monotonic()
            text = decoder.decode(piece)
            printed += text
            recording.show(at + 0.3 + time.monotonic() - begun, text)
    os.close(ours)
    if process.wait():
        raise SystemExit(f"{' '.join(words)} ended with {process.returncode}: {printed}")
    return at + 0.3 + time.monotonic() - begun, printed


def record() -> Recording:
    """Run the batch, and return what was on the screen."""
    recording = Recording()
    with Fleet() as fleet:
        fleet.start_master()
        for minion in MINIONS:
            fleet.start_minion(minion)
        fleet.wait_for_minions(*MINIONS)
        at, printed = _run(recording, 0.0, fleet, START)
        jid = re.search(r"\b\d{20}\b", printed)
        if jid is None:
            raise SystemExit(f"batch.start printed no jid: {printed}")
        _run(recording, at + 0.5, fleet, ("salt-run", "batch.watch", jid[0]))
    return recording


if __name__ == "__main__":
    quiet_salt()
    title = "On a terminal: salt-run batch.start, and batch.watch, whose bar grows until all minions have completed"
    pathlib.Path(sys.argv[1]).write_text(draw(record().frames, title), encoding="utf-8")
