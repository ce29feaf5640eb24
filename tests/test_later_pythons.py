"""
Nothing here uses what Python 3.14, the Python of Salt 3008's packages, has removed or changed.

Warnings are errors in the tests, so they show what a Python warns of. This finds what it does not warn of, and what an
earlier Python does not know yet, by "What's New in Python" of 3.12 to 3.14.
"""

from __future__ import annotations

import ast
import pathlib

import pytest

CHECKOUT = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = (
    *("benchmarks", "cache", "console", "core", "demo", "docs", "engines", "executors", "minion", "output", "package"),
    *("reactor", "returners", "runners", "tests"),
)
SOURCES = [
    path
    for folder in FOLDERS
    for path in sorted((CHECKOUT / folder).rglob("*"))
    if path.suffix == ".py" or (path.suffix == ".sls" and path.read_text(encoding="utf-8").startswith("#!py"))
]

#: Modules that are gone.
GONE_MODULES = {
    *(
        "aifc",
        "asynchat",
        "asyncore",
        "audioop",
        "cgi",
        "cgitb",
        "chunk",
        "crypt",
        "distutils",
        "imghdr",
        "imp",
        "lib2to3",
    ),
    *(
        "mailcap",
        "msilib",
        "nis",
        "nntplib",
        "ossaudiodev",
        "pipes",
        "smtpd",
        "sndhdr",
        "spwd",
        "sunau",
        "telnetlib",
        "uu",
    ),
    "xdrlib",
}
#: Names that are gone from modules that stay, are about to go, or have changed; with their replacements.
CHANGED = {
    "ast.Bytes": "ast.Constant",
    "ast.Ellipsis": "ast.Constant",
    "ast.NameConstant": "ast.Constant",
    "ast.Num": "ast.Constant",
    "ast.Str": "ast.Constant",
    "asyncio.AbstractChildWatcher": "nothing",
    "asyncio.AbstractEventLoopPolicy": "asyncio.run(..., loop_factory=...)",
    "asyncio.DefaultEventLoopPolicy": "asyncio.run(..., loop_factory=...)",
    "asyncio.get_child_watcher": "nothing",
    "asyncio.get_event_loop": "asyncio.get_running_loop, or a loop that is made: it makes none any more",
    "asyncio.get_event_loop_policy": "asyncio.run(..., loop_factory=...)",
    "asyncio.iscoroutinefunction": "inspect.iscoroutinefunction",
    "asyncio.set_child_watcher": "nothing",
    "asyncio.set_event_loop_policy": "asyncio.run(..., loop_factory=...)",
    "codecs.open": "open",
    "datetime.datetime.utcfromtimestamp": "datetime.fromtimestamp(..., timezone.utc)",
    "datetime.datetime.utcnow": "datetime.now(timezone.utc)",
    "importlib.abc.ResourceReader": "importlib.resources.abc",
    "importlib.abc.Traversable": "importlib.resources.abc",
    "importlib.find_loader": "importlib.util.find_spec",
    "locale.getdefaultlocale": "locale.getlocale",
    "locale.resetlocale": "locale.setlocale",
    "logging.warn": "logging.warning",
    "pkgutil.find_loader": "importlib.util.find_spec",
    "pkgutil.get_loader": "importlib.util.find_spec",
    "pty.master_open": "pty.openpty",
    "pty.slave_open": "pty.openpty",
    "shutil.ExecError": "RuntimeError",
    "sqlite3.version": "sqlite3.sqlite_version",
    "sqlite3.version_info": "sqlite3.sqlite_version_info",
    "tempfile.mktemp": "tempfile.mkstemp",
    "threading.activeCount": "threading.active_count",
    "threading.currentThread": "threading.current_thread",
    "typing.ByteString": "bytes | bytearray | memoryview",
    "urllib.request.FancyURLopener": "urllib.request.urlopen",
    "urllib.request.URLopener": "urllib.request.urlopen",
}
#: Names that start a process, or share data with one, by the default method: that was fork, and is forkserver now.
STARTS = {
    *("Barrier", "Condition", "Event", "JoinableQueue", "Lock", "Manager", "Pool", "Process", "Queue", "RLock"),
    *("Semaphore", "SimpleQueue"),
}


