"""What a buyer's browser says after paying: verified against our stored ids, recorded, and believed no further.

A callback carries no amount: it records an attempt, and the answer is `confirming` until the webhook has completed the
order. Nothing is written before the signature is known to be true, and whatever is not true gets one and the same 400.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import parse_qsl, quote

import pymongo
from aiohttp import web

from models.database import ADMISSION_TIMEOUT
from models.errors import Unparseable
from models.private_port import json_response
from models.settings import ORDER_PLACE
from models.telemetry import Telemetry
from webhook.body import BodyReader, Refusal
from webhook.callback_orders import Subject, subject_of
from webhook.callers import FORWARDED, Networks, Rate, caller_of, parse_address
from webhook.engine import Engine
from webhook.origins import Origins
from webhook.own_messages import callback_delivery
from webhook.payload import read_object
from webhook.providers import Provider
from webhook.responses import Answer, Shown, answered, as_json, send
from webhook.signatures import PAID, UNKNOWN_ID, Callback, read_checkout, read_link, single

VERIFY_PATH = "/checkout/verify"
LINK_PATH = "/checkout/payment-link"
MOST_BODY_BYTES = 16 * 1024
MOST_FIELDS = 50
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""The address of a link's callback holds a signature: it is neither kept nor handed on."""

Seen = dict[str, str]
Work = Callable[[web.Request, Seen], Awaitable[Answer]]


class Checkout:
    """Razorpay's two ways back to the shop: the checkout's handler, and the page of a payment link.

    Failure policy: closed. What is not certainly stored is answered 503; the webhook completes the order in any case.
    """

    def __init__(self, provider: Provider, engine: Engine, key_secret: str, telemetry: Telemetry) -> None:
        settings = engine.settings
        self._provider, self._engine, self._telemetry = provider, engine, telemetry
        self._key_secret, self._settings = key_secret.encode(), settings.checkout
        self._deadline = settings.http.answer_deadline
        most = min(settings.http.max_body_bytes, MOST_BODY_BYTES)
        self._bodies = BodyReader(settings.http.model_copy(update={"max_body_bytes": most}))
        self._proxies, self._rate = Networks(settings.http.trusted_proxies), Rate(settings.checkout.rate)
        self._origins = Origins(settings.checkout.allowed_origins)

    def add_routes(self, app: web.Application) -> None:
        """`POST /checkout/verify` with its preflight, `GET /checkout/payment-link`."""
        app.router.add_post(VERIFY_PATH, self.verify)
        app.router.add_options(VERIFY_PATH, self._origins.preflight)
        app.router.add_get(LINK_PATH, self.payment_link, allow_head=False)

    async def verify(self, request: web.Request) -> web.StreamResponse:
        """Answer JSON: `confirming` or `paid`, the shop's order and the event."""
        return await self._handle(request, "verify", self._verified, _as_page if _is_navigation(request) else as_json)

    async def payment_link(self, request: web.Request) -> web.StreamResponse:
        """Send the buyer to the configured address, never to one that the request names."""
        return await self._handle(request, "payment_link", self._returned, _as_page)

    async def _handle(self, request: web.Request, route: str, work: Work, shown: Shown) -> web.StreamResponse:
        """Answer, then write the request's one log line: no address, no signature, nothing of the body but ids."""
        started, seen = time.monotonic(), Seen()
        answer = await answered(self._limited(request, seen, work), self._deadline, shown)
        answer.response.headers.update(_HEADERS)
        self._origins.mark(request, answer.response)
        sent = await send(request, answer.response)
        self._telemetry.emit(
            "checkout.answered",
            route=route,
            outcome=answer.outcome,
            status=answer.response.status,
            duration_ms=round((time.monotonic() - started) * 1000, 1),
            **({} if answer.error is None else {"error": answer.error}),
            **({} if sent else {"caller": "gone"}),
            **seen,
        )
        return answer.response

    async def _limited(self, request: web.Request, seen: Seen, work: Work) -> Answer:
        """Raises `Refusal` (429) where one address asks too often."""
        if FORWARDED in request.headers and parse_address(request.remote or "") not in self._proxies:
            seen["forwarded"] = "ignored"  # a proxy that is no trusted one makes all buyers one address
        if wait := self._rate.wait(caller_of(request, self._proxies)):
            sentence = "too many requests from this address; try again later"
            raise Refusal(429, "limited", sentence, close=True, retry_after=wait)
        return await work(request, seen)

    async def _verified(self, request: web.Request, seen: Seen) -> Answer:
        if request.headers.getall("Content-Encoding", []):
            raise Refusal(415, "encoded", "send the body without Content-Encoding", close=True)
        async with self._bodies.read(request) as raw:
            callback = _read(read_checkout, _fields(raw, form=_is_form(request)))
            subject = await self._believed(callback)
            event_id, outcome = await self._admitted(callback, subject, seen)
        if _is_navigation(request):
            return Answer(self._onward(subject), outcome)
        said = {"status": "paid" if subject.paid else "confirming", "orderId": subject.shown, "eventId": event_id}
        return Answer(json_response(said), outcome)

    async def _returned(self, request: web.Request, seen: Seen) -> Answer:
        callback = _read(read_link, single(request.query.items()))
        subject, outcome = await self._believed(callback), "not_paid"
        if callback.link_status == PAID:
            _, outcome = await self._admitted(callback, subject, seen)
        return Answer(self._onward(subject), outcome)

    async def _believed(self, callback: Callback) -> Subject:
        """What the callback is about. Raises the one `Refusal` for an unknown order and for a false signature."""
        with pymongo.timeout(ADMISSION_TIMEOUT):
            subject = await subject_of(self._engine.db, self._provider.name, callback)
        signed = callback.is_signed(self._key_secret, UNKNOWN_ID if subject is None else subject.stored_id)
        if subject is None or not signed:
            raise _not_verified()
        return subject

    async def _admitted(self, callback: Callback, subject: Subject, seen: Seen) -> tuple[str, str]:
        """Store it or recognise it; the event's id, and the word for what it was."""
        ids = {"payment_id": callback.payment_id, "signature": callback.signature}
        delivery = callback_delivery(self._provider, {**ids, **subject.named})
        seen["event_id"] = delivery.event_id
        admitted = await self._engine.admission.admit(delivery)
        return admitted.event_id, admitted.kind or str(admitted.verdict)

    def _onward(self, subject: Subject) -> web.Response:
        """To the configured address, in which the order's id is filled and nothing else."""
        template = self._settings.return_url
        if template is None or (subject.shown is None and ORDER_PLACE in template):
            return _page(200, "Thank you. Your payment is being confirmed; you may close this page.")
        address = template.replace(ORDER_PLACE, quote(subject.shown or "", safe=""))
        return web.Response(status=303, headers={"Location": address})


