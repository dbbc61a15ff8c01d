"""Send what the outbox owes. One dispatcher per channel, so a slow provider delays nobody else; every instance sends.

A row is claimed by the write that makes it `sending`, with the rendered message frozen in it. What cannot be known (a
read timeout, a crash while sending) becomes `unknown` and follows the channel's policy: `resend` under the same key,
where the row says that it was, or `hold` until a person decides. What must wait (the channel's rate, its breaker, the
recipient's pace) waits as a due row, so that it uses up no attempt and no place.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Mapping
from datetime import timedelta
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
from models.states import RowStatus
from models.telemetry import Telemetry
from watcher import cap
from watcher.alerting import subject
from watcher.channels import Channel, Message, NoAddress, NotSent, Rejected, SendError, Sent, Unknown
from watcher.gate import Gate
from watcher.notices import ALERT
from watcher.render import Renderer
from watcher.rows import GAP_CAP, LONGEST_RETRY, NotificationRows, retry_delay
from watcher.worth import not_worth_sending

MARGIN = 5.0
"""Seconds that a row's lease outlives its channel's timeout."""
AT_HAND = 64
"""Due rows that one look into the queue brings."""
LATE_AFTER = 3
"""Tries after which somebody is told that a channel is not taking messages."""
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
        self._gate = Gate(channel.name, settings, telemetry)
        self._hold = settings.policy(channel.name, keyed=channel.keyed) == "hold"
        self._sending: dict[object, asyncio.Task[bool]] = {}
        self._at_hand: list[RawDocument] = []
        self._stopping = False
        self.wake = asyncio.Event()

    @property
    def channel(self) -> str:
        """The channel's name."""
        return self._channel.name

    async def run_once(self) -> dict[str, int]:
        """Start sending what is due. Wakes itself again when a place becomes free."""
        free = self._gate.room(self._channel.concurrency - len(self._sending))
        if free <= 0:
            return {}
        started = await self._next(free)
        for row in started:
            task = asyncio.create_task(self._handle(row))
            self._sending[row["_id"]] = task
            task.add_done_callback(partial(self._done, row["_id"]))
        return {"started": len(started)}

    async def _next(self, most: int) -> list[RawDocument]:
        """Rows to start with. A look into a long queue is dear, so some are kept at hand; a stale one fails its claim.

        In no order, so that several instances do not all take the same row at the same time.
        """
        if len(self._at_hand) < most:
            self._at_hand = await self._rows.due(self._channel.name, AT_HAND, self._sending)
            random.shuffle(self._at_hand)
        return [self._at_hand.pop() for _ in range(min(most, len(self._at_hand)))]

    async def drain(self, seconds: float) -> None:
        """Begin nothing more and let sends under way end; one that does not is cut off and its row is `unknown`."""
        self._stopping = True
        if self._sending:
            _, unfinished = await asyncio.wait(self._sending.values(), timeout=seconds)
            await cancelled(*unfinished)

    def _done(self, row_id: object, task: asyncio.Task[bool]) -> None:
        """A place is free. While the database refuses, the next round waits for its time instead of spinning."""
        self._sending.pop(row_id, None)
        if not task.cancelled() and task.result():
            self.wake.set()

    async def _handle(self, row: RawDocument) -> bool:
        """One row, from due to its next status; never raises. False when the database did not take the result."""
        try:
            outcome = await self._outcome(row)
        except LeaseLost:
            outcome = "lease_lost"
        except Exception as error:  # noqa: BLE001 - the row's lease or due time brings it back
            self._telemetry.emit("notification.not_recorded", key=row["key"], error=type(error).__name__)
            return False
        if outcome:
            self._telemetry.emit(
                "notification.handled",
                key=row["key"],
                channel=row["channel"],
                notice=row["notice"],
                outcome=outcome,
                attempts=row["attempts"] + 1,
                age=self._age(row),
            )
        return True

    def _age(self, row: RawDocument) -> float:
        """Seconds since the fact; 0 while the server's time is not known."""
        with contextlib.suppress(Unavailable):
            age: timedelta = self._clock.now() - row["factAt"]
            return max(0.0, age.total_seconds())
        return 0.0

    async def _outcome(self, row: RawDocument) -> str:
        """The attempt's outcome; one odd row must not stop the channel, so what cannot be rendered is dead."""
        try:
            return await self._attempt(row)
        except (LeaseLost, PyMongoError, Unavailable):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it would come again
            return await self._close(row, RowStatus.DEAD, f"unexpected_{type(error).__name__}")

    async def _attempt(self, row: RawDocument) -> str:
        """Decide whether it is still worth sending, then send it; the outcome, empty when it must wait."""
        order = await self._about(row)
        if verdict := not_worth_sending(row, order, self._clock.now(), self._settings):
            return await self._close(row, *verdict)
        if row["status"] == RowStatus.UNKNOWN and self._hold:
            return await self._close(row, RowStatus.HELD, row.get("reason") or "unknown")
        try:
            message = self._message(row, order or {})
        except NoAddress as missing:
            return await self._close(row, RowStatus.SKIPPED, missing.reason)
        if row.get("gap") and not row["attempts"] and not await cap.admit(self._db, row["_id"], self._settings.gap_cap):
            return await self._hold_gap()
        if seconds := self._gate.wait(row, message.address):
            await self._rows.postpone(row, seconds)
            return ""
        return await self._send(row, message)

    async def _about(self, row: RawDocument) -> RawDocument | None:
        """The order that the row tells of, or the alerts."""
        if row["notice"] == ALERT:
            return await subject(self._db, row["refs"][0])
        return await self._db.orders.find_one({"_id": row["orderId"]})

    def _message(self, row: RawDocument, order: Mapping[str, Any]) -> Message:
        """The frozen message of an earlier try, else a fresh one."""
        if row.get("message"):
            return Message.from_document(row["message"])
        notice, channel, to = row["notice"], row["channel"], row["to"]
        address = self._channel.address(order, to)
        ref = ":".join(row["refs"]) or None
        words = self._renderer.render(notice, ref, channel, to, order, row["factAt"])
        data = {"order_id": row["orderId"], "notice": notice, "role": to, "user_id": order.get("userId")}
        data["language"] = words.language
        return Message(address, words.subject, words.text, words.html, data)

    async def _send(self, row: RawDocument, message: Message) -> str:
        """Wait for the channel's rate, claim, hand over; empty when another was faster or the provider rests."""
        if not await self._gate.enter(row["_id"]):
            return ""
        try:
            if self._stopping:
                return ""
            claim = Claim.of(self._clock, self._channel.timeout + MARGIN)
            if not await self._rows.claim(row, claim, message.to_document()):
                return ""
            crash_point("watcher.sending_written")
            return await self._hand_over(row, claim, message)
        finally:
            self._gate.leave(row["_id"])

    async def _hand_over(self, row: RawDocument, claim: Claim, message: Message) -> str:
        try:
            async with asyncio.timeout(self._channel.timeout + GRACE):
                sent = await self._channel.send(row["key"], message)
        except asyncio.CancelledError:
            await self._rows.unknown(row["_id"], claim, "stopped", 0.0)
            raise
        except Rejected as error:
            self._gate.succeeded()
            return await self._give_up(row, claim, error.reason)
        except NotSent as error:
            await self._failed(row, error)
            return await self._again(row, claim, error)
        except Exception as error:  # noqa: BLE001 - a fault of the channel must not leave the row without an end
            unknown = _as_unknown(error)
            await self._failed(row, unknown)
            return await self._unknown(row, claim, unknown.reason)
        self._gate.succeeded()
        return await self._record(row["_id"], claim, sent)

    async def _failed(self, row: RawDocument, error: SendError) -> None:
        """Somebody is told when the provider is left alone from now on."""
        if self._gate.failed(row["_id"], error):
            await self._alert("notifications_delayed", f"{row['channel']}:breaker_open", error.reason)

    async def _record(self, row_id: object, claim: Claim, sent: Sent) -> str:
        crash_point("watcher.provider_accepted")
        await self._rows.sent(row_id, claim, sent.provider_message_id)
        crash_point("watcher.sent")
        return RowStatus.SENT

    async def _unknown(self, row: RawDocument, claim: Claim, reason: str) -> str:
        attempts = row["attempts"] + 1
        if self._hold:
            await self._alert("notification_held", row["key"], reason)
            await self._rows.held(row["_id"], claim, reason)
            return RowStatus.HELD
        if attempts >= self._settings.max_attempts:
            return await self._give_up(row, claim, reason, maybe_sent=True)
        await self._rows.unknown(row["_id"], claim, reason, retry_delay(attempts))
        return RowStatus.UNKNOWN

    async def _again(self, row: RawDocument, claim: Claim, error: NotSent) -> str:
        """Certainly not sent: tried until the notice itself is too old, however long the receiver is away."""
        attempts, wish = row["attempts"] + 1, error.retry_after or 0.0
        if attempts >= LATE_AFTER or wish > LONGEST_RETRY:
            await self._alert("notifications_delayed", f"{row['channel']}:{error.reason}", f"attempt {attempts}")
        await self._rows.retry(row["_id"], claim, error.reason, retry_delay(attempts, wish))
        return RowStatus.RETRY

    async def _give_up(self, row: RawDocument, claim: Claim, reason: str, *, maybe_sent: bool = False) -> str:
        await self._alert("notification_dead", row["key"], reason)
        await self._rows.dead(row["_id"], claim, reason, maybe_sent=maybe_sent)
        return RowStatus.DEAD

    async def _close(self, row: RawDocument, status: RowStatus, reason: str) -> str:
        if kind := _ALERTS.get(status):
            await self._alert(kind, row["key"], reason)
        return status if await self._rows.close(row, status, reason) else ""

    async def _hold_gap(self) -> str:
        """The cap is used up: every row of the gap without a place in it waits for an operator."""
        in_force = await cap.in_force(self._db)
        held = await self._rows.hold_gap(in_force["rows"]) if in_force else 0
        self._at_hand.clear()  # most of them are held now
        if held:
            await self._alert("notification_held", GAP_CAP, f"{held} messages found after a gap")
        if held and not await cap.in_force(self._db):  # it was lifted in this moment
            await self._rows.release_gap()
        return ""

    async def _alert(self, kind: str, ref: str, detail: str) -> None:
        if ref.startswith(f"{ALERT}:"):
            return  # a message about alerts that fails must not make the next one
        await raise_alert(self._db, self._telemetry, kind, ref, self._clock.now(), detail)


_ALERTS = {RowStatus.DEAD: "notification_dead", RowStatus.HELD: "notification_held"}


def _as_unknown(error: Exception) -> Unknown:
    """Whatever else a send ends with, nobody knows whether the message went out."""
    if isinstance(error, Unknown):
        return error
    return Unknown("timeout" if isinstance(error, TimeoutError) else f"unexpected_{type(error).__name__}")


class SendingReaper:
    """Marks rows whose sender died, so that the channel's policy decides about them."""

    def __init__(self, rows: NotificationRows) -> None:
        self._rows = rows

    async def run_once(self) -> dict[str, int]:
        """How many rows became `unknown`."""
        return {"abandoned": await self._rows.abandon_dead()}
