"""What a change of an order means: the pure function, its keys, and what it makes of nonsense."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import Binary, Decimal128, Int64, ObjectId, Timestamp

from tests.support.daemon import entry
from watcher.notices import Notice, encoded, moment, notices, shortened

AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
WALL = AT + timedelta(seconds=3)
MERCHANTS_ENTRY = {"status": "packed", "by": "warehouse"}


def event(operation: str, order_id: Any = "ord1", **more: Any) -> dict[str, Any]:
    change = {
        "_id": {"_data": "8265"},
        "operationType": operation,
        "ns": {"db": "shop", "coll": "orders"},
        "documentKey": {"_id": order_id},
        "clusterTime": Timestamp(1_790_000_000, 1),
        "wallTime": WALL,
    }
    return {**change, **more}


def update(fields: Mapping[str, Any], *, removed: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    description = {"updatedFields": dict(fields), "removedFields": list(removed), "truncatedArrays": []}
    return event("update", updateDescription=description, **more)


def whole(operation: str, document: Mapping[str, Any], order_id: Any = "ord1") -> dict[str, Any]:
    return event(operation, order_id, fullDocument={"_id": order_id, **document})


def ours(seq: int = 1, fact: str = "payment_completed", **changes: Any) -> dict[str, Any]:
    return entry(seq, fact, **{"at": AT, "ref": f"pay_{seq}", **changes})


def names(change: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [(notice.name, *notice.refs) for notice in notices(change)]


def test_a_first_push_arrives_as_the_whole_history() -> None:
    (notice,) = notices(update({"history": [ours()], "payment.status": "completed", "version": 1}))
    assert notice == Notice("payment_completed", "ord1", (), AT)
    assert notice.key("email", "customer") == "order:ord1:payment_completed:email:customer"


def test_a_later_push_arrives_under_its_place() -> None:
    assert names(update({"history.7": ours(8, "payment_failed", ref="pay_8")})) == [("payment_failed", "pay_8")]


def test_several_entries_pushed_at_once_are_all_told() -> None:
    change = update({"history.1": ours(2, "payment_failed", ref="pay_B"), "history.2": ours(3, "payment_completed")})
    assert names(change) == [("payment_failed", "pay_B"), ("payment_completed",)]
    at_first = update({"history": [ours(1, "payment_failed", ref="pay_A"), ours(2), ours(3, "payment_authorized")]})
    assert names(at_first) == [("payment_failed", "pay_A"), ("payment_completed",)]


def test_our_own_write_counts_by_its_history_alone() -> None:
    failed_late = {"history.3": ours(4, "payment_failed", ref="pay_D"), "payment.status": "completed"}
    assert names(update(failed_late)) == [("payment_failed", "pay_D")]
    assert names(update({"history.1": ours(2, "payment_authorized"), "payment.status": "completed"})) == []


def test_a_place_in_a_history_of_the_merchants_own_is_not_ours() -> None:
    assert names(update({"history.3": MERCHANTS_ENTRY})) == []
    assert names(update({"history.3": MERCHANTS_ENTRY, "payment.status": "completed"})) == [("payment_completed",)]
    assert names(update({"history.3": "paid", "history.10.seq": 4})) == []
    assert names(update({"histories.3": ours(), "history.x": ours(), "payment.history.1": ours()})) == []


def test_a_first_entry_of_the_merchants_own_history_does_not_hide_that_the_order_was_paid() -> None:
    change = update({"history": [MERCHANTS_ENTRY], "payment.status": "completed"})
    assert names(change) == [("payment_completed",)]
    assert names(update({"history": [], "payment.status": "completed"})) == [("payment_completed",)]


def test_our_entries_are_found_between_the_merchants_own() -> None:
    change = update({"history": [MERCHANTS_ENTRY, ours(2), "text", None], "payment.status": "completed"})
    assert names(change) == [("payment_completed",)]


def foreign(payment: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The four shapes in which the merchant's own code writes a status."""
    return [
        update({"payment.status": payment["status"], "payment.note": "by hand"}),
        update({"payment": payment}),
        whole("replace", {"payment": payment}),
        whole("insert", {"payment": payment, "history": []}),
    ]


@pytest.mark.parametrize("shape", range(4), ids=["dotted", "sub-document", "replace", "born"])
@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("completed", [("payment_completed",)]),
        ("failed", [("payment_failed", "-")]),
        ("refunded", [("payment_refunded",)]),
        ("partially_refunded", [("payment_refunded",)]),
        ("pending", []),
        ("cancelled", []),
        ("Completed", []),
        ("COD", []),
        ("", []),
        (None, []),
        (7, []),
        (True, []),
        (["completed"], []),
        ({"completed": True}, []),
    ],
)
def test_a_status_that_the_merchant_wrote_is_told_in_each_shape(
    shape: int, status: Any, expected: list[tuple[str, ...]]
) -> None:
    change = foreign({"status": status, "amount": 1})[shape]
    assert names(change) == expected
    assert [notice.fact_at for notice in notices(change)] == [WALL] * len(expected)


