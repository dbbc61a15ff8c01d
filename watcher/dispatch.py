"""Send what the outbox owes. One dispatcher per channel, so a slow provider delays nobody else; every instance sends.

A row is claimed by the write that makes it `sending`, with the rendered message frozen in it. What cannot be known (a
read timeout, a crash while sending) becomes `unknown` and follows the channel's policy: a keyed channel sends again
under the same key; mail is sent again too, and the row says that it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from pymongo.errors import PyMongoError

from models.alerts import raise_alert
from models.clock import ServerClock
from models.crash import crash_point
from models.database import Database, RawDocument
from models.duties import cancelled
from models.errors import LeaseLost, Unavailable
from models.leases import Claim
from models.settings import NotificationSettings
from models.states import PAID, RowStatus, order_status
from models.telemetry import Telemetry
from watcher.channels import Channel, Message, NoAddress, NotSent, Rejected, Sent, Unknown
from watcher.render import Renderer
from watcher.rows import NotificationRows, retry_delay

MARGIN = 5.0
"""Seconds that a row's lease outlives its channel's timeout."""
GRACE = 2.0
"""Seconds beyond its own timeout in which a channel itself says how far the message came; then nobody can know."""


class Dispatcher:
    """Sends one channel's due rows; `run_once` claims as many as there are free places and does not wait for them."""

    def __init__(
        self,
        db: Database,
        rows: NotificationRows,
        clock: ServerClock,
        channel: Channel,
        renderer: Renderer,
        settings: NotificationSettings,
        telemetry: Telemetry,
    ) -> None:
        self._db, self._rows, self._clock, self._channel = db, rows, clock, channel
        self._renderer, self._settings, self._telemetry = renderer, settings, telemetry
        self._sending: dict[object, asyncio.Task[None]] = {}
        self.wake = asyncio.Event()

    @property
    def channel(self) -> str:
        """The channel's name."""
        return self._channel.name

    async def run_once(self) -> dict[str, int]:
        """Start sending what is due. Wakes itself again when a place becomes free."""
        free = self._channel.concurrency - len(self._sending)
        if free <= 0:
            return {}
        due = await self._rows.due(self._channel.name, free, self._sending)
        for row in due:
            task = asyncio.create_task(self._handle(row))
            self._sending[row["_id"]] = task
            task.add_done_callback(partial(self._done, row["_id"]))
        return {"started": len(due)}

    async def drain(self, seconds: float) -> None:
        """Let sends that are under way end; one that does not is cut off and its row becomes `unknown`."""
        if self._sending:
            _, unfinished = await asyncio.wait(self._sending.values(), timeout=seconds)
            await cancelled(*unfinished)

    def _done(self, row_id: object, _task: asyncio.Task[None]) -> None:
        self._sending.pop(row_id, None)
        self.wake.set()

    async def _handle(self, row: RawDocument) -> None:
        """One row, from due to its next status; never raises."""
        try:
            outcome = await self._attempt(row)
        except LeaseLost:
            outcome = "lease_lost"
        except (PyMongoError, Unavailable) as error:
            outcome = "unavailable"
            self._telemetry.emit("notification.not_recorded", key=row["key"], error=type(error).__name__)
        except Exception as error:  # noqa: BLE001 - one odd row must not stop the channel
            outcome = await self._close(row, RowStatus.DEAD, f"unexpected_{type(error).__name__}")
        if outcome:
            self._telemetry.emit(
                "notification.handled",
                key=row["key"],
                channel=row["channel"],
                notice=row["notice"],
                outcome=outcome,
                attempts=row["attempts"] + 1,
                age=max(0.0, (self._clock.now() - row["factAt"]).total_seconds()),
            )

    async def _attempt(self, row: RawDocument) -> str:
        """Decide whether it is still worth sending, claim, send, record; the outcome, empty when another was faster."""
        order = await self._db.orders.find_one({"_id": row["orderId"]})
        if verdict := not_worth_sending(row, order, self._clock.now(), self._settings):
            return await self._close(row, *verdict)
        try:
            message = self._message(row, order or {})
        except NoAddress as missing:
            return await self._close(row, RowStatus.SKIPPED, missing.reason)
        claim = Claim.of(self._clock, self._channel.timeout + MARGIN)
        if not await self._rows.claim(row, claim, message.to_document()):
            return ""
        crash_point("watcher.sending_written")
        return await self._send(row, claim, message)

    def _message(self, row: RawDocument, order: Mapping[str, Any]) -> Message:
        """The frozen message of an earlier try, else a fresh one."""
        if row.get("message"):
            return Message.from_document(row["message"])
        notice, channel, to = row["notice"], row["channel"], row["to"]
        address = self._channel.address(order, to)
        ref = ":".join(row["refs"]) or None
        words = self._renderer.render(notice, ref, channel, to, order, row["factAt"])
        data = {"order_id": row["orderId"], "notice": notice, "role": to, "user_id": order.get("userId")}
        return Message(address, words.subject, words.text, words.html, data)

    async def _send(self, row: RawDocument, claim: Claim, message: Message) -> str:
        row_id = row["_id"]
        try:
            async with asyncio.timeout(self._channel.timeout + GRACE):
                sent = await self._channel.send(row["key"], message)
        except asyncio.CancelledError:
            await self._rows.unknown(row_id, claim, "stopped", 0.0)
            raise
        except TimeoutError:
            return await self._unknown(row, claim, "timeout")
        except Unknown as error:
            return await self._unknown(row, claim, error.reason)
        except NotSent as error:
            return await self._again(row, claim, error)
        except Rejected as error:
            return await self._give_up(row, claim, error.reason)
        except Exception as error:  # noqa: BLE001 - a fault of the channel must not leave the row without an end
            return await self._unknown(row, claim, f"unexpected_{type(error).__name__}")
        return await self._record(row_id, claim, sent)

    async def _record(self, row_id: object, claim: Claim, sent: Sent) -> str:
        crash_point("watcher.provider_accepted")
        await self._rows.sent(row_id, claim, sent.provider_message_id)
        crash_point("watcher.sent")
        return RowStatus.SENT

    async def _unknown(self, row: RawDocument, claim: Claim, reason: str) -> str:
        attempts = row["attempts"] + 1
        if attempts >= self._settings.max_attempts:
            return await self._give_up(row, claim, reason, maybe_sent=True)
        await self._rows.unknown(row["_id"], claim, reason, retry_delay(attempts))
        return RowStatus.UNKNOWN

    async def _again(self, row: RawDocument, claim: Claim, error: NotSent) -> str:
        attempts = row["attempts"] + 1
        if attempts >= self._settings.max_attempts:
            return await self._give_up(row, claim, error.reason)
        delay = max(retry_delay(attempts), error.retry_after or 0.0)
        await self._rows.retry(row["_id"], claim, error.reason, delay)
        return RowStatus.RETRY

    async def _give_up(self, row: RawDocument, claim: Claim, reason: str, *, maybe_sent: bool = False) -> str:
        await self._alert(row, reason)
        await self._rows.dead(row["_id"], claim, reason, maybe_sent=maybe_sent)
        return RowStatus.DEAD

    async def _close(self, row: RawDocument, status: RowStatus, reason: str) -> str:
        if status is RowStatus.DEAD:
            await self._alert(row, reason)
        return status if await self._rows.close(row, status, reason) else ""

    async def _alert(self, row: RawDocument, reason: str) -> None:
        now = self._clock.now()
        await raise_alert(self._db, self._telemetry, "notification_dead", row["key"], now, reason)


class SendingReaper:
    """Marks rows whose sender died, so that the channel's policy decides about them."""

    def __init__(self, rows: NotificationRows) -> None:
        self._rows = rows

    async def run_once(self) -> dict[str, int]:
        """How many rows became `unknown`."""
        return {"abandoned": await self._rows.abandon_dead()}


def not_worth_sending(
    row: Mapping[str, Any],
    order: Mapping[str, Any] | None,
    now: datetime,
    settings: NotificationSettings,
) -> tuple[RowStatus, str] | None:
    """Why a notice is not sent any more (status and reason), judged at the moment of sending; None when it is."""
    age = now - row["factAt"]
    if age > timedelta(seconds=settings.expire_after):
        return RowStatus.EXPIRED, "too_old"
    if order is None:
        return RowStatus.SKIPPED, "order_deleted"
    if row["notice"] != "payment_failed":
        return None
    payment = order.get("payment")
    if isinstance(payment, dict) and order_status(payment.get("status")) in PAID:
        return RowStatus.SUPPRESSED, "paid_meanwhile"
    if age > timedelta(seconds=settings.failed_stale_after):
        return RowStatus.SUPPRESSED, "stale"
    return None
