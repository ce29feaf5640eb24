"""The project's own files are true and agree with each other: versions, checks before a commit, workflows."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import warnings

import pytest
import yaml

import package
from tests.mutants.table import MUTANTS

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((CHECKOUT / ".github/workflows").glob("*.yml"))


def text(name):
    return (CHECKOUT / name).read_text(encoding="utf-8")


def read(path):
    # YAML takes the key "on" for True.
    return {("on" if name is True else name): value for name, value in yaml.safe_load(path.read_text()).items()}


def jobs():
    """(workflow, name, job) of all."""
    return [(path.name, name, job) for path in WORKFLOWS for name, job in read(path)["jobs"].items()]


def steps():
    return [step for _, _, job in jobs() for step in job.get("steps", ())]


# -- versions ----------------------------------------------------------------------------------------------------------


def pythons():
    """The Pythons that are supported, as the package index shows them."""
    return re.findall(r'^    "Programming Language :: Python :: (3\.\d+)",$', text("pyproject.toml"), re.MULTILINE)


def test_the_version_stands_in_one_place():
    assert 'dynamic = ["version"]' in text("pyproject.toml")
    assert re.fullmatch(r"\d+\.\d+\.\d+", package.__version__)


def test_the_changelog_begins_with_unreleased_changes_and_then_has_the_version_of_the_package():
    titles = re.findall(r"^## \[(.+?)\](?: - \d{4}-\d\d-\d\d)?$", text("CHANGELOG.md"), re.MULTILINE)
    assert titles[:2] == ["Unreleased", package.__version__]
    assert f"## [{package.__version__}] - 2" in text("CHANGELOG.md")
    assert titles[1:] == sorted(titles[1:], key=lambda title: [int(part) for part in title.split(".")], reverse=True)


def test_each_python_that_is_supported_is_tested():
    tested = {
        str(version)
        for _, name, job in jobs()
        if not job.get("continue-on-error")
        for version in [
            *job.get("strategy", {}).get("matrix", {}).get("python", ()),
            *(
                version
                for step in job.get("steps", ())
                if "setup-python" in step.get("uses", "")
                for version in step["with"]["python-version"].splitlines()
            ),
        ]
    }
    assert tested - {"${{ matrix.python }}"} == set(pythons())
    assert re.search(r"^PYTHONS_BESIDE := (.+)$", text("Makefile"), re.MULTILINE)[1].split() == pythons()


# -- before a commit ---------------------------------------------------------------------------------------------------


def test_a_warning_is_an_error_unless_it_is_listed_with_the_package_that_causes_it():
    block = re.search(r"^filterwarnings = \[\n(.+?)^\]", text("pyproject.toml"), re.MULTILINE | re.DOTALL)[1]
    first, *others = re.findall(r"((?:^    # .+\n)*)^    \"(.+)\",$", block, re.MULTILINE)
    assert first == ("", "error")
    assert others[0][0]
    # A whole category of warnings must not be ignored.
    assert [line for _, line in others if not re.fullmatch(r"ignore:\W{0,2}\w{2}.+:[\w.]+Warning", line)] == []
    with pytest.raises(DeprecationWarning):
        warnings.warn("somebody else", DeprecationWarning, stacklevel=100)


# -- workflows ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_only_read_unless_a_job_says_what_else_it_needs(path):
    assert read(path)["permissions"] == {"contents": "read"}


def test_every_job_has_a_time_limit_and_needs_only_jobs_that_exist():
    for workflow, name, job in jobs():
        assert "uses" in job or job["timeout-minutes"] <= 90, (workflow, name)
        there = {other for where, other, _ in jobs() if where == workflow}
        assert set(job.get("needs", ())) <= there, (workflow, name)


def test_a_tag_is_published_to_the_index_without_a_secret_once_everything_has_passed():
    release = read(CHECKOUT / ".github/workflows/release.yml")
    assert release["on"] == {"push": {"tags": ["v*"]}}
    publish = release["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["needs"] == ["ci", "check"]
    assert "secrets" not in text(".github/workflows/release.yml") + text(".github/workflows/ci.yml")


@pytest.mark.parametrize(
    ("tag", "left", "passes"),
    [
        (f"v{package.__version__}", "", True),
        ("v9.9.9", "", False),
        (f"v{package.__version__}", "\n### Fixed\n\n- Something.\n", False),
    ],
)
def test_a_tag_is_released_if_it_is_the_version_of_the_package_and_unreleased_is_empty(tmp_path, tag, left, passes):
    (step,) = [
        step for step in read(CHECKOUT / ".github/workflows/release.yml")["jobs"]["check"]["steps"] if "run" in step
    ]
    (tmp_path / "package").mkdir()
    shutil.copy(CHECKOUT / "package/__init__.py", tmp_path / "package")
    before, title, after = text("CHANGELOG.md").partition("## [Unreleased]\n")
    after = after[after.index(f"## [{package.__version__}]") :]
    (tmp_path / "CHANGELOG.md").write_text(f"{before}{title}{left}\n{after}")
    told = {"PATH": os.environ["PATH"], "GITHUB_REF_NAME": tag}
    assert (subprocess.run(["bash", "-ec", step["run"]], cwd=tmp_path, env=told, check=False).returncode == 0) is passes


# -- mutants -----------------------------------------------------------------------------------------------------------


def test_each_fault_that_a_test_must_notice_can_still_be_made():
    assert [each.name for each in MUTANTS if text(each.file).count(each.old) != 1] == [], (
        "move them: tests/mutants/table.py"
    )
