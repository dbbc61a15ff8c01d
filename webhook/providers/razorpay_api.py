"""Razorpay's API, read only: what it says now about payments, orders, refunds and payment links.

Its SDK is synchronous and, left alone, waits for ever, prints to standard output when a connection fails, takes 401 and
429 for bad requests, and trusts a list of certificate authorities of 2015. So it gets a session of ours, which has
timeouts, bounded retries and our errors, and every call runs in a thread.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import razorpay
import requests
from requests.adapters import HTTPAdapter
from urllib3 import BaseHTTPResponse
from urllib3.exceptions import InvalidHeader, MaxRetryError
from urllib3.util import Retry

from models.errors import (
    CredentialsRefused,
    PayLatchError,
    ProviderRefused,
    ProviderThrottled,
    ProviderUnavailable,
    SettingsError,
)
from models.settings import RazorpaySettings

Json = dict[str, Any]

PAGE = 100
"""Items of one page; the API gives no more."""
CONNECTIONS = 4
LONGEST_RETRY_AFTER = 5
"""Seconds that a request waits when the API says for how long; asked for more, it gives up and says so."""
_RETRIED = (429, 500, 502, 503, 504)
_ID = re.compile(r"[A-Za-z0-9_]{1,64}")


class RazorpayApi:
    """Open while it is entered.

    Every method raises `ProviderUnavailable` (`ProviderThrottled` when asked to wait) or `CredentialsRefused`, and
    `ProviderRefused` when the API does not know the id. No error and no log line holds the key's secret.
    """

    def __init__(self, settings: RazorpaySettings) -> None:
        """Raises `SettingsError` without a key."""
        key = require_key(settings)
        self._session = _Session(settings)
        self._client = razorpay.Client(session=self._session, auth=key, base_url=settings.api_url)
        self._client.cert_path = True  # the authorities that `requests` trusts, not the SDK's old list
        self._client.set_app_details({"title": "PayLatch"})
        self._threads = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="razorpay")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """A request under way ends by its own timeout; nobody waits for it."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._session.close()

    async def answers(self) -> None:
        """Ask for as little as possible, only to see that the API takes our key."""
        _items(await self._ask(self._client.payment.all, {"count": 1}))

    async def payment(self, payment_id: str) -> Json:
        """One payment."""
        return await self._one(self._client.payment.fetch, payment_id)

    async def order(self, order_id: str) -> Json:
        """One of the provider's orders."""
        return await self._one(self._client.order.fetch, order_id)

    async def refund(self, refund_id: str) -> Json:
        """One refund."""
        return await self._one(self._client.refund.fetch, refund_id)

    async def payment_link(self, link_id: str) -> Json:
        """One payment link."""
        return await self._one(self._client.payment_link.fetch, link_id)

    async def order_payments(self, order_id: str) -> list[Json]:
        """All payments of one of the provider's orders, failed ones too; this list is not paged."""
        return _items(await self._ask(self._client.order.payments, _checked(order_id)))

    def payment_refunds(self, payment_id: str) -> AsyncIterator[Json]:
        """All refunds of one payment."""
        return self._all(self._client.payment.fetch_multiple_refund, _checked(payment_id))

    def payments(self, since: int, until: int) -> AsyncIterator[Json]:
        """Payments made from `since` until before `until` (unix seconds); the list may lag minutes behind."""
        return self._all(self._client.payment.all, since=since, until=until)

    def refunds(self, since: int, until: int) -> AsyncIterator[Json]:
        """Refunds made from `since` until before `until` (unix seconds); the list may lag minutes behind."""
        return self._all(self._client.refund.all, since=since, until=until)

    async def _one(self, ask: Callable[[str], Json], entity_id: str) -> Json:
        entity = await self._ask(ask, _checked(entity_id))
        if entity.get("id") != entity_id:
            raise ProviderUnavailable("Razorpay's API answered with something else than what was asked for")
        return entity

    async def _all(
        self, ask: Callable[..., Json], *of: str, since: int | None = None, until: int | None = None
    ) -> AsyncIterator[Json]:
        """Every item once, page by page, until a page is empty, or short and without news; a short page proves nothing.

        New items come first and push the others to later pages, where they are seen again; none is skipped.
        """
        period = {} if since is None or until is None else {"from": since, "to": until - 1}  # the API includes both
        seen: set[str] = set()
        skip = 0
        while items := _items(await self._ask(ask, *of, {**period, "count": PAGE, "skip": skip})):
            skip += len(items)
            fresh = {item["id"]: item for item in items if item["id"] not in seen}
            seen |= fresh.keys()
            for item in fresh.values():
                yield item
            if not fresh and len(items) < PAGE:
                return

    async def _ask(self, ask: Callable[..., Json], *arguments: object) -> Json:
        """In a thread, since the SDK blocks."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, functools.partial(ask, *arguments))


def require_key(settings: RazorpaySettings) -> tuple[str, str]:
    """Both parts of the API key. Raises `SettingsError` when one is missing."""
    secret = settings.key_secret.get_secret_value() if settings.key_secret else ""
    if not settings.key_id or not secret:
        raise SettingsError(
            "the API key is not set: put both parts of it, from the API keys page of the Razorpay dashboard, into "
            "PAYLATCH_RAZORPAY__KEY_ID and PAYLATCH_RAZORPAY__KEY_SECRET",
        )
    return settings.key_id, secret


class _Session(requests.Session):
    """Gives every request its timeouts and turns every failure into one of our errors."""

    def __init__(self, settings: RazorpaySettings) -> None:
        super().__init__()
        self.trust_env = settings.api_url.startswith("https:")  # what is on this machine is behind no proxy
        self._timeouts = (settings.api_connect_timeout, settings.api_read_timeout)
        tries = _Retries(
            total=settings.api_retries,
            connect=0,
            read=False,  # its own error instead of one that counts tries
            other=0,
            redirect=0,
            allowed_methods=frozenset({"GET"}),
            status_forcelist=_RETRIED,
            backoff_factor=0.5,
            raise_on_status=False,
        )
        adapter = HTTPAdapter(max_retries=tries, pool_maxsize=CONNECTIONS)
        self.mount("https://", adapter)
        self.mount("http://", adapter)
        self.hooks["response"].append(_judge)

    def request(self, *arguments: Any, **options: Any) -> requests.Response:  # noqa: ANN401 - the library's
        """Once, with `requests`' own errors translated: they hold the request, and with it the secret."""
        options |= {"timeout": self._timeouts, "allow_redirects": False}
        try:
            return super().request(*arguments, **options)
        except requests.Timeout:
            raise ProviderUnavailable("Razorpay's API did not answer in time") from None
        except requests.RequestException as error:
            msg = f"Razorpay's API cannot be reached ({type(error).__name__}): is PAYLATCH_RAZORPAY__API_URL right?"
            raise ProviderUnavailable(msg) from None


