"""Razorpay-shaped bodies, field for field and in the provider's key order; pure functions of their arguments.

Amounts are integers in the currency's smallest unit, times are unix seconds. An entity is built once, as authorised,
and then shown in another status by `in_status`, so that all events of one payment agree on its id and method details. A
new kind of event is one entity builder plus one line that names its parts, such as
`event("payment.captured", at, account_id, payment=payment)`.
"""

from __future__ import annotations

import json
import string
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import random

Json = dict[str, Any]
Method = Literal["card", "upi", "netbanking", "wallet"]
PaymentStatus = Literal["authorized", "captured", "failed"]
RefundStatus = Literal["pending", "processed", "failed"]
LinkStatus = Literal["created", "partially_paid", "paid", "expired", "cancelled"]

METHODS: tuple[Method, ...] = ("card", "upi", "netbanking", "wallet")
BASE62 = string.digits + string.ascii_uppercase + string.ascii_lowercase

NETWORKS = ("Visa", "MasterCard", "RuPay")
BANKS = ("HDFC", "ICIC", "SBIN", "UTIB", "KKBK")
WALLETS = ("payzapp", "mobikwik", "amazonpay")
UPI_FLOWS = ("collect", "intent")

# code, description, source, step, reason: a failure the bank decided, and one the customer did.
FAILURES: tuple[tuple[str, str, str, str, str], ...] = (
    ("BAD_REQUEST_ERROR", "Payment was declined by the bank", "issuer", "payment_authorization", "payment_declined"),
    (
        "BAD_REQUEST_ERROR",
        "Payment was not completed on time",
        "customer",
        "payment_authentication",
        "payment_timed_out",
    ),
    ("GATEWAY_ERROR", "The gateway could not process the payment", "gateway", "payment_authorization", "gateway_error"),
)
NO_FAILURE = (None, None, None, None, None)


def identifier(rng: random.Random, prefix: str = "") -> str:
    """An id of the provider's form: a prefix (`pay_`, `order_`; none for event ids) and 14 base62 characters."""
    return prefix + "".join(rng.choices(BASE62, k=14))


def digits(rng: random.Random, count: int) -> str:
    """That many random decimal digits."""
    return "".join(rng.choices(string.digits, k=count))


def fees(amount: int) -> tuple[int, int]:
    """Fee (tax included) and tax in the smallest unit: 2 % and 18 % of that, rounded half up in integers."""
    net = (amount * 2 + 50) // 100
    tax = (net * 18 + 50) // 100
    return net + tax, tax


def payment(  # noqa: PLR0913 - an entity has many fields
    rng: random.Random,
    *,
    order_id: str | None,
    amount: int,
    created_at: int,
    method: Method = "upi",
    currency: str = "INR",
    notes: Json | None = None,
    email: str | None = "asha.nair@example.com",
    contact: str | None = "+910000000001",
) -> Json:
    """A payment entity in status `authorized`; empty notes are `[]`, as the provider writes them."""
    details = _method_details(rng, method, email)
    return {
        "id": identifier(rng, "pay_"),
        "entity": "payment",
        "amount": amount,
        "currency": currency,
        "status": "authorized",
        "order_id": order_id,
        "invoice_id": None,
        "international": False,
        "method": method,
        "amount_refunded": 0,
        "refund_status": None,
        "captured": False,
        "description": f"#{identifier(rng)}",
        "card_id": details.get("card", {}).get("id"),
        **({"card": details["card"]} if method == "card" else {}),
        "bank": details.get("bank"),
        "wallet": details.get("wallet"),
        "vpa": details.get("vpa"),
        "email": email,
        "contact": contact,
        "notes": notes or [],
        "fee": None,
        "tax": None,
        **_errors(NO_FAILURE),
        "acquirer_data": details["acquirer_data"],
        "created_at": created_at,
        "reward": None,
        **({"upi": details["upi"]} if method == "upi" else {}),
    }


def in_status(entity: Json, status: PaymentStatus, *, failure: int = 0) -> Json:
    """The same payment as another snapshot: fee and tax once captured, `FAILURES[failure]` when failed."""
    seen = {**entity, "status": status, "captured": status == "captured"}
    if status == "captured":
        seen["fee"], seen["tax"] = fees(entity["amount"])
    if status == "failed":
        seen.update(_errors(FAILURES[failure % len(FAILURES)]))
        seen["acquirer_data"] = dict.fromkeys(list(entity["acquirer_data"])[:1])
    return seen


def order(
    rng: random.Random,
    *,
    amount: int,
    receipt: str,
    created_at: int,
    currency: str = "INR",
    notes: Json | None = None,
) -> Json:
    """An order entity in status `created`, nothing paid yet; `receipt` is the shop's own number."""
    return {
        "id": identifier(rng, "order_"),
        "entity": "order",
        "amount": amount,
        "amount_paid": 0,
        "amount_due": amount,
        "currency": currency,
        "receipt": receipt,
        "offer_id": None,
        "status": "created",
        "attempts": 0,
        "notes": notes or [],
        "created_at": created_at,
        "description": None,
        "checkout": None,
    }


