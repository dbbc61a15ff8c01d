"""An order's story as one self-contained page, to be attached to a ticket."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from models.alerts import ADVICE
from scripts.order_parts import EventPart, Story, Verdict, paid
from scripts.order_text import decided, events_title, fulfilment, parts_allowed, remarks, reviews_title
from scripts.stored_values import clean

TEMPLATES = Path(__file__).parent / "templates"
_GOOD = frozenset({"completed", "sent", "processed", "captured", "paid", "accepted", "resolved"})
_BAD = frozenset({"dead", "failed", "unknown", "expired", "cancelled", "rejected"})
_WAITING = frozenset(
    {
        *("received", "processing", "parked", "pending", "sending", "retry", "authorized", "held"),
        *("partially_paid", "callback"),
    }
)


def page(story: Story, verdict: Verdict, now: datetime, *, revealed: bool) -> str:
    """HTML without scripts and without anything that is loaded from elsewhere; every value is escaped."""
    return _template().render(
        story=story,
        order=story.order,
        verdict=verdict,
        now=now,
        revealed=revealed,
        fulfilment=fulfilment(story),
        paid=paid(story),
        reviews_title=reviews_title(story),
        events_title=events_title(story),
        advice=ADVICE,
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: "" if value is None else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        moment=_moment, remarks=remarks, decided=decided, parts=parts_allowed, shade=_shade, dot=_dot, clean=clean
    )
    return environment.get_template("order.html")


def _moment(value: datetime | None) -> str:
    return f"{value.astimezone(UTC):%d %b %Y, %H:%M:%S}" if value else ""


def _shade(status: str) -> str:
    """The colour of a status: one of four names that the page's style knows."""
    if status in _GOOD:
        return "good"
    if status in _BAD:
        return "bad"
    return "waiting" if status in _WAITING else "quiet"


def _dot(event: EventPart) -> str:
    """The colour of an event on the line of time: what it said of the money, where it took effect."""
    facts = {fact.fact for fact in event.changed}
    if "payment_review" in facts:
        return "look"
    return "bad" if facts & {"payment_failed", "refund_failed"} else _shade(event.status)
