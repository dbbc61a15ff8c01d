"""Alerts to Slack, Telegram and whatever else the Apprise library knows, for the shop's own people.

Apprise says only whether all went well. Where it did not, some of the services may have taken the alert, and even the
one that failed may have, so every failure is `Unknown`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from apprise import Apprise, AppriseAsset, NotifyFormat, PersistentStoreMode

from models.errors import SettingsError
from watcher.channels import Message, NoAddress, NotSent, Sent, Stores, Unknown

if TYPE_CHECKING:
    from models.settings import Settings


class AppriseChannel:
    """Apprise; unkeyed, since no service of its refuses a second copy."""

    name = "apprise"
    keyed = False

    def __init__(self, settings: Settings) -> None:
        own = settings.apprise
        logging.getLogger("apprise").disabled = True  # it logs addresses and what services answered
        self._apprise = Apprise(asset=AppriseAsset(storage_mode=PersistentStoreMode.MEMORY, secure_logging=True))
        for place, url in enumerate(own.urls, start=1):
            if not self._apprise.add(url.get_secret_value()):
                raise SettingsError(
                    f"PAYLATCH_APPRISE__URLS: number {place} is no address that Apprise knows; see its documentation"
                )
        self._threads = ThreadPoolExecutor(own.concurrency, thread_name_prefix="apprise")
        self.concurrency = own.concurrency
        self.timeout = own.timeout

    @classmethod
    def unconfigured(cls, settings: Settings) -> str | None:
        """There must be somewhere to send to."""
        return None if settings.apprise.urls else "PAYLATCH_APPRISE__URLS is not set, so no alert is sent by Apprise"

    @classmethod
    def build(cls, settings: Settings, stores: Stores) -> Self:  # noqa: ARG003 - the interface's
        """The channel; raises `SettingsError` for an address that Apprise does not know."""
        return cls(settings)

    def address(self, order: Mapping[str, Any], recipient: str) -> str:  # noqa: ARG002 - the interface's
        """The shop's own people, whose addresses stay in the settings; raises `NoAddress` for anybody else."""
        if recipient != "admin":
            raise NoAddress("admin_only")
        return "admin"

    async def send(self, key: str, message: Message) -> Sent:
        """Tell every service; raises `SendError`."""
        try:
            sending = self._threads.submit(
                self._apprise.notify,
                body=message.text,
                title=message.subject,
                body_format=NotifyFormat.TEXT,  # what an order says is escaped where a service reads markup
            )
        except RuntimeError:  # the channel is closed
            raise NotSent("not_open") from None
        try:
            async with asyncio.timeout(self.timeout):
                told = await asyncio.wrap_future(sending)
        except TimeoutError:
            if sending.cancel():  # it never got a thread, since earlier ones hang
                raise NotSent("no_thread") from None
            raise Unknown("timeout") from None
        except Exception:  # noqa: BLE001 - a hundred plugins can raise whatever Python can
            raise Unknown("failed") from None
        if not told:
            raise Unknown("refused_or_failed")
        return Sent(key)

    async def __aenter__(self) -> Self:
        """Connections are opened when there is something to send."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Do not wait for a thread that hangs; its own time limits end it."""
        self._threads.shutdown(wait=False, cancel_futures=True)
