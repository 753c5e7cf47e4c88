"""The chain: who is asked about what, in which order, and what stays as it was."""

from __future__ import annotations

import pickle
import re
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import functions as f
from penstock.functions.base import Editable, Function, FunctionError
from penstock.functions.chain import LONGEST_REASON, Chain, Refused, Step
from penstock.functions.python import MutableMessage

from .messages import Everything, applied, batch_of

TIME = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class Pattern:
    """A namespace matcher that remembers what it was asked."""

    text: str = ""
    asked: list[str] = field(default_factory=list, compare=False)

    def matches(self, ns: str) -> bool:
        self.asked.append(ns)
        return re.search(self.text, ns) is not None


@dataclass(frozen=True)
class Shout(Function):
    """A function as a person may write it: touches everything there is."""

    name: ClassVar[str] = "shout"
    description: ClassVar[str] = "upper case"

    def apply(self, message: Editable) -> bool:
        message.ns = message.ns.upper()
        message.op = "update" if message.op == "insert" else message.op
        message.ts += 1
        return "drop" not in message.fields


@dataclass(frozen=True)
class Fails(Function):
    name: ClassVar[str] = "fails"
    description: ClassVar[str] = "raises"

    def apply(self, message: Editable) -> bool:
        if "named" in message.fields:
            raise FunctionError("no such thing")
        if "bug" in message.fields:
            raise KeyError("bug")
        message.op = "skip" if "skip" in message.fields else message.op
        return True


@dataclass(frozen=True)
class Sets(Function):
    """Sets an attribute to whatever it is told."""

    name: ClassVar[str] = "sets"
    description: ClassVar[str] = "sets"
    attribute: str
    value: object

    def apply(self, message: Editable) -> bool:
        setattr(message, self.attribute, self.value)
        return True


def batch(*rows: tuple[str, str], op: str = "insert", text: pa.DataType | None = None) -> pa.RecordBatch:
    """Rows of (namespace, data), with offsets from 100 on."""
    kind = text or pa.string()
    size = len(rows)
    return pa.record_batch(
        {
            "offset": pa.array(range(100, 100 + size), pa.int64()),
            "ts": pa.array(range(size), pa.int64()).cast(TIME),
            "mode": pa.array(["copy"] * size, kind),
            "op": pa.array([op] * size, kind),
            "ns": pa.array([ns for ns, _ in rows], kind),
            "key": pa.array([None] * size, kind),
            "data": pa.array([data for _, data in rows], kind),
        }
    )


def step(function: Function, pattern: str = "", name: str = "node") -> Step:
    return Step(name, function, Pattern(pattern))


def run(rows: pa.RecordBatch, *steps: Step, sink: str = "") -> tuple[pa.RecordBatch, list[Refused]]:
    return Chain(steps).apply(rows, Pattern(sink))[:2]


def shown(rows: pa.RecordBatch) -> list[tuple[int, str, str, str]]:
    columns = (rows.column(name).to_pylist() for name in ("offset", "ns", "origin", "data"))
    return list(zip(*columns, strict=True))


def test_without_functions_a_batch_passes_in_the_same_memory() -> None:
    rows = batch(("orders", '{"a":1}'), ("items", '{"b":2}'))
    out, refused = run(rows)
    assert out.schema.names == [*rows.schema.names, "origin"]
    assert refused == []
    for name in rows.schema.names:
        before, after = rows.column(name).buffers(), out.column(name).buffers()
        assert [b and b.address for b in after] == [b and b.address for b in before]
    assert out.column("origin").buffers()[2].address == rows.column("ns").buffers()[2].address


def test_an_empty_batch_passes() -> None:
    out, refused = run(batch(), step(f.pick(fields=["a"])))
    assert out.num_rows == 0
    assert "origin" in out.schema.names
    assert refused == []


def test_each_distinct_namespace_is_asked_about_once() -> None:
    rows = batch(*[("orders" if n % 2 else "items", "{}") for n in range(100)])
    sink, filtered = Pattern(), Pattern("orders")
    Chain([Step("a", f.remap(ns_map={}), filtered)]).apply(rows, sink)
    assert sorted(sink.asked) == ["items", "orders"]
    assert sorted(set(filtered.asked)) == ["items", "orders"]
    assert len(filtered.asked) <= 4


