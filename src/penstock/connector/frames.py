"""The frames of the connector protocol, version 3, both directions: their values and their bytes.

    frame     length u32 (of what follows) | tag u8 | body           all integers big-endian
    text      length u16 | bytes, UTF-8                              `short` below; names and reasons may hold any bytes

     0 HELLO          short version | short cookie | short program | short instance [| short capabilities]
     1 OK             u32 credits [| short capabilities, if HELLO named any]
     2 ERROR          short reason
     3 NOTIFY         u64 stream | short name | u64 point of reference
     4 NOTIFY_ACK     u8 success | u64 stream | u64 point of reference
     5 MESSAGE        u64 stream | u64 message id | i64 event time | short key | the rest is the body
     6 ACK            u32 credits | u32 n | n x (u64 stream, u64 point of reference)
     7 RESTART        u32 length | address `host:port`; a bare tag reads as no address
     8 EOS_MESSAGE    u64 stream
     9                reserved: never sent, refused
    10 MIGRATE        u32 length | host | u16 port                   only to peers that said `migrate` in HELLO
    11 MIGRATION_ACK  nothing

The two-phase commit of sinks travels in the body of a MESSAGE on stream 0 (`penstock.connector.inner`). Bytes after the
last known field are ignored, so that frames may grow; an absent key or body is the same as an empty one. Whatever does
not read as a frame is one `FrameError`. `frame_of` takes the payload that `penstock.connector.framing` cuts out.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Final, TypeAlias, cast

import msgspec

from penstock.base.errors import PenstockError

SOURCE_VERSION: Final = "0.0.1"
"""What HELLO says to a worker that takes a source's streams."""
SINK_VERSION: Final = "v0.0.1"
"""What HELLO says to a sink."""

NOTHING_SEEN: Final = 2**64 - 1
"""The point of reference of a stream of which nothing is durable; no message may have it as its id."""

MAX_FRAME: Final = 16 << 20
"""Of the length field, inbound, unless told otherwise."""
CAUTIOUS_FRAME: Final = 16384
"""What every worker takes. One that does not take more closes the connection without a word, so more is sent only to
workers that say how much they take."""
FRAME: Final = "frame="
"""The capability of a worker that takes frames up to the length behind it: named in OK to connectors that name any."""

MIGRATE: Final = "migrate"
"""The capability of a connector that understands MIGRATE."""
OFFSETS: Final = "offsets"
"""The capability of a sink whose NOTIFY_ACK tells the offset that it expects: named in OK to workers that named it in
HELLO. Without it the offset is not relied on: other sinks tell what they remember, which is 0 after a restart and too
much after bytes were cut off."""

SHORT_LIMIT: Final = 0xFFFF
TAG: Final = Struct(">IB")
SHORT: Final = Struct(">H")
U32: Final = Struct(">I")
U64: Final = Struct(">Q")
NOTIFY_ACK: Final = Struct(">BQQ")
HEAD: Final = Struct(">IBQQqH")
"""A whole MESSAGE up to its key: length, tag, stream, message id, event time, length of the key."""
HEAD_AFTER_LENGTH: Final = HEAD.size - 4
ACKED: Final = Struct(">QQ")


class Tag(IntEnum):
    """The first byte of a payload."""

    HELLO = 0
    OK = 1
    ERROR = 2
    NOTIFY = 3
    NOTIFY_ACK = 4
    MESSAGE = 5
    ACK = 6
    RESTART = 7
    EOS_MESSAGE = 8
    MIGRATE = 10
    MIGRATION_ACK = 11


class FrameError(PenstockError):
    """Bytes that are no frame, or values that no frame can carry; `position` counts from the frame's tag."""

    def __init__(self, what: str, position: int = 0) -> None:
        super().__init__(f"Unable to decode message: {what} (byte {position})")
        self.what = what
        self.position = position


class Unsendable(PenstockError):  # noqa: N818 - a value, as `ValueError` is one
    """A value that does not fit its field."""


class Hello(msgspec.Struct, frozen=True):
    """Opens a session. The cookie is a secret and never shows."""

    version: str
    cookie: bytes
    program: str
    instance: str
    capabilities: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return (
            f"Hello({self.version!r}, ***, {self.program!r}, {self.instance!r}, {sorted(self.capabilities)})"
        )


class Ok(msgspec.Struct, frozen=True):
    """The session is open, with so many credits. Capabilities are named to peers that have named theirs."""

    credits: int
    capabilities: frozenset[str] = frozenset()


NOT_NOW: Final = "not now: "
"""So begins the reason of a sink that wants to be asked again later, such as one whose disk is full."""


class Error(msgspec.Struct, frozen=True):
    """The session ends, for a reason meant for people."""

    reason: str


class Notify(msgspec.Struct, frozen=True):
    """Asks for a stream. The point of reference is a hint that nobody trusts."""

    stream: int
    name: str
    point: int


class NotifyAck(msgspec.Struct, frozen=True):
    """The answer; on success `point` is the last id that is durable, or `NOTHING_SEEN`."""

    success: bool
    stream: int
    point: int


