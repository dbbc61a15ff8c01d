"""What every group of settings is made of: its base class and the types of single values."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr

Seconds = Annotated[float, Field(gt=0)]
Port = Annotated[int, Field(ge=0, le=65535)]
Bytes = Annotated[int, Field(gt=0)]
Places = Annotated[int, Field(ge=1, le=64)]
"""How many messages may be under way at once."""

_VISIBLE = re.compile(r"[\x21-\x7e]+")


class Section(BaseModel):
    """A group of settings: unknown names are errors, so that a typing mistake never goes unseen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _visible(secret: SecretStr) -> SecretStr:
    if not _VISIBLE.fullmatch(secret.get_secret_value()):
        msg = "it is empty, or holds white space or characters that no HTTP header can carry"
        raise ValueError(msg)
    return secret


def _guarded(address: str) -> str:
    """Credentials are sent there, so nobody on the way may read them."""
    msg = "it must be an https address such as https://api.example.com (http only to this machine)"
    try:
        parts = urlsplit(address)
        host, _port = parts.hostname, parts.port  # an impossible port is told of only when it is read
    except ValueError:
        raise ValueError(msg) from None
    if not host or "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(msg)
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_this_machine(host)):
        raise ValueError(msg)
    return address.rstrip("/")


def _is_this_machine(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


Credential = Annotated[SecretStr, AfterValidator(_visible)]
"""A secret that is sent in an HTTP header."""
ApiAddress = Annotated[str, AfterValidator(_guarded)]
"""Where a provider's API is; without a slash at its end."""
