"""`python` and `arrow`: what a person's own function may answer, and what it leaves alone."""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.functions.messages import FIRST, applied, batch_of, errors_of, texts_of
from tests.functions.test_builtin_functions import documents, fields_in

from penstock import functions as f
from penstock.base.errors import UsageError
from penstock.functions.base import FunctionError
from penstock.functions.python import MutableMessage
from penstock.log.values import ObjectId

HERE = Path(__file__).name


def set_n(message: MutableMessage) -> MutableMessage:
    message.data["n"] = 2
    return message


def move(message: MutableMessage) -> MutableMessage:
    message.ns, message.op, message.ts = "sales", "update", 5
    return message


def raises(error: BaseException) -> Callable[[object], Any]:
    def function(_: object) -> Any:
        raise error

    return function


def fail(message: MutableMessage) -> None:
    raise ValueError("no stock")


def typo(message: MutableMessage) -> MutableMessage:
    message.dta = {}  # type: ignore[attr-defined]  # what a person may write
    return message


def assign(value: object) -> Callable[[MutableMessage], MutableMessage]:
    def function(message: MutableMessage) -> MutableMessage:
        message.data = value  # type: ignore[assignment]  # what a person may write
        return message

    return function


def with_(name: str, value: object) -> Callable[[MutableMessage], MutableMessage]:
    def function(message: MutableMessage) -> MutableMessage:
        setattr(message, name, value)
        return message

    return function


LINE = fail.__code__.co_firstlineno + 1


@pytest.mark.parametrize(
    "function, expected",
    [
        (set_n, '{"a":1.10,"n":2}'),
        (lambda message: True, '{"a":1.10,"n":1}'),
        (lambda message: message.data["n"] == 1, '{"a":1.10,"n":1}'),
        (lambda message: {"x": message.data["a"]}, '{"x":1.1}'),
        (lambda message: {"n": 1, "a": 1.1}, '{"n":1,"a":1.10}'),
        (assign({"new": [1]}), '{"new":[1]}'),
        (functools.partial(lambda name, message: {name: 1}, "x"), '{"x":1}'),
        (lambda message: None, ""),
        (lambda message: False, ""),
        (with_("op", "skip"), ""),
        (lambda message: [message], "!'<lambda>' returned a list: one message can become one or none"),
        (lambda message: 5, "!'<lambda>' returned a value of type int, expected the message, a dict"),
        (lambda message: MutableMessage.__new__(MutableMessage), "!'<lambda>' returned another message"),
        (fail, f"!ValueError: no stock ({HERE}:{LINE})"),
        (lambda message: message.data["nope"], f"!KeyError: 'nope' ({HERE}:"),
        (lambda message: exit(3), "!SystemExit: 3"),
        (raises(asyncio.CancelledError("late")), "!CancelledError: late"),
        (raises(GeneratorExit()), "!GeneratorExit"),
        (raises(BaseExceptionGroup("both", [SystemExit(1), ValueError(2)])), "!BaseExceptionGroup: both"),
        (typo, "!AttributeError: 'MutableMessage' object has no attribute 'dta'"),
        (assign([1]), "!the function set data to a value of type list, a dict is wanted"),
        (assign(None), "!the function set data to a value of type NoneType, a dict is wanted"),
        (assign({5: 1}), "!the function set a field named 5, names are text"),
        (assign({"a": {"b": [object()]}}), "!field 'a': at b[0]: "),
        (with_("ns", ""), "!the function set ns to ''"),
        (with_("op", "updated"), "!the function set op to 'updated'; did"),
    ],
)  # fmt: skip
def test_what_a_python_function_returns_decides(
    function: Callable[[MutableMessage], Any], expected: str
) -> None:
    """Kept with this text, dropped ("") or refused ("!reason")."""
    result = applied(batch_of(['{"a":1.10,"n":1}']), f.python(function))
    if expected.startswith("!"):
        assert errors_of(result)[0][1].startswith(expected[1:])
    else:
        assert (texts_of(result), errors_of(result)) == ([expected] if expected else [], [])


def test_a_python_function_may_change_namespace_op_and_time() -> None:
    [row] = applied(batch_of(["{ }"]), f.python(move)).batch.to_pylist()
    assert (row["ns"], row["op"], row["ts"].microsecond, row["data"]) == ("sales", "update", 5, "{ }")


