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

BROKEN_BODY = Refusal(400, "broken_body", "the body ended before it was complete", close=True)


@dataclass(frozen=True, slots=True)
class Answer:
    """A response and the word for it in logs and metrics; `error` is the class of what went wrong."""

    response: web.Response
    outcome: str
    error: str | None = None


def refused(refusal: Refusal) -> web.Response:
    """The answer to what is not believed."""
    return json_response({"error": refusal.outcome, "detail": refusal.sentence}, status=refusal.status)


async def answered(
    work: Awaitable[Answer],
    deadline: float,
    refused: Callable[[Refusal], web.Response] = refused,
) -> Answer:
    """What the work answers within `deadline` seconds, or what its failure does.

    Failure policy: closed. What is not certainly stored is answered 503, and the caller sends it again.
    """
    try:
        async with asyncio.timeout(deadline):
            return await work
    except Refusal as refusal:
        return _ended(refused, refusal)
    except web.RequestPayloadError:
        return _ended(refused, BROKEN_BODY)
    except ConnectionError:
        return Answer(unavailable(), "caller_gone")
    except (TimeoutError, PyMongoError, PayLatchError) as error:
        return Answer(unavailable(), "unavailable", type(error).__name__)
    except Exception as error:  # noqa: BLE001 - a bug of ours must not become a lost event
        return Answer(unavailable(), "error", type(error).__name__)


def unavailable() -> web.Response:
    """The answer while it is not certain that anything was stored."""
    response = json_response({"error": "unavailable", "detail": "not stored for certain; send it again"}, status=503)
    response.headers["Retry-After"] = "5"
    return response


async def send(request: web.Request, response: web.Response) -> bool:
    """Write the whole answer; False when the caller has gone."""
    try:
        await response.prepare(request)
        await response.write_eof()
    except ConnectionError:
        return False
    return True


def _ended(refused: Callable[[Refusal], web.Response], refusal: Refusal) -> Answer:
    response = refused(refusal)
    if refusal.close:
        response.force_close()
    if refusal.retry_after:
        response.headers["Retry-After"] = str(refusal.retry_after)
    return Answer(response, refusal.outcome)
