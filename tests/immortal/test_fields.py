"""Declared fields in a checkpoint: as they were, in pieces, for classes that have changed, and of the format before."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.errors import CorruptError
from penstock.immortal import Immortal, field
from penstock.immortal.binding import fields, snapshot
from penstock.immortal.binding.app import make, spec_of
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
    with pytest.raises(CorruptError, match="the state does not fit Rows: Expected `int`, got `str`"):
        machine().load(io.BytesIO(written({"last": "text"})))
