from __future__ import annotations

import io
import json
from datetime import UTC, datetime

import pytest
from bson import ObjectId
from rich.console import Console

from scripts.output import MASK, masked, print_json, print_table
from tests.support import sample


def test_contact_email_vpa_and_card_are_masked_however_deep_they_are() -> None:
    entity = sample.payment(
        1, card={"network": "Visa", "last4": "1111", "tokens": ["t"], "emi": False, "iin": None}, contact=910000000001
    )
    shown = masked(sample.event("payment.captured", payment=entity))["payload"]["payment"]["entity"]
    assert (shown["email"], shown["contact"], shown["vpa"]) == (MASK, MASK, MASK)
    assert shown["card"] == {"network": MASK, "last4": MASK, "tokens": [MASK], "emi": False, "iin": None}
    assert shown["upi"]["vpa"] == MASK
    assert (shown["id"], shown["amount"]) == (entity["id"], entity["amount"])


def test_masking_reaches_into_lists() -> None:
    assert masked([[{"customer_details": {"name": "Asha", "addresses": [{"zip": "1"}]}}]]) == [
        [{"customer_details": {"name": MASK, "addresses": [{"zip": MASK}]}}]
    ]


@pytest.mark.parametrize("value", [None, True, False])
def test_an_absent_value_is_shown_as_absent(value: object) -> None:
    assert masked({"email": value}) == {"email": value}


@pytest.mark.parametrize("value", ["", 0, 7.5, "asha@example.com"])
def test_every_other_value_is_hidden_with_its_length(value: object) -> None:
    assert masked({"contact": value}) == {"contact": MASK}


def test_what_is_masked_is_a_copy() -> None:
    body = sample.captured(1)
    before = json.dumps(body)
    masked(body)
    assert json.dumps(body) == before


@pytest.mark.parametrize("value", [7, "text", None, b"raw"])
def test_a_plain_value_is_left_alone(value: object) -> None:
    assert masked(value) == value


def test_json_for_machines_holds_what_json_has_no_type_for(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    stored = {
        "_id": ObjectId("a" * 24),
        "at": datetime(2026, 1, 1, 12, tzinfo=UTC),
        "raw": b"\xff{}",
        7: "number",
        "path": ValueError("odd"),
    }
    print_json(stored)
    written = capfdbinary.readouterr().out
    assert written.endswith(b"}\n")
    assert json.loads(written) == {
        "_id": "a" * 24,
        "at": "2026-01-01T12:00:00+00:00",
        "raw": "\ufffd{}",
        "7": "number",
        "path": "odd",
    }


def test_a_table_shows_data_as_data() -> None:
    paper = io.StringIO()
    console = Console(file=paper, width=100, color_system=None, force_terminal=False)
    rows = [["[bold red]E1[/]", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), None, "a\x1b[2Jb\nc", 7]]
    print_table("Events", ["id", "at", "none", "odd", "count"], rows, console)
    shown = paper.getvalue()
    assert "[bold red]E1[/]" in shown
    assert "2026-01-02 03:04:05" in shown
    assert "a�[2Jb�c" in shown
    assert "None" not in shown
    assert "\x1b" not in shown
