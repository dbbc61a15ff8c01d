"""The signed sender: true shapes, exact signatures, the same traffic from the same seed, attacks that bite."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import random
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port
from pymongo.errors import ServerSelectionTimeoutError

from models.errors import PayLatchError, Refused, SettingsError, Unavailable, WrongArgument
from scripts.simulate import Outcome, Trial, _print_json, _print_tables, _problems, simulate
from scripts.simulator import builders
from scripts.simulator.attacks import ATTACKS, AttackResult, Target, run_attacks
from scripts.simulator.checkout import checkout
from scripts.simulator.sender import Answer, Delivery, Sender, deliver, is_loopback, sign
from scripts.simulator.shop import OrderState, OrderUnderTest
from scripts.simulator.traffic import ALL_SOURCES, Report, TrafficOptions, plan, run, tampered

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scripts.simulator.builders import Json, Method
    from scripts.simulator.traffic import Traffic

SECRET = "a-webhook-secret"
OLD_SECRET = "an-older-secret"
ACCOUNT = "acc_00000000000000"
SAMPLES = Path(__file__).resolve().parents[3] / "shared" / "razorpay-samples"
OPTIONAL = {"reward", "base_amount", "token_iin"}


def options(**changes: Any) -> TrafficOptions:
    return TrafficOptions(**{"secrets": {"now": SECRET, "before": OLD_SECRET}, "current": "now", **changes})


def a_payment(method: Method = "upi", seed: int = 1) -> Json:
    return builders.payment(
        random.Random(seed), order_id="order_00000000000000", amount=49900, created_at=1_767_225_600, method=method
    )


def an_order() -> Json:
    return builders.order(random.Random(2), amount=49900, receipt="PL-1", created_at=1_767_225_590)


def firsts_by_order(traffic: Traffic) -> dict[str, list[Json]]:
    found: defaultdict[str, list[Json]] = defaultdict(list)
    for delivery in traffic.deliveries:
        if delivery.kind == "first":
            body = json.loads(delivery.raw)
            found[body["payload"]["payment"]["entity"]["order_id"]].append(body)
    return found


# --- builders -------------------------------------------------------------------------------------------------------


def test_ids_have_fourteen_base62_characters_after_the_prefix() -> None:
    rng = random.Random(1)
    for prefix in ("pay_", "order_", "acc_", ""):
        name = builders.identifier(rng, prefix)
        assert name.startswith(prefix)
        assert len(name) == len(prefix) + 14
        assert set(name.removeprefix(prefix)) <= set(builders.BASE62)


@pytest.mark.parametrize("method", builders.METHODS)
def test_each_method_fills_its_own_fields_only(method: Method) -> None:
    entity = a_payment(method)
    assert (entity["bank"] is not None) == (method == "netbanking")
    assert (entity["wallet"] is not None) == (method == "wallet")
    assert (entity["vpa"] is not None) == (method == "upi") == ("upi" in entity)
    assert (entity["card_id"] is not None) == (method == "card") == ("card" in entity)
    assert entity["card_id"] == entity.get("card", {}).get("id")
    assert all(entity["acquirer_data"].values())


@pytest.mark.parametrize("method", builders.METHODS)
def test_a_payment_keeps_its_identity_in_every_status(method: Method) -> None:
    entity = a_payment(method)
    before = json.dumps(entity)
    captured, failed = builders.in_status(entity, "captured"), builders.in_status(entity, "failed", failure=1)
    assert json.dumps(entity) == before
    assert captured["id"] == failed["id"] == entity["id"]
    assert list(captured) == list(failed) == list(entity)
    assert (entity["status"], entity["captured"], entity["fee"], entity["tax"]) == ("authorized", False, None, None)
    assert (captured["status"], captured["captured"], captured["fee"], captured["tax"]) == ("captured", True, 1178, 180)
    assert (failed["status"], failed["captured"], failed["fee"]) == ("failed", False, None)
    assert captured["error_code"] is None
    assert failed["error_code"] == "BAD_REQUEST_ERROR"
    assert failed["error_reason"] == builders.FAILURES[1][4]
    assert set(failed["acquirer_data"].values()) == {None}


def test_empty_notes_are_a_list_and_others_an_object() -> None:
    assert a_payment()["notes"] == []
    noted = builders.payment(random.Random(1), order_id=None, amount=1, created_at=1, notes={"k": "v"})
    assert noted["notes"] == {"k": "v"}
    assert noted["order_id"] is None


def test_the_fee_includes_the_tax_and_stays_an_integer() -> None:
    assert builders.fees(49900) == (1178, 180)
    assert builders.fees(1) == (0, 0)
    assert all(isinstance(part, int) for part in builders.fees(1999))


def test_order_paid_holds_the_captured_payment_and_the_paid_order() -> None:
    body = builders.order_paid(a_payment(), an_order(), 1_767_225_605, ACCOUNT, attempts=2)
    assert list(body) == ["entity", "account_id", "event", "contains", "payload", "created_at"]
    assert body["contains"] == list(body["payload"]) == ["payment", "order"]
    paid = body["payload"]["order"]["entity"]
    assert (paid["status"], paid["amount_paid"], paid["amount_due"], paid["attempts"]) == ("paid", 49900, 0, 2)
    assert body["payload"]["payment"]["entity"]["status"] == "captured"
    assert body["created_at"] == 1_767_225_605
    assert "base_amount" not in body["payload"]["payment"]["entity"]


def test_single_payment_events_carry_the_status_of_their_name() -> None:
    made = (builders.payment_authorized, builders.payment_captured, builders.payment_failed)
    for make, status in zip(made, ("authorized", "captured", "failed"), strict=True):
        body = make(a_payment(), 1, ACCOUNT)
        assert body["event"] == f"payment.{status}"
        assert body["contains"] == ["payment"]
        assert body["payload"]["payment"]["entity"]["status"] == status


def a_refund(amount: int = 20_000) -> Json:
    return builders.refund(
        random.Random(3), payment_id=a_payment()["id"], amount=amount, created_at=1_767_225_700, notes={"why": "worn"}
    )


REFUND_EVENTS = {
    "created": builders.refund_created,
    "processed": builders.refund_processed,
    "failed": builders.refund_failed,
    "speed_changed": builders.refund_speed_changed,
}


@pytest.mark.parametrize(
    ("kind", "status", "total"),
    [("created", "pending", 30_000), ("processed", "processed", 30_000), ("failed", "failed", 10_000)],
)
def test_a_refund_event_shows_the_refund_and_then_the_payment_with_its_running_total(
    kind: str, status: str, total: int
) -> None:
    refund = a_refund()
    body = REFUND_EVENTS[kind](refund, a_payment(), 1_767_225_705, ACCOUNT, others=10_000)
    assert body["event"] == f"refund.{kind}"
    assert body["contains"] == list(body["payload"]) == ["refund", "payment"]
    assert body["payload"]["refund"]["entity"] == {**refund, "status": status}
    seen = body["payload"]["payment"]["entity"]
    assert seen["id"] == refund["payment_id"] == a_payment()["id"]
    assert (seen["status"], seen["captured"], seen["fee"]) == ("captured", True, 1178)
    assert (seen["amount_refunded"], seen["refund_status"]) == (total, "partial")


def test_the_payment_beside_a_whole_refund_is_refunded_and_beside_a_failed_one_as_before() -> None:
    whole = builders.refund_processed(a_refund(39_900), a_payment(), 1, ACCOUNT, others=10_000)
    seen = whole["payload"]["payment"]["entity"]
    assert (seen["status"], seen["captured"]) == ("refunded", True)
    assert (seen["amount_refunded"], seen["refund_status"]) == (49_900, "full")
    failed = builders.refund_failed(a_refund(49_900), a_payment(), 1, ACCOUNT)
    seen = failed["payload"]["payment"]["entity"]
    assert (seen["status"], seen["amount_refunded"], seen["refund_status"]) == ("captured", 0, None)


def test_a_refund_may_be_processed_when_it_is_created_and_its_speed_may_change() -> None:
    created = builders.refund_created(a_refund(), a_payment(), 1, ACCOUNT, status="processed")
    assert created["payload"]["refund"]["entity"]["status"] == "processed"
    changed = builders.refund_speed_changed(a_refund(), a_payment(), 1, ACCOUNT)["payload"]["refund"]["entity"]
    assert (changed["speed_requested"], changed["speed_processed"]) == ("optimum", "normal")


@pytest.mark.parametrize("kind", REFUND_EVENTS)
def test_the_old_shape_of_a_refund_event_has_no_payment(kind: str) -> None:
    body = REFUND_EVENTS[kind](a_refund(), a_payment(), 1, ACCOUNT, old_shape=True)
    assert body["contains"] == list(body["payload"]) == ["refund"]


PUBLISHED_REFUNDS = sorted(SAMPLES.glob("refund.*.json"))


@pytest.mark.skipif(not PUBLISHED_REFUNDS, reason="the published bodies are not beside this checkout")
@pytest.mark.parametrize("path", PUBLISHED_REFUNDS, ids=lambda path: path.stem)
def test_our_refund_fields_and_their_order_are_those_of_published_bodies(path: Path) -> None:
    seen = json.loads(path.read_bytes())
    kind = seen["event"].removeprefix("refund.")
    ours = REFUND_EVENTS[kind](a_refund(), a_payment("netbanking"), 1, ACCOUNT)
    assert ours["contains"] == seen["contains"]
    for part in ("refund", "payment"):
        our_part, seen_part = ours["payload"][part]["entity"], seen["payload"][part]["entity"]
        assert set(our_part) ^ set(seen_part) <= {"reward", "batch_id"}
        assert [name for name in our_part if name in seen_part] == list(seen_part)
    assert set(seen["payload"]["refund"]["entity"]["acquirer_data"]) <= {"arn"}


def test_the_wire_form_is_compact_without_a_trailing_newline() -> None:
    body = builders.payment_captured(a_payment(), 1, ACCOUNT)
    raw = builders.encode(body)
    assert raw.startswith(b'{"entity":"event","account_id":"')
    assert raw.endswith(b'"created_at":1}')
    assert json.loads(raw) == body
    assert b"\n" not in raw
    assert builders.encode({"n": "शु/"}) == '{"n":"शु/"}'.encode()


SEEN = sorted(SAMPLES.glob("real__*.json"))


@pytest.mark.skipif(not SEEN, reason="the observed bodies are not beside this checkout")
@pytest.mark.parametrize("path", SEEN, ids=lambda path: path.stem)
def test_our_fields_and_their_order_are_those_of_observed_bodies(path: Path) -> None:
    seen = json.loads(path.read_bytes())
    payment = a_payment(seen["payload"]["payment"]["entity"]["method"])
    makers = {
        "payment.authorized": lambda: builders.payment_authorized(payment, 1, ACCOUNT),
        "payment.captured": lambda: builders.payment_captured(payment, 1, ACCOUNT),
        "payment.failed": lambda: builders.payment_failed(payment, 1, ACCOUNT),
        "order.paid": lambda: builders.order_paid(payment, an_order(), 1, ACCOUNT),
    }
    ours = makers[seen["event"]]()
    assert list(ours) == list(seen)
    assert ours["contains"] == seen["contains"]
    for part, wrapped in seen["payload"].items():
        same_fields(ours["payload"][part]["entity"], wrapped["entity"])


def same_fields(ours: Json, seen: Json) -> None:
    assert set(ours) ^ set(seen) <= OPTIONAL
    assert [name for name in ours if name in seen] == [name for name in seen if name in ours]
    for name in ("card", "upi", "acquirer_data"):
        if name in seen:
            assert set(ours[name]) ^ set(seen[name]) <= OPTIONAL


# --- sender ---------------------------------------------------------------------------------------------------------


def test_the_signature_is_over_the_exact_bytes() -> None:
    raw = builders.encode(builders.payment_captured(a_payment(), 1, ACCOUNT))
    assert sign(SECRET, raw) == hmac.new(SECRET.encode(), raw, hashlib.sha256).hexdigest()
    assert sign("key", b"The quick brown fox jumps over the lazy dog").startswith("f7bc83f430538424")
    assert sign(SECRET, raw + b"\n") != sign(SECRET, raw)
    assert sign(OLD_SECRET, raw) != sign(SECRET, raw)


def test_a_delivery_never_shows_its_secret() -> None:
    delivery = Delivery(b"{}", "id", SECRET)
    assert SECRET not in repr(delivery)
    assert SECRET not in repr(options())


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:80/x", "http://localhost/x", "http://[::1]:1/x", "http://127.9.9.9/"]
)
def test_loopback_is_recognised(url: str) -> None:
    assert is_loopback(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.1/",
        "http://localhost.example.com/",
        "http://127.0.0.1@example.com/",
        "http://0.0.0.0/",
        "nonsense",
    ],
)
def test_everything_else_is_not_loopback(url: str) -> None:
    assert not is_loopback(url)


@pytest.mark.asyncio
@pytest.mark.parametrize("way", ["post", "abandon"])
async def test_headers_on_the_wire_are_the_providers_and_no_others(way: str) -> None:
    seen: list[tuple[dict[str, str], bytes]] = []

    async def endpoint(request: web.Request) -> web.Response:
        seen.append((dict(request.headers), await request.read()))
        return web.json_response({"status": "accepted", "eventId": "Rp00000000000a"})

    app = web.Application()
    app.router.add_post("/hook", endpoint)
    async with TestServer(app) as server, Sender(str(server.make_url("/hook"))) as sender:
        delivery = Delivery(b'{"a":1}', "Rp00000000000a", SECRET)
        answer = await getattr(sender, way)(delivery)
        again = await sender.post(delivery)  # by now the abandoned request was read as well
    assert again.verdict == "accepted"
    assert answer.verdict == ("accepted" if way == "post" else None)
    assert len(seen) == 2
    found, raw = seen[0]
    assert raw == b'{"a":1}'
    assert found.pop("Host").startswith("127.0.0.1")
    assert found.pop("Content-Length") == "7"
    assert found == {
        "User-Agent": "Razorpay-Webhook/v1",
        "Content-Type": "application/json",
        "Request-Id": "Rp00000000000a",
        "X-Razorpay-Event-Id": "Rp00000000000a",
        "X-Razorpay-Signature": sign(SECRET, raw),
        "Accept-Encoding": "gzip",
    }


@pytest.mark.asyncio
async def test_no_server_is_an_answer_and_not_an_exception() -> None:
    async with Sender(f"http://127.0.0.1:{unused_port()}/") as sender:
        for answer in (
            await sender.post(Delivery(b"{}", "id", SECRET)),
            await sender.abandon(Delivery(b"{}", "i", SECRET)),
        ):
            assert answer.status == 0
            assert answer.error


class Scripted:
    """Answers from a list; the last one for ever."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.posts = 0

    async def post(self, delivery: Delivery) -> Answer:  # noqa: ARG002 - it answers from its list
        self.posts += 1
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        return Answer(status, {"status": "accepted"} if status == 200 else None)

    async def abandon(self, delivery: Delivery) -> Answer:
        return await self.post(delivery)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("statuses", "kind", "posts", "status"),
    [
        ((200,), "first", 1, 200),
        ((503, 0, 200), "first", 3, 200),
        ((302, 200), "first", 2, 200),
        ((400, 200), "first", 2, 200),
        ((503,), "first", 4, 503),
        ((400, 200), "bad_signature", 1, 400),
        ((503, 400), "bad_signature", 2, 400),
    ],
)
async def test_it_sends_again_until_a_2xx_but_not_for_ever(
    statuses: tuple[int, ...], kind: Any, posts: int, status: int
) -> None:
    sender = Scripted(*statuses)
    answer = await deliver(sender, Delivery(b"{}", "id", SECRET, kind=kind), tries=4, backoff=0)
    assert (sender.posts, answer.tries, answer.status) == (posts, posts, status)


