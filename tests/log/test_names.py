"""Whether a column has one text alone."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.log import names

FEW = st.sampled_from(["", "a", "b", "shop.orders", "shop.ordert", "ünï", None])


@example([], 0, 0)
@example([""] * 3, 0, 0)
@example(["b", "a", "a", "b"], 1, 2)
@example(["ab", "c", "abc"], 0, 3)
@given(st.lists(FEW) | st.lists(st.just("shop.orders"), min_size=1), st.integers(0, 5), st.integers(0, 50))
def test_the_only_text_is_what_all_rows_have(texts: list[str | None], begin: int, count: int) -> None:
    column = pa.array(texts, pa.string()).slice(begin, count)
    rows = texts[begin : begin + count]
    one = rows[0] if len(set(rows)) == 1 else None
    assert names.only(column) == one


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.binary(), pa.null()])
def test_columns_of_another_kind_are_left_to_arrow(kind: pa.DataType) -> None:
    assert (
        names.only(pa.nulls(2, kind) if kind == pa.null() else pa.array(["a", "a"], pa.string()).cast(kind))
        is None
    )
