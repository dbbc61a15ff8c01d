"""Every reason for which money goes to review has its own words about what to do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.words import FACT_AT, settings
from watcher.render import Renderer

ROOT = Path(__file__).parents[2]
PRODUCERS = ("models/terms.py", "models/derive.py", "models/reviews.py", "webhook/orders.py")
"""Where reasons come from; in these files every text of words joined by `_` is a reason, but for the ones below."""
OTHERS = {"payment_link"}
ENDS = ("expired", "cancelled")
FOREIGN = ("cancelled", "COD", "null", "7", "other")
OPEN_ENDED = {"paid_after_": [f"paid_after_link_{end}" for end in ENDS]}
_REASON = re.compile(r"[a-z]+(?:_[a-z]+)+_?")


def literals() -> Iterator[str]:
    for file in PRODUCERS:
        for node in ast.walk(ast.parse((ROOT / file).read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _REASON.fullmatch(node.value):
                yield node.value


PRODUCED = set(literals()) - OTHERS
REASONS = sorted({reason for found in PRODUCED for reason in OPEN_ENDED.get(found, [found])})


@cache
def renderer() -> Renderer:
    return Renderer(settings())


def advice(reason: str, channel: str = "email") -> str:
    entry = {"reason": reason, "ref": "pay_1", "amount": 4900, "currency": "INR", "state": "open"}
    order = {"orderNumber": "A-1", "payment": {"amount": 49900, "currency": "INR", "review": [entry]}}
    rendered = renderer().render("payment_review", f"{reason}:pay_1", channel, "admin", order, FACT_AT)
    return rendered.text.partition("What to do:")[2]


def test_the_reasons_are_found_in_the_code() -> None:
    known = {"amount_mismatch", "currency_mismatch", "expected_amount_missing", "amount_unreadable"}
    known |= {"duplicate_capture", "payment_on_two_orders", "order_keys_disagree", "refunded_more_than_captured"}
    assert set(REASONS) == known | {"link_amount_differs", "paid_after_link_expired", "paid_after_link_cancelled"}


@pytest.mark.parametrize("channel", ["email", "inapp"])
@pytest.mark.parametrize("reason", [*REASONS, *(f"paid_after_{status}" for status in FOREIGN)])
def test_every_reason_has_its_own_advice(reason: str, channel: str) -> None:
    told = advice(reason, channel)
    assert told.strip() != advice("a_reason_that_nobody_knows", channel).strip()
    assert re.search(r"paylatch orders review (accept|reject) ORDER", told)


def test_each_advice_is_of_its_reason_alone() -> None:
    told = {reason: advice(reason) for reason in REASONS if reason != "currency_mismatch"}
    assert len(set(told.values())) == len(told)


def test_money_that_can_never_be_accepted_is_not_advised_to_be() -> None:
    for reason in ("amount_unreadable", "payment_on_two_orders"):
        assert "review accept" not in advice(reason)


def test_a_reason_of_the_future_is_still_told_what_to_do() -> None:
    assert "accept the money" in advice("a_reason_that_nobody_knows")
