"""What web pages make browsers ask of servers that want no secret.

A page of any site can have the browser of whoever looks at it post to this machine; and under a name of its own that
leads here it reads the answers, too. Browsers tell of both: of the first by `Origin`, of the second by `Host`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit


class Refusal(NamedTuple):
    """The status of the answer, and what it says."""

    status: int
    why: str


def is_loopback(host: str) -> bool:
    """Whether a name or address is of this machine alone, whoever is asked for it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def refusal(listens: str, headers: Mapping[str, str], allowed: Collection[str] = ()) -> Refusal | None:
    """Why a request to a server at the host `listens` is not answered; None if it is. Pages of `allowed` may ask."""
    origin = headers.get("Origin")
    if origin is not None and origin not in allowed and "*" not in allowed:
        return Refusal(403, f"pages of {origin[:200]} may not ask")
    if is_loopback(listens) and "Host" in headers and not is_loopback(_named(headers["Host"])):
        return Refusal(421, f"this is not '{headers['Host'][:200]}': ask {listens}")
    return None


def _named(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
