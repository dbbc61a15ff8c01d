"""How a public request ends: always in an answer, whatever happens; never a 500."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web
from pymongo.errors import PyMongoError

from models.errors import PayLatchError
from models.private_port import json_response
from webhook.body import Refusal

Shown = Callable[[Refusal], web.Response]
"""How a refusal looks: JSON for programs, a page for people."""

BROKEN_BODY = Refusal(400, "broken_body", "the body ended before it was complete", close=True)
UNAVAILABLE = Refusal(503, "unavailable", "not stored for certain; send it again", retry_after=5)


@dataclass(frozen=True, slots=True)
class Answer:
    """A response and the word for it in logs and metrics; `error` is the class of what went wrong."""

    response: web.Response
    outcome: str
    error: str | None = None


def as_json(refusal: Refusal) -> web.Response:
    """A refusal for programs."""
    return json_response({"error": refusal.outcome, "detail": refusal.sentence}, status=refusal.status)


async def answered(work: Awaitable[Answer], deadline: float, shown: Shown = as_json) -> Answer:
    """What the work answers within `deadline` seconds, or what its failure does.

    Failure policy: closed. What is not certainly stored is answered 503, and the caller sends it again.
    """
    try:
        async with asyncio.timeout(deadline):
            return await work
    except Refusal as refusal:
        return Answer(_response(refusal, shown), refusal.outcome)
    except web.RequestPayloadError:
        return Answer(_response(BROKEN_BODY, shown), BROKEN_BODY.outcome)
    except ConnectionError:
        return Answer(_response(UNAVAILABLE, shown), "caller_gone")
    except (TimeoutError, PyMongoError, PayLatchError) as error:
        return Answer(_response(UNAVAILABLE, shown), UNAVAILABLE.outcome, type(error).__name__)
    except Exception as error:  # noqa: BLE001 - a bug of ours must not become a lost event
        return Answer(_response(UNAVAILABLE, shown), "error", type(error).__name__)


async def send(request: web.Request, response: web.Response) -> bool:
    """Write the whole answer; False when the caller has gone."""
    try:
        await response.prepare(request)
        await response.write_eof()
    except ConnectionError:
        return False
    return True


def _response(refusal: Refusal, shown: Shown) -> web.Response:
    response = shown(refusal)
    if refusal.close:
        response.force_close()
    if refusal.retry_after:
        response.headers["Retry-After"] = str(refusal.retry_after)
    return response
