"""`js`: a person's own JavaScript function (Transporter reference, section 5: goja/js and otto/transformer).

    goja, js             the file defines      function transform(msg) { … }
    otto, transformer    the file assigns      module.exports = function (msg) { … }

`msg` has exactly `ts`, `op` (a word), `ns` and `data` (extended JSON as plain objects). The function returns

    msg, or a new object with all four    it goes on
    true                                  msg goes on, as it is by then
    false; of goja also null              dropped
    an object whose op begins with `s`    dropped

Anything else, an exception and a number that JSON has no form for refuse the message, with the line where there is
one; so does a message for which the function takes more time or memory than it may, and the others go on.
A value that is in the end what it was keeps its very text, at any depth, so numbers beyond 2^53 pass unharmed.

The file is read, and the script loaded, when the pipeline file is. Its text travels to the workers, where V8 runs
it in a process of its own (`js_engine`), a batch of messages a call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from penstock.base.errors import UsageError, did_you_mean
from penstock.base.settings import setting
from penstock.functions.js_engine import LimitError, Script, check, engine_of
from penstock.functions.kinds import BatchFunction
from penstock.functions.opfilter import op_word
from penstock.functions.rows import binary_like
from penstock.log.message import OP_WORDS

if TYPE_CHECKING:
    import pyarrow as pa

SEPARATOR = b"\x1e"
"""Ends a text in a call: a control character that JSON allows nowhere."""

CALL_BYTES = 8 << 20
CALL_MESSAGES = 20_000
MAX_INCIDENTS = 5
"""After so many passed limits in a batch, what is left of it is not tried."""


class _Answer(msgspec.Struct, frozen=True):
    """What the harness says about the messages of a call, by their numbers in it; see js_harness.js."""

    done: int
    dropped: list[int]
    refused: list[tuple[int, str]]
    moved: list[tuple[int, str, str, int | None]]
    changed: list[int]


_read_answer = msgspec.json.Decoder(_Answer).decode


@dataclass(frozen=True)
class JsFunction(BatchFunction):
    """Calls a JavaScript function for each message."""

    name: ClassVar[str] = "js"
    description: ClassVar[str] = "a JavaScript function of one message"

    filename: str | None = setting("path of the script", default=None, example="slim.js")
    source: str | None = setting(
        "the script itself, instead of a file",
        default=None,
        example="function transform(msg) { return msg }",
    )
    kind: Literal["goja", "js", "otto", "transformer"] = setting(
        "goja or js: the script defines transform(msg); otto or transformer: it assigns module.exports",
        default="goja",
        example="goja",
    )
    timeout_ms: int = setting("most time for one message", default=2000, example=2000)
    memory_mb: int = setting("most memory for the script", default=256, example=256)

    def __post_init__(self) -> None:
        if (self.filename is None) == (self.source is None):
            raise ValueError("expected either 'filename' or 'source'")
        if not 1 <= self.timeout_ms <= 600_000:
            raise ValueError(f"setting 'timeout_ms': expected 1 to 600000, got {self.timeout_ms}")
        if not 16 <= self.memory_mb <= 4096:
            raise ValueError(f"setting 'memory_mb': expected 16 to 4096, got {self.memory_mb}")
        object.__setattr__(self, "_code", self._text())
        try:
            check(self._script)
        except UsageError as error:
            message = error.message.removeprefix("function 'js': ")
            raise UsageError(f"function 'js': {message}", hint=error.hint) from None

    def _text(self) -> str:
        if self.filename is None:
            return self.source or ""
        path = Path(self.filename)
        try:
            return path.read_text("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise UsageError(
                f"function 'js': the script {path.absolute()} cannot be read: {why}",
                hint="a relative path is looked for in the working directory; "
                'from the pipeline file\'s own: filename=str(Path(__file__).with_name("slim.js"))',
            ) from None

    @cached_property
    def _script(self) -> Script:
        shown = re.sub(r"\s", "_", Path(self.filename).name) if self.filename else "source"
        otto = self.kind in ("otto", "transformer")
        return Script(self._code, shown, otto, self.timeout_ms / 1000, self.memory_mb << 20)  # type: ignore[attr-defined]  # set at load

    def apply_batch(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[tuple[int, str]]]:
        messages = _Messages(batch)
        work = _Work(self._script, messages)
        for rows in messages.calls():
            work.take(rows)
        return messages.result()


class _Messages:
    """The columns of a batch that a script may change, as Python values, and what becomes of them."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        import pyarrow as pa

        self._batch = batch
        kind = batch.column("data").type
        self.data: list[bytes] = batch.column("data").cast(binary_like(kind)).to_pylist()
        self.ts: list[int] = batch.column("ts").cast(pa.int64()).to_numpy().tolist()
        ops, names = batch.column("op").dictionary_encode(), batch.column("ns").dictionary_encode()
        self.ops: list[str] = ops.dictionary.to_pylist()
        self.op: list[int] = ops.indices.to_numpy().tolist()
        self.names: list[str] = names.dictionary.to_pylist()
        self.ns: list[int] = names.indices.to_numpy().tolist()
        self._changed: set[str] = set()
        self._dropped: set[int] = set()
        self._refused: dict[int, str] = {}

    def calls(self) -> Iterator[range]:
        """The rows, cut so that a call stays small."""
        if len(self.data) <= CALL_MESSAGES and self._batch.column("data").nbytes <= CALL_BYTES:
            yield range(len(self.data))
            return
        begin, size = 0, 0
        for row, text in enumerate(self.data):
            if row > begin and (size + len(text) > CALL_BYTES or row - begin >= CALL_MESSAGES):
                yield range(begin, row)
                begin, size = row, 0
            size += len(text)
        yield range(begin, len(self.data))

    def request(self, rows: range) -> bytes:
        """What the harness reads; where there is only one op or namespace, nobody needs to say which."""
        first, end = rows.start, rows.stop
        header = {
            "ts": self.ts[first:end],
            "ops": self.ops,
            "op": self.op[first:end] if len(self.ops) > 1 else [],
            "names": self.names,
            "ns": self.ns[first:end] if len(self.names) > 1 else [],
        }
        return SEPARATOR.join([msgspec.json.encode(header), *self.data[first:end], b""])

    def drop(self, row: int) -> None:
        self._dropped.add(row)

    def refuse(self, row: int, why: str) -> None:
        self._refused[row] = why

    def write(self, rows: Iterable[int], texts: Iterable[bytes]) -> None:
        data = self.data
        for row, text in zip(rows, texts, strict=True):
            data[row] = text
        self._changed.add("data")

    def move(self, row: int, ns: str, op: str, ts: int | None) -> None:
        word = op_word(op)
        if word is None:
            self.refuse(row, f"the function set op to '{op}'{did_you_mean(op, OP_WORDS)}")
            return
        if ts is not None:
            self.ts[row] = ts
            self._changed.add("ts")
        if word != self.ops[self.op[row]]:
            self.op[row] = _place(self.ops, word)
            self._changed.add("op")
        if ns != self.names[self.ns[row]]:
            self.ns[row] = _place(self.names, ns)
            self._changed.add("ns")

    def result(self) -> tuple[pa.RecordBatch, list[tuple[int, str]]]:
        import pyarrow as pa

        batch, offsets = self._batch, self._batch.column("offset")
        columns: dict[str, Sequence[object]] = {}
        if "data" in self._changed:
            columns["data"] = self.data
        if "ts" in self._changed:
            columns["ts"] = self.ts
        if "op" in self._changed:
            columns["op"] = [self.ops[index] for index in self.op]
        if "ns" in self._changed:
            columns["ns"] = [self.names[index] for index in self.ns]
        for name, values in columns.items():
            index = batch.schema.get_field_index(name)
            kind = batch.schema.field(index).type
            as_given = binary_like(kind) if name == "data" else kind
            batch = batch.set_column(index, batch.schema.field(index), pa.array(values, as_given).cast(kind))
        refused = {offsets[row].as_py(): why for row, why in sorted(self._refused.items())}
        gone = set(self._dropped)
        if refused:  # with all rows of the message
            gone.update(row for row, offset in enumerate(offsets.to_pylist()) if offset in refused)
        if gone:
            left = [row for row in range(batch.num_rows) if row not in gone]
            batch = batch.take(pa.array(left, pa.int64()))
        return batch, list(refused.items())


