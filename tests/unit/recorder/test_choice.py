"""What the recorder records."""

from __future__ import annotations

import pytest

from saltext.jobs.core.options.engines import RecorderSettings
from saltext.jobs.core.recorder.recipients import is_wanted

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
