"""What the recorder records."""

from __future__ import annotations

import pytest

from saltext.jobs.core.options.engines import RecorderSettings
from saltext.jobs.core.recorder.recipients import is_wanted

DEFAULT = RecorderSettings().exclude


@pytest.mark.parametrize(
    ("fun", "include", "exclude", "wanted"),
    [
        ("state.apply", ["state.*"], DEFAULT, True),
        ("pkg.install", ["state.*"], DEFAULT, False),
        (["test.ping", "cmd.run"], ["*"], DEFAULT, True),
        ("test.ping", ["*"], DEFAULT, False),
        (["saltutil.find_job", "saltutil.find_cached_job", "match.compound"], ["*"], DEFAULT, False),
        ([1, None, {"a": 1}], ["*"], (), False),
        ("runner.state.orchestrate", ["*"], (), False),
        ("runner.state.orchestrate", ["*", "runner.state.*"], (), True),
        ("runner.pillar.show_pillar", ["runner.*"], ["runner.pillar.*"], False),
        ("wheel.key.accept", ["*", "runner.*"], (), False),
        ("_system", ["*"], (), False),
        ("runners.of.a.module", ["*"], (), True),
    ],
)
def test_functions_are_chosen_by_globs(fun, include, exclude, wanted):
    assert is_wanted(fun, include, exclude) is wanted
