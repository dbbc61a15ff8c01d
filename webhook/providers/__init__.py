"""One module per payment provider, each a `Provider`; a new one is added to `PROVIDERS` and passes the same tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from models.facts import Event
from models.settings import Settings
from models.states import OwnEvent
from webhook.providers.razorpay import Razorpay


class Provider(Protocol):
    """What the endpoint and the processing need to know of a provider."""

    name: str
    path: str
    """Where its webhooks arrive."""
    signature_header: str
    event_id_header: str
    event_id_signed: bool
    """Whether the signature covers the event's id; if not, the body's hash decides too."""
    event_types: frozenset[str]
    """Types that move orders; every other one is stored and ignored."""

    def signature(self, value: str) -> bytes | None:
        """The header's signature as bytes, or None when it cannot be one."""
        ...

    def signed_with(self, signature: bytes, raw: bytes) -> str | None:
        """Label of the secret that signed exactly these bytes, or None."""
        ...

    def parse(self, raw: bytes) -> Event:
        """The typed view of a body. Raises `Unparseable`."""
        ...

    def is_ours(self, event: Event) -> bool:
        """Whether the account is one we take events of."""
        ...


PROVIDERS: Mapping[str, Callable[[Settings], Provider]] = {"razorpay": Razorpay}


def providers(settings: Settings) -> dict[str, Provider]:
    """Every provider by its name, as configured."""
    return {name: make(settings) for name, make in PROVIDERS.items()}


def event_types(known: Mapping[str, Provider]) -> frozenset[str]:
    """Every type that moves orders; in metrics any other is `other`."""
    return frozenset[str](OwnEvent).union(*(provider.event_types for provider in known.values()))
