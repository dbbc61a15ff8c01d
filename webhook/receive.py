"""The public endpoint: refuse cheaply, verify the raw bytes, admit, answer. Nothing else happens before the answer."""

from __future__ import annotations

import time
from collections.abc import Sequence

from aiohttp import web
from multidict import CIMultiDictProxy

from models.alerts import raise_alert
from models.clock import ServerClock
from models.crash import crash_point
from models.database import Database
from models.errors import Unparseable
from models.facts import Event
from models.private_port import json_response
from models.settings import HttpSettings
from models.telemetry import Telemetry
from webhook.admission import Admission, Delivery, event_id_of
from webhook.allow_list import AllowList
from webhook.body import BodyReader, Refusal, drain
from webhook.providers import Provider
from webhook.responses import Answer, answered, send


class Receiver:
    """Answers one provider's webhooks.

    Failure policy: closed. What is not certainly stored is answered 503, which the provider retries; never a 500.
    """

    def __init__(
        self,
        provider: Provider,
        admission: Admission,
        db: Database,
        clock: ServerClock,
        settings: HttpSettings,
        telemetry: Telemetry,
    ) -> None:
        self._provider, self._admission, self._db, self._clock = provider, admission, db, clock
        self._settings, self._telemetry = settings, telemetry
        self._bodies, self._allow_list = BodyReader(settings), AllowList(settings, telemetry)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer 200 with the verdict, or a refusal's status."""
        started = time.monotonic()
        seen: dict[str, str] = {}
        answer = await answered(self._receive(request, seen), self._settings.answer_deadline)
        if answer.error is not None:
            seen["error"] = answer.error
        return await self._answer(request, answer, started, seen)

    async def _receive(self, request: web.Request, seen: dict[str, str]) -> Answer:
        self._allow_list.require(request)
        signature = await self._signature(request)
        if request.headers.getall("Content-Encoding", []):
            raise Refusal(415, "encoded", "send the body as it was signed, without Content-Encoding", close=True)
        async with self._bodies.read(request) as raw:
            label = self._provider.signed_with(signature, raw)
            if label is None:
                raise Refusal(400, "bad_signature", "the signature does not match the body")
            delivery = self._delivery(request.headers, raw, label)
            seen |= {"event_id": delivery.event_id, "type": delivery.event_type}
            if delivery.event is None:
                await self._alert(delivery)
            admitted = await self._admission.admit(delivery)
        seen["event_id"] = admitted.event_id
        response = json_response({"status": admitted.verdict, "eventId": admitted.event_id})
        return Answer(response, admitted.kind or str(admitted.verdict))

    async def _signature(self, request: web.Request) -> bytes:
        """The one signature; without it the body is not worth reading and is only thrown away."""
        values: Sequence[str] = request.headers.getall(self._provider.signature_header, [])
        signature = self._provider.signature(values[0]) if len(values) == 1 else None
        if signature is None:
            close = not await drain(request)
            raise Refusal(400, "no_signature", "exactly one well-formed signature header is needed", close=close)
        return signature

    def _delivery(self, headers: CIMultiDictProxy[str], raw: bytes, label: str) -> Delivery:
        provider = self._provider
        prefix = "" if provider.name == "razorpay" else f"{provider.name}:"
        return Delivery(
            provider=provider.name,
            raw=raw,
            event_id=event_id_of(headers.getall(provider.event_id_header, []), raw, prefix),
            event_id_signed=provider.event_id_signed,
            signed_with=label,
            event=self._parse(raw),
        )

    def _parse(self, raw: bytes) -> Event | None:
        try:
            return self._provider.parse(raw)
        except Unparseable:
            return None

    async def _alert(self, delivery: Delivery) -> None:
        """Before the insert: a crash in between repeats the alert instead of losing it."""
        detail = "signed by the provider, but it is no event"
        await raise_alert(self._db, self._telemetry, "event_unparseable", delivery.event_id, self._clock.now(), detail)

    async def _answer(
        self,
        request: web.Request,
        answer: Answer,
        started: float,
        seen: dict[str, str],
    ) -> web.StreamResponse:
        """Send it, then write the request's one log line."""
        sent = await send(request, answer.response)
        if sent:
            crash_point("webhook.answered")
        self._telemetry.emit(
            "webhook.answered",
            provider=self._provider.name,
            outcome=answer.outcome,
            status=answer.response.status,
            duration_ms=round((time.monotonic() - started) * 1000, 1),
            **({} if sent else {"caller": "gone"}),
            **seen,
        )
        self._allow_list.report(request, authentic=answer.response.status == 200)
        return answer.response