def test_the_sinks_filter_sees_the_namespace_as_logged_and_functions_the_current_one() -> None:
    rows = batch(("orders", '{"a":1,"b":2}'), ("items", '{"a":1,"b":2}'), ("other", '{"a":1}'))
    out, _ = run(
        rows,
        step(f.remap(ns_map={"orders": "sales", "items": "sales"}), "orders"),
        step(f.omit(fields=["a"]), "sales"),
        step(f.omit(fields=["b"]), "orders"),
        sink="orders|items",
    )
    assert shown(out) == [
        (100, "sales", "orders", '{"b":2}'),
        (101, "items", "items", '{"a":1,"b":2}'),
    ]


def test_rows_that_no_function_means_keep_their_very_text() -> None:
    text = '{ "a" : 1.00 ,\t"b":"\\u0041" }'
    out, _ = run(batch(("items", text), ("orders", text)), step(f.pick(fields=["a"]), "orders"))
    assert out.column("data").to_pylist() == [text, '{"a":1.00}']


def test_functions_are_applied_in_their_order() -> None:
    rename, pick = f.rename(field_map={"a": "b"}), f.pick(fields=["b"])
    rows = batch(("x", '{"a":1,"b":2}'))
    assert run(rows, step(rename), step(pick))[0].column("data").to_pylist() == ['{"b":1}']
    assert run(rows, step(pick), step(rename))[0].column("data").to_pylist() == ['{"b":2}']


def test_commands_are_given_to_no_function() -> None:
    out, refused = run(batch(("x", '{"a":1}'), op="command"), step(Shout()), step(f.omit(fields=["a"])))
    assert shown(out) == [(100, "x", "x", '{"a":1}')]
    assert refused == []


def test_a_function_may_change_namespace_op_and_time_and_drop() -> None:
    rows = batch(("x", '{"a":1}'), ("y", '{"drop":1}'), ("z", '{ "c":1}'))
    out, refused = run(
        rows, step(Shout(), "x|y"), step(f.omit(fields=["a"]), "X"), step(f.omit(fields=["c"]), "Z")
    )
    assert shown(out) == [(100, "X", "x", "{}"), (102, "z", "z", '{ "c":1}')]
    assert out.column("op").to_pylist() == ["update", "insert"]
    assert out.column("ts").cast(pa.int64()).to_pylist() == [1, 2]
    assert refused == []
    assert out.schema.field("ts").type == TIME


def test_what_cannot_be_decided_is_refused_by_offset_and_node() -> None:
    rows = batch(
        ("x", '{"n":1}'),
        ("x", '{"named":1}'),
        ("y", '{"n":true}'),
        ("x", '{"bug":1}'),
        ("x", "[]"),
        ("y", '{"skip":1}'),
    )
    out, refused = run(
        rows,
        step(f.skip(field="n", operator=">", match=0), "y", "late"),
        step(Fails(), "x", "mine"),
        step(f.omit(fields=["n"]), name="last"),
    )
    assert shown(out) == [(100, "x", "x", "{}")]
    assert [(one.offset, one.ns, one.node) for one in refused] == [
        (101, "x", "mine"), (102, "y", "late"), (103, "x", "mine"), (104, "x", "mine"), (105, "y", "late")
    ]  # fmt: skip
    assert refused[0].error == "no such thing"
    assert refused[2].error == "KeyError: 'bug'"
    assert refused[3].error.startswith("data is not a JSON object")


@pytest.mark.parametrize(
    "name, value, complaint",
    [
        ("ns", "", "the function set ns to '', a name is wanted"),
        ("ns", 5, "the function set ns to 5, a name is wanted"),
        ("ts", "now", "the function set ts to 'now', microseconds since 1970 are wanted"),
        ("op", "updated", "the function set op to 'updated'; did you mean 'update'?"),
        ("op", None, "the function set op to None"),
    ],
)
def test_what_no_column_can_hold_is_refused(name: str, value: object, complaint: str) -> None:
    out, refused = run(batch(("x", "{}")), step(Sets(name, value)))
    assert out.num_rows == 0
    assert refused[0].error.startswith(complaint)


def test_refusals_name_the_namespace_as_logged() -> None:
    _, refused = run(batch(("x", "[]")), step(f.remap(ns_map={"x": "y"})), step(f.omit(fields=["a"])))
    assert refused[0].ns == "x"


