"""The pages: their tables are those of the code and complete, and what they name is there."""

from __future__ import annotations

import ast
import dataclasses
import pathlib
import re

import pytest
import yaml

from docs import generated, kept, logged, options, tables
from saltext.jobs.core.batch.starting import NAMES
from saltext.jobs.core.loader import module_dirs
from saltext.jobs.core.options import read_settings

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ["docs/architecture.md", "CONTRIBUTING.md"]
ALL_PAGES = sorted(str(path.relative_to(CHECKOUT)) for path in [*CHECKOUT.glob("*.md"), *CHECKOUT.glob("docs/**/*.md")])
#: A path below one of the checkout's folders, as code.
_FOLDERS = (
    r"\.ci|benchmarks|console|core|demo|docs|engines|executors|minion|output|package|reactor|returners|runners|tests"
)
_FILE = re.compile(rf"`((?:{_FOLDERS})/[\w./]*)")
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")
_CODE = re.compile(r"^ *```+[\w ]*\n.*?^ *```$|`[^`\n]+`|^    [^\n]+$", re.MULTILINE | re.DOTALL)
_CALL = re.compile(r"(?<![\w./*])(batch|job_retry|job_cache|job_recorder)\.([a-z_]+)\b(?![./])")


def page(name):
    return (CHECKOUT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", tables.PAGES, ids=lambda path: path.stem)
def test_the_tables_of_states_and_options_are_those_of_the_code(path):
    assert tables.printed(path.read_text(encoding="utf-8")) == path.read_text(encoding="utf-8"), "run make docs-tables"


@pytest.mark.parametrize("name", tables.TABLES)
def test_every_state_table_is_on_the_page_and_says_what_each_state_means(name):
    assert f"<!-- table of {name} -->" in page("docs/architecture.md")
    states, _ = tables.TABLES[name]
    assert len(tables.table(name).splitlines()) == 2 + len(states)


@pytest.mark.parametrize("name", tables.TABLES)
def test_every_state_table_is_drawn_as_it_is_in_the_code(name):
    path, drawing = tables.picture(name)
    assert path.read_text(encoding="utf-8") == drawing, "run make docs-tables"
    assert f"](states/{path.name})" in page("docs/architecture.md")
    _, ways = tables.TABLES[name]
    assert drawing.count("<circle ") == sum(map(len, ways.values()))


@pytest.mark.parametrize("name", PAGES)
def test_every_file_that_a_page_names_is_there(name):
    named = set(_FILE.findall(page(name)))
    assert len(named) > 10
    assert {path for path in named if not (CHECKOUT / path).exists()} == set()


@pytest.mark.parametrize("name", ALL_PAGES)
def test_every_link_of_a_page_leads_somewhere(name):
    links = _LINK.findall(page(name))
    assert {link for link in links if not (CHECKOUT / name).parent.joinpath(link).exists()} == set()


def functions(runner):
    """The names of a runner's functions, as they are called."""
    source = (CHECKOUT / f"runners/{runner}.py").read_text(encoding="utf-8")
    names = set(re.findall(r"^def ([a-z]\w*)", source, re.MULTILINE))
    aliases = re.search(r"^__func_alias__ = (.+)$", source, re.MULTILINE)
    return {(ast.literal_eval(aliases[1]) if aliases else {}).get(name, name) for name in names}


@pytest.mark.parametrize("name", [name for name in ALL_PAGES if name != "CHANGELOG.md"])
def test_every_function_of_a_runner_that_a_page_names_is_there(name):
    named = set(_CALL.findall(" ".join(_CODE.findall(page(name)))))
    assert {(runner, function) for runner, function in named if function not in functions(runner)} == set()


def test_each_way_in_has_tests_and_they_are_there():
    section = page("docs/security.md").partition("## Ways in")[2].partition("\n## ")[0]
    rows = [row.strip("| ").split(" | ") for row in section.splitlines() if row.startswith("| ")][1:]
    assert len(rows) > 20
    known = {
        found
        for path in (CHECKOUT / "tests").rglob("test_*.py")
        for found in re.findall(r"^ *(?:async )?def (test_\w+)\(", path.read_text("utf-8"), re.MULTILINE)
    }
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row[-1])
        assert named, f"no test holds this row: {row[0]}"
        assert set(named) <= known, row[0]


# -- what is taken from the code ---------------------------------------------------------------------------------------


