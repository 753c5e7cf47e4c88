"""What the broker's answers mean, and which ones are nonsense: one implementation for both faces of the client.

Answers are checked against the presence rules (reference 5) as far as something is built on them: an append that
is OK has a place and registers, a read never goes backwards, a snapshot of a watch is complete and newer than
the one before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from penstock.journal.client.errors import (
    BytesGoneError,
    HoleError,
    JournalError,
    OffsetJumpError,
    ProtocolError,
    RegisterMismatchError,
    StoreUnhealthyError,
)
from penstock.journal.fragment import ZERO_SUM, Codec, sum_from_proto
from penstock.journal.protocol import (
    AppendResponse,
    ApplyResponse,
    FragmentsResponse,
    FragmentStoreHealthResponse,
    Header,
    HeadsResponse,
    LabelSet,
    ListResponse,
    LocateResponse,
    ReadResponse,
    Status,
)

_OK = Status.OK  # looking it up costs more than comparing, and every answer is compared


@dataclass(frozen=True, slots=True)
class Appended:
    """Where an append landed, the registers after it, and the SHA1 of its content; zeros if nobody asked for that."""

    begin: int
    end: int
    registers: LabelSet
    sum: bytes = ZERO_SUM


@dataclass(frozen=True, slots=True)
class Span:
    """Committed bytes [begin, end) of a journal in a local file, `begin` being at `position` there."""

    begin: int
    end: int
    path: Path
    position: int
    codec: Codec


def require_ok(journal: str, status: int, detail: str = "") -> None:
    if status == _OK:
        return
    if status == Status.FRAGMENT_STORE_UNHEALTHY:
        raise StoreUnhealthyError(journal, detail)
    raise JournalError(journal, status, detail)


def appended(journal: str, response: AppendResponse, length: int | None = None) -> Appended:
    """Where it landed; `length` is how many bytes were sent, if that is known."""
    if response.status != _OK:
        if response.status == Status.REGISTER_MISMATCH:
            raise RegisterMismatchError(journal, response.registers)
        require_ok(journal, response.status, response.store_health_error)
    commit = response.commit
    if not response.HasField("commit") or not response.HasField("registers"):
        raise ProtocolError(f"journal {journal}: the broker says that an append landed, but not where")
    if commit.end < commit.begin or (length is not None and commit.end - commit.begin != length):
        raise ProtocolError(
            f"journal {journal}: {length} bytes were appended, "
            f"and the broker says that they landed at {commit.begin} to {commit.end}"
        )
    return Appended(commit.begin, commit.end, response.registers, sum_from_proto(commit.sum))


def was_applied(response: ApplyResponse) -> bool:
    """False if a revision was not as expected, and nothing was changed."""
    if response.status == Status.ETCD_TRANSACTION_FAILED:
        return False
    require_ok("apply", response.status)
    return True


def page(journal: str, response: FragmentsResponse, token: int) -> int:
    """The token of the next page, 0 if this is the last one."""
    require_ok(journal, response.status)
    if response.next_page_token and response.next_page_token <= token:
        raise ProtocolError(f"journal {journal}: the broker's pages of fragments go round in circles")
    return response.next_page_token


def health(response: FragmentStoreHealthResponse) -> str:
    """What is wrong with a store; empty if nothing is."""
    if response.status == Status.FRAGMENT_STORE_UNHEALTHY:
        return response.store_health_error or "unhealthy, and the broker does not say why"
    require_ok("store health", response.status)
    return ""


def heads(responses: Iterable[HeadsResponse]) -> dict[str, int]:
    return {head.journal: head.write_head for response in responses for head in response.heads}


def spans(journal: str, response: LocateResponse) -> list[Span]:
    require_ok(journal, response.status)
    return [
        Span(span.begin, span.end, Path(span.path), span.position, Codec(span.compression_codec))
        for span in response.spans
    ]


class Progress:
    """How far a read has come. Feed it every response; it says which bytes are in it.

    `offset` is where the next byte is expected; -1 until the first answer to a read from the write head.
    """

    def __init__(self, journal: str, offset: int, end: int) -> None:
        self.journal = journal
        self.offset = offset
        self.end = end
        self.metadata: ReadResponse | None = None
        """The last metadata message of this stream."""
        self.jump: OffsetJumpError | None = None
        """Set when the read went on at a later offset than expected, until somebody takes it."""

    @property
    def complete(self) -> bool:
        """Whether all bytes that were asked for have come."""
        return 0 < self.end <= self.offset

    @property
    def at_head(self) -> bool:
        """Whether the broker said that there is nothing more for now."""
        return self.metadata is not None and self.metadata.status == Status.OFFSET_NOT_YET_AVAILABLE

    def require_no_hole(self) -> None:
        """Where a read that does not wait ends, the journal must end as well."""
        if self.metadata is not None and self.metadata.write_head > self.offset:
            raise HoleError(self.journal, self.offset, self.metadata.write_head)

    def accept(self, response: ReadResponse) -> bytes:
        """The content of a response, which begins at `offset - len(content)` once this has returned."""
        if response.content:
            self._check_content(response)
            self._move(response.offset)
            self.offset += len(response.content)
            return response.content
        self.metadata = response
        if response.status not in (Status.OK, Status.OFFSET_NOT_YET_AVAILABLE):
            require_ok(self.journal, response.status)
        if response.HasField("fragment"):
            fragment = response.fragment
            if not fragment.begin <= response.offset < fragment.end <= response.write_head:
                raise self._nonsense(
                    f"offset {response.offset} in a fragment from {fragment.begin} to {fragment.end} "
                    f"below the write head {response.write_head}"
                )
        elif response.status == Status.OK:
            if response.offset:
                raise self._nonsense(f"offset {response.offset}, but no fragment that has it")
            return b""  # says nothing of where the read is
        self._move(response.offset)
        return b""

    def _check_content(self, response: ReadResponse) -> None:
        if response.status != Status.OK or response.HasField("fragment") or response.HasField("header"):
            raise self._nonsense("content together with what belongs to a message without")
        if self.end and response.offset + len(response.content) > self.end:
            raise self._nonsense(f"bytes beyond {self.end}, the end of the read")

    def _move(self, offset: int) -> None:
        if offset < self.offset:
            raise self._nonsense(f"offset {offset} after {self.offset}")
        if offset > self.offset >= 0 and self.jump is None:
            self.jump = OffsetJumpError(self.journal, self.offset, offset)
        self.offset = offset

    def _nonsense(self, what: str) -> ProtocolError:
        return ProtocolError(f"journal {self.journal}: the broker answered a read with {what}")


class Whole:
    """Puts bytes together that must follow each other without a gap."""

    def __init__(self, journal: str, begin: int) -> None:
        self._journal = journal
        self._position = begin
        self._chunks: list[bytes] = []

    def add(self, offset: int, chunk: bytes) -> None:
        if offset != self._position:
            raise BytesGoneError(f"journal {self._journal}: bytes {self._position} to {offset} are gone")
        self._chunks.append(chunk)
        self._position += len(chunk)

    def content(self) -> bytes:
        return b"".join(self._chunks)


class Snapshots:
    """Puts the messages of a list together (reference 5, rule 7): of a watch, one snapshot after another."""

    def __init__(self, resume: Header | None = None) -> None:
        self.header: Header | None = None
        """Of the last complete snapshot: what a broken watch is resumed with."""
        self._revision = resume.etcd.revision if resume is not None else 0
        self._open: Header | None = None
        self._journals: list[ListResponse.Journal] = []

    def accept(self, response: ListResponse) -> list[ListResponse.Journal] | None:
        """A complete snapshot, if this message is the one that ends it."""
        if self._open is None:
            require_ok("list", response.status)
            revision = response.header.etcd.revision
            if revision < self._revision:
                raise ProtocolError(f"the broker listed revision {revision} after {self._revision}")
            self._open, self._revision = response.header, revision
        elif not response.journals:
            self.header, self._open = self._open, None
            done, self._journals = self._journals, []
            return done
        self._journals.extend(response.journals)
        return None

    def rest(self) -> list[ListResponse.Journal]:
        """The snapshot of a list that is not watched, at its end."""
        if self._open is None:
            raise ProtocolError("the broker answered a list with nothing")
        return self._journals