def _not_verified() -> Refusal:
    """The one answer to everything that is not signed for an order of ours."""
    return Refusal(400, "not_verified", "this is no verified payment of an order of this shop")


def _read(read: Callable[[Mapping[str, str]], Callback | None], fields: Mapping[str, str] | None) -> Callback:
    callback = None if fields is None else read(fields)
    if callback is None:
        raise _not_verified()
    return callback


def _fields(raw: bytes, *, form: bool) -> dict[str, str] | None:
    """The provider's fields of a form, else of a JSON object; None when it is neither or is ambiguous."""
    try:
        if form:
            return single(parse_qsl(raw.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict"))
        return single(read_object(raw).items())
    except (ValueError, Unparseable):
        return None


def _is_form(request: web.Request) -> bool:
    return request.content_type == "application/x-www-form-urlencoded"


def _is_navigation(request: web.Request) -> bool:
    """Whether the browser itself posted the form (the checkout's `callback_url`), so that a person sees the answer."""
    return _is_form(request) and "text/html" in request.headers.get("Accept", "")


def _as_page(refusal: Refusal) -> web.Response:
    return _page(refusal.status, refusal.sentence)


def _page(status: int, sentence: str) -> web.Response:
    """A page without scripts; the sentence is always our own."""
    text = f"<!doctype html><html lang=en><meta charset=utf-8><title>Payment</title><p>{sentence}</html>\n"
    return web.Response(status=status, text=text, content_type="text/html")