def test_the_page_about_the_log_has_every_line_of_the_code_and_no_other():
    rows = re.findall(r"^\| (warning|error|critical) \| (.+?) \| .+ \|$", page("docs/log.md"), re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert set(rows) == set(logged.lines())


def test_every_option_that_stands_in_no_section_is_on_the_page_and_no_other():
    sources = [path for folder in ("core", "cache", "executors", "reactor") for path in (CHECKOUT / folder).rglob("*")]
    asked = {
        name
        for path in sources
        if path.suffix in (".py", ".sls")
        for name in re.findall(r'opts(?:__)?\.get\(\s*"(\w+)"', path.read_text(encoding="utf-8"))
    }
    ours = {name for name in asked if re.match("salt_cache|sqlite_cache_|saltext_jobs_|job_once_", name)}
    _, _, rest = page("docs/reference/options.md").partition("## Without a section")
    assert set(re.findall(r"^\| `(\w+)` \|", rest, re.MULTILINE)) == ours - set(options.SECTIONS)


@pytest.mark.parametrize("section", options.SECTIONS)
def test_every_option_is_in_the_table_with_its_meaning(section):
    assert f"## {section}\n\n<!-- table of {section} -->" in page("docs/reference/options.md")
    rows = [row.split(" | ") for row in options.table(section).splitlines()[2:]]
    assert len(rows) == len(dataclasses.fields(options.SECTIONS[section]))
    assert all(len(row) == 3 and " Accepted: " in row[2] for row in rows)


def test_the_help_of_batch_start_describes_every_option_and_no_other():
    code = ast.parse(page("runners/batch.py")).body
    (start,) = (node for node in code if isinstance(node, ast.FunctionDef) and node.name == "start")
    told = re.findall(r":param (?:\w+ )?(\w+):", ast.get_docstring(start) or "")
    assert sorted(told) == sorted([*NAMES, "args", "like", "preview"])


@pytest.mark.parametrize("runner", ["batch", "job_cache", "job_recorder", "job_retry"])
def test_the_page_about_it_describes_every_function_of_a_runner(runner):
    named = {function for of, function in _CALL.findall(page(f"docs/{runner}.md")) if of == runner}
    assert functions(runner) - named == set()


@pytest.mark.parametrize("section", ["batch_manager", "job_retry", "job_recorder"])
def test_a_default_is_shown_as_it_may_be_written(section):
    kind = options.SECTIONS[section]
    for field in dataclasses.fields(kind):
        shown = options.shown(field.default)
        if shown != "none":
            written = [part.strip("`") for part in shown.split(", ")]
            value = written if isinstance(field.default, tuple) and "/" not in shown else yaml.safe_load(written[0])
            assert getattr(read_settings(kind, section, {field.name: value}), field.name) == field.default


def test_every_bank_of_the_code_is_in_the_table_of_banks_and_no_other():
    named = kept.tables(page("docs/reference/files.md"))["Banks"]
    assert len(named) == len(set(named))
    assert {"/".join(name.split("/")[:2]) for name in named} == kept.banks()


@pytest.mark.parametrize("kind", module_dirs())
def test_the_reference_has_every_module(kind):
    modules = [path.stem for path in (CHECKOUT / kind).glob("[!_]*.py")]
    assert modules
    assert all(f"automodule:: saltext.jobs.{kind}.{name}\n" in page(f"docs/reference/{kind}.md") for name in modules)


def test_the_readme_has_absolute_links_so_that_they_lead_somewhere_wherever_it_is_shown():
    source = generated.repository()
    raw = source.replace("https://github.com/", "https://raw.githubusercontent.com/") + "/main/"
    links = re.findall(r"\]\(([^)#]+)\)", page("README.md"))
    assert [link for link in links if not link.startswith("https://")] == []
    ours = [
        link.removeprefix(f"{source}/blob/main/").removeprefix(raw) for link in links if link.startswith((source, raw))
    ]
    assert len(ours) > 10
    assert [path for path in ours if not (CHECKOUT / path).is_file()] == []


# -- what calls the Makefile -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [".github/workflows/ci.yml", ".pre-commit-config.yaml", "CONTRIBUTING.md", "README.md"]
)
def test_every_target_that_is_called_is_in_the_makefile(name):
    targets = set(re.findall(r"^([a-z-]+):", page("Makefile"), re.MULTILINE))
    called = set(re.findall(r"(?:run: |entry: |^    |`)make ([a-z-]+)", page(name), re.MULTILINE))
    assert called
    assert called <= targets