def test_a_python_function_gets_values_of_the_right_types() -> None:
    seen: list[object] = []
    text = (
        '{"i":9007199254740993,"f":1.5,"d":0.12345678901234567890,"t":{"$date":"2026-11-16T02:14:14.123456Z"},'
        '"o":{"$oid":"0123456789abcdef01234567"}}'
    )

    def look(message: MutableMessage) -> bool:
        seen.extend(message.data.values())
        return True

    result = applied(batch_of([text]), f.python(look))
    assert texts_of(result) == [text]
    assert seen == [
        9007199254740993, 1.5, Decimal("0.12345678901234567890"),
        dt.datetime(2026, 11, 16, 2, 14, 14, 123456, tzinfo=dt.UTC), ObjectId("0123456789abcdef01234567"),
    ]  # fmt: skip
    later = f.python(lambda message: {"t": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)})
    assert texts_of(applied(batch_of(["{}"]), later)) == ['{"t":{"$date":"2020-01-01T00:00:00Z"}}']


def test_data_that_nobody_asks_for_is_not_read() -> None:
    result = applied(batch_of(["not JSON"] * 2), f.python(lambda message: message))
    assert texts_of(result) == ["not JSON"] * 2
    refused = applied(batch_of(["not JSON"]), f.python(set_n))
    assert errors_of(refused)[0][1].startswith("data is not a JSON object: ")


@settings(deadline=None, max_examples=60)
@given(documents(), st.sampled_from(["new", "deep", "same", "drop"]))
def test_an_edit_of_one_field_leaves_every_other_byte_alone(
    document: tuple[dict[str, str], str], how: str
) -> None:
    def edit(message: MutableMessage) -> MutableMessage:
        data = message.data
        if how == "new":
            data["\x01new"] = 1
        if how == "deep":
            for value in data.values():
                if isinstance(value, list):
                    value.append(None)
        if how == "same":
            message.data = dict(data)
        if how == "drop":
            data.pop("a", None)
        return message

    fields, text = document
    result = applied(batch_of([text]), f.python(edit))
    if errors_of(result):  # a number that no Decimal can be is refused by name, never changed
        assert "Decimal" in errors_of(result)[0][1]
        return
    [after] = texts_of(result)
    expected = {
        name: value
        for name, value in fields.items()
        if not (how == "deep" and value.startswith("[")) and not (how == "drop" and name == "a")
    }
    found = dict(fields_in(after))
    assert {name: found[name] for name in expected} == expected
    assert found.keys() - expected.keys() <= {"\x01new", *fields}
    if how == "same":
        assert after == text


