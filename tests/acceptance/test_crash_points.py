"""Kill -9 at every named point, over real processes: after a restart everything is as if nothing had happened."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from models.crash import POINTS
from models.database import Database
from scripts.stack import Daemon
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.books import Books, Reckoning
from tests.support.histories import Payment, Plan, Refund
from tests.support.mailbox import QUIET, mailbox
from tests.support.processes import Processes, processes
from tests.support.told import History
from tests.support.truth import truth_of
from tests.support.wait import eventually

pytestmark = [pytest.mark.acceptance, QUIET]

PROCESS = {"webhook": "serve", "watcher": "watch"}
ROUTES = {notice: {"customer": ["email"]} for notice in ("payment_completed", "payment_failed", "refund_processed")}
NOBODY_KNOWS = {"watcher.sending_written", "watcher.provider_accepted"}
"""Points after which nobody can know whether the mail went out."""
CAPTURED = Payment("A", sample.AMOUNT, 0, captured=True, captured_by=("payment.captured",))
HISTORIES = (
    History(Plan("checkout", (CAPTURED,)), 1),
    History(Plan("checkout", (CAPTURED,), (Refund("A", 1, 20_000, "processed"),)), 2),
    History(Plan("checkout", (Payment("A", sample.AMOUNT, 0, failed=True),)), 3),
)
"""A late order, one that is refunded in part, and one whose payment fails."""
LATE, *IN_TIME = HISTORIES


@dataclass
class Life:
    """The two processes of one run: the one that is killed at the point, and the other one."""

    running: Processes
    point: str
    serve: Daemon
    watch: Daemon
    killed_at: str = "the start"
    died: float = 0.0

    @classmethod
    async def begin(cls, running: Processes, point: str) -> Life:
        """Both are up, unless the point is reached before."""
        armed = {PROCESS[point.partition(".")[0]]: point}
        if point == "watcher.baseline_stored":
            serve, watch = await asyncio.gather(
                running.serve(), running.stack.launch("watch", PAYLATCH_CRASH_POINT=point)
            )
        else:
            serve, watch = await asyncio.gather(
                running.serve(armed.get("serve", "")), running.watch(armed.get("watch", ""))
            )
        life = cls(running, point, serve, watch)
        if point == "watcher.baseline_stored":
            await life.succeed()
        else:
            await _has_baseline(running.db)
        return life

    @property
    def doomed(self) -> Daemon:
        return self.serve if self.point.startswith("webhook.") else self.watch

    async def succeed(self) -> None:
        """The killed process is dead, by the kill and by nothing else, and a new one takes its place."""
        assert await asyncio.wait_for(self.doomed.process.wait(), 30) == -9, f"it was not killed at {self.point}"
        self.died = time.monotonic()
        if self.doomed is self.serve:
            self.serve = await self.running.serve()
        else:
            self.watch = await self.running.watch()

    async def deliver(self) -> None:
        """Everything that the provider says; what it gets no 200 for, it says again."""
        said = [(history, told) for history in HISTORIES for told in history.messages]
        for place, (_, told) in enumerate(said, start=1):
            status = await self.running.post(self.serve, told.raw, told.event_id)
            gone = status == 0 and self.doomed is self.serve
            if not self.died and (gone or self.doomed.process.returncode is not None):
                self.killed_at = f"delivery {place} of {len(said)}"
                await self.succeed()
            while status != 200:
                status = await self.running.post(self.serve, told.raw, told.event_id)
        if not self.died:
            self.killed_at = "after the deliveries"
            await self.succeed()


async def _has_baseline(db: Database) -> None:
    """What comes from now on is news to the watcher."""

    async def check() -> object:
        return await db.watcher_state.find_one({"_id": "baseline"})

    await eventually(check, "the watcher has its baseline")


@pytest.mark.parametrize("point", sorted(POINTS))
@pytest.mark.asyncio
async def test_a_kill_at_any_point_loses_nothing_and_doubles_nothing_in_silence(
    point: str,
    db: Database,
    make_settings: SettingsMaker,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    truths = {f"ord{history.number}": truth_of(history.plan, history.number) for history in HISTORIES}
    told, routes = frozenset(ROUTES), json.dumps(ROUTES)
    async with (
        mailbox() as box,
        processes(make_settings(), db, box, tmp_path, PAYLATCH_NOTIFICATIONS__ROUTES=routes) as running,
    ):
        await db.orders.insert_many([history.order for history in IN_TIME])
        life = await Life.begin(running, point)
        await life.deliver()
        await db.orders.insert_one(LATE.order)

        async def reckon() -> Reckoning:
            copies = Counter(mail.message_id for mail in box.mails)
            return Reckoning(truths, await Books.read(db), copies, told)

        async def recovered() -> bool:
            return not (await reckon()).missing

        with contextlib.suppress(AssertionError):  # what is missing then says more than that something is
            await eventually(recovered, "everything is there", 60)
        end = await reckon()
        took = f"{time.monotonic() - life.died:.1f} s"
        record_property("crash_matrix", [point, life.killed_at, took, *end.line])
        assert (end.missing, end.extra) == (set(), set())
        if point in NOBODY_KNOWS:
            assert [row["key"] for row in end.books.rows if row.get("unknownAt")]


@pytest.mark.asyncio
async def test_a_kill_inside_the_transaction_locks_the_order_no_longer_than_the_lease(
    db: Database, make_settings: SettingsMaker, tmp_path: Path
) -> None:
    async with mailbox() as box, processes(make_settings(), db, box, tmp_path) as running:
        await db.orders.insert_one(sample.order(1))
        survivor = await running.serve()
        doomed = await running.serve("webhook.in_transaction")
        assert await running.post(doomed, sample.captured(1), "E1") in {0, 200}
        assert await doomed.process.wait() == -9
        await running.until_status(1, "completed")  # by the survivor's recovery, well before the server's 60 s
        assert survivor.process.returncode is None
        event = await db.events.find_one({"eventId": "E1"})
        assert event is not None
        assert event["attempts"] == 2
        assert (event["processedAt"] - event["receivedAt"]).total_seconds() < 12
