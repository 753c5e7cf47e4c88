"""The frame that a DataFrame function gave back, made a frame of messages again.

What cannot be one stops the sink, by name: a column of the message that is missing, or there twice, or `data` of a type
that has no JSON. The columns get the types that they have in a message; a value that has none of that type becomes
null, and the message is refused (`functions.givenback`).

The text that `data` was parsed from goes on unless the function assigned `data`. Whoever assigns a column gives it
another identity in Spark's plan; but a union has the identities of its first part, whatever the others did, and behind
the names of a WITH all columns have new ones. There the values are compared, row by row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.base.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TEXT = "_penstock_text"
"""The hidden column with the text that `data` was parsed from."""

REQUIRED = ("offset", "ts", "mode", "op", "ns", "data")
TYPES = {
    "offset": "BIGINT",
    "ts": "TIMESTAMP",
    "mode": "STRING",
    "op": "STRING",
    "ns": "STRING",
    "key": "STRING",
    "old_key": "STRING",
    "data": "STRING",
    "origin": "STRING",
}
"""The columns of a message between two passes, in their order."""

NO_OFFSET = (1 << 63) - 1
"""Stands for an offset that a function made null: one that no message has."""


def messages_of(node: str, shown: DataFrame, result: object) -> DataFrame:
    """The messages in what the function at `node` gave back for `shown`."""
    from pyspark.sql import functions as sf

    frame = _checked(node, result)
    columns = {name: _typed(frame, name) for name in TYPES if name != "data"}
    columns["offset"] = sf.coalesce(columns["offset"], sf.lit(NO_OFFSET))
    columns["origin"] = sf.coalesce(columns["origin"], columns["ns"], sf.lit(""))
    columns["data"] = _text(shown, frame)
    return frame.select(*(columns[name].alias(name) for name in TYPES))


def _checked(node: str, result: object) -> DataFrame:
    from pyspark.sql import DataFrame

    if not isinstance(result, DataFrame):
        raise UsageError(
            f"transformation '{node}' returned {type(result).__name__}, expected a DataFrame",
            hint="return the DataFrame you made from the one you were given",
        )
    missing = [name for name in REQUIRED if name not in result.columns]
    if missing:
        raise UsageError(
            f"transformation '{node}' lost columns of the message: {', '.join(missing)}",
            hint="keep the message's columns; use withColumn and where rather than select",
        )
    names = [name.lower() for name in result.columns]
    twice = [name for name in (*TYPES, TEXT) if names.count(name) > 1]
    if twice:
        raise UsageError(
            f"transformation '{node}' returned more than one column '{twice[0]}'",
            hint="drop or rename the other one; withColumn replaces a column",
        )
    return result


def _typed(frame: DataFrame, name: str) -> Column:
    """A column as a message has it; null where there is none."""
    from pyspark.sql import functions as sf

    if name not in frame.columns:
        return sf.lit(None).cast(TYPES[name])
    column = sf.col(name)
    as_it_should_be = frame.schema[name].dataType.simpleString() == TYPES[name].lower()
    return column if as_it_should_be else column.try_cast(TYPES[name])


def _text(shown: DataFrame, result: DataFrame) -> Column:
    from pyspark.sql import functions as sf
    from pyspark.sql.types import StringType

    if isinstance(result.schema["data"].dataType, StringType):
        return sf.col("data")
    written = sf.to_json("data", {"ignoreNullFields": "false"})
    if TEXT not in result.columns:
        return written
    if _mixes(result._jdf.queryExecution().analyzed(), shown._jdf.queryExecution().analyzed()):
        same = written.eqNullSafe(sf.to_json(sf.try_parse_json(TEXT)))
        return sf.when(same, sf.col(TEXT)).otherwise(written)
    untouched = _attribute(shown, "data") == _attribute(result, "data")
    return sf.col(TEXT) if untouched else written


def _attribute(frame: DataFrame, name: str) -> int:
    """The identity of a column: the same number as long as nobody assigned it."""
    output = frame._jdf.queryExecution().analyzed().output()
    for i in range(output.size()):
        if output.apply(i).name() == name:
            return int(output.apply(i).exprId().id())
    return -1


def _mixes(node: Any, given: Any) -> bool:
    """Whether identities tell nothing, between this node and what the function was given."""
    if node.fastEquals(given):
        return False
    if node.nodeName() in ("Union", "WithCTE"):
        return True
    children = node.children()
    return any(_mixes(children.apply(i), given) for i in range(children.size()))