def dotted(node):
    """The names of ``a.b.c``; empty if it does not begin with a name."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def imported(tree):
    """``{name: what it stands for}`` of what a module imports, and the modules that it imports."""
    names, modules = {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
            names.update(
                {(alias.asname or alias.name.split(".")[0]): alias.asname and alias.name for alias in node.names}
            )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module)
            names.update({(alias.asname or alias.name): f"{node.module}.{alias.name}" for alias in node.names})
    return {name: whole or name for name, whole in names.items()}, modules


def leaves(block):
    """Statements that leave a ``finally`` early and so lose the pending error, except from a loop or function in it."""
    for node in block:
        if isinstance(node, (ast.Return, ast.Break, ast.Continue)):
            yield node
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            inner = list(leaves(ast.iter_child_nodes(node)))
            in_loop = isinstance(node, (ast.For, ast.AsyncFor, ast.While))
            yield from (found for found in inner if not in_loop or isinstance(found, ast.Return))


def findings(source):
    """What a module uses that is gone or changed: a sentence for each."""
    tree = ast.parse(source)
    names, modules = imported(tree)
    found = [f"imports {name}" for name in modules if name.partition(".")[0] in GONE_MODULES]
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Name)) and (path := dotted(node)):
            first, _, rest = path.partition(".")
            whole = f"{names.get(first, '')}.{rest}".strip(".") if first in names else ""
            if whole in CHANGED:
                found.append(f"line {node.lineno}: {whole}; use {CHANGED[whole]}")
            module, _, name = whole.rpartition(".")
            if module == "multiprocessing" and name in STARTS:
                found.append(f"line {node.lineno}: {whole}; name how processes start: multiprocessing.get_context(...)")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            named = {keyword.arg for keyword in node.keywords}
            unpacks = node.func.attr == "unpack_archive" or ("tarfile" in modules and node.func.attr == "extractall")
            if unpacks and "filter" not in named:
                found.append(f"line {node.lineno}: {node.func.attr} without a filter")
            if node.func.attr == "ProcessPoolExecutor" and "mp_context" not in named:
                found.append(f"line {node.lineno}: ProcessPoolExecutor without mp_context")
        if isinstance(node, ast.Try):
            found += [f"line {left.lineno}: leaves a finally" for left in leaves(node.finalbody)]
    return found


def test_there_are_sources_to_look_at():
    assert len(SOURCES) > 400


@pytest.mark.parametrize("folder", FOLDERS)
def test_nothing_is_used_that_a_later_python_has_taken_away_or_changed(folder):
    paths = [path for path in SOURCES if path.relative_to(CHECKOUT).parts[0] == folder]
    sources = {path: path.read_text(encoding="utf-8") for path in paths}
    assert {str(path): found for path, source in sources.items() if (found := findings(source))} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import imp",
        "from distutils.core import setup",
        "import ast\nast.Str",
        "from asyncio import get_event_loop\nloop = get_event_loop()",
        "import asyncio as aio\naio.get_event_loop()",
        "from datetime import datetime\ndatetime.utcnow()",
        "import multiprocessing\nmultiprocessing.Process(target=print)",
        "from multiprocessing import Process\nProcess()",
        "import concurrent.futures\nconcurrent.futures.ProcessPoolExecutor(2)",
        "import tarfile\ntarfile.open(x).extractall('x')",
        "def f():\n    try:\n        pass\n    finally:\n        return 1",
        "for x in y:\n    try:\n        pass\n    finally:\n        if x:\n            continue",
    ],
)
def test_a_use_of_what_is_gone_is_found(source):
    assert len(findings(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import ast\nast.Constant",
        "import asyncio\nasyncio.get_running_loop()",
        "import multiprocessing\nmultiprocessing.get_context('fork').Process(target=print)",
        "import tarfile\ntarfile.open(x).extractall('x', filter='data')",
        "import zipfile\nzipfile.ZipFile(x).extractall('x')",
        "try:\n    pass\nfinally:\n    for x in y:\n        break\n    def f():\n        return 1",
        "queue.Process()",
    ],
)
def test_a_use_of_what_stays_is_not_found(source):
    assert findings(source) == []
