"""What the status and the headers of an answer mean, before any provider's own codes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from watcher.channels import NotSent, Rejected
from watcher.channels.http import MOST_RETRY_AFTER, Answer, encoded, retry_after

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize("status", range(100, 600))
def test_every_status_is_an_acceptance_or_a_refusal_for_now_or_for_good(status: int) -> None:
    answer = Answer(status, retry_after=7.0)
    assert answer.accepted == (status // 100 == 2)
    for_good = status // 100 == 4 and status not in {408, 425, 429}
    refusal = answer.refusal
    assert type(refusal) is (Rejected if for_good else NotSent)
    assert refusal.reason == f"http_{status}"
    if isinstance(refusal, NotSent):
        assert refusal.retry_after == 7.0


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("120", 120.0),
        (" 120 ", 120.0),
        ("999999999", MOST_RETRY_AFTER),
        (format_datetime(NOW + timedelta(seconds=90), usegmt=True), 90.0),
        (format_datetime(NOW - timedelta(days=3), usegmt=True), 0.0),
        (format_datetime(NOW + timedelta(days=300), usegmt=True), MOST_RETRY_AFTER),
        ("Friday, 02-Jan-26 03:05:05 GMT", 60.0),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
        ("1e3", None),
        ("٣", None),
        ("9" * 400, None),
        ("Fri, 99 Jan 2026 03:04:05 GMT", None),
        ("Fri, 02 Jan 99999999 03:04:05 GMT", None),
    ],
)
def test_retry_after_is_read_in_both_forms_and_never_beyond_a_day(value: str, seconds: float | None) -> None:
    assert retry_after({"Retry-After": value, "Date": format_datetime(NOW, usegmt=True)}) == seconds


def test_a_date_without_the_servers_own_clock_is_measured_by_ours() -> None:
    soon = datetime.now(UTC) + timedelta(seconds=600)
    seconds = retry_after({"Retry-After": format_datetime(soon, usegmt=True)})
    assert seconds is not None
    assert 0 < seconds <= 600


def test_an_answer_without_the_header_names_no_time() -> None:
    assert retry_after({}) is None


@pytest.mark.parametrize("body", [b"", b"[]", b"7", b"null", b"<html>", b"\xff", b'{"a": 1', b"[" * 10_000])
def test_a_body_that_is_no_object_is_an_empty_one(body: bytes) -> None:
    assert Answer(200, body=body).document == {}


def test_an_answers_body_shows_nowhere() -> None:
    assert "secret" not in repr(Answer(200, body=b"secret"))


def test_half_a_surrogate_pair_is_rejected() -> None:
    with pytest.raises(Rejected, match="not_encodable"):
        encoded({"text": "\ud83d"})
