"""What Razorpay's bodies look like on good and on bad days."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import pytest

from models.errors import Unparseable
from models.facts import Event, PaymentFact, RefundFact
from tests.support import sample
from webhook.providers import PROVIDERS
from webhook.providers.razorpay import Razorpay

WEIRD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    7.5,
    2**40,
    2**63,
    10**30,
    float("nan"),
    float("inf"),
    "",
    "x",
    "\x00",
    "\ud800",
    "é" * 300,
    [],
    [[]],
    [{}],
    {},
    {"entity": {}},
    {"entity": []},
    {"entity": None},
    {"a.b": {"$c": 1}},
)


def provider(**razorpay: Any) -> Razorpay:
    return Razorpay(sample.settings("mongodb://127.0.0.1:1", "paylatch", razorpay=razorpay))


def parse(body: Any) -> Event:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return provider().parse(raw)


def fact_of(name: str = "payment.captured", **changes: Any) -> PaymentFact:
    entity = {**sample.payment(1, "captured"), **changes}
    (fact,) = parse(sample.event(name, payment=entity)).payments
    return fact


def test_a_capture_is_read_field_by_field() -> None:
    event = parse(sample.event("payment.captured", payment=sample.payment(1, "captured", vpa="asha@okbank")))
    assert event.event_type == "payment.captured"
    assert event.account_id == sample.ACCOUNT
    assert event.occurred_at == sample.CREATED + 5
    assert event.refs.document() == {
        "orderId": sample.provider_order_id(1),
        "paymentId": sample.payment_id(1),
        "refundId": None,
        "paymentLinkId": None,
        "subscriptionId": None,
    }
    assert event.payments == (
        PaymentFact(
            id=sample.payment_id(1),
            status="captured",
            captured=True,
            amount=49_900,
            currency="INR",
            created_at=sample.CREATED,
            method="upi",
            method_details={"vpaMasked": "a***@okbank"},
            fee=1_178,
            tax=180,
            order_id=sample.provider_order_id(1),
        ),
    )


def test_order_paid_brings_the_shops_order_number_as_the_receipt() -> None:
    event = parse(sample.order_paid(3))
    assert (event.refs.receipt, event.refs.order_id) == ("TEA-3", sample.provider_order_id(3))
    assert event.payments[0].captured


@pytest.mark.parametrize("notes", [[], {}, None, {"order_id": 7}, {"orderId": ["x"]}, "text", 7])
def test_notes_of_any_shape_neither_fail_nor_say_which_order_it_is(notes: object) -> None:
    event = parse(sample.captured(1, notes=notes))
    assert (event.refs.order_id, event.refs.receipt) == (sample.provider_order_id(1), None)


def test_without_notes_nothing_fails() -> None:
    entity = sample.payment(1)
    del entity["notes"]
    assert parse(sample.event("payment.captured", payment=entity)).payments[0].captured


@pytest.mark.parametrize(
    ("status", "flag", "captured"),
    [
        ("captured", True, True),
        ("captured", "1", True),
        ("captured", False, True),
        ("captured", None, True),
        ("refunded", True, True),
        ("refunded", 1, True),
        ("refunded", "1", True),
        ("refunded", False, False),
        ("refunded", 0, False),
        ("refunded", "0", False),
        ("refunded", "true", False),
        ("refunded", [1], False),
        ("refunded", None, False),
        ("authorized", True, False),
        ("failed", True, False),
        ("failed", "1", False),
        ("created", 1, False),
        ("Captured", True, False),
    ],
)
def test_a_capture_is_told_by_its_status_and_only_a_refunded_one_by_its_flag(
    status: str, flag: object, *, captured: bool
) -> None:
    assert fact_of(status=status, captured=flag).captured is captured


def test_the_payment_may_be_ahead_of_the_events_name() -> None:
    fact = fact_of("payment.authorized", status="captured")
    assert (fact.status, fact.captured) == ("captured", True)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"error_code": ""}, {}),
        ({"error_code": None}, {}),
        ({"error_code": 7}, {}),
        (
            {"error_code": "BAD_REQUEST_ERROR", "error_step": "payment_authorization"},
            {"code": "BAD_REQUEST_ERROR", "step": "payment_authorization"},
        ),
        ({"error_code": "A", "error_description": "free text about a person"}, {"code": "A"}),
    ],
)
def test_only_the_coded_parts_of_a_failure_are_kept(changes: dict[str, Any], error: dict[str, str]) -> None:
    empty = {f"error_{name}": None for name in ("code", "reason", "step", "source", "description")}
    assert fact_of("payment.failed", status="failed", **{**empty, **changes}).error == error


def test_a_payment_that_is_not_failed_has_no_error() -> None:
    assert fact_of(error_code="BAD_REQUEST_ERROR").error == {}


@pytest.mark.parametrize("order_id", [None, "", 7, [], "order id", "order_\x00", "o" * 65])
def test_a_payment_without_a_usable_order_id_is_still_an_event(order_id: object) -> None:
    event = parse(sample.captured(1, order_id=order_id))
    assert event.refs.order_id is None
    assert event.refs.lane == sample.payment_id(1)


def test_the_order_entity_names_the_order_when_the_payment_does_not() -> None:
    assert parse(sample.order_paid(4, order_id=None)).refs.order_id == sample.provider_order_id(4)


def test_an_order_id_without_the_usual_prefix_is_taken() -> None:
    assert parse(sample.captured(1, order_id="Rp71ZiqdEWusLa")).refs.order_id == "Rp71ZiqdEWusLa"


@pytest.mark.parametrize("contains", [[], ["order"], None, "payment", {"payment": 1}])
def test_contains_is_never_believed(contains: object) -> None:
    assert parse({**sample.captured(1), "contains": contains}).payments[0].id == sample.payment_id(1)


@pytest.mark.parametrize(
    ("body", "payload", "expected"),
    [
        (1_790_000_005, 7, 1_790_000_005),
        (None, 1_790_000_009, 1_790_000_009),
        ("1790000005", None, 1_790_000_005),
        (None, None, None),
        (0, None, None),
        (-5, None, None),
        (True, None, None),
        (1e30, None, None),
        (253_402_300_799, None, 253_402_300_799),
        (253_402_300_800, None, None),
        ("soon", 1_790_000_009, 1_790_000_009),
    ],
)
def test_the_events_time_stands_at_the_top_or_inside_payload_or_nowhere(
    body: object, payload: object, expected: int | None
) -> None:
    message = sample.captured(1)
    message["created_at"] = body
    message["payload"]["created_at"] = payload
    assert parse(message).occurred_at == expected


def test_an_event_without_any_created_at_has_no_time() -> None:
    message = sample.captured(1)
    del message["created_at"]
    del message["payload"]["payment"]["entity"]["created_at"]
    event = parse(message)
    assert (event.occurred_at, event.payments[0].created_at) == (None, None)


@pytest.mark.parametrize("kind", ["paid", "partially_paid", "expired", "cancelled"])
def test_the_created_at_of_a_payment_link_event_is_not_the_events_time(kind: str) -> None:
    link = {"id": "plink_Test1", "expire_by": 0, "reference_id": "TEA-1"}
    event = parse(sample.event(f"payment_link.{kind}", payment_link=link, payment=sample.payment(1)))
    assert event.occurred_at is None
    assert event.refs.payment_link_id == "plink_Test1"


def test_payload_keys_with_dots_and_unknown_types_are_kept_as_events() -> None:
    event = parse(
        sample.event("payment.downtime.started", **{"payment.downtime": {"id": "down_1", "status": "started"}})
    )
    assert (event.event_type, event.payments, event.refs.payment_id) == ("payment.downtime.started", (), None)
    assert event.payload["payload"] == {"payment.downtime": {"entity": {"id": "down_1", "status": "started"}}}


def test_a_refund_is_read_field_by_field_and_the_payment_beside_it_is_a_fact_too() -> None:
    event = parse(sample.refunded(1, amount=20_000))
    assert event.refs.document() == {
        "orderId": sample.provider_order_id(1),
        "paymentId": sample.payment_id(1),
        "refundId": sample.refund_id(1),
        "paymentLinkId": None,
        "subscriptionId": None,
    }
    assert event.refunds == (
        RefundFact(
            id=sample.refund_id(1),
            payment_id=sample.payment_id(1),
            status="processed",
            amount=20_000,
            currency="INR",
            created_at=sample.CREATED + 60,
        ),
    )
    (payment,) = event.payments
    assert (payment.id, payment.captured, payment.amount) == (sample.payment_id(1), True, sample.AMOUNT)
    assert event.facts == (payment, *event.refunds)
    assert event.payment_ids == {sample.payment_id(1)}


@pytest.mark.parametrize("kind", ["created", "processed", "failed", "speed_changed"])
@pytest.mark.parametrize("status", ["pending", "processed", "failed"])
def test_a_refunds_status_is_its_own_whatever_the_event_is_called(kind: str, status: str) -> None:
    (refund,) = parse(sample.refunded(1, kind, status=status)).refunds
    assert refund.status == status


@pytest.mark.parametrize("status", [None, "", 7, {}])
def test_a_refund_without_a_status_is_pending(status: object) -> None:
    (refund,) = parse(sample.refunded(1, "created", status=status)).refunds
    assert refund.status == "pending"


def test_a_refund_of_the_old_shape_names_its_payment_and_no_order() -> None:
    event = parse(sample.refunded(1, beside=None))
    assert (event.payments, event.refs.order_id, event.refs.payment_id) == ((), None, sample.payment_id(1))
    assert event.refs.lane == sample.payment_id(1)
    assert [refund.id for refund in event.refunds] == [sample.refund_id(1)]


@pytest.mark.parametrize(("beside", "captured"), [({}, True), ({"captured": False}, False), ({"captured": "1"}, True)])
def test_the_payment_beside_a_whole_refund_is_a_capture_if_it_was_captured(
    beside: dict[str, Any], *, captured: bool
) -> None:
    (payment,) = parse(sample.refunded(1, beside=beside)).payments
    assert (payment.status, payment.captured) == ("refunded", captured)


@pytest.mark.parametrize("kind", ["created", "processed", "failed", "speed_changed"])
@pytest.mark.parametrize("changes", [{"id": None}, {"id": ""}, {"id": 7}, {"payment_id": None}, {"payment_id": "a b"}])
def test_a_refund_without_its_id_or_its_payments_is_unparseable(kind: str, changes: dict[str, Any]) -> None:
    with pytest.raises(Unparseable, match="no usable refund"):
        parse(sample.refunded(1, kind, **changes))


@pytest.mark.parametrize(("given", "amount"), [("20000", 20_000), (0, 0), (-1, None), ("200.00", None), (None, None)])
def test_a_refunds_amount_is_an_integer_or_nothing(given: object, amount: int | None) -> None:
    (refund,) = parse(sample.refunded(1, amount=given, beside=None)).refunds
    assert refund.amount == amount


def test_an_unusable_payment_beside_a_refund_takes_nothing_from_the_refund() -> None:
    event = parse(sample.refunded(1, beside={"id": None}))
    assert (event.payments, len(event.refunds), event.refs.payment_id) == ((), 1, sample.payment_id(1))


def test_a_refund_beside_an_event_about_a_payment_is_no_refund() -> None:
    event = parse(sample.event("payment.captured", payment=sample.payment(1), refund=sample.refund(1)))
    assert (event.refunds, len(event.payments)) == ((), 1)


@pytest.mark.parametrize(
    ("given", "amount"),
    [
        (49_900, 49_900),
        ("49900", 49_900),
        (49_900.0, 49_900),
        (0, 0),
        ("499.00", None),
        (499.5, None),
        (-1, None),
        ("-1", None),
        (True, None),
        ("", None),
        ("٤٩٩", None),
        (" 499", None),
        ([49_900], None),
        (None, None),
        (10**15, None),
        ("9" * 5000, None),
        (10**30, None),
    ],
)
@pytest.mark.parametrize("name", ["amount", "fee", "tax"])
def test_amounts_are_integers_or_nothing_and_never_truncated(name: str, given: object, amount: int | None) -> None:
    assert getattr(fact_of("payment.captured", **{name: given}), name) == amount


@pytest.mark.parametrize(
    ("given", "currency"), [("INR", "INR"), ("inr", "INR"), ("RUPEE", None), (None, None), (356, None)]
)
def test_a_currency_is_three_letters_or_nothing(given: object, currency: str | None) -> None:
    assert fact_of(currency=given).currency == currency


def test_base_amount_and_base_currency_are_never_looked_at() -> None:
    fact = fact_of(amount=100, currency="USD", base_amount=49_900, base_currency="INR")
    assert (fact.amount, fact.currency) == (100, "USD")


def test_card_details_are_kept_without_name_or_number() -> None:
    card = {
        "network": "Visa",
        "last4": "1111",
        "issuer": "HDFC",
        "name": "Asha Nair",
        "expiry_month": "01",
        "iin": "4111",
    }
    fact = fact_of(method="card", card=card, vpa=None, wallet="", bank=None)
    assert fact.method_details == {"network": "Visa", "last4": "1111", "issuer": "HDFC"}


@pytest.mark.parametrize(
    ("vpa", "masked"),
    [("asha@okbank", "a***@okbank"), ("asha", "a***"), ("@okbank", "***@okbank"), (7, None), ("", None)],
)
def test_a_virtual_payment_address_is_masked(vpa: object, masked: str | None) -> None:
    assert fact_of(vpa=vpa).method_details.get("vpaMasked") == masked


@pytest.mark.parametrize("name", ["payment.authorized", "payment.captured", "payment.failed", "order.paid"])
@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"payment": {}},
        {"payment": {"entity": {}}},
        {"payment": {"entity": {"id": "pay_A"}}},
        {"payment": {"entity": {"status": "captured"}}},
        {"payment": {"entity": {"id": 7, "status": "captured"}}},
        {"payment": [{"entity": {"id": "pay_A", "status": "captured"}}]},
        None,
        [],
    ],
)
def test_an_event_that_should_move_money_but_shows_no_payment_is_unparseable(name: str, payload: object) -> None:
    with pytest.raises(Unparseable, match="no usable payment"):
        parse({"event": name, "payload": payload})


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"event": None},
        {"event": ""},
        {"event": 7},
        {"event": ["payment.captured"]},
        {"event": "a\nb"},
        {"event": "\ud800"},
    ],
)
def test_a_body_without_a_usable_event_type_is_unparseable(body: dict[str, Any]) -> None:
    with pytest.raises(Unparseable, match="no event type"):
        parse({**sample.captured(1), "event": None, **body})


def test_a_very_long_event_type_is_cut() -> None:
    assert parse({"event": "x" * 5000}).event_type == "x" * 100


def test_unknown_keys_everywhere_are_fine() -> None:
    message = sample.captured(1, new_thing={"deep": [1]})
    assert parse({**message, "later": 1}).payments[0].captured


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else ()
    return [path, *(place for key, child in inner for place in _places(child, (*path, key)))]


def _with(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    return {**value, path[0]: _with(value[path[0]], path[1:], new)}


@pytest.mark.parametrize("weird", WEIRD, ids=lambda value: ascii(value)[:24])
def test_any_type_in_any_place_is_an_event_or_unparseable_and_what_is_kept_can_be_stored(weird: Any) -> None:
    card = sample.payment(1, "failed", card={"network": "Visa", "last4": "1"}, wallet="x", bank="y")
    message = {
        **sample.order_paid(1),
        **sample.event("order.paid", payment=card, order={"id": "order_A", "receipt": "T"}),
    }
    message["payload"] |= {"refund": {"entity": {"id": "r"}}, "payment_link": {"entity": {"id": "p"}}}
    for path in _places(message):
        try:
            event = parse(_with(message, path, weird))
        except Unparseable:
            continue
        words = [event.event_type, event.account_id, event.refs.receipt, *event.refs.document().values()]
        for fact in event.payments:
            assert fact.amount is None or 0 <= fact.amount < 10**15
            assert fact.created_at is None or 0 < fact.created_at < 2**40
            words += [fact.id, fact.status, fact.currency, fact.method]
            words += [*fact.method_details.values(), *fact.error.values()]
        for word in words:
            assert word is None or word.isprintable(), path


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("0" * 64, b"\x00" * 32),
        ("aB" * 32, b"\xab" * 32),
        ("", None),
        ("a", None),
        ("a" * 63, None),
        ("a" * 65, None),
        ("g" * 64, None),
        ("a" * 63 + "é", None),
        ("a" * 64 + "\n", None),
        (" " + "a" * 63, None),
        ("0x" + "a" * 62, None),
        ("٠" * 64, None),
        ("a" * 128, None),
    ],
)
def test_a_signature_is_64_hex_characters_and_nothing_else(value: str, wanted: bytes | None) -> None:
    assert provider().signature(value) == wanted


def digest(secret: str, raw: bytes) -> bytes:
    return hmac.new(secret.encode(), raw, hashlib.sha256).digest()


@pytest.mark.parametrize(
    ("secret", "label"), [(sample.SECRET, "new"), (sample.OLD_SECRET, "old"), ("other", None), ("", None)]
)
def test_each_live_secret_signs_and_the_label_tells_which(secret: str, label: str | None) -> None:
    raw = b'{"event":"x"}'
    assert provider().signed_with(digest(secret, raw), raw) == label


@pytest.mark.parametrize("changed", [b'{"event": "x"}', b'{"event":"x"}\n', b"", b'{"event":"y"}'])
def test_one_changed_byte_breaks_the_signature(changed: bytes) -> None:
    assert provider().signed_with(digest(sample.SECRET, b'{"event":"x"}'), changed) is None


def test_a_secret_with_letters_of_any_alphabet_signs() -> None:
    razorpay = provider(webhook_secrets={"चाय": "गुप्त"})
    assert razorpay.signed_with(digest("गुप्त", b"\xff\x00"), b"\xff\x00") == "चाय"


def test_without_secrets_nothing_is_signed() -> None:
    assert provider(webhook_secrets={}).signed_with(digest("", b"{}"), b"{}") is None


@pytest.mark.parametrize(
    ("accounts", "account", "ours"),
    [
        ((), "acc_A", True),
        ((), None, True),
        (("acc_A", "acc_B"), "acc_B", True),
        (("acc_A",), "acc_B", False),
        (("acc_A",), None, False),
    ],
)
def test_events_of_every_account_are_ours_unless_some_are_configured(
    accounts: tuple[str, ...], account: str | None, *, ours: bool
) -> None:
    event = parse({**sample.captured(1), "account_id": account})
    assert provider(account_ids=accounts).is_ours(event) is ours


def test_razorpay_is_registered_under_the_name_it_stores() -> None:
    made = PROVIDERS["razorpay"](sample.settings("mongodb://127.0.0.1:1", "paylatch"))
    assert (made.name, made.path, made.event_id_signed) == ("razorpay", "/webhooks/razorpay", False)
