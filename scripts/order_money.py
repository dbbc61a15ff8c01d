"""Answers to "is it paid?" that the money itself gives: paid, in part, not fitting, late, decided, overwritten."""

from __future__ import annotations

from collections.abc import Sequence

from models.derive import ONLY_CLOSED
from models.reviews import MISFITS, is_misfit
from models.states import PAID, EventStatus
from scripts.order_parts import UNSETTLED, EventPart, Review, Story, Verdict, paid
from scripts.stored_values import at, clean
from webhook.event_rows import FOR_TERMS

_LOOKS = {
    "duplicate_capture": "The customer paid twice: refund the payment named here.",
    "refunded_more_than_captured": "Compare the refunds with the dashboard.",
    "order_keys_disagree": "Find out which order the payment is meant for before you ship.",
    "link_amount_differs": "Correct the order's `payment.amount` or refund: its link asks for another amount.",
}
_AFTER_LINK = "paid_after_link_"
_ENDS = {"expired": "expired", "cancelled": "was cancelled"}


def is_paid(story: Story) -> Verdict | None:
    """Paid, by what, and what of it still needs a look."""
    order = story.order
    if order.status not in PAID:
        return None
    if not order.payment_id or order.paid is None:
        return Verdict("paid_by_shop", "good", f"The shop itself set it to {order.status}: no payment event did.")
    means = f" ({order.method})" if order.method else ""
    sentence = f"Paid by {order.payment_id}{means} on {at(order.paid_at)}: {paid(story)}"
    if order.refunded is not None and order.refunded.amount:
        sentence += f", of which {order.refunded} was refunded"
    looks = [review for review in story.reviews if _still_open(review, order.payment_id)]
    if not looks:
        return Verdict("paid", "good", f"{sentence}.")
    late = {review.reason for review in looks}
    if len(late) == 1 and (reason := late.pop()).removeprefix(_AFTER_LINK) in _ENDS:
        sentence += f"; its payment link {_ENDS[reason.removeprefix(_AFTER_LINK)]}."
        todo = f"Ship or refund, then {_decide(story, 'accept', reason)} closes it."
        return Verdict("paid_after_link_ended", "look", sentence, todo)
    todo = _LOOKS.get(looks[0].reason, "Look the payment up in the dashboard: fulfil or refund.")
    return Verdict("paid_with_review", "look", f"{sentence}; something else needs a look: {_reasons(looks)}.", todo)


def _reasons(looks: Sequence[Review]) -> str:
    return ", ".join(f"{review.reason} of {review.ref} ({review.sum})" for review in looks)


def _still_open(review: Review, accepted: str) -> bool:
    """A misfit of the payment that completed the order after all is history."""
    return review.open and not (review.ref == accepted and review.reason in MISFITS)


def _decide(story: Story, how: str, reason: str) -> str:
    order = str(story.order.id) if " " not in str(story.order.id) else "ORDER"
    return f"`paylatch orders review {how} {clean(order)} {reason} --why ...`"


def has_shops_status(story: Story) -> Verdict | None:
    """The shop gave it a status of its own, before money came or without any."""
    order = story.order
    if order.own_status:
        return None
    late = [review for review in story.reviews if is_misfit(review.reason) and review.reason not in MISFITS]
    for review in sorted(late, key=lambda review: not review.open):
        sentence = f"Money came after the shop set the order to {order.status}: {review.ref} paid {review.sum}"
        if not review.open:
            return Verdict(f"review_{review.state}", "look", f"{sentence}; {_closing(review)}.")
        todo = f"{_decide(story, 'accept', review.reason)} completes the order; `reject` closes it, then refund."
        return Verdict(review.reason, "look", f"{sentence}.", todo)
    sentence = f"Not paid: the shop itself set the order to {order.status}, which PayLatch leaves alone."
    return Verdict("shop_status", "look", sentence)


def does_not_fit(story: Story) -> Verdict | None:
    """Money came that the order does not expect, and nobody has decided yet."""
    for review in story.reviews:
        if review.open and review.reason in MISFITS:
            sentence = f"Not paid: money came but does not fit: {_difference(review)}."
            return Verdict(review.reason, "look", sentence, _mend(story, review))
    return None


def _difference(review: Review) -> str:
    match review.reason:
        case "expected_amount_missing":
            return f"{review.ref} paid {review.sum}, but the order does not say what it expects"
        case "amount_unreadable":
            return f"the amount of {review.ref} cannot be read, {review.expected} expected"
        case "payment_on_two_orders":
            return f"{review.ref} ({review.sum}) completed another order already"
        case _:
            return f"{review.expected} expected, {review.sum} paid by {review.ref}"


