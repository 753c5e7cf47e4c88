"""How a broker is reached: forms of address, TLS, tokens. Both faces of the client are made from this.

    unix:/path/to/socket      the socket of a data directory; unix:///path is the same
    http://host:port          TCP without TLS; also plain host:port
    https://host:port         TCP with TLS; also plain host:port when `tls` is given
    http://a:1,http://b:2     several brokers of a cluster: the first that can be reached is asked

A token travels as metadata of each call. It is in no error and in no `repr`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

import grpc
import grpc.aio

from penstock.base.errors import UsageError
from penstock.journal.protocol import CHUNK_METADATA, LabelSelector
from penstock.journal.tls import ClientTls

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5000),
    # Finds out about a peer that is gone without a word while a read waits. Servers take more frequent pings than
    # one in five minutes for an attack.
    ("grpc.keepalive_time_ms", 330_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)

Metadata = tuple[tuple[str, str], ...]

LARGE_CHUNKS: Metadata = ((CHUNK_METADATA, str(256 << 10)),)
"""Sent with every read: a broker of ours then sends messages of this size, which costs a third of the reference's."""


class Tls(Protocol):
    """What a client trusts, and how it identifies itself (`penstock.journal.tls`)."""

    def grpc_credentials(self) -> grpc.ChannelCredentials: ...


class Tokens(Protocol):
    """Gives the bearer token of each kind of call, or None (`penstock.journal.auth`).

    Asked anew for every call, so a source may sign short-lived ones. Must be quick, and may be called by several
    threads.
    """

    def for_list(self, selector: LabelSelector) -> str | None: ...

    def for_apply(self) -> str | None: ...

    def for_read(self, journal: str) -> str | None: ...

    def for_heads(self, selector: LabelSelector) -> str | None: ...

    def for_append(self, journal: str) -> str | None: ...

    def for_health(self) -> str | None: ...

    def for_maintenance(self, journal: str) -> str | None: ...


class NoTokens:
    """For brokers that want none."""

    def for_list(self, selector: LabelSelector) -> str | None:
        return None

    def for_apply(self) -> str | None:
        return None

    def for_read(self, journal: str) -> str | None:
        return None

    def for_heads(self, selector: LabelSelector) -> str | None:
        return None

    def for_append(self, journal: str) -> str | None:
        return None

    def for_health(self) -> str | None:
        return None

    def for_maintenance(self, journal: str) -> str | None:
        return None


@dataclass(frozen=True, slots=True)
class Target:
    """An address as gRPC takes it."""

    text: str
    secure: bool


def addresses_of(address: str) -> list[str]:
    """The brokers that an address names. A path has commas of its own."""
    if address.startswith("unix:"):
        return [address]
    found = [part.strip() for part in address.split(",") if part.strip()]
    if not found:
        raise UsageError(
            "no broker is named", hint="write http://host:port; several with commas between them"
        )
    return found


def target_of(address: str, *, tls: bool = False) -> Target:
    """Read an address. `tls` is whether TLS was asked for; it is never dropped in silence."""
    if address.startswith("unix:"):
        # A route's endpoint has a host before the path (reference 4), which means nothing to a local socket.
        path = urlsplit(address).path if address.startswith("unix://") else address.removeprefix("unix:")
        if not path:
            raise UsageError(f"'{address}' names no socket", hint="write unix:/path/to/socket")
        return Target(f"unix:{path}", secure=False)
    scheme, found, rest = address.partition("://")
    if not found:
        return Target(_host_port(address, address), secure=tls)
    if scheme == "http":
        if tls:
            raise UsageError(f"'{address}' is without TLS, but TLS was asked for", hint="write https://")
        return Target(_host_port(rest, address), secure=False)
    if scheme == "https":
        return Target(_host_port(rest, address), secure=True)
    raise UsageError(
        f"'{address}' is no address of a broker",
        hint="write unix:/path, http://host:port, https://host:port or host:port",
    )


def _host_port(text: str, address: str) -> str:
    text = text.rstrip("/")
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536 or "/" in host or "@" in host:
        raise UsageError(f"'{address}' is no address of a broker", hint="write host:port")
    return text


def channel(address: str, tls: Tls | None) -> grpc.Channel:
    """A channel for threads; connects at the first call."""
    target = target_of(address, tls=tls is not None)
    if target.secure:
        return grpc.secure_channel(target.text, _credentials(tls), options=CHANNEL_OPTIONS)
    return grpc.insecure_channel(target.text, options=CHANNEL_OPTIONS)


def aio_channel(address: str, tls: Tls | None) -> grpc.aio.Channel:
    """A channel of asyncio; connects at the first call."""
    target = target_of(address, tls=tls is not None)
    if target.secure:
        return grpc.aio.secure_channel(target.text, _credentials(tls), options=CHANNEL_OPTIONS)
    return grpc.aio.insecure_channel(target.text, options=CHANNEL_OPTIONS)


def _credentials(tls: Tls | None) -> grpc.ChannelCredentials:
    return (tls or ClientTls()).grpc_credentials()


def bearer(token: str | None) -> Metadata:
    """The metadata of a call with this token."""
    if token is None:
        return ()
    # gRPC's own complaint about such metadata would show the token.
    if not token or not all("!" <= character <= "~" for character in token):
        raise UsageError("the token for the broker is empty or has characters that no token has")
    return (("authorization", f"Bearer {token}"),)