def test_a_fact_has_one_key_whoever_wrote_it_and_in_whatever_shape() -> None:
    by_us = notices(update({"history.4": ours(5)}))
    by_others = [notice for change in foreign({"status": "completed"}) for notice in notices(change)]
    assert {notice.key("inapp", "user") for notice in [*by_us, *by_others]} == {
        "order:ord1:payment_completed:inapp:user"
    }


def test_a_replaced_order_tells_its_history_again_under_the_same_keys() -> None:
    history = [ours(1, "payment_failed", ref="pay_A"), ours(2)]
    change = whole("replace", {"payment": {"status": "completed"}, "history": history})
    assert names(change) == [("payment_failed", "pay_A"), ("payment_completed",)]


OUR_REFUND = {"refundId": "rfnd_1", "amount": 300, "status": "processed", "statuses": ["created", "processed"]}
OUR_FAILURE = {"paymentId": "pay_1", "statuses": ["failed"]}
REFUNDED = {"status": "refunded", "amountPaid": 300, "amountRefunded": 300, "refunds": [OUR_REFUND]}
IN_PART = {"status": "partially_refunded", "amountPaid": 900, "amountRefunded": 300, "refunds": [OUR_REFUND, "by hand"]}
BY_THE_SHOP: list[dict[str, Any]] = [
    REFUNDED | {"amountPaid": 900, "amountRefunded": 900},
    REFUNDED | {"amountRefunded": 0},
    REFUNDED | {"amountPaid": None},
    REFUNDED | {"refunds": [OUR_REFUND | {"status": "failed"}]},
    REFUNDED | {"refunds": [{"amount": 300, "status": "processed"}]},
    IN_PART | {"refunds": []},
    IN_PART | {"amountRefunded": 0},
]


@pytest.mark.parametrize("shape", [1, 2, 3], ids=["sub-document", "replace", "born"])
@pytest.mark.parametrize(
    ("payment", "expected"),
    [
        (REFUNDED, []),
        (IN_PART, []),
        ({"status": "failed", "attempts": [OUR_FAILURE]}, []),
        ({"status": "completed", "attempts": [OUR_FAILURE]}, [("payment_completed",)]),
        *((payment, [("payment_refunded",)]) for payment in BY_THE_SHOP),
        ({"status": "failed", "attempts": [OUR_FAILURE | {"statuses": ["captured"]}]}, [("payment_failed", "-")]),
        ({"status": "failed", "attempts": "none"}, [("payment_failed", "-")]),
    ],
)
def test_a_status_that_the_shop_had_from_us_and_saved_with_the_whole_payment_is_not_told_again(
    shape: int, payment: dict[str, Any], expected: list[tuple[str, ...]]
) -> None:
    assert names(foreign(payment)[shape]) == expected


@pytest.mark.parametrize("operation", ["replace", "insert"])
def test_a_status_that_our_history_does_not_know_was_written_by_the_merchant(operation: str) -> None:
    history = [ours(1, "payment_failed", ref="pay_A", to="failed")]
    paid_in_cash = whole(operation, {"payment": {"status": "completed"}, "history": history})
    assert names(paid_in_cash) == [("payment_failed", "pay_A"), ("payment_completed",)]
    same = whole(operation, {"payment": {"status": "failed"}, "history": history})
    assert names(same) == [("payment_failed", "pay_A")]


def test_the_refs_of_a_fact_are_part_of_its_key() -> None:
    facts = [
        ours(1, "refund_processed", ref="rfnd_1"),
        ours(2, "refund_failed", ref="rfnd_2"),
        ours(3, "payment_review", ref="pay_1", reason="amount_mismatch"),
        ours(4, "dispute_opened", ref="disp_1"),
        ours(5, "dispute_closed", ref="disp_1"),
    ]
    keys = [notice.key("email", "admin") for notice in notices(update({"history": facts}))]
    assert keys == [
        "order:ord1:refund_processed:rfnd_1:email:admin",
        "order:ord1:refund_failed:rfnd_2:email:admin",
        "order:ord1:payment_review:amount_mismatch:pay_1:email:admin",
        "order:ord1:dispute_opened:disp_1:email:admin",
        "order:ord1:dispute_closed:disp_1:email:admin",
    ]


def test_a_separator_inside_a_ref_cannot_make_two_facts_one() -> None:
    def key(*refs: str) -> str:
        return Notice("payment_review", "ord1", refs, AT).key("email", "admin")

    assert len({key("a", "b:c"), key("a:b", "c"), key("a%3Ab", "c")}) == 3


IDS: list[Any] = [
    "ord1",
    "5",
    "int~5",
    "str~int~5",
    "5f0000000000000000000001",
    "oid~5f0000000000000000000001",
    "ejson~null",
    "null",
    "true",
    "a:b%",
    "a%3Ab%25",
    "a%3Ab%",
    "",
    ObjectId("5f0000000000000000000001"),
    5,
    -5,
    1,
    1.5,
    True,
    False,
    None,
    {"shop": 1, "number": 2},
    {"number": 2, "shop": 1},
    {"shop": "1", "number": 2},
    Decimal128("5.5"),
    Binary(b"\x05", 0),
    AT,
]


