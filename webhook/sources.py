"""Where stored messages come from: which parser reads each, and whether it is about orders of ours."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from models.database import RawDocument
from models.facts import Event
from models.states import Origin
from webhook.own_messages import OWN, parse_own
from webhook.providers import Provider

LookUp = Callable[[Provider, Event], Awaitable[Event | None]]
"""Asks the provider's API about the payment that an event names; None when it knows no such payment."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The providers, and their API where we have a key for it."""

    providers: Mapping[str, Provider]
    look_up: LookUp | None = None

    def parse(self, row: RawDocument) -> Event:
        """Read a stored message. Raises `Unparseable`."""
        raw = bytes(row["rawBody"])
        return parse_own(raw) if row["provider"] == OWN else self.providers[row["provider"]].parse(raw)

    def not_for_us(self, row: RawDocument, event: Event) -> str | None:
        """Why an authentic message moves nothing here, or None."""
        provider = self.providers.get(row["provider"])
        if provider is not None and event.event_type not in provider.event_types:
            return "unknown_type"
        if provider is not None and row["origin"] == Origin.WEBHOOK and not provider.is_ours(event):
            return "foreign_account"
        refs = event.refs  # a refund is found by its payment
        named = refs.order_id or refs.payment_link_id or event.refunds or event.order_key is not None
        return None if named else "no_order_id"

    async def asked(self, row: RawDocument, event: Event) -> Event | None:
        """What the provider's API says of the event's payment; None without an API, or when it knows nothing of it.

        Raises `Retryable` when the API cannot be reached.
        """
        provider = self.providers.get(row["provider"])
        return None if self.look_up is None or provider is None else await self.look_up(provider, event)
