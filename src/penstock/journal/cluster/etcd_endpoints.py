"""The members of etcd that a broker may ask, and which of them it asks now.

One is asked until it fails; then the next in the list, around and around. Each has a connection of its own, made
when it is first needed. A connection that has gone dead without a word is found by gRPC's pings within seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import grpc
import grpc.aio

from penstock.base.errors import UsageError
from penstock.journal.cluster import etcd_pb2 as pb
from penstock.journal.tls import ClientTls

_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 16 << 20),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Also how long an attempt to connect may take.
    ("grpc.min_reconnect_backoff_ms", 2000),
    # etcd takes pings that come faster than one in five seconds for an attack.
    ("grpc.keepalive_time_ms", 6000),
    ("grpc.keepalive_timeout_ms", 3000),
    ("grpc.http2.max_pings_without_data", 0),
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`host:port`, and whether it speaks TLS."""

    target: str
    secure: bool


class Line:
    """A connection to one endpoint, and the calls it takes."""

    def __init__(self, endpoint: Endpoint, tls: ClientTls | None) -> None:
        self.name = endpoint.target
        if endpoint.secure:
            credentials = (tls or ClientTls()).grpc_credentials()
            channel = grpc.aio.secure_channel(endpoint.target, credentials, options=_OPTIONS)
        else:
            channel = grpc.aio.insecure_channel(endpoint.target, options=_OPTIONS)
        self._channel = channel
        self.range: grpc.aio.UnaryUnaryMultiCallable[pb.RangeRequest, pb.RangeResponse] = channel.unary_unary(
            "/etcdserverpb.KV/Range", pb.RangeRequest.SerializeToString, pb.RangeResponse.FromString
        )
        self.txn: grpc.aio.UnaryUnaryMultiCallable[pb.TxnRequest, pb.TxnResponse] = channel.unary_unary(
            "/etcdserverpb.KV/Txn", pb.TxnRequest.SerializeToString, pb.TxnResponse.FromString
        )
        self.grant: grpc.aio.UnaryUnaryMultiCallable[pb.LeaseGrantRequest, pb.LeaseGrantResponse] = (
            channel.unary_unary(
                "/etcdserverpb.Lease/LeaseGrant",
                pb.LeaseGrantRequest.SerializeToString,
                pb.LeaseGrantResponse.FromString,
            )
        )
        self.revoke: grpc.aio.UnaryUnaryMultiCallable[pb.LeaseRevokeRequest, pb.LeaseRevokeResponse] = (
            channel.unary_unary(
                "/etcdserverpb.Lease/LeaseRevoke",
                pb.LeaseRevokeRequest.SerializeToString,
                pb.LeaseRevokeResponse.FromString,
            )
        )
        self.time_to_live: grpc.aio.UnaryUnaryMultiCallable[
            pb.LeaseTimeToLiveRequest, pb.LeaseTimeToLiveResponse
        ] = channel.unary_unary(
            "/etcdserverpb.Lease/LeaseTimeToLive",
            pb.LeaseTimeToLiveRequest.SerializeToString,
            pb.LeaseTimeToLiveResponse.FromString,
        )
        self.keep_alive: grpc.aio.StreamStreamMultiCallable[
            pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse
        ] = channel.stream_stream(
            "/etcdserverpb.Lease/LeaseKeepAlive",
            pb.LeaseKeepAliveRequest.SerializeToString,
            pb.LeaseKeepAliveResponse.FromString,
        )
        self.watch: grpc.aio.StreamStreamMultiCallable[pb.WatchRequest, pb.WatchResponse] = (
            channel.stream_stream(
                "/etcdserverpb.Watch/Watch", pb.WatchRequest.SerializeToString, pb.WatchResponse.FromString
            )
        )
        self.authenticate: grpc.aio.UnaryUnaryMultiCallable[
            pb.AuthenticateRequest, pb.AuthenticateResponse
        ] = channel.unary_unary(
            "/etcdserverpb.Auth/Authenticate",
            pb.AuthenticateRequest.SerializeToString,
            pb.AuthenticateResponse.FromString,
        )

    async def close(self) -> None:
        await self._channel.close()


class Endpoints:
    """All lines, and the one in use."""

    def __init__(self, addresses: Sequence[str], tls: ClientTls | None) -> None:
        if not addresses:
            raise UsageError(
                "no address of etcd is given", hint="write http://host:2379, several with commas"
            )
        self._lines = [Line(endpoint_of(address, tls=tls is not None), tls) for address in addresses]
        self._current = 0

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def names(self) -> str:
        return ", ".join(line.name for line in self._lines)

    @property
    def current(self) -> Line:
        return self._lines[self._current]

    def failed(self, line: Line) -> None:
        """Ask another from now on, unless that is so already."""
        if line is self.current:
            self._current = (self._current + 1) % len(self._lines)

    async def close(self) -> None:
        for line in self._lines:
            await line.close()


def endpoint_of(address: str, *, tls: bool) -> Endpoint:
    """Read an address: `http://host:port`, `https://host:port`, or `host:port` (with TLS if that was asked for)."""
    found = "://" in address
    if "@" in address:
        raise UsageError(
            "an address of etcd has a user in it", hint="name etcd's user and password apart from it"
        )
    wrong = UsageError(f"'{address}' is no address of etcd", hint="write http://host:2379")
    try:
        url = urlsplit(address if found else f"{'https' if tls else 'http'}://{address}")
        port = url.port
    except ValueError:
        raise wrong from None
    if url.scheme not in ("http", "https") or not url.hostname or not port:
        raise wrong
    if url.path not in ("", "/") or url.query or url.fragment:
        raise wrong
    if tls and url.scheme == "http" and found:
        raise UsageError(f"'{address}' is without TLS, but TLS was asked for", hint="write https://")
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    return Endpoint(f"{host}:{port}", url.scheme == "https")