class _Work:
    """Leads the script over the messages of one batch, around those that pass a limit."""

    def __init__(self, script: Script, messages: _Messages) -> None:
        self._script = script
        self._engine = engine_of(script)
        self._messages = messages
        self._incidents = 0

    def take(self, rows: range) -> None:
        """Give the script these messages, in one call if nothing goes wrong."""
        request = self._messages.request(rows)
        if request.count(SEPARATOR) != len(rows) + 1 or not _is_text(request):
            self._singly(rows)
            return
        while rows:
            try:
                answer = self._engine.call(request, messages=len(rows))
            except LimitError:
                self._singly(rows)
                return
            rows = rows[self._settle(rows, answer) :]
            if rows:
                request = self._messages.request(rows)

    def _singly(self, rows: range) -> None:
        """Give the script these messages one by one, so that only those to blame are refused."""
        for row in rows:
            text = self._messages.data[row]
            if SEPARATOR in text or not _is_text(text):
                self._messages.refuse(row, "data is not a JSON object: it holds bytes that no JSON text has")
            elif self._incidents >= MAX_INCIDENTS:
                self._messages.refuse(
                    row, f"not tried, since the script passed its limits {MAX_INCIDENTS} times in this batch"
                )
            else:
                self._alone(row)

    def _alone(self, row: int) -> None:
        alone = range(row, row + 1)
        try:
            self._settle(alone, self._engine.call(self._messages.request(alone), messages=1))
        except LimitError as error:
            self._incidents += 1
            self._messages.refuse(row, f"{error.message} ({self._script.shown})")

    def _settle(self, rows: range, text: bytes) -> int:
        """Note what an answer says; returns how many messages it is about."""
        header, *texts = text.split(SEPARATOR)
        answer, first, messages = _read_answer(header), rows.start, self._messages
        if texts:
            messages.write(map(first.__add__, answer.changed), texts)
        for number, ns, op, ts in answer.moved:
            messages.move(first + number, ns, op, ts)
        for number in answer.dropped:
            messages.drop(first + number)
        for number, why in answer.refused:
            messages.refuse(first + number, why)
        return answer.done


def _place(names: list[str], name: str) -> int:
    """The index of a name, which may be new."""
    if name not in names:
        names.append(name)
    return names.index(name)


def _is_text(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
