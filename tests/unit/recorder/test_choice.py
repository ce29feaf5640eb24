"""What the recorder records, and what it remembers of it."""

from __future__ import annotations

import pytest

from saltext.jobs.core.options.engines import RecorderSettings
from saltext.jobs.core.recorder.choice import Recent, is_wanted

# -- what is recorded -------------------------------------------------------------------------------------------------

NONE = ()


@pytest.mark.parametrize(
    ("fun", "include", "exclude", "wanted"),
    [
        ("state.apply", ["*"], NONE, True),
        ("state.apply", ["state.*"], NONE, True),
        ("pkg.install", ["state.*"], NONE, False),
        ("saltutil.find_job", ["*"], ["saltutil.find_job"], False),
        (["test.ping", "cmd.run"], ["*"], ["test.ping"], True),
        (["test.ping"], ["*"], ["test.ping"], False),
        (None, ["*"], NONE, False),
        ({"a": 1}, ["*"], NONE, False),
        ([1, None], ["*"], NONE, False),
        ("runner.state.orchestrate", ["*"], NONE, False),
        ("runner.state.orchestrate", ["runner.*"], NONE, True),
        ("runner.state.orchestrate", ["*", "runner.state.*"], NONE, True),
        ("runner.pillar.show_pillar", ["runner.*"], ["runner.pillar.*"], False),
        ("wheel.key.accept", ["*", "runner.*"], NONE, False),
        ("wheel.key.accept", ["wheel.key.*"], NONE, True),
        ("_system", ["*"], NONE, False),
        ("runners.of.a.module", ["*"], NONE, True),
    ],
)
def test_functions_are_chosen_by_globs(fun, include, exclude, wanted):
    assert is_wanted(fun, include, exclude) is wanted


@pytest.mark.parametrize(
    "question",
    [
        "test.ping",
        "saltutil.running",
        "saltutil.find_job",
        ["saltutil.find_job", "saltutil.find_cached_job"],
        ["saltutil.find_job", "saltutil.find_cached_job", "match.compound"],
    ],
)
def test_questions_of_the_engines_are_left_out_by_default(question):
    settings = RecorderSettings()
    assert not is_wanted(question, settings.include, settings.exclude)


# -- memory -----------------------------------------------------------------------------------------------------------


def test_recent_names_are_remembered_and_old_ones_are_not():
    recent = Recent(10)
    for item in range(100):
        recent.add(str(item))
    assert all(str(item) in recent for item in range(90, 100))
    assert not any(str(item) in recent for item in range(80))
