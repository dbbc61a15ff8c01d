from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from models.clock import TAKER_MARGIN
from models.states import EventStatus
from webhook.event_rows import lane_of, park_delay, retry_delay
from webhook.requeue import DEFAULT_STATUSES, refusal, requeue_update

NOW = datetime(2026, 10, 1, 12, tzinfo=UTC)
PARKED_FOR = 72 * 3600.0


def held(until: datetime) -> dict[str, Any]:
    return {"status": EventStatus.PROCESSING, "lease": {"token": "t", "until": until}}


def test_without_a_choice_what_failed_and_what_is_dead_is_requeued() -> None:
    assert set(DEFAULT_STATUSES) == {"failed", "dead"}


@pytest.mark.parametrize("force", [True, False])
@pytest.mark.parametrize("status", ["received", "failed", "dead", "ignored", "parked"])
def test_what_is_not_being_worked_on_may_be_requeued(status: str, *, force: bool) -> None:
    assert refusal({"status": status}, NOW, force=force) is None


def test_a_completed_event_is_evaluated_again_only_by_force() -> None:
    reason = refusal({"status": "completed"}, NOW, force=False)
    assert reason is not None
    assert "--force" in reason
    assert refusal({"status": "completed"}, NOW, force=True) is None


@pytest.mark.parametrize("force", [True, False])
@pytest.mark.parametrize(
    ("until", "said"),
    [
        (NOW + timedelta(seconds=10), "a worker holds it"),
        (NOW, "a worker holds it"),
        (NOW - TAKER_MARGIN + timedelta(milliseconds=1), "a worker holds it"),
        (NOW - TAKER_MARGIN, "its worker died; it is due already"),
        (NOW - timedelta(hours=1), "its worker died; it is due already"),
    ],
)
def test_an_event_under_a_lease_is_never_requeued(until: datetime, said: str, *, force: bool) -> None:
    assert refusal(held(until), NOW, force=force) == said


@pytest.mark.parametrize("status", ["received", "failed", "dead", "ignored", "completed"])
def test_a_requeued_event_is_due_now_with_its_attempts_anew_and_its_error_kept(status: str) -> None:
    update = requeue_update({"status": status, "attempts": 10, "error": "x", "parks": 7}, NOW, PARKED_FOR)
    assert update == {
        "$set": {
            "status": "received",
            "attempts": 0,
            "nextAttemptAt": NOW,
            "parkedUntil": None,
            "parks": 0,
            "updatedAt": NOW,
        },
        "$inc": {"requeues": 1},
    }


def test_a_parked_event_keeps_waiting_with_a_new_deadline() -> None:
    update = requeue_update({"status": "parked", "attempts": 1, "parkedUntil": NOW}, NOW, PARKED_FOR)
    assert update == {
        "$set": {"nextAttemptAt": NOW, "parkedUntil": NOW + timedelta(hours=72), "parks": 0, "updatedAt": NOW},
        "$inc": {"requeues": 1},
    }


@pytest.mark.parametrize(
    ("attempts", "seconds"), [(0, 5), (1, 5), (2, 10), (3, 20), (9, 1280), (10, 2560), (11, 3600), (10_000, 3600)]
)
def test_retries_wait_five_seconds_doubling_up_to_an_hour_give_or_take_a_fifth(attempts: int, seconds: float) -> None:
    delays = [retry_delay(attempts) for _ in range(200)]
    assert min(delays) >= seconds * 0.8
    assert max(delays) <= seconds * 1.2
    assert len(set(delays)) > 100, "retries are spread"


def test_a_parked_event_looks_for_its_order_soon_and_then_seldom() -> None:
    assert [park_delay(parks) for parks in (0, 1, 2, 3, 4, 500)] == [2, 10, 60, 900, 900, 900]


@pytest.mark.parametrize(
    ("refs", "lane"),
    [
        ({"orderId": "order_A", "paymentId": "pay_A", "paymentLinkId": "plink_A"}, "order_A"),
        ({"orderId": None, "paymentId": "pay_A", "paymentLinkId": "plink_A"}, "plink_A"),
        ({"orderId": None, "paymentId": "pay_A", "paymentLinkId": None}, "pay_A"),
        ({"refundId": "rfnd_A"}, "row:7"),
        ({}, "row:7"),
        (None, "row:7"),
    ],
)
def test_events_of_one_order_share_a_lane_and_others_have_their_own(refs: dict[str, Any] | None, lane: str) -> None:
    assert lane_of({"_id": 7, "refs": refs}) == lane