def upper(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.set_column(rows.schema.get_field_index("ns"), "ns", pc.utf8_upper(rows.column("ns")))


def with_data(rows: pa.RecordBatch, texts: list[str | None]) -> pa.RecordBatch:
    return rows.set_column(rows.schema.get_field_index("data"), "data", pa.array(texts, pa.string()))


def poisoned(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Fails for a batch that holds a certain message."""
    if '{"n":1}' in rows.column("data").to_pylist():
        raise ValueError("poison")
    return upper(rows)


TEXTS = [f'{{"n":{n}}}' for n in range(4)]


def test_an_arrow_function_edits_drops_and_repeats() -> None:
    def function(rows: pa.RecordBatch) -> pa.Table:
        return pa.Table.from_batches([upper(rows).slice(2), upper(rows).slice(0, 1), upper(rows).slice(3)])

    result = applied(batch_of(TEXTS), f.arrow(function))
    assert result.batch.column("offset").to_pylist() == [100, 102, 103, 103]
    assert result.batch.column("ns").to_pylist() == ["ORDERS"] * 4
    assert result.batch.column("origin").to_pylist() == ["orders"] * 4
    assert result.counts["step0"] == (4, 3, 1, 0)


def test_columns_that_an_arrow_function_leaves_out_are_those_of_the_message() -> None:
    def function(rows: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"data": ['{"x":1}', '{"y":2}'], "offset": pa.array([102, 101], pa.int32())})

    result = applied(batch_of(TEXTS, ts=7), f.arrow(function))
    assert result.batch.schema.names == ["offset", "ts", "mode", "op", "ns", "key", "data", "origin"]
    assert [(row["offset"], row["data"], row["ts"].microsecond) for row in result.batch.to_pylist()] == [
        (101, '{"y":2}', 7), (102, '{"x":1}', 7)
    ]  # fmt: skip


def test_a_failing_arrow_function_refuses_only_the_messages_to_blame() -> None:
    result = applied(batch_of(TEXTS), f.arrow(poisoned))
    assert result.batch.column("offset").to_pylist() == [100, 102, 103]
    [(offset, error)] = errors_of(result)
    assert offset == FIRST + 1
    assert error.startswith(f"ValueError: poison ({HERE}:")
    assert result.counts["step0"] == (4, 3, 0, 1)


@pytest.mark.parametrize(
    "function, complaint",
    [
        (lambda rows: None, "'<lambda>' returned a value of type NoneType, expected a RecordBatch"),
        (lambda rows: rows.drop_columns(["offset"]), "'<lambda>' returned a batch without 'offset'"),
        (lambda rows: rows.append_column("ns", rows.column("ns")), "a batch with more than one column 'ns'"),
        (
            lambda rows: pa.record_batch({"offset": pa.array([7])}),
            "the function returned the offset 7, which it was not given",
        ),
        (
            lambda rows: pa.record_batch({"offset": pa.array([None], pa.int64())}),
            "the function returned the offset None, which it was not given",
        ),
        (lambda rows: with_data(rows, [None] * rows.num_rows), "the function set data to null"),
        (lambda rows: with_data(rows, ["[1]"] * rows.num_rows), "data is not a JSON object: "),
        (
            lambda rows: rows.set_column(3, "op", pa.array(["updte"] * rows.num_rows)),
            "the function set op to 'updte'; did you mean 'update'?",
        ),
        (lambda rows: rows.set_column(4, "ns", pa.array([""] * rows.num_rows)), "the function set ns to ''"),
        (
            lambda rows: rows.set_column(1, "ts", pa.array(["x"] * rows.num_rows)),
            "the column 'ts' is string, expected timestamp[us, tz=UTC]: ",
        ),
    ],
)
def test_what_an_arrow_function_must_not_return(
    function: Callable[[pa.RecordBatch], Any], complaint: str
) -> None:
    result = applied(batch_of(TEXTS[:2]), f.arrow(function))
    assert result.batch.num_rows == 0
    assert [offset for offset, _ in errors_of(result)] == [100, 101]
    assert complaint in errors_of(result)[0][1]


def test_rows_that_an_arrow_function_skips_are_dropped() -> None:
    skip = f.arrow(lambda rows: rows.set_column(3, "op", pa.array(["skip"] * rows.num_rows)))
    assert applied(batch_of(TEXTS), skip).counts["step0"] == (4, 0, 4, 0)


def test_an_arrow_function_that_gives_up_in_any_way_has_refused_its_messages() -> None:
    for error in (SystemExit(3), asyncio.CancelledError(), GeneratorExit()):
        result = applied(batch_of(TEXTS), f.arrow(raises(error)))
        assert len(errors_of(result)) == len(TEXTS)
        assert errors_of(result)[0][1].startswith(type(error).__name__)


@pytest.mark.parametrize("kind", [f.python, f.arrow])
def test_who_interrupts_a_function_refuses_no_message(kind: Callable[..., Any]) -> None:
    with pytest.raises(KeyboardInterrupt):
        applied(batch_of(["{}"]), kind(raises(KeyboardInterrupt())))


def test_a_function_error_of_a_person_is_told_in_their_words() -> None:
    def refuse(message: object) -> None:
        raise FunctionError("field 'total': is negative")

    for function in (f.python(refuse), f.arrow(refuse)):
        assert errors_of(applied(batch_of(["{}"]), function)) == [(FIRST, "field 'total': is negative")]


async def later(message: object) -> object:
    return message


def several(message: object) -> Any:
    yield message


@pytest.mark.parametrize(
    "given, complaint",
    [
        (None, "expected a Python function, got None"),
        ("slim.py", "expected a Python function, got 'slim.py'"),
        (f.pick, "'pick' is not a function of the "),
        (dict, "'dict' is not a function of the "),
        (lambda: 1, "'<lambda>' cannot be called with one argument, the "),
        (lambda one, two: 1, "'<lambda>' cannot be called with one argument, the "),
        (later, "'later' is a coroutine or a generator"),
        (several, "'several' is a coroutine or a generator"),
    ],
)
@pytest.mark.parametrize("make, name", [(f.python, "python"), (f.arrow, "arrow")])
def test_what_cannot_be_called_is_refused_at_load(
    make: Callable[[Any], object], name: str, given: object, complaint: str
) -> None:
    with pytest.raises(UsageError) as error:
        make(given)
    assert error.value.message.startswith(f"function '{name}': {complaint}")
    assert error.value.hint is not None
    assert f"f.{name}(" in error.value.hint


def test_an_arrow_function_cannot_change_the_namespace_as_logged() -> None:
    """A refusal behind it had no namespace then, and the report of its task could not be read."""
    nameless = f.arrow(lambda batch: batch.set_column(8, "origin", pa.nulls(batch.num_rows, pa.string())))
    rows = batch_of(["{}"])
    rows = rows.add_column(6, "old_key", rows.column("key"))
    [refused] = applied(rows, nameless, f.python(fail)).refused
    assert refused.ns == "orders"


def test_an_exception_that_cannot_tell_itself_is_told_by_its_type() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    def mute(given: object) -> Any:
        raise MuteError

    for function in (f.arrow(mute), f.python(mute)):
        [(_, error)] = errors_of(applied(batch_of(["{}"]), function))
        assert error.startswith(f"MuteError ({HERE}:")
