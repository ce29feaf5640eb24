"""
A Sphinx extension that builds parts of the documentation from the code, so that they cannot be out of date.

A page asks for it by a directive, whose name is that of a function below which returns Markdown:

    ```{generated} options
    ```

Links of a page to a file that is not a page, such as the README, lead to the repository.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import pathlib
import re
from typing import Any

from docs import tables
from saltext.jobs.core import settings
from saltext.jobs.core.master import events as vocabulary
from saltext.jobs.core.postgresql.options import CacheOptions, Options

PAGES = pathlib.Path(__file__).resolve().parent
CHECKOUT = PAGES.parent
#: Where the options of each class stand in the master's configuration.
SECTIONS: dict[str, type] = {
    "batch_manager": settings.BatchSettings,
    "job_retry": settings.RetrySettings,
    "job_recorder": settings.RecorderSettings,
    "job_notices": settings.NoticesSettings,
    "returner.pgjsonb_bulk": Options,
    "postgresql": CacheOptions,
}
#: Options whose name differs from the attribute of the class.
_WRITTEN = {("returner.pgjsonb_bulk", "password"): "pass"}
_HEAD = ("| option | default | meaning |", "|---|---|---|")
_FIELD = re.compile(r" {4}(\w+): .+ = option\(")
_OUTSIDE = re.compile(r"\]\((\.\./[^)#\s]+)")
_EVENT = re.compile(r"^(``salt/\S.*)\n((?: {4}.+\n)+)", re.MULTILINE)


def options() -> str:
    """All options of the master's configuration, a table for each section."""
    parts = []
    for section, kind in SECTIONS.items():
        about, rows = meanings(kind), list(_HEAD)
        for field in dataclasses.fields(kind):
            name = _WRITTEN.get((section, field.name), field.name)
            meaning = f"{about.get(field.name, '')} Accepted: {field.metadata['check'].accepts}."
            rows.append(f"| {' | '.join(map(_cell, (f'`{name}`', shown(field.default), meaning)))} |")
        parts.append("\n".join([f"## {section}", "", *rows]))
    return "\n\n".join(parts)


def meanings(kind: type) -> dict[str, str]:
    """Return what the comment above each option of a settings class says; one comment may be for several in a row."""
    found, about, before = {}, "", ""
    parents = [cls for cls in reversed(kind.__mro__) if dataclasses.is_dataclass(cls)]
    for line in "\n".join(map(inspect.getsource, parents)).splitlines():
        comment = line.strip()
        if comment.startswith("#: "):
            about = f"{about} {comment[3:]}" if before.startswith("#: ") else comment[3:]
        elif field := _FIELD.match(line):
            found[field[1]] = about
        before = comment
    return found


def shown(value: Any) -> str:
    """Return a default as it may be written in the configuration; a list without its brackets."""
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(part, (int, float)) for part in value):
        return f"`{value[0]}/{_duration(value[1])}`"
    if isinstance(value, tuple):
        return ", ".join(f"`{item}`" for item in value) or "none"
    if isinstance(value, float) and value == math.floor(value):
        value = int(value)
    return "none" if value in ("", None) else f"`{value}`"


def _duration(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds % length == 0:
            return f"{seconds / length:g}{unit}"
    return f"{seconds:g}s"


def _cell(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|").replace("['*']", "`['*']`").replace("*.", "\\*.")


def events() -> str:
    """All events that the engines announce, from the head of ``core/master/events.py``."""
    rows = ["| tag | fields |", "|---|---|"]
    for tag, fields in _EVENT.findall((vocabulary.__doc__ or "") + "\n"):
        rows.append(f"| {_cell(tag)} | {_cell(' '.join(fields.split()))} |")
    return "\n".join(rows)


def states() -> str:
    """The tables by which the state machines go, and their pictures."""
    return "\n\n".join(
        f"## {title}\n\n![{title}: to which state each may go](../states/{name}.svg)\n\n{tables.table(name)}"
        for name, title in tables.TITLES.items()
    )


def reactor() -> str:
    """The files for Salt's reactor, each with what its head says."""
    parts = []
    for path in sorted((CHECKOUT / "reactor").glob("*.sls")):
        about = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        parts.append(f"## {path.name}\n\n```text\n{about}\n```")
    return "\n\n".join(parts)


def repository() -> str:
    """Where the sources are, as ``pyproject.toml`` has it."""
    (url,) = re.findall(r'^Source = "(.+)"$', (CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    return url


def linked(text: str, folder: pathlib.Path) -> str:
    """Return a page of a folder with the links to what is in the repository and is no page leading there."""

    def leading_there(link: re.Match[str]) -> str:
        path = (folder / link[1]).resolve()
        if path.is_relative_to(PAGES) or not path.is_relative_to(CHECKOUT) or not path.exists():
            return link[0]
        return f"]({repository()}/blob/main/{path.relative_to(CHECKOUT)}"

    return _OUTSIDE.sub(leading_there, text)


def _link_to_the_repository(app: Any, page: str, source: list[str]) -> None:
    source[0] = linked(source[0], pathlib.Path(app.env.doc2path(page)).parent)


def _signature(app: Any, what: str, name: str, item: Any, options: Any, signature: str, returns: str) -> Any:
    """Show the real signature of a runner's function: its wrapper takes everything (``core/runner.py``)."""
    takes = getattr(item, "takes", None)
    if takes is None:
        return None
    plain = [parameter.replace(annotation=parameter.empty) for parameter in takes.parameters.values()]
    return str(takes.replace(parameters=plain, return_annotation=takes.empty)), None


#: What a page may ask for.
PARTS = {part.__name__: part for part in (options, events, states, reactor)}


def setup(app: Any) -> dict[str, Any]:
    """Called by Sphinx."""
    from docutils import nodes
    from sphinx.util.docutils import SphinxDirective

    class Generated(SphinxDirective):
        required_arguments = 1

        def run(self) -> list[nodes.Node]:
            return self.parse_text_to_nodes(PARTS[self.arguments[0]](), allow_section_headings=True)

    app.add_directive("generated", Generated)
    app.connect("autodoc-process-signature", _signature)
    app.connect("source-read", _link_to_the_repository)
    return {"parallel_read_safe": True}
