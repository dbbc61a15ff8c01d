"""Published and observed bodies, where the folder with them lies beside the repository."""

from __future__ import annotations

from pathlib import Path

import bson
import pytest

from models.errors import Unparseable
from models.facts import Event
from tests.support import sample
from webhook.payload import storable
from webhook.providers.razorpay import Razorpay

FOLDER = Path(__file__).resolve().parents[2].parent / "shared" / "razorpay-samples"
FILES = sorted(path for path in FOLDER.glob("*") if path.is_file() and not path.name.startswith("_"))
VALID = [path for path in FILES if not path.name.startswith("INVALID__")]
INVALID = [path for path in FILES if path.name.startswith("INVALID__")]

pytestmark = pytest.mark.skipif(not FILES, reason="no samples beside the repository")


def parse(path: Path) -> Event:
    return Razorpay(sample.settings("mongodb://127.0.0.1:1", "paylatch")).parse(path.read_bytes())


@pytest.mark.parametrize("path", VALID, ids=lambda path: path.name)
def test_a_published_body_is_an_event_whose_name_and_payload_are_kept(path: Path) -> None:
    try:
        event = parse(path)
    except Unparseable:
        assert not path.name.startswith(tuple(Razorpay.event_types)), "a body that moves money must be understood"
        return
    assert path.name.removeprefix("real__").removeprefix("sdk_fixture__").startswith(event.event_type)
    stored = storable(event.payload)
    assert stored == event.payload
    assert bson.decode(bson.encode(stored)) == stored
    if event.event_type in Razorpay.event_types and not event.event_type.endswith((".expired", ".cancelled")):
        (fact,) = event.payments
        assert fact.amount is not None
        assert fact.currency is not None
        assert fact.captured == (fact.status == "captured")


@pytest.mark.parametrize("path", INVALID, ids=lambda path: path.name)
def test_a_body_that_is_no_json_is_kept_as_unparseable_or_understood_but_nothing_else_happens(path: Path) -> None:
    try:
        event = parse(path)
    except Unparseable:
        return
    assert event.event_type


def test_most_of_the_samples_are_events() -> None:
    understood = 0
    for path in VALID:
        try:
            understood += bool(parse(path).event_type)
        except Unparseable:
            continue
    assert understood >= 0.9 * len(VALID)