class Message(msgspec.Struct, frozen=True):
    """One message. Decoded, `body` and `key` are views into the bytes that came."""

    stream: int
    id: int
    time: int = 0
    key: bytes | memoryview = b""
    body: bytes | memoryview = b""


class Ack(msgspec.Struct, frozen=True):
    """More credits, and for some streams the last id that is durable."""

    credits: int
    points: tuple[tuple[int, int], ...] = ()


class Restart(msgspec.Struct, frozen=True):
    """Connect again, at `address` (`host:port`) if there is one, and read the points of reference anew."""

    address: str = ""


class EosMessage(msgspec.Struct, frozen=True):
    """Nothing more comes on this stream."""

    stream: int


class Migrate(msgspec.Struct, frozen=True):
    """Close your streams, then go to another worker."""

    host: str
    port: int


class MigrationAck(msgspec.Struct, frozen=True):
    """The new worker has answered; the old connection may go."""


Frame: TypeAlias = (
    Hello | Ok | Error | Notify | NotifyAck | Message | Ack | Restart | EosMessage | Migrate | MigrationAck
)


class Cursor:
    """Takes fields from the front of a payload. Running out is a `FrameError`."""

    __slots__ = ("at", "data", "name")

    def __init__(self, data: memoryview, name: str, at: int = 1) -> None:
        self.data = data
        self.name = name
        self.at = at

    def unpack(self, form: Struct) -> tuple[int, ...]:
        at, end = self.at, self.at + form.size
        if end > len(self.data):
            raise FrameError(f"{self.name} is cut short", len(self.data))
        self.at = end
        return form.unpack_from(self.data, at)

    def take(self, length: int) -> memoryview:
        at, end = self.at, self.at + length
        if end > len(self.data):
            raise FrameError(f"{self.name} is cut short", len(self.data))
        self.at = end
        return self.data[at:end]

    def short(self) -> memoryview:
        return self.take(self.unpack(SHORT)[0])

    def text(self, length: int | None = None) -> str:
        at = self.at
        raw = self.short() if length is None else self.take(length)
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError:
            raise FrameError(f"{self.name} holds text that is not UTF-8", at) from None

    def label(self) -> str:
        """Text that only people read. Peers may put any bytes there; those that are not UTF-8 show as `\\xff`."""
        raw = self.short()
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError:
            return clipped(str(raw, "utf-8", "backslashreplace")).decode()

    def flag(self) -> bool:
        at = self.at
        value = self.take(1)[0]
        if value > 1:
            raise FrameError(f"{self.name} has {value} where 0 or 1 stands", at)
        return value == 1

    def count(self, each: int) -> int:
        """The length of a list whose entries have at least `each` bytes: what cannot be there is not believed."""
        at = self.at
        count = self.unpack(U32)[0]
        if count * each > len(self.data) - self.at:
            raise FrameError(f"{self.name} announces {count} entries and has no room for them", at)
        return count

    @property
    def more(self) -> bool:
        return self.at < len(self.data)


def greeting_of(payload: memoryview) -> tuple[str, bytes]:
    """Version and cookie of a HELLO, before anything behind them is looked at."""
    cursor = Cursor(payload, "HELLO")
    return cursor.text(), bytes(cursor.short())


def _hello(cursor: Cursor) -> Hello:
    version, cookie = cursor.text(), bytes(cursor.short())
    program, instance = cursor.label(), cursor.text()
    return Hello(version, cookie, program, instance, _capabilities(cursor))


def _capabilities(cursor: Cursor) -> frozenset[str]:
    """What stands behind the fields that every peer knows; whatever is no list of words is ignored there."""
    try:
        tokens = cursor.text().split(",") if cursor.more else []
    except FrameError:
        return frozenset()
    return frozenset(token for token in tokens if token)


def _notify_ack(cursor: Cursor) -> NotifyAck:
    success = cursor.flag()
    stream, point = cursor.unpack(ACKED)
    return NotifyAck(success, stream, point)


def _message(cursor: Cursor) -> Message:
    data = cursor.data
    if len(data) < HEAD_AFTER_LENGTH:
        raise FrameError("MESSAGE is cut short", len(data))
    stream, number, time, key = _MESSAGE.unpack_from(data, 1)
    begin = HEAD_AFTER_LENGTH + key
    if begin > len(data):
        raise FrameError("MESSAGE is cut short in its key", len(data))
    return Message(stream, number, time, data[HEAD_AFTER_LENGTH:begin], data[begin:])


def _ack(cursor: Cursor) -> Ack:
    credit = cursor.unpack(U32)[0]
    count = cursor.count(ACKED.size)
    points = cast("list[tuple[int, int]]", list(ACKED.iter_unpack(cursor.take(count * ACKED.size))))
    return Ack(credit, tuple(points))


def _restart(cursor: Cursor) -> Restart:
    return Restart(cursor.text(cursor.unpack(U32)[0])) if cursor.more else Restart()


def _migrate(cursor: Cursor) -> Migrate:
    host = cursor.text(cursor.unpack(U32)[0])
    return Migrate(host, cursor.unpack(SHORT)[0])