def test_orders_whose_ids_differ_never_share_a_key() -> None:
    for one, other in itertools.combinations(IDS, 2):
        assert encoded(one) != encoded(other), (one, other)
    keys = [Notice("payment_completed", one, (), AT).key("email", "customer") for one in IDS]
    assert all(key.count(":") == 4 for key in keys)


def test_a_string_id_stands_in_the_key_as_it_is() -> None:
    assert encoded("TEA-2026/1 ü") == "TEA-2026/1 ü"
    assert encoded("a:b%") == "a%3Ab%25"
    assert encoded(ObjectId("5f0000000000000000000001")) == "oid~5f0000000000000000000001"
    assert encoded("oid~5f0000000000000000000001") == "str~oid~5f0000000000000000000001"


def test_the_width_of_an_integer_id_is_no_difference() -> None:
    assert encoded(5) == encoded(Int64(5)) == "int~5"


@pytest.mark.parametrize("operation", ["delete", "drop", "rename", "dropDatabase", "invalidate", "modify", "new_kind"])
def test_what_is_no_write_of_an_order_tells_nothing(operation: str) -> None:
    assert notices(event(operation, fullDocument={"payment": {"status": "completed"}, "history": [ours()]})) == []


POISON: list[Any] = [
    {},
    {"operationType": "update"},
    event("update"),
    event("update", updateDescription=None),
    event("update", updateDescription={}),
    event("update", updateDescription={"updatedFields": None}),
    {**event("insert"), "documentKey": None},
    {key: value for key, value in whole("insert", {"history": [ours()]}).items() if key != "documentKey"},
    whole("insert", {}),
    event("insert", fullDocument=None),
    event("replace"),
    whole("replace", {"payment": "completed"}),
    whole("replace", {"payment": ["completed"], "history": {"0": ours()}}),
    update({"payment": None}),
    update({"payment": "completed"}),
    update({"payment": [{"status": "completed"}]}),
    update({"history": "paid"}),
    update({"history": {"0": ours()}}),
    update({"history": None}),
    update({"history.0": [ours()]}),
    update({"history.0": {**ours(), "fact": 7}}),
    update({"history.0": {**ours(), "fact": ["payment_completed"]}}),
    update({"history.0": {**ours(), "seq": "1"}}),
    update({"history.0": {**ours(), "cause": "webhook"}}),
    update({"history.0": ours(1, "some_new_fact")}),
    update({"history.0": {key: value for key, value in ours(1, "refund_processed").items() if key != "ref"}}),
    update({"history.0": ours(1, "payment_review")}),
    update({"history.-1": ours(), "history.": ours(), "history.1.2": ours()}),
    update({"payment.status.x": "completed", "paymentXstatus": "completed"}),
]


@pytest.mark.parametrize("change", POISON)
def test_nonsense_raises_or_tells_nothing(change: dict[str, Any]) -> None:
    with contextlib.suppress(KeyError, TypeError, AttributeError):
        assert notices(change) == []


def test_a_fact_without_its_time_took_place_when_it_was_committed() -> None:
    (notice,) = notices(update({"history.0": ours(at="yesterday")}))
    assert notice.fact_at == WALL
    (naive,) = notices(update({"history.0": ours(at=AT.replace(tzinfo=None))}))
    assert naive.fact_at == AT


def test_a_server_that_sends_no_wall_time_still_says_when() -> None:
    change = {key: value for key, value in update({}).items() if key != "wallTime"}
    assert moment(change) == datetime.fromtimestamp(1_790_000_000, UTC)
    assert moment({**change, "wallTime": WALL.replace(tzinfo=None)}) == WALL


@pytest.mark.parametrize(
    "change",
    [
        update({}, removed=("history",)),
        update({}, removed=("payment",)),
        update({}, removed=("payment.attempts",)),
        update({"history": [ours(2)]}),
        update({"history": [ours(1), ours(3)]}),
        update({"history": None}),
        event("update", updateDescription={"updatedFields": {}, "truncatedArrays": [{"field": "history"}]}),
        event("update", updateDescription={"updatedFields": {}, "truncatedArrays": [{"field": "payment.attempts"}]}),
    ],
)
def test_a_history_that_lost_entries_is_noticed(change: dict[str, Any]) -> None:
    assert shortened(change)


@pytest.mark.parametrize(
    "change",
    [
        update({"history": [ours(1)]}),
        update({"history": [ours(1), ours(2)]}),
        update({"history": []}),
        update({"history": [MERCHANTS_ENTRY, ours(2)]}),
        update({"history.1": ours(2)}),
        update({"payment.status": "failed"}, removed=("payment.note", "items")),
        event("update", updateDescription={"updatedFields": {}, "truncatedArrays": [{"field": "items"}]}),
        whole("replace", {"payment": {}}),
        event("delete"),
    ],
)
def test_what_only_adds_to_a_history_is_no_loss(change: dict[str, Any]) -> None:
    assert not shortened(change)