# --- plan -----------------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_traffic_and_another_seed_another() -> None:
    first, second, other = plan(options(seed=7)), plan(options(seed=7)), plan(options(seed=8))
    assert first.deliveries == second.deliveries
    assert first.orders == second.orders
    assert first.truth == second.truth
    assert not {order["_id"] for order in first.orders} & {order["_id"] for order in other.orders}
    assert not {delivery.event_id for delivery in first.deliveries} & {d.event_id for d in other.deliveries}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_two_hundred_orders_give_about_seven_hundred_deliveries(seed: int) -> None:
    traffic = plan(options(seed=seed))
    counts = traffic.counts
    assert len(traffic.orders) == len(traffic.truth) == 200
    assert 700 <= len(traffic.deliveries) <= 750
    assert counts["duplicate"] == round(0.12 * counts["first"])
    assert counts["replay"] == round(0.03 * counts["first"])
    assert counts["bad_signature"] == round(0.04 * counts["first"])
    assert Counter(truth.status for truth in traffic.truth.values()) == {
        "completed": 170,
        "partially_refunded": 6,
        "refunded": 4,
        "failed": 12,
        "pending": 8,
    }


def test_shop_orders_are_pending_with_the_expected_amount() -> None:
    traffic = plan(options())
    for order in traffic.orders:
        assert set(order) == {"_id", "orderNumber", "userId", "items", "shippingAddress", "payment"}
        assert set(order["payment"]) == {"status", "amount", "currency", "razorpayOrderId"}
        assert order["payment"]["status"] == "pending"
        assert order["payment"]["amount"] == sum(item["price"] * item["quantity"] for item in order["items"])
        assert order["shippingAddress"]["email"].endswith("@example.com")
    for key in ("_id", "orderNumber"):
        assert len({order[key] for order in traffic.orders}) == 200


