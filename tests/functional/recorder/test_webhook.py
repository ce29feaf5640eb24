"""A webhook against a real HTTP server."""

from __future__ import annotations

import hashlib
import hmac
import time

import pytest

from saltext.jobs.core.errors import SettingsError
from saltext.jobs.core.options import read_settings
from saltext.jobs.core.options.engines import NoticesSettings
from saltext.jobs.core.recorder.recipients import SIGNATURE, Webhook
from tests.waiting import stretched

from .receiver import receiving

NOTICE = {"id": "m-1", "kind": "test", "text": "A test: ä"}
SECRET = "a-secret-that-nobody-sees"


@pytest.fixture
def receiver():
    with receiving() as one:
        yield one


def test_a_notice_is_posted_as_json_and_signed(receiver):
    Webhook(receiver.url, SECRET)(NOTICE)
    ((notice, headers, body),) = receiver.got
    assert notice == NOTICE
    assert headers["Content-Type"] == "application/json"
    assert headers[SIGNATURE] == "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()


@pytest.mark.parametrize("status", [301, 307, 400, 401, 404, 500, 503])
def test_any_status_but_success_is_a_failure_and_a_redirect_is_not_followed(receiver, status):
    receiver.answer = status
    with pytest.raises(ConnectionError, match=f"answers {status}"):
        Webhook(receiver.url)(NOTICE)
    assert len(receiver.tried) == 1


def test_a_receiver_that_hangs_is_given_up(receiver):
    receiver.answer = "hang"
    begun = time.monotonic()
    with pytest.raises(ConnectionError):
        Webhook(receiver.url, patience=0.5)(NOTICE)
    assert time.monotonic() - begun < stretched(20)


def test_no_more_than_the_beginning_of_an_endless_answer_is_read(receiver):
    receiver.answer = "flood"
    Webhook(receiver.url)(NOTICE)
    assert len(receiver.tried) == 1
    assert receiver.sent < 100 * 2**20


def test_a_receiver_that_is_not_there_is_a_failure_that_names_no_secret():
    with receiving() as gone:
        url = gone.url
    with pytest.raises(ConnectionError) as told:
        Webhook(url, SECRET)(NOTICE)
    assert "of-the-address" not in str(told.value) and SECRET not in str(told.value)
    assert told.value.__cause__ is None


def test_a_certificate_that_cannot_be_trusted_is_a_failure(receiver):
    with pytest.raises(ConnectionError):
        Webhook(receiver.url.replace("http:", "https:"))(NOTICE)
    assert receiver.tried == []


@pytest.mark.parametrize(
    "url",
    ["ftp://x/", "https:///hooks", "hooks.invalid", "https://u:pw@x/", "http://x:port/", "http://x/a b", "http://x/\n"],
)
def test_an_invalid_address_is_refused_and_not_shown(url):
    with pytest.raises(SettingsError) as told:
        read_settings(NoticesSettings, "job_notices", {"url": url})
    assert url not in str(told.value)


def test_no_error_over_the_options_shows_a_secret():
    settings = read_settings(NoticesSettings, "job_notices", {"secret": SECRET, "url": f"https://x/{SECRET}"})
    assert settings.secret == SECRET
    assert SECRET not in repr(settings)
    with pytest.raises(SettingsError) as told:
        read_settings(NoticesSettings, "job_notices", {"secrt": SECRET})
    assert SECRET not in str(told.value)
