"""Whether a notice is still worth sending, judged at the moment of sending."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from models.settings import NotificationSettings
from models.states import PAID, RowStatus, order_status


def not_worth_sending(
    row: Mapping[str, Any],
    order: Mapping[str, Any] | None,
    now: datetime,
    settings: NotificationSettings,
) -> tuple[RowStatus, str] | None:
    """Why a notice is not sent any more (status and reason); None when it is. Nothing is too old for `forced`."""
    age, oldest = now - row["factAt"], timedelta(seconds=settings.expire_after)
    forced = row.get("forced", False)
    if age > oldest and not forced:
        return RowStatus.EXPIRED, "too_old"
    if order is None:
        return (
            (RowStatus.SUPPRESSED, "alert_closed") if row["notice"] == "alert" else (RowStatus.SKIPPED, "order_deleted")
        )
    if row["status"] == RowStatus.UNKNOWN and row["attempts"] >= settings.max_attempts:
        return RowStatus.DEAD, "gave_up"
    payment = order.get("payment")
    if row.get("foreign") and not forced and _paid_before(payment, now - oldest):
        return RowStatus.EXPIRED, "paid_long_ago"
    stale = age > timedelta(seconds=settings.failed_stale_after) and not forced
    return _failure_outdated(payment, stale=stale) if row["notice"] == "payment_failed" else None


def _failure_outdated(payment: object, *, stale: bool) -> tuple[RowStatus, str] | None:
    if isinstance(payment, dict) and order_status(payment.get("status")) in PAID:
        return RowStatus.SUPPRESSED, "paid_meanwhile"
    return (RowStatus.SUPPRESSED, "stale") if stale else None


def _paid_before(payment: object, moment: datetime) -> bool:
    """A shop that saves an old paid order again tells nothing new."""
    paid_at = payment.get("paidAt") if isinstance(payment, dict) else None
    return isinstance(paid_at, datetime) and (paid_at if paid_at.tzinfo else paid_at.replace(tzinfo=UTC)) < moment
