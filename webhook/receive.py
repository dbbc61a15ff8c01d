"""The public endpoint: refuse cheaply, verify the raw bytes, admit, answer. Nothing else happens before the answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from aiohttp import web
from multidict import CIMultiDictProxy
from pymongo.errors import PyMongoError

from models.alerts import raise_alert
from models.clock import ServerClock
from models.crash import crash_point
from models.database import Database
from models.errors import PayLatchError, Unparseable
from models.facts import Event
from models.private_port import json_response
from models.settings import HttpSettings
from models.telemetry import Telemetry
from webhook.admission import Admission, Admitted, Delivery, event_id_of
from webhook.body import BodyReader, Refusal, drain
from webhook.providers import Provider

BROKEN_BODY = Refusal(400, "broken_body", "the body ended before it was complete", close=True)


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
        self._bodies = BodyReader(settings)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer 200 with the verdict, or a refusal's status."""
        started = time.monotonic()
        seen: dict[str, str] = {}
        try:
            async with asyncio.timeout(self._settings.answer_deadline):
                admitted = await self._receive(request, seen)
            response = json_response({"status": admitted.verdict, "eventId": admitted.event_id})
            outcome = admitted.kind or str(admitted.verdict)
        except Refusal as refusal:
            response, outcome = _refused(refusal), refusal.outcome
        except web.RequestPayloadError:
            response, outcome = _refused(BROKEN_BODY), BROKEN_BODY.outcome
        except ConnectionError:
            response, outcome = _unavailable(), "caller_gone"
        except (TimeoutError, PyMongoError, PayLatchError) as error:
            response, outcome = _unavailable(), "unavailable"
            seen["error"] = type(error).__name__
        except Exception as error:  # noqa: BLE001 - a bug of ours must not become a lost event
            response, outcome = _unavailable(), "error"
            seen["error"] = type(error).__name__
        return await self._answer(request, response, outcome, started, seen)

    async def _receive(self, request: web.Request, seen: dict[str, str]) -> Admitted:
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
        return admitted

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
        response: web.Response,
        outcome: str,
        started: float,
        seen: dict[str, str],
    ) -> web.StreamResponse:
        """Send it, then write the request's one log line."""
        try:
            await response.prepare(request)
            await response.write_eof()
        except ConnectionError:
            outcome_sent = False
        else:
            outcome_sent = True
            crash_point("webhook.answered")
        self._telemetry.emit(
            "webhook.answered",
            provider=self._provider.name,
            outcome=outcome,
            status=response.status,
            duration_ms=round((time.monotonic() - started) * 1000, 1),
            **({} if outcome_sent else {"caller": "gone"}),
            **seen,
        )
        return response


def _refused(refusal: Refusal) -> web.Response:
    response = json_response({"error": refusal.outcome, "detail": refusal.sentence}, status=refusal.status)
    if refusal.close:
        response.force_close()
    return response


def _unavailable() -> web.Response:
    response = json_response({"error": "unavailable", "detail": "not stored for certain; send it again"}, status=503)
    response.headers["Retry-After"] = "5"
    return response
