"""The server: a broker with its listeners, the data directory's socket always, TCP and HTTP if asked.

Start: recover, bind, announce the address, serve. Stop: waiting calls end, listeners close and calls under way get a
moment, then the broker closes (`broker.py`).

In a cluster the address is bound first, since it is announced when the broker joins; and before it stops, others are
to take over its journals.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import grpc.aio

from penstock.base.disk import Disk
from penstock.base.errors import PenstockError, UsageError
from penstock.journal import wire
from penstock.journal.auth import Authorizer, OpenAuthorizer
from penstock.journal.broker import Broker, BrokerOptions
from penstock.journal.datadir import DataDir
from penstock.journal.flow import FlowLimits
from penstock.journal.keys import MemberId

if TYPE_CHECKING:
    from penstock.journal.cluster.broker import ClusterBroker
    from penstock.journal.cluster.membership import Membership
    from penstock.journal.cluster.options import ClusterOptions
    from penstock.journal.gateway import Gateway
    from penstock.journal.tls import ServerTls

log = logging.getLogger(__name__)

GRPC_LOG = "grpc._cython.cygrpc"
MAX_RECEIVE = 4 << 20
EMBEDDED_GRACE = 2.0
SERVING_GRACE = 15.0
_LOOK = 1.0
"""Seconds between two looks at whether the directory is still there."""


@dataclass(frozen=True, slots=True)
class Options:
    """What `penstock broker serve` can be told."""

    listen: str | None = None
    """HOST:PORT for gRPC; port 0 takes a free one."""
    http: str | None = None
    """HOST:PORT for the HTTP gateway."""
    zone: str = "local"
    suffix: str = "broker"
    advertise: str = ""
    """HOST:PORT under which clients reach `listen`, if that differs."""
    stores: tuple[str, ...] = ()
    file_root: Path | None = None
    file_only: bool = False
    min_append_rate: int = 65536
    max_append_rate: int = 0
    max_replication: int = 9
    max_receive: int = MAX_RECEIVE
    auto_suspend: bool = False
    authorizer: Authorizer = field(default_factory=OpenAuthorizer)
    tls: ServerTls | None = None
    allow_origins: tuple[str, ...] = ()
    grace: float = SERVING_GRACE
    cluster: ClusterOptions | None = None
    """The cluster that this broker is one of; None: it is alone."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a server answers; empty where it does not."""

    grpc: str
    http: str
    socket: str


async def serve(
    directory: DataDir,
    options: Options,
    *,
    ready: Callable[[Addresses], None],
    stop: asyncio.Event,
    disk: Disk | None = None,
) -> None:
    """Serve a data directory, whose lock the caller holds, until `stop`."""
    disk = disk or Disk()
    _raise_file_limit()
    if options.cluster is not None:
        await _serve_cluster(directory, options, options.cluster, ready, stop, disk)
        return
    broker = Broker(directory, directory.create(disk), disk, _broker_options(options))
    try:
        await _serve(broker, options, ready, stop)
    finally:
        await broker.close()


async def serve_socket(
    broker: Broker, ready: Callable[[], None], stop: asyncio.Event, grace: float = EMBEDDED_GRACE
) -> None:
    """Serve the directory's own socket only, as the embedded broker does."""
    server = _server(MAX_RECEIVE)
    wire.register(server, broker, OpenAuthorizer(), broker.metrics)
    _add_socket(server, broker.directory)
    await server.start()
    ready()
    try:
        await _stopped(broker.directory, stop)
    finally:
        broker.end_waits()
        await server.stop(grace)  # which also removes the socket


