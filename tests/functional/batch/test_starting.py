"""A new batch is made from what an operator has asked for, with keys and nodegroups of a real master's directory."""

from __future__ import annotations

import pathlib

import pytest
import salt.config
import salt.utils.minions

from saltext.jobs.core import compat
from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.catalog import Catalog, chooser
from saltext.jobs.core.batch.starting import new_batch, next_batch
from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.batch.summary import preview
from saltext.jobs.core.errors import Refused
from saltext.jobs.core.ledger.tables import BATCHES
from saltext.jobs.core.master.caller import Caller
from saltext.jobs.core.site import site_of
from saltext.jobs.core.users import PEER_RUN, Identity
from tests.minion_data import know
from tests.unit.batch.bench import Bench

pytestmark = pytest.mark.story

ROOT = Caller("root")


@pytest.fixture
def opts(tmp_path):
    keys = tmp_path / "pki" / "minions"
    keys.mkdir(parents=True)
    for name in ("1001", "web1", "web2"):
        (keys / name).write_text("a key")
    own = {"cachedir": str(tmp_path / "cache"), "pki_dir": str(tmp_path / "pki"), "id": "m_master", "__role": "master"}
    return {**salt.config.DEFAULT_MASTER_OPTS, **own, "extension_modules": str(tmp_path / "ext")}


def asked_for(opts, tgt, *args, who=ROOT, fun="test.ping", **given):
    return new_batch(opts, who, args, {"tgt": tgt, "fun": fun, **given})


@pytest.mark.parametrize("tgt", [1001, "1001", [1001], "100?"])
def test_a_minion_whose_id_is_a_number_is_found_however_it_is_typed(opts, tgt):
    assert asked_for(opts, tgt).minions == ("1001",)


def test_a_name_in_a_list_that_is_no_accepted_minion_is_refused_by_its_name(opts):
    with pytest.raises(Refused, match="No accepted minion has this name: web9"):
        asked_for(opts, ["web1", "web9"], tgt_type="list")


@pytest.fixture
def boxes(opts, tmp_path):
    """The options of a master that has hosts of salt-ssh among its targets, and on Salt 3008 resources of a minion."""
    roster = tmp_path / "roster"
    roster.write_text("web-box:\n  host: 127.0.0.1\n", encoding="utf-8")
    boxes = {
        **opts,
        "enable_ssh_minions": True,
        "roster": "flat",
        "roster_file": str(roster),
        "sock_dir": str(tmp_path),
    }
    if compat.HAS_NATIVE_BATCHES:
        from salt.utils.resource_registry import get_registry, reset_registry

        reset_registry()
        get_registry(boxes).register_minion("web1", {"dummy": ["web-resource"]})
        yield boxes
        reset_registry()
    else:
        yield boxes


def test_what_has_no_key_of_its_own_is_in_no_batch_though_salt_targets_it(boxes):
    targeted = salt.utils.minions.CkMinions(boxes).check_minions("web*", "glob")["minions"]
    assert {"web-box", *(["web-resource"] if compat.HAS_NATIVE_BATCHES else [])} < set(targeted)
    assert asked_for(boxes, "web*").minions == ("web1", "web2")
    assert compat.matched_minions(boxes, "web*", "glob") == ["web1", "web2"]
    with pytest.raises(Refused, match="matches no accepted minion"):
        asked_for(boxes, "web-*")


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        *(("fail_hard", "max_failures=0"), ("max_failure", "max_failures"), ("batch_size", "batch"), ("args", "arg")),
        *(("tgttype", "tgt_type"), ("kwargs", "kwarg"), ("Timeout", "timeout"), ("subset", "a target of fewer")),
        *(("dry_run", "batch.preview"), ("batch_safe_limit", "batch")),
    ],
)
def test_a_name_that_is_no_option_and_hardly_meant_for_the_function_is_refused_with_what_is_meant(opts, slip, meant):
    with pytest.raises(Refused, match=f"There is no option {slip}; did you mean {meant}"):
        asked_for(opts, "*", **{slip: 1})