def test_the_truth_follows_from_the_true_events_alone() -> None:
    traffic = plan(options())
    bodies = firsts_by_order(traffic)
    late = 0
    for order in traffic.orders:
        truth, mine = traffic.truth[order["_id"]], bodies[order["payment"]["razorpayOrderId"]]
        payments = [body["payload"]["payment"]["entity"] for body in mine]
        captured = {payment["id"] for payment in payments if payment["status"] in {"captured", "refunded"}}
        failed = {payment["id"] for payment in payments if payment["status"] == "failed"}
        assert captured == ({truth.captured} if truth.captured else set())
        assert failed == set(truth.failed)
        if not truth.amount_refunded:
            assert truth.status == ("completed" if captured else "failed" if failed else "pending")
        assert {payment["amount"] for payment in payments} == {order["payment"]["amount"]}
        late += bool(captured & failed)
    assert late == 10


def test_the_truth_of_refunds_follows_from_the_true_events_alone() -> None:
    traffic = plan(options())
    bodies, stories = firsts_by_order(traffic), Counter[str]()
    for order in traffic.orders:
        truth, mine = traffic.truth[order["_id"]], bodies[order["payment"]["razorpayOrderId"]]
        refunds = [body["payload"]["refund"]["entity"] for body in mine if "refund" in body["payload"]]
        amounts = {refund["id"]: refund["amount"] for refund in refunds if refund["status"] == "processed"}
        total = sum(amounts.values())
        assert (set(truth.refunds_processed), truth.amount_refunded) == (set(amounts), total)
        assert set(truth.refunds_failed) == {refund["id"] for refund in refunds if refund["status"] == "failed"}
        assert {refund["payment_id"] for refund in refunds} <= {truth.captured}
        captures = {f"capture:{truth.captured}"} if truth.captured else set()
        assert truth.ledger == captures | {f"refund:{refund}" for refund in amounts}
        if total:
            whole = total == order["payment"]["amount"]
            assert truth.status == ("refunded" if whole else "partially_refunded")
            stories[f"{truth.status} by {len(amounts)}"] += 1
        stories["completed with a failed refund"] += bool(truth.refunds_failed)
    assert stories == {"refunded by 2": 4, "partially_refunded by 1": 6, "completed with a failed refund": 4}


