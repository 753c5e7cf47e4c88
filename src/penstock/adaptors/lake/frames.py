"""The staged events of one namespace as a DataFrame of Spark.

Files with different columns come together by name. Where types differ, each is cast to that of the target's column, or
of the column to be made: one that holds them all. A cast that would change a value ends the query (`raise_error`), and
with it the commit: nothing is rounded or cut in silence.

The *last state* of a batch is its newest event for each key, behind the last truncate. Messages hold whole rows, so
nothing before it counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from penstock.adaptors.away import telling
from penstock.adaptors.base import Staged
from penstock.adaptors.lake.events import KIND, OFFSET, ROW, about
from penstock.adaptors.lake.session import Frame, Session
from penstock.base.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

_OURS = (OFFSET, ROW, KIND)

_WIDER = {
    ("INT", "BIGINT"), ("SMALLINT", "BIGINT"), ("TINYINT", "BIGINT"), ("SMALLINT", "INT"), ("TINYINT", "INT"),
    ("TINYINT", "SMALLINT"), ("FLOAT", "DOUBLE"), ("DATE", "TIMESTAMP_NTZ"), ("VOID", "STRING"),
}  # fmt: skip
"""Casts that keep every value."""
_WRITERS = {"ARRAY": "to_json", "BINARY": "base64"}
"""What makes text of values that a cast would not keep: it leaves out quotes, and bytes that are no text."""

_LARGEST = 2**63 - 1
"""As a float it becomes one that is larger still, and of that a cast back makes the largest again."""


class Place(NamedTuple):
    """Where an event stands: those with a larger place come later."""

    offset: int
    row: int


@dataclass
class Events:
    """The events of one namespace in the parts of a batch. `columns` are the types of its fields, in Spark's words."""

    ns: str
    key: tuple[str, ...] = ()
    files: dict[tuple[tuple[str, str], ...], list[str]] = field(default_factory=dict)
    """By the columns that they have, with their types."""
    truncated: Place | None = None

    @property
    def columns(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for columns in self.files:
            for name, kind in columns:
                found[name] = together(found.get(name, kind), kind)
        return found

    def frame(self, spark: Session, types: Mapping[str, str], left_out: range) -> Frame | None:
        """All events, with these columns and ours; without messages whose offset is `left_out`. None for none."""
        whole: Frame | None = None
        for columns, files in self.files.items():
            have = dict(columns)
            terms = [
                cast(name, have[name], kind) if name in have else f"CAST(NULL AS {kind}) AS {quoted(name)}"
                for name, kind in types.items()
            ]
            some = spark.read.parquet(*files).selectExpr(*terms, *_OURS)
            whole = some if whole is None else whole.unionByName(some)
        if whole is not None and left_out:
            whole = whole.where(f"{OFFSET} < {left_out.start} OR {OFFSET} >= {left_out.stop}")
        return whole

    def last(self, events: Frame) -> Frame:
        """The last state of each key."""
        if self.truncated is not None:
            at, row = self.truncated
            events = events.where(f"{OFFSET} > {at} OR ({OFFSET} = {at} AND {ROW} > {row})")
        window = f"PARTITION BY {quoted_all(self.key)} ORDER BY {OFFSET} DESC, {ROW} DESC"
        numbered = events.selectExpr("*", f"row_number() OVER ({window}) AS _penstock_newest")
        return numbered.where("_penstock_newest = 1").drop("_penstock_newest")


def events_of(parts: Sequence[Staged]) -> list[Events]:
    """What the parts hold, by namespace."""
    import pyarrow.parquet as pq

    found: dict[str, Events] = {}
    for part in parts:
        with telling(f"cannot read {part.part}"):
            for path in sorted(Path(part.part).glob("*.parquet")):
                schema = pq.read_schema(path)
                told = about(schema)
                events = found.setdefault(told.ns, Events(told.ns))
                if told.truncate:
                    events.truncated = max(_last_place(path), events.truncated or Place(-1, -1))
                    continue
                if events.files and told.key != events.key:
                    raise UsageError(
                        f"messages of namespace '{told.ns}' have the key {list(events.key)}, others {list(told.key)}",
                        hint="name the key with the setting `keys`",
                    )
                events.key = told.key
                columns = tuple((one.name, ddl(one.type)) for one in schema if one.name not in _OURS)
                events.files.setdefault(columns, []).append(str(path))
    return [found[ns] for ns in sorted(found)]


def _last_place(path: Path) -> Place:
    import pyarrow.parquet as pq

    places = pq.read_table(path, columns=[OFFSET, ROW])
    return max(map(Place._make, zip(*(column.to_pylist() for column in places.columns), strict=True)))


def ddl(arrow: pa.DataType) -> str:
    """What Spark calls a column of this type."""
    import pyarrow.types as pt

    if pt.is_decimal(arrow):
        return f"DECIMAL({arrow.precision},{arrow.scale})"
    if pt.is_list(arrow):
        return f"ARRAY<{ddl(arrow.value_type)}>"
    if pt.is_timestamp(arrow):
        return "TIMESTAMP" if arrow.tz else "TIMESTAMP_NTZ"
    names = (
        (pt.is_boolean, "BOOLEAN"), (pt.is_int64, "BIGINT"), (pt.is_floating, "DOUBLE"), (pt.is_date, "DATE"),
        (pt.is_binary, "BINARY"),
    )  # fmt: skip
    return next((name for test, name in names if test(arrow)), "STRING")


def together(one: str, other: str) -> str:
    """A type for values of both."""
    if one == other:
        return one
    kinds = {one.partition("(")[0], other.partition("(")[0]}
    if kinds <= {"BIGINT", "DOUBLE"}:
        return "DOUBLE"
    if kinds <= {"BIGINT", "DECIMAL"}:
        scales = [int(kind[:-1].partition(",")[2]) for kind in (one, other) if kind.startswith("DECIMAL")]
        return f"DECIMAL(38,{max(scales)})"
    return "STRING"


def cast(name: str, kind: str, to: str) -> str:
    """The term that gives a column another type, or ends the query where that would change a value."""
    term, to = quoted(name), to.upper()
    if kind == to:
        return term
    if to == "STRING" and (writer := _WRITERS.get(kind.partition("<")[0])):
        return f"{writer}({term}) AS {term}"
    if (kind, to) in _WIDER or to == "STRING":
        return f"CAST({term} AS {to}) AS {term}"
    reason = f"a value of the field '{name}' does not fit its column, which is {to}".replace("'", "''")
    keeps = f"CAST(CAST({term} AS {to}) AS {kind}) = {term}"
    if kind == "BIGINT" and to in ("DOUBLE", "FLOAT"):
        keeps += f" AND {term} <> {_LARGEST}"
    return f"CASE WHEN {term} IS NULL OR {keeps} THEN CAST({term} AS {to}) ELSE raise_error('{reason}') END AS {term}"


def quoted(name: str) -> str:
    """A name as Spark's SQL has it."""
    return "`" + name.replace("`", "``") + "`"


def quoted_all(names: Iterable[str]) -> str:
    return ", ".join(map(quoted, names))
