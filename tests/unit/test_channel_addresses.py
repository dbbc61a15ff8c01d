"""Whom each channel reaches, which channels there are, and what the in-app channel stores."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from bson import ObjectId
from bson.errors import InvalidDocument
from pymongo.errors import (
    AutoReconnect,
    DuplicateKeyError,
    ExecutionTimeout,
    OperationFailure,
    ServerSelectionTimeoutError,
    WriteConcernError,
)

from models.errors import SettingsError
from models.settings import Settings
from watcher.channels import Message, NoAddress, NotSent, Rejected, SendError, Sent, Unknown
from watcher.channels.email import EmailChannel
from watcher.channels.inapp import InAppChannel
from watcher.channels.registry import CHANNELS, channels, unconfigured

NOBODY: Any = SimpleNamespace(notifications=None)


def settings(**sections: Any) -> Settings:
    mail = {"host": "127.0.0.1", "from": "shop@example.com"}
    given: dict[str, Any] = {"mongodb": {"uri": "mongodb://127.0.0.1:1"}, "email": mail, **sections}
    return Settings(**given, _env_file=None)


def email(**notifications: Any) -> EmailChannel:
    return EmailChannel(settings(notifications=notifications))


def to(address: object) -> dict[str, Any]:
    return {"shippingAddress": {"email": address}}


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("priya@example.com", "priya@example.com"),
        (" priya+tea@example.com ", "priya+tea@example.com"),
        ("Priya@EXAMPLE.com", "Priya@example.com"),
        ("priya@bücher.example", "priya@xn--bcher-kva.example"),
        ("priya@shop.test", "priya@shop.test"),
    ],
)
@pytest.mark.parametrize("recipient", ["customer", "user"])
def test_a_customers_mail_address_comes_from_the_shipping_address(given: str, address: str, recipient: str) -> None:
    assert email().address(to(given), recipient) == address


@pytest.mark.parametrize(
    "address",
    [
        "a@example.com,b@example.com",
        "a@example.com b@example.com",
        "a@example.com;b@example.com",
        "a@example.com\nBcc: b@example.com",
        "a@example.com\r\n",
        "\na@example.com",
        "Priya <a@example.com>",
        '"a b"@example.com',
        "garbage",
        "a@",
        "@example.com",
        "a@localhost",
        "a@[127.0.0.1]",
        "प्रिया@example.com",
        "a" * 300 + "@example.com",
        "a@" + "b" * 10_000 + ".com",
        "a@example.com\x00",
        7,
        True,
        ["a@example.com"],
        {"$gt": ""},
        b"a@example.com",
    ],
)
def test_what_is_not_one_plain_mail_address_is_none(address: object) -> None:
    with pytest.raises(NoAddress) as caught:
        email().address(to(address), "customer")
    assert caught.value.reason == str(caught.value) == "bad_email"


@pytest.mark.parametrize(
    "order",
    [
        {},
        {"shippingAddress": None},
        {"shippingAddress": "x"},
        {"shippingAddress": []},
        {"shippingAddress": {}},
        to(None),
        to(""),
        to("  "),
    ],
)
def test_an_order_without_a_mail_address_reaches_nobody(order: dict[str, Any]) -> None:
    with pytest.raises(NoAddress, match="no_email"):
        email().address(order, "customer")


def test_the_shops_own_mail_goes_to_the_admin_address() -> None:
    assert email(admin_email="ops@example.com").address(to("priya@example.com"), "admin") == "ops@example.com"
    with pytest.raises(NoAddress, match="no_admin_email"):
        email().address(to("priya@example.com"), "admin")
    with pytest.raises(NoAddress, match="bad_email"):
        email(admin_email="a@example.com, b@example.com").address({}, "admin")


@pytest.mark.parametrize(
    ("user", "address"),
    [
        ("u1", "u1"),
        (7, "7"),
        (ObjectId("65a000000000000000000002"), "65a000000000000000000002"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    ],
)
@pytest.mark.parametrize("recipient", ["user", "customer"])
def test_an_in_app_message_goes_to_the_orders_user(user: object, address: str, recipient: str) -> None:
    assert InAppChannel(NOBODY).address({"userId": user}, recipient) == address


@pytest.mark.parametrize(
    "order", [{}, {"userId": None}, {"userId": ""}, {"userId": True}, {"userId": []}, {"userId": {"a": 1}}]
)
def test_an_order_without_a_user_gets_no_in_app_message(order: dict[str, Any]) -> None:
    with pytest.raises(NoAddress, match="no_user_id"):
        InAppChannel(NOBODY).address(order, "user")
    assert InAppChannel(NOBODY).address(order, "admin") == "admin"


def test_a_message_survives_its_row_and_shows_nothing_in_logs() -> None:
    data = {"order_id": ObjectId("65a000000000000000000002"), "notice": "payment_failed"}
    message = Message(address="priya@example.com", subject="s", text="t", html=None, data=data)
    assert Message.from_document(message.to_document()) == message
    assert repr(message) == "Message()"
    with pytest.raises(FrozenInstanceError):
        message.text = "other"  # type: ignore[misc]


def test_the_registry_builds_what_is_configured_and_says_why_the_rest_is_not() -> None:
    assert set(channels(settings(), NOBODY)) == {"email", "inapp"}
    assert set(CHANNELS) == {"email", "inapp", "whatsapp", "sms", "webhook", "apprise"}
    without = settings(email={})
    assert set(channels(without, NOBODY)) == {"inapp"}
    assert unconfigured(without)["email"] == "PAYLATCH_EMAIL__HOST is not set, so no mail is sent"
    assert set(unconfigured(without)) == set(CHANNELS) - {"inapp"}
    with pytest.raises(SettingsError, match="PAYLATCH_EMAIL__FROM"):
        channels(settings(email={"host": "127.0.0.1"}), NOBODY)


def test_every_channel_says_its_own_name_and_limits() -> None:
    for name, channel in channels(
        settings(email={"host": "h", "from": "a@example.com", "concurrency": 3}), NOBODY
    ).items():
        assert channel.name == name
        assert 0 < channel.timeout <= 60
        assert channel.concurrency == (3 if name == "email" else 8)
        assert channel.keyed == (name == "inapp")


class Notifications:
    """Stands for the collection: keeps what is upserted, or fails as told."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.documents: dict[str, dict[str, Any]] = {}
        self._failure = failure

    async def update_one(self, query: dict[str, Any], update: dict[str, Any], *, upsert: bool) -> None:
        if self._failure:
            raise self._failure
        assert upsert
        self.documents.setdefault(query["_id"], update["$setOnInsert"])