def test_a_refund_may_be_told_before_its_capture() -> None:
    rank = {"payment.captured": 1, "order.paid": 1, "refund.created": 2, "refund.processed": 3, "refund.failed": 3}
    traffic = plan(options(reorder=1.0, full_refund_share=0.5))
    told = [[rank.get(body["event"], 0) for body in bodies] for bodies in firsts_by_order(traffic).values()]
    assert any(ranks.index(2) < ranks.index(1) for ranks in told if 2 in ranks)


def test_copies_are_true_copies_and_forgeries_are_no_true_signatures() -> None:
    traffic = plan(options(old="before", bad_signatures=0.2))
    firsts = {delivery.event_id: delivery for delivery in traffic.deliveries if delivery.kind == "first"}
    bodies = {delivery.raw: delivery.event_id for delivery in firsts.values()}
    assert len(bodies) == len(firsts)
    for delivery in traffic.deliveries:
        signature = delivery.headers["X-Razorpay-Signature"]
        true = {sign(secret, delivery.raw) for secret in (SECRET, OLD_SECRET)}
        assert (signature in true) == (delivery.kind != "bad_signature")
        if delivery.kind == "duplicate":
            assert delivery.headers == firsts[delivery.event_id].headers
        if delivery.kind == "replay":
            assert delivery.event_id not in firsts
            assert signature == firsts[bodies[delivery.raw]].headers["X-Razorpay-Signature"]
        if delivery.kind == "bad_signature":
            assert delivery.raw not in bodies
            json.loads(delivery.raw)


