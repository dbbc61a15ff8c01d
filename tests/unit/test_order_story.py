from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import ObjectId

from models.facts import Cause, DecisionFact, Event
from models.reducer import numbered, reduce
from models.settings import OrderSettings
from scripts.order_events import parsed
from scripts.order_page import page
from scripts.order_parts import Records, Story, Verdict
from scripts.order_story import tell
from scripts.order_verdict import verdict
from tests.support import sample
from webhook.admission import Delivery
from webhook.orders import expectation
from webhook.own_messages import OWN, callback_delivery, parse_own, review_delivery
from webhook.providers.razorpay import Razorpay

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
DUE = datetime(2026, 3, 1, 12, 15, tzinfo=UTC)
RAZORPAY = Razorpay(sample.settings("mongodb://localhost", "none"))
A, B, C = (sample.payment_id(1, letter) for letter in "ABC")
RECEIVED, DUE_AT = "2026-03-01 12:00:00 UTC", "2026-03-01 12:15:00 UTC"
FOREIGN = "it is about another account than the configured ones"
ONLY_BY_NUMBER = "only an event that names its number can be found for it"
PAID_ON = "2026-09-21 14:13:20 UTC"
REFUND = {"id": "rfnd_1", "entity": "refund", "payment_id": A, "amount": 10_000, "currency": "INR"}


def parse(row: Mapping[str, Any]) -> Event | None:
    return parsed(row, parse_own if row["provider"] == OWN else RAZORPAY.parse)


def row(event_id: str, body: Any, status: str = "completed", code: str = "applied", **changes: Any) -> dict[str, Any]:
    """An event as it is stored: a provider's body, or a message of our own."""
    own = body if isinstance(body, Delivery) else None
    event = own.event if own and own.event else RAZORPAY.parse(sample.encode(body))
    return {
        "eventId": event_id,
        "eventType": event.event_type,
        "provider": own.provider if own else "razorpay",
        "origin": own.origin if own else "webhook",
        "status": status,
        "rawBody": own.raw if own else sample.encode(body),
        "refs": event.refs.document(),
        "receivedAt": NOW,
        "attempts": 1,
        "outcome": {"code": code, "detail": None},
        "duplicates": {"count": 0, "lastAt": None},
        "flags": [],
        **changes,
    }


def after(order: dict[str, Any], *bodies: Any, taken: frozenset[str] = frozenset(), **more: Any) -> Records:
    """The order when these bodies took effect on it, one after the other."""
    rows, ledger = [], []
    for number, body in enumerate(bodies, start=1):
        rows.append(row(f"E{number}", body))
        event, expected = parse(rows[-1]), expectation(order, OrderSettings())
        assert event is not None
        change = reduce(order["payment"], event.facts, expected, NOW, taken)
        rows[-1]["outcome"]["code"] = "applied" if change else "already_applied"
        if change:
            cause = Cause(f"E{number}", event.event_type, "webhook").document()
            order["payment"].update({path.removeprefix("payment."): value for path, value in change.set.items()})
            order.setdefault("history", []).extend(numbered(change, order.get("history"), NOW, cause))
            ledger += [
                {"entryType": e.entry_type, "refId": e.ref_id, "amount": e.amount, "currency": e.currency}
                for e in change.ledger
            ]
    events = [*rows, *more.pop("stuck", ())]
    return Records(order, expectation(order, OrderSettings()), events=events, ledger=ledger, **more)


def story_of(records: Records, *, reveal: bool = False) -> Story:
    return tell(records, parse, reveal=reveal)


def why(records: Records) -> Verdict:
    return verdict(story_of(records))


def order(**payment: Any) -> dict[str, Any]:
    return sample.order(1, **payment)


def waiting(body: Any, status: str, code: str, **changes: Any) -> Records:
    return after(order(), stuck=[row("E9", body, status, code, **changes)])


CAPTURED = sample.captured(1)
LESS = sample.captured(1, amount=49_000)
TWO_FAILED = (sample.failed(1, letter="A"), sample.failed(1, letter="B"))

LINK = sample.link_id(1)


def by_link(**payment: Any) -> dict[str, Any]:
    return order(razorpayOrderId=None, **{"paymentLinkId": LINK, **payment})


def paid_link(*payments: dict[str, Any], **options: Any) -> dict[str, Any]:
    return sample.link_paid(1, *payments, of=sample.link(1, accept_partial=True), order_id="order_Behind", **options)


