"""To which minions a job is published again."""

from __future__ import annotations

import pytest

from saltext.jobs.core.retry.reader import expression_of, narrowed, obstacle


def load(tgt, tgt_type, **options):
    return {"tgt": tgt, "tgt_type": tgt_type, "kwargs": options}


@pytest.mark.parametrize("tgt, tgt_type", [("*", "glob"), ("web.*", "pcre"), (["a", "b"], "list")])
def test_a_target_by_id_needs_the_ids_only(tgt, tgt_type):
    assert narrowed(load(tgt, tgt_type), ["a", "b"], ()) == (["a", "b"], "list")


@pytest.mark.parametrize(
    "tgt, tgt_type, expression",
    [
        ("role:web", "grain", "G@role:web"),
        ("role:w.b", "grain_pcre", "P@role:w.b"),
        ("role:web", "pillar", "I@role:web"),
        ("role:w.b", "pillar_pcre", "J@role:w.b"),
        ("10.0.0.0/8", "ipcidr", "S@10.0.0.0/8"),
        ("webs", "nodegroup", "N@webs"),
        ("G@role:web and not db*", "compound", "( G@role:web and not db* )"),
        (["G@role:web", "or", "a"], "compound", "( G@role:web or a )"),
    ],
)
def test_any_other_target_stays_beside_the_ids(tgt, tgt_type, expression):
    assert narrowed(load(tgt, tgt_type), ["a", "b"], ()) == (f"L@a,b and {expression}", "compound")


def test_a_delimiter_is_kept():
    assert expression_of(load("role|web", "grain", delimiter="|")) == "G|@role|web"


def test_minions_that_an_operator_named_get_the_job_whatever_its_target():
    tgt, kind = narrowed(load("role:web", "grain"), ["a", "b", "c"], {"c"})
    assert (tgt, kind) == ("L@c or ( L@a,b and G@role:web )", "compound")
    assert narrowed(load("os:Red Hat", "grain"), ["c"], {"c"}) == (["c"], "list")


@pytest.mark.parametrize(
    "target, why",
    [
        (load("os:Red Hat", "grain"), "has a blank"),
        (load("role:web", "pillar_exact"), "of the type pillar_exact"),
        (load({"a": 1}, "grain"), "of the type grain"),
        (load("", "compound"), "cannot be published again"),
        (load("role::web", "grain", delimiter="::"), "has the delimiter '::'"),
    ],
)
def test_a_target_that_cannot_be_sent_along_is_refused_with_the_reason(target, why):
    assert why in obstacle(target)
    with pytest.raises(ValueError, match=why):
        narrowed(target, ["a"], ())
