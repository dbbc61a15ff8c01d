"""Who calls: the address behind trusted proxies, whether it is an allowed source, and how often it called."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from aiohttp import web

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

FORWARDED = "X-Forwarded-For"
MOST_CALLERS = 10_000
_MAPPED = IPv6Network("::ffff:0:0/96")
_MAPPED_BITS = 96
_IPV6_SITE_BITS = 64


class Networks:
    """A set of networks; an IPv4 address written as IPv6 is the IPv4 address."""

    def __init__(self, networks: Iterable[Network]) -> None:
        self._networks = tuple(_unmapped(network) for network in networks)

    def __contains__(self, address: Address | None) -> bool:
        """Whether one of them holds the address; nothing holds an unknown one."""
        return address is not None and any(address in network for network in self._networks)


def caller_of(request: web.Request, trusted: Networks) -> Address | None:
    """The address that a request comes from, or None when the connection has none (a Unix socket)."""
    return caller(request.remote, request.headers.getall(FORWARDED, []), trusted)


def caller(peer: str | None, forwarded: Sequence[str], trusted: Networks) -> Address | None:
    """The rightmost hop that is no proxy of ours, as far as proxies of ours vouch for it.

    `forwarded` holds the values of the `X-Forwarded-For` lines in their order. A peer that is not trusted is the caller
    whatever it says; so is one that hands on something that is no address. If all are trusted, the first hop is it.
    """
    address = parse_address(peer or "")
    if address not in trusted:
        return address
    found = address
    for hop in reversed(",".join(forwarded).split(",")) if forwarded else ():
        said = parse_address(hop.strip())
        if said is None:
            return address
        found = said
        if said not in trusted:
            break
    return found


def parse_address(text: str) -> Address | None:
    """An address without its zone, an IPv4 one in its own form; None for anything else."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv6Address):
        return address.ipv4_mapped or IPv6Address(int(address))
    return address


def _unmapped(network: Network) -> Network:
    if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED):
        bits = network.prefixlen - _MAPPED_BITS
        return IPv4Network((int(network.network_address) & 0xFFFFFFFF, bits))
    return network


class Rate:
    """A token bucket per caller: `per_minute` requests at once, and as many again over each minute.

    At most `MOST_CALLERS` are remembered; the one that called least recently is forgotten, which lets it start afresh.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = per_minute, clock
        self._buckets: OrderedDict[Address | Network | None, tuple[float, float]] = OrderedDict()

    def wait(self, address: Address | None) -> int:
        """Take one request; 0, or the whole seconds after which the next one is taken."""
        now, key, per_second = self._clock(), _site(address), self._most / 60
        tokens, at = self._buckets.get(key, (float(self._most), now))
        tokens = min(self._most, tokens + (now - at) * per_second)
        taken = tokens >= 1
        self._buckets[key] = (tokens - taken, now)
        self._buckets.move_to_end(key)
        if len(self._buckets) > MOST_CALLERS:
            self._buckets.popitem(last=False)
        return 0 if taken else math.ceil((1 - tokens) / per_second)


def _site(address: Address | None) -> Address | Network | None:
    """Whoever has one IPv6 address has its whole /64."""
    return ip_network((int(address), _IPV6_SITE_BITS), strict=False) if isinstance(address, IPv6Address) else address