class _Retries(Retry):
    """Gives up at once when the API asks for a longer pause than a request may take."""

    def get_retry_after(self, response: BaseHTTPResponse) -> float | None:
        """The seconds it asks for; what cannot be read asks for nothing."""
        try:
            return super().get_retry_after(response)
        except InvalidHeader:
            return None

    def increment(self, *arguments: Any, **options: Any) -> Self:  # noqa: ANN401 - the library's
        """The next try, unless there must be none."""
        response = options.get("response")
        if response is not None and (self.get_retry_after(response) or 0) > LONGEST_RETRY_AFTER:
            raise MaxRetryError(options["_pool"], "the API asks for a long pause")
        return super().increment(*arguments, **options)


def _judge(response: requests.Response, *_: object, **__: object) -> None:
    """The response hook: whatever is no JSON object with status 2xx is one of our errors."""
    status = response.status_code
    if error := _error(response):
        response.close()
        raise error
    try:
        body = response.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise ProviderUnavailable(f"Razorpay's API answered {status} with a body that is no JSON object")


def _error(response: requests.Response) -> PayLatchError | None:
    """By status; the provider's own words stay out, since they may quote anything."""
    status = response.status_code
    if 200 <= status < 300:
        return None
    if status in {401, 403}:
        return CredentialsRefused(
            f"Razorpay's API does not take our key ({status}): check PAYLATCH_RAZORPAY__KEY_ID and "
            "PAYLATCH_RAZORPAY__KEY_SECRET, and that the key may read",
        )
    if status == 429:
        return _throttled(response.headers.get("Retry-After"))
    if status in {408, 425} or not 400 <= status < 500:
        return ProviderUnavailable(f"Razorpay's API is out of order (it answered {status})")
    return ProviderRefused(f"Razorpay's API does not know what was asked for (it answered {status})")


def _throttled(pause: str | None) -> ProviderThrottled:
    seconds = float(pause) if pause is not None and pause.isascii() and pause.isdigit() else None
    wait = "later" if seconds is None else f"in {seconds:g} s"
    return ProviderThrottled(f"Razorpay's API has been asked too often: try again {wait}", seconds)


def _checked(entity_id: str) -> str:
    """Ids become a part of the address, so nothing else may pass. Raises `ProviderRefused`."""
    if not _ID.fullmatch(entity_id):
        raise ProviderRefused("Razorpay's API was not asked: that is no id of its")
    return entity_id


def _items(answer: Json) -> list[Json]:
    """The entities of a list. Raises `ProviderUnavailable` when it is none."""
    items = answer.get("items")
    if not isinstance(items, list) or not all(
        isinstance(item, dict) and isinstance(item.get("id"), str) for item in items
    ):
        raise ProviderUnavailable("Razorpay's API answered with something that is no list of what was asked for")
    return items
