"""Declared fields in a checkpoint: as they were, in pieces, for classes that have changed, and of the format before."""

from __future__ import annotations

import datetime as dt
import enum
import io
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from types import GenericAlias
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.errors import CorruptError
from penstock.immortal import Immortal, field
from penstock.immortal.binding import fields, snapshot
from penstock.immortal.binding.app import make, spec_of
from penstock.immortal.binding.errors import UnkeptError
from penstock.immortal.binding.machine import Machine
from penstock.immortal.binding.snapshot import Runtime


class Row(msgspec.Struct):
    text: str
    sizes: list[int] = []


class Rows(Immortal):
    table: dict[int, Row] = field(dict)
    line: list[str] = field(list)
    one: Row = field(lambda: Row(""))
    maybe: dict[str, int] | None = None
    last: int = 0


class Grown(Immortal):
    """`Rows` with a field more and some less."""

    table: dict[int, Row] = field(dict)
    more: int = 7


def machine(cls: type[Immortal] = Rows) -> Machine:
    return Machine(cls, "rows", now=lambda: 1.0)


def values_of(it: Machine) -> dict[str, Any]:
    found: dict[str, Any] = it.instance.__dict__["_values"]
    return found


def written(values: dict[str, Any]) -> bytes:
    it = machine()
    values_of(it).update(values)
    file, length = snapshot.write(it.runtime, it.spec, it.instance)
    with file:
        data = file.read()
    assert len(data) == length
    return data


@given(
    st.dictionaries(st.integers(-9, 900), st.builds(Row, st.text(max_size=9), st.lists(st.integers(0, 9)))),
    st.lists(st.text(max_size=3)),
    st.none() | st.dictionaries(st.text(), st.integers(0, 9)),
    st.sampled_from([1, 10, 1 << 20]),
)
def test_fields_are_read_as_they_were_written_however_they_are_cut(
    table: dict[int, Row], line: list[str], maybe: dict[str, int] | None, piece: int
) -> None:
    values = {"table": table, "line": line, "one": Row("x", [1]), "maybe": maybe, "last": 3}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fields, "PIECE", piece)
        patch.setattr(fields, "_FIRST", 1)
        data = written(values)
    again = machine()
    again.load(io.BytesIO(data))
    assert values_of(again) == values
    assert list(values_of(again)["table"]) == list(table), "in the order in which they were"


