"""The journal client of asyncio. One `AsyncClient` serves many tasks of one event loop.

What is tried again by itself, and what is not:

- **append** only while it is certain that nothing was committed: the statuses NOT_JOURNAL_PRIMARY_BROKER,
  NO_JOURNAL_PRIMARY_BROKER and INSUFFICIENT_JOURNAL_BROKERS (the broker's word that nothing happened), no
  connection, or a connection that broke before the message that means to commit was handed over. A
  `BrokerGoneError` with `harmless` False, a `TimedOutError` and a cancellation leave the append in doubt: it may
  have landed, or may yet. (The original's client repeats those as well, so that they may land twice.)
- **read** and **watch** go on after every interruption (`reader`, `watch`).
- the rest is asked once; if there are several addresses, of the next one when a broker is gone (`homes.py`).
"""

# ruff: noqa: ASYNC109 - time-outs are sent to the broker, which ends the call by them as well

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TypeAlias, TypeVar
from weakref import WeakSet

import grpc
import grpc.aio

from penstock.base.disk import Buffer
from penstock.base.errors import PenstockError
from penstock.journal.client import answers, backoff, connection, requests
from penstock.journal.client.answers import Appended, Span
from penstock.journal.client.connection import NoTokens, Tls, Tokens
from penstock.journal.client.errors import BrokerGoneError, JournalError, TimedOutError, translated
from penstock.journal.client.reader import Reader, ReadOptions
from penstock.journal.client.routes import Line, Lines, RouteCache
from penstock.journal.client.shared import NotTakenError, Sharing
from penstock.journal.client.streamed import append_over
from penstock.journal.client.stubs import AppendsCall
from penstock.journal.protocol import (
    AppendRequest,
    AppendResponse,
    ApplyRequest,
    ApplyResponse,
    FragmentsRequest,
    FragmentsResponse,
    Header,
    HeadsRequest,
    JournalSpec,
    LabelSelector,
    LabelSet,
    ListResponse,
    LocateRequest,
    ReadRequest,
    ReadResponse,
    RollRequest,
    RollResponse,
    Status,
    TrimRequest,
    TrimResponse,
)

DEFAULT_TIMEOUT = 60.0
NOBODY = frozenset({Status.NO_JOURNAL_PRIMARY_BROKER, Status.INSUFFICIENT_JOURNAL_BROKERS})
"""No broker takes the append at the moment, whatever the route says."""
RETRIED = NOBODY | {Status.NOT_JOURNAL_PRIMARY_BROKER}

Content: TypeAlias = Buffer | Sequence[Buffer] | AsyncIterable[bytes]
Journals: TypeAlias = list[ListResponse.Journal]
Spans: TypeAlias = list[Span]
"""Named here, since inside `AsyncClient` the word `list` means something else."""

A = TypeVar("A")


