"""What becomes of an entry of a stream: a message, or something bad with the reason.

The fields of an entry are the fields of the document: texts, or binaries where a value is not UTF-8. With `json_field`
the document is the JSON text of that field, as it is. The time of a message is that of the entry's id. Every message is
an insert.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from penstock.adaptors.base import Bad
from penstock.adaptors.documents import key_of
from penstock.adaptors.formats.lines import fault
from penstock.adaptors.redis import Redis
from penstock.log.message import LAST_TS, MAX_MESSAGE_BYTES, Message, Mode, Op
from penstock.log.values import Value, encode_document

Id = tuple[int, int]
"""The id of an entry: milliseconds, and a number among those of the same."""

Entry = tuple[bytes, Sequence[bytes]]
"""As the server gives it: an id, and names and values in turns."""

_FIRST_TIME = 100_000_000_000
"""Milliseconds; the ids of some streams are no times, and small; or larger than any time that a calendar has."""

_KEPT = 1024 * 1024
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def id_of(text: bytes | str) -> Id:
    first, _, second = (text.decode() if isinstance(text, bytes) else text).partition("-")
    return int(first), int(second or 0)


def id_text(id: Id) -> str:
    return f"{id[0]}-{id[1]}"


class Reader:
    """Makes messages of entries, by the settings of a source."""

    def __init__(self, settings: Redis) -> None:
        self._json, self._id, self._key = settings.json_field, settings.id_field, tuple(settings.key)

    def message(self, ns: str, entry: Entry, mode: Mode) -> Message | Bad:
        id, flat = entry
        moment = id_of(id)[0]
        is_time = _FIRST_TIME < moment <= LAST_TS // 1000
        ts = moment * 1000 if is_time else time.time_ns() // 1000
        try:
            data = self._data(id.decode(), flat)
            key = key_of(data, self._key) if self._key else None
        except ValueError as error:
            content = b"\n".join(flat)
            return Bad(ns, f"stream {ns}, entry {id.decode()}", str(error), content[:_KEPT])
        return Message(ns, data, Op.INSERT, ts, mode, key)

    def _data(self, id: str, flat: Sequence[bytes]) -> bytes:
        data = self._json_of(flat) if self._json else self._all_of(flat)
        if self._id:
            front = b'{%b:"%b"' % (msgspec.json.encode(self._id), id.encode())
            data = front + b"}" if not _fields(data) else front + b"," + data[1:]
        if len(data) > MAX_MESSAGE_BYTES:
            raise ValueError(f"longer than a message may be ({MAX_MESSAGE_BYTES} bytes)")
        return data

    def _json_of(self, flat: Sequence[bytes]) -> bytes:
        wanted = self._json.encode()
        for name, value in zip(flat[::2], flat[1::2], strict=True):
            if name == wanted:
                text = value.strip(b" \t\r\n")
                wrong = fault(text)
                if wrong is not None:
                    raise ValueError(f"the field '{self._json}' is {wrong}")
                return text
        raise ValueError(f"there is no field '{self._json}'")

    def _all_of(self, flat: Sequence[bytes]) -> bytes:
        document: dict[str, Value] = {}
        for raw, value in zip(flat[::2], flat[1::2], strict=True):
            try:
                name = raw.decode()
            except UnicodeDecodeError:
                raise ValueError(f"the name of a field is not UTF-8: {raw!r}") from None
            if name in document:
                raise ValueError(f"the field '{name}' is there twice")
            document[name] = _text(value)
        return encode_document(document)


def _text(value: bytes) -> Value:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
