"""What a worker is told: where it listens, what it trusts, how much it takes at once and how long it waits."""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket
import ssl
from dataclasses import dataclass, field
from typing import Final

from penstock.base.errors import UsageError
from penstock.connector.frames import MAX_FRAME, SOURCE_VERSION
from penstock.connector.records import MAX_RECORD
from penstock.connector.session import MAX_CREDITS

_INSTANCE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

_NAME: Final = re.compile(r"[\w-]{1,63}(\.[\w-]{1,63})*\.?")
_FOUR: Final = re.compile(r"[0-9]+(\.[0-9]+){3}")
_LONGEST_NAME: Final = 253

MAX_PARTITIONS: Final = 256
CREDITS: Final = 1 << 17
"""Enough that small messages wait for the disk in few, large appends; `max_pending` bounds the memory, not this."""
JOURNALS: Final = "connectors"
"""The prefix of the names of journals, unless a worker is told another one."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Checked when made."""

    cookie: bytes = field(default=b"", repr=False)
    version: str = SOURCE_VERSION
    credits: int = CREDITS
    instances: frozenset[str] = frozenset()
    """Those that are taken; any with a safe name if none are given."""
    partitions: int = 1
    """Journals among which the new streams of an instance are spread."""
    max_frame: int = MAX_FRAME
    max_sessions: int = 256
    max_streams: int = 4096
    """Of one session."""
    max_pending: int = 16 << 20
    """Bytes of one session that are not durable, and what keeping them takes; above, nothing more is read from it."""
    hello_timeout: float = 10.0
    frame_timeout: float = 60.0
    """For a frame that has begun."""
    migration_timeout: float = 30.0
    outage_limit: float = 60.0
    """How long appends may find no broker before the sessions are sent away."""
    strict_credits: bool = True

    def __post_init__(self) -> None:
        if self.credits < 2:
            raise UsageError(f"{self.credits} credits are too few", hint="at least 2: a stream and a message")
        if self.credits > MAX_CREDITS:
            raise UsageError(f"{self.credits:,} credits are too many", hint=f"at most {MAX_CREDITS:,}")
        if not 1 <= self.partitions <= MAX_PARTITIONS:
            raise UsageError(
                f"an instance cannot have {self.partitions} partitions", hint=f"1 to {MAX_PARTITIONS}"
            )
        if self.max_frame < 64:
            raise UsageError(f"frames of {self.max_frame} bytes are too short", hint="at least 64")
        if self.max_frame > MAX_RECORD:
            raise UsageError(
                f"frames of {self.max_frame:,} bytes are too long for a journal",
                hint=f"at most {MAX_RECORD:,}",
            )

        for name in self.instances:
            fault = instance_fault(name)
            if fault is not None:
                raise UsageError(fault)

    def instance_fault(self, name: str) -> str | None:
        """Why an instance is not taken."""
        fault = instance_fault(name)
        if fault is None and self.instances and name not in self.instances:
            return f"unknown instance '{name}'"
        return fault

    def trusts(self, cookie: bytes) -> bool:
        return hmac.compare_digest(cookie, self.cookie)


@dataclass(frozen=True, slots=True)
class WorkerTls:
    """What a worker shows to those who connect, and whom it trusts when it asks other workers.

    All workers of one prefix have it, or none.
    """

    shows: ssl.SSLContext
    trusts: ssl.SSLContext | None = None
    """None for one that is alone, and asks nobody."""


class NotHereError(UsageError):
    """A worker was asked for an instance or a stream that it does not have."""


def instance_fault(name: str) -> str | None:
    """What is wrong with the name of an instance, which becomes part of a journal's name."""
    if not name:
        return "the instance has no name"
    if _INSTANCE.fullmatch(name) is None or ".." in name:
        shown = name if len(name) <= 80 else name[:80] + "..."
        return f"no instance can be called {shown!r}: 1 to 64 letters, digits, '.', '_', '-', a letter or digit first"
    return None


def dialled(host: str, port: int) -> str:
    """The address of a port at which we listen, as others dial it: nobody can dial "all interfaces"."""
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split(address: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`; an IPv6 address stands in brackets."""
    host, _, port = address.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not _is_host(host) or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise UsageError(f"expected HOST:PORT, got {address!r}", hint="for example 127.0.0.1:7110")
    return host, int(port)


def dialable(address: str) -> tuple[str, int]:
    """As `split`, of an address where somebody else listens: at port 0 nobody does."""
    host, port = split(address)
    if not port:
        raise UsageError(f"nobody listens at port 0 of {address!r}", hint="name the port of a worker")
    return host, port


def _is_host(host: str) -> bool:
    """Whether a machine can be called that. Whether one is, only asking for it tells."""
    if ":" not in host and not _FOUR.fullmatch(host):
        return len(host) <= _LONGEST_NAME and _NAME.fullmatch(host) is not None
    try:
        return ipaddress.ip_address(host) is not None
    except ValueError:
        return False
