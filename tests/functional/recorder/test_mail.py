"""Notices by mail, to a real mail server: by Salt's returner where the release has it, and by that of the page."""

from __future__ import annotations

import pathlib
import re

from saltext.jobs.core import compat
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import JOB_RECORDER
from saltext.jobs.core.recorder.returner import ReturnerModule
from tests.event_bus import event_bus, options
from tests.functional.recorder.mailbox import mailbox
from tests.functional.recorder.receiver import receiving
from tests.functional.recorder.test_notices import Site
from tests.waiting import wait_for

PAGE = pathlib.Path(__file__).resolve().parents[3] / "docs" / "notices.md"


def test_the_returner_smtp_sends_mail_if_salt_has_it_and_is_refused_otherwise(tmp_path):
    with event_bus(tmp_path), receiving() as receiver, mailbox() as box:
        site = Site(tmp_path, receiver.url)
        server = {"host": "127.0.0.1", "port": box.port, "from": "salt@example.com", "to": "ops@example.com"}
        site.start(returners=["smtp"], more={f"smtp.{name}": value for name, value in server.items()})
        try:
            jid = site.fail_a_batch()
            wait_for(lambda: receiver.kinds() == ["failed"], what="the webhook has it, whatever becomes of the mail")
            if compat.HAS_NATIVE_BATCHES:  # it has few returners
                wait_for(lambda: trouble(site), what="the mail was tried")
                assert "cannot be loaded" in trouble(site)
                assert "smtp gets nothing: " in site.log.read_text()
            else:
                ((to, mail),) = wait_for(lambda: box.mails, what="the mail has arrived")
                assert to == ["ops@example.com"] and f"Batch {jid} has not succeeded" in mail.get_content()
        finally:
            site.kill()


def trouble(site):
    return requests.ask(site.opts, JOB_RECORDER, {"do": "stats"})["returners"]["notices:smtp"]["trouble"]


def test_the_returner_of_the_page_sends_mail(tmp_path):
    (found,) = re.findall(r"```python\n(\"\"\"Send notices by mail.+?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "mail.py").write_text(found)
    with mailbox() as box:
        server = {"to": "ops@example.com", "port": box.port, "host": "127.0.0.1"}
        opts = {**options(tmp_path), "returner_dirs": [str(tmp_path)], "mail": server}
        ReturnerModule(opts, "mail").store_return({"return": "Batch 20260516101112131415 was halted"})
    ((to, mail),) = box.mails
    assert to == ["ops@example.com"] and mail["Subject"] == "Salt: Batch 20260516101112131415 was halted"
    assert mail.get_content().strip() == "Batch 20260516101112131415 was halted"
