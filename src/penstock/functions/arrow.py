"""`arrow`: a person's own Python function of an Arrow batch.

    def loud(batch):
        index = batch.schema.get_field_index("ns")
        return batch.set_column(index, "ns", pc.utf8_upper(batch.column("ns")))

    orders.transform("loud", f.arrow(loud))

The function gets a `RecordBatch` with the columns `offset, ts, mode, op, ns, key, old_key, data, origin` and gives back
a batch or a table with at least `offset`; columns that it leaves out are those of the message. An offset that is gone
from the result is a dropped message; one that is there more than once is one message with several rows. Rows with op
`skip` are dropped.

When the function fails, or what it gives back cannot be used, it is called again with each message by itself: so the
messages that are to blame are refused, and the others go on. How many rows a batch has is never promised, so each
row must be decided by itself.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from penstock.base.errors import did_you_mean
from penstock.base.settings import setting
from penstock.functions.base import FunctionError
from penstock.functions.callables import Code, checked, name_of, told
from penstock.functions.kinds import NOT_AN_OBJECT, BatchFunction, fields_of, not_an_object
from penstock.log.message import OP_WORDS

if TYPE_CHECKING:
    import pyarrow as pa

_NEVER_NULL = ("ts", "mode", "op", "ns", "data")


class RecordBatchFunction(Protocol):
    """What a person writes."""

    def __call__(self, batch: pa.RecordBatch, /) -> pa.RecordBatch | pa.Table: ...


@dataclass(frozen=True)
class ArrowFunction(BatchFunction):
    """Calls a function of an Arrow batch."""

    name: ClassVar[str] = "arrow"
    description: ClassVar[str] = "a Python function of an Arrow batch of messages"

    function: RecordBatchFunction = setting(  # noqa: RUF009 - makes a field
        "called with batches of messages; gives back a batch that keeps `offset`",
        example=Code("lambda batch: batch"),
    )

    def __post_init__(self) -> None:
        checked("function 'arrow'", self.function, "the batch", "f.arrow(lambda batch: batch)")

    def apply_batch(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[tuple[int, str]]]:
        import pyarrow as pa

        try:
            return self._applied(batch), []
        except FunctionError as error:
            if _messages(batch) == 1:
                return batch.slice(0, 0), [(batch.column("offset")[0].as_py(), error.message)]
        parts, refused = [batch.slice(0, 0)], []
        for first, count in _runs(batch):
            part, complaints = self.apply_batch(batch.slice(first, count))
            parts.append(part)
            refused += complaints
        return pa.concat_batches(parts), refused

    def _applied(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            result = self.function(batch)
        except (FunctionError, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - a person's function may raise anything
            raise FunctionError(told(error, self.function)) from None
        whole = _in_our_shape(self._as_batch(result), batch)
        _check(whole, batch)
        return _kept(whole)

    def _as_batch(self, result: object) -> pa.RecordBatch:
        import pyarrow as pa

        called = f"'{name_of(self.function)}' returned"
        if isinstance(result, pa.Table):
            batches = result.combine_chunks().to_batches()
            result = batches[0] if batches else pa.RecordBatch.from_pylist([], result.schema)
        if not isinstance(result, pa.RecordBatch):
            raise FunctionError(f"{called} a value of type {type(result).__name__}, expected a RecordBatch")
        if "offset" not in result.schema.names:
            raise FunctionError(f"{called} a batch without 'offset', by which messages are known")
        twice = {name for name in result.schema.names if result.schema.names.count(name) > 1}
        if twice:
            raise FunctionError(f"{called} a batch with more than one column '{min(twice)}'")
        return result


def _in_our_shape(result: pa.RecordBatch, given: pa.RecordBatch) -> pa.RecordBatch:
    """The columns of a message and no others, in the order of offsets; what is missing comes from the message."""
    import pyarrow as pa
    import pyarrow.compute as pc

    offsets = _cast("offset", result.column("offset"), pa.int64())
    source = pc.index_in(offsets, given.column("offset"))
    if source.null_count:
        strange = offsets.filter(pc.is_null(source))[0].as_py()
        raise FunctionError(f"the function returned the offset {strange}, which it was not given")
    columns = []
    for field in given.schema:
        if field.name == "offset":
            columns.append(offsets)
        elif field.name in result.schema.names and field.name != "origin":  # which is the log's word
            columns.append(_cast(field.name, result.column(field.name), field.type))
        else:
            columns.append(given.column(field.name).take(source))
    shaped = pa.record_batch(columns, schema=given.schema)
    order = pc.sort_indices(offsets)
    return shaped if order.equals(pa.array(range(len(order)), order.type)) else shaped.take(order)


def _cast(name: str, column: pa.Array, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if column.type == kind:
        return column
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise FunctionError(f"the column '{name}' is {column.type}, expected {kind}: {error}") from None


def _check(result: pa.RecordBatch, given: pa.RecordBatch) -> None:
    """Refuse what no sink could read."""
    import pyarrow.compute as pc

    for name in _NEVER_NULL:
        if result.column(name).null_count:
            raise FunctionError(f"the function set {name} to null")
    for op in result.column("op").unique().to_pylist():
        if op not in OP_WORDS:
            raise FunctionError(f"the function set op to {op!r}{did_you_mean(op, OP_WORDS)}")
    if pc.any(pc.equal(result.column("ns"), "")).as_py():
        raise FunctionError("the function set ns to '', a name is wanted")
    before = given.column("data").take(pc.index_in(result.column("offset"), given.column("offset")))
    for text in result.column("data").filter(pc.not_equal(result.column("data"), before)).to_pylist():
        try:
            fields_of(text)
        except NOT_AN_OBJECT as error:
            raise not_an_object(error) from None


def _kept(result: pa.RecordBatch) -> pa.RecordBatch:
    import pyarrow.compute as pc

    skipped = pc.equal(result.column("op"), "skip")
    return result.filter(pc.invert(skipped)) if skipped.true_count else result


def _messages(batch: pa.RecordBatch) -> int:
    import pyarrow.compute as pc

    return int(pc.count_distinct(batch.column("offset")).as_py())


def _runs(batch: pa.RecordBatch) -> list[tuple[int, int]]:
    """Where each message begins and how many rows it has; rows of one message stand together."""
    import numpy as np

    offsets = batch.column("offset").to_numpy()
    begins = np.concatenate([[0], np.flatnonzero(np.diff(offsets)) + 1, [len(offsets)]])
    return [(int(first), int(end - first)) for first, end in itertools.pairwise(begins)]
