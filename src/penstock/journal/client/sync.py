"""The journal client for threads: append, read, list, apply, over a socket or TCP.

One `Client` may be shared by threads. Calls raise `BrokerGoneError` when the broker cannot be reached and a
`JournalError` with the broker's status when it refuses. Nothing is retried here, but for asking the next of several
addresses (`homes.py`): an append whose answer got lost may have landed, and only its owner can find out
(`penstock.journal.client.fencing`). It has no thread of its own, so a process may fork before its first call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Protocol, TypeAlias, TypedDict, TypeVar

import grpc

from penstock.base.disk import Buffer
from penstock.journal.client import answers, connection, requests
from penstock.journal.client.answers import Appended, Span
from penstock.journal.client.connection import Metadata, NoTokens, Tls, Tokens
from penstock.journal.client.errors import BrokerGoneError, TimedOutError
from penstock.journal.client.halt import Halt
from penstock.journal.client.homes import Begun, Homes
from penstock.journal.client.requests import APPEND_CHUNK
from penstock.journal.client.stubs import Answering, Stubs
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
    TrimRequest,
    TrimResponse,
)

DEFAULT_TIMEOUT = 60.0

Spans: TypeAlias = list[Span]
"""Named here, since inside `Client` the word `list` means something else."""

Journals: TypeAlias = list[ListResponse.Journal]


A = TypeVar("A")


class Near(Protocol):
    """A broker in this very process."""

    def append(self, first: AppendRequest, pieces: Sequence[memoryview], timeout: float) -> AppendResponse:
        """How it takes an append: its parameters, its content, and the time it may take."""
        ...

    def shortened(self, far: Stubs) -> Stubs:
        """The calls of a channel to it, with a shorter way for those that have one."""
        ...


class _Authorized(TypedDict, total=False):
    metadata: Metadata


class Client:
    """A connection to one broker, or to the first of several that can be reached (`penstock.journal.client.homes`).

    Forms of address: `penstock.journal.client.connection`.
    """

    def __init__(
        self, address: str, *, tls: Tls | None = None, tokens: Tokens | None = None, near: Near | None = None
    ) -> None:
        """`near` is the broker, if it is in this process (`penstock.journal.near`)."""
        self.address = address
        self._near = near
        self.tls = tls
        self.tokens: Tokens = tokens or NoTokens()
        self._homes = Homes(address, tls, near.shortened if near is not None else None)
        self._takes_whole = True

    def __repr__(self) -> str:
        return f"Client({self.address!r})"

    @property
    def _calls(self) -> Stubs:
        """Those of the broker that is asked now."""
        return self._homes.current.calls

    def at(self, address: str) -> Client:
        """Another one, of another broker, that trusts and shows the same."""
        secure = connection.target_of(address, tls=self.tls is not None).secure
        return Client(address, tls=self.tls if secure else None, tokens=self.tokens)

    def append(
        self,
        journal: str,
        content: Buffer | Sequence[Buffer],
        *,
        check: LabelSelector | None = None,
        union: LabelSet | None = None,
        subtract: LabelSet | None = None,
        offset: int = 0,
        suspend: int = AppendRequest.SUSPEND_RESUME,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> Appended:
        """Append all of `content` in one transaction; durable on return. Empty content is a barrier.

        `offset`, if not 0, must be the write head. `suspend` is one of `AppendRequest.SUSPEND_...`.
        """
        first = requests.append(journal, check, union, subtract, offset, suspend)
        pieces = requests.pieces_of(content)
        if self._near is not None:
            response = self._near.append(first, pieces, timeout)
        else:
            response = self._homes.asked(
                lambda calls: self._append(calls, first, pieces, timeout), changes=True
            )
        return answers.appended(journal, response, sum(map(len, pieces)))

    def _append(
        self, calls: Stubs, first: AppendRequest, pieces: Sequence[memoryview], timeout: float
    ) -> AppendResponse:
        authorized = _authorized(self.tokens.for_append(first.journal))
        if self._takes_whole and sum(map(len, pieces)) <= APPEND_CHUNK:
            try:
                return calls.append_whole(requests.whole(first, pieces), timeout=timeout, **authorized)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                    raise
                self._takes_whole = False  # not a broker of ours; it has not seen the append
        return calls.append(requests.stream(first, pieces), timeout=timeout, **authorized)

    def read(
        self,
        journal: str,
        begin: int,
        end: int = 0,
        *,
        block: bool = False,
        timeout: float | None = DEFAULT_TIMEOUT,
        begin_mod_time: int = 0,
    ) -> Iterator[tuple[int, bytes]]:
        """Committed bytes from `begin`, as (offset, chunk); up to `end`, or to the write head, or `HoleError`.

        With `block` it goes on as bytes are committed, until `end` or the time-out. Where bytes are gone, the
        next chunk's offset is beyond the end of the one before. `begin_mod_time` (unix seconds) leaves out
        fragments that were stored before.
        """
        request = ReadRequest(
            journal=journal, offset=begin, end_offset=end, block=block, begin_mod_time=begin_mod_time
        )
        progress = answers.Progress(journal, begin, end)
        authorized = _authorized(self.tokens.for_read(journal))
        with self._answers(lambda calls: calls.read(request, timeout=timeout, **authorized)) as responses:
            for response in responses:
                content = progress.accept(response)
                if content:
                    yield progress.offset - len(content), content
                elif progress.at_head:
                    progress.require_no_hole()
                    return
        if not progress.complete:
            raise BrokerGoneError(f"journal {journal}: the broker ended a read at offset {progress.offset}")

    def read_bytes(self, journal: str, begin: int, end: int) -> bytes:
        """Bytes [begin, end), or up to the write head; an error if any of them is gone."""
        whole = answers.Whole(journal, begin)
        for offset, chunk in self.read(journal, begin, end):
            whole.add(offset, chunk)
        return whole.content()

    def metadata(
        self,
        journal: str,
        offset: int = -1,
        *,
        block: bool = False,
        timeout: float = DEFAULT_TIMEOUT,
        begin_mod_time: int = 0,
    ) -> ReadResponse:
        """What a read from `offset` (-1: the write head) would begin with: fragment, write head, signed URL.

        Its status is OK, or OFFSET_NOT_YET_AVAILABLE.
        """
        request = ReadRequest(
            journal=journal, offset=offset, block=block, metadata_only=True, begin_mod_time=begin_mod_time
        )
        return self._metadata(request, timeout)

    def head(self, journal: str) -> int:
        """The write head: the offset of the next byte to be committed."""
        return self.metadata(journal).write_head

    def heads(self, selector: LabelSelector | None = None) -> dict[str, int]:
        """The write heads of the journals that the selector matches, by name; of as many as are known.

        One call, however many they are, for which nothing is read. `head` of a journal that is missing may know, or
        tell why not. `NotOfferedError` if the broker is not one of ours.
        """
        request = HeadsRequest(selector=selector)
        authorized = _authorized(self.tokens.for_heads(request.selector))
        with self._answers(
            lambda calls: calls.heads(request, timeout=DEFAULT_TIMEOUT, **authorized)
        ) as responses:
            return answers.heads(responses)

    def begin(self, journal: str) -> int:
        """The offset of the first byte that is still there; where none is, of the next one to come."""
        found = self._first(journal)
        if found is not None:
            return found
        head = self.head(journal)
        found = self._first(journal)  # somebody may have appended meanwhile
        return head if found is None else found

    def _first(self, journal: str) -> int | None:
        response = self._fragments(FragmentsRequest(journal=journal, page_limit=1))
        answers.require_ok(journal, response.status)
        return response.fragments[0].spec.begin if response.fragments else None

    def wait(self, journal: str, beyond: int, timeout: float, halt: Halt | None = None) -> int:
        """The write head, as soon as it is past `beyond`, or after `timeout` seconds as it is; or when halted."""
        request = ReadRequest(journal=journal, offset=beyond, block=True, metadata_only=True)
        try:
            return self._metadata(request, timeout, halt).write_head
        except TimedOutError:
            return self.head(journal)
        except BrokerGoneError:
            if halt is None or not halt.asked:
                raise
            return self.head(journal)

    def list(self, selector: LabelSelector | None = None, *, store_health: bool = False) -> Journals:
        """The journals that the selector matches, in the order of their names.

        With `store_health` each says what the broker that answers knows of its stores.
        """
        request = requests.listing(selector, store_health=store_health)
        snapshots = answers.Snapshots()
        authorized = _authorized(self.tokens.for_list(request.selector))
        with self._answers(
            lambda calls: calls.list(request, timeout=DEFAULT_TIMEOUT, **authorized)
        ) as responses:
            for response in responses:
                snapshots.accept(response)
        return snapshots.rest()

    def watch(
        self,
        selector: LabelSelector | None = None,
        *,
        resume: Header | None = None,
        timeout: float | None = None,
    ) -> Iterator[Journals]:
        """The journals that the selector matches: now, and again, complete, whenever that changes.

        Ends when the broker ends it (its shutdown, the token's expiry) or at the time-out; `AsyncClient.watch`
        resumes by itself.
        """
        request = requests.listing(selector, watch=True, resume=resume)
        snapshots = answers.Snapshots(resume)
        authorized = _authorized(self.tokens.for_list(request.selector))
        try:
            with self._answers(lambda calls: calls.list(request, timeout=timeout, **authorized)) as responses:
                for response in responses:
                    journals = snapshots.accept(response)
                    if journals is not None:
                        yield journals
        except TimedOutError:
            return

    def apply(self, changes: Iterable[ApplyRequest.Change], *, max_txn_size: int = 0) -> bool:
        """Apply all changes or none; False if a revision was not as expected.

        With `max_txn_size` they go in transactions of so many changes each, one after the other: the first that
        fails ends it, and those before it stay.
        """
        return all(
            answers.was_applied(self._apply(request)) for request in requests.apply(changes, max_txn_size)
        )

    def _apply(self, request: ApplyRequest) -> ApplyResponse:
        authorized = _authorized(self.tokens.for_apply())
        return self._homes.asked(
            lambda calls: calls.apply(request, timeout=DEFAULT_TIMEOUT, **authorized), changes=True
        )

    def create(self, spec: JournalSpec) -> bool:
        """Make a journal; False if one of this name is there already."""
        return self.apply([ApplyRequest.Change(expect_mod_revision=0, upsert=spec)])

    def fragments(
        self,
        journal: str,
        *,
        begin_mod_time: int = 0,
        end_mod_time: int = 0,
        signature_ttl: timedelta | None = None,
        own: bool = False,
    ) -> Iterator[FragmentsResponse._Fragment]:
        """The fragments of a journal, in order, the one being written included.

        With `own`, as this broker itself knows them: an error if it has no replica. With times (unix seconds, both
        inclusive), those stored within them; an end leaves out what is only local. With `signature_ttl`, each that
        is stored carries a URL that is good for so long.
        """
        token = 0
        while True:
            request = requests.fragments(journal, begin_mod_time, end_mod_time, signature_ttl, token)
            request.do_not_proxy = own
            response = self._fragments(request)
            token = answers.page(journal, response, token)
            yield from response.fragments
            if not token:
                return

    def store_health(self, url: str, *, check_delete_prefix: str | None = None) -> str:
        """What is wrong with a fragment store, as the broker sees it; empty if nothing is.

        With `check_delete_prefix` (ends in `/`) the broker also tries to put and delete an object below it.
        """
        request = requests.store_health(url, check_delete_prefix)
        authorized = _authorized(self.tokens.for_health())
        response = self._homes.asked(
            lambda calls: calls.fragment_store_health(request, timeout=2 * DEFAULT_TIMEOUT, **authorized)
        )
        return answers.health(response)

    def locate(self, journal: str, begin: int, end: int) -> Spans:
        """Where [begin, end) lies in local files; what the spans leave out is to be read from the broker."""
        request = LocateRequest(journal=journal, begin=begin, end=end)
        authorized = _authorized(self.tokens.for_read(journal))
        response = self._homes.asked(
            lambda calls: calls.locate(request, timeout=DEFAULT_TIMEOUT, **authorized)
        )
        return answers.spans(journal, response)

    def trim(self, journal: str, offset: int) -> TrimResponse:
        """Delete the fragments that end at or below `offset`. Reads below jump forward."""
        request = TrimRequest(journal=journal, offset=offset)
        authorized = _authorized(self.tokens.for_maintenance(journal))
        response = self._homes.asked(
            lambda calls: calls.trim(request, timeout=DEFAULT_TIMEOUT, **authorized), changes=True
        )
        answers.require_ok(journal, response.status)
        return response

    def roll(self, journal: str) -> RollResponse:
        """Close the fragment under construction, so that it goes to the store now."""
        request = RollRequest(journal=journal)
        authorized = _authorized(self.tokens.for_maintenance(journal))
        response = self._homes.asked(
            lambda calls: calls.roll(request, timeout=DEFAULT_TIMEOUT, **authorized), changes=True
        )
        answers.require_ok(journal, response.status)
        return response

    def close(self) -> None:
        self._homes.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _fragments(self, request: FragmentsRequest) -> FragmentsResponse:
        authorized = _authorized(self.tokens.for_read(request.journal))
        return self._homes.asked(
            lambda calls: calls.list_fragments(request, timeout=DEFAULT_TIMEOUT, **authorized)
        )

    def _metadata(self, request: ReadRequest, timeout: float, halt: Halt | None = None) -> ReadResponse:
        authorized = _authorized(self.tokens.for_read(request.journal))

        def ask(calls: Stubs) -> Answering[ReadResponse]:
            call = calls.read(request, timeout=timeout, **authorized)
            return call if halt is None else halt.over(call)

        with self._answers(ask) as responses:
            for response in responses:
                answers.Progress(request.journal, request.offset, 0).accept(response)
                return response
        raise TimedOutError(f"journal {request.journal}: no answer")

    @contextmanager
    def _answers(self, ask: Callable[[Stubs], Answering[A]]) -> Iterator[Begun[A]]:
        """The answers to a call that has many. It ends with its block, or else the broker would go on."""
        begun = self._homes.asked(lambda calls: Begun(ask(calls)))
        home = self._homes.current
        try:
            yield begun
        except grpc.RpcError as error:
            raise self._homes.failed(home, error) from None
        finally:
            begun.cancel()


def _authorized(token: str | None) -> _Authorized:
    """The options of a call with this token."""
    return {"metadata": connection.bearer(token)} if token is not None else {}
