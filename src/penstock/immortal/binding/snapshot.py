"""What a checkpoint of the binding holds, and its bytes.

    magic "PSIM" | format u8 | length u64 of what follows | the machine's part, MessagePack | the state

The state is that of the declared fields (`fields`), then whatever `save` writes. Format 1 had the declared fields as
one MessagePack map, length (u64) first, and is still read.
"""

from __future__ import annotations

import tempfile
from struct import Struct
from struct import error as struct_error
from typing import BinaryIO, cast

import msgspec

from penstock.base.errors import CorruptError
from penstock.immortal.binding import fields
from penstock.immortal.binding.app import Immortal, Spec

MAGIC = b"PSIM"
FORMAT = 2
_HEAD = Struct("<4sBQ")
_LENGTH = Struct("<Q")
IN_MEMORY = 64 << 20
"""Checkpoints up to this size stay in memory on their way."""


class Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who made a handler run, and who wants to know how it ended."""

    kind: str = "fork"
    sender: str = ""
    number: int = 0
    key: str = ""


class OpenHandler(msgspec.Struct):
    """A handler that waits for an answer."""

    id: int
    method: int
    arguments: bytes
    origin: Origin
    waiting: int
    answers: dict[int, tuple[int, bytes | None]]
    journal: list[list[object]]


class Timer(msgspec.Struct):
    """A durable timer; `due` is unknown until the log has heard of a clock."""

    delay: float
    every: float
    method: int
    arguments: bytes
    due: float | None = None


class Emitted(msgspec.Struct, frozen=True, array_like=True):
    """A message for a pipeline; `data` and `key` are JSON."""

    number: int
    ts: float
    ns: str
    op: str
    data: bytes
    key: bytes | None


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """How a call from outside ended: `error` is empty if it went well."""

    result: bytes = b""
    kind: str = ""
    error: str = ""


class SinkState(msgspec.Struct, frozen=True, array_like=True):
    """What a pipeline's sink has delivered here."""

    log: str
    generation: int
    watermark: int


class Runtime(msgspec.Struct):
    """The machine's own state, as deterministic as that of the class."""

    app: str = ""
    name: str = ""
    clock: float = 0.0
    inputs: int = 0
    next_call: int = 1
    next_handler: int = 1
    next_timer: int = 1
    emitted: int = 0
    failures: int = 0
    crcs: list[int] = msgspec.field(default_factory=list)
    calls: dict[int, int] = msgspec.field(default_factory=dict)
    handlers: list[OpenHandler] = msgspec.field(default_factory=list)
    timers: dict[int, Timer] = msgspec.field(default_factory=dict)
    keys: dict[str, Outcome | None] = msgspec.field(default_factory=dict)
    sinks: dict[str, SinkState] = msgspec.field(default_factory=dict)
    namespaces: dict[str, None] = msgspec.field(default_factory=dict)
    outbox: list[Emitted] = msgspec.field(default_factory=list)


def spool() -> BinaryIO:
    """A file for a checkpoint on its way."""
    return cast("BinaryIO", tempfile.SpooledTemporaryFile(IN_MEMORY))


def state_bytes(spec: Spec, instance: Immortal) -> bytes:
    """The declared fields, but for custom ones."""
    values = instance.__dict__["_values"]
    return msgspec.msgpack.encode({name: values[name] for name in spec.fields if name not in spec.customs})


def write(runtime: Runtime, spec: Spec, instance: Immortal) -> tuple[BinaryIO, int]:
    """A checkpoint, and how long it is."""
    file = spool()
    own = msgspec.msgpack.encode(runtime)
    file.write(_HEAD.pack(MAGIC, FORMAT, len(own)) + own)
    fields.write(file, spec, instance.__dict__["_values"])
    instance.save(file)
    length = file.tell()
    file.seek(0)
    return file, length


def read(file: BinaryIO) -> tuple[Runtime, int]:
    """The machine's part, and the format; the file stands at the state then."""
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size or head[:4] != MAGIC:
        raise CorruptError(
            "this is no checkpoint of a Python immortal", where="checkpoint", position=0,
            hint="was this instance written by another binding?",
        )  # fmt: skip
    _, version, length = _HEAD.unpack(head)
    if not 1 <= version <= FORMAT:
        raise CorruptError(
            f"format {version}; this version reads up to {FORMAT}", where="checkpoint", position=4
        )
    try:
        return msgspec.msgpack.decode(file.read(length), type=Runtime), version
    except msgspec.DecodeError as error:
        raise CorruptError(str(error), where="checkpoint", position=_HEAD.size) from error


def read_state(file: BinaryIO, version: int, spec: Spec, instance: Immortal) -> None:
    """Fill the instance."""
    values = instance.__dict__["_values"]
    try:
        values.update(fields.read(file, spec) if version > 1 else _read_whole(file, spec))
    except (msgspec.DecodeError, struct_error) as error:
        raise CorruptError(
            f"the state does not fit {spec.cls.__name__}: {error}", where="checkpoint", position=file.tell(),
            hint="a class whose fields changed their types needs a new `version` and `penstock immortal upgrade`; "
            "where handlers store what a field is not annotated with, annotate it with that as well",
        ) from error  # fmt: skip
    instance.load(file)


def _read_whole(file: BinaryIO, spec: Spec) -> dict[str, object]:
    (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
    state = msgspec.msgpack.decode(file.read(length), type=spec.state)
    return {name: getattr(state, name) for name in state.__struct_fields__}