def _mend(story: Story, review: Review) -> str:
    if review.reason == "payment_on_two_orders":
        return f"Find out which order the payment is meant for; {_decide(story, 'reject', review.reason)} closes it."
    again = _capture_of(story, review.ref)
    requeue = f"`paylatch events requeue {again.event_id} --force`" if again else "requeue its event with --force"
    correct = f"If the order's expectation is wrong, correct it and {requeue}"
    if review.reason in ONLY_CLOSED:
        return f"{correct}; else refund the payment."
    return f"{correct}; if this money will do, {_decide(story, 'accept', review.reason)}; else `reject` it and refund."


def _capture_of(story: Story, payment_id: str) -> EventPart | None:
    events = (event for event in story.events if any(s.captured and s.ref == payment_id for s in event.says))
    return next(events, None)


def waits_for_terms(story: Story) -> Verdict | None:
    """A capture of which only the provider can say whether it fits, and has not yet."""
    for ref in story.order.waiting or [said.ref for event in _waiting(story) for said in event.says if said.captured]:
        brought = next((attempt.sum for attempt in story.attempts if attempt.payment_id == ref), None)
        brought = brought or next(s.sum for event in _waiting(story) for s in event.says if s.ref == ref)
        sentence = f"Not paid yet: {ref} brought {brought} of {story.order.expected}, and the provider has not told yet"
        sentence += " whether that will do."
        again = next((event for event in _waiting(story)), None) or _capture_of(story, ref)
        todo = "The link's or the order's own event decides; or set `payment.acceptPartial` on the order"
        todo += f" and `paylatch events requeue {again.event_id} --force`." if again else "."
        return Verdict("waiting_for_terms", "waiting", sentence, todo)
    return None


def _waiting(story: Story) -> list[EventPart]:
    return [event for event in story.events if event.status == EventStatus.PARKED and event.outcome == FOR_TERMS]


def is_part_paid(story: Story) -> Verdict | None:
    """Some of its parts came, and nothing that brings the rest is under way."""
    order = story.order
    if (
        order.complete
        or not order.parts
        or any(event.brings_money and event.status in UNSETTLED for event in story.events)
    ):
        return None
    sentence = f"Part paid: {paid(story)} ({', '.join(order.parts)})"
    if looks := [review for review in story.reviews if review.open and not review.reason.startswith(_AFTER_LINK)]:
        sentence += f"; something needs a look: {_reasons(looks)}."
        todo = _LOOKS.get(looks[0].reason, f"{_decide(story, 'accept', looks[0].reason)} closes it, or `reject` does.")
        return Verdict("part_paid_with_review", "look", sentence, todo)
    if end := _ended(story):
        todo = "Ask for the rest by a new link, or refund the parts."
        return Verdict("part_paid_link_ended", "look", f"{sentence}, and its payment link {_ENDS[end]}.", todo)
    return Verdict("part_paid", "waiting", f"{sentence}; the rest has not come yet.")


def _ended(story: Story) -> str:
    """How the last of its links ended; empty while one may still be paid."""
    ends = [next((end for end in _ENDS if end in link.statuses), "") for link in story.links]
    return ends[-1] if ends and all(ends) else ""


def was_overwritten(story: Story) -> Verdict | None:
    """Nothing but a foreign writer takes a credited payment from an order."""
    known = set() if story.order.complete else {attempt.payment_id for attempt in story.attempts if attempt.captured}
    for entry in story.ledger:
        if entry.entry_type == "capture" and entry.ref not in known:
            sentence = (
                f"Not paid by its status ({story.order.status}), but {entry.sum} of {entry.ref} is booked: "
                "somebody's code wrote over the order."
            )
            event = _capture_of(story, entry.ref)
            todo = f"`paylatch events requeue {event.event_id} --force` restores it." if event else ""
            return Verdict("overwritten", "bad", sentence, todo)
    return None


def was_decided(story: Story) -> Verdict | None:
    """Money that an operator rejected, or accepted where that completes nothing."""
    closed = [review for review in story.reviews if not review.open and review.by and is_misfit(review.reason)]
    for review in sorted(closed, key=lambda review: review.state != "rejected"):
        sentence = f"Not paid: {review.ref} brought {review.sum}; {_closing(review)}."
        returned = any(refund.payment_id == review.ref and refund.status == "processed" for refund in story.refunds)
        todo = "" if returned or review.state != "rejected" else "Refund the payment if that is not done yet."
        return Verdict(f"review_{review.state}", "look", sentence, todo)
    return None


def _closing(review: Review) -> str:
    return f"{review.by} {review.state} it ({review.reason}) on {at(review.closed_at)}: {review.why}"


def link_ended(story: Story) -> Verdict | None:
    """Its payment link ended before anybody paid."""
    end = _ended(story)
    if not end or any(attempt.captured for attempt in story.attempts):
        return None
    link = story.links[-1].link_id
    sentence = f"Not paid: payment link {link} {_ENDS[end]} before anybody paid."
    return Verdict(f"link_{end}", "bad", sentence, "Make a new link if the order is still wanted.")
