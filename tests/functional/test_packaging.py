"""The package as an operator gets it: built wheel, editable install, and ``module_dirs`` with the package installed."""

from __future__ import annotations

import email
import getpass
import json
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest
import salt.version

from saltext.jobs.core.loader import module_dirs
from tests.waiting import stretched

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
NOT_SOURCE = (".git", ".venv*", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis")

# Prints {"<kind>/<module>": its file} as Salt's own loader sees it, for the modules that are named.
LOADED = """
import json, sys, salt.config, salt.loader
opts = salt.config.master_config(sys.argv[1])
loaders = {
    "engines": salt.loader.engines(opts, {}, {}, {}),
    "runners": salt.loader.runner(opts),
    "returners": salt.loader.returners(opts, {}),
    "cache": salt.loader.cache(opts, {}),
    "executors": salt.loader.executors(opts),
    "output": salt.loader.outputters(opts),
}
files = {}
for kind, module in (name.split("/") for name in sys.argv[2:]):
    function = next(name for name in list(loaders[kind]) if name.partition(".")[0] == module)
    function = getattr(loaders[kind][function], "func", loaders[kind][function])
    files[f"{kind}/{module}"] = function.__globals__["__file__"]
print(json.dumps(files))
"""


def run(*command, timeout=600, **env):
    """Run a command that must succeed and return what it printed; PYTHONPATH and the like do not reach it."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=stretched(timeout),
        stdin=subprocess.DEVNULL,
        cwd="/",
        env={**clean, **env},
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of the checkout, so that building leaves nothing in it."""
    copy = tmp_path_factory.mktemp("source") / "checkout"
    shutil.copytree(CHECKOUT, copy, ignore=shutil.ignore_patterns(*NOT_SOURCE))
    return copy


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "-w", folder, source)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture
def master_config(tmp_path):
    """Write a master's configuration with the given options and return its directory."""

    def write(**options):
        config = {"root_dir": str(tmp_path / "root"), "user": getpass.getuser(), "log_level": "warning", **options}
        (tmp_path / "master").write_text(json.dumps(config))  # JSON is YAML too
        return tmp_path

    return write


def metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_has_every_module_and_nothing_beside_the_package(wheel, source):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    folders = (*module_dirs(), "core", "minion", "reactor")
    assert names == {
        f"saltext/jobs/{path.relative_to(source)}"
        for folder in folders
        for path in (source / folder).rglob("*")
        if path.suffix in (".py", ".sls", ".typed")
    }


def test_the_wheel_has_the_reactor_files(wheel):
    with zipfile.ZipFile(wheel) as archive:
        found = {pathlib.Path(name).name for name in archive.namelist() if name.startswith("saltext/jobs/reactor/")}
    files = {path.name for path in (CHECKOUT / "reactor").glob("*.sls")}
    assert files and files <= found


def test_the_package_requires_salt_and_nothing_else(wheel):
    required = metadata(wheel).get_all("Requires-Dist")
    assert [line for line in required if "extra ==" not in line] == ["salt>=3006"]
    assert {"redis", "tests", "docs"} <= set(metadata(wheel).get_all("Provides-Extra"))


def test_the_wheel_leaves_room_for_other_extensions(wheel):
    # saltext is a namespace that many distributions share: a file in it would hide the others.
    with zipfile.ZipFile(wheel) as archive:
        assert not {"saltext/__init__.py", "saltext/jobs/__init__.py"} & set(archive.namelist())


def install(folder, *arguments):
    """Install requirements with what they need from the index into a virtual environment, made if need be; its bin."""
    if not (folder / "v").exists():
        run(sys.executable, "-m", "venv", folder / "v")
    # The newest Salt would do; this pins the one that the suite runs on, so that each release is looked at.
    constraint = folder / "constraint"
    constraint.write_text(f"salt=={salt.version.__version__}\n")
    run(folder / "v/bin/pip", "install", "-qq", *arguments, PIP_CONSTRAINT=str(constraint))
    return folder / "v/bin"


@pytest.fixture(scope="module")
def fresh(wheel, tmp_path_factory):
    """A virtual environment in which the wheel is installed, without extras."""
    folder = tmp_path_factory.mktemp("fresh")
    install(folder, wheel)
    return folder


def documented(binaries, config, runner):
    """The functions of a runner that ``salt-run -d`` prints documentation for."""
    printed = run(binaries / "salt-run", "-c", config, "--no-color", "-d", runner)
    assert "CLI Example" in printed
    return {line.strip().rstrip(":") for line in printed.splitlines() if line.startswith(f"{runner}.")}


def modules():
    """``<kind>/<module>`` of every module that is for Salt's loader."""
    return [f"{kind}/{path.stem}" for kind in module_dirs() for path in (CHECKOUT / kind).glob("[!_]*.py")]


def check(binaries, config, root, without=()):
    """All modules but some come from below ``root``, and ``salt-run -d`` documents the runners."""
    script, names = config / "loaded.py", [name for name in modules() if name not in without]
    script.write_text(LOADED)
    files = json.loads(run(binaries / "python", script, config / "master", *names).splitlines()[-1])
    assert files == {name: str(root / f"{name}.py") for name in names}
    assert {"batch.start", "batch.status", "batch.stop", "batch.list_active"} <= documented(binaries, config, "batch")
    assert "job_retry.list" in documented(binaries, config, "job_retry")


@pytest.mark.slow
def test_module_dirs_wins_over_the_installed_package(fresh, master_config, source):
    # Without an extra all is there that needs none.
    check(fresh / "v/bin", master_config(module_dirs=[str(source)]), source, without=["returners/pgjsonb_bulk"])


@pytest.mark.slow
def test_the_wheel_loads_in_a_fresh_environment(fresh, wheel, master_config):
    binaries = install(fresh, f"{wheel}[postgresql]")
    package = run(binaries / "python", "-c", "import saltext.jobs.core as c; print(c.__path__[0])").strip()
    check(binaries, master_config(), pathlib.Path(package).parent)


@pytest.mark.slow
def test_an_editable_install_loads_the_sources(source, tmp_path, master_config):
    check(install(tmp_path, "--editable", f"{source}[postgresql]"), master_config(), source)


def test_the_suite_itself_runs_on_this_checkout(master_config):
    check(pathlib.Path(sys.executable).parent, master_config(), CHECKOUT)
