"""What becomes of a record of Kafka: a message, or something bad with the reason.

    value     a record's value is             data is
    json      the text of one JSON object     that text, without whitespace around it
    text      any text in UTF-8               {"value": "the text"}
    binary    any bytes                       {"value": {"$binary": …}}

With an envelope the data is `{"key":, "value":, "headers":, "partition":, "offset":, "timestamp":}`: `value` is the
object, text or binary itself, `headers` a list of `{"key":, "value":}`, `timestamp` a moment.

The key of a message is the record's key if that is the text of a JSON object, and else `{"key": …}` with its text, or
with a binary where it is not UTF-8. A record without a value, a tombstone, is the delete of its key. All others are
inserts, unless a header `penstock.op` says that it is an update or a delete, as the sink writes it.
"""

from __future__ import annotations

import datetime as dt
import time
from typing import TYPE_CHECKING, Literal, cast

import msgspec

from penstock.adaptors.base import Bad
from penstock.adaptors.formats.lines import fault
from penstock.log.message import LAST_TS, MAX_MESSAGE_BYTES, Message, Mode, Op
from penstock.log.values import encode_document, to_json

if TYPE_CHECKING:
    from confluent_kafka import Message as Record

OP_HEADER = "penstock.op"
_OPS = {b"insert": Op.INSERT, b"update": Op.UPDATE, b"delete": Op.DELETE}
Values = Literal["json", "text", "binary"]
_SPACE = b" \t\r\n"
_KEPT = 1024 * 1024
"""Of a bad record, as many bytes are kept among the dead letters."""

_LAST = LAST_TS // 1000
"""In milliseconds. A producer may count in smaller units, and brokers may take it."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_write = msgspec.json.Encoder().encode


class Reader:
    """Makes messages of records, by the settings of a source."""

    def __init__(self, value: Values, envelope: bool) -> None:
        self._value: Values = value
        self._envelope = envelope

    def message(self, record: Record, mode: Mode) -> Message | Bad:
        topic = str(record.topic())
        found, raw_key = record.value(), record.key()
        key = None if raw_key is None else key_text(raw_key)
        kind, moment = record.timestamp()
        ts = moment * 1000 if kind and 0 <= moment <= _LAST else time.time_ns() // 1000
        op = _op_of(record)
        if found is None:
            op = Op.DELETE
            if key is None and not self._envelope:
                return _bad(record, "a record with neither key nor value says nothing")
        try:
            data = self._data(record, found, key, ts)
        except ValueError as error:
            return _bad(record, str(error))
        if len(data) > MAX_MESSAGE_BYTES:
            return _bad(record, f"longer than a message may be ({MAX_MESSAGE_BYTES} bytes)")
        return Message(topic, data, op, ts, mode, key)

    def _data(self, record: Record, found: bytes | None, key: bytes | None, ts: int) -> bytes:
        if self._envelope:
            return self._enveloped(record, found, ts)
        if found is None:
            assert key is not None
            return key
        if self._value == "json":
            return _object(found)
        return b'{"value":' + self._single(found) + b"}"

    def _single(self, found: bytes) -> bytes:
        """The text of a value that is no document."""
        if self._value == "binary":
            return _write(to_json(found))
        try:
            return _write(found.decode())
        except UnicodeDecodeError as error:
            raise ValueError(f"not UTF-8 ({error.reason}, byte {error.start} of the value)") from None

    def _enveloped(self, record: Record, found: bytes | None, ts: int) -> bytes:
        value = b"null" if found is None else _object(found) if self._value == "json" else self._single(found)
        raw_key = record.key()
        headers = [
            {"key": name, "value": None if content is None else to_json(_text(content))}
            for name, content in _headers(record)
        ]
        told = record.timestamp()[1]
        moment = to_json(_EPOCH + dt.timedelta(microseconds=ts)) if told <= _LAST else _far(told)
        return b'{"key":%b,"value":%b,"headers":%b,"partition":%d,"offset":%d,"timestamp":%b}' % (
            b"null" if raw_key is None else _key_in_envelope(raw_key),
            value,
            _write(headers),
            record.partition() or 0,
            record.offset() or 0,
            _write(moment),
        )


def _far(milliseconds: int) -> object:
    """A moment beyond the calendar, as MongoDB writes it."""
    return {"$date": {"$numberLong": str(milliseconds)}}


def key_text(raw: bytes) -> bytes:
    """The key of a message."""
    if _is_object(raw):
        return raw.strip(_SPACE)
    return encode_document({"key": _text(raw)})


def _key_in_envelope(raw: bytes) -> bytes:
    return raw.strip(_SPACE) if _is_object(raw) else _write(to_json(_text(raw)))


def _is_object(raw: bytes) -> bool:
    text = raw.strip(_SPACE)
    return text.startswith(b"{") and fault(text) is None


def _object(found: bytes) -> bytes:
    text = found.strip(_SPACE)
    wrong = fault(text)
    if wrong is not None:
        raise ValueError(f"the value is {wrong}")
    return text


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _headers(record: Record) -> list[tuple[str, bytes | None]]:
    found: object = record.headers()  # as read, it is always of this kind; what is written may be of others
    return cast("list[tuple[str, bytes | None]]", found or [])


def _op_of(record: Record) -> Op:
    for name, content in _headers(record):
        if name == OP_HEADER and content is not None:
            return _OPS.get(content, Op.INSERT)
    return Op.INSERT


def _bad(record: Record, error: str) -> Bad:
    topic, partition, offset = str(record.topic()), record.partition(), record.offset()
    content = record.value() or b""
    return Bad(topic, f"topic {topic}, partition {partition}, offset {offset}", error, content[:_KEPT])
