"""The broker of a data directory: the service's methods, each a thin shell around its machine.

One broker, all journals, one replica each. `Broker` knows the key space and the replicas; it answers
`protocol.Journal` and `penstock.Local` (`wire.py`). Nothing here touches content.

Shutdown, in this order: no new calls; calls under way get a moment; each replica waits for its commits, gives
up storing and closes its files; threads end. A fragment not yet in the store is found again at the next start.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import NoReturn, cast

import grpc
import grpc.aio

from penstock.base.disk import Disk
from penstock.base.errors import PenstockError
from penstock.journal import labels, read, validation, wire
from penstock.journal.append import AppendMachine
from penstock.journal.datadir import DataDir, Version
from penstock.journal.fragment import Codec, Fragment
from penstock.journal.keyspace import LocalKeySpace
from penstock.journal.protocol import (
    AppendRequest,
    AppendResponse,
    ApplyRequest,
    ApplyResponse,
    FragmentsRequest,
    FragmentsResponse,
    Header,
    JournalSpec,
    ListRequest,
    ListResponse,
    LocateRequest,
    LocateResponse,
    ReadRequest,
    ReadResponse,
    Route,
    Span,
    Status,
)
from penstock.journal.replica import Replica, Threads
from penstock.journal.stores import FileStore
from penstock.journal.tokens import ValidationError
from penstock.journal.uncancelled import uncancelled
from penstock.journal.wire import Context

log = logging.getLogger(__name__)

ITEMS = "items/"
LIST_CHUNK = 25
MAX_RECEIVE = 4 << 20
STORE_URL = "file:///"
_GRACE = 2.0
_COMMIT_THREADS = 8
_STORE_THREADS = 2


class Broker:
    """An open data directory. Made on the event loop that will serve it; the caller holds the lock."""

    def __init__(self, directory: DataDir, version: Version, disk: Disk) -> None:
        """Recover everything in the directory. Blocks until it is ready to serve."""
        self._directory = directory
        self._disk = disk
        self._version = version
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads = Threads(
            commits=ThreadPoolExecutor(_COMMIT_THREADS, thread_name_prefix="commit"),
            stores=ThreadPoolExecutor(_STORE_THREADS, thread_name_prefix="store"),
        )
        self._applying = asyncio.Lock()
        self._replicas: dict[str, Replica] = {}
        self._keyspace = LocalKeySpace(disk, directory.keyspace)
        try:
            disk.make_dirs(directory.fragments)
            self._store = FileStore(STORE_URL, directory.fragments, disk)
            for key, entry in self._keyspace.under(ITEMS):
                self._open(key.removeprefix(ITEMS), JournalSpec.FromString(entry.value))
        except BaseException:
            self._abandon()
            raise

    async def close(self) -> None:
        self.end_waits()
        try:
            await asyncio.gather(*(replica.close() for replica in self._replicas.values()))
        finally:
            self._abandon()

    def end_waits(self) -> None:
        """Have reads that wait at a write head end, so that nobody else waits for them."""
        for replica in self._replicas.values():
            replica.end_waits()

    def _abandon(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._threads.commits.shutdown(wait=True)
        self._threads.stores.shutdown(wait=True)
        for replica in self._replicas.values():
            replica.abandon()
        self._keyspace.close()

    # The service's methods.

    async def list(self, request: ListRequest, context: Context) -> AsyncIterator[ListResponse]:
        await self._validated(context, validation.validate_list_request, request)
        selector = labels.for_list(request.selector)
        response = ListResponse(header=self._header())
        for key, entry in self._keyspace.under(ITEMS):
            spec = JournalSpec.FromString(entry.value)
            if not labels.match(selector, labels.with_name(spec.labels, spec.name)):
                continue
            if len(response.journals) == LIST_CHUNK:
                yield response
                response = ListResponse()
            journal = response.journals.add(
                spec=spec, mod_revision=entry.mod_revision, create_revision=entry.create_revision
            )
            journal.route.CopyFrom(self._route(key.removeprefix(ITEMS)))
        yield response

    async def apply(self, request: ApplyRequest, context: Context) -> ApplyResponse:
        await self._validated(context, validation.validate_apply_request, request)
        expected: dict[str, int] = {}
        puts: list[tuple[str, bytes]] = []
        deletes: list[str] = []
        for change in request.changes:
            name = change.upsert.name if change.HasField("upsert") else change.delete
            key = f"{ITEMS}{name}"
            if key in deletes or any(key == put for put, _ in puts):
                await _refuse(context, f"{name}: two changes of one journal in one request")
            if change.expect_mod_revision >= 0:
                expected[key] = change.expect_mod_revision
            if change.HasField("upsert"):
                await self._supported(context, change.upsert)
                puts.append((key, change.upsert.SerializeToString(deterministic=True)))
            else:
                deletes.append(key)
        try:
            # To the end, though the client may hang up: key space and replicas must say the same.
            applied = await uncancelled(self._transact(request, expected, puts, deletes))
        except (PenstockError, OSError) as error:
            await _refuse(context, str(error))
        status = Status.OK if applied else Status.ETCD_TRANSACTION_FAILED
        return ApplyResponse(status=status, header=self._header())

    async def _transact(
        self,
        request: ApplyRequest,
        expected: Mapping[str, int],
        puts: Sequence[tuple[str, bytes]],
        deletes: Sequence[str],
    ) -> bool:
        """One at a time: a journal deleted must have let go of its files before it is made again."""
        async with self._applying:
            if not self._keyspace.transact(expected, puts, deletes):
                return False
            for change in request.changes:
                if change.HasField("upsert"):
                    self._open(change.upsert.name, change.upsert)
                else:
                    await self._drop(change.delete)
            return True

    async def read(self, request: ReadRequest, context: Context) -> AsyncIterator[ReadResponse]:
        await self._validated(context, validation.validate_read_request, request)
        name = validation.split_meta(request.journal)[0]
        replica = self._replicas.get(name)
        if replica is None:
            yield ReadResponse(status=Status.JOURNAL_NOT_FOUND, header=self._header())
            return
        try:
            async with aclosing(read.read(request, replica, self._header(name), self._sign)) as responses:
                async for response in responses:
                    yield response
        except (PenstockError, OSError) as error:
            await _refuse(context, str(error))

    async def append(self, requests: AsyncIterator[AppendRequest], context: Context) -> AppendResponse:
        first = await anext(requests, None)
        if first is None:
            await _refuse(context, "append stream: unexpected EOF")
        return await self._append(first, requests, context)

    async def append_whole(self, request: AppendRequest, context: Context) -> AppendResponse:
        content = request.content
        request.ClearField("content")
        return await self._append(request, _stream_of(content), context)

    async def _append(
        self, first: AppendRequest, requests: AsyncIterator[AppendRequest], context: Context
    ) -> AppendResponse:
        await self._validated(context, validation.validate_append_request, first)
        machine = AppendMachine(first, requests, self._replicas.get)
        try:
            await machine.run()
        except (PenstockError, OSError) as error:
            await _refuse(context, str(error))
        name = validation.split_meta(first.journal)[0]
        response = AppendResponse(status=cast("Status", machine.status), header=self._header(name))
        response.total_chunks = machine.total_chunks
        if machine.commit is not None:
            response.commit.CopyFrom(machine.commit.to_proto())
        if machine.status in (Status.OK, Status.REGISTER_MISMATCH):
            response.registers.SetInParent()
            response.registers.CopyFrom(machine.registers)
        return response

    async def list_fragments(self, request: FragmentsRequest, context: Context) -> FragmentsResponse:
        await self._validated(context, validation.validate_fragments_request, request)
        name = validation.split_meta(request.journal)[0]
        replica = self._replicas.get(name)
        if replica is None:
            return FragmentsResponse(status=Status.JOURNAL_NOT_FOUND, header=self._header())
        response = FragmentsResponse(header=self._header(name))
        limit = request.page_limit or 1000
        for entry in replica.index.starting_at(request.next_page_token):
            fragment = entry.fragment
            if len(response.fragments) == limit:
                response.next_page_token = fragment.begin
                break
            if fragment.mod_time and fragment.mod_time < request.begin_mod_time:
                continue
            if request.end_mod_time and not 0 < fragment.mod_time <= request.end_mod_time:
                continue
            listed = response.fragments.add(spec=fragment.to_proto())
            if request.HasField("signatureTTL") and not fragment.is_local:
                listed.signed_url = self._sign(fragment, request.signatureTTL.ToTimedelta())
        return response

    async def locate(self, request: LocateRequest, context: Context) -> LocateResponse:
        replica = self._replicas.get(request.journal)
        if replica is None:
            return LocateResponse(status=Status.JOURNAL_NOT_FOUND)
        response = LocateResponse(write_head=replica.write_head)
        for fragment, file in replica.locate(request.begin, request.end):
            begin = max(fragment.begin, request.begin)
            codec = Codec.NONE if file.spool is not None else fragment.codec
            span = Span(begin=begin, end=min(fragment.end, request.end), path=str(file.path))
            span.position = file.position + begin - fragment.begin
            span.compression_codec = codec.to_proto()
            response.spans.append(span)
        return response

    def _open(self, name: str, spec: JournalSpec) -> None:
        known = self._replicas.get(name)
        if known is not None:
            known.spec = spec
            return
        self._replicas[name] = Replica(
            spec,
            disk=self._disk,
            directory=self._directory.spools(name),
            store=self._store,
            threads=self._threads,
            spawn=self._spawn,
            now=lambda: time.time_ns() // 1000,
        )

    async def _drop(self, name: str) -> None:
        """Stop serving a journal. Its fragments and spools stay: deleting a journal deletes no data."""
        replica = self._replicas.pop(name, None)
        if replica is not None:
            await replica.close()

    def _spawn(self, work: Awaitable[None], name: str) -> asyncio.Task[None]:
        task = asyncio.ensure_future(cast("Coroutine[None, None, None]", work))
        task.set_name(name)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: %s", task.get_name(), error, exc_info=error)

    def _sign(self, fragment: Fragment, ttl: timedelta) -> str:
        return self._store.sign(fragment.content_path, ttl)

    def _route(self, name: str) -> Route:
        route = Route(primary=-1)
        if name in self._replicas:
            route.primary = 0
            route.members.add(zone="local", suffix="embedded")
            route.endpoints.append(f"unix://localhost{self._directory.socket}")
        return route

    def _header(self, name: str = "") -> Header:
        header = Header(route=self._route(name))
        header.process_id.zone, header.process_id.suffix = "local", "embedded"
        header.etcd.cluster_id = int(self._version.id[:15], 16) | 1
        header.etcd.member_id = int(self._version.id[15:30], 16) | 1
        header.etcd.revision = self._keyspace.revision
        header.etcd.raft_term = 1
        return header

    async def _validated(self, context: Context, check: object, request: object) -> None:
        try:
            check(request)  # type: ignore[operator]
        except ValidationError as error:
            await _refuse(context, str(error))

    async def _supported(self, context: Context, spec: JournalSpec) -> None:
        """What this broker cannot do it refuses when the journal is made, not when the data is there."""
        if Codec(spec.fragment.compression_codec) is not Codec.NONE:
            await _refuse(
                context, f"{spec.name}: an embedded broker stores fragments uncompressed (codec NONE)"
            )
        if list(spec.fragment.stores) != [STORE_URL]:
            await _refuse(context, f"{spec.name}: an embedded broker has one store, {STORE_URL}")
        if spec.fragment.path_postfix_template:
            await _refuse(context, f"{spec.name}: an embedded broker takes no path_postfix_template")
        if spec.replication != 1:
            await _refuse(context, f"{spec.name}: an embedded broker keeps one replica")


async def _stream_of(content: bytes) -> AsyncIterator[AppendRequest]:
    """What a client would have streamed after the parameters."""
    if content:
        yield AppendRequest(content=content)
    yield AppendRequest()


async def _refuse(context: Context, text: str) -> NoReturn:
    await context.abort(grpc.StatusCode.UNKNOWN, text)
    raise AssertionError("abort raises")


async def serve(broker: Broker, socket: Path, ready: asyncio.Event, stop: asyncio.Event) -> None:
    """Answer on a Unix socket that only this user can reach, until `stop`."""
    server = grpc.aio.server(
        options=(("grpc.max_receive_message_length", MAX_RECEIVE), ("grpc.so_reuseport", 0)),
    )
    wire.register(server, broker)
    mask = os.umask(0o177)
    try:
        server.add_insecure_port(f"unix:{socket}")
    finally:
        os.umask(mask)
    await server.start()
    ready.set()
    try:
        await stop.wait()
    finally:
        broker.end_waits()
        await server.stop(_GRACE)  # which also removes the socket