def test_a_copy_comes_after_what_it_copies() -> None:
    traffic, seen = plan(options()), set()
    for delivery in traffic.deliveries:
        if delivery.kind == "first":
            seen.add(delivery.raw)
        elif delivery.kind != "bad_signature":
            assert delivery.raw in seen


def test_the_old_secret_signs_its_share_and_only_during_a_rotation() -> None:
    assert {delivery.secret for delivery in plan(options()).deliveries} == {SECRET}
    secrets = Counter(delivery.secret for delivery in plan(options(old="before", old_share=0.25)).deliveries)
    assert 0.18 <= secrets[OLD_SECRET] / secrets.total() <= 0.32


def test_without_reordering_every_order_is_told_in_the_order_of_its_making() -> None:
    assert out_of_order(plan(options(reorder=0))) == 0


def test_reordering_turns_many_orders_around() -> None:
    assert out_of_order(plan(options(reorder=1.0))) > 50


def out_of_order(traffic: Traffic) -> int:
    names = ("payment.failed", "payment.authorized", "payment.captured", "order.paid", "refund.created")
    rank = {name: place for place, name in enumerate(names)} | {"refund.processed": 5, "refund.failed": 5}
    told = ([rank[body["event"]] for body in bodies] for bodies in firsts_by_order(traffic).values())
    return sum(ranks != sorted(ranks) for ranks in told)


