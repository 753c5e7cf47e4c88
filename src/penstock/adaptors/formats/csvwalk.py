"""A walk through CSV: rows become documents with a field for each column, as text or as the types that are set.

A field that is empty and not in quotes is null; `""` is a text without characters. Values of columns with a type that
do not read as one make their row a bad one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.adaptors.columns.columnreaders import FIT_ERRORS, read_times
from penstock.adaptors.columns.rowtext import row_texts
from penstock.adaptors.formats import csvrecords, walks
from penstock.adaptors.formats.contents import Content
from penstock.adaptors.formats.csvrecords import Records
from penstock.adaptors.formats.lines import KEPT, BadLine, Scan, no_documents
from penstock.adaptors.formats.walks import Last, Place, Taken, TextWalk, log
from penstock.base.errors import PenstockError, UsageError
from penstock.log.message import MAX_MESSAGE_BYTES
from penstock.log.schema import Field, Kind, Schema

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

TYPES = (
    Kind.STRING, Kind.INT, Kind.FLOAT, Kind.DECIMAL, Kind.BOOL, Kind.DATE, Kind.TIME, Kind.TIMESTAMP,
    Kind.LOCAL_TIMESTAMP, Kind.UUID, Kind.ANY,
)  # fmt: skip
"""What a column can be set to; `any` is JSON text."""


_MISFITS: tuple[type[Exception], ...] = (*FIT_ERRORS, PenstockError)


@dataclass(frozen=True)
class CsvFormat:
    """How a file is to be read. Without `columns` its first record has their names."""

    delimiter: str = ","
    columns: Sequence[str] = ()
    null_text: str = ""
    types: Mapping[str, Kind] = field(default_factory=dict)


class CsvWalk(TextWalk):
    """CSV, a record at a time as far as anybody can tell, a block at a time in truth."""

    def __init__(
        self, content: Content, place: Mapping[str, int], form: CsvFormat, *, stop_at_bad: bool, last: Last
    ) -> None:
        super().__init__(content, place, stop_at_bad=stop_at_bad, last=last)
        self._form = form
        self._delimiter = ord(form.delimiter)
        self._names = list(form.columns)
        if self._names:
            self._take_names(self._names)
        elif place.get("byte"):
            TextWalk.__init__(self, content, {}, stop_at_bad=stop_at_bad, last=last)
            self._read_header()
            self.at = Place(place["byte"], place["line"])

    def next(self) -> Taken | None:
        if not self._names and not self._read_header():
            return None
        size = walks.BLOCK
        while True:
            text = self._content.read_at(size, self.at.byte)
            ended = len(text) < size
            unfinished = ended and self._last != "wait" and bool(text) and not text.endswith(b"\n")
            records = csvrecords.split(text + b"\n" * unfinished, len(self._names), self._delimiter)
            if records.size or records.wrong is not None or ended or size > MAX_MESSAGE_BYTES:
                break
            size = min(4 * size, MAX_MESSAGE_BYTES + 1)
        if records.size:
            return self._moved(self._rows(text, records))
        found = self._bad_line(text, records.wrong, ended=ended) if text else None
        return None if found is None else self._moved(found)

    def _read_header(self) -> bool:
        """Take the names of the columns from the first record; False if it is not there yet."""
        text = self._content.read_at(walks.BLOCK, self.at.byte)
        whole = len(text) < walks.BLOCK and self._last != "wait"
        text += b"\n" * (whole and not text.endswith(b"\n"))
        records = csvrecords.split(text, 0, self._delimiter)
        if not records.rows:
            if not text.strip() or self._last == "wait":
                return False
            raise UsageError(
                f"{self._content.name}: its first record is no header ({records.wrong or 'it does not end'})",
                hint="mend it, or name the columns with the setting 'columns'",
            )
        end = int(records.starts[1]) if records.rows > 1 else records.size
        width = len(records.fields) // records.rows
        self._take_names(self._header(records.fields[:width].to_pylist(), records.quoted))
        head = text[:end]
        self.at = Place(min(self.at.byte + end, self.at.byte + len(text)), self.at.line + head.count(b"\n"))
        return True

    def _header(self, names: Sequence[bytes], quoted: npt.NDArray[np.bool_]) -> list[str]:
        """The names in a first record, unless what it looks like says that all else would be read wrongly, too."""
        if any(b"\r" in name and not quoted[number] for number, name in enumerate(names)):
            raise UsageError(
                f"{self._content.name}: its lines end in carriage returns, without newlines",
                hint="write newlines in their place: tr '\\r' '\\n'",
            )
        try:
            return [name.decode() for name in names]
        except UnicodeDecodeError as error:
            raise UsageError(
                f"{self._content.name}: its first record is not UTF-8 ({error.reason})",
                hint="convert the file, as iconv does",
            ) from None

    def _take_names(self, names: list[str]) -> None:
        wrong = next((name for name in names if not name or names.count(name) > 1), None)
        if wrong is not None:
            raise UsageError(
                f"{self._content.name}: two columns have the name '{wrong}'"
                if wrong
                else f"{self._content.name}: a column without a name",
                hint="name the columns with the setting 'columns'",
            )
        if unknown := set(self._form.types) - set(names):
            raise UsageError(
                f"{self._content.name} has no column '{min(unknown)}', which has a type in 'types'"
            )
        self._names = names
        kinds = self._form.types
        self.schema = Schema(tuple(Field(name, kinds.get(name, Kind.STRING)) for name in names))

    def _rows(self, text: bytes, records: Records) -> Scan:
        rows = min(records.rows, walks.MOST_LINES)
        size = int(records.starts[rows]) if rows < records.rows else records.size
        texts, wrong = self._texts(self._columns(records, rows), 0)
        bad = [
            BadLine(text.count(b"\n", 0, start), start, reason, text[start : start + KEPT].split(b"\n")[0])
            for row, reason in sorted(wrong.items())
            for start in [int(records.starts[row])]
        ]
        if bad and self._stop_at_bad:
            first = min(wrong)
            texts, _ = self._texts(self._columns(records, first), 0)
            size, bad = bad[0].byte, bad[:1]
        size = min(size, len(text))
        return Scan(texts, bad, text.count(b"\n", 0, size), size)

    def _columns(self, records: Records, rows: int) -> list[pa.Array]:
        """The text of each column; null where a field says so."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        width = len(self._names)
        columns = []
        for number in range(width):
            where = np.arange(number, rows * width, width)
            texts = records.fields.take(where)
            null = pc.and_(
                pc.equal(texts, self._form.null_text.encode()), pa.array(~records.quoted[where], pa.bool_())
            )
            columns.append(pc.if_else(null, pa.scalar(None, pa.large_binary()), texts))
        return columns

    def _texts(self, columns: list[pa.Array], first: int) -> tuple[pa.Array, dict[int, str]]:
        """The documents of some rows, and what is wrong with the others; a bad row is found by halving."""
        import pyarrow as pa

        rows = len(columns[0])
        if not rows:
            return no_documents(), {}
        try:
            typed = [
                _READERS.get(self._form.types.get(name, Kind.STRING), _as_text)(
                    column.view(pa.large_string())
                )
                for name, column in zip(self._names, columns, strict=True)
            ]
            return row_texts(pa.RecordBatch.from_arrays(typed, names=self._names), self.schema), {}
        except _MISFITS as error:
            if rows == 1:
                reason = error.message if isinstance(error, PenstockError) else str(error)
                return no_documents(), {first: reason.split("\n")[0]}
        half = rows // 2
        before, wrong = self._texts([column[:half] for column in columns], first)
        behind, others = self._texts([column[half:] for column in columns], first + half)
        return pa.concat_arrays([before, behind]), wrong | others

    def _bad_line(self, text: bytes, wrong: str | None, *, ended: bool) -> Scan | None:
        """The line here, which begins no record."""
        if wrong is None and len(text) <= MAX_MESSAGE_BYTES:
            if not ended or self._last == "wait":
                return None
            if self._last == "leave" and not self._stop_at_bad and b"\n" not in text:
                log.warning(
                    "%s: the record at byte %d is not finished and was left", self._content.name, self.at.byte
                )
                return None
            wrong = "a quote that is never closed"
        reason = wrong or f"longer than a message may be ({MAX_MESSAGE_BYTES} bytes)"
        line = text.split(b"\n", 1)[0]
        size = 0 if self._stop_at_bad else min(len(line) + 1, len(text))
        return Scan(no_documents(), [BadLine(0, 0, reason, line[:KEPT])], text.count(b"\n", 0, size), size)


def _as_text(column: pa.Array) -> pa.Array:
    return column


def _moments(column: pa.Array) -> pa.Array:
    import pyarrow as pa

    return column.cast(pa.timestamp("us", "UTC"))


def _local_moments(column: pa.Array) -> pa.Array:
    import pyarrow as pa

    return column.cast(pa.timestamp("us"))


_READERS: Mapping[Kind, Callable[[pa.Array], pa.Array]] = {
    Kind.INT: lambda column: column.cast("int64"),
    Kind.FLOAT: lambda column: column.cast("double"),
    Kind.BOOL: lambda column: column.cast("bool"),
    Kind.DATE: lambda column: column.cast("date32"),
    Kind.TIME: read_times,
    Kind.TIMESTAMP: _moments,
    Kind.LOCAL_TIMESTAMP: _local_moments,
}
"""How the text of a column becomes what its type says; the others stay text, and `rowtext` knows what that means."""
