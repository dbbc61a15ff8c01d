"""Which addresses a merchant's webhook may lead to."""

from __future__ import annotations

import socket

import pytest

from watcher.channels.causes import TargetForbidden
from watcher.channels.targets import forbidden, public_socket

FORBIDDEN = (
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "100.100.100.200",  # Alibaba's metadata
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",  # Azure's
    "169.254.0.1",
    "169.254.169.254",  # most clouds' metadata
    "169.254.170.2",  # ECS
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",  # Oracle's
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::8.8.8.8",  # IPv4-compatible, long withdrawn
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:0:127.0.0.1",
    "64:ff9b::127.0.0.1",
    "64:ff9b::10.0.0.1",
    "64:ff9b::169.254.169.254",
    "64:ff9b:1::8.8.8.8",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::1",
    "2002:808:808::1",
    "fc00::1",
    "fd00:ec2::254",  # EC2's metadata
    "fd20:ce::254",  # Google's
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
    "4000::1",
    "",
    "localhost",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0177.0.0.1",
    "8.8.8.8 ",
)
ALLOWED = (
    "1.1.1.1",
    "8.8.8.8",
    "13.107.42.14",
    "100.63.255.255",
    "172.15.255.255",
    "172.32.0.1",
    "2606:4700:4700::1111",
    "2a00:1450:4001:81b::200e",
    "::ffff:8.8.8.8",
    "64:ff9b::8.8.8.8",  # how a network without IPv4 reaches it
)


@pytest.mark.parametrize("address", FORBIDDEN)
def test_an_address_inside_somebodys_network_is_forbidden(address: str) -> None:
    assert forbidden(address)


@pytest.mark.parametrize("address", ALLOWED)
def test_a_public_host_is_allowed(address: str) -> None:
    assert not forbidden(address)


def test_no_socket_is_made_for_a_forbidden_address() -> None:
    kind = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
    with pytest.raises(TargetForbidden):
        public_socket((*kind, ("127.0.0.1", 80)))
    with public_socket((*kind, ("8.8.8.8", 80))) as made:
        assert made.family == socket.AF_INET
    with pytest.raises(TargetForbidden):
        public_socket((socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("::1", 80, 0, 0)))