def decision(reason: str, state: Any, ref: str = A) -> Delivery:
    fact = DecisionFact(reason, ref, state, by="asha", why="agreed by phone", at=1_790_000_900)
    return review_delivery("ord1", fact)


CALLBACK = callback_delivery(
    RAZORPAY, {"order_id": sample.provider_order_id(1), "payment_id": A, "signature": "5" * 64}
)
PART = paid_link(sample.payment(1, amount=20_000, order_id="order_Behind"))
REST = paid_link(sample.payment(1, letter="B", amount=29_900, created_at=sample.CREATED + 60), paid=49_900)
ON_LINK = paid_link(sample.payment(1, order_id="order_Behind"))
DECIDED_ON = "2026-09-21 14:28:20 UTC"

SITUATIONS: Mapping[str, tuple[Records, str, str]] = {
    "paid": (after(order(), CAPTURED), "paid", f"Paid by {A} (upi) on {PAID_ON}: ₹499.00."),
    "late authorisation": (
        after(order(), sample.failed(1), sample.authorized(1), CAPTURED),
        "paid",
        f"Paid by {A} (upi) on {PAID_ON}: ₹499.00.",
    ),
    "partly refunded": (
        after(order(), CAPTURED, sample.event("refund.processed", refund={**REFUND, "status": "processed"})),
        "paid",
        f"Paid by {A} (upi) on {PAID_ON}: ₹499.00, of which ₹100.00 was refunded.",
    ),
    "paid twice": (
        after(order(), CAPTURED, sample.captured(1, letter="B")),
        "paid_with_review",
        f"Paid by {A} (upi) on {PAID_ON}: ₹499.00; something else needs a look: duplicate_capture of {B} (₹499.00).",
    ),
    "born paid": (
        after(order(status="completed")),
        "paid_by_shop",
        "The shop itself set it to completed: no payment event did.",
    ),
    "no event": (
        after(order()),
        "no_event",
        f"Waiting: no event has arrived for {sample.provider_order_id(1)}.",
    ),
    "no provider order": (
        after(order(razorpayOrderId=None)),
        "unconnected",
        f"Waiting: the order has no `payment.razorpayOrderId` and no `payment.paymentLinkId`; {ONLY_BY_NUMBER}.",
    ),
    "one failed": (
        after(order(), sample.failed(1)),
        "failed",
        f"Not paid: the only attempt failed: {A} (payment declined).",
    ),
    "all failed": (
        after(order(), *TWO_FAILED),
        "failed",
        f"Not paid: the only attempts, 2, failed: {A} (payment declined), {B} (payment declined).",
    ),
    "authorised": (
        after(order(), sample.failed(1, letter="B"), sample.authorized(1)),
        "authorised",
        f"Not paid yet: {A} (₹499.00) is authorised, but not captured.",
    ),
    "too little": (
        after(order(), LESS),
        "amount_mismatch",
        f"Not paid: money came but does not fit: ₹499.00 expected, ₹490.00 paid by {A}.",
    ),
    "other currency": (
        after(order(), sample.captured(1, currency="USD")),
        "currency_mismatch",
        f"Not paid: money came but does not fit: ₹499.00 expected, $499.00 paid by {A}.",
    ),
    "nothing expected": (
        after(order(amount=None), CAPTURED),
        "expected_amount_missing",
        f"Not paid: money came but does not fit: {A} paid ₹499.00, but the order does not say what it expects.",
    ),
    "amount unreadable": (
        after(order(), sample.captured(1, amount="499.00")),
        "amount_unreadable",
        f"Not paid: money came but does not fit: the amount of {A} cannot be read, ₹499.00 expected.",
    ),
    "two orders": (
        after(order(), CAPTURED, taken=frozenset({A})),
        "payment_on_two_orders",
        f"Not paid: money came but does not fit: {A} (₹499.00) completed another order already.",
    ),
    "paid after cancelled": (
        after(order(status="cancelled"), CAPTURED),
        "paid_after_cancelled",
        f"Money came after the shop set the order to cancelled: {A} paid ₹499.00.",
    ),
    "cancelled": (
        after(order(status="cancelled")),
        "shop_status",
        "Not paid: the shop itself set the order to cancelled, which PayLatch leaves alone.",
    ),
    "parked": (
        waiting(CAPTURED, "parked", "waiting_for_order", nextAttemptAt=DUE),
        "event_parked",
        f"Not paid yet: event E9 (payment.captured) is parked since {RECEIVED} and is due at {DUE_AT}.",
    ),
    "failed event": (
        waiting(CAPTURED, "failed", "", outcome=None, error="AutoReconnect", nextAttemptAt=DUE),
        "event_failed",
        f"Not paid yet: event E9 (payment.captured) failed (AutoReconnect) and is due again at {DUE_AT}.",
    ),
    "dead event": (
        waiting(CAPTURED, "dead", "unmatched", outcome={"code": "unmatched", "detail": "its order never came"}),
        "event_dead",
        "Not paid: event E9 (payment.captured) is dead (unmatched): its order never came.",
    ),
    "under way": (
        waiting(CAPTURED, "received", "", outcome=None, nextAttemptAt=DUE),
        "event_under_way",
        f"Not paid yet: event E9 (payment.captured) is received, due at {DUE_AT}.",
    ),
    "foreign account": (
        waiting(CAPTURED, "ignored", "foreign_account"),
        "ignored_foreign_account",
        f"Not paid: event E9 ({A} captured, ₹499.00) was ignored: {FOREIGN}.",
    ),
    "only a callback": (
        after(order(), CALLBACK),
        "confirming",
        (
            f"Confirming: the buyer came back with the provider's signature over {A}, "
            "but no event has said yet that the money came."
        ),
    ),
    "part paid": (
        after(by_link(), PART),
        "part_paid",
        f"Part paid: ₹200.00 of ₹499.00 in 1 part ({A}); the rest has not come yet.",
    ),
    "part paid on a link that expired": (
        after(by_link(), PART, sample.link_ended(1, accept_partial=True)),
        "part_paid_link_ended",
        f"Part paid: ₹200.00 of ₹499.00 in 1 part ({A}), and its payment link expired.",
    ),
    "part of another amount": (
        after(by_link(amount=60_000), PART),
        "part_paid_with_review",
        f"Part paid: ₹200.00 of ₹600.00 in 1 part ({A}); something needs a look: link_amount_differs of {A} (₹200.00).",
    ),
    "paid in parts": (
        after(by_link(), PART, REST),
        "paid",
        f"Paid by {A} (upi) on 2026-09-21 14:14:20 UTC: ₹499.00 in 2 parts.",
    ),
    "link expired": (
        after(by_link(), sample.link_ended(1)),
        "link_expired",
        f"Not paid: payment link {LINK} expired before anybody paid.",
    ),
    "link cancelled": (
        after(by_link(), sample.link_ended(1, "cancelled")),
        "link_cancelled",
        f"Not paid: payment link {LINK} was cancelled before anybody paid.",
    ),
    "paid on a link that ended": (
        after(by_link(), sample.link_ended(1), ON_LINK),
        "paid_after_link_ended",
        f"Paid by {A} (upi) on {PAID_ON}: ₹499.00; its payment link expired.",
    ),
    "paid on a link that ended, and accepted": (
        after(by_link(), sample.link_ended(1), ON_LINK, decision("paid_after_link_expired", "accepted")),
        "paid",
        f"Paid by {A} (upi) on {PAID_ON}: ₹499.00.",
    ),
    "waiting for terms": (
        after(
            by_link(),
            stuck=[row("E9", sample.captured(1, amount=20_000), "parked", "waiting_for_terms", nextAttemptAt=DUE)],
        ),
        "waiting_for_terms",
        f"Not paid yet: {A} brought ₹200.00 of ₹499.00, and the provider has not told yet whether that will do.",
    ),
    "terms that nobody told": (
        after(by_link(), sample.captured(1, amount=20_000)),
        "waiting_for_terms",
        f"Not paid yet: {A} brought ₹200.00 of ₹499.00, and the provider has not told yet whether that will do.",
    ),
    "rejected": (
        after(order(), LESS, decision("amount_mismatch", "rejected")),
        "review_rejected",
        f"Not paid: {A} brought ₹490.00; asha rejected it (amount_mismatch) on {DECIDED_ON}: agreed by phone.",
    ),
    "rejected, then failed again": (
        after(order(), LESS, decision("amount_mismatch", "rejected"), sample.failed(1, letter="B")),
        "review_rejected",
        f"Not paid: {A} brought ₹490.00; asha rejected it (amount_mismatch) on {DECIDED_ON}: agreed by phone.",
    ),
    "accepted": (
        after(order(), LESS, decision("amount_mismatch", "accepted")),
        "paid",
        f"Paid by {A} (upi) on {PAID_ON}: ₹490.00.",
    ),
    "two orders, and rejected": (
        after(order(), CAPTURED, decision("payment_on_two_orders", "rejected"), taken=frozenset({A})),
        "review_rejected",
        f"Not paid: {A} brought ₹499.00; asha rejected it (payment_on_two_orders) on {DECIDED_ON}: agreed by phone.",
    ),
    "accepted, which completes nothing": (
        after(order(), sample.captured(1, amount="499.00"), decision("amount_unreadable", "accepted")),
        "review_accepted",
        (
            f"Not paid: {A} brought an unknown amount; asha accepted it (amount_unreadable) on {DECIDED_ON}: "
            "agreed by phone."
        ),
    ),
    "paid after cancelled, and rejected": (
        after(order(status="cancelled"), CAPTURED, decision("paid_after_cancelled", "rejected")),
        "review_rejected",
        (
            f"Money came after the shop set the order to cancelled: {A} paid ₹499.00; "
            f"asha rejected it (paid_after_cancelled) on {DECIDED_ON}: agreed by phone."
        ),
    ),
    "cancelled, and late on its link too": (
        after(by_link(status="cancelled"), sample.link_ended(1), ON_LINK),
        "paid_after_cancelled",
        f"Money came after the shop set the order to cancelled: {A} paid ₹499.00.",
    ),
    "no event of its link": (after(by_link()), "no_event", f"Waiting: no event has arrived for {LINK}."),
    "nothing about money": (
        waiting(sample.event("payout.processed"), "ignored", "unknown_type"),
        "nothing_said",
        "Waiting: 1 event arrived for it, but none of them brings money.",
    ),
    "no document": (
        Records({"_id": "ord1", "payment": "cash"}, expectation({}, OrderSettings())),
        "unreadable",
        "Not paid: the order's `payment` is no document, so nothing can be applied to it.",
    ),
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_sentence_on_top(situation: str) -> None:
    records, code, sentence = SITUATIONS[situation]
    found = why(records)
    assert (found.code, found.sentence) == (code, sentence)


def test_an_order_that_lost_its_payment_is_named_and_how_to_restore_it() -> None:
    shop_order = order()
    records = after(shop_order, CAPTURED)
    shop_order["payment"] = order()["payment"]
    found = why(records)
    assert found.sentence.startswith(f"Not paid by its status (pending), but ₹499.00 of {A} is booked")
    assert "paylatch events requeue E1 --force" in found.todo


def test_money_that_waits_is_named_before_a_dead_event_that_brings_none() -> None:
    stuck = [
        row("E8", sample.failed(1), "dead", "gave_up"),
        row("E9", CAPTURED, "parked", "waiting_for_order", nextAttemptAt=DUE),
    ]
    assert why(after(order(), stuck=stuck)).code == "event_parked"


def test_a_misfit_that_completed_the_order_after_all_needs_no_look() -> None:
    shop_order = order()
    after(shop_order, LESS)
    shop_order["payment"]["amount"] = 49_000
    found = why(after(shop_order, LESS))
    assert (found.code, found.sentence) == ("paid", f"Paid by {A} (upi) on {PAID_ON}: ₹490.00.")


def test_only_the_last_of_many_failures_are_named() -> None:
    found = why(after(order(), *(sample.failed(1, letter=letter) for letter in "ABCDE")))
    assert "the only attempts, 5, failed, among them: " in found.sentence
    assert found.sentence.count("pay_") == 3


def test_each_event_says_what_it_changed_or_why_nothing() -> None:
    records = after(order(), sample.failed(1, letter="B"), sample.authorized(1), CAPTURED, sample.order_paid(1))
    assert [event.result for event in story_of(records).events] == [
        f"payment_failed {B} (pending → failed)",
        f"payment_authorized {A} (stays failed)",
        f"payment_completed {A} (failed → completed)",
        "changed nothing: everything it says was known already",
    ]


def test_facts_of_events_that_are_gone_are_still_told() -> None:
    records = after(order(), CAPTURED)
    (fact,) = story_of(Records(records.order, records.expected)).other_facts
    assert (fact.fact, fact.event_id) == ("payment_completed", "E1")


def test_personal_data_is_told_only_when_it_is_to_be_revealed() -> None:
    message = {"address": "asha1@example.com"}
    notification = {"notice": "payment_completed", "channel": "email", "to": "customer", "message": message}
    records = after(order(), CAPTURED, notifications=[notification])
    secrets = ("asha1@example.com", "Asha 1", "asha.nair@example.com", "asha.nair@okbank", "+910000000001", "a***@")
    hidden, shown = str(story_of(records).document()), str(story_of(records, reveal=True).document())
    assert [secret for secret in secrets if secret in hidden] == []
    assert [secret for secret in secrets if secret not in shown] == []


@pytest.mark.parametrize("odd", [None, 7, "text", [], [7, None], [{"statuses": 7}], {"a": 1}, ObjectId(), NOW, True])
def test_an_order_of_any_shape_has_a_story_and_a_page(odd: Any) -> None:
    fields = (
        "status",
        "amount",
        "currency",
        "razorpayOrderId",
        "razorpayPaymentId",
        "attempts",
        "refunds",
        "review",
        "links",
        "refs",
        "paymentLinkId",
    )
    payment = dict.fromkeys((*fields, "amountPaid", "amountRefunded", "paidAt", "method"), odd)
    for stored in ({"_id": odd, "payment": odd}, {"_id": odd, "orderNumber": odd, "history": odd, "payment": payment}):
        readable = isinstance(stored["payment"], dict)
        records = Records(stored, expectation(stored if readable else {}, OrderSettings()))
        story = story_of(records)
        assert "<html" in page(story, verdict(story), NOW, revealed=False)


def test_a_page_holds_data_as_data_and_loads_nothing() -> None:
    hostile = {
        **order(status="<script>alert(1)</script>"),
        "orderNumber": '"><img src=x onerror=alert(1)>\x1b[2J\u202e',
    }
    story = story_of(after(hostile, CAPTURED))
    html = page(story, verdict(story), NOW, revealed=False)
    assert "<script" not in html
    assert "<img" not in html
    assert "&lt;script&gt;" in html
    assert not {"\x1b", "\u202e"} & set(html)
    assert "http://" not in html
    assert "https://" not in html


def test_an_order_that_lost_its_status_only_is_named_too() -> None:
    shop_order = order()
    records = after(shop_order, CAPTURED)
    shop_order["payment"]["status"] = "pending"
    assert why(records).code == "overwritten"


def test_links_learned_ids_callbacks_and_decisions_are_part_of_the_story() -> None:
    records = after(by_link(), sample.link_ended(1), CALLBACK, ON_LINK, decision("paid_after_link_expired", "rejected"))
    records.order["payment"]["refs"] = [{"provider": "razorpay", "kind": "order", "id": "order_Behind"}]
    story = story_of(records)
    (link,) = story.links
    assert (link.link_id, link.status, link.statuses, str(link.sum)) == (LINK, "paid", ("expired", "paid"), "₹499.00")
    assert [str(ref) for ref in story.order.refs] == ["order order_Behind"]
    assert [(event.origin, [str(said) for said in event.says]) for event in story.events] == [
        ("webhook", [f"{LINK} expired, ₹499.00"]),
        ("callback", [f"{A} confirmed by the browser, with the provider's signature"]),
        ("webhook", [f"{A} captured, ₹499.00", f"{LINK} paid, ₹499.00"]),
        ("operator", [f"paid_after_link_expired of {A} rejected by asha: agreed by phone"]),
    ]
    (review,) = story.reviews
    assert (review.state, review.by, review.why, review.open) == ("rejected", "asha", "agreed by phone", False)
    document = story.document()
    assert document["links"][0]["acceptPartial"] is True
    assert document["reviews"][0]["closedAt"] == review.closed_at
    html = page(story, verdict(story), NOW, revealed=False)
    for word in ("Payment links", LINK, "Rejected by asha on", "review: nothing open", "Also known as", "operator"):
        assert word in html


def test_a_parked_event_says_what_it_waits_for() -> None:
    parked = [row("E9", CAPTURED, "parked", code) for code in ("waiting_for_terms", "waiting_for_order")]
    terms, of_order = (event.result for event in story_of(after(order(), stuck=parked)).events)
    assert terms.startswith("parked: waits for the provider's terms since")
    assert of_order.startswith("parked: waits for its order since")
