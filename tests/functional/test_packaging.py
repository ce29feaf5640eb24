"""The package as an operator gets it: built wheel, editable install, and ``module_dirs`` with the package installed."""

from __future__ import annotations

import email
import getpass
import importlib.metadata
import json
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest
from packaging.requirements import Requirement

from saltext.jobs.core.loader import module_dirs
from tests.waiting import stretched

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
NOT_SOURCE = (".git", ".venv*", "*build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".coverage", ".hypothesis")

PIP = (sys.executable, "-m", "pip")
#: Where the requirements of the package are in the environment of the tests.
SITE = importlib.metadata.distribution("salt").locate_file("")

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
    files[f"{kind}/{module}"] = sys.modules[function.__module__].__file__
print(json.dumps(files))
"""


def run(*command, timeout=600, cwd="/", **env):
    """Run a command that must succeed and return what it printed; PYTHONPATH and the like do not reach it."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=stretched(timeout),
        stdin=subprocess.DEVNULL,
        cwd=cwd,
        env={**clean, **env},
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


# -- building ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def builder(tmp_path_factory):
    """A folder with what builds the package (``build-system`` of pyproject.toml), fetched once for all."""
    folder = tmp_path_factory.mktemp("builder")
    run(*PIP, "install", "-qq", "--no-deps", "--no-compile", "--target", folder, "setuptools>=77", "packaging>=24.2")
    return folder


def copied(folder):
    """A copy of the checkout, so that building leaves nothing in it."""
    return shutil.copytree(CHECKOUT, folder, ignore=shutil.ignore_patterns(*NOT_SOURCE))


@pytest.fixture(scope="module")
def source(builder, tmp_path_factory):
    """The source distribution, unpacked: all that is built, installed and tested here comes from it."""
    folder = tmp_path_factory.mktemp("source")
    build = "import setuptools.build_meta as backend; print(backend.build_sdist('..'))"
    archive = run(sys.executable, "-c", build, cwd=copied(folder / "checkout"), PYTHONPATH=str(builder)).split()[-1]
    shutil.rmtree(folder / "checkout")
    run("tar", "-xf", folder / archive, "-C", folder)  # shutil knows no filter before Python 3.10.12 and 3.11.4
    return folder / archive.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def wheel(builder, source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    copy = shutil.copytree(source, folder / "source")
    run(*PIP, "wheel", "-qq", "--no-deps", "--no-build-isolation", "-w", folder, copy, PYTHONPATH=str(builder))
    (built,) = folder.glob("*.whl")
    return built


# -- installing --------------------------------------------------------------------------------------------------------


class Environment:
    """
    A fresh virtual environment with Salt and the requirements of a package, and no more.

    Nothing is fetched: the requirements are links into the environment of the tests. So it has the Salt release on which the
    tests run, and nothing that only the tests need. What Python compiles of them is that of the tests too, in its own folder
    (Makefile): written beside the sources, it would slow down the loaders of all other tests.
    """

    def __init__(self, folder):
        run(sys.executable, "-m", "venv", "--without-pip", folder)
        self.bin, self.compiled = folder / "bin", folder / "compiled"
        (self.site,) = folder.glob("lib/python*/site-packages")
        self.required = folder / "required"
        self.required.mkdir()
        (self.site / "required.pth").write_text(f"{self.required}\n")
        shared, link = (
            pathlib.Path(f"{sys.pycache_prefix or self.compiled}{SITE}"),
            pathlib.Path(f"{self.compiled}{self.required}"),
        )
        shared.mkdir(parents=True, exist_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(shared)
        for name in ("salt-run", "salt-call"):
            self.script(name)
        self.before = self.files()

    def script(self, name):
        """Make a command of Salt's."""
        script = f"#!{self.bin}/python\nimport salt.scripts\nsalt.scripts.{name.replace('-', '_')}()\n"
        (self.bin / name).write_text(script)
        (self.bin / name).chmod(0o755)

    def files(self):
        """Everything that is installed in it, except the links."""
        return {path.relative_to(self.site) for path in self.site.rglob("*")}

    def require(self, requirements, extra=""):
        """Link the requirements, and their own requirements."""
        open_ = [Requirement(requirement) for requirement in requirements]
        open_ = [requirement for requirement in open_ if _applies(requirement, extra)]
        known = set()
        while open_:
            requirement = open_.pop()
            found = importlib.metadata.distribution(requirement.name)
            assert requirement.specifier.contains(found.version, prereleases=True), f"{requirement}: {found.version}"
            for wanted in {"", *requirement.extras}:
                if (requirement.name, wanted) not in known:
                    known.add((requirement.name, wanted))
                    further = [Requirement(line) for line in found.requires or ()]
                    open_ += [each for each in further if _applies(each, wanted)]
            for top in {path.parts[0] for path in found.files} - {"..", "__pycache__"}:
                if not (self.required / top).is_symlink():
                    (self.required / top).symlink_to(found.locate_file(top))

    def run(self, program, *arguments, **options):
        """Run a program of this environment, as ``run`` does."""
        return run(self.bin / program, *arguments, PYTHONPYCACHEPREFIX=str(self.compiled), **options)

    def pip(self, *arguments, **env):
        """Have the pip of the tests work in this environment; it must find all that it needs there."""
        return run(*PIP, "--python", self.bin / "python", *arguments, **env)

    def install(self, wheel, extra=""):
        """Install the wheel with its requirements."""
        self.require(metadata(wheel).get_all("Requires-Dist"), extra)
        self.pip("install", "-qq", "--no-index", wheel)


def _applies(requirement, extra):
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


@pytest.fixture(scope="module")
def fresh(wheel, tmp_path_factory):
    """An environment in which the wheel is installed, without extras."""
    made = Environment(tmp_path_factory.mktemp("fresh") / "v")
    made.install(wheel)
    return made


# -- what an operator gets ---------------------------------------------------------------------------------------------


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


def test_the_wheel_has_every_module_and_nothing_beside_the_package(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    folders = (*module_dirs(), "console", "core", "minion", "reactor", "package")
    assert names == {
        f"saltext/jobs/{path.relative_to(CHECKOUT)}".replace("/package/", "/")
        for folder in folders
        for path in (CHECKOUT / folder).rglob("*")
        if path.suffix in (".py", ".sls", ".typed", ".html", ".css", ".js", ".svg")
    }


def test_the_package_requires_salt_and_nothing_else(wheel):
    assert [line for line in metadata(wheel).get_all("Requires-Dist") if "extra ==" not in line] == ["salt>=3006"]
    assert {"redis", "tests", "docs"} <= set(metadata(wheel).get_all("Provides-Extra"))


def modules():
    """``<kind>/<module>`` of every module that is for Salt's loader."""
    return [f"{kind}/{path.stem}" for kind in module_dirs() for path in (CHECKOUT / kind).glob("[!_]*.py")]


def check(environment, config, root, without=()):
    """Salt's own loader has all modules but some, from below ``root``."""
    script, names = config / "loaded.py", [name for name in modules() if name not in without]
    script.write_text(LOADED)
    files = json.loads(environment.run("python", script, config / "master", *names).splitlines()[-1])
    assert files == {name: str(root / f"{name}.py") for name in names}


def test_a_wheel_finds_all_that_it_requires_and_loads(fresh, wheel, master_config):
    # Without extras, every module that needs none is there.
    check(fresh, master_config(), fresh.site / "saltext/jobs", without=["returners/pgjsonb_bulk", "cache/postgresql"])
    assert "No broken requirements" in fresh.pip("check")


def test_salt_run_prints_the_documentation_of_every_runner(fresh, master_config):
    config, verbs = master_config(), {"job_console": "config", "jobs_doctor": "run"}
    printed = [
        fresh.run("salt-run", "-c", config, "--no-color", "-d", f"*.{verb}") for verb in ("doctor", *verbs.values())
    ]
    for name in (name for name in modules() if name.startswith("runners/")):
        runner = name.removeprefix("runners/")
        verb = verbs.get(runner, "doctor")
        assert any(f"{runner}.{verb}:" in text for text in printed)
        assert any(f"salt-run {runner}.{verb}" in text for text in printed)


def test_module_dirs_wins_over_the_installed_package(fresh, source, master_config):
    check(
        fresh, master_config(module_dirs=[str(source)]), source, without=["returners/pgjsonb_bulk", "cache/postgresql"]
    )


def test_an_extra_brings_what_its_module_needs(fresh, wheel, master_config):
    fresh.require(metadata(wheel).get_all("Requires-Dist"), "postgresql")
    check(fresh, master_config(), fresh.site / "saltext/jobs")


def test_an_uninstall_leaves_nothing_but_the_namespace_of_all_extensions(fresh):
    # pip has put what it compiled beside the modules.
    assert len(fresh.files()) > 100
    fresh.pip("uninstall", "-qq", "-y", "saltext-jobs")
    assert fresh.files() - fresh.before <= {pathlib.Path("saltext")}


def _by_the_way(path):
    return path.parent.suffix == ".egg-info" or path.parent.name == "__pycache__"


def test_the_source_distribution_has_all_that_the_repository_has(source):
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=CHECKOUT).splitlines()
    made = {path for path in source.rglob("*") if path.is_file() and not _by_the_way(path)}
    assert {str(path.relative_to(source)) for path in made} - {"PKG-INFO", "setup.cfg"} == set(listed)
