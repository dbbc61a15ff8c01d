"""Alerts by Apprise, to services that are receivers of our own."""

from __future__ import annotations

from typing import Any

import pytest

from models.errors import SettingsError
from models.settings import Settings
from tests.support.receiver import HANG, Receiver, receiver, reply
from watcher.channels import Message, NoAddress, NotSent, Sent, Unknown
from watcher.channels.apprise import AppriseChannel

# Apprise 2.3 imports it on Python before 3.13, inside a try.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")

MESSAGE = Message("admin", "Review needed: order A-1", "Money has arrived.\nWhat to do: look.", data={})


def channel(*boxes: Receiver, **own: Any) -> AppriseChannel:
    urls = [f"json://127.0.0.1:{box.port}/" for box in boxes]
    sections: dict[str, Any] = {"mongodb": {"uri": "mongodb://127.0.0.1:1"}, "apprise": {"urls": urls, **own}}
    return AppriseChannel(Settings(**sections, _env_file=None))


@pytest.mark.asyncio
async def test_every_service_gets_title_and_text() -> None:
    async with receiver() as slack, receiver() as telegram, channel(slack, telegram) as alerts:
        assert await alerts.send("key", MESSAGE) == Sent("key")
    for box in (slack, telegram):
        (request,) = box.requests
        assert request.document["title"] == MESSAGE.subject
        assert request.document["message"] == MESSAGE.text


@pytest.mark.asyncio
async def test_when_one_service_of_two_refuses_nobody_can_say_that_nothing_was_sent() -> None:
    async with receiver() as fine, receiver(reply(500)) as broken, channel(fine, broken) as alerts:
        with pytest.raises(Unknown, match="refused_or_failed"):
            await alerts.send("key", MESSAGE)


@pytest.mark.asyncio
async def test_an_alert_that_gets_no_thread_because_others_hang_was_certainly_not_sent() -> None:
    async with receiver(HANG) as box, channel(box, concurrency=1, timeout=0.3) as alerts:
        with pytest.raises(Unknown, match="timeout"):
            await alerts.send("1", MESSAGE)
        with pytest.raises(NotSent, match="no_thread"):
            await alerts.send("2", MESSAGE)
        assert len(box.requests) == 1


@pytest.mark.asyncio
async def test_a_closed_channel_sends_nothing() -> None:
    async with receiver() as box:
        async with channel(box) as alerts:
            pass
        with pytest.raises(NotSent, match="not_open"):
            await alerts.send("key", MESSAGE)
    assert box.requests == []


def test_only_the_shops_own_people_are_told() -> None:
    alerts = channel(Receiver(port=1))
    assert alerts.address({}, "admin") == "admin"
    for recipient in ("customer", "user"):
        with pytest.raises(NoAddress, match="admin_only"):
            alerts.address({"shippingAddress": {"email": "priya@example.com"}}, recipient)


def test_an_address_that_apprise_does_not_know_is_named_by_its_place_only() -> None:
    with pytest.raises(SettingsError, match=r"PAYLATCH_APPRISE__URLS: number 2 is no address") as refused:
        channel(urls=["json://127.0.0.1/", "pigeon://secret0token"])
    assert "secret0token" not in str(refused.value)
