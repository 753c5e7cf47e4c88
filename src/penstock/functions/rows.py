"""The rows of a batch as Python values, and what functions of one message make of them.

Only rows that some function is asked about are here. Columns that a function may change are made when the first
one comes that may want them, and written back to Arrow only if one of them did change something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from penstock.base.errors import did_you_mean
from penstock.functions.base import Editable, Function, FunctionError
from penstock.functions.kinds import NamespaceFunction, OpFunction, TextFunction
from penstock.functions.steps import Refused, Step, StepCount
from penstock.log.message import OP_WORDS

if TYPE_CHECKING:
    import pyarrow as pa


class Rows:
    """The rows in question, and what becomes of them. `distinct`: no two of them share an offset."""

    def __init__(self, batch: pa.RecordBatch, asked: pa.BooleanArray, *, distinct: bool) -> None:
        self._batch = batch
        self._asked = None if asked.true_count == batch.num_rows else asked
        self._mine = mine = batch if self._asked is None else batch.filter(asked)
        self._distinct = distinct
        names = mine.column("ns").dictionary_encode()
        self._names: list[str] = names.dictionary.to_pylist()
        self._ns: list[int] = names.indices.to_pylist()
        """The current namespace of each row, as an index into `_names`."""
        self._places: dict[str, int] = {}
        self._data: list[bytes] = mine.column("data").cast(binary_like(mine.column("data").type)).to_pylist()
        self._op: list[str] | None = None
        self._ts: list[int] | None = None
        """Made when a function comes that may want them."""
        self._gone: set[int] = set()
        self._changed: set[str] = set()
        self.refused: list[Refused] = []

    def take(self, step: Step) -> StepCount:
        """Lead a function over the rows whose current namespace it accepts; tells what it did."""
        accepted = [step.accept.matches(ns) for ns in self._names]
        if not any(accepted):
            return StepCount()
        rows: Sequence[int] = range(len(self._ns))
        if self._gone or not all(accepted):
            rows = [row for row in rows if accepted[self._ns[row]] and row not in self._gone]
        gone, refused = len(self._gone), len(self.refused)
        function = step.function
        if isinstance(function, NamespaceFunction):
            self._move(function, accepted)
        elif isinstance(function, OpFunction):
            self._sift(function, rows)
        elif isinstance(function, TextFunction):
            self._rewrite(step.name, function.rewrite, rows)
        else:
            self._edit(step.name, function, rows)
        return self._counted(rows, len(self._gone) - gone, self.refused[refused:])

    def _counted(self, rows: Sequence[int], gone: int, refused: Sequence[Refused]) -> StepCount:
        if self._distinct:
            return StepCount(len(rows), len(rows) - gone, gone - len(refused), len(refused))
        offsets = self._mine.column("offset").to_pylist()
        named = {one.offset for one in refused}
        into = {offsets[row] for row in rows}
        out = {offsets[row] for row in rows if row not in self._gone} - named
        return StepCount(len(into), len(out), len(into) - len(out) - len(named), len(named))

    def _move(self, function: NamespaceFunction, accepted: Sequence[bool]) -> None:
        moved = [function.moved(ns) if mine else ns for ns, mine in zip(self._names, accepted, strict=True)]
        if moved != self._names:
            self._names = moved
            self._places = {}
            self._changed.add("ns")

    def _sift(self, function: OpFunction, rows: Iterable[int]) -> None:
        op, _ = self._ops_and_times()
        kept = {word: function.keeps(word) for word in set(op)}
        if not all(kept.values()):
            self._gone.update([row for row in rows if not kept[op[row]]])

    def _rewrite(self, node: str, rewrite: Callable[[bytes], bytes | None], rows: Iterable[int]) -> None:
        texts = self._data
        for row in rows:
            try:
                text = rewrite(texts[row])
            except Exception as error:  # noqa: BLE001 - reported; raised, it would only fail four times
                self._refuse(row, node, error)
                continue
            if text is None:
                self._gone.add(row)
            elif text is not texts[row]:
                texts[row] = text
                self._changed.add("data")

    def _edit(self, node: str, function: Function, rows: Iterable[int]) -> None:
        op, ts = self._ops_and_times()
        for row in rows:
            message = Editable(self._names[self._ns[row]], op[row], ts[row], self._data[row])
            try:
                if function.apply(message) and message.op != "skip":
                    self._keep(row, message)
                else:
                    self._gone.add(row)
            except Exception as error:  # noqa: BLE001 - a person's function may raise anything
                self._refuse(row, node, error)

    def _ops_and_times(self) -> tuple[list[str], list[int]]:
        """The other columns that a function may change, as Python values from the first time on."""
        import pyarrow as pa

        if self._op is None or self._ts is None:
            self._op = self._mine.column("op").to_pylist()
            self._ts = self._mine.column("ts").cast(pa.int64()).to_pylist()
        return self._op, self._ts

    def _keep(self, row: int, message: Editable) -> None:
        check(message)
        text = message.text()
        op, ts = self._ops_and_times()
        if text is not self._data[row]:
            self._data[row] = text.encode() if isinstance(text, str) else text
            self._changed.add("data")
        if message.ns != self._names[self._ns[row]]:
            self._ns[row] = self._place_of(message.ns)
            self._changed.add("ns")
        if message.op != op[row]:
            op[row] = message.op
            self._changed.add("op")
        if message.ts != ts[row]:
            ts[row] = message.ts
            self._changed.add("ts")

    def _place_of(self, ns: str) -> int:
        """The index of a name, which may be new."""
        if not self._places:
            self._places = {name: place for place, name in enumerate(self._names)}
        place = self._places.setdefault(ns, len(self._names))
        if place == len(self._names):
            self._names.append(ns)
        return place

    def _refuse(self, row: int, node: str, error: Exception) -> None:
        self._gone.add(row)
        mine = self._mine
        self.refused.append(
            Refused(
                mine.column("offset")[row].as_py(), mine.column("origin")[row].as_py(), reason(error), node
            )
        )

    def result(self) -> pa.RecordBatch:
        """The whole batch again: what nobody touched as it was, and without what is gone."""
        batch = self._batch
        if "data" in self._changed:
            batch = self._with(batch, "data", self._data)
        if "ns" in self._changed:
            batch = self._with(batch, "ns", [self._names[index] for index in self._ns])
        if "op" in self._changed:
            batch = self._with(batch, "op", self._op or [])
        if "ts" in self._changed:
            batch = self._with(batch, "ts", self._ts or [])
        return batch.filter(self._left()) if self._gone else batch

    def _with(self, batch: pa.RecordBatch, name: str, values: Sequence[object]) -> pa.RecordBatch:
        """The batch with `values` in a column, in the places of the rows that functions were asked about."""
        import pyarrow as pa
        import pyarrow.compute as pc

        index = batch.schema.get_field_index(name)
        field, column = batch.schema.field(index), batch.column(index)
        as_given = binary_like(field.type) if name == "data" else field.type
        replaced = pa.array(values, as_given).cast(field.type)
        if self._asked is not None:
            replaced = pc.replace_with_mask(column, self._asked, replaced)
        return batch.set_column(index, field, replaced)

    def _left(self) -> pa.BooleanArray:
        """Which rows of the whole batch are still there."""
        import numpy as np
        import pyarrow as pa

        left = np.ones(self._batch.num_rows, dtype=bool)
        mine = np.arange(len(left)) if self._asked is None else np.flatnonzero(self._asked)
        left[mine[list(self._gone)]] = False
        return pa.array(left)


def as_unicode(text: str) -> str:
    """The text with a mark for each half of a surrogate pair, which no column and no JSON can hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def check(message: Editable) -> None:
    """Refuse what a function made of a message if no column can hold it."""
    ns: object = message.ns
    ts: object = message.ts
    if not isinstance(ns, str) or not ns:
        raise FunctionError(f"the function set ns to {ns!r}, a name is wanted")
    if not ns.isascii() and as_unicode(ns) != ns:
        raise FunctionError(f"the function set ns to {ns!r}, which has half a surrogate pair in it")
    if not isinstance(ts, int) or isinstance(ts, bool) or not _FIRST_TIME <= ts <= _LAST_TIME:
        raise FunctionError(f"the function set ts to {ts!r}, microseconds since 1970 are wanted")
    if message.op not in OP_WORDS:
        raise FunctionError(f"the function set op to {message.op!r}{did_you_mean(str(message.op), OP_WORDS)}")


_FIRST_TIME, _LAST_TIME = -(1 << 63), (1 << 63) - 1
"""What the column of times can hold."""


def reason(error: Exception) -> str:
    """Why a message is refused, in words."""
    return error.message if isinstance(error, FunctionError) else f"{type(error).__name__}: {error}"


def binary_like(kind: pa.DataType) -> pa.DataType:
    """The type of bytes that lies in memory like this type of text."""
    import pyarrow as pa

    return pa.large_binary() if pa.types.is_large_string(kind) else pa.binary()
