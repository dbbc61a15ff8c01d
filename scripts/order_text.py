"""An order's story on a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from models.states import Origin
from scripts.order_parts import EventPart, Link, Review, Story, Tone, Verdict, counted, paid
from scripts.output import print_table
from scripts.stored_values import at

_STYLES: Mapping[Tone, str] = {
    "good": "bold green",
    "waiting": "bold yellow",
    "bad": "bold red",
    "look": "bold magenta",
}


def print_story(story: Story, verdict: Verdict, console: Console) -> None:
    """The sentence first, then the order, then what happened in order; times are in UTC."""
    console.print(Text(verdict.sentence, style=_STYLES[verdict.tone]))
    if verdict.todo:
        console.print(Text(verdict.todo))
    console.print()
    print_table("order (times are in UTC)", ("field", "value"), order_rows(story), console)
    if story.attempts:
        columns = ("payment", "statuses", "amount", "method", "error", "created", "details")
        rows = [
            (a.payment_id, ", ".join(a.statuses), a.sum, a.method, a.error, a.created_at, _pairs(a.details))
            for a in story.attempts
        ]
        print_table("payments", columns, rows, console)
    _print_exceptions(story, console)
    headings = ("event", "type", "received", "status", "attempts", "remarks", "says", "what it changed, or why not")
    print_table(events_title(story), headings, [_event_row(event) for event in story.events], console)
    if story.other_facts:
        others = [(fact.event_id or "-", fact.at, fact) for fact in story.other_facts]
        print_table("facts of events that are not stored here", ("event", "at", "fact"), others, console)
    _print_effects(story, console)


def order_rows(story: Story) -> list[tuple[str, object]]:
    """What the order expects and where it stands, as far as it is known."""
    order = story.order
    rows: list[tuple[str, object]] = [
        ("order", order.id),
        ("number", order.number),
        ("provider's order", order.provider_order_id),
        ("payment link", order.link_id),
        ("also known as", ", ".join(map(str, order.refs))),
        ("status", order.status),
        ("expected", order.expected),
        ("paid", paid(story)),
        ("refunded", order.refunded),
        ("payment", order.payment_id),
        ("method", order.method),
        ("paid at", order.paid_at),
        ("customer", _pairs(order.customer)),
        ("fulfilment", fulfilment(story)),
    ]
    return [(name, value) for name, value in rows if value not in (None, "")]


def parts_allowed(link: Link) -> str:
    """What a payment link says of paying in parts."""
    return {True: "parts allowed", False: "whole only", None: ""}[link.accept_partial]


def decided(review: Review) -> str:
    """Who closed a review entry, when and why; empty while it is open."""
    if review.open or not review.by:
        return ""
    return f"by {review.by} on {at(review.closed_at)}: {review.why}"


def fulfilment(story: Story) -> str:
    """Whether it may be shipped."""
    if story.fulfilment is None:
        return "none: do not ship yet"
    return f"ship: paid by {story.fulfilment.payment_id}"


def events_title(story: Story) -> str:
    """How many, and whether those are all."""
    events = counted(len(story.events), "event")
    return f"the first {events}" if story.more_events else events


def reviews_title(story: Story) -> str:
    """How many review entries wait for a decision."""
    waiting = sum(review.open for review in story.reviews)
    return f"review: {waiting} open" if waiting else "review: nothing open"


def remarks(event: EventPart) -> list[str]:
    """What is odd about an event."""
    found = [counted(event.duplicates, "duplicate")] if event.duplicates else []
    found += [f"requeued {event.requeues}×"] if event.requeues else []
    found += [event.origin] if event.origin not in {"", Origin.WEBHOOK} else []
    return [*found, *(flag.replace("_", " ") for flag in event.flags)]


def _event_row(event: EventPart) -> tuple[object, ...]:
    status = f"{event.status} ({event.outcome})" if event.outcome else event.status
    says = "; ".join([*map(str, event.says), *([_pairs(event.payer)] if event.payer else [])])
    odd = ", ".join(remarks(event))
    result = f"{event.result} [last error: {event.error}]" if event.error else event.result
    return event.event_id, event.event_type, event.received_at, status, event.attempts, odd, says, result


def _print_exceptions(story: Story, console: Console) -> None:
    if story.links:
        links = [(link.link_id, link.status, link.sum, parts_allowed(link), link.order_id) for link in story.links]
        print_table("payment links", ("link", "status", "amount", "parts", "its order"), links, console)
    if story.refunds:
        refunds = [(refund.refund_id, refund.payment_id, refund.status, refund.sum) for refund in story.refunds]
        print_table("refunds", ("refund", "payment", "status", "amount"), refunds, console)
    if story.reviews:
        reviews = [(r.ref, r.reason, r.state, r.sum, r.expected, decided(r)) for r in story.reviews]
        columns = ("payment", "reason", "state", "amount", "expected", "closed")
        print_table(reviews_title(story), columns, reviews, console)
    if story.alerts:
        alerts = [(alert.kind, alert.ref, alert.count, alert.last_at, alert.detail) for alert in story.alerts]
        print_table("open alerts", ("kind", "ref", "count", "last", "detail"), alerts, console)


def _print_effects(story: Story, console: Console) -> None:
    if story.ledger:
        booked = [(f"{entry.entry_type}:{entry.ref}", entry.sum, entry.booked_at) for entry in story.ledger]
        print_table("ledger", ("entry", "amount", "booked"), booked, console)
    columns = ("notice", "channel", "to", "status", "reason", "attempts", "sent", "unknown since", "address")
    rows = [
        (
            ":".join((row.notice, *row.refs)),
            row.channel,
            row.to,
            row.status,
            row.reason,
            row.attempts,
            row.sent_at,
            row.unknown_at,
            row.address,
        )
        for row in story.notifications
    ]
    print_table(counted(len(rows), "notification"), columns, rows, console)


def _pairs(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in values.items())