def over(notifications: Notifications) -> InAppChannel:
    stores: Any = SimpleNamespace(notifications=notifications)
    return InAppChannel(stores)


MESSAGE = Message(
    "u1", "Title", "Body", data={"order_id": 7, "notice": "payment_completed", "role": "user", "user_id": 1}
)


@pytest.mark.asyncio
async def test_an_in_app_message_is_stored_once_per_key() -> None:
    notifications = Notifications()
    async with over(notifications) as channel:
        assert await channel.send("k", MESSAGE) == await channel.send("k", MESSAGE) == Sent("k")
    (document,) = notifications.documents.values()
    created, updated = document.pop("createdAt"), document.pop("updatedAt")
    assert created == updated
    assert created.tzinfo is not None
    assert document == {
        "type": "payment_completed",
        "role": "user",
        "userId": 1,
        "title": "Title",
        "body": "Body",
        "orderId": 7,
        "readAt": None,
    }


@pytest.mark.asyncio
async def test_an_in_app_message_for_admins_belongs_to_no_user() -> None:
    notifications = Notifications()
    await over(notifications).send("k", Message("admin", "T", "B", data={"role": "admin", "user_id": 1}))
    assert (notifications.documents["k"]["role"], notifications.documents["k"]["userId"]) == ("admin", None)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (AutoReconnect("host"), Unknown("database_unreachable")),
        (ServerSelectionTimeoutError("host"), Unknown("database_unreachable")),
        (WriteConcernError("host", 64), Unknown("database_unreachable")),
        (ExecutionTimeout("host", 50), Unknown("database_timeout")),
        (OperationFailure("host", 13), NotSent("database_13")),
        (InvalidDocument("host"), Rejected("not_storable")),
    ],
)
async def test_a_database_error_says_whether_the_message_can_have_been_stored(
    failure: Exception, expected: SendError
) -> None:
    with pytest.raises(type(expected)) as caught:
        await over(Notifications(failure)).send("k", MESSAGE)
    assert caught.value.reason == expected.reason


@pytest.mark.asyncio
async def test_losing_the_race_for_a_key_is_success() -> None:
    assert await over(Notifications(DuplicateKeyError("k", 11000))).send("k", MESSAGE) == Sent("k")