_MESSAGE = Struct(">QQqH")
_DECODERS: Final[dict[int, Callable[[Cursor], Frame]]] = {
    Tag.HELLO: _hello,
    Tag.OK: lambda cursor: Ok(cursor.unpack(U32)[0], _capabilities(cursor)),
    Tag.ERROR: lambda cursor: Error(cursor.label()),
    Tag.NOTIFY: lambda cursor: Notify(cursor.unpack(U64)[0], cursor.label(), cursor.unpack(U64)[0]),
    Tag.NOTIFY_ACK: _notify_ack,
    Tag.MESSAGE: _message,
    Tag.ACK: _ack,
    Tag.RESTART: _restart,
    Tag.EOS_MESSAGE: lambda cursor: EosMessage(*cursor.unpack(U64)),
    Tag.MIGRATE: _migrate,
    Tag.MIGRATION_ACK: lambda cursor: MigrationAck(),
}
NAMES: Final = {int(tag): tag.name for tag in Tag}


def frame_of(payload: memoryview | bytes) -> Frame:
    """The frame whose tag and body these are. Bodies are views, not copies."""
    view = memoryview(payload)
    if not len(view):
        raise FrameError("an empty frame, without even a tag")
    decode = _DECODERS.get(view[0])
    if decode is None:
        raise FrameError(f"no frame has the tag {view[0]}")
    return decode(Cursor(view, NAMES[view[0]]))


def short(value: bytes | memoryview, what: str) -> bytes:
    """Length and bytes."""
    if len(value) > SHORT_LIMIT:
        raise Unsendable(f"{what} has {len(value):,} bytes, the limit is {SHORT_LIMIT:,}")
    return SHORT.pack(len(value)) + value


def clipped(text: str) -> bytes:
    """Text for people, cut to what a field can carry."""
    return text.encode("utf-8", "replace")[:SHORT_LIMIT].decode("utf-8", "ignore").encode()


def _hello_bytes(frame: Hello) -> bytes:
    fields = short(frame.version.encode(), "the version") + short(frame.cookie, "the cookie")
    fields += short(frame.program.encode(), "the program's name")
    fields += short(frame.instance.encode(), "the instance's name")
    return fields + _capability_bytes(frame.capabilities)


def takes(limit: int) -> frozenset[str]:
    """What a worker that takes frames up to `limit` says of itself."""
    return frozenset({f"{FRAME}{limit}"})


def longest_frame(capabilities: frozenset[str]) -> int:
    """How long a frame may be for a worker that says this of itself."""
    said = [token.removeprefix(FRAME) for token in capabilities if token.startswith(FRAME)]
    return max((int(text) for text in said if text.isdecimal() and len(text) < 11), default=CAUTIOUS_FRAME)


def _capability_bytes(capabilities: frozenset[str]) -> bytes:
    if not capabilities:
        return b""
    return short(",".join(sorted(capabilities)).encode(), "the list of capabilities")


def _notify_bytes(frame: Notify) -> bytes:
    return U64.pack(frame.stream) + short(frame.name.encode(), "a stream's name") + U64.pack(frame.point)


def _message_bytes(frame: Message) -> bytes:
    head = _MESSAGE.pack(frame.stream, frame.id, frame.time, 0)[:-2]
    return b"".join((head, short(frame.key, "a key"), frame.body))


def _ack_bytes(frame: Ack) -> bytes:
    points = b"".join(ACKED.pack(stream, point) for stream, point in frame.points)
    return U32.pack(frame.credits) + U32.pack(len(frame.points)) + points


def _long(text: str) -> bytes:
    raw = text.encode()
    return U32.pack(len(raw)) + raw


_ENCODERS: Final[dict[type, tuple[int, Callable[..., bytes]]]] = {
    Hello: (Tag.HELLO, _hello_bytes),
    Ok: (Tag.OK, lambda frame: U32.pack(frame.credits) + _capability_bytes(frame.capabilities)),
    Error: (Tag.ERROR, lambda frame: short(clipped(frame.reason), "a reason")),
    Notify: (Tag.NOTIFY, _notify_bytes),
    NotifyAck: (Tag.NOTIFY_ACK, lambda frame: NOTIFY_ACK.pack(frame.success, frame.stream, frame.point)),
    Message: (Tag.MESSAGE, _message_bytes),
    Ack: (Tag.ACK, _ack_bytes),
    Restart: (Tag.RESTART, lambda frame: _long(frame.address)),
    EosMessage: (Tag.EOS_MESSAGE, lambda frame: U64.pack(frame.stream)),
    Migrate: (Tag.MIGRATE, lambda frame: _long(frame.host) + SHORT.pack(frame.port)),
    MigrationAck: (Tag.MIGRATION_ACK, lambda frame: b""),
}


def tag_of(frame: Frame) -> Tag:
    return Tag(_ENCODERS[type(frame)][0])


def encode(frame: Frame) -> bytes:
    """The whole frame, length and tag included."""
    tag, fields = _ENCODERS[type(frame)]
    try:
        body = fields(frame)
    except StructError as error:
        raise Unsendable(f"a {NAMES[tag]} that does not fit its fields: {error}") from None
    return TAG.pack(len(body) + 1, tag) + body