async def _serve(
    broker: Broker, options: Options, ready: Callable[[Addresses], None], stop: asyncio.Event
) -> None:
    server = _server(options.max_receive)
    wire.register(server, broker, options.authorizer, broker.metrics)
    socket = _add_socket(server, broker.directory)
    address = _add_tcp(server, options) if options.listen is not None else ""
    if address:
        scheme = "https" if options.tls is not None else "http"
        await broker.announce(f"{scheme}://{_advertised(options, address)}")
    gateway, http = await _gateway(broker, options, address)
    try:
        await server.start()
        ready(Addresses(address, http, str(socket)))
        await _stopped(broker.directory, stop)
    finally:
        broker.end_waits()
        if gateway is not None:
            await gateway.stop(options.grace)
        await server.stop(options.grace)


async def _serve_cluster(
    directory: DataDir,
    options: Options,
    cluster: ClusterOptions,
    ready: Callable[[Addresses], None],
    stop: asyncio.Event,
    disk: Disk,
) -> None:
    from penstock.journal.cluster.broker import ClusterBroker
    from penstock.journal.cluster.membership import Membership

    version = directory.create(disk)
    server = _server(options.max_receive)
    address = _add_tcp(server, options)
    scheme = "https" if options.tls is not None else "http"
    broker_options = _broker_options(options)
    membership = Membership(cluster, broker_options.member, f"{scheme}://{_advertised(options, address)}")
    try:
        if not await _joined(membership, stop):
            return
        broker = ClusterBroker(directory, version, disk, broker_options, membership)
        try:
            await _serve_member(broker, server, address, options, ready, stop)
        finally:
            await broker.close()
    finally:
        await membership.leave()
        await membership.close()


async def _joined(membership: Membership, stop: asyncio.Event) -> bool:
    """Whether we are a member; False if we are to stop before that."""
    joining = asyncio.ensure_future(membership.join())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((joining, stopping), return_when=asyncio.FIRST_COMPLETED)
        if joining.done():
            joining.result()
        return joining.done()
    finally:
        stopping.cancel()
        joining.cancel()
        await asyncio.wait((joining, stopping))


async def _serve_member(
    broker: ClusterBroker,
    server: grpc.aio.Server,
    address: str,
    options: Options,
    ready: Callable[[Addresses], None],
    stop: asyncio.Event,
) -> None:
    wire.register(server, broker, options.authorizer, broker.metrics)
    server.add_generic_rpc_handlers((broker.surveyor.handler(options.authorizer),))
    socket = _add_socket(server, broker.directory)
    gateway, http = await _gateway(broker, options, address)
    try:
        await server.start()
        ready(Addresses(address, http, str(socket)))
        await _stopped(broker.directory, stop)
        log.info("on the way out: others are to take over")
        await broker.drain()
    finally:
        broker.end_waits()
        await broker.retire()
        await broker.membership.leave()
        if gateway is not None:
            await gateway.stop(options.grace)
        await server.stop(options.grace)


async def _stopped(directory: DataDir, stop: asyncio.Event) -> None:
    """Wait until we are to stop; raises if somebody takes the directory, or its lock, away from where it is.

    What is open could be written on, in a directory that has another name or none; what is made anew would be in one
    that has nothing else, and another process might own that.
    """
    ours = directory.lock_file()
    while (error := directory.displaced(ours)) is None:
        if stop.is_set():
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _LOOK)
    log.error("%s", error.message)
    raise error


class HungUp(logging.Filter):
    """Keeps out of the log that a peer hung up while something was on its way to it. gRPC reports it, with a trace, as
    an error of the method; clients that cancel their reads do it all the time."""

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.exc_info[0] if record.exc_info else None
        return kind is None or kind.__name__ != "ExecuteBatchError"


_HUNG_UP = HungUp()


def _server(max_receive: int) -> grpc.aio.Server:
    logging.getLogger(GRPC_LOG).addFilter(_HUNG_UP)
    options = (
        ("grpc.max_receive_message_length", max_receive),
        ("grpc.so_reuseport", 0),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.max_metadata_size", 32 << 10),
        ("grpc.max_concurrent_streams", 10_000),  # of one connection; the next ones wait for their turn
        # Of all connections. Above the first number, 1000 by default, gRPC cancels calls at random, which no client
        # takes for a reason to try again.
        ("grpc.server.max_pending_requests", 50_000),
        ("grpc.server.max_pending_requests_hard_limit", 100_000),
        ("grpc.server_handshake_timeout_ms", 20_000),
        # A peer that is gone without a word holds its reads and appends no longer than this.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
    )
    return grpc.aio.server(options=options)


