"""One connection to a sink, as a machine: payloads in, bytes to send out. It knows no sockets.

    state      frame              what happens                                                next
    new        HELLO              version, cookie and name are checked, the worker recovered  greeted
    greeted    NOTIFY 1           NOTIFY_ACK with the true offset                             open
    open       MESSAGE 1          data                                                        open
    both       MESSAGE 0          the two-phase commit: PHASE1 alone is answered, by a vote   as it was
    both       NOTIFY, another    ERROR, and the connection stays                             as it was
    open       EOS_MESSAGE 1      ACK with what is committed                                  greeted
    any        ERROR              nothing more                                                ended
    any        all else           ERROR                                                       ended

Replies come in the order of what they answer, however much a worker sends at once.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock.connector import inner
from penstock.connector.frames import (
    NOTHING_SEEN,
    OFFSETS,
    SINK_VERSION,
    Ack,
    EosMessage,
    Error,
    Frame,
    FrameError,
    Hello,
    Message,
    Notify,
    NotifyAck,
    Ok,
    Restart,
    encode,
    frame_of,
    greeting_of,
)
from penstock.connector.sink.keeper import Keeper
from penstock.connector.sink.ledger import RuleError
from penstock.connector.sink.workers import file_name

MOST_NAME: Final = 200
"""Of a worker's name, which becomes part of file names."""
WRONG_STATE: Final = "Bad protocol FSM state"
_WRONG_WAY: Final = {Ok: "ok", NotifyAck: "notify_ack", Ack: "ack", Restart: "restart"}


class State(Enum):
    NEW = "new"
    GREETED = "greeted"
    OPEN = "open"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Terms:
    """What a sink asks of those who connect, and gives them."""

    cookie: bytes = b""
    version: str = SINK_VERSION
    credits: int = 500


Attach = Callable[[str], Keeper]
"""Takes a worker's name for this connection alone; `RuleError` if another connection has it."""
Left = Callable[[str, Sequence[str]], None]
"""Who says so, and which workers have left."""


class SinkSession:
    """The machine. `receive` gives the bytes to send; once it is `ended`, the connection is to be closed."""

    def __init__(self, terms: Terms, attach: Attach, left: Left) -> None:
        self.state = State.NEW
        self.keeper: Keeper | None = None
        self._terms = terms
        self._attach = attach
        self._left = left

    @property
    def ended(self) -> bool:
        return self.state is State.ENDED

    def receive(self, payload: memoryview) -> bytes:
        """What to answer to a frame; a peer that breaks the rules is told so, and ends."""
        try:
            if self.state is State.NEW:
                return self._greeted(payload)
            return self._answered(frame_of(payload))
        except FrameError as error:
            return self.refuse(error.message)
        except RuleError as error:
            return self.refuse(error.message)

    def refuse(self, reason: str) -> bytes:
        """End, with a reason for people."""
        self.state = State.ENDED
        return encode(Error(reason))

    def _greeted(self, payload: memoryview) -> bytes:
        if payload[0] != 0:
            raise RuleError(WRONG_STATE)
        version, cookie = greeting_of(payload)
        if version != self._terms.version:
            raise RuleError(f"Unknown protocol version: {version[:50]}")
        if not hmac.compare_digest(cookie, self._terms.cookie):
            raise RuleError("Bad cookie")
        hello = frame_of(payload)
        assert isinstance(hello, Hello)
        self.keeper = self._attach(_checked_name(hello.instance))
        self.state = State.GREETED
        return encode(Ok(self._terms.credits, hello.capabilities & {OFFSETS}))

    def _answered(self, frame: Frame) -> bytes:
        assert self.keeper is not None
        match frame:
            case Message(stream=stream) if stream == inner.DATA_STREAM:
                if self.state is not State.OPEN:
                    raise RuleError(WRONG_STATE)
                self.keeper.data(frame.id, memoryview(frame.body))
                return b""
            case Message(stream=stream) if stream == inner.CONTROL_STREAM:
                return self._controlled(self.keeper, memoryview(frame.body))
            case Message(stream=stream):
                raise RuleError(f"Bad/unregistered stream_id {stream} with message_id {frame.id}")
            case Notify():
                return self._notified(self.keeper, frame)
            case EosMessage(stream=stream) if stream == inner.DATA_STREAM and self.state is State.OPEN:
                self.state = State.GREETED
                return encode(Ack(0, ((inner.DATA_STREAM, self.keeper.ledger.committed),)))
            case Error():
                self.state = State.ENDED
                return b""
            case Ok() | NotifyAck() | Ack() | Restart():
                raise RuleError(f"Invalid message: {_WRONG_WAY[type(frame)]}")
            case _:
                raise RuleError(WRONG_STATE)

    def _notified(self, keeper: Keeper, frame: Notify) -> bytes:
        if frame.stream != inner.DATA_STREAM:
            return encode(Error(f"Unsupported stream id {frame.stream}"))
        if self.state is State.OPEN:
            return encode(NotifyAck(False, frame.stream, min(frame.point, NOTHING_SEEN)))
        self.state = State.OPEN
        return encode(NotifyAck(True, frame.stream, keeper.offset))

    def _controlled(self, keeper: Keeper, body: memoryview) -> bytes:
        asked = inner.inner_of(body)
        match asked:
            case inner.ListUncommitted(rtag):
                return inner.encode_inner(inner.ReplyUncommitted(rtag, tuple(keeper.ledger.unresolved)))
            case inner.Phase1(transaction):
                return inner.encode_inner(inner.Reply(transaction, keeper.phase1(asked)))
            case inner.Phase2():
                keeper.phase2(asked)
                return b""
            case inner.WorkersLeft(workers=workers):
                self._left(keeper.worker, [_checked_name(name) for name in workers])
                return b""
            case _:
                raise RuleError(f"Invalid message: {type(asked).__name__}")


def _checked_name(name: str) -> str:
    if not name or len(file_name(name)) > MOST_NAME or not name.isprintable():
        raise RuleError(f"a worker's name has 1 to {MOST_NAME} bytes, of characters that can be seen")
    return name
