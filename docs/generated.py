"""
A Sphinx extension that builds parts of the documentation from the code, so that they cannot be out of date.

A page asks for it by a directive, whose name is that of a function below which returns Markdown:

    ```{generated} events
    ```

Links of a page to a file that is not a page, such as the README, lead to the repository.
"""

from __future__ import annotations

import ast
import pathlib
import re
from typing import Any

from docs import tables
from docs.options import cell
from saltext.jobs.core.master import events as vocabulary

PAGES = pathlib.Path(__file__).resolve().parent
CHECKOUT = PAGES.parent
_OUTSIDE = re.compile(r"\]\((\.\./[^)#\s]+)")
_EVENT = re.compile(r"^(``salt/\S.*)\n((?: {4}.+\n)+)", re.MULTILINE)


def events() -> str:
    """All events that the engines announce, from the head of ``core/master/events.py``."""
    rows = ["| tag | fields |", "|---|---|"]
    for tag, fields in _EVENT.findall((vocabulary.__doc__ or "") + "\n"):
        rows.append(f"| {cell(tag)} | {cell(' '.join(fields.split()))} |")
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
PARTS = {part.__name__: part for part in (events, states, reactor)}


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