@pytest.mark.parametrize(
    ("given", "told"),
    [({"batch": "many"}, "'many'"), ({"kwarg": "x"}, "kwarg is 'x'"), ({"fun": "ping"}, "fun is 'ping'")],
)
def test_a_malformed_option_is_refused_with_what_was_given(opts, given, told):
    with pytest.raises(Refused) as caught:
        asked_for(opts, "*", **given)
    assert told in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("args", "given"), [(("********",), {}), (("a password=********",), {}), ((), {"password": "********"})]
)
def test_a_copied_argument_whose_secret_is_hidden_is_refused(opts, args, given):
    with pytest.raises(Refused, match="stands for a secret"):
        asked_for(opts, "web1", *args, **given)
    assert asked_for(opts, "web1", "/*********** 8 or more stars").arg


def test_arguments_for_the_function_reach_it(opts):
    spec = asked_for(opts, "web1", "a", test=True, kwarg={"timeout": 7, "fail_hard": 1}, arg=["b"])
    assert (spec.arg, spec.kwargs) == (("a", "b"), {"test": True, "timeout": 7, "fail_hard": 1})


def test_without_grants_for_function_and_minions_nothing_is_batched(opts):
    may = Caller("anna", ({"web1": ["test.*"]},))
    assert asked_for(opts, "web1", who=may).user == "anna"
    for tgt, fun in (("web*", "test.ping"), ("web1", "cmd.run")):
        with pytest.raises(Refused, match=f"anna may not publish {fun}"):
            asked_for(opts, tgt, who=may, fun=fun)
    with pytest.raises(Refused, match="may not publish"):
        asked_for(opts, "web1", who=Caller("root", ({"@runner": ["batch.*"]},)))


@pytest.mark.parametrize(
    "given",
    [
        {"ret": "rawfile_json"},
        {"ret_config": "other"},
        {"ret_kwargs": {"filename": "/etc/cron.d/x"}},
        {"module_executors": ["sudo"]},
        {"executor_opts": {"a": 1}},
    ],
)
def test_a_limited_user_chooses_no_returner_and_no_executor(opts, given):
    may, (name,) = Caller("anna", ({"web1": ["test.*"]},)), given
    with pytest.raises(Refused, match=f"anna may not set {name}:"):
        asked_for(opts, "web1", who=may, **given)
    assert asked_for(opts, "web1", **given).user == "root"


def test_a_minion_is_refused_unless_allow_peers_names_it(opts):
    with pytest.raises(Refused, match="The minion web1 may look at this"):
        asked_for(opts, "web2", who=Caller("web1", (), Identity(PEER_RUN, "web1")))
    opts["batch_manager"] = {"allow_peers": ["web1"]}
    assert asked_for(opts, "web2", who=Caller("web1", (), Identity(PEER_RUN, "web1"))).user == "web1"
    with pytest.raises(Refused, match="The minion web2"):
        asked_for(opts, "web1", who=Caller("web2", (), Identity(PEER_RUN, "web2")))
    with pytest.raises(Refused, match="The minion web2"):  # and does not learn which minions a target matches
        asked_for(opts, "nobody*", who=Caller("web2", (), Identity(PEER_RUN, "web2")))


def test_minions_whose_grains_the_master_does_not_know_are_left_out(opts):
    know(opts, "web1", {"id": "web1", "os": "Arch"})
    # The newest releases of Salt do not match them; with others they are named.
    with pytest.raises(Refused, match=r"matches no accepted minion|no grains and pillar of the 2 minions"):
        asked_for(opts, "os:Debian", tgt_type="grain")
    know(opts, "web1", {"id": "web1", "os": "Debian"})
    spec = asked_for(opts, "os:Debian", tgt_type="grain")
    assert spec.minions == ("web1",)
    assert preview(spec, None, 86400.0).get("unsure", []) in ([], ["1001", "web2"])


# -- a retry on the minions without success ----------------------------------------------------------------------------


def test_a_target_that_needs_data_of_minions_that_the_master_does_not_keep_is_refused_in_one_line(opts, caplog):
    with pytest.raises(Refused, match=r"^with minion_data_cache: False the master cannot .*, or name the minions$"):
        asked_for({**opts, "minion_data_cache": False}, "web1 and G@role:db", tgt_type="compound")
    assert not caplog.records


