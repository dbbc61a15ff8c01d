"""What went wrong on the way, in a word of ours: texts of libraries quote addresses and hosts."""

from __future__ import annotations

import socket
import ssl


class TargetForbidden(OSError):  # noqa: N818 - says what is the case
    """The host's address is one that nobody outside may make us call."""


_WORDS: tuple[tuple[type[BaseException], str], ...] = (
    (TargetForbidden, "forbidden"),
    (socket.gaierror, "dns_failed"),
    (ssl.SSLError, "tls_failed"),
    (ssl.CertificateError, "tls_failed"),
    (TimeoutError, "timeout"),
    (ConnectionRefusedError, "refused"),
    (OSError, "disconnected"),
)


def cause(error: BaseException) -> str:
    """The failure in a word, from its class and those of its causes; `failed` for one that is none of the usual."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    for kind, word in _WORDS:
        if any(isinstance(each, kind) for each in chain):
            return word
    return "failed"
