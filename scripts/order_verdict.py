"""Why an order is paid or not, in one sentence: the first rule that knows the answer gives it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from models.states import EventStatus
from scripts.order_money import (
    does_not_fit,
    has_shops_status,
    is_paid,
    is_part_paid,
    link_ended,
    waits_for_terms,
    was_decided,
    was_overwritten,
)
from scripts.order_parts import UNSETTLED, Attempt, Story, Verdict, counted
from scripts.stored_values import at


def verdict(story: Story) -> Verdict:
    """Why this order is paid, or why it is not."""
    return next(_answers(story))


def _answers(story: Story) -> Iterator[Verdict]:
    for rule in _RULES:
        if (found := rule(story)) is not None:
            yield found
    yield Verdict(
        "nothing_said",
        "waiting",
        f"Waiting: {counted(len(story.events), 'event')} arrived for it, but none of them brings money.",
    )


def _unreadable(story: Story) -> Verdict | None:
    if story.order.readable:
        return None
    sentence = "Not paid: the order's `payment` is no document, so nothing can be applied to it."
    return Verdict("unreadable", "bad", sentence, "Mend `payment` in the shop, then requeue the order's events.")


def _stuck(story: Story) -> Verdict | None:
    """The event that has work left: one that brings money first, then by how bad it is."""
    stuck = [event for event in story.events if event.status in UNSETTLED]
    if not stuck:
        return None
    event = min(stuck, key=lambda event: (not event.brings_money, UNSETTLED.index(EventStatus(event.status))))
    what = f"event {event.event_id} ({event.event_type})"
    due = at(event.next_attempt_at)
    match event.status:
        case EventStatus.DEAD:
            todo = f"Mend the cause, then `paylatch events requeue {event.event_id}`."
            return Verdict("event_dead", "bad", f"Not paid: {what} is {event.result}.", todo)
        case EventStatus.FAILED:
            sentence = f"Not paid yet: {what} failed ({event.error or 'no reason kept'}) and is due again at {due}."
            return Verdict("event_failed", "bad", sentence, f"`paylatch events show {event.event_id}` has the details.")
        case EventStatus.PARKED:
            since = at(event.received_at)
            sentence = f"Not paid yet: {what} is parked since {since} and is due at {due}."
            return Verdict(
                "event_parked", "waiting", sentence, f"`paylatch events requeue {event.event_id}` looks now."
            )
        case _:
            return Verdict("event_under_way", "waiting", f"Not paid yet: {what} is {event.status}, due at {due}.")


def _ignored(story: Story) -> Verdict | None:
    for event in story.events:
        if event.status == EventStatus.IGNORED and event.brings_money:
            sentence = f"Not paid: event {event.event_id} ({event.says[0]}) was {event.result}."
            todo = f"If it is for this shop after all, `paylatch events requeue {event.event_id}`."
            return Verdict(f"ignored_{event.outcome}", "look", sentence, todo)
    return None


def _authorised(story: Story) -> Verdict | None:
    for attempt in story.attempts:
        if "authorized" in attempt.statuses and not {"failed", "refunded"} & set(attempt.statuses):
            sentence = f"Not paid yet: {attempt.payment_id} ({attempt.sum}) is authorised, but not captured."
            return Verdict("authorised", "waiting", sentence, "Capture it in the dashboard if that is not automatic.")
    return None


def _confirming(story: Story) -> Verdict | None:
    """A browser's word, and nothing else so far."""
    for attempt in story.attempts:
        if attempt.statuses == ("callback",):
            sentence = f"Confirming: the buyer came back with the provider's signature over {attempt.payment_id}, "
            sentence += "but no event has said yet that the money came."
            todo = "Ship nothing yet; if it stays so, look the payment up in the dashboard."
            return Verdict("confirming", "waiting", sentence, todo)
    return None


def _failed(story: Story) -> Verdict | None:
    failed = [attempt for attempt in story.attempts if "failed" in attempt.statuses]
    if not failed:
        return None
    whys = ", ".join(_failure(attempt) for attempt in failed[-3:])
    if len(failed) == 1:
        return Verdict("failed", "waiting", f"Not paid: the only attempt failed: {whys}.")
    last = "" if len(failed) <= 3 else ", among them"
    return Verdict("failed", "waiting", f"Not paid: the only attempts, {len(failed)}, failed{last}: {whys}.")


def _failure(attempt: Attempt) -> str:
    return f"{attempt.payment_id} ({attempt.error.replace('_', ' ') or 'no reason given'})"


def _unconnected(story: Story) -> Verdict | None:
    if story.order.provider_order_id or story.order.link_id or story.events:
        return None
    sentence = "Waiting: the order has no `payment.razorpayOrderId` and no `payment.paymentLinkId`; "
    sentence += "only an event that names its number can be found for it."
    return Verdict("unconnected", "look", sentence, "Store the provider's order or link id before checkout.")


def _silent(story: Story) -> Verdict | None:
    if story.events:
        return None
    sentence = f"Waiting: no event has arrived for {story.order.provider_order_id or story.order.link_id}."
    todo = "If the dashboard shows a payment, check there that the webhook is active and reaches this endpoint."
    return Verdict("no_event", "waiting", sentence, todo)


_RULES: tuple[Callable[[Story], Verdict | None], ...] = (
    _unreadable,
    is_paid,
    has_shops_status,
    does_not_fit,
    was_overwritten,
    waits_for_terms,
    is_part_paid,
    _stuck,
    _ignored,
    _authorised,
    _confirming,
    was_decided,
    link_ended,
    _failed,
    _unconnected,
    _silent,
)
