"""The coordinator's side of the two-phase commit: one connection to a sink under one worker's name. Pure.

    state       what happens                                                       next
    new         `greeting`: HELLO, NOTIFY(1) and LIST_UNCOMMITTED, without waiting  greeting
    greeting    OK, NOTIFY_ACK and REPLY_UNCOMMITTED come, in this order            listed, or ready if none is open
    listed      `phase2` for each transaction that the sink listed                 ready, once all are decided
    ready       `data` on stream 1; ids are byte offsets                           ready
    ready       `phase1`                                                           voting
    voting      REPLY comes                                                        voted
    voted       `phase2`                                                           ready
    any         ERROR, RESTART, or a frame out of turn                             ended

The sink never answers PHASE2; that it was carried out shows when `list_again` no longer lists the transaction.
`decided` and `outcome` are the rules of the decision itself: commit if and only if all voted so, and what was recorded
before any PHASE2 was sent is what every later PHASE2 says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock.base.errors import AwayError, PenstockError
from penstock.base.texts import one_line
from penstock.connector.frames import (
    HEAD,
    NOT_NOW,
    OFFSETS,
    SINK_VERSION,
    Error,
    Frame,
    FrameError,
    Hello,
    Message,
    Notify,
    NotifyAck,
    Ok,
    Restart,
    Tag,
    encode,
    frame_of,
)
from penstock.connector.inner import (
    CONTROL_STREAM,
    DATA_STREAM,
    ListUncommitted,
    Phase1,
    Phase2,
    Reply,
    ReplyUncommitted,
    WorkersLeft,
    encode_inner,
    inner_of,
)

FIRST_RTAG: Final = 77778
LEAST_CREDITS: Final = 2


class SinkError(PenstockError):
    """The sink said that it cannot go on, or did what the protocol forbids. The connection is over."""


class Step(Enum):
    NEW = "new"
    GREETING = "greeting"
    LISTED = "listed"
    READY = "ready"
    VOTING = "voting"
    VOTED = "voted"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Listed:
    """What a sink told of its state: the transactions without a decision, and the offset that it expects next, which
    is to be relied on only if the sink vouches for it."""

    transactions: tuple[str, ...]
    offset: int
    vouched: bool = False


@dataclass(frozen=True, slots=True)
class Vote:
    """The answer to PHASE1."""

    transaction: str
    commit: bool


@dataclass(frozen=True, slots=True)
class Redirected:
    """The sink asks to be connected to again, at another address if it names one."""

    address: str


Event = Listed | Vote | Redirected


@dataclass(frozen=True, slots=True)
class Who:
    """How a worker introduces itself. The cookie is a secret."""

    worker: str
    program: str = "penstock"
    cookie: bytes = b""
    version: str = SINK_VERSION

    def __repr__(self) -> str:
        return f"Who({self.worker!r}, {self.program!r})"


class Coordinator:
    """The machine of one connection. Each method gives the bytes to send; each asserts its state."""

    def __init__(self, who: Who, offset: int) -> None:
        """`offset` is the byte offset at which this worker's output goes on: the end of what was last committed."""
        self.who = who
        self.step = Step.NEW
        self.start = self.offset = offset
        self.open: set[str] = set()
        """Transactions that the sink holds and that are not decided on this connection."""
        self.acked = -1
        """The offset that the sink says it expects; -1 before it has."""
        self.vouched = False
        """Whether the sink says that the offset is the one of its storage."""
        self._rtag = FIRST_RTAG
        self._transaction = ""
        self._awaited: list[str] = []

    @property
    def stream(self) -> str:
        return f"{self.who.program}-w-{self.who.worker}"

    def greeting(self) -> bytes:
        """Three frames in a row."""
        self._require("greet", Step.NEW)
        self.step = Step.GREETING
        self._awaited = ["OK", "NOTIFY_ACK", "REPLY_UNCOMMITTED"]
        hello = Hello(
            self.who.version, self.who.cookie, self.who.program, self.who.worker, frozenset({OFFSETS})
        )
        notify = Notify(DATA_STREAM, self.stream, self.offset)
        return encode(hello) + encode(notify) + encode_inner(ListUncommitted(self._rtag))

    def head(self, length: int) -> bytes:
        """What goes before `length` bytes of data."""
        self._require("send data", Step.READY)
        head = HEAD.pack(HEAD.size - 4 + length, Tag.MESSAGE, DATA_STREAM, self.offset, 0, 0)
        self.offset += length
        return head

    def data(self, body: bytes | memoryview) -> bytes:
        """A whole frame of data."""
        return self.head(len(body)) + body

    def phase1(self, transaction: str, where: tuple[int, int] | None = None) -> bytes:
        """Ask for the vote on what was sent since `start`; or, after a reconnect, on `where` once more."""
        again = transaction in self.open
        self._require("ask for a vote", Step.LISTED if again else Step.READY)
        start, end = where or (self.start, self.offset)
        self.step, self._transaction = Step.VOTING, transaction
        self.open.add(transaction)
        return encode_inner(Phase1(transaction, ((DATA_STREAM, start, end),)))

    def phase2(self, transaction: str, commit: bool) -> bytes:
        """Tell the decision, which must be durable by now. Nothing answers it."""
        self._require("tell a decision", Step.LISTED, Step.VOTED, Step.READY)
        voted = self.step is Step.VOTED and transaction == self._transaction
        self.open.discard(transaction)
        if voted:
            if commit:
                self.start = self.offset
            else:
                self.offset = self.start
        if not self.open:
            self.step = Step.READY
        return encode_inner(Phase2(transaction, commit))

    def list_again(self) -> bytes:
        """Ask once more what is open: the answer tells that the decisions before it were carried out."""
        self._require("ask for the list", Step.LISTED, Step.READY)
        self._rtag += 1
        self._awaited = ["REPLY_UNCOMMITTED"]
        self.step = Step.GREETING
        return encode_inner(ListUncommitted(self._rtag))

    def workers_left(self, workers: Sequence[str]) -> bytes:
        """Tell that workers are gone for good. Nothing answers it."""
        self._require("tell who left", Step.LISTED, Step.READY, Step.VOTED)
        return encode_inner(WorkersLeft(self._rtag, tuple(workers)))

    def receive(self, payload: memoryview | bytes) -> Event | None:
        """What a frame of the sink means; None if more has to come first. `AwayError` if it asks to come later."""
        try:
            return self._received(frame_of(payload))
        except FrameError as error:
            self.step = Step.ENDED
            raise SinkError(f"the sink sent what is no frame: {error.what}") from None
        except (SinkError, AwayError):
            self.step = Step.ENDED
            raise

    def _received(self, frame: Frame) -> Event | None:
        match frame:
            case Error(reason) if reason.startswith(NOT_NOW):
                raise AwayError(f"the sink cannot go on now: {one_line(reason.removeprefix(NOT_NOW))}")
            case Error(reason):
                raise SinkError(f"the sink refused: {one_line(reason)}")
            case Restart(address):
                self.step = Step.ENDED
                return Redirected(address)
            case Ok(credit) if self._next() == "OK":
                if credit < LEAST_CREDITS:
                    raise SinkError(f"the sink gave {credit} credits, {LEAST_CREDITS} are needed")
                self.vouched = OFFSETS in frame.capabilities
                self._awaited.pop(0)
                return None
            case NotifyAck() if self._next() == "NOTIFY_ACK":
                if not frame.success or frame.stream != DATA_STREAM:
                    raise SinkError("the sink refused the stream of data")
                self.acked = frame.point
                self._awaited.pop(0)
                return None
            case Message(stream=stream) if stream == CONTROL_STREAM:
                return self._controlled(memoryview(frame.body))
            case _:
                raise SinkError(f"the sink sent {type(frame).__name__} out of turn")

    def _controlled(self, body: memoryview) -> Event:
        inner = inner_of(body)
        if isinstance(inner, ReplyUncommitted) and self._next() == "REPLY_UNCOMMITTED":
            self._awaited.pop(0)
            self.open = set(inner.transactions)
            self.step = Step.LISTED if self.open else Step.READY
            return Listed(inner.transactions, self.acked, self.vouched)
        if isinstance(inner, Reply) and self.step is Step.VOTING and inner.transaction == self._transaction:
            self.step = Step.VOTED
            return Vote(inner.transaction, inner.commit)
        raise SinkError(f"the sink sent {type(inner).__name__} out of turn")

    def _next(self) -> str:
        return self._awaited[0] if self._awaited else ""

    def _require(self, what: str, *steps: Step) -> None:
        if self.step not in steps:
            raise SinkError(f"worker {self.who.worker} cannot {what} now: it is {self.step.value}")


def outcome(votes: Mapping[str, bool | None]) -> bool:
    """Commit, if and only if there is a vote from everybody and all are to commit."""
    return bool(votes) and all(vote is True for vote in votes.values())


def decided(listed: Iterable[str], committed: Collection[str]) -> list[tuple[str, bool]]:
    """What to tell a sink about each transaction that it lists: what the record of decisions says, or else abort."""
    return [(transaction, transaction in committed) for transaction in listed]