def _add_socket(server: grpc.aio.Server, directory: DataDir) -> Path:
    """The Unix socket, which only this user can reach."""
    socket = directory.prepare_socket()
    mask = os.umask(0o177)
    try:
        server.add_insecure_port(f"unix:{socket}")
    except RuntimeError as error:
        raise PenstockError(f"cannot listen on {socket}: {error}") from None
    finally:
        os.umask(mask)
    return socket


def _add_tcp(server: grpc.aio.Server, options: Options) -> str:
    """Bind the gRPC listener; returns HOST:PORT with the port that it got."""
    assert options.listen is not None
    host, _ = split_address(options.listen)
    try:
        if options.tls is not None:
            port = server.add_secure_port(options.listen, options.tls.grpc_credentials())
        else:
            port = server.add_insecure_port(options.listen)
    except (
        RuntimeError
    ):  # its text only names a variable of gRPC's; the reason is what gRPC has printed above it
        port = 0
    if not port:
        raise UsageError(
            f"cannot listen on {options.listen}", hint="is the port taken? give another --listen HOST:PORT"
        )
    return f"{host}:{port}"


async def _gateway(broker: Broker, options: Options, address: str) -> tuple[Gateway | None, str]:
    if options.http is None:
        return None, ""
    from penstock.journal.gateway import Gateway

    gateway = Gateway(
        broker,
        options.authorizer,
        allow_origins=options.allow_origins,
        metrics=lambda: _metrics(broker),
        ready=lambda: (True, "ok"),
    )
    host, port = split_address(options.http)
    context = options.tls.ssl_context() if options.tls is not None else None
    http = f"{host}:{await gateway.start(host, port, context)}"
    scheme = "https" if options.tls is not None else "http"
    ours = f"{scheme}://{_advertised(options, address)}" if address else ""
    theirs = f"{scheme}://{_advertised(options, address).rpartition(':')[0]}:{http.rpartition(':')[2]}"
    gateway.translate(lambda endpoint: theirs if endpoint == ours else endpoint)
    return gateway, http


def _metrics(broker: Broker) -> bytes:
    from penstock.journal.prometheus import Unpersisted, exposition

    waiting = [fragment for replica in broker.replicas() for fragment in replica.unpersisted]
    return exposition(
        broker.metrics,
        write_heads=lambda: ((replica.spec.name, replica.write_head) for replica in broker.replicas()),
        unpersisted=lambda: Unpersisted(sum(fragment.length for fragment in waiting), len(waiting)),
        store_health=broker.stores.known,
    )


def split_address(address: str) -> tuple[str, int]:
    """HOST and PORT of `HOST:PORT`; a host that is an IPv6 address stands in brackets."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"expected HOST:PORT, got {address!r}", hint="for example 127.0.0.1:8080")
    return host, int(port)


def _advertised(options: Options, address: str) -> str:
    if not options.advertise:
        return address
    host, port = split_address(options.advertise)
    return f"{host}:{port or address.rpartition(':')[2]}"


def _broker_options(options: Options) -> BrokerOptions:
    return BrokerOptions(
        member=MemberId(options.zone, options.suffix),
        file_root=options.file_root,
        file_only=options.file_only,
        stores=options.stores,
        flow=FlowLimits(minimum_rate=options.min_append_rate, maximum_rate=options.max_append_rate),
        max_replication=options.max_replication,
        first_alone=True,
        auto_suspend=options.auto_suspend,
    )


def _raise_file_limit() -> None:
    """As many open files as the system allows: journals need one each while they are written to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
