"""The log of an instance, as it lies in its journal (reference 11.2).

Records stand back to back: the header of the wire, except that the size is stored as `-size - 1`, which says
"checked with xxHash64"; the body; and a trailer outside of size and check:

    count (ZigZagInt) | per source:      length (ZigZagInt) | name | number i64 | replayable i64
    count (ZigZagInt) | per destination: length (ZigZagInt) | name | acknowledged replayable number i64

so that who reads the log knows what it had accepted from whom, and what others had of its output. A source's name
carries the making of the sender and the epoch of its log, where there is one, behind unit separators.

Between records stand marks of the coordinator itself, laid out like records with sequence ids from -10 down and JSON
for a body: who claimed the log (`Claimed`), where it was rolled (`Rolled`), a destination that was met for the first
time (`Met`), a new version (`Upgraded`). Bindings never see them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import NamedTuple

import msgspec

from penstock.base.disk import Buffer
from penstock.base.errors import CorruptError
from penstock.immortal.wire.records import HEADER, HEADER_BYTES, MAX_RECORD, check_bytes
from penstock.immortal.wire.zigzag import CorruptWireError, ShortWireError, decode_int, encode_int

_PAIR = Struct("<qq")
_LONG = Struct("<q")
_SEPARATOR = "\x1f"
MAX_NAME = 1 << 16
MAX_NAMES = 1 << 24
"""More than one record of input has messages."""


class Source(NamedTuple):
    """What was accepted from one sender: how many messages, and how many of them replayable."""

    number: int = 0
    replayable: int = 0
    incarnation: str = ""
    epoch: int = 0


class LogRecord(NamedTuple):
    """One record of input, with what its trailer says. [begin, end) are bytes of the journal."""

    begin: int
    end: int
    committer: int
    sequence: int
    body: bytes
    sources: dict[str, Source]
    acknowledged: dict[str, int]


class Claimed(msgspec.Struct, frozen=True, tag="claimed"):
    """A coordinator became the one that may append."""

    owner: str
    replica: int
    epoch: int
    version: int
    incarnation: str = ""
    at: float = 0.0


class Rolled(msgspec.Struct, frozen=True, tag="rolled"):
    """A new part of the log begins; the named replica, if any, takes the checkpoint at this place."""

    part: int
    checkpointer: str = ""
    at: float = 0.0


class Met(msgspec.Struct, frozen=True, tag="met"):
    """A destination was met, or met anew: from then on it counts by `base`."""

    name: str
    incarnation: str
    base: int


class Upgraded(msgspec.Struct, frozen=True, tag="upgraded"):
    """From here on another version of the instance runs."""

    version: int
    at: float = 0.0


Mark = Claimed | Rolled | Met | Upgraded
MARKS: dict[type[Mark], int] = {Claimed: -10, Rolled: -11, Met: -12, Upgraded: -13}
_IDS = frozenset(MARKS.values())
_marks: msgspec.json.Decoder[Mark] = msgspec.json.Decoder(Mark)


class Marked(NamedTuple):
    """A mark, and its bytes of the journal."""

    begin: int
    end: int
    mark: Mark


class CorruptLogError(CorruptError):
    """A log that does not read as one: nothing of it from there on is used."""

    def __init__(self, what: str, *, where: str, position: int) -> None:
        super().__init__(
            what,
            where=f"log {where}",
            position=position,
            hint="nothing was applied from there on; `penstock journals check` tells whether the journal is damaged, "
            "`immortal inspect` which checkpoints lie behind it",
        )


def encode_log_record(
    committer: int,
    sequence: int,
    body: Buffer,
    sources: Mapping[str, Source],
    acknowledged: Mapping[str, int],
) -> list[Buffer]:
    """A record in pieces, to be appended together."""
    header = HEADER.pack(committer, -(HEADER_BYTES + len(body)) - 1, check_bytes(body), sequence)
    return [header, body, _trailer(sources, acknowledged)]


def encode_mark(committer: int, mark: Mark) -> bytes:
    """A mark, whole."""
    body = msgspec.json.encode(mark)
    return b"".join(encode_log_record(committer, MARKS[type(mark)], body, {}, {}))


def _trailer(sources: Mapping[str, Source], acknowledged: Mapping[str, int]) -> bytes:
    parts = [encode_int(len(sources))]
    for name, source in sources.items():
        parts += [_name(_qualified(name, source)), _PAIR.pack(source.number, source.replayable)]
    parts.append(encode_int(len(acknowledged)))
    for name, number in acknowledged.items():
        parts += [_name(name), _LONG.pack(number)]
    return b"".join(parts)


def _qualified(name: str, source: Source) -> str:
    if not source.incarnation:
        return name
    return _SEPARATOR.join((name, source.incarnation, str(source.epoch)))


def _name(name: str) -> bytes:
    encoded = name.encode()
    return encode_int(len(encoded)) + encoded


class LogDecoder:
    """Records and marks out of the bytes of a journal, from a place where one begins.

    `committer` None takes the one of the first record; records from 0 up must follow each other without a gap.
    """

    def __init__(
        self, journal: str, position: int, *, committer: int | None = None, sequence: int | None = None
    ) -> None:
        self._journal = journal
        self._buffer = bytearray()
        self.position = position
        """Where the next record or mark begins: all before it was given out."""
        self._committer = committer
        self._next = sequence

    @property
    def held(self) -> int:
        """Bytes of a record that is not whole yet."""
        return len(self._buffer)

    def feed(self, data: Buffer) -> list[LogRecord | Marked]:
        """What is whole with these bytes."""
        self._buffer += data
        found: list[LogRecord | Marked] = []
        at = 0
        with memoryview(self._buffer) as view:
            while len(view) - at >= HEADER_BYTES:
                one = self._one(view[at:])
                if one is None:
                    break
                found.append(one)
                at += one.end - one.begin
                self.position = one.end
        del self._buffer[:at]
        return found

    def _one(self, view: memoryview) -> LogRecord | Marked | None:
        committer, stored, check, sequence = HEADER.unpack_from(view)
        size = -stored - 1
        if not HEADER_BYTES < size <= MAX_RECORD:
            raise self._corrupt(f"a record of {size} bytes")
        if len(view) < size + 2:
            return None
        try:
            sources, acknowledged, end = _decode_trailer(view, size)
        except ShortWireError:
            return None
        except (CorruptWireError, UnicodeDecodeError, ValueError) as error:
            raise self._corrupt(f"record {sequence} with a bad trailer ({error})") from None
        body = bytes(view[HEADER_BYTES:size])
        if check_bytes(body) != check:
            raise self._corrupt(f"record {sequence} whose check bytes do not match its body")
        begin, end = self.position, self.position + end
        if sequence in _IDS:
            return Marked(begin, end, self._mark(body))
        if self._committer is not None and committer != self._committer:
            raise self._corrupt(f"record {sequence} of committer {committer}, the log's is {self._committer}")
        if sequence < 0 or (self._next is not None and sequence != self._next):
            raise self._corrupt(f"record {sequence} where {self._next} was to come")
        self._committer, self._next = committer, sequence + 1
        return LogRecord(begin, end, committer, sequence, body, sources, acknowledged)

    def _mark(self, body: bytes) -> Mark:
        try:
            return _marks.decode(body)
        except msgspec.DecodeError as error:
            raise self._corrupt(f"a mark that does not read ({error})") from None

    def _corrupt(self, what: str) -> CorruptLogError:
        return CorruptLogError(what, where=self._journal, position=self.position)


def _decode_trailer(view: memoryview, at: int) -> tuple[dict[str, Source], dict[str, int], int]:
    sources: dict[str, Source] = {}
    acknowledged: dict[str, int] = {}
    count, at = _count(view, at)
    for _ in range(count):
        name, at = _decode_name(view, at)
        number, replayable = _fixed(_PAIR, view, at)
        at += _PAIR.size
        plain, _, rest = name.partition(_SEPARATOR)
        incarnation, _, epoch = rest.partition(_SEPARATOR)
        sources[plain] = Source(number, replayable, incarnation, int(epoch or 0))
    count, at = _count(view, at)
    for _ in range(count):
        name, at = _decode_name(view, at)
        (acknowledged[name],) = _fixed(_LONG, view, at)
        at += _LONG.size
    return sources, acknowledged, at


def _fixed(struct: Struct, view: memoryview, at: int) -> Sequence[int]:
    if at + struct.size > len(view):
        raise ShortWireError("the bytes end inside a number", position=at)
    return struct.unpack_from(view, at)


def _count(view: memoryview, at: int) -> tuple[int, int]:
    count, end = decode_int(view, at)
    if not 0 <= count <= MAX_NAMES:
        raise CorruptWireError(f"a list of {count} names", position=at)
    return count, end


def _decode_name(view: memoryview, at: int) -> tuple[str, int]:
    length, start = decode_int(view, at)
    if not 0 <= length <= MAX_NAME:
        raise CorruptWireError(f"a name of {length} bytes", position=at)
    if start + length > len(view):
        raise ShortWireError("the bytes end inside a name", position=start)
    return str(view[start : start + length], "utf-8"), start + length