@contextmanager
def at_most(extra: int) -> Iterator[None]:
    """So many bytes more than what there is before."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < extra
    finally:
        tracemalloc.stop()


def test_a_checkpoint_of_declared_fields_needs_no_room_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "IN_MEMORY", 1 << 20)
    it = machine()
    text = "x" * 10_000
    values_of(it)["table"] = {number: Row(f"{number}{text}") for number in range(4000)}
    values_of(it)["line"] = [f"{number}{text}" for number in range(4000)]
    with at_most(16 << 20):
        file, length = snapshot.write(it.runtime, it.spec, it.instance)
    assert length > 80_000_000
    again = machine()
    with file, at_most(length + (16 << 20)):
        again.load(file)
    assert values_of(again) == values_of(it)


def test_a_class_may_grow_fields_and_lose_some() -> None:
    data = written({"table": {1: Row("a")}, "line": ["gone"]})
    file = io.BytesIO(data)
    _, version = snapshot.read(file)
    spec = spec_of(Grown)
    grown = make(spec, machine())
    snapshot.read_state(file, version, spec, grown)
    assert grown.__dict__["_values"] == {"table": {1: Row("a")}, "more": 7}


def test_the_format_before_is_read_and_a_later_one_is_refused() -> None:
    runtime = msgspec.msgpack.encode(Runtime(app="Rows/0", name="rows", inputs=5))
    state = msgspec.msgpack.encode({"table": {1: {"text": "a"}}, "last": 3})
    rest = len(runtime).to_bytes(8, "little") + runtime + len(state).to_bytes(8, "little") + state
    again = machine()
    again.load(io.BytesIO(b"PSIM\x01" + rest))
    assert values_of(again)["table"] == {1: Row("a")}
    assert (values_of(again)["last"], again.runtime.inputs) == (3, 5)
    with pytest.raises(CorruptError, match="format 9; this version reads up to 2"):
        machine().load(io.BytesIO(b"PSIM\x09" + rest))


@pytest.mark.parametrize("cut", [3, 20])
def test_a_checkpoint_that_breaks_off_or_does_not_fit_is_refused(cut: int) -> None:
    data = written({"table": {1: Row("a")}})
    with pytest.raises(CorruptError, match="the state does not fit Rows"):
        machine().load(io.BytesIO(data[:-cut]))


def test_a_checkpoint_of_a_class_whose_field_was_declared_as_something_else_is_refused() -> None:
    it = holding(int | str, "text")
    file, _ = snapshot.write(it.runtime, it.spec, it.instance)
    with pytest.raises(CorruptError, match="the state does not fit Odd: Expected `int`, got `str`"):
        holding(int, 0).load(file)


class Shade(enum.StrEnum):
    DARK = "dark"


class Rank(enum.IntEnum):
    FIRST = 1


class Pair(NamedTuple):
    left: int
    right: str = ""


@dataclass
class Base:
    n: int = 0


@dataclass
class More(Base):
    extra: int = 0


def holding(hint: Any, value: Any) -> Machine:
    """One of a class whose only field is declared as `hint`."""
    cls = type("Odd", (Immortal,), {"__annotations__": {"it": hint}, "it": None, "__module__": __name__})
    it = Machine(cls, "odd", now=lambda: 1.0)
    values_of(it)["it"] = value
    return it


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-9, 9),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.decimals(allow_nan=False),
    st.datetimes(),
    st.dates(),
    st.timedeltas(),
    st.sampled_from([Shade.DARK, Rank.FIRST, Pair(1), 1 << 64, "1", "\ud800", (1, 2), (1, "a")]),
)
anything = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(scalars, inner, max_size=3),
        st.builds(Base, inner),
        st.builds(More, inner, inner),
        st.builds(Row, inner, inner),
    ),
    max_leaves=8,
)
hints = st.recursive(
    st.sampled_from(
        [
            bool,
            int,
            float,
            str,
            bytes,
            Decimal,
            dt.datetime,
            dt.date,
            dt.timedelta,
            Shade,
            Rank,
            Pair,
            Base,
            Row,
            Any,
        ]
    ),
    lambda inner: st.one_of(
        inner.map(lambda hint: GenericAlias(list, hint)),
        inner.map(lambda hint: GenericAlias(tuple, (hint, ...))),
        inner.map(lambda hint: hint | None),
        st.tuples(st.sampled_from([str, int, float, bytes, Shade, tuple[int, int], Any]), inner).map(
            lambda both: GenericAlias(dict, both)
        ),
    ),
    max_leaves=3,
)


@settings(max_examples=300)
@given(hint=hints, value=anything)
def test_whatever_a_field_holds_is_read_back_or_refused_before_it_is_written(hint: Any, value: Any) -> None:
    it = holding(hint, value)
    try:
        file, _ = snapshot.write(it.runtime, it.spec, it.instance)
    except UnkeptError:
        return
    again = holding(hint, "nothing")
    again.load(file)
    found = values_of(again)["it"]
    if isinstance(value, dict) and isinstance(found, dict):
        assert len(found) == len(value)


@pytest.mark.parametrize(
    ("hint", "value", "told"),
    [
        (dict[str, int], {5: 1}, "dict[str, int]"),
        (dict[str, int], {Decimal(1): 1, "1": 2}, "dict[str, int]"),
        (dict[int, int], {True: 1}, "dict[int, int]"),
        (int, True, "int"),
        (int, 1.0, "int"),
        (int | str, 1.5, "int | str"),
        (list[Row], [Row("x", "no list")], "Row"),  # type: ignore[arg-type]
        (Base, More(1, 2), "Base"),
        (list[Base], [More(1, 2)], "Base"),
    ],
)
def test_what_would_come_back_as_less_or_not_at_all_is_refused(hint: Any, value: Any, told: str) -> None:
    it = holding(hint, value)
    with pytest.raises(UnkeptError, match=r"Odd\.it holds something that no checkpoint can keep") as no:
        snapshot.write(it.runtime, it.spec, it.instance)
    assert told in str(no.value.hint)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (float, 1),
        (list[float], [1, 2.5, float("nan")]),
        (dict[float, int], {1: 1, float("nan"): 2}),
        (dict[str, int], {Shade.DARK: 1}),
        (tuple[int, ...], [1, 2]),
        (Pair, Pair(1, "x")),
        (Decimal, 1),
        (Row | None, None),
    ],
)
def test_what_comes_back_as_its_annotation_says_is_kept(hint: Any, value: Any) -> None:
    it = holding(hint, value)
    file, _ = snapshot.write(it.runtime, it.spec, it.instance)
    holding(hint, "nothing").load(file)
