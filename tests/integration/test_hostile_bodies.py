"""Signed bodies of every odd kind: answered 200, kept byte for byte, and no event suffers from its neighbours."""

from __future__ import annotations

import asyncio
import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from models.database import Database
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.endpoint import Endpoint, endpoint
from tests.support.wait import eventually

FINAL_OR_PARKED = ("completed", "ignored", "dead", "parked")
SAMPLES = Path(__file__).resolve().parents[3] / "shared" / "razorpay-samples"

UNUSABLE: dict[str, bytes] = {
    "empty": b"",
    "one space": b" ",
    "text": b"hello",
    "html": b"<html><body>502</body></html>",
    "form": b"event=payment.captured&amount=49900",
    "cut off": sample.encode(sample.captured(1))[:-1],
    "twice": sample.encode(sample.captured(1)) * 2,
    "bytes": bytes(range(256)),
    "invalid UTF-8": b'{"event":"payment.captured\xff"}',
    "array": b"[]",
    "array of an event": b"[" + sample.encode(sample.captured(1)) + b"]",
    "string": b'"payment.captured"',
    "number": b"7",
    "5000-digit number": b"9" * 5000,
    "null": b"null",
    "true": b"true",
    "empty object": b"{}",
    "no event": b'{"payload":{}}',
    "event null": b'{"event":null}',
    "event empty": b'{"event":""}',
    "event a number": b'{"event":7}',
    "event a list": b'{"event":["payment.captured"]}',
    "captured without payload": b'{"event":"payment.captured"}',
    "captured with payload null": b'{"event":"payment.captured","payload":null}',
    "captured with payment a list": b'{"event":"payment.captured","payload":{"payment":[]}}',
    "captured with entity null": b'{"event":"order.paid","payload":{"payment":{"entity":null}}}',
    "captured with id a number": (
        b'{"event":"payment.captured","payload":{"payment":{"entity":{"id":7,"status":"captured"}}}}'
    ),
    "captured with status null": (
        b'{"event":"payment.captured","payload":{"payment":{"entity":{"id":"pay_1","status":null}}}}'
    ),
}

DEEP = 10_000
ODD_NOTES: dict[str, str] = {
    "empty list": "[]",
    "null": "null",
    "text": '"gift"',
    "number": "7",
    "list of lists": "[[[]]]",
    "values of all types": '{"a":1,"b":1.5,"c":null,"d":true,"e":[1],"f":{}}',
    "integer of 65 bits": '{"n":18446744073709551616}',
    "negative integer of 64 bits": '{"n":-9223372036854775809}',
    "5000-digit integer": '{"n":' + "9" * 5000 + "}",
    "float out of range": '{"n":1e999}',
    "NaN": '{"n":NaN}',
    "minus infinity": '{"n":-Infinity}',
    "NUL in a key": '{"a\\u0000b":1}',
    "NUL in a value": '{"a":"b\\u0000"}',
    "lone high surrogate": '{"a":"\\ud83d"}',
    "lone low surrogate": '{"a":"\\ude00 x"}',
    "lone surrogate in a key": '{"\\ud83d":1}',
    "dollar key": '{"$set":{"payment.status":"completed"}}',
    "dollar key at the top": '{"$where":"sleep(1000)"}',
    "dotted key": '{"payment.status":"completed"}',
    "empty key": '{"":1}',
    "the same key twice": '{"a":1,"a":2}',
    "_id": '{"_id":{"$oid":"0"},"__proto__":1}',
    "150 levels": "[" * 150 + "]" * 150,
    "emoji and right-to-left": '{"a":"🍵\u202e\u2028"}',
    "control characters": '{"a":"\\u001b[2J\\r\\n"}',
    "100 kB": '{"a":"' + "x" * 100_000 + '"}',
}


def with_note(number: int, note: str) -> bytes:
    """Order `number`'s capture, its notes written exactly like this."""
    raw = sample.encode(sample.captured(number, notes="THE NOTES"))
    assert raw.count(b'"THE NOTES"') == 1
    return raw.replace(b'"THE NOTES"', note.encode("utf-8", "surrogatepass"))


async def all_settled(shop: Endpoint) -> None:
    async def open_events() -> list[str] | str:
        left = await shop.db.events.find({"status": {"$nin": list(FINAL_OR_PARKED)}}, {"eventId": 1}).to_list()
        return "" if left else "none"

    assert await eventually(open_events, "every event is final or parked", 30)