def ended(bench, failed):
    """The ended batch of a bench; its first ``failed`` minions failed."""
    for number, name in enumerate(bench.spec.minions):
        if bench.batch.publishing:
            bench.sent()
        bench.returns(name, retcode=int(number < failed))
    assert bench.batch.finished
    return bench.batch


def failed(opts, count, of=100, **given):
    """An ended batch of ``of`` minions; the first ``count`` of them failed."""
    names = [f"m{number:03d}" for number in range(of)]
    for name in names:
        pathlib.Path(opts["pki_dir"], "minions", name).write_text("a key")
    return ended(Bench(names, "100%", **given), count)


@pytest.mark.parametrize(
    ("budget", "allowed"), [({}, ()), ({"max_failures": 20}, (20.0,)), ({"max_failures": "20%"}, (2.0,))]
)
def test_sizes_and_a_budget_in_per_cent_are_computed_again_from_the_minions_of_a_retry(opts, budget, allowed):
    spec = next_batch(opts, ROOT, failed(opts, 10, **budget), ["failed"])
    assert (len(spec.minions), spec.sizes, spec.max_failures) == (10, [10], budget.get("max_failures"))
    assert spec.budgets == allowed


def test_a_retry_goes_through_the_groups_of_its_minions_in_the_order_that_was_given_and_shows_no_value(opts, caplog):
    for name, region in (("web1", "us"), ("web2", "eu"), ("1001", "eu")):
        know(opts, name, {"id": name, "region": region})
    first = asked_for(opts, "*", batch="100%", by="grains:region:[us]", max_failures="100%")
    bench = Bench(first.minions, "100%", by=first.by, groups=first.groups, max_failures="100%")
    spec = next_batch(opts, ROOT, ended(bench, 3), ["failed"])
    assert (spec.groups, spec.minions) == ((("1", 1), ("2", 2)), ("web1", "1001", "web2"))
    assert (spec.budgets, preview(spec, None, 1.0)["options"]["by"]) == ((1.0, 2.0), "grains:region")
    assert asked_for(opts, "*", by="grains:region:[u5,us]").groups == spec.groups
    assert next(one for one in caplog.messages if "by names" in one).startswith("by names u5 first, and no minion")


def test_a_retry_of_all_leaves_out_the_minions_to_which_job_retry_delivers_the_job(opts):
    for offline, left in (("queue", ("1001",)), ("skip", ("1001", "web1"))):
        bench = Bench(("1001", "web1", "web2"), "3", offline=offline)
        bench.sent(missed=["web1"])
        bench.returns("1001", retcode=1)
        bench.returns("web2")
        assert next_batch(opts, ROOT, bench.batch, ["all"]).minions == left


def test_who_would_retry_a_batch_that_is_paused_or_stopping_is_told_what_becomes_of_the_rest(opts):
    bench = Bench(("1001", "web1", "web2"), "1")
    bench.sent(missed=["1001"])  # which it is sent, if it shows a sign of life yet
    bench.sent()
    for verb in ("resume", "pause", "stop"):
        bench.tell(facts.Requested(verb))
        with pytest.raises(Refused, match="; it has not ended on 3 minions; batch"):
            next_batch(opts, ROOT, bench.batch, ["all"])