def test_an_op_of_skip_drops_the_message() -> None:
    assert run(batch(("x", '{"skip":1}')), step(Fails()))[0].num_rows == 0


def test_a_document_nested_beyond_reason_is_refused() -> None:
    _, refused = run(batch(("x", '{"a":' + "[" * 100_000 + "]" * 100_000 + "}")), step(f.omit(fields=["a"])))
    assert refused[0].error.startswith("RecursionError")


def test_large_strings_stay_large_strings() -> None:
    rows = batch(("x", '{"a":1,"b":2}'), ("y", "{}"), text=pa.large_string())
    out, _ = run(rows, step(f.pick(fields=["a"]), "x"), step(f.remap(ns_map={"x": "z"})))
    assert shown(out) == [(100, "z", "x", '{"a":1}'), (101, "y", "y", "{}")]
    assert out.schema.field("data").type == out.schema.field("ns").type == pa.large_string()


def test_a_slice_of_a_batch_is_as_good_as_a_batch() -> None:
    rows = batch(*[(f"n{n % 3}", f'{{"a":{n}}}') for n in range(20)]).slice(7, 5)
    out, _ = run(rows, step(f.rename(field_map={"a": "b"}), "n1"))
    assert out.column("offset").to_pylist() == [107, 108, 109, 110, 111]
    assert out.column("data").to_pylist() == ['{"b":7}', '{"a":8}', '{"a":9}', '{"b":10}', '{"a":11}']


def test_a_chain_survives_pickling() -> None:
    chain = Chain([step(f.skip(field="a", operator="=~", match="x"), "x"), step(Shout())])
    rows = batch(("x", '{"a":"x"}'), ("x", '{"a":"y"}'))
    before = shown(chain.apply(rows, Pattern())[0])
    assert shown(pickle.loads(pickle.dumps(chain)).apply(rows, Pattern())[0]) == before


def test_each_step_counts_what_it_was_asked_about_let_through_dropped_and_refused() -> None:
    rows = batch(("x", '{"n":1}'), ("x", '{"n":2}'), ("y", '{"n":3}'), ("x", '{"n":true}'), ("z", "[]"))
    counts = (
        Chain(
            [
                step(f.skip(field="n", operator=">", match=1), "x", "big"),
                step(f.remap(ns_map={"x": "z"}), "x", "move"),
                step(f.opfilter(blacklist=["insert"]), "y", "ops"),
                step(f.omit(fields=["n"]), "z", "slim"),
                step(f.arrow(lambda rows: rows.slice(0, 1)), "z", "first"),
                step(f.omit(fields=["n"]), "none", "none"),
            ]
        )
        .apply(rows, Pattern())
        .counts
    )
    assert counts == {
        "big": (3, 1, 1, 1),
        "move": (1, 1, 0, 0),
        "ops": (1, 0, 1, 0),
        "slim": (2, 1, 0, 1),
        "first": (1, 1, 0, 0),
        "none": (0, 0, 0, 0),
    }


def test_a_message_of_several_rows_counts_once_and_is_refused_as_a_whole() -> None:
    rows = batch(("x", '{"n":1}'), ("x", '{"n":2}'), ("x", '{"n":3}'))
    twice = f.arrow(lambda rows: pa.concat_batches([rows, rows.slice(0, 2)]))
    second = iter(range(100))

    def refuse_the_second_row(message: MutableMessage) -> MutableMessage | None:
        if next(second) == 1:
            raise FunctionError("once is enough")
        return message if message.data["n"] != 2 else None

    out, refused, counts = Chain(
        [
            step(twice, name="twice"),
            step(f.python(refuse_the_second_row), name="once"),
            step(Shout(), name="last"),
        ]
    ).apply(rows, Pattern())
    assert out.column("offset").to_pylist() == [102]
    assert [(one.offset, one.error) for one in refused] == [(100, "once is enough")]
    assert counts["twice"] == (3, 3, 0, 0)
    assert counts["once"] == (3, 1, 1, 1)


