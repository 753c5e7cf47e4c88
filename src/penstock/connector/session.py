"""The state machines of the protocol: one connection, the streams on it, and the credits. Both sides use them.

Two tables hold all the moves. `CONNECTION` says which side may send which frame in which state, and what the state is
then; `STREAM` says the same of one stream. What is in neither is illegal, and `IllegalFrameError` carries the text
of the ERROR that answers it. Frames that come after an ERROR, a RESTART or the end are ignored. The file does not know
which side it plays: `Session.frame` is told who sent the frame.

The *connector* is the side that connects and says HELLO, the *worker* the one that answers. With a source these are the
program outside and Penstock; with a sink Penstock connects and the program outside answers (`Role.SINK`): there the
connector need not wait for OK, and messages of the two-phase commit go both ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from penstock.base.errors import PenstockError
from penstock.connector import frames as fr
from penstock.connector.frames import Frame, Tag


class Side(Enum):
    """Who sent a frame."""

    CONNECTOR = "connector"
    WORKER = "worker"


class Role(Enum):
    """What the program outside is."""

    SOURCE = "source"
    SINK = "sink"


class Connection(Enum):
    """The states of a connection."""

    CONNECTED = "connected"
    HANDSHAKE = "handshake"
    STREAMING = "streaming"
    MIGRATING = "migrating"
    ERROR = "error"
    DISCONNECTED = "disconnected"


class Stream(Enum):
    """The states of a stream during one session. Closing: EOS is said, and its last message not yet durable."""

    START = "start"
    NOTIFY_SENT = "notify sent"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"
    TERMINATED = "terminated"


class Event(Enum):
    """What happens to a stream: a frame, or what the frame says."""

    NOTIFY = "NOTIFY"
    ACCEPTED = "NOTIFY_ACK success"
    REFUSED = "NOTIFY_ACK refusal"
    MESSAGE = "MESSAGE"
    EOS = "EOS_MESSAGE"
    ACK = "ACK"
    FINAL_ACK = "ACK of the last id"
    RESTART = "RESTART"


class Verdict(Enum):
    """What becomes of a legal frame."""

    TAKEN = "taken"
    REFUSE = "answer with NOTIFY_ACK refusal"
    IGNORED = "ignored"


class IllegalFrameError(PenstockError):
    """A frame that the other side must not send now; the message is the ERROR that answers it."""


class CreditError(IllegalFrameError):
    """More was sent than there were credits for."""


_C, _W = Side.CONNECTOR, Side.WORKER
Moves = Mapping[tuple[Connection, Side, Tag], Connection]

CONNECTION: Final[Moves] = {
    (Connection.CONNECTED, _C, Tag.HELLO): Connection.HANDSHAKE,
    (Connection.CONNECTED, _C, Tag.ERROR): Connection.ERROR,
    (Connection.CONNECTED, _W, Tag.ERROR): Connection.ERROR,
    (Connection.CONNECTED, _W, Tag.MIGRATE): Connection.MIGRATING,
    (Connection.HANDSHAKE, _W, Tag.OK): Connection.STREAMING,
    (Connection.HANDSHAKE, _C, Tag.ERROR): Connection.ERROR,
    (Connection.HANDSHAKE, _W, Tag.ERROR): Connection.ERROR,
    (Connection.HANDSHAKE, _W, Tag.MIGRATE): Connection.MIGRATING,
    (Connection.STREAMING, _C, Tag.NOTIFY): Connection.STREAMING,
    (Connection.STREAMING, _W, Tag.NOTIFY_ACK): Connection.STREAMING,
    (Connection.STREAMING, _C, Tag.MESSAGE): Connection.STREAMING,
    (Connection.STREAMING, _C, Tag.EOS_MESSAGE): Connection.STREAMING,
    (Connection.STREAMING, _W, Tag.ACK): Connection.STREAMING,
    (Connection.STREAMING, _W, Tag.RESTART): Connection.DISCONNECTED,
    (Connection.STREAMING, _W, Tag.MIGRATE): Connection.MIGRATING,
    (Connection.STREAMING, _C, Tag.ERROR): Connection.ERROR,
    (Connection.STREAMING, _W, Tag.ERROR): Connection.ERROR,
    # A connector that is asked to go closes its streams first; what it had sent before is still on its way.
    (Connection.MIGRATING, _C, Tag.NOTIFY): Connection.MIGRATING,
    (Connection.MIGRATING, _W, Tag.NOTIFY_ACK): Connection.MIGRATING,
    (Connection.MIGRATING, _C, Tag.MESSAGE): Connection.MIGRATING,
    (Connection.MIGRATING, _C, Tag.EOS_MESSAGE): Connection.MIGRATING,
    (Connection.MIGRATING, _W, Tag.ACK): Connection.MIGRATING,
    (Connection.MIGRATING, _W, Tag.MIGRATE): Connection.MIGRATING,
    (Connection.MIGRATING, _W, Tag.RESTART): Connection.DISCONNECTED,
    (Connection.MIGRATING, _C, Tag.MIGRATION_ACK): Connection.DISCONNECTED,
    (Connection.MIGRATING, _C, Tag.ERROR): Connection.ERROR,
    (Connection.MIGRATING, _W, Tag.ERROR): Connection.ERROR,
}
SINK_CONNECTION: Final[Moves] = {
    **CONNECTION,
    (Connection.HANDSHAKE, _C, Tag.NOTIFY): Connection.HANDSHAKE,
    (Connection.HANDSHAKE, _C, Tag.MESSAGE): Connection.HANDSHAKE,
    (Connection.STREAMING, _W, Tag.MESSAGE): Connection.STREAMING,
}

STREAM: Final[Mapping[tuple[Stream, Event], Stream]] = {
    (Stream.START, Event.NOTIFY): Stream.NOTIFY_SENT,
    (Stream.START, Event.RESTART): Stream.TERMINATED,
    (Stream.START, Event.ACK): Stream.START,
    (Stream.NOTIFY_SENT, Event.ACCEPTED): Stream.OPEN,
    (Stream.NOTIFY_SENT, Event.REFUSED): Stream.CLOSED,
    (Stream.NOTIFY_SENT, Event.ACK): Stream.NOTIFY_SENT,
    (Stream.NOTIFY_SENT, Event.RESTART): Stream.TERMINATED,
    (Stream.OPEN, Event.MESSAGE): Stream.OPEN,
    (Stream.OPEN, Event.EOS): Stream.CLOSING,
    (Stream.OPEN, Event.ACK): Stream.OPEN,
    (Stream.OPEN, Event.RESTART): Stream.TERMINATED,
    (Stream.CLOSING, Event.ACK): Stream.CLOSING,
    (Stream.CLOSING, Event.FINAL_ACK): Stream.CLOSED,
    (Stream.CLOSING, Event.RESTART): Stream.TERMINATED,
    (Stream.CLOSED, Event.NOTIFY): Stream.NOTIFY_SENT,
    (Stream.CLOSED, Event.ACK): Stream.CLOSED,
    (Stream.CLOSED, Event.RESTART): Stream.TERMINATED,
}
REFUSED_AT_ONCE: Final = frozenset({Stream.NOTIFY_SENT, Stream.OPEN, Stream.CLOSING})
"""A NOTIFY of a stream in one of these states is answered with a refusal and changes nothing."""

COST: Final = {Tag.NOTIFY: 1, Tag.MESSAGE: 1}
"""What a frame costs; all others are free."""

_OVER = frozenset({Connection.ERROR, Connection.DISCONNECTED})
_WORKERS = frozenset({Tag.OK, Tag.NOTIFY_ACK, Tag.ACK, Tag.RESTART, Tag.MIGRATE})
_CONNECTORS = frozenset({Tag.HELLO, Tag.NOTIFY, Tag.MESSAGE, Tag.EOS_MESSAGE, Tag.MIGRATION_ACK})
MAX_CREDITS: Final = 2**32 - 1


def move(state: Connection, side: Side, tag: Tag, role: Role = Role.SOURCE) -> Connection | None:
    """The state of the connection after this frame; None if the frame is ignored."""
    if state in _OVER:
        return None
    after = (CONNECTION if role is Role.SOURCE else SINK_CONNECTION).get((state, side, tag))
    if after is None:
        raise IllegalFrameError(_refusal(state, side, tag))
    return after


def _refusal(state: Connection, side: Side, tag: Tag) -> str:
    if tag is Tag.EOS_MESSAGE and side is _C:
        return f"Unable to decode message: {tag.name}, and no stream is open"
    if tag in (_WORKERS if side is _C else _CONNECTORS):
        return f"Invalid message: {tag.name.lower()}"
    return f"Bad protocol FSM state: {tag.name} is not for a connection that is {state.value}"


class Credits:
    """How many frames that cost one the connector may still send, as one of the sides counts them."""

    def __init__(self, held: int = 0) -> None:
        self.held = held

    def spend(self, count: int = 1) -> None:
        if count > self.held:
            raise CreditError(f"credit limit exceeded: {count} needed, {self.held} held")
        self.held -= count

    def grant(self, count: int) -> None:
        self.held = min(self.held + count, MAX_CREDITS)


class Session:
    """One connection as one side sees it: `connection`, the state of each stream, the credits of the connector.

    `last` has the id of the last message that passed on each stream, or the point that its NOTIFY_ACK named.
    """

    def __init__(self, role: Role = Role.SOURCE, *, strict_credits: bool = True) -> None:
        self.role = role
        self.connection = Connection.CONNECTED
        self.credits = Credits()
        self.strict_credits = strict_credits and role is Role.SOURCE
        self.streams: dict[int, Stream] = {}
        self.last: dict[int, int] = {}

    def frame(self, side: Side, frame: Frame) -> Verdict:
        """A frame passed from this side to the other. Raises `IllegalFrameError`, and nothing has changed then."""
        tag = fr.tag_of(frame)
        after = move(self.connection, side, tag, self.role)
        if after is None:
            return Verdict.IGNORED
        if self.strict_credits and tag in COST:
            self.credits.spend(COST[tag])
        verdict = self._on_streams(frame)
        self.connection = after
        return verdict

    def stream(self, stream: int) -> Stream:
        return self.streams.get(stream, Stream.START)

    def count_streams(self, most: int) -> int:
        """How many streams there are. Above `most` those that are closed are forgotten: they may begin anew."""
        if len(self.streams) > most:
            for stream in [each for each, state in self.streams.items() if state is Stream.CLOSED]:
                del self.streams[stream]
                self.last.pop(stream, None)
        return len(self.streams)

    def passed(self, stream: int, number: int) -> None:
        """The message of this id passed. One that is repeated takes back nothing of how far the stream is."""
        last = self.last.get(stream, fr.NOTHING_SEEN)
        if last == fr.NOTHING_SEEN or number > last:
            self.last[stream] = number

    def closed_in_silence(self, stream: int) -> None:
        """A stream is closed without the ACK of its last id, which this peer could not read."""
        if self.stream(stream) is Stream.CLOSING:
            self._step(stream, Event.FINAL_ACK)

    def end(self) -> None:
        """The transport is gone."""
        self.connection = Connection.DISCONNECTED
        self.streams = dict.fromkeys(self.streams, Stream.TERMINATED)

    def _on_streams(self, frame: Frame) -> Verdict:
        match frame:
            case fr.Ok(credits=count):
                self.credits.grant(count)
            case fr.Notify(stream=stream):
                return self._notify(stream)
            case fr.NotifyAck(success=success, stream=stream, point=point):
                self._answered(stream, success, point)
            case fr.Message(stream=stream, id=number):
                self._message(stream, number)
            case fr.EosMessage(stream=stream):
                self._step(stream, Event.EOS)
            case fr.Ack(credits=count, points=points):
                self.credits.grant(count)
                for stream, point in points:
                    self._acked(stream, point)
            case fr.Restart():
                self.streams = dict.fromkeys(self.streams, Stream.TERMINATED)
            case _:
                pass
        return Verdict.TAKEN

    def _notify(self, stream: int) -> Verdict:
        if self.stream(stream) in REFUSED_AT_ONCE or self.connection is Connection.MIGRATING:
            return Verdict.REFUSE
        self._step(stream, Event.NOTIFY)
        return Verdict.TAKEN

    def _answered(self, stream: int, success: bool, point: int) -> None:
        state = self.stream(stream)
        if not success and state is not Stream.NOTIFY_SENT:
            return  # the refusal of a NOTIFY that changed nothing
        self._step(stream, Event.ACCEPTED if success else Event.REFUSED)
        if success:
            self.last[stream] = point

    def _message(self, stream: int, number: int) -> None:
        if self.role is Role.SINK:
            return  # what a sink may be sent when is the business of the two-phase commit
        if self.stream(stream) is not Stream.OPEN:
            raise IllegalFrameError(f"Bad/unregistered stream_id {stream} with message_id {number}")
        if number == fr.NOTHING_SEEN:
            raise IllegalFrameError(f"message_id {number} of stream_id {stream} stands for no message at all")
        self.passed(stream, number)

    def _acked(self, stream: int, point: int) -> None:
        state = self.stream(stream)
        final = state is Stream.CLOSING and self.last.get(stream) == point
        if state is not Stream.TERMINATED:
            self._step(stream, Event.FINAL_ACK if final else Event.ACK)

    def _step(self, stream: int, event: Event) -> None:
        state = self.stream(stream)
        after = STREAM.get((state, event))
        if after is None:
            what = f"{event.value} of stream_id {stream}, which is {state.value}"
            raise IllegalFrameError(f"Unable to decode message: {what}")
        if after is not Stream.START:
            self.streams[stream] = after