async def assert_dead_with_alert(shop: Endpoint, event_id: str, raw: bytes) -> None:
    row = await shop.event(event_id)
    assert (row["status"], row["outcome"]["code"], row["eventType"]) == ("dead", "unparseable", "unparseable")
    assert row["rawBody"] == raw
    assert row["payload"] is None
    assert row["processedAt"] is not None
    alert = await shop.db.alerts.find_one({"_id": f"event_unparseable:{event_id}"})
    assert alert is not None
    assert alert["count"] >= 1


@pytest.mark.asyncio
async def test_signed_bodies_that_are_no_event_are_accepted_kept_dead_and_raise_an_alert(
    db: Database,
    make_settings: SettingsMaker,
) -> None:
    await db.orders.insert_one(sample.order(1))
    async with endpoint(make_settings()) as shop:
        for number, (name, raw) in enumerate(UNUSABLE.items()):
            status, said = await shop.post(raw, f"U{number}")
            assert (status, said) == (200, {"status": "accepted", "eventId": f"U{number}"}), name
            await assert_dead_with_alert(shop, f"U{number}", raw)
        for number, (name, raw) in enumerate(UNUSABLE.items()):
            assert (await shop.post(raw, f"U{number}"))[1]["status"] == "duplicate", name
        assert await db.alerts.count_documents({}) == len(UNUSABLE)
        assert (await shop.order(1)) == sample.order(1)
        alerts = [fields for name, fields in shop.emitted if name == "alert.raised"]
        assert {alert["kind"] for alert in alerts} == {"event_unparseable"}
        assert all(alert["todo"] for alert in alerts)


@pytest.mark.asyncio
async def test_an_unusable_body_under_a_known_id_is_kept_too_and_swallows_nothing(
    db: Database,
    make_settings: SettingsMaker,
) -> None:
    await db.orders.insert_one(sample.order(1))
    async with endpoint(make_settings()) as shop:
        await shop.post(b"first", "E1")
        assert (await shop.post(sample.captured(1), "E1"))[1]["status"] == "accepted"
        own_id = (await shop.post(b"second", "E1"))[1]["eventId"]
        row = await shop.event(own_id)
        assert (row["status"], row["flags"]) == ("dead", ["id_conflict"])

        async def completed() -> bool:
            return bool((await shop.order(1))["payment"]["status"] == "completed")

        assert await eventually(completed, "the order is completed")


@pytest.mark.asyncio
async def test_a_payment_with_an_odd_note_of_any_kind_still_completes_its_order(
    db: Database,
    make_settings: SettingsMaker,
) -> None:
    await db.orders.insert_many([sample.order(number) for number in range(len(ODD_NOTES))])
    async with endpoint(make_settings()) as shop:
        for number, (name, note) in enumerate(ODD_NOTES.items()):
            raw = with_note(number, note)
            status, said = await shop.post(raw, f"N{number}")
            assert (status, said["status"]) == (200, "accepted"), name
            row = await shop.settled(f"N{number}")
            assert (row["status"], row["outcome"]["code"], row.get("error")) == ("completed", "applied", None), name
            assert row["rawBody"] == raw, name
            assert (await shop.order(number))["payment"]["status"] == "completed", name
        assert await db.ledger.count_documents({}) == len(ODD_NOTES)
        assert await db.alerts.count_documents({}) == 0
    unstorable = {name for number, name in enumerate(ODD_NOTES) if (await row_of(db, number))["payload"] is None}
    assert {"150 levels", "NUL in a key", "lone high surrogate"} <= unstorable
    assert "empty list" not in unstorable


async def row_of(db: Database, number: int) -> dict[str, Any]:
    row = await db.events.find_one({"eventId": f"N{number}"})
    assert row is not None
    return row


