"""The journal client, for threads: append, read, list, apply, over the broker's socket.

One `Client` may be shared by threads. Calls raise `BrokerGoneError` when the broker cannot be reached and a
`JournalError` with the broker's status when it refuses. Nothing is retried here: an append whose answer got
lost may have landed, and only its owner can find out (`penstock.log.ownership`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, TypeAlias

import grpc

from penstock.base.disk import Buffer
from penstock.base.errors import PenstockError
from penstock.journal import wire
from penstock.journal.fragment import Codec
from penstock.journal.protocol import (
    AppendRequest,
    AppendResponse,
    ApplyRequest,
    FragmentsRequest,
    FragmentsResponse,
    JournalSpec,
    LabelSelector,
    LabelSet,
    ListRequest,
    ListResponse,
    LocateRequest,
    ReadRequest,
    ReadResponse,
    Status,
)

APPEND_CHUNK = 1 << 20
"""An append up to this size is one message, a larger one a stream of such chunks."""

DEFAULT_TIMEOUT = 60.0
_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)


class BrokerGoneError(PenstockError):
    """No broker answers at this address, or it went away in the middle of a call."""


class BytesGoneError(PenstockError):
    """Bytes that were asked for are no longer in the journal."""


class JournalError(PenstockError):
    """The broker's answer was not OK."""

    def __init__(self, journal: str, status: int, detail: str = "") -> None:
        self.journal = journal
        self.status = status
        self.status_name = Status.Name(status)
        super().__init__(f"journal {journal}: {self.status_name}{f' ({detail})' if detail else ''}")


class RegisterMismatchError(JournalError):
    """The registers are not what the append was checked against; carries what they are."""

    def __init__(self, journal: str, registers: LabelSet) -> None:
        super().__init__(journal, Status.REGISTER_MISMATCH)
        self.registers = registers


@dataclass(frozen=True, slots=True)
class Appended:
    """Where an append landed, and the registers after it."""

    begin: int
    end: int
    registers: LabelSet


@dataclass(frozen=True, slots=True)
class Span:
    """Committed bytes [begin, end) of a journal in a local file, `begin` being at `position` there."""

    begin: int
    end: int
    path: Path
    position: int
    codec: Codec


Spans: TypeAlias = list[Span]
"""Named here, since inside `Client` the word `list` means something else."""


