"""Legal histories of one order, as Hypothesis draws them: who wrote the order, what was paid, refunded, and told.

A plan names nothing of a particular order, so the same plan can be told of several (`tests/support/told.py`), and what
must be true in the end follows from it alone (`tests/support/truth.py`), without the code under test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hypothesis import strategies as st

from tests.support.sample import AMOUNT

Shop = Literal["checkout", "second checkout", "link", "link and checkout", "number"]
"""What the shop wrote into its order: the provider's order, its link, both, or only its own number.

A second checkout is another provider order of the same cart, of which the shop's order knows nothing.
"""
RefundEnd = Literal["pending", "processed", "failed", "processed, then failed"]
LinkEnd = Literal["expired", "cancelled"]
LINK_ENDS: tuple[LinkEnd | None, ...] = (None, None, "expired", "cancelled")
LETTERS = "ABCDE"
FOREIGN: tuple[object, ...] = ("cancelled", "COD", None, 7)


@dataclass(frozen=True)
class Payment:
    """One attempt to pay; `at` is in seconds after the first."""

    letter: str
    amount: int
    at: int
    failed: bool = False
    """It failed (first, when it was captured after all)."""
    authorized: bool = False
    """Somebody says that it was authorised."""
    captured_by: tuple[str, ...] = ()
    """The messages beside the link's that show the capture: payment.captured, order.paid, reconcile, ahead."""
    captured: bool = False
    callback: bool = False
    second_order: bool = False
    """It was made in the second checkout."""


@dataclass(frozen=True)
class Refund:
    """A refund of the payment `letter`; `kinds` are the messages beside the ones that its end implies."""

    letter: str
    nth: int
    amount: int
    end: RefundEnd
    kinds: tuple[str, ...] = ()
    old_shape: bool = False

    @property
    def processed(self) -> bool:
        return self.end in {"processed", "processed, then failed"}

    @property
    def failed(self) -> bool:
        return self.end in {"failed", "processed, then failed"}


@dataclass(frozen=True)
class Link:
    """The order's payment link."""

    partial: bool
    end: LinkEnd | None = None
    reconciled: bool = False


@dataclass(frozen=True)
class Plan:
    """A history. `expected` is what the shop wants, in the smallest unit; `status` is what it wrote."""

    shop: Shop
    payments: tuple[Payment, ...]
    refunds: tuple[Refund, ...] = ()
    link: Link | None = None
    accept_partial: bool | None = None
    status: object = "pending"
    expected: int = AMOUNT

    @property
    def captured(self) -> list[Payment]:
        """The payments whose money came in, in the order in which they count."""
        return sorted((each for each in self.payments if each.captured), key=lambda each: (each.at, each.letter))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Any legal history."""
    shop: Shop = draw(
        st.sampled_from(["checkout", "checkout", "second checkout", "link", "link and checkout", "number"])
    )
    linked = shop in {"link", "link and checkout"} or (shop == "number" and draw(st.booleans()))
    link = Link(draw(st.booleans()), draw(st.sampled_from(LINK_ENDS)), draw(st.booleans()))
    payments = draw(_link_payments(link) if linked else _checkout_payments(shop))
    status = draw(st.sampled_from([*["pending"] * 10, *FOREIGN]))
    whole = not (linked and link.partial)
    partial = draw(st.sampled_from([None, None, True, False]))
    wrong = whole and not partial and draw(st.integers(0, 5)) == 0
    return Plan(
        shop=shop,
        payments=payments,
        refunds=draw(_refunds(payments)),
        link=link if linked else None,
        accept_partial=partial,
        status=status,
        expected=AMOUNT + draw(st.sampled_from([-100, 100])) if wrong else AMOUNT,
    )


@st.composite
def _checkout_payments(draw: st.DrawFn, shop: Shop) -> tuple[Payment, ...]:
    """Attempts until one succeeds, at times two; each is over the whole amount."""
    named = shop == "checkout"
    count = draw(st.integers(1, 3))
    captured = [draw(st.integers(0, 2)) > 0 for _ in range(count)]
    if not named and not any(captured):  # nothing else would say which order it is
        captured[-1] = True
    payments = []
    for place in range(count):
        second = shop == "second checkout" and place == count - 1
        captured[place] = captured[place] or second
        first_of_its_order = captured[place] and (second or not any(captured[:place]))
        must = ("order.paid",) if first_of_its_order and (second or shop == "number") else ()
        may = ("payment.captured", "reconcile", "ahead", *(("order.paid",) if first_of_its_order else ()))
        payments.append(draw(_payment(place, AMOUNT, captured=captured[place], must=must, may=may, second=second)))
    return tuple(payments)


@st.composite
def _link_payments(draw: st.DrawFn, link: Link) -> tuple[Payment, ...]:
    """Payments of a link: the whole, or parts that add up to it or to less; none, when it ended unpaid."""
    if link.end is not None and draw(st.booleans()):
        return ()
    shares = draw(st.sampled_from([(1,), (2, 3), (2,), (1, 2, 2)])) if link.partial else (5,)
    amounts = [AMOUNT * share // 5 for share in shares]
    whole, payments = sum(amounts) == AMOUNT, []
    if draw(st.booleans()):
        failed = draw(_payment(0, amounts[0], captured=False, must=(), may=()))
        payments.append(failed)
    for place, amount in enumerate(amounts, start=1):
        last = ("order.paid",) if whole and place == len(amounts) else ()
        may = ("payment.captured", "reconcile", "ahead", *last)
        payments.append(draw(_payment(len(payments), amount, captured=True, must=(), may=may)))
    return tuple(payments)


@st.composite
def _payment(
    draw: st.DrawFn,
    place: int,
    amount: int,
    *,
    captured: bool,
    must: tuple[str, ...],
    may: tuple[str, ...],
    second: bool = False,
) -> Payment:
    """The `place`-th payment; two may be made in the same second."""
    told = draw(st.lists(st.sampled_from(may), unique=True, max_size=2)) if captured and may else []
    by = tuple(dict.fromkeys([*must, *told])) or ("payment.captured",) * captured
    authorized = draw(st.booleans())
    return Payment(
        letter=LETTERS[place],
        amount=amount,
        at=place * draw(st.sampled_from([0, 100])),
        failed=draw(st.booleans()) or (not captured and not authorized),
        authorized=authorized,
        captured_by=by,
        captured=captured,
        callback=(captured or authorized) and draw(st.booleans()),
        second_order=second,
    )


@st.composite
def _refunds(draw: st.DrawFn, payments: tuple[Payment, ...]) -> tuple[Refund, ...]:
    """Refunds whose standing sums stay within what was captured; one that failed may be tried again.

    What was authorised and never captured, the provider may give back by itself.
    """
    refunds: list[Refund] = []
    for payment in payments:
        if not payment.captured:
            if payment.authorized and draw(st.booleans()):
                refunds.append(Refund(payment.letter, len(refunds) + 1, payment.amount, "processed", old_shape=True))
            continue
        left = payment.amount
        for _ in range(draw(st.integers(0, 2))):
            amount = draw(st.sampled_from([left, max(1, left // 3)]))
            end: RefundEnd = draw(
                st.sampled_from(["processed", "processed", "processed", "pending", "failed", "processed, then failed"])
            )
            kinds = draw(st.lists(st.sampled_from(["created", "speed_changed", "reconcile"]), unique=True, max_size=2))
            if left == 0:
                break
            refunds.append(Refund(payment.letter, len(refunds) + 1, amount, end, tuple(kinds), draw(st.booleans())))
            left -= 0 if end.endswith("failed") else amount
    return tuple(refunds)
