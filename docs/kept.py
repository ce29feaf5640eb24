"""
What the extension keeps on the disk and in banks: according to docs/reference/files.md, and according to the code. For
tests.
"""

from __future__ import annotations

import ast
import pathlib
import re
from collections.abc import Iterable

CHECKOUT = pathlib.Path(__file__).resolve().parents[1]
PAGE = CHECKOUT / "docs/reference/files.md"
FOLDERS = ("core", "engines", "returners", "runners")
_BANK = re.compile(r"(?:jobs|job_retry)/[a-z]+/?")
_ROW = re.compile(r"^\| `(.+?)` \|", re.MULTILINE)
_PART = re.compile(r"<(\w+)>")
#: What a placeholder in a name stands for: anything without a slash, unless more is known.
_PARTS = {
    "jid": r"\d{20}",
    "xx": r"[0-9a-f]{2}",
    "hash": r"[0-9a-f]+",
    "number": r"\d{20}",
    "time": r"\d+",
}
#: A file that is being written, or was when the machine died (``core/disk/files.py``).
_DRAFT = re.compile(r"(?:.*/)?\.[^/]+\.[a-z0-9_]{8}")


def tables(text: str) -> dict[str, list[str]]:
    """Return the names in the rows of the page, by the title above them."""
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return {title: _ROW.findall(part) for title, part in zip(parts[1::2], parts[2::2], strict=True)}


def banks() -> set[str]:
    """Return the banks that the code names as constants, cut after the second part of the name."""
    found = set()
    for folder in FOLDERS:
        for path in sorted((CHECKOUT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and _BANK.fullmatch(node.value):
                    found.add(node.value.rstrip("/"))
    return found


def strangers(paths: Iterable[str], named: Iterable[str]) -> list[str]:
    """
    Return those of the given files that no row of the table names.

    :param paths: relative to the cache directory.
    :param named: the names in the rows, such as ``saltext_jobs/<engine>/lock``.
    """
    known = re.compile("|".join(map(_pattern, named)))
    return [path for path in paths if not known.fullmatch(path) and not _DRAFT.fullmatch(path)]


def _pattern(name: str) -> str:
    parts = _PART.split(name)
    texts = [re.escape(part) if at % 2 == 0 else _PARTS.get(part, "[^/]+") for at, part in enumerate(parts)]
    return "".join(texts)