class Client:
    """A connection to one broker."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)
        self._calls = wire.Stubs(self._channel)
        self._takes_whole = True

    def append(
        self,
        journal: str,
        content: Buffer | Sequence[Buffer],
        *,
        check: LabelSelector | None = None,
        union: LabelSet | None = None,
        subtract: LabelSet | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> Appended:
        """Append all of `content` in one transaction; durable on return. Empty content is a barrier."""
        first = AppendRequest(
            journal=journal, check_registers=check, union_registers=union, subtract_registers=subtract
        )
        pieces = [content] if isinstance(content, (bytes, bytearray, memoryview)) else content
        with _translated(self.address):
            response = self._append(first, [memoryview(piece).cast("B") for piece in pieces], timeout)
        if response.status == Status.REGISTER_MISMATCH:
            raise RegisterMismatchError(journal, response.registers)
        _require_ok(journal, response.status, response.store_health_error)
        return Appended(response.commit.begin, response.commit.end, response.registers)

    def _append(self, first: AppendRequest, pieces: Sequence[memoryview], timeout: float) -> AppendResponse:
        if self._takes_whole and sum(map(len, pieces)) <= APPEND_CHUNK:
            whole = AppendRequest(content=b"".join(pieces))
            whole.MergeFrom(first)
            try:
                return self._calls.append_whole(whole, timeout=timeout)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                    raise
                self._takes_whole = False  # not a broker of ours; it has not seen the append
        return self._calls.append(_append_stream(first, pieces), timeout=timeout)

    def read(
        self,
        journal: str,
        begin: int,
        end: int = 0,
        *,
        block: bool = False,
        timeout: float | None = DEFAULT_TIMEOUT,
    ) -> Iterator[tuple[int, bytes]]:
        """Committed bytes from `begin`, as (offset, chunk); up to `end`, or to the write head.

        With `block` it goes on as bytes are committed, until `end` or the time-out.
        """
        request = ReadRequest(journal=journal, offset=begin, end_offset=end, block=block)
        position = begin
        with _translated(self.address), _ending(self._calls.read(request, timeout=timeout)) as responses:
            for response in responses:
                if response.content:
                    yield response.offset, response.content
                    position = response.offset + len(response.content)
                elif response.status == Status.OFFSET_NOT_YET_AVAILABLE:
                    return
                else:
                    _require_ok(journal, response.status)
                    position = response.offset
        if not end or position < end:
            raise BrokerGoneError(f"journal {journal}: the broker ended a read at offset {position}")

    def read_bytes(self, journal: str, begin: int, end: int) -> bytes:
        """Bytes [begin, end), or up to the write head; an error if any of them is gone."""
        chunks = []
        position = begin
        for offset, chunk in self.read(journal, begin, end):
            if offset != position:
                raise BytesGoneError(f"journal {journal}: bytes {position} to {offset} are gone")
            chunks.append(chunk)
            position += len(chunk)
        return b"".join(chunks)

    def head(self, journal: str) -> int:
        """The write head: the offset of the next byte to be committed."""
        return self._metadata(ReadRequest(journal=journal, offset=-1, metadata_only=True)).write_head

    def begin(self, journal: str) -> int:
        """The offset of the first byte that is still there; 0 if there is none."""
        request = FragmentsRequest(journal=journal, page_limit=1)
        with _translated(self.address):
            response = self._calls.list_fragments(request, timeout=DEFAULT_TIMEOUT)
        _require_ok(journal, response.status)
        return response.fragments[0].spec.begin if response.fragments else 0

    def wait(self, journal: str, beyond: int, timeout: float) -> int:
        """The write head, as soon as it is past `beyond`, or after `timeout` seconds as it is."""
        request = ReadRequest(journal=journal, offset=beyond, block=True, metadata_only=True)
        try:
            return self._metadata(request, timeout).write_head
        except _TimedOutError:
            return self.head(journal)

    def list(self, selector: LabelSelector | None = None) -> list[ListResponse.Journal]:
        """The journals that the selector matches, in the order of their names."""
        request = ListRequest(selector=selector)
        found: list[ListResponse.Journal] = []
        with _translated(self.address):
            for response in self._calls.list(request, timeout=DEFAULT_TIMEOUT):
                found.extend(response.journals)
        return found

    def apply(self, changes: Iterable[ApplyRequest.Change]) -> bool:
        """Apply all changes or none; False if a revision was not as expected."""
        request = ApplyRequest(changes=changes)
        with _translated(self.address):
            response = self._calls.apply(request, timeout=DEFAULT_TIMEOUT)
        if response.status == Status.ETCD_TRANSACTION_FAILED:
            return False
        _require_ok("apply", response.status)
        return True

    def create(self, spec: JournalSpec) -> bool:
        """Make a journal; False if one of this name is there already."""
        return self.apply([ApplyRequest.Change(expect_mod_revision=0, upsert=spec)])

    def fragments(self, journal: str) -> Iterator[FragmentsResponse._Fragment]:
        """The fragments of a journal, in order, the one being written included."""
        token = 0
        while True:
            request = FragmentsRequest(journal=journal, next_page_token=token)
            with _translated(self.address):
                response = self._calls.list_fragments(request, timeout=DEFAULT_TIMEOUT)
            _require_ok(journal, response.status)
            yield from response.fragments
            token = response.next_page_token
            if not token:
                return

    def locate(self, journal: str, begin: int, end: int) -> Spans:
        """Where [begin, end) lies in local files; what the spans leave out is to be read from the broker."""
        request = LocateRequest(journal=journal, begin=begin, end=end)
        with _translated(self.address):
            response = self._calls.locate(request, timeout=DEFAULT_TIMEOUT)
        _require_ok(journal, response.status)
        return [
            Span(span.begin, span.end, Path(span.path), span.position, Codec(span.compression_codec))
            for span in response.spans
        ]

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _metadata(self, request: ReadRequest, timeout: float = DEFAULT_TIMEOUT) -> ReadResponse:
        with _translated(self.address), _ending(self._calls.read(request, timeout=timeout)) as responses:
            for response in responses:
                if response.status != Status.OFFSET_NOT_YET_AVAILABLE:
                    _require_ok(request.journal, response.status)
                return response
        raise _TimedOutError(f"journal {request.journal}: no answer")


class _TimedOutError(PenstockError):
    pass


class _Reading(Protocol):
    """A call whose answers are taken one by one."""

    def __iter__(self) -> Iterator[ReadResponse]: ...

    def cancel(self) -> bool: ...


@contextmanager
def _ending(call: _Reading) -> Iterator[_Reading]:
    """Ends a call with its block, however little of the answer was taken; otherwise the broker would go on."""
    try:
        yield call
    finally:
        call.cancel()


class _translated:  # noqa: N801 - reads as a clause at its uses
    """Turns gRPC's errors into ours."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, grpc.RpcError):
            return
        code, details = error.code(), error.details() or ""
        if code is grpc.StatusCode.UNAVAILABLE:
            raise BrokerGoneError(f"the broker at {self._address} does not answer ({details})") from None
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise _TimedOutError(f"the broker at {self._address} did not answer in time") from None
        raise PenstockError(f"the broker refused: {details or code.name}") from None


def _require_ok(journal: str, status: int, detail: str = "") -> None:
    if status != Status.OK:
        raise JournalError(journal, status, detail)


def _append_stream(first: AppendRequest, pieces: Sequence[memoryview]) -> Iterator[AppendRequest]:
    """The stream of one append: parameters, content in chunks, and the empty message that means commit."""
    yield first
    for piece in pieces:
        for at in range(0, len(piece), APPEND_CHUNK):
            yield AppendRequest(content=bytes(piece[at : at + APPEND_CHUNK]))
    yield AppendRequest()
