"""Which ids of a provider's unsigned header are taken as they are."""

from __future__ import annotations

import hashlib

import pytest

from webhook.admission import event_id_of

RAW = b"{}"
BY_BODY = f"body:{hashlib.sha256(RAW).hexdigest()}"


@pytest.mark.parametrize("event_id", ["Rp71ZiqdEWusLa", "evt_1", "a.b-c", "9:1", "E1:2", "a" * 128])
def test_a_well_formed_id_is_taken(event_id: str) -> None:
    assert event_id_of([event_id], RAW) == event_id


@pytest.mark.parametrize("event_id", ["", "a b", "a~b", "ä", "a" * 129, "a\n"])
def test_any_other_is_made_from_the_body(event_id: str) -> None:
    assert event_id_of([event_id], RAW) == BY_BODY


@pytest.mark.parametrize("event_id", ["callback:order_1:pay_1", "operator:0", "reconcile:0", "body:0"])
def test_no_header_claims_an_id_of_ours(event_id: str) -> None:
    assert event_id_of([event_id], RAW) == BY_BODY
