"""What ``batch.doctor`` finds."""

from __future__ import annotations

import pytest
import salt.config

from saltext.jobs.core.batch import doctor
from saltext.jobs.core.batch.catalog import Catalog
from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.engine.names import BATCH_MANAGER
from saltext.jobs.core.errors import Refused
from saltext.jobs.core.ledger.batches import Kind
from tests.database import change_batch, database_of
from tests.found import SIGNED, said
from tests.functional.options import options_in
from tests.leading import lock_of, single_holder
from tests.unit.batch.bench import Bench
from tests.user import USER

UNPROVEN = [
    {"ext_job_cache": "redis"},
    {"job_cache": False},
    {"master_job_cache": "mysql"},
    {"cluster_id": "one", "master_job_cache": "local_cache"},
    {"cluster_id": "one"},
]


@pytest.fixture
def opts(tmp_path):
    return options_in(tmp_path, cachedir=str(tmp_path), user=USER, master_job_cache="salt_cache", **SIGNED)


def test_a_missing_engine_is_reported(opts):
    found = doctor.examine(opts)
    assert (found["engine"], found["job_cache"], found["returns_proven"]) == (False, "salt_cache", True)
    assert [finding.startswith("no batch_manager engine runs") for finding in said(found)] == [True]
    found = doctor.examine({**opts, "engines": ["batch_manger"]})
    assert said(found) == ["`engines:` names 'batch_manger', which is no engine: correct it to batch_manager"]


@pytest.mark.parametrize("unproven", UNPROVEN)
def test_it_is_reported_if_forged_returns_count(opts, unproven):
    found = doctor.examine({**opts, **unproven})
    assert found["returns_proven"] is False
    assert any("forges" in finding and next(iter(unproven)) in finding for finding in said(found))
    del opts["master_job_cache"]  # Salt's own proves them
    assert doctor.examine(opts)["returns_proven"] is True


def test_a_database_that_cannot_be_read_is_a_finding(opts):
    with database_of({**opts, "cache": "sqlite"}) as sql:
        sql.execute("CREATE TABLE theirs (a)")
    told = said(doctor.examine({**opts, "cache": "sqlite"}))
    assert any("is a database of another program" in finding for finding in told), told


def test_advice_alone_leaves_the_exit_status_at_zero(opts):
    with single_holder(lock_of(opts, BATCH_MANAGER)):
        assert doctor.examine(opts)["retcode"] == 0
        del opts["drop_messages_signature_fail"]
        assert (len(said(doctor.examine(opts))), doctor.examine(opts)["retcode"]) == (1, 0)
    assert doctor.examine(opts)["retcode"] == 0
    assert doctor.examine({**opts, "engines": [BATCH_MANAGER]})["retcode"] == 1


def test_a_master_that_wants_messages_signed_and_has_no_algorithm_for_that_takes_no_return(opts):
    assert salt.config.master_config(None).get("signing_algorithm") is None, "Salt gives the master one by now"
    del opts["signing_algorithm"]
    (found,) = (finding for finding in said(doctor.examine(opts)) if "signing_algorithm" in finding)
    assert found.startswith("this master stores no return: ")


def test_a_batch_that_was_set_aside_is_named_and_kept_for_thirty_days(opts):
    store, jid = BatchStore(opts), "20260516101112131415"
    Bench("ab", jid=jid).keep(store)
    store.set_aside(jid)
    change_batch(opts, jid, at=1000.0)
    store.forget(Kind.ASIDE, 1000.0)
    found = doctor.examine(opts)
    assert found["set_aside"] == [jid]
    assert any("could not be read and stand still" in finding for finding in said(found))
    with pytest.raises(Refused, match=f"^{jid} is a batch that cannot be read and was set aside"):
        Catalog(opts).find(jid)
    store.forget(Kind.ASIDE, 1001.0)
    assert doctor.examine(opts)["set_aside"] == []
    assert store.kind_of(jid) is None
