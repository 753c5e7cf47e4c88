"""The message: `op, ts, ns, data`, as the Transporter design has it (seed 004, "Messages").

`data` is the text of one JSON object, UTF-8, and the text is the truth: nothing on the way from source to
sink parses it unless a function asks to. `ts` counts **microseconds since 1970-01-01 UTC**, everywhere: in
the log, in Spark (whose TIMESTAMP counts the same), in functions and in sinks that write it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NewType

import msgspec

from penstock.base.errors import PenstockError

MessageOffset = NewType("MessageOffset", int)
"""Counts messages of a commit log: 0, 1, 2 …"""

ByteOffset = NewType("ByteOffset", int)
"""Counts bytes of a journal."""

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""A larger message is refused at ingest, by name."""

LAST_TS = 253_402_300_799_999_999
"""The last moment of the year 9999, behind which calendars have none. Who is told a later one was given other units."""


class MessageTooLargeError(PenstockError):
    """A message above the size limit; refused before anything of its batch is logged."""


class NotTextError(PenstockError):
    """A message that is no UTF-8 text: no sink could read the log beyond it. Nothing of its batch is logged."""

    def __init__(self, ns: str, error: object) -> None:
        super().__init__(
            f"a message of namespace '{ns}' is not UTF-8 text ({error})",
            hint="this is a fault of the adaptor: it should have kept it among the dead letters",
        )


class Op(IntEnum):
    """What happened to the row. The numbers are those of the log."""

    INSERT = 0
    UPDATE = 1
    DELETE = 2
    COMMAND = 3
    NOOP = 4
    SKIP = 5
    UNKNOWN = 6

    @property
    def word(self) -> str:
        return self.name.lower()


class Mode(IntEnum):
    """In which phase the source read it: still copying, following changes, or done copying."""

    COPY = 0
    SYNC = 1
    COMPLETE = 2

    @property
    def word(self) -> str:
        return self.name.lower()


OP_WORDS = tuple(op.word for op in Op)
MODE_WORDS = tuple(mode.word for mode in Mode)


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message on its way into the log. `key` is the JSON text of the row's key, where there is one.

    `old_key` is the key that the row had before, if the message changes it: an update, whose data is the new row.
    A struct rather than a dataclass, since a source makes one for every row: it takes a tenth of the time.
    """

    ns: str
    data: bytes
    op: Op = Op.INSERT
    ts: int = 0
    mode: Mode = Mode.COPY
    key: bytes | None = None
    old_key: bytes | None = None


Position = dict[str, "str | int | float | bool | list[object] | dict[str, object] | None"]
"""Where a source stands in one namespace: whatever it needs to go on from there, as a JSON object."""


@dataclass(frozen=True, slots=True)
class Resume:
    """What the log last heard about a namespace; the reader gets it back at the next start."""

    mode: Mode
    position: Position
    offset: MessageOffset
    """Of the last message logged for this namespace; -1 if none."""
    message: Message | None = None
    """That message itself."""
    where: str | None = None
    """Which rows a backfill wants, in the source's own words; None for all."""
    before: Position | None = None
    """With `where`: the position when the backfill was asked for, to go on from once it is done."""


def encode_text(document: object) -> bytes:
    """The JSON text of a document as Penstock writes it: compact, keys in their order."""
    return msgspec.json.encode(document)