@pytest.mark.parametrize(
    "changes", [{"current": "none"}, {"old": "none"}, {"failed_share": 0.9}, {"full_refund_share": 0.9}, {"rate": 0}]
)
def test_impossible_options_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        options(**changes)


# --- run and attacks, against a receiver in memory ------------------------------------------------------------------


class Receiver:
    """Exactly-once in memory: what the sender, the report and the attacks are tried on."""

    def __init__(self, *, checks_signature: bool = True, knows_bodies: bool = True, lowers: bool = False) -> None:
        self.checks_signature, self.knows_bodies, self.lowers = checks_signature, knows_bodies, lowers
        self.ids: set[str] = set()
        self.bodies: Counter[bytes] = Counter()
        self.status: dict[str, str] = {}
        self.transitions: Counter[str] = Counter()
        self.refunds: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self.arrived: list[bytes] = []

    def expect(self, provider_order_ids: Iterable[str]) -> None:
        self.status.update(dict.fromkeys(provider_order_ids, "pending"))

    async def post(self, delivery: Delivery) -> Answer:
        self.arrived.append(delivery.raw)
        true = {sign(secret, delivery.raw) for secret in (SECRET, OLD_SECRET)}
        if self.checks_signature and delivery.headers["X-Razorpay-Signature"] not in true:
            return Answer(400, {"error": "signature"})
        known = delivery.event_id in self.ids or (self.knows_bodies and delivery.raw in self.bodies)
        self.ids.add(delivery.event_id)
        if not known:
            self.bodies[delivery.raw] += 1
            payload = json.loads(delivery.raw)["payload"]
            self.apply(payload["payment"]["entity"])
            self.refund(payload.get("refund", {}).get("entity", {}), payload["payment"]["entity"])
        return Answer(200, {"status": "duplicate" if known else "accepted", "eventId": delivery.event_id})

    async def abandon(self, delivery: Delivery) -> Answer:
        await self.post(delivery)
        return Answer(0, error="hung up")

    def apply(self, payment: Json) -> None:
        order = payment["order_id"]
        if payment["status"] in {"captured", "refunded"}:
            paid = self.status[order] in {"completed", "partially_refunded", "refunded"}
            self.transitions[order] += not paid or not self.knows_bodies
            self.status[order] = self.status[order] if paid else "completed"
        elif payment["status"] == "failed" and (self.lowers or self.status[order] == "pending"):
            self.status[order] = "failed"

    def refund(self, refund: Json, payment: Json) -> None:
        if refund.get("status") == "processed":
            refunds = self.refunds[payment["order_id"]]
            refunds[refund["id"]] = refund["amount"]
            whole = sum(refunds.values()) >= payment["amount"]
            self.status[payment["order_id"]] = "refunded" if whole else "partially_refunded"

    async def new_order(self) -> OrderUnderTest:
        shop, provider_order = checkout(random.Random(len(self.status)), "PL-1", 1)
        self.expect([provider_order["id"]])
        return OrderUnderTest(shop["_id"], provider_order["id"], provider_order["amount"])

    async def outcome(self, order: OrderUnderTest) -> OrderState:
        count = self.transitions[order.provider_order_id]
        return OrderState(self.status[order.provider_order_id], count, count, min(count, 1))

    async def rows(self, raw: bytes) -> list[str]:
        return ["completed"] * self.bodies[raw]


@pytest.mark.asyncio
async def test_a_right_receiver_gives_a_report_without_surprises_and_the_true_orders() -> None:
    traffic, receiver = plan(options(old="before", orders=60)), Receiver()
    receiver.expect(order["payment"]["razorpayOrderId"] for order in traffic.orders)
    seen: list[int] = []
    report = await run(traffic, receiver, lambda _, answer: seen.append(answer.status))
    counts = traffic.counts
    assert report == Report(
        sent=len(traffic.deliveries),
        answers=Counter({200: counts.total() - counts["bad_signature"], 400: counts["bad_signature"]}),
        accepted=counts["first"],
        duplicates=counts["duplicate"] + counts["replay"],
        rejected=counts["bad_signature"],
    )
    assert Counter(seen) == report.answers
    for order in traffic.orders:
        assert receiver.status[order["payment"]["razorpayOrderId"]] == traffic.truth[order["_id"]].status


@pytest.mark.asyncio
async def test_an_unsigned_endpoint_is_reported() -> None:
    traffic, receiver = plan(options(orders=60)), Receiver(checks_signature=False)
    receiver.expect(order["payment"]["razorpayOrderId"] for order in traffic.orders)
    report = await run(traffic, receiver)
    assert len(report.unexpected) == traffic.counts["bad_signature"] > 0


