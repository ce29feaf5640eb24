"""What the files of the console must be, whatever a browser makes of them."""

from __future__ import annotations

import pathlib
import re

import yaml

CHECKOUT = pathlib.Path(__file__).resolve().parents[3]
CONSOLE = CHECKOUT / "console"
SCRIPTS = sorted(CONSOLE.rglob("*.js"))
PAGE = (CONSOLE / "index.html").read_text(encoding="utf-8")


def test_the_page_begins_with_all_of_its_files():
    boot = (CONSOLE / "boot.js").read_text(encoding="utf-8")
    named = re.findall(r'^  "([\w./]+)",$', boot, re.M)
    files = {str(path.relative_to(CONSOLE)) for path in CONSOLE.rglob("*") if path.suffix in (".js", ".css", ".html")}
    assert set(named) == files
    assert len(named) == len(set(named))


def test_nothing_is_fetched_from_elsewhere():
    for path in (*SCRIPTS, CONSOLE / "index.html", CONSOLE / "console.css"):
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//[\w-]+\.", text.split("*/", 1)[-1] if path.suffix == ".css" else text), path


def test_the_policy_allows_this_servers_scripts_and_nothing_inline():
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', PAGE)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert {rules[name] for name in ("script-src", "style-src", "img-src", "connect-src")} == {"'self'"}
    assert (rules["require-trusted-types-for"], rules["trusted-types"]) == ("'script'", "'none'")
    assert not re.search(r"<script(?![^>]*src=)|<style| on\w+=| style=", PAGE)


def test_nothing_makes_markup_or_code_of_text():
    forbidden = re.compile(
        r"\.(inner|outer)HTML|insertAdjacentHTML|document\.write|createContextualFragment|parseFromString"
        r"|\beval\(|new Function|setTimeout\([\"'`]|\bEventSource\b(?!,)|document\.cookie"
    )
    for path in SCRIPTS:
        code = re.sub(r"^\s*(//|\*|/\*\*).*$", "", path.read_text(encoding="utf-8"), flags=re.M)
        assert not forbidden.search(code), path


def test_timers_ask_the_api_nothing():
    # One interval, for "3 min ago"; every read follows from an event, or from the user at the page.
    used = {path.name: path.read_text(encoding="utf-8").count("setInterval(") for path in SCRIPTS}
    assert {name: count for name, count in used.items() if count} == {"main.js": 1}


def test_every_module_that_is_imported_is_there():
    for path in SCRIPTS:
        for name in re.findall(r'(?:from|import\()\s*"([^"]+)"', path.read_text(encoding="utf-8")):
            assert (path.parent / name).is_file(), (path, name)


def test_the_page_about_it_lets_a_user_who_looks_call_all_that_is_read():
    called = {name for path in SCRIPTS for name in re.findall(r'"((?:batch|jobs|job_\w+)\.\w+)"', path.read_text())}
    text = (CHECKOUT / "docs/console.md").read_text(encoding="utf-8")
    access = yaml.safe_load(re.search(r"^external_auth:\n(?: .+\n)+", text, re.MULTILINE)[0])["external_auth"]["pam"]
    (watching,) = access["watcher"]
    acts = {"start", "preview", "pause", "resume", "approve", "stop", "retry", "cancel", "replay", "purge"}
    assert {name for name in called if name.partition(".")[2] not in acts} <= set(watching["@runner"])
