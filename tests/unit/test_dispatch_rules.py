"""The rules of sending and reading that need no database."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from models.backoff import JITTER
from models.settings import NotificationSettings
from models.states import RowStatus
from watcher.ladder import fingerprint, pipeline
from watcher.rows import FIRST_RETRY, LONGEST_RETRY, LONGEST_WISH, retry_delay
from watcher.worth import not_worth_sending

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SETTINGS = NotificationSettings()
PENDING: dict[str, Any] = {"payment": {"status": "pending"}}
FAILED: dict[str, Any] = {"payment": {"status": "failed"}}


def verdict(
    notice: str,
    order: Mapping[str, Any] | None,
    age: timedelta = timedelta(0),
    settings: NotificationSettings = SETTINGS,
    **fields: Any,
) -> tuple[RowStatus, str] | None:
    row = {"notice": notice, "factAt": NOW - age, "status": RowStatus.PENDING, "attempts": 0, **fields}
    return not_worth_sending(row, order, NOW, settings)


@pytest.mark.parametrize("notice", ["payment_completed", "payment_failed", "refund_processed", "payment_review"])
def test_a_fresh_fact_is_worth_sending(notice: str) -> None:
    assert verdict(notice, FAILED) is None


@pytest.mark.parametrize("notice", ["payment_completed", "payment_failed", "dispute_opened"])
def test_a_fact_expires_after_a_day_and_not_before(notice: str) -> None:
    day = timedelta(hours=24)
    assert verdict(notice, FAILED, day + timedelta(seconds=1)) == (RowStatus.EXPIRED, "too_old")
    assert verdict("payment_completed", FAILED, day) is None


def test_expiry_comes_before_everything_else() -> None:
    old = timedelta(hours=25)
    assert verdict("payment_failed", None, old) == (RowStatus.EXPIRED, "too_old")


@pytest.mark.parametrize("notice", ["payment_completed", "payment_failed", "refund_failed"])
def test_nothing_is_told_about_an_order_that_is_gone(notice: str) -> None:
    assert verdict(notice, None) == (RowStatus.SKIPPED, "order_deleted")


@pytest.mark.parametrize("status", ["completed", "partially_refunded", "refunded"])
def test_a_failure_is_no_news_once_the_order_is_paid(status: str) -> None:
    order = {"payment": {"status": status}}
    assert verdict("payment_failed", order) == (RowStatus.SUPPRESSED, "paid_meanwhile")
    assert verdict("payment_completed", order) is None
    assert verdict("refund_failed", order) is None


@pytest.mark.parametrize(
    "order", [{}, {"payment": None}, {"payment": "completed"}, {"payment": {"status": ["completed"]}}, PENDING, FAILED]
)
def test_a_failure_is_told_while_the_order_is_not_known_to_be_paid(order: dict[str, Any]) -> None:
    assert verdict("payment_failed", order) is None


def test_a_failure_is_stale_after_two_hours_and_other_facts_are_not() -> None:
    hours = timedelta(hours=2)
    assert verdict("payment_failed", FAILED, hours) is None
    assert verdict("payment_failed", FAILED, hours + timedelta(seconds=1)) == (RowStatus.SUPPRESSED, "stale")
    assert verdict("payment_completed", FAILED, timedelta(hours=5)) is None


def test_both_limits_are_settings() -> None:
    short = NotificationSettings(expire_after=60, failed_stale_after=10)
    assert verdict("payment_completed", FAILED, timedelta(seconds=61), short) == (RowStatus.EXPIRED, "too_old")
    assert verdict("payment_failed", FAILED, timedelta(seconds=11), short) == (RowStatus.SUPPRESSED, "stale")
    assert verdict("payment_failed", FAILED, timedelta(seconds=10), short) is None


def test_what_may_have_arrived_is_not_sent_more_often_than_allowed() -> None:
    most = SETTINGS.max_attempts
    assert verdict("payment_completed", FAILED, status="unknown", attempts=most) == (RowStatus.DEAD, "gave_up")
    assert verdict("payment_completed", FAILED, status="unknown", attempts=most - 1) is None
    assert verdict("payment_completed", FAILED, status="retry", attempts=most) is None, "it has certainly not arrived"


def test_an_old_paid_order_that_the_shop_saves_again_is_no_news() -> None:
    def paid(hours: float, *, aware: bool = True) -> dict[str, Any]:
        at = NOW - timedelta(hours=hours)
        return {"payment": {"status": "completed", "paidAt": at if aware else at.replace(tzinfo=None)}}

    old = (RowStatus.EXPIRED, "paid_long_ago")
    assert verdict("payment_completed", paid(25), foreign=True) == old
    assert verdict("payment_completed", paid(25, aware=False), foreign=True) == old
    assert verdict("payment_completed", paid(23), foreign=True) is None
    assert verdict("payment_completed", paid(25), foreign=False) is None
    assert verdict("payment_completed", {"payment": {"paidAt": "long ago"}}, foreign=True) is None


def test_what_an_operator_insists_on_is_never_too_old_but_may_be_no_news() -> None:
    old = timedelta(days=9)
    assert verdict("payment_completed", FAILED, old, forced=True) is None
    assert verdict("payment_failed", FAILED, old, forced=True) is None
    paid = {"payment": {"status": "completed", "paidAt": NOW - old}}
    assert verdict("payment_completed", paid, old, forced=True, foreign=True) is None
    assert verdict("payment_failed", paid, old, forced=True) == (RowStatus.SUPPRESSED, "paid_meanwhile")


@pytest.mark.parametrize(
    ("channel", "receiver", "policy"),
    [
        ("inapp", "keyed", "resend"),
        ("webhook", "keyed", "resend"),
        ("email", "unkeyed", "resend"),
        ("apprise", "unkeyed", "resend"),
        ("sms", "unkeyed", "hold"),
        ("whatsapp", "unkeyed", "hold"),
        ("one of tomorrow", "unkeyed", "hold"),
    ],
)
def test_what_may_have_been_sent_is_sent_again_only_where_a_copy_does_little_harm(
    channel: str, receiver: str, policy: str
) -> None:
    keyed = receiver == "keyed"
    assert SETTINGS.policy(channel, keyed=keyed) == policy
    other: dict[str, Any] = {channel: "hold" if policy == "resend" else "resend"}
    assert NotificationSettings(unknown_policy=other).policy(channel, keyed=keyed) != policy


def test_mail_goes_out_at_ten_a_second_unless_told_otherwise() -> None:
    assert (SETTINGS.rate("email"), SETTINGS.rate("inapp")) == (10.0, None)
    other = NotificationSettings(rates={"email": 50, "inapp": 5})
    assert (other.rate("email"), other.rate("inapp"), other.rate("sms")) == (50, 5, 10.0)


@pytest.mark.parametrize(
    ("attempts", "middle"), [(0, 5), (1, 5), (2, 10), (3, 20), (7, 320), (8, 640), (9, 900), (12, 900), (2000, 900)]
)
def test_the_pause_between_tries_doubles_up_to_a_quarter_of_an_hour(attempts: int, middle: float) -> None:
    pauses = [retry_delay(attempts) for _ in range(300)]
    assert min(pauses) >= middle * (1 - JITTER)
    assert max(pauses) <= middle * (1 + JITTER)
    assert max(pauses) - min(pauses) > middle * JITTER, "tries of many rows are spread"


def test_the_bounds_of_the_pause() -> None:
    assert (FIRST_RETRY, LONGEST_RETRY, LONGEST_WISH) == (5.0, 900.0, 3600.0)


def test_a_provider_may_ask_for_a_longer_pause_but_not_for_one_in_which_the_notice_grows_old() -> None:
    assert 4.0 <= retry_delay(1, 1.0) <= 6.0
    assert retry_delay(1, 120.0) == 120.0
    assert retry_delay(1, 86_400.0) == LONGEST_WISH


def _matched(stage: Any) -> set[str]:
    """All field names that a `$match` looks at."""
    if isinstance(stage, dict):
        return {name for name in stage if not name.startswith("$")}.union(*map(_matched, stage.values()))
    return set().union(*map(_matched, stage)) if isinstance(stage, list) else set()


def test_the_pipeline_matches_only_facts_that_can_never_change() -> None:
    match, project = pipeline("orders")
    assert _matched(match["$match"]) == {"ns.coll", "to.coll", "operationType"}
    assert set(project) == {"$project"}
    needed = {"_id", "documentKey", "operationType", "clusterTime", "wallTime", "updateDescription"}
    assert needed <= set(project["$project"])


def test_a_token_is_bound_to_its_pipeline() -> None:
    assert fingerprint(pipeline("orders")) == fingerprint(pipeline("orders"))
    assert fingerprint(pipeline("orders")) != fingerprint(pipeline("shop_orders"))
    assert fingerprint(pipeline("orders")) != fingerprint(pipeline("orders")[:1])