@pytest.mark.asyncio
async def test_retries_errors_and_silence_are_counted() -> None:
    traffic = plan(options(orders=1, duplicates=0, replays=0, bad_signatures=0))
    report = await run(replace(traffic, deliveries=traffic.deliveries[:1]), Scripted(0), tries=3, backoff=0)
    assert (report.sent, report.retried, report.errors, report.answers) == (1, 2, 1, Counter({0: 1}))
    assert len(report.unexpected) == 1


@pytest.mark.asyncio
async def test_many_workers_keep_the_planned_order_within_each_order() -> None:
    class Slow(Receiver):
        async def post(self, delivery: Delivery) -> Answer:
            for _ in range(len(self.arrived) % 7):  # some requests take longer than others
                await asyncio.sleep(0)
            return await super().post(delivery)

    traffic, receiver = plan(options(orders=40, reorder=1.0, duplicates=0, replays=0, bad_signatures=0)), Slow()
    receiver.expect(order["payment"]["razorpayOrderId"] for order in traffic.orders)
    await run(traffic, receiver, concurrency=32)
    arrived = replace(traffic, deliveries=[Delivery(raw, "", SECRET) for raw in receiver.arrived])
    assert firsts_by_order(arrived) == firsts_by_order(traffic)
    assert receiver.arrived != [delivery.raw for delivery in traffic.deliveries]


def target(receiver: Receiver) -> Target:
    return Target(receiver, receiver, SECRET, ACCOUNT, random.Random(5), deadline=0.2)


@pytest.mark.asyncio
async def test_all_ten_attacks_hold_against_a_right_receiver() -> None:
    results = await run_attacks(target(Receiver()))
    assert len(results) == len({attack.name for attack in ATTACKS}) == 10
    assert [result for result in results if not result.holds] == []


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (
            {"checks_signature": False},
            {
                "changed amount under the old signature",
                "signed with a wrong secret",
                "re-serialised JSON",
                "stored body with a changed byte",
            },
        ),
        ({"knows_bodies": False}, {"captured body under a new id"}),
        ({"lowers": True}, {"failed after captured"}),
    ],
)
async def test_the_attacks_find_what_is_wrong_and_nothing_else(fault: dict[str, bool], found: set[str]) -> None:
    results = await run_attacks(target(Receiver(**fault)))
    assert {result.name for result in results if not result.holds} == found


def test_a_tampered_body_is_still_json_with_another_amount() -> None:
    raw = builders.encode(builders.payment_captured(a_payment(), 1, ACCOUNT))
    assert json.loads(tampered(raw))["payload"]["payment"]["entity"]["amount"] == 149900


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PAYLATCH_MONGODB__URI", f"mongodb://127.0.0.1:{unused_port()}/?directConnection=true")
    for name in ("RAZORPAY_WEBHOOK_SECRET", "RZP_WEBHOOK_SECRET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PAYLATCH_RAZORPAY__WEBHOOK_SECRETS", json.dumps({"now": SECRET}))


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("changes", "kind", "sentence"),
    [
        ({"url": "http://192.0.2.1/hook"}, Refused, "--allow-remote"),
        ({"url": "ftp://127.0.0.1/hook"}, WrongArgument, "absolute http"),
        ({"url": "http://127.0.0.1:99999/hook"}, WrongArgument, "absolute http"),
        ({"url": "http://[::1/hook"}, WrongArgument, "absolute http"),
        ({"url": "http://127.0.0.1:1/hook"}, Unavailable, "start `paylatch serve` first"),
        ({"rotate": True}, SettingsError, "two secrets"),
    ],
)
async def test_what_cannot_be_done_is_an_error_of_ours_like_every_commands(
    settings: None,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    kind: type[PayLatchError],
    sentence: str,
) -> None:
    with pytest.raises(kind, match=sentence) as raised:
        await simulate(**changes)
    assert raised.type is kind
    assert capsys.readouterr() == ("", "")


