"""Which addresses a merchant's webhook may have, so that its name never makes us call into our own network.

Checked twice: every address that the name resolves to, and the one address that is then connected to. Each request
resolves its name once and connects to what was checked, so a name that changes its mind in between gains nothing.
"""

from __future__ import annotations

import ipaddress
import socket

from aiohttp import ThreadedResolver
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.connector import AddrInfoType

from watcher.channels.causes import TargetForbidden

_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_TRANSLATED = (ipaddress.IPv6Network("::ffff:0:0/96"), ipaddress.IPv6Network("64:ff9b::/96"))
"""IPv4 inside IPv6 (mapped, NAT64), whose last 32 bits decide."""
_NEVER = (
    ipaddress.ip_network("168.63.129.16/32"),  # Azure's metadata and health address
    ipaddress.ip_network("192.0.0.0/24"),  # Oracle's metadata among others
    ipaddress.ip_network("192.88.99.0/24"),  # relays of 6to4
    ipaddress.ip_network("2001::/32"),  # Teredo
    ipaddress.ip_network("2002::/16"),  # 6to4
)


def forbidden(address: str) -> bool:
    """Whether an address is anything but one public host; a cloud's metadata service is link-local, private or listed.

    Failure policy: closed. What is no address, or of a kind not known here, is forbidden.
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return True
    if isinstance(found, ipaddress.IPv6Address):
        if any(found in network for network in _TRANSLATED):
            found = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        elif found not in _GLOBAL_UNICAST:
            return True
    if found.is_multicast or found.is_reserved or not found.is_global:
        return True
    return any(found in network for network in _NEVER if network.version == found.version)


class PublicResolver(AbstractResolver):
    """Resolves names of public hosts only; one forbidden address among several forbids the name."""

    def __init__(self) -> None:
        self._resolver = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The addresses; raises `TargetForbidden`, or what the resolver raises."""
        found = await self._resolver.resolve(host, port, family)
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "the name has no usable address")
        if any(forbidden(each["host"]) for each in found):
            raise TargetForbidden("the name leads to an address that is not public")
        return found

    async def close(self) -> None:
        """Nothing is kept open."""
        await self._resolver.close()


def public_socket(target: AddrInfoType) -> socket.socket:
    """A socket for a connection to this address; raises `TargetForbidden`."""
    family, kind, protocol, _, address = target
    if forbidden(str(address[0])):
        raise TargetForbidden("the address is not public")
    return socket.socket(family, kind, protocol)