@pytest.mark.asyncio
@pytest.mark.parametrize("opening", ["[", '{"a":'], ids=["lists", "objects"])
async def test_ten_thousand_levels_are_kept_and_end_dead_with_an_alert_or_understood(
    db: Database,
    make_settings: SettingsMaker,
    opening: str,
) -> None:
    """How deep a reader can go depends on the Python; that the event is never lost does not."""
    await db.orders.insert_one(sample.order(1))
    closing = "]" if opening == "[" else "}"
    raw = with_note(1, opening * DEEP + "1" + closing * DEEP)
    async with endpoint(make_settings()) as shop:
        assert await shop.post(raw, "E1") == (200, {"status": "accepted", "eventId": "E1"})
        row = await shop.settled("E1")
        assert row["rawBody"] == raw
        if row["status"] == "dead":
            await assert_dead_with_alert(shop, "E1", raw)
        else:
            assert row["outcome"]["code"] == "applied"


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything inside a JSON value."""
    inside: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in inside:
        yield (*path, key)
        yield from places(inner, (*path, key))


def replaced(body: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(body)
    parent = changed
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    return changed


def wrong_types() -> list[tuple[str, Any]]:
    """An `order.paid` with each of its values replaced by ones of other types; three kinds for each place in turn."""
    kinds: list[Any] = [
        None,
        7,
        -1,
        1.5,
        "x",
        "",
        True,
        [],
        {},
        [1],
        {"a": 1},
        "0" * 5000,
        2**70,
        "\ud83d",
        ["payment"],
    ]
    body = sample.order_paid(1)
    rng = random.Random(7)
    return [
        (".".join(map(str, path)), replaced(body, path, value))
        for path in places(body)
        for value in rng.sample(kinds, 3)
    ]


@pytest.mark.asyncio
async def test_a_value_of_a_wrong_type_anywhere_is_never_an_error(db: Database, make_settings: SettingsMaker) -> None:
    await db.orders.insert_one(sample.order(1))
    bodies = [(where, json.dumps(body).encode()) for where, body in wrong_types()]
    assert len(bodies) > 150
    async with endpoint(make_settings()) as shop:
        answers = await asyncio.gather(*(shop.post(raw, f"W{n}") for n, (_, raw) in enumerate(bodies)))
        refused = [(where, status) for (where, _), (status, _) in zip(bodies, answers, strict=True) if status != 200]
        assert refused == []
        await all_settled(shop)
        troubled = await db.events.find({"$or": [{"error": {"$ne": None}}, {"attempts": {"$gt": 1}}]}).to_list()
        assert [(bodies[int(row["eventId"][1:])][0], row.get("error")) for row in troubled] == []
        for row in await db.events.find({"status": "dead"}).to_list():
            assert await db.alerts.count_documents({"_id": f"event_unparseable:{row['eventId']}"}) == 1
        assert await db.ledger.count_documents({"_id": f"capture:{sample.payment_id(1)}"}) == 1


@pytest.mark.asyncio
async def test_odd_bodies_and_good_ones_that_come_together_do_not_harm_each_other(
    db: Database,
    make_settings: SettingsMaker,
) -> None:
    good = range(100, 130)
    odd = [*UNUSABLE.values(), *(with_note(number, note) for number, note in enumerate(ODD_NOTES.values()))][:45]
    await db.orders.insert_many([sample.order(number) for number in (*good, *range(len(ODD_NOTES)))])
    posts = [(f"G{number}", sample.encode(sample.captured(number))) for number in good]
    posts += [(f"O{number}", raw) for number, raw in enumerate(odd)]
    random.Random(3).shuffle(posts)
    async with endpoint(make_settings()) as shop:
        answers = await asyncio.gather(*(shop.post(raw, event_id) for event_id, raw in posts))
        assert [said["status"] for _, said in answers] == ["accepted"] * len(posts)
        assert [said["eventId"] for _, said in answers] == [event_id for event_id, _ in posts]
        await all_settled(shop)
        for event_id, raw in posts:
            row = await shop.event(event_id)
            assert row["rawBody"] == raw
            expected = "dead" if raw in UNUSABLE.values() else "completed"
            assert row["status"] == expected, event_id
        for number in good:
            assert (await shop.order(number))["payment"]["status"] == "completed"


def is_json(raw: bytes) -> bool:
    try:
        json.loads(raw)
    except ValueError:
        return False
    return True


@pytest.mark.asyncio
@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the provider's published bodies are not here")
async def test_every_published_body_is_accepted_and_ends_final_or_parked(
    db: Database,
    make_settings: SettingsMaker,
) -> None:
    found = sorted(path for path in SAMPLES.iterdir() if not path.name.startswith("_"))
    bodies = {path.read_bytes(): path.name for path in found}  # some were published twice
    assert len(bodies) > 100
    async with endpoint(make_settings()) as shop:
        answers = await asyncio.gather(*(shop.post(raw, f"S{number}") for number, raw in enumerate(bodies)))
        refused = [
            (name, status) for name, (status, said) in zip(bodies.values(), answers, strict=True) if status != 200
        ]
        assert refused == []
        assert [said["status"] for _, said in answers] == ["accepted"] * len(bodies)
        await all_settled(shop)
        rows = await db.events.find({}).to_list()
        assert {bytes(row["rawBody"]) for row in rows} == set(bodies)
        troubled = {bodies[bytes(row["rawBody"])]: row["error"] for row in rows if row.get("error")}
        assert troubled == {}
        dead = [bodies[bytes(row["rawBody"])] for row in rows if row["status"] == "dead"]
        assert set(dead) == {name for raw, name in bodies.items() if not is_json(raw)}
        assert await db.alerts.count_documents({"kind": "event_unparseable"}) == len(dead)
        assert await db.orders.count_documents({}) == 0
        assert await db.ledger.count_documents({}) == 0
