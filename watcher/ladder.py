"""Where to go on in the stream: after the token, else from the checkpoint's time, else from now with a gap to mend.

Never the same step twice without progress, and never from now without a sweep.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Any

import bson.json_util
from pymongo.asynchronous.change_stream import AsyncChangeStream
from pymongo.errors import OperationFailure

from models.database import Database, RawDocument
from models.errors import DatabaseUnfit, HistoryLost
from watcher.place import Place

MAX_AWAIT_MS = 500
TOO_LARGE = 10334
_ROLLED_OVER = 286
_OTHER_STREAM = 280
_BAD_TOKEN = frozenset({9, 260, 40585, 40647, 40649, 50796, 50811})
_HISTORY_LOST = frozenset({_ROLLED_OVER, _OTHER_STREAM, TOO_LARGE}) | _BAD_TOKEN
_UNFIT = {13: "may not read change streams: grant it `changeStream` and `find`", 40573: "is no replica set"}
_FACTS = ("_id", "ns", "to", "operationType", "documentKey", "clusterTime", "wallTime")
_CONTENT = ("updateDescription", "fullDocument.history", "fullDocument.payment", "fullDocument.orderNumber")

Stages = Sequence[Mapping[str, Any]]


class StreamStalled(Exception):  # noqa: N818 - a finding, caught by the one caller
    """The server moves on and the stream brings nothing of it."""


class Rung(IntEnum):
    """A place to go on from, the best first."""

    TOKEN = 0
    CLUSTER_TIME = 1
    NOW = 2


def pipeline(orders: str, *others: str) -> list[dict[str, Any]]:
    """Only facts that can never change are matched, so the stream can always be resumed.

    A rename onto the orders collection carries its source's name in `ns` and ours in `to`.
    """
    return [_matched(orders, *others), {"$project": dict.fromkeys(_FACTS + _CONTENT, 1)}]


def slim(orders: str, *others: str) -> list[dict[str, Any]]:
    """The same changes without their content, so that none of them is too large."""
    return [_matched(orders, *others), {"$project": dict.fromkeys(_FACTS, 1)}]


def _matched(*names: str) -> dict[str, Any]:
    kinds = ["insert", "update", "replace", "drop", "rename"]
    wanted = {"$in": list(names)}
    ours = {"$or": [{"ns.coll": wanted}, {"to.coll": wanted}], "operationType": {"$in": kinds}}
    return {"$match": {"$or": [ours, {"operationType": {"$in": ["dropDatabase", "invalidate"]}}]}}


def fingerprint(stages: Stages) -> str:
    """A token belongs to the pipeline it was made with; this tells whether it is still the same."""
    return hashlib.sha256(bson.json_util.dumps(stages, sort_keys=True).encode()).hexdigest()[:16]


class Ladder:
    """Opens the stream at the best place that the server still has, and knows what that may have missed."""

    def __init__(self, db: Database, stages: Stages, place: Place, doubt: str | None) -> None:
        self._db, self._stages = db, stages
        self.place = place
        self.rung = Rung.NOW if doubt else Rung.TOKEN
        self.gap = doubt
        """Why changes may have been missed; None while there is no such reason."""
        self.unsure = doubt
        """Why a sweep is wanted: every gap, and a token that another pipeline made."""
        self._fit()

    @property
    def resumes(self) -> bool:
        """Whether the next opening goes on after the token."""
        return self.rung is Rung.TOKEN

    async def open(self) -> AsyncChangeStream[RawDocument]:
        """The stream, at this rung or the first one below that the server accepts.

        Raises `HistoryLost` when not even a new stream can be opened, `DatabaseUnfit`, or a driver's error.
        """
        while True:
            try:
                return await self._watch(self._stages)
            except OperationFailure as error:
                if error.code == TOO_LARGE:
                    raise
                self.fall(error, self.place, progress=False)

    async def beside(self, stages: Stages) -> AsyncChangeStream[RawDocument]:
        """Another stream from the same place."""
        return await self._watch(stages)

    async def _watch(self, stages: Stages) -> AsyncChangeStream[RawDocument]:
        where: dict[str, Any] = {}
        if self.rung is Rung.TOKEN:
            where = {"start_after": self.place.token}
        elif self.rung is Rung.CLUSTER_TIME:
            where = {"start_at_operation_time": self.place.cluster_time}
        return await self._db.handle.watch(stages, max_await_time_ms=MAX_AWAIT_MS, **where)

    def stand(self, place: Place) -> None:
        """Everything up to here is taken care of: go on from this place, by its token where it has one."""
        self.place, self.rung, self.gap, self.unsure = place, Rung.TOKEN, None, None
        self._fit()

    def entered(self, place: Place) -> None:
        """What this opening may have missed is noted: only a later checkpoint counts as progress from here."""
        self.place, self.gap, self.unsure = place, None, None

    def fall(self, error: Exception, place: Place, *, progress: bool) -> None:
        """Prepare the next opening after a failure; `place` is the checkpoint as it is now.

        `progress` says whether the last opening brought anything: then this place is as good as the last one was.
        Raises the error, or what it says in one sentence, when another place would not help.
        """
        code = error.code if isinstance(error, OperationFailure) else None
        if not isinstance(error, StreamStalled) and code not in _HISTORY_LOST:
            raise explained(error) from None
        if progress:
            self.stand(place)
        elif self.rung is Rung.NOW and code is None:
            self.stand(replace(self.place, cluster_time=place.cluster_time, seq=place.seq))  # a stall may be over soon
        elif self.rung is Rung.NOW:
            raise HistoryLost(
                f"not even a new change stream can be read (code {code}): the server loses its history at once or "
                "refuses every stream, so enlarge its oplog or look at its log, then start the watcher again",
            ) from None
        else:
            self.place = replace(self.place, cluster_time=place.cluster_time, seq=place.seq)
            self._lower(code)

    def _lower(self, code: int | None) -> None:
        why = f"code {code}" if code else "silent"
        # what is older than the token's place is gone too, and an embedded server would not say so
        self.rung = Rung.NOW if code == _ROLLED_OVER else Rung(self.rung + 1)
        self.unsure = why
        if code != _OTHER_STREAM or self.rung is Rung.NOW:
            self.gap = why

    def _fit(self) -> None:
        """A token that is none (the driver takes an empty one for "from now") or another pipeline's is not used."""
        if self.rung is not Rung.TOKEN:
            return
        if not isinstance(self.place.token, Mapping) or not self.place.token:
            self.rung = Rung.CLUSTER_TIME
            if self.place.token is not None:
                self.gap = self.unsure = "damaged token"
        elif self.place.pipeline_hash != fingerprint(self._stages):
            self.rung, self.unsure = Rung.CLUSTER_TIME, "another pipeline"


def explained(error: Exception) -> Exception:
    """A code the operator must act on becomes one sentence; any other error stays, and the stream is opened again."""
    if isinstance(error, OperationFailure) and error.code in _UNFIT:
        return DatabaseUnfit(f"the watcher's database user or server {_UNFIT[error.code]} (code {error.code})")
    return error
