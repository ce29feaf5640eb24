"""Commands of the README and the pages: their functions are there, and take the arguments that are shown."""

from __future__ import annotations

import importlib
import pathlib
import re
import shlex

import pytest

CHECKOUT = pathlib.Path(__file__).resolve().parents[3]
RUNNERS = "batch|job_retry|job_cache|job_recorder"
_COMMAND = re.compile(rf"salt-run ((?:{RUNNERS})\.\w+[^`|\n]*?)(?:`|\||;? +salt-run| \(|$)", re.MULTILINE)
#: The characters that mark a placeholder in a shown command.
_PLACEHOLDER = re.compile(r"[\[\]…]")


def pages():
    found = [CHECKOUT / "README.md", *CHECKOUT.glob("docs/**/*.md")]
    return [path for path in found if path.name != "log.md" and _COMMAND.search(path.read_text(encoding="utf-8"))]


def shown(path):
    """The commands of a page, each as words."""
    for command in _COMMAND.findall(path.read_text(encoding="utf-8")):
        words = shlex.split(_PLACEHOLDER.sub("", command), comments=True)
        while words and words[-1] in ("&&", "\\"):
            words.pop()
        yield words


def bound(words):
    """The arguments that a function gets from a command. :raises TypeError: if it does not take them."""
    runner, _, name = words[0].partition(".")
    module = importlib.import_module(f"saltext.jobs.runners.{runner}")
    aliases = {alias: own for own, alias in getattr(module, "__func_alias__", {}).items()}
    keywords = dict(word.split("=", 1) for word in words[1:] if re.match(r"[a-z_]+=", word))
    plain = [word for word in words[1:] if not re.match(r"[a-z_]+=", word)]
    takes = getattr(module, aliases.get(name, name)).takes
    # A function that is only named, as in "batch.run waits for the end", is not called.
    return takes.bind(*plain, **keywords) if plain or keywords else takes.bind_partial()


@pytest.mark.parametrize("path", pages(), ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_every_command_names_a_function_with_arguments_that_it_takes(path):
    commands = list(shown(path))
    assert commands
    for words in commands:
        bound(words)
