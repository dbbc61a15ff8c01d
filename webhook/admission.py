"""Admit a delivery: one insert under unique indexes decides what is new; what is not is counted before it is answered.

Failure policy: closed. Any doubt about whether the row is durable is answered 503; the provider retries, and a row that
was stored after all makes the retry a duplicate.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import bson
from bson import Binary, ObjectId
from pymongo import UpdateOne
from pymongo.errors import BulkWriteError, PyMongoError

from models.clock import ServerClock
from models.crash import crash_point
from models.database import DUPLICATE_KEY, Database, RawDocument
from models.errors import PayLatchError, Unavailable
from models.facts import Event
from models.leases import Claim
from models.settings import ProcessingSettings
from models.states import EventStatus, Origin, Verdict
from webhook.coalesce import Coalescer
from webhook.event_rows import Job, lane_of
from webhook.lanes import Lanes, Reservation
from webhook.payload import storable

MOST_ROWS = 200
MOST_BYTES = 8 * 1024 * 1024
REDELIVERY_SPEEDUP = timedelta(seconds=5)
_EVENT_ID = re.compile(r"(?!(?:callback|reconcile|operator|body):)[A-Za-z0-9_.:-]{1,128}")
_SEEN_FIELDS = {"eventId": 1, "bodyHash": 1, "status": 1, "nextAttemptAt": 1}


@dataclass(frozen=True, slots=True)
class Delivery:
    """An authentic message as it arrived."""

    provider: str
    raw: bytes
    event_id: str
    event_id_signed: bool
    signed_with: str | None
    event: Event | None
    """None: authentic, but no event (`unparseable`)."""
    origin: Origin = Origin.WEBHOOK

    @property
    def event_type(self) -> str:
        """The type, or a word for what has none."""
        return self.event.event_type if self.event else "unparseable"


@dataclass(frozen=True, slots=True)
class Admitted:
    """What is answered; `kind` of a duplicate is redelivery or suspected_replay."""

    verdict: Verdict
    event_id: str
    kind: str = ""


@dataclass(slots=True)
class _Candidate:
    """A row on its way in, with the worker that was free for it."""

    row: RawDocument
    reservation: Reservation | None = None
    job: Job | None = None


@dataclass(frozen=True, slots=True)
class _Sighting:
    """One more delivery of a stored event."""

    row_id: object
    suspicious: bool = field(default=False)


def event_id_of(values: Sequence[str], raw: bytes, prefix: str = "") -> str:
    """The provider's id if it is exactly one well-formed value; else one made from the body, never a random one.

    The beginnings of our own messages' ids are ours: an unsigned header that could claim such an id could make a
    message of ours look like one that came before.
    """
    if len(values) == 1 and _EVENT_ID.fullmatch(values[0]):
        return prefix + values[0]
    return f"{prefix}body:{hashlib.sha256(raw).hexdigest()}"


class Admission:
    """Claims events. `db` has a short timeout of its own; workers' sessions come from `sessions`."""

    def __init__(
        self,
        db: Database,
        sessions: Database,
        clock: ServerClock,
        lanes: Lanes[Job],
        settings: ProcessingSettings,
    ) -> None:
        self._db, self._sessions, self._clock, self._lanes, self._settings = db, sessions, clock, lanes, settings
        self._inserts: Coalescer[_Candidate, bool] = Coalescer(self._insert, MOST_ROWS, MOST_BYTES)
        self._sightings: Coalescer[_Sighting, bool] = Coalescer(self._count, MOST_ROWS, MOST_BYTES)

    async def admit(self, delivery: Delivery) -> Admitted:
        """Store the delivery or recognise it. Raises `Unavailable` or a driver's error when neither is certain."""
        row = self._row(delivery)
        if await self._stored(row):
            return Admitted(Verdict.ACCEPTED, row["eventId"])
        by_id, by_body = await self._seen(row)
        if by_id is not None and by_id["_id"] == row["_id"]:  # our own insert, of which only the reply was lost
            return Admitted(Verdict.ACCEPTED, row["eventId"])
        if by_body is None and by_id is not None and not delivery.event_id_signed:
            return await self._admit_under_own_id(row)
        return await self._duplicate(row, by_id, by_body)

    async def settled(self) -> None:
        """Wait until everything that was submitted is written."""
        await self._inserts.settled()
        await self._sightings.settled()

    def _row(self, delivery: Delivery) -> RawDocument:
        """The row as inserted while no worker is free; `_id` is ours, so a lost reply cannot make us a duplicate."""
        now, event = self._clock.now(), delivery.event
        occurred = event.occurred_at if event else None
        dead = event is None
        return {
            "_id": ObjectId(),
            "eventId": delivery.event_id,
            "bodyHash": hashlib.sha256(delivery.raw).hexdigest(),
            "idSigned": delivery.event_id_signed,
            "provider": delivery.provider,
            "eventType": delivery.event_type,
            "accountId": event.account_id if event else None,
            "origin": delivery.origin,
            "status": EventStatus.DEAD if dead else EventStatus.RECEIVED,
            "rawBody": Binary(delivery.raw),
            "payload": storable(event.payload) if event else None,
            "signedWith": delivery.signed_with,
            "refs": event.refs.document() if event else {},
            "occurredAt": None if occurred is None else datetime.fromtimestamp(occurred, UTC),
            "receivedAt": now,
            "attempts": 0,
            "nextAttemptAt": None if dead else now,
            "outcome": {"code": "unparseable", "detail": None} if dead else None,
            "processedAt": now if dead else None,
            "requeues": 0,
            "duplicates": {"count": 0, "lastAt": None},
            "flags": [],
            "createdAt": now,
            "updatedAt": now,
        }

    async def _stored(self, row: RawDocument) -> bool:
        """Insert the row; False when an index says that it, or a part of it, is there already."""
        size = len(bson.encode(row))  # before it joins: one bad row must not fail the rest
        if self._inserts.full:
            raise Unavailable("more deliveries are waiting than the database takes")
        candidate = self._with_worker(row)
        crash_point("webhook.before_insert")
        stored = await self._inserts.submit(candidate, size)
        crash_point("webhook.inserted")
        return stored

    def _with_worker(self, row: RawDocument) -> _Candidate:
        """Insert as `processing`, under a lease of ours, only when a worker is free for it right now."""
        if row["status"] != EventStatus.RECEIVED or not (reservation := self._lanes.reserve(lane_of(row))):
            return _Candidate(row)
        try:
            session = self._sessions.client.start_session()
            claim = Claim.of(self._clock, self._settings.lease, Binary(session.session_id["id"], 4))
        except BaseException:
            self._lanes.release(reservation)
            raise
        row |= {
            "status": EventStatus.PROCESSING,
            "attempts": 1,
            "lease": claim.document(),
            "nextAttemptAt": claim.until,
        }
        return _Candidate(row, reservation, Job(row["_id"], row, claim, session))

    async def _insert(self, candidates: Sequence[_Candidate]) -> Sequence[bool | BaseException]:
        """Write one batch. A doubt about durability is everybody's; their rows become due when their lease ends."""
        results: list[bool | BaseException] = [Unavailable("the insert's outcome is unknown")] * len(candidates)
        try:
            results = await self._insert_rows([candidate.row for candidate in candidates])
        finally:
            for candidate, result in zip(candidates, results, strict=True):
                await self._hand_over(candidate, stored=result is True)
        return results

    async def _insert_rows(self, rows: Sequence[RawDocument]) -> list[bool | BaseException]:
        try:
            await self._db.events.insert_many(rows, ordered=False)
        except BulkWriteError as error:
            if error.details["writeConcernErrors"]:
                raise Unavailable("the database could not confirm the write") from None
            refused = {problem["index"]: problem for problem in error.details["writeErrors"]}
            return [await self._refused(row, refused[i]) if i in refused else True for i, row in enumerate(rows)]
        return [True] * len(rows)

    async def _refused(self, row: RawDocument, problem: Mapping[str, Any]) -> bool | BaseException:
        """A duplicate is False; any other refusal is tried once without `payload`, which is only a convenience."""
        if problem["code"] == DUPLICATE_KEY:
            return False
        if row["payload"] is None:
            return Unavailable(f"the database refuses the row (code {problem['code']})")
        row["payload"] = None
        try:
            return (await self._insert_rows([row]))[0]
        except (PyMongoError, PayLatchError) as error:
            return error

    async def _hand_over(self, candidate: _Candidate, *, stored: bool) -> None:
        """Start the worker that was kept, or queue the row; give the worker back when nothing was stored."""
        lane, reservation, job = lane_of(candidate.row), candidate.reservation, candidate.job
        if reservation and job and job.session:
            if stored:
                self._lanes.start(reservation, job)
            else:
                self._lanes.release(reservation)
                await job.session.end_session()
        elif stored and candidate.row["status"] == EventStatus.RECEIVED:
            self._lanes.offer(lane, Job(candidate.row["_id"]))

    async def _seen(self, row: RawDocument) -> tuple[RawDocument | None, RawDocument | None]:
        """The rows that hold this id and this body."""
        by_id = await self._db.events.find_one({"eventId": row["eventId"]}, _SEEN_FIELDS)
        if by_id and by_id["bodyHash"] == row["bodyHash"]:
            return by_id, by_id
        body = {"bodyHash": row["bodyHash"], "idSigned": False}
        return by_id, None if row["idSigned"] else await self._db.events.find_one(body, _SEEN_FIELDS)

    async def _admit_under_own_id(self, row: RawDocument) -> Admitted:
        """A known id with an unknown signed body: the id is not signed, so it must not swallow money."""
        row |= {"_id": ObjectId(), "eventId": _own_id(row), "flags": ["id_conflict"]}
        row |= {"status": EventStatus.RECEIVED if row["status"] != EventStatus.DEAD else EventStatus.DEAD}
        row |= {"attempts": 0, "lease": None, "nextAttemptAt": row["receivedAt"]}
        if await self._stored(row):
            return Admitted(Verdict.ACCEPTED, row["eventId"])
        return await self._duplicate(row, *await self._seen(row))

    async def _duplicate(self, row: RawDocument, by_id: RawDocument | None, by_body: RawDocument | None) -> Admitted:
        """Count it on the stored row; that the row is still there is part of the answer."""
        known = by_id if row["idSigned"] else by_body
        if known is None:
            raise Unavailable("the stored event is gone: its insert was rolled back")
        redelivery = known["eventId"] in {row["eventId"], _own_id(row)}
        if not await self._sightings.submit(_Sighting(known["_id"], suspicious=not redelivery)):
            raise Unavailable("the stored event is gone: its insert was rolled back")
        await self._hurry(known)
        return Admitted(Verdict.DUPLICATE, known["eventId"], "redelivery" if redelivery else "suspected_replay")

    async def _count(self, sightings: Sequence[_Sighting]) -> Sequence[bool]:
        """One durable update per row, however many deliveries of it came at once."""
        now, by_row = self._clock.now(), _grouped(sightings)
        updates = [UpdateOne({"_id": row_id}, _sighting_update(seen, now)) for row_id, seen in by_row.items()]
        result = await self._db.events.bulk_write(updates, ordered=False)
        if result.matched_count == len(updates):
            return [True] * len(sightings)
        cursor = self._db.events.find({"_id": {"$in": list(by_row)}}, {"_id": 1})
        there = {row["_id"] for row in await cursor.to_list()}
        return [sighting.row_id in there for sighting in sightings]

    async def _hurry(self, known: Mapping[str, Any]) -> None:
        """The provider asks again: a waiting row becomes due now, at most every 5 s; never a dead one."""
        now = self._clock.now()
        if known["status"] not in {EventStatus.RECEIVED, EventStatus.FAILED} or known["nextAttemptAt"] <= now:
            return
        guard = {
            "_id": known["_id"],
            "status": {"$in": [EventStatus.RECEIVED, EventStatus.FAILED]},
            "hurriedAt": {"$not": {"$gt": now - REDELIVERY_SPEEDUP}},
        }
        await self._db.events.update_one(guard, {"$set": {"nextAttemptAt": now, "hurriedAt": now, "updatedAt": now}})


def _own_id(row: Mapping[str, Any]) -> str:
    event_id, _, _ = str(row["eventId"]).partition("~")
    return f"{event_id}~{row['bodyHash'][:12]}"


def _grouped(sightings: Sequence[_Sighting]) -> dict[object, list[_Sighting]]:
    by_row: dict[object, list[_Sighting]] = {}
    for sighting in sightings:
        by_row.setdefault(sighting.row_id, []).append(sighting)
    return by_row


def _sighting_update(seen: Sequence[_Sighting], now: datetime) -> dict[str, Any]:
    update: dict[str, Any] = {
        "$inc": {"duplicates.count": len(seen)},
        "$set": {"duplicates.lastAt": now, "updatedAt": now},
    }
    if any(sighting.suspicious for sighting in seen):
        update["$addToSet"] = {"flags": "suspected_replay"}
    return update