class AsyncClient:
    """A connection to a broker, or to the first of several, and with `follow_routes` to those that it points to.

    `zone` is the client's own: reads prefer brokers there. Forms of address: `penstock.journal.client.connection`.
    """

    def __init__(
        self,
        address: str,
        *,
        tls: Tls | None = None,
        tokens: Tokens | None = None,
        follow_routes: bool = False,
        zone: str = "",
        near: Callable[[], AppendsCall | None] | None = None,
    ) -> None:
        """`near` begins a stream of appends without a socket, while the broker is in this very event loop."""
        self.address = address
        self._near = near
        self._near_calls: WeakSet[AppendsCall] = WeakSet()
        self.follow_routes = follow_routes
        self.zone = zone
        self.tokens: Tokens = tokens or NoTokens()
        self.routes = RouteCache()
        self.lines = Lines(address, tls)
        self._closed = False
        self._sharing = Sharing()

    def __repr__(self) -> str:
        return f"AsyncClient({self.address!r})"

    async def append(
        self,
        journal: str,
        content: Content,
        *,
        check: LabelSelector | None = None,
        union: LabelSet | None = None,
        subtract: LabelSet | None = None,
        offset: int = 0,
        suspend: int = AppendRequest.SUSPEND_RESUME,
        timeout: float = DEFAULT_TIMEOUT,
        retry: bool = True,
    ) -> Appended:
        """Append all of `content` in one transaction; durable on return. Empty content is a barrier.

        `timeout` bounds all attempts together. Content that comes from an asynchronous iterator cannot come twice,
        so it is not tried again; if the iterator fails, nothing is appended.
        """
        first = requests.append(journal, check, union, subtract, offset, suspend)
        deadline = asyncio.get_running_loop().time() + timeout
        if isinstance(content, AsyncIterable):
            response = await self._append_once(first, content, timeout)
            return answers.appended(journal, response)
        pieces = requests.pieces_of(content)
        failures = 0
        while True:
            try:
                left = deadline - asyncio.get_running_loop().time()
                response = await self._append_once(first, pieces, left)
                return answers.appended(journal, response, sum(map(len, pieces)))
            except JournalError as error:
                if not retry or error.status not in RETRIED:
                    raise
                failure: BrokerGoneError | JournalError = error
            except BrokerGoneError as error:
                if not retry or not error.harmless or self._closed:
                    raise
                failure = error
            failures += 1
            wait = backoff.delay(failures, refused=isinstance(failure, JournalError))
            if asyncio.get_running_loop().time() + wait >= deadline:
                raise failure
            await asyncio.sleep(wait)

    async def _append_once(
        self, first: AppendRequest, content: Sequence[memoryview] | AsyncIterable[bytes], timeout: float
    ) -> AppendResponse:
        """One attempt; its answer, whatever it says."""
        if self._closed:
            raise BrokerGoneError("the client is closed", harmless=True)
        line = self.primary_line(first.journal)
        try:
            response = await self._sent(line, first, content, timeout)
        except BrokerGoneError:
            self.leave(line, first.journal)
            raise
        if response.status in NOBODY:
            self.routes.forget(first.journal)  # the one that it names is not there
        else:
            self.observe(first.journal, response.header)
        return response

    async def _sent(
        self,
        line: Line,
        first: AppendRequest,
        content: Sequence[memoryview] | AsyncIterable[bytes],
        timeout: float,
    ) -> AppendResponse:
        """Over the stream that small appends share, or as a call of its own."""

        def metadata() -> connection.Metadata:
            return connection.bearer(self.tokens.for_append(first.journal))

        if not isinstance(content, AsyncIterable):
            stream = self._sharing.stream_for(line, first.journal, sum(map(len, content)), metadata)
            if stream is not None:
                with suppress(NotTakenError):
                    return await stream.append(requests.whole(first, content), timeout)
        with line.busy():
            return await append_over(line, first, content, timeout, metadata())

    def read(
        self,
        journal: str,
        begin: int = 0,
        end: int = 0,
        *,
        block: bool = False,
        begin_mod_time: int = 0,
        direct: bool = False,
        file_root: Path | None = None,
        raise_jumps: bool = False,
        outage_limit: float | None = None,
    ) -> Reader:
        """Committed bytes from `begin` (-1: the write head) as (offset, chunk), across fragments and outages.

        Up to `end`, or to the write head (`HoleError` if it does not get there); with `block` it goes on as bytes are
        committed. With `direct`, stored fragments are fetched from their store. See `penstock.journal.client.reader`.
        """
        options = ReadOptions(
            journal, begin, end, block, begin_mod_time, direct, file_root, raise_jumps, outage_limit
        )
        return Reader(self, options)

    async def read_bytes(self, journal: str, begin: int, end: int = 0) -> bytes:
        """Bytes [begin, end), or up to the write head; an error if any of them is gone."""
        whole = answers.Whole(journal, begin)
        async with self.read(journal, begin, end) as reader:
            async for offset, chunk in reader:
                whole.add(offset, chunk)
        return whole.content()

    async def metadata(
        self,
        journal: str,
        offset: int = -1,
        *,
        block: bool = False,
        timeout: float = DEFAULT_TIMEOUT,
        begin_mod_time: int = 0,
    ) -> ReadResponse:
        """What a read from `offset` (-1: the write head) would begin with. OK, or OFFSET_NOT_YET_AVAILABLE."""
        request = ReadRequest(
            journal=journal, offset=offset, block=block, metadata_only=True, begin_mod_time=begin_mod_time
        )
        metadata = connection.bearer(self.tokens.for_read(journal))

        async def first(line: Line) -> ReadResponse:
            call = line.calls.read(request, timeout=timeout, metadata=metadata)
            try:
                response = await call.read()
            finally:
                call.cancel()
            if not isinstance(response, ReadResponse):
                raise TimedOutError(f"journal {journal}: no answer")
            return response

        response = await self._asked(journal, first)
        self.observe(journal, response.header)
        answers.Progress(journal, offset, 0).accept(response)
        return response

    async def head(self, journal: str) -> int:
        """The write head: the offset of the next byte to be committed."""
        return (await self.metadata(journal)).write_head

    async def heads(self, selector: LabelSelector | None = None) -> dict[str, int]:
        """The write heads of the journals that the selector matches, as `Client.heads`."""
        request = HeadsRequest(selector=selector)
        metadata = connection.bearer(self.tokens.for_heads(request.selector))

        async def told(line: Line) -> dict[str, int]:
            call = line.calls.heads(request, timeout=DEFAULT_TIMEOUT, metadata=metadata)
            return answers.heads([response async for response in call])

        return await self._home(told)

    async def wait(self, journal: str, beyond: int, timeout: float) -> int:
        """The write head, as soon as it is past `beyond`, or after `timeout` seconds as it is."""
        try:
            return (await self.metadata(journal, beyond, block=True, timeout=timeout)).write_head
        except TimedOutError:
            return await self.head(journal)

    async def begin(self, journal: str) -> int:
        """The offset of the first byte that is still there; where none is, of the next one to come."""
        found = await self._first(journal)
        if found is not None:
            return found
        head = await self.head(journal)
        found = await self._first(journal)  # somebody may have appended meanwhile
        return head if found is None else found

    async def _first(self, journal: str) -> int | None:
        response = await self._fragments(FragmentsRequest(journal=journal, page_limit=1))
        answers.require_ok(journal, response.status)
        return response.fragments[0].spec.begin if response.fragments else None

    async def fragments(
        self,
        journal: str,
        *,
        begin_mod_time: int = 0,
        end_mod_time: int = 0,
        signature_ttl: timedelta | None = None,
    ) -> AsyncIterator[FragmentsResponse._Fragment]:
        """The fragments of a journal, as `Client.fragments`."""
        token = 0
        while True:
            response = await self._fragments(
                requests.fragments(journal, begin_mod_time, end_mod_time, signature_ttl, token)
            )
            token = answers.page(journal, response, token)
            for fragment in response.fragments:
                yield fragment
            if not token:
                return

    async def list(self, selector: LabelSelector | None = None, *, store_health: bool = False) -> Journals:
        """The journals that the selector matches, in the order of their names.

        With `store_health` each says what the broker that answers knows of its stores.
        """
        request = requests.listing(selector, store_health=store_health)
        metadata = connection.bearer(self.tokens.for_list(request.selector))

        async def listed(line: Line) -> Journals:
            snapshots = answers.Snapshots()
            async for response in line.calls.list(request, timeout=DEFAULT_TIMEOUT, metadata=metadata):
                snapshots.accept(response)
            return snapshots.rest()

        return await self._home(listed)

    async def watch(self, selector: LabelSelector | None = None) -> AsyncIterator[Journals]:
        """The journals that the selector matches: now, and again, complete, whenever that changes. Without end.

        A stream that breaks, or that the broker ends, is resumed after the last snapshot, so none comes twice.
        """
        resume: Header | None = None
        failures = 0
        while True:
            request = requests.listing(selector, watch=True, resume=resume)
            snapshots = answers.Snapshots(resume)
            line, metadata = self.lines.home, connection.bearer(self.tokens.for_list(request.selector))
            call = line.calls.list(request, metadata=metadata)
            try:
                async for response in call:
                    journals = snapshots.accept(response)
                    if journals is not None:
                        failures, resume = 0, snapshots.header
                        yield journals
            except grpc.aio.AioRpcError as error:
                failure = translated(error, line.address)
                if not isinstance(failure, (BrokerGoneError, TimedOutError)):
                    raise failure from None
                self.lines.left(line)
            finally:
                call.cancel()
            failures += 1
            await asyncio.sleep(backoff.delay(failures))

    async def apply(self, changes: Iterable[ApplyRequest.Change], *, max_txn_size: int = 0) -> bool:
        """Apply all changes or none; False if a revision was not as expected.

        With `max_txn_size` they go in transactions of so many changes each, one after the other: the first that
        fails ends it, and those before it stay.
        """
        for request in requests.apply(changes, max_txn_size):
            if not answers.was_applied(await self._apply(request)):
                return False
        return True

    async def _apply(self, request: ApplyRequest) -> ApplyResponse:
        metadata = connection.bearer(self.tokens.for_apply())
        return await self._home(
            lambda line: line.calls.apply(request, timeout=DEFAULT_TIMEOUT, metadata=metadata), changes=True
        )

    async def create(self, spec: JournalSpec) -> bool:
        """Make a journal; False if one of this name is there already."""
        return await self.apply([ApplyRequest.Change(expect_mod_revision=0, upsert=spec)])

    async def store_health(self, url: str, *, check_delete_prefix: str | None = None) -> str:
        """What is wrong with a fragment store, as the broker sees it; empty if nothing is."""
        request = requests.store_health(url, check_delete_prefix)
        metadata = connection.bearer(self.tokens.for_health())
        response = await self._home(
            lambda line: line.calls.fragment_store_health(
                request, timeout=2 * DEFAULT_TIMEOUT, metadata=metadata
            )
        )
        return answers.health(response)

    async def trim(self, journal: str, offset: int) -> TrimResponse:
        """Delete the fragments that end at or below `offset`. Reads below jump forward."""
        request = TrimRequest(journal=journal, offset=offset)
        metadata = connection.bearer(self.tokens.for_maintenance(journal))
        response = await self._home(
            lambda line: line.calls.trim(request, timeout=DEFAULT_TIMEOUT, metadata=metadata), changes=True
        )
        answers.require_ok(journal, response.status)
        return response

    async def roll(self, journal: str) -> RollResponse:
        """Close the fragment under construction, so that it goes to the store now."""
        request = RollRequest(journal=journal)
        metadata = connection.bearer(self.tokens.for_maintenance(journal))
        response = await self._home(
            lambda line: line.calls.roll(request, timeout=DEFAULT_TIMEOUT, metadata=metadata), changes=True
        )
        answers.require_ok(journal, response.status)
        return response

    async def locate(self, journal: str, begin: int, end: int) -> Spans:
        """Where [begin, end) lies in local files; what the spans leave out is to be read from the broker."""
        request = LocateRequest(journal=journal, begin=begin, end=end)
        metadata = connection.bearer(self.tokens.for_read(journal))
        response = await self._home(
            lambda line: line.calls.locate(request, timeout=DEFAULT_TIMEOUT, metadata=metadata)
        )
        return answers.spans(journal, response)

    async def close(self) -> None:
        """End everything; appends under way fail or are cancelled, and are in doubt."""
        self._closed = True
        for call in list(self._near_calls):
            call.cancel()
        await self._sharing.close()
        await self.lines.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def primary_line(self, journal: str) -> Line:
        """Where appends to a journal go."""
        return self.lines.to(self.routes.primary(journal) if self.follow_routes else None)

    def member_line(self, journal: str) -> Line:
        """Where reads of a journal go."""
        return self.lines.to(self.routes.member(journal, self.zone) if self.follow_routes else None)

    def near_appends(self) -> AppendsCall | None:
        """A stream of appends that needs no line; None if the broker is not in this event loop, or we are closed."""
        call = self._near() if self._near is not None and not self._closed else None
        if call is not None:
            self._near_calls.add(call)
        return call

    def observe(self, journal: str, header: Header) -> None:
        if self.follow_routes:
            self.routes.observe(journal, header)

    def gone(self, error: grpc.aio.AioRpcError, line: Line, journal: str = "") -> PenstockError:
        """gRPC's error as ours; a broker that does not answer is left."""
        failure = translated(error, line.address)
        if isinstance(failure, BrokerGoneError):
            self.leave(line, journal)
        return failure

    def leave(self, line: Line, journal: str) -> None:
        """Ask another broker from now on."""
        self.routes.forget(journal)
        self.lines.left(line)

    async def _asked(self, journal: str, ask: Callable[[Line], Awaitable[A]]) -> A:
        """The answer of a broker that has the journal."""
        return await self.lines.asked(
            ask, lambda: self.member_line(journal), lambda error, line: self.gone(error, line, journal)
        )

    async def _home(self, ask: Callable[[Line], Awaitable[A]], *, changes: bool = False) -> A:
        """The answer of one of our own addresses."""
        return await self.lines.asked(ask, lambda: self.lines.home, self.gone, changes=changes)

    async def _fragments(self, request: FragmentsRequest) -> FragmentsResponse:
        metadata = connection.bearer(self.tokens.for_read(request.journal))
        response = await self._asked(
            request.journal,
            lambda line: line.calls.list_fragments(request, timeout=DEFAULT_TIMEOUT, metadata=metadata),
        )
        self.observe(request.journal, response.header)
        return response
