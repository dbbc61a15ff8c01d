"""An order's raw events: what each says, and what it changed or why nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from models.errors import Unparseable
from models.facts import CallbackFact, DecisionFact, Event, LinkFact, PaymentFact, RefundFact
from models.states import EventStatus
from scripts.order_parts import EventPart, Fact, Said, Sum
from scripts.stored_values import Raw, at, clean, mapping, moment, words
from webhook.event_rows import FOR_TERMS
from webhook.payload import read_object

_PAYER = ("email", "contact", "vpa")
_CARD = ("name", "network", "last4")
_IGNORED = {
    "unknown_type": "ignored: no event of this type moves an order",
    "foreign_account": "ignored: it is about another account than the configured ones",
    "no_order_id": "ignored: it names no order",
}

Parser = Callable[[Raw], Event | None]


def parsed(row: Raw, parse: Callable[[bytes], Event]) -> Event | None:
    """The typed view of a stored event; None for bytes that are none."""
    try:
        return parse(bytes(row["rawBody"]))
    except (Unparseable, KeyError, TypeError):
        return None


def said(event: Event | None) -> tuple[Said, ...]:
    """What an event says of payments, refunds and links, of a browser that came back, and of a decision."""
    if event is None:
        return ()
    money: list[PaymentFact | RefundFact | LinkFact] = [*event.payments, *event.refunds, *event.links]
    return (*map(_said, money), *map(_callback, event.callbacks), *map(_decision, event.decisions))


def _said(fact: PaymentFact | RefundFact | LinkFact) -> Said:
    captured = isinstance(fact, PaymentFact) and fact.captured
    return Said(clean(fact.id), clean(fact.status), captured, Sum(fact.amount, fact.currency))


def _callback(fact: CallbackFact) -> Said:
    return Said(clean(fact.payment_id), "confirmed by the browser, with the provider's signature")


def _decision(fact: DecisionFact) -> Said:
    return Said(f"{clean(fact.reason)} of {clean(fact.ref)}", f"{fact.state} by {clean(fact.by)}: {clean(fact.why)}")


def fact_of(entry: Raw) -> Fact:
    """An entry of the history."""
    seq = entry.get("seq")
    return Fact(
        seq=seq if isinstance(seq, int) else None,
        at=moment(entry.get("at")),
        fact=clean(entry.get("fact")),
        ref=clean(entry.get("ref")),
        reason=clean(entry.get("reason")),
        was=clean(entry.get("from")),
        now=clean(entry.get("to")),
        event_id=clean(mapping(entry.get("cause")).get("eventId")),
    )


def event_part(row: Raw, parse: Parser, history: Iterable[Fact], *, reveal: bool) -> EventPart:
    """A stored event with the entries of the history that it caused."""
    changed = tuple(fact for fact in history if fact.event_id == clean(row["eventId"]))
    return EventPart(
        event_id=clean(row["eventId"]),
        event_type=clean(row.get("eventType")),
        origin=clean(row.get("origin")),
        received_at=moment(row.get("receivedAt")),
        status=clean(row.get("status")),
        outcome=clean(mapping(row.get("outcome")).get("code")),
        result=_result(row, changed),
        attempts=int(row.get("attempts") or 0),
        next_attempt_at=moment(row.get("nextAttemptAt")),
        parked_until=moment(row.get("parkedUntil")) if row.get("status") == EventStatus.PARKED else None,
        error=clean(row.get("error")),
        duplicates=int(mapping(row.get("duplicates")).get("count") or 0),
        requeues=int(row.get("requeues") or 0),
        flags=words(row.get("flags")),
        order_id=clean(mapping(row.get("refs")).get("orderId")),
        link_id=clean(mapping(row.get("refs")).get("paymentLinkId")),
        says=said(parse(row)),
        changed=changed,
        payer=_payer(row) if reveal else {},
    )


def _result(row: Raw, changed: Sequence[Fact]) -> str:
    """What the event changed, or why it changed nothing."""
    outcome = mapping(row.get("outcome"))
    code, detail = clean(outcome.get("code")), clean(outcome.get("detail"))
    match row.get("status"):
        case EventStatus.COMPLETED if changed:
            return "; ".join(map(str, changed))
        case EventStatus.COMPLETED:
            nothing_new = "changed nothing: everything it says was known already"
            return nothing_new if code == "already_applied" else "added details; no new fact"
        case EventStatus.IGNORED:
            return _IGNORED.get(code, f"ignored: {code}")
        case EventStatus.DEAD:
            return f"dead ({code}): {detail}" if detail else f"dead ({code})"
        case _:
            return _unsettled(row)


def _unsettled(row: Raw) -> str:
    """Why the event changed nothing yet, and when it goes on."""
    due = at(row.get("nextAttemptAt"))
    match row.get("status"):
        case EventStatus.PARKED:
            terms = mapping(row.get("outcome")).get("code") == FOR_TERMS
            what = "the provider's terms" if terms else "its order"
            return f"parked: waits for {what} since {at(row.get('receivedAt'))}, looks again at {due}"
        case EventStatus.FAILED:
            return f"failed: {clean(row.get('errorDetail')) or clean(row.get('error'))}; tried again at {due}"
        case EventStatus.PROCESSING:
            return "a worker is at it"
        case _:
            return "waits for a worker"


def _payer(row: Raw) -> dict[str, str]:
    """Who paid, as the body has it: personal data."""
    try:
        payload = mapping(read_object(bytes(row["rawBody"])).get("payload"))
    except (Unparseable, KeyError, TypeError):
        return {}
    entity = mapping(mapping(payload.get("payment")).get("entity"))
    card = mapping(entity.get("card"))
    known = {name: clean(entity.get(name)) for name in _PAYER}
    known["card"] = " ".join(clean(card[name]) for name in _CARD if card.get(name))
    return {name: value for name, value in known.items() if value}