def paid(entity: Json, *, attempts: int = 1) -> Json:
    """The same order, fully paid after that many attempts."""
    return {**entity, "amount_paid": entity["amount"], "amount_due": 0, "status": "paid", "attempts": attempts}


def event(name: str, created_at: int, account_id: str, **parts: Json) -> Json:
    """The envelope; `parts` are the entities in the order in which `contains` and `payload` name them."""
    return {
        "entity": "event",
        "account_id": account_id,
        "event": name,
        "contains": list(parts),
        "payload": {part: {"entity": entity} for part, entity in parts.items()},
        "created_at": created_at,
    }


def payment_authorized(entity: Json, created_at: int, account_id: str) -> Json:
    """`payment.authorized` of this payment: it moves no money yet."""
    return event("payment.authorized", created_at, account_id, payment=in_status(entity, "authorized"))


def payment_captured(entity: Json, created_at: int, account_id: str) -> Json:
    """`payment.captured` of this payment; only this event shows `base_amount`."""
    seen = {**in_status(entity, "captured"), "base_amount": entity["amount"]}
    return event("payment.captured", created_at, account_id, payment=seen)


def payment_failed(entity: Json, created_at: int, account_id: str, *, failure: int = 0) -> Json:
    """`payment.failed` of this payment, for the reason `FAILURES[failure]`."""
    seen = in_status(entity, "failed", failure=failure)
    return event("payment.failed", created_at, account_id, payment=seen)


def order_paid(entity: Json, of: Json, created_at: int, account_id: str, *, attempts: int = 1) -> Json:
    """`order.paid`: the captured payment and the order `of` it."""
    captured = in_status(entity, "captured")
    return event("order.paid", created_at, account_id, payment=captured, order=paid(of, attempts=attempts))


def refund(
    rng: random.Random,
    *,
    payment_id: str,
    amount: int,
    created_at: int,
    currency: str = "INR",
    notes: Json | None = None,
) -> Json:
    """A refund entity in status `pending`; a payment may have several."""
    return {
        "id": identifier(rng, "rfnd_"),
        "entity": "refund",
        "amount": amount,
        "currency": currency,
        "payment_id": payment_id,
        "notes": notes or [],
        "receipt": None,
        "acquirer_data": {"arn": None},
        "created_at": created_at,
        "batch_id": None,
        "status": "pending",
        "speed_processed": "normal",
        "speed_requested": "normal",
    }


def payment_link(
    rng: random.Random,
    *,
    amount: int,
    reference_id: str,
    created_at: int,
    accept_partial: bool = False,
    currency: str = "INR",
    notes: Json | None = None,
) -> Json:
    """A payment link entity in status `created`; `reference_id` is the shop's own number, unset times are 0."""
    return {
        "accept_partial": accept_partial,
        "amount": amount,
        "amount_paid": 0,
        "cancelled_at": 0,
        "created_at": created_at,
        "currency": currency,
        "customer": {"contact": "+910000000001", "email": "asha.nair@example.com"},
        "description": "Tea",
        "expire_by": created_at + 86_400,
        "expired_at": 0,
        "first_min_partial_amount": 0,
        "id": identifier(rng, "plink_"),
        "notes": notes,
        "notify": {"email": False, "sms": False, "whatsapp": False},
        "reference_id": reference_id,
        "reminder_enable": False,
        "reminders": [],
        "short_url": f"https://rzp.io/rzp/{identifier(rng)[:7]}",
        "status": "created",
        "updated_at": created_at,
        "upi_link": False,
        "user_id": "",
        "whatsapp_link": False,
    }


def link_order(rng: random.Random, link: Json) -> Json:
    """The provider's own order behind a link, made when somebody opens it."""
    made = order(
        rng,
        amount=link["amount"],
        receipt=link["reference_id"],
        created_at=link["created_at"] + 10,
        currency=link["currency"],
    )
    return {**made, "partial_payment": link["accept_partial"], "product_type": "payment_link_v2"}


def link_in_status(link: Json, status: LinkStatus, at: int, *, order_id: str | None = None, paid: int = 0) -> Json:
    """The same link as another snapshot; it names its order once somebody has paid, `paid` in all."""
    ended = {"expired": {"expired_at": at}, "cancelled": {"cancelled_at": at}}.get(status, {})
    seen = {**link, **ended, "status": status, "amount_paid": paid, "updated_at": at}
    return {**seen, "order_id": order_id} if paid else seen


def link_paid(link: Json, of: Json, payment: Json, account_id: str, *, paid: int) -> Json:
    """`payment_link.paid` or `.partially_paid` after the payment by which `paid` came in all; keys are sorted."""
    whole = paid >= link["amount"]
    captured, at = in_status(payment, "captured"), payment["created_at"] + 2
    seen = link_in_status(link, "paid" if whole else "partially_paid", at, order_id=of["id"], paid=paid)
    due = {"amount_paid": paid, "amount_due": link["amount"] - paid, "status": "paid" if whole else "attempted"}
    return _link_event(seen, account_id, order={**of, **due}, payment=captured)


