"""CSV out of messages: RFC 4180, a record a message, its fields in the order of the columns.

A text is itself, in quotes where it needs them; an empty one always, since nothing without quotes is null. Numbers have
the digits of the message; dates, times and ids their text; binaries are base64; lists and maps are JSON. Commands have
no record. Nor can a null be one that is nothing, and all that there is in it: readers skip blank lines.
"""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from penstock.adaptors.base import Refusal
from penstock.adaptors.formats.linewriter import Writing, without
from penstock.log import extended, values
from penstock.log.values import Value

if TYPE_CHECKING:
    import pyarrow as pa

ENVELOPE = ("_op", "_ts", "_ns", "_offset")

_read_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_text = msgspec.json.Decoder(str).decode


def header_of(columns: Sequence[str], writing: Writing) -> bytes:
    """The first line of a file."""
    names = [*ENVELOPE, *columns] if writing.envelope else columns
    return writing.delimiter.join(_quoted(name, writing) for name in names).encode() + b"\n"


def first_fields(batch: pa.RecordBatch) -> Sequence[str]:
    """The fields of the first message that has any; a command has none."""
    for op, text in zip(batch.column("op").to_pylist(), batch.column("data").to_pylist(), strict=True):
        try:
            if op != "command" and (fields := list(_read_fields(text or ""))):
                return fields
        except (msgspec.DecodeError, RecursionError):
            continue
    return ()


def records_of(
    batch: pa.RecordBatch, columns: Sequence[str], writing: Writing
) -> tuple[memoryview, pa.RecordBatch, list[Refusal]]:
    """The records of a batch, the rows they stand for, and the messages that cannot be one."""
    known = frozenset(columns)
    reasons: dict[int, str] = {}
    lines: list[str] = []
    offsets = batch.column("offset").to_pylist()
    commands = [op == "command" for op in batch.column("op").to_pylist()]
    for row, text in enumerate(batch.column("data").to_pylist()):
        if commands[row]:
            lines.append("")  # what empties a table has no record here
            continue
        try:
            given = _read_fields(text or "")
        except (msgspec.DecodeError, RecursionError) as error:
            reasons[row] = f"data is not JSON: {error}"
            lines.append("")
            continue
        if not columns:
            reasons[row] = (
                "no fields, and there is no header yet: name the columns with the setting 'columns'"
            )
        elif writing.unknown_fields == "error" and not known.issuperset(given):
            unknown = next(name for name in given if name not in known)
            reasons[row] = f"field '{unknown}' is none of the columns"
        fields = [_field(given.get(name), writing) for name in columns]
        if fields == [""] and not writing.envelope:
            blank = f"a null in the one column '{columns[0]}' is a blank line, and no record: set null_text"
            reasons.setdefault(row, blank)
        lines.append(writing.delimiter.join(fields))
    refused_offsets = {offsets[row] for row in reasons}
    if writing.envelope:
        lines = [
            f"{head}{writing.delimiter}{line}"
            for head, line in zip(_heads(batch, writing), lines, strict=True)
        ]
    kept = "".join(
        f"{line}\n"
        for offset, line, command in zip(offsets, lines, commands, strict=True)
        if offset not in refused_offsets and not command
    )
    taken, refused = without(batch, reasons)
    return memoryview(kept.encode()), taken, refused


def _heads(batch: pa.RecordBatch, writing: Writing) -> list[str]:
    import pyarrow as pa

    columns = [
        batch.column("op").to_pylist(),
        batch.column("ts").cast(pa.int64()).to_pylist(),
        batch.column("ns").to_pylist(),
        batch.column("offset").to_pylist(),
    ]
    return [
        writing.delimiter.join(_quoted(str(one), writing) for one in row)
        for row in zip(*columns, strict=True)
    ]


def _field(raw: msgspec.Raw | None, writing: Writing) -> str:
    if raw is None:
        return writing.null_text
    text = bytes(raw)
    if text.startswith(b'"'):
        return _quoted(_read_text(text), writing)
    if text == b"null":
        return writing.null_text
    if text.startswith(b'{"$'):
        return _quoted(_shown(values.decode(text), text), writing)
    shown = text.decode()
    return _quoted(shown, writing) if text[:1] in (b"{", b"[") or shown == writing.null_text else shown


def _shown(value: Value, text: bytes) -> str:
    """A value of an extended form, as people write it."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (dt.date, dt.time)):
        form = cast(Mapping[str, str], extended.WRITERS[type(value)](value))
        return next(iter(form.values()))
    if isinstance(value, (list, dict, values.Binary, values.Regex, values.Timestamp)):
        return text.decode()
    return str(value)


def _quoted(text: str, writing: Writing) -> str:
    if text in ("", writing.null_text) or any(one in text for one in ('"', "\n", "\r", writing.delimiter)):
        return '"' + text.replace('"', '""') + '"'
    return text
