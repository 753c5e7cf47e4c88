"""Declared fields in a checkpoint, one after the other and large ones in pieces: none is encoded as a whole.

    field     length u64 | its name
    piece     length u64 | MessagePack: the value, or some items of the dict, some elements of the list
              and so on, up to a length of 0
    the end   length u64 of 0

A dict or list that is declared as one is written in parts of about a megabyte, and put together again as they are
read; so a checkpoint needs no room beside the state. Fields that a checkpoint does not name keep their first values, so
that a class may grow fields; those that the class has no more are skipped.
"""

from __future__ import annotations

import typing
import zlib
from collections.abc import Iterator
from itertools import islice
from struct import Struct
from typing import Any, BinaryIO

import msgspec

from penstock.immortal.binding.app import Spec
from penstock.immortal.binding.errors import UnkeptError

_LENGTH = Struct("<Q")
PIECE = 1 << 20
_FIRST = 64
_encoder = msgspec.msgpack.Encoder()


def write(file: BinaryIO, spec: Spec, values: dict[str, Any]) -> None:
    """All fields but custom ones."""
    for name, hint in types_of(spec).items():
        _put(file, name.encode())
        for piece in _kept(spec, name, hint, values[name]):
            _put(file, piece)
        _put(file, b"")
    _put(file, b"")


def read(file: BinaryIO, spec: Spec) -> dict[str, object]:
    """The fields that the class has."""
    types = types_of(spec)
    found: dict[str, object] = {}
    while name := _take(file).decode():
        pieces = iter(lambda: _take(file), b"")
        if name in types:
            found[name] = _together(msgspec.msgpack.Decoder(types[name]), pieces)
        else:
            for _ in pieces:
                pass
    return found


def _together(decoder: msgspec.msgpack.Decoder[Any], pieces: Iterator[bytes]) -> object:
    value = decoder.decode(next(pieces, b""))
    for piece in pieces:
        part = decoder.decode(piece)
        if isinstance(value, dict):
            value.update(part)
        else:
            value.extend(part)
    return value


def fit(spec: Spec, values: dict[str, Any]) -> None:
    """`msgspec.ValidationError` if a value does not read back as what the class declares."""
    for name, hint in types_of(spec).items():
        decoder = msgspec.msgpack.Decoder(hint)
        for piece in _pieces(hint, values[name]):
            decoder.decode(piece)


def fingerprint(spec: Spec, values: dict[str, Any], limit: int | None) -> int | None:
    """Of all that `write` would write; None if that is more than `limit` bytes."""
    size = found = 0
    for name, hint in types_of(spec).items():
        for piece in _kept(spec, name, hint, values[name]):
            size += len(piece)
            found = zlib.crc32(piece, found)
            if limit is not None and size > limit:
                return None
    return size << 32 | found


def types_of(spec: Spec) -> dict[str, Any]:
    """What the declared fields are declared as."""
    return {field.name: field.type for field in msgspec.structs.fields(spec.state)}


def _kept(spec: Spec, name: str, hint: Any, value: Any) -> Iterator[bytes]:
    """The pieces, each of which is known to come back: a checkpoint that does not is the end of its instance."""
    decoder = msgspec.msgpack.Decoder(hint)
    try:
        for piece in _pieces(hint, value):
            if len(_encoder.encode(decoder.decode(piece))) < len(piece):
                raise ValueError("it would not come back as it is: the annotation has no place for all of it")
            yield piece
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UnkeptError(
            f"{spec.cls.__name__}.{name} holds something that no checkpoint can keep: {error}",
            hint=f"it is annotated `{_told(hint)}`; {UnkeptError.MEND}",
        ) from error


def _told(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)


def _pieces(hint: Any, value: Any) -> Iterator[bytes]:
    """At least one, each of about a megabyte where the value can be cut."""
    kind = type(value)
    if kind not in (dict, list) or typing.get_origin(hint) is not kind:
        yield _encoder.encode(value)
        return
    rest = iter(value.items() if kind is dict else value)
    count = _FIRST
    part = kind(islice(rest, count))
    while True:
        encoded = _encoder.encode(part)
        yield encoded
        count = max(1, min(2 * count, count * PIECE // len(encoded)))
        part = kind(islice(rest, count))
        if not part:
            return


def _put(file: BinaryIO, encoded: bytes) -> None:
    file.write(_LENGTH.pack(len(encoded)))
    file.write(encoded)


def _take(file: BinaryIO) -> bytes:
    (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
    data = file.read(length)
    if len(data) < length:
        raise msgspec.DecodeError(f"a piece of {length} bytes of which {len(data)} are there")
    return data