@pytest.mark.parametrize("parent", [0, 1])
def test_a_minion_that_a_retry_has_mended_is_in_no_further_retry_and_one_that_was_away_then_is(opts, parent):
    (first, second, other, third), store = [f"2026051610111213141{number}" for number in range(4)], BatchStore(opts)

    def left():
        batches = Catalog(opts)
        return next_batch(opts, ROOT, batches.need(first), ["failed"], batches.retries(first)).minions

    bench = Bench(("1001", "web1", "web2"), "3", jid=first)
    ended(bench, 3)
    bench.keep(store, ended=True)
    assert left() == bench.spec.minions
    bench = Bench(("web1", "web2"), "1", jid=second, parent=first)
    bench.keep(store)
    assert left() == ("1001",)  # the others may still be sent to
    with pytest.raises(
        Refused, match=f"^No .* {second} has ended as pending; it has not ended on 2 minions; batch.status "
    ):
        next_batch(opts, ROOT, bench.batch, ["pending"])
    assert Catalog(opts).find(first).summary["unmended"] == {"failed": 1, "active": 1, "waiting": 1}
    bench.sent(missed=["web1"])
    bench.sent()
    bench.returns("web2", retcode=1)
    bench.keep(store, ended=True)
    assert left() == ("1001", "web1", "web2")
    stands = Catalog(opts).find(first).minions()
    assert (stands["web2"]["retry"], stands["web2"]["retry_state"]) == (second, "failed") and "retry" not in stands[
        "web1"
    ]
    bench = Bench(("web2",), "1", jid=other, parent=first)
    ended(bench, 1)
    bench.keep(store, ended=True)
    bench = Bench(("1001", "web1", "web2"), "3", jid=third, parent=(first, second)[parent])
    ended(bench, 0)
    bench.keep(store, ended=True)
    with pytest.raises(Refused, match=f"^No .* {first} is failed; it was retried by {second}, {other}, {third}$"):
        left()
    found = Catalog(opts).find(first).summary
    assert (found["retries"], found["unmended"]) == ([second, other, third], {})
    assert [Catalog(opts).find(jid).summary["unmended"] for jid in (second, other)] == [{}, {}]
    assert "retries" not in Catalog(opts).find(third).summary
    mended = Catalog(opts).newest(9, chooser("mended", (), (), None, None))
    assert [(one["jid"], one["retries"][-1]) for one in mended] == [(jid, third) for jid in (other, second, first)]
    bench = Bench(("1001",), "1", jid="20260516101112131419", parent=first)
    ended(bench, 0)
    bench.keep(store, ended=True)
    assert Catalog(opts).find(second).summary["retries"] == [other, third], "the last has none of its minions"
    site_of(opts).changed(f"UPDATE {BATCHES.table} SET spec = ? WHERE jid = ?", (b"damaged", third))
    assert "retries" not in Catalog(opts).find(first).summary
    with pytest.raises(Refused, match=f"^Batch {third} cannot be read, and may be a retry of {first}"):
        left()


def test_a_preview_shows_who_would_be_sent_to_and_how_many_at_a_time(opts):
    found = preview(asked_for(opts, "web*", batch="1,100%", fun="state.apply"), None, 86400.0)
    assert found.pop("options")["batch"] == "1,100%"
    assert found.pop("sentence").startswith("2 minions: 1 first, then 2 at a time")
    named = ("total", "minions", "sizes", "groups", "check", "check_after", "unsure", "max_in_flight")
    assert [found[name] for name in named] == [2, ["web1", "web2"], [1, 2], None, None, [], [], None]


def test_a_preview_shows_what_would_run_and_with_which_options(opts):
    more = {"check": "test.arg 1 a=b", "max_failures": "5%", "pillar": {"db": {"password": "swordfish"}}}
    spec = asked_for(opts, "*", batch="1,100%", fun="state.apply", arg=["nginx"], **more)
    found = preview(spec, 500, 86400.0)
    assert (found["check"], found["check_after"], found["max_in_flight"]) == ("test.arg", [1], 500)
    assert found["arguments"] == ["nginx", 'pillar={"db": {"password": "********"}}']
    named = {name: value for name, value in found["options"].items() if value}
    usual = {name: opts[name] for name in ("timeout", "gather_job_timeout")} | {"presence": "ping", "offline": "skip"}
    given = {"batch": "1,100%", "max_failures": "5%", "check": "test.arg 1 a=b", "check_timeout": 300.0}
    assert named == given | usual


@pytest.mark.parametrize("check", ["approve", "test.false", "runner:jobs.active"])
@pytest.mark.parametrize("more", [{"batch": 1}, {}, {"batch": "100%", "by": "nodegroups:[all]"}])
def test_a_check_that_would_never_be_made_is_refused(opts, check, more):
    with pytest.raises(Refused, match=r"one stage.*give it a ramp, such as batch=1,100%, or several groups with by="):
        asked_for({**opts, "nodegroups": {"all": "*"}}, "*", check=check, **more)


@pytest.mark.parametrize("fun", ["nosuch.fun", "jobs.nosuch"])
def test_a_check_by_a_runner_function_that_is_not_there_is_refused(opts, fun):
    with pytest.raises(Refused, match=f"check is runner:{fun}, and this master has no such runner function"):
        asked_for(opts, "*", batch="1,100%", check=f"runner:{fun} {{jid}}")
