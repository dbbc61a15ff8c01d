"""Who calls, by the proxy rule; who is a listed source; how often one may call."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from models.settings import RAZORPAY_SOURCES
from webhook import callers
from webhook.callers import Networks, Rate, caller, parse_address

PROXIES = ("10.0.0.0/8", "fd00::/8", "203.0.113.7")

TABLE: dict[str, tuple[str | None, tuple[str, ...], str | None]] = {
    "no proxy": ("198.51.100.1", (), "198.51.100.1"),
    "a stranger's word is not believed": ("198.51.100.1", ("192.0.2.9",), "198.51.100.1"),
    "our proxy's word is": ("10.0.0.1", ("192.0.2.9",), "192.0.2.9"),
    "our proxy says nothing": ("10.0.0.1", (), "10.0.0.1"),
    "an empty word": ("10.0.0.1", ("",), "10.0.0.1"),
    "the rightmost that is not ours": ("10.0.0.1", ("6.6.6.6, 192.0.2.9, 10.0.0.2",), "192.0.2.9"),
    "what the caller wrote itself stands left": ("10.0.0.1", ("127.0.0.1, 10.9.9.9, 192.0.2.9",), "192.0.2.9"),
    "several lines are one": ("10.0.0.1", ("6.6.6.6", "192.0.2.9", "10.0.0.2"), "192.0.2.9"),
    "nonsense left of it is not reached": ("10.0.0.1", ("<script>, 192.0.2.9",), "192.0.2.9"),
    "nonsense on the right": ("10.0.0.1", ("192.0.2.9, unknown",), "10.0.0.1"),
    "nonsense behind a proxy": ("10.0.0.1", ("192.0.2.9, _hidden, 10.0.0.2",), "10.0.0.1"),
    "a port": ("10.0.0.1", ("192.0.2.9:443",), "10.0.0.1"),
    "a gap": ("10.0.0.1", ("192.0.2.9,,10.0.0.2",), "10.0.0.1"),
    "all ours": ("10.0.0.1", ("10.0.0.3, 10.0.0.2",), "10.0.0.3"),
    "IPv6 proxy and caller": ("fd00::1", ("2001:db8::5",), "2001:db8::5"),
    "IPv4 written as IPv6": ("::ffff:10.0.0.1", ("::ffff:192.0.2.9, ::ffff:a00:2",), "192.0.2.9"),
    "one address as proxy": ("203.0.113.7", ("192.0.2.9",), "192.0.2.9"),
    "its neighbour": ("203.0.113.8", ("192.0.2.9",), "203.0.113.8"),
    "a zone": ("fd00::1%eth0", ("fe80::5%eth1",), "fe80::5"),
    "no address at all": (None, ("192.0.2.9",), None),
}


@pytest.mark.parametrize(("peer", "forwarded", "expected"), TABLE.values(), ids=TABLE.keys())
def test_the_caller_is_the_rightmost_hop_that_is_no_proxy_of_ours(
    peer: str | None, forwarded: tuple[str, ...], expected: str | None
) -> None:
    trusted = Networks(ip_network(network) for network in PROXIES)
    assert caller(peer, forwarded, trusted) == (None if expected is None else ip_address(expected))


def test_without_trusted_proxies_nobody_is_believed() -> None:
    assert caller("127.0.0.1", ("192.0.2.9",), Networks(())) == ip_address("127.0.0.1")


@pytest.mark.parametrize(
    ("address", "listed"),
    [
        ("52.66.75.174", True),
        ("52.66.75.175", False),
        ("18.96.225.63", True),
        ("18.96.225.64", False),
        ("::ffff:52.66.75.174", True),
        ("::ffff:18.99.161.1", True),
        ("::3442:4bae", False),
        ("2001:db8::1", False),
    ],
)
def test_the_published_sources(address: str, listed: bool) -> None:  # noqa: FBT001 - a table
    assert (parse_address(address) in Networks(ip_network(source) for source in RAZORPAY_SOURCES)) is listed


def test_a_network_of_ipv4_written_as_ipv6_is_the_ipv4_network() -> None:
    networks = Networks([ip_network("::ffff:10.0.0.0/104")])
    assert parse_address("10.255.0.1") in networks
    assert parse_address("11.0.0.1") not in networks
    assert None not in networks


@pytest.mark.parametrize("text", ["", " ", "10.0.0", "010.0.0.1", "10.0.0.1 ", "localhost", "٠.٠.٠.٠", "[::1]", "1"])
def test_what_is_no_address_is_none(text: str) -> None:
    assert parse_address(text) is None


class Seconds:
    """A clock that a test turns."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_caller_has_its_minute_and_gets_it_back_bit_by_bit() -> None:
    clock = Seconds()
    rate, one, other = Rate(6, clock), ip_address("192.0.2.1"), ip_address("192.0.2.2")
    assert [rate.wait(one) for _ in range(7)] == [0, 0, 0, 0, 0, 0, 10]
    assert rate.wait(other) == 0
    clock.now += 9
    assert rate.wait(one) == 1
    clock.now += 1
    assert [rate.wait(one), rate.wait(one)] == [0, 10]
    clock.now += 3600
    assert [rate.wait(one) for _ in range(7)] == [0, 0, 0, 0, 0, 0, 10]


def test_an_ipv6_site_is_one_caller_and_so_is_whoever_has_no_address() -> None:
    rate = Rate(1, Seconds())
    waits = [rate.wait(parse_address(text)) for text in ("2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "", "")]
    assert waits == [0, 60, 0, 0, 60]


def test_only_so_many_callers_are_remembered_and_the_quietest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "MOST_CALLERS", 3)
    rate = Rate(1, Seconds())
    first, *more = (ip_address(f"192.0.2.{number}") for number in range(5))
    assert rate.wait(first) == 0
    assert [rate.wait(address) for address in more[:2]] == [0, 0]
    assert rate.wait(first) == 60  # it has just called, so another one is forgotten
    assert [rate.wait(more[2]), rate.wait(first), rate.wait(more[0])] == [0, 60, 0]
    assert len(rate._buckets) == 3