@pytest.mark.asyncio
async def test_without_a_secret_nothing_is_sent(settings: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAYLATCH_RAZORPAY__WEBHOOK_SECRETS", "{}")
    with pytest.raises(SettingsError, match="no webhook secret is set"):
        await simulate()


@pytest.mark.asyncio
async def test_an_unusable_database_address_is_named_without_its_password(
    settings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAYLATCH_MONGODB__URI", "mongodb://user:pass word@:x/")
    async with TestServer(web.Application()) as server:
        with pytest.raises(SettingsError, match="PAYLATCH_MONGODB__URI") as raised:
            await simulate(url=str(server.make_url("/")))
    assert "pass" not in str(raised.value)


class Unreachable:
    """A client without a server; the real one leaves sockets to the garbage collector when it gives up."""

    async def __aenter__(self) -> None:
        raise ServerSelectionTimeoutError("the driver's own text")

    async def __aexit__(self, *_: object) -> None:
        raise NotImplementedError


@pytest.mark.asyncio
async def test_no_database_is_one_sentence_without_the_drivers_text(
    settings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scripts.simulate.database", lambda _: Unreachable())
    async with TestServer(web.Application()) as server:
        with pytest.raises(Unavailable, match="is it running") as raised:
            await simulate(url=str(server.make_url("/")), orders=1)
    assert "driver" not in str(raised.value)


def a_trial() -> tuple[Trial, Outcome]:
    traffic = plan(options(orders=20))
    counts = traffic.counts
    report = Report(sent=counts.total(), answers=Counter({200: 60, 400: 2}), accepted=counts["first"])
    return Trial("http://127.0.0.1/", traffic, True, True, 1.0, ACCOUNT), Outcome(report, differing=[])


def test_a_trial_without_surprises_has_no_problems() -> None:
    assert _problems(*a_trial()) == []


def test_every_surprise_is_a_problem() -> None:
    trial, outcome = a_trial()
    outcome.report.unexpected = ["first payment.captured pay_x: 500"] * 7
    outcome.report.accepted += 1
    outcome.differing = ["shop_x"]
    outcome.attacks = [AttackResult("a", "x", "x", holds=True), AttackResult("b", "x", "y", holds=False)]
    problems = _problems(trial, outcome)
    assert len(problems) == 9
    assert problems[5] == "and 2 more answers that were not expected"
    assert problems[-1] == "attack did not hold: b"


def test_a_lost_answer_explains_one_event_that_was_not_accepted() -> None:
    trial, outcome = a_trial()
    outcome.report.accepted -= 1
    assert len(_problems(trial, outcome)) == 1
    outcome.report.retried = 1
    assert _problems(trial, outcome) == []


def test_both_forms_of_the_result_name_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    trial, outcome = a_trial()
    outcome.attacks = [AttackResult("a [bold] name", "x", "y", holds=False)]
    _print_json(trial, outcome, ["a problem"])
    said = json.loads(capsys.readouterr().out)
    assert said["report"]["answers"] == {"200": 60, "400": 2}
    assert said["attacks"] == [{"name": "a [bold] name", "expected": "x", "got": "y", "holds": False}]
    assert said["problems"] == ["a problem"]
    _print_tables(trial, outcome, ["a problem"])
    table = capsys.readouterr().out
    assert str(outcome.report.accepted) in table
    assert "20 of 20 orders ended as planned" in table
    assert "a [bold] name" in table
    assert SECRET not in table + str(said)


def of_every_kind(seed: int) -> Traffic:
    return plan(options(orders=200, seed=seed, **ALL_SOURCES))


@pytest.mark.parametrize("seed", [1, 2])
def test_links_and_second_payments_have_their_truth_and_their_bodies(seed: int) -> None:
    traffic = of_every_kind(seed)
    reviews = Counter(reason for truth in traffic.truth.values() for reason, _ in truth.reviews)
    assert reviews == {"duplicate_capture": 2, "paid_after_link_expired": 2}
    bodies = [json.loads(delivery.raw) for delivery in traffic.deliveries if delivery.kind == "first"]
    named = Counter(body["event"] for body in bodies if body["event"].startswith("payment_link."))
    assert named == {"payment_link.paid": 6 + 4, "payment_link.partially_paid": 4, "payment_link.expired": 2 + 2}
    by_link = [order for order in traffic.orders if "paymentLinkId" in order["payment"]]
    assert len(by_link) == 14
    assert all("razorpayOrderId" not in order["payment"] for order in by_link)


def test_the_parts_of_an_order_add_up_to_what_it_expects() -> None:
    traffic = of_every_kind(1)
    amounts: defaultdict[str, dict[str, int]] = defaultdict(dict)
    expected = {order["payment"].get("paymentLinkId"): order["payment"]["amount"] for order in traffic.orders}
    for delivery in traffic.deliveries:
        body = json.loads(delivery.raw)
        if delivery.kind == "first" and body["event"] in {"payment_link.paid", "payment_link.partially_paid"}:
            payment = body["payload"]["payment"]["entity"]
            amounts[body["payload"]["payment_link"]["entity"]["id"]][payment["id"]] = payment["amount"]
    assert {len(parts) for parts in amounts.values()} == {1, 2}
    assert all(sum(parts.values()) == expected[link] for link, parts in amounts.items())