def link_ended(link: Json, status: Literal["expired", "cancelled"], at: int, account_id: str) -> Json:
    """`payment_link.expired` or `.cancelled`: the link alone."""
    return _link_event(link_in_status(link, status, at), account_id)


def _link_event(link: Json, account_id: str, **parts: Json) -> Json:
    """The envelope of link events: its `created_at` is the link's, and all keys are alphabetical."""
    made = event(f"payment_link.{link['status']}", link["created_at"], account_id, payment_link=link, **parts)
    ordered: Json = json.loads(json.dumps(made, sort_keys=True))
    return ordered


def after_refunds(entity: Json, total: int) -> Json:
    """The captured payment as it is shown beside a refund: `refunded` once the total is its whole amount."""
    whole = total >= entity["amount"]
    changes = {
        "status": "refunded" if whole else "captured",
        "amount_refunded": total,
        "refund_status": ("full" if whole else "partial") if total else None,
    }
    seen: Json = {}
    for name, value in {**in_status(entity, "captured"), **changes}.items():
        seen[name] = value
        if name == "currency":
            seen["base_amount"] = entity["amount"]
        if name == "amount_refunded":
            seen["amount_transferred"] = 0
    return seen


def refund_created(
    entity: Json,
    of: Json,
    created_at: int,
    account_id: str,
    *,
    status: RefundStatus = "pending",
    others: int = 0,
    old_shape: bool = False,
) -> Json:
    """`refund.created` of the payment `of`; a quick refund says `processed` already.

    In this and the next three, `others` is what the payment's other refunds sum up to, and the old shape has no payment
    beside the refund.
    """
    seen, payment = {**entity, "status": status}, after_refunds(of, others + entity["amount"])
    return _refund_event("refund.created", created_at, account_id, seen, None if old_shape else payment)


def refund_processed(
    entity: Json, of: Json, created_at: int, account_id: str, *, others: int = 0, old_shape: bool = False
) -> Json:
    """`refund.processed`: the money went back."""
    seen, payment = {**entity, "status": "processed"}, after_refunds(of, others + entity["amount"])
    return _refund_event("refund.processed", created_at, account_id, seen, None if old_shape else payment)


def refund_failed(
    entity: Json, of: Json, created_at: int, account_id: str, *, others: int = 0, old_shape: bool = False
) -> Json:
    """`refund.failed`: the money did not go back, and the payment no longer counts it."""
    seen, payment = {**entity, "status": "failed"}, after_refunds(of, others)
    return _refund_event("refund.failed", created_at, account_id, seen, None if old_shape else payment)


def refund_speed_changed(
    entity: Json,
    of: Json,
    created_at: int,
    account_id: str,
    *,
    status: RefundStatus = "processed",
    others: int = 0,
    old_shape: bool = False,
) -> Json:
    """`refund.speed_changed`: asked for at once, done at normal speed."""
    seen = {**entity, "status": status, "speed_requested": "optimum"}
    payment = after_refunds(of, others + entity["amount"])
    return _refund_event("refund.speed_changed", created_at, account_id, seen, None if old_shape else payment)


def encode(body: Json) -> bytes:
    """The bytes on the wire: compact UTF-8 JSON, keys as they stand, no trailing newline."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def _refund_event(name: str, created_at: int, account_id: str, entity: Json, payment: Json | None) -> Json:
    if payment is None:
        return event(name, created_at, account_id, refund=entity)
    return event(name, created_at, account_id, refund=entity, payment=payment)


def _errors(failure: tuple[str | None, ...]) -> Json:
    return dict(
        zip(("error_code", "error_description", "error_source", "error_step", "error_reason"), failure, strict=True)
    )


def _method_details(rng: random.Random, method: Method, email: str | None) -> Json:
    match method:
        case "card":
            return {"card": _card(rng), "acquirer_data": {"auth_code": digits(rng, 6)}}
        case "upi":
            vpa = f"{(email or 'customer').partition('@')[0]}@okbank"
            reference = {"rrn": digits(rng, 12), "upi_transaction_id": f"{rng.getrandbits(128):032X}"}
            return {"vpa": vpa, "upi": {"vpa": vpa, "flow": rng.choice(UPI_FLOWS)}, "acquirer_data": reference}
        case "netbanking":
            return {"bank": rng.choice(BANKS), "acquirer_data": {"bank_transaction_id": digits(rng, 7)}}
        case "wallet":
            return {"wallet": rng.choice(WALLETS), "acquirer_data": {"transaction_id": digits(rng, 10)}}


def _card(rng: random.Random) -> Json:
    return {
        "id": identifier(rng, "card_"),
        "entity": "card",
        "name": "",
        "last4": digits(rng, 4),
        "network": rng.choice(NETWORKS),
        "type": rng.choice(("credit", "debit")),
        "issuer": rng.choice(BANKS),
        "international": False,
        "emi": False,
        "sub_type": "consumer",
        "token_iin": digits(rng, 9),
    }
