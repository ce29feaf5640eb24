"""
A rollout of 27 minions at night: a third of them fail, in three ways. The operator on duty is notified, gets from the
list of batches to the three reasons in two commands, mends the cause, retries the failed minions, and is told that it is
over.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from saltext.jobs.core.notices.webhook import SIGNATURE
from tests.functional.notices.receiver import receiving
from tests.integration.conftest import ask_runner, make_minion
from tests.integration.prompt import at_prompt
from tests.integration.test_notices import SECRET, noticing_master
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

MINIONS = [f"web{number:02}" for number in range(1, 28)]
FULL, LACKS, UNKNOWN = MINIONS[:4], MINIONS[8:11], MINIONS[16:18]
#: Only the states fail: for a disk, a folder and a typing error.
BROKEN = f"""
{{% if grains.id in {FULL} %}}
site:
  cmd.run:
    - name: echo no space left on device, pid $$ >&2; exit 1
restart:
  test.nop:
    - require: [cmd: site]
{{% elif grains.id in {LACKS} %}}
site:
  file.managed:
    - name: /nonexistent/folder/site.conf
    - contents: x
{{% elif grains.id in {UNKNOWN} %}}
site:
  nosuch.managed: []
{{% else %}}
site:
  test.nop: []
{{% endif %}}
"""
MENDED = "site:\n  test.nop: []\n"
#: How many minions are started at a time.
AT_ONCE = 4


@pytest.fixture(scope="module")
def receiver():
    with receiving() as one:
        yield one


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    folder = tmp_path_factory.mktemp("states")
    (folder / "site.sls").write_text(BROKEN)
    return folder


@pytest.fixture(scope="module")
def master(salt_factories, receiver, states):
    options = {"file_roots": {"base": [str(states)]}, "fileserver_list_cache_time": 0, "timeout": 15}
    with noticing_master(salt_factories, receiver, **options) as daemon:
        daemons = [make_minion(daemon, name) for name in MINIONS]
        try:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                list(pool.map(lambda minion: minion.start(), daemons))
            yield daemon
        finally:
            for minion in daemons:
                minion.terminate()


@pytest.fixture
def typed(master):
    """What a command prints on a terminal of so many columns."""

    def type_it(line, columns=80):
        words = line if columns == 80 else f"COLUMNS={columns} {line}"
        printed = at_prompt(words, master.config_dir)[1]
        # Complaints of Salt 3008 itself at the end of a command do not count.
        shown = [one for one in printed.splitlines() if "unclosed Runner" not in one]
        assert all(len(one) <= columns for one in shown), printed
        return printed

    return type_it


def genuine(receiver):
    """The notices that have come, each with the signature that docs/notices.md tells a receiver to check."""
    for _, headers, body in receiver.got:
        expected = "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
        assert hmac.compare_digest(expected, headers[SIGNATURE])
    return [notice for notice, _, _ in receiver.got]


def next_of(printed, jid):
    """The command that the last line names, for this batch."""
    return re.search(r"^Next: (salt-run [a-z_.]+)", printed, re.MULTILINE)[1] + f" {jid}"


def test_a_third_of_a_rollout_fails_in_three_ways_and_is_mended(master, typed, receiver, states):
    started = typed("salt-run batch.start 'web*' state.apply site batch=4,50%,100%")
    jid = re.search(r"^\d{20}", started, re.MULTILINE)[0]
    (failed,) = wait_for(lambda: genuine(receiver), 240, what="somebody is told")
    assert (failed["kind"], failed["jid"], failed["minions_in_all"]) == ("failed", jid, 9)
    assert failed["counts"]["completed"] == 18 and failed["link"].endswith(f"#/batches/{jid}")

    listed = typed("salt-run batch.list")
    assert re.search(rf"^{jid} +unsuccessful +27/27 +9 ", listed, re.MULTILINE), listed
    told = typed(next_of(listed, jid))
    assert "9 of 27 minions did not succeed, for 3 reasons" in told, told
    places = []
    for minions, reason in (
        (FULL, "no space left on device"),
        (LACKS, "Parent directory not present"),
        (UNKNOWN, "State 'nosuch.managed' was not found in SLS 'site'"),
    ):
        pattern = (
            rf"^{len(minions)} minions, failed \(retcode \d\): {minions[0]}, {minions[1]}.*\n(?:  +.*\n)*? +.*{reason}"
        )
        places.append(re.search(pattern, told, re.MULTILINE))
        assert places[-1], (reason, told)
    assert [place.start() for place in places] == sorted(place.start() for place in places), "largest group first"
    assert "3 reasons" in typed(next_of(listed, jid), columns=200)

    (states / "site.sls").write_text(MENDED)
    again = re.search(r"^\d{20}", typed(next_of(told, jid)), re.MULTILINE)[0]
    wait_for(lambda: len(genuine(receiver)) == 2, 240, what="it is told that it is over")
    assert genuine(receiver)[1]["kind"] == "recovered"
    assert f"Batch {again}, a retry of {jid}, has succeeded" in genuine(receiver)[1]["text"]
    found = ask_runner(master, "batch.status", again)
    assert (found["success"], found["total"], found["completed"]) == (True, 9, 9)
    assert receiver.kinds() == ["failed", "recovered"] and len(receiver.tried) == 2