namespaces = st.sampled_from(["orders", "items", "users"])
texts = st.sampled_from(['{"a":1,"b":2}', '{ "a": 1.0 }', '{"b":"x"}', "{}", "[]", '{"a":11}'])
functions = st.sampled_from(
    [
        f.omit(fields=["a"]),
        f.pick(fields=["b", "a"]),
        f.rename(field_map={"a": "b", "b": "a"}),
        f.remap(ns_map={"orders": "items", "items": "users"}),
        f.skip(field="a", operator=">", match=1),
        f.opfilter(blacklist=["insert"]),
        f.python(lambda message: {**message.data, "a": 12}),
        f.arrow(lambda rows: rows),
        Shout(),
    ]
)
patterns = st.sampled_from(["", "orders", "items|users", "USERS", "none"])


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(namespaces, texts), max_size=8),
    st.lists(st.builds(Step, st.sampled_from("abc"), functions, st.builds(Pattern, patterns)), max_size=3),
    patterns,
)
def test_a_batch_goes_the_way_that_its_messages_would_go_one_by_one(
    rows: list[tuple[str, str]], steps: list[Step], sink: str
) -> None:
    expected, refused = [], []
    for offset, (origin, text) in enumerate(rows, 100):
        message = Editable(origin, "insert", 0, text)
        try:
            if Pattern(sink).matches(origin) and all(
                not one.accept.matches(message.ns) or one.function.apply(message) for one in steps
            ):
                final = message.text()
                expected.append(
                    (offset, message.ns, origin, final if isinstance(final, str) else final.decode())
                )
        except FunctionError:
            refused.append(offset)
    out, named, counts = Chain(steps).apply(batch(*rows), Pattern(sink))
    assert shown(out) == expected
    assert [one.offset for one in named] == refused
    for count in counts.values():
        assert count.into == count.out + count.dropped + count.refused
    assert sum(count.refused for count in counts.values()) == len(refused)


@pytest.mark.parametrize("size", [1, 1000])
def test_dropping_everything_leaves_an_empty_batch(size: int) -> None:
    out, refused = run(batch(*[("x", "{}")] * size), step(f.skip(field="a", operator="==", match=1)))
    assert (out.num_rows, refused) == (0, [])
    assert out.schema.names[-1] == "origin"


@pytest.mark.parametrize(
    "column, value, complaint",
    [
        ("op", None, "the function set op to null"),
        ("op", "upsert", "the function set op to 'upsert'"),
        ("ns", None, "the function set ns to null"),
        ("ns", "", "the function set ns to '', a name is wanted"),
        ("ts", None, "the function set ts to null"),
        ("mode", None, "the function set mode to null"),
        ("data", None, "data is null"),
    ],
)
def test_what_a_dataframe_function_made_unusable_is_refused_under_its_name(
    column: str, value: str | None, complaint: str
) -> None:
    """With a null in it the row was left out by some sinks without a word, and counted as delivered."""
    rows = batch_of(["{}", "{}", "{}"])
    values = rows.column(column).to_pylist()
    values[1] = value
    index = rows.schema.get_field_index(column)
    spoilt = pa.array(values, rows.schema.field(index).type)
    rows = rows.append_column("origin", rows.column("ns")).set_column(index, column, spoilt)
    result = Chain([], behind="odd").apply(rows, Everything())
    [refused] = result.refused
    assert (refused.offset, refused.ns, refused.node) == (101, "orders", "odd")
    assert refused.error.startswith(complaint)
    assert result.batch.column("offset").to_pylist() == [100, 102]


def test_a_message_of_several_rows_is_refused_as_a_whole_and_a_skipped_row_is_dropped() -> None:
    rows = batch_of(["{}"] * 4, op=["insert", "upsert", "skip", "insert"])
    rows = rows.set_column(0, "offset", pa.array([7, 7, 8, 8], pa.int64()))
    result = Chain([], behind="odd").apply(rows, Everything())
    assert [refused.offset for refused in result.refused] == [7]
    assert result.batch.column("offset").to_pylist() == [8]
    assert Chain([]).apply(rows, Everything()).batch.num_rows == 4


def test_of_a_reason_without_end_as_much_is_told_as_dead_letters_hold() -> None:
    """A function may put the whole document into its error, and a thousand of them into the report of one task."""
    [refused] = applied(batch_of(["{}"]), f.python(lambda message: message.data["x" * 1_000_000])).refused
    assert len(refused.error) == LONGEST_REASON
    assert refused.error.startswith("KeyError: ")
