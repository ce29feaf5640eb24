"""The pages for whoever changes the code: their tables are those of the code, and what they name is there."""

from __future__ import annotations

import pathlib
import re

import pytest

from docs import tables

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ["docs/architecture.md", "CONTRIBUTING.md"]
#: A path below one of the checkout's folders, as code.
_FOLDERS = r"\.ci|benchmarks|core|demo|docs|engines|executors|minion|output|reactor|returners|runners|tests"
_FILE = re.compile(rf"`((?:{_FOLDERS})/[\w./]*)")
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def page(name):
    return (CHECKOUT / name).read_text(encoding="utf-8")


def test_the_state_tables_are_those_of_the_code():
    assert tables.printed(page("docs/architecture.md")) == page("docs/architecture.md"), "run make docs-tables"


@pytest.mark.parametrize("name", tables.TABLES)
def test_every_state_table_is_on_the_page_and_says_what_each_state_means(name):
    assert f"<!-- table of {name} -->" in page("docs/architecture.md")
    states, _ = tables.TABLES[name]
    assert len(tables.table(name).splitlines()) == 2 + len(states)


def test_a_table_that_is_not_that_of_the_code_is_noticed():
    stale = page("docs/architecture.md").replace("`pending`", "`waiting`", 1)
    assert tables.printed(stale) != stale


@pytest.mark.parametrize("name", PAGES)
def test_every_file_that_a_page_names_is_there(name):
    named = set(_FILE.findall(page(name)))
    assert len(named) > 10
    assert {path for path in named if not (CHECKOUT / path).exists()} == set()


@pytest.mark.parametrize("name", PAGES)
def test_every_link_of_a_page_leads_somewhere(name):
    links = _LINK.findall(page(name))
    assert {link for link in links if not (CHECKOUT / name).parent.joinpath(link).exists()} == set()
