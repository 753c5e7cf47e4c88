"""Records with a check: whole ones are found, a torn last one is not, and damage in the middle is noticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.checked import CheckedRecords

RECORDS = CheckedRecords(100)
bodies = st.lists(st.binary(min_size=1, max_size=100), max_size=8)


def walked(content: bytes) -> list[bytes]:
    return [body for _, body in RECORDS.walk(content)]


@given(bodies, st.data())
def test_of_a_file_cut_anywhere_the_whole_records_are_left(written: list[bytes], data: st.DataObject) -> None:
    records = [RECORDS.encode(body) for body in written]
    content = b"".join(records)
    cut = data.draw(st.integers(0, len(content)))
    whole = 0
    while whole < len(records) and sum(map(len, records[: whole + 1])) <= cut:
        whole += 1
    assert walked(content[:cut]) == written[:whole]
    end = sum(map(len, records[:whole]))
    assert not RECORDS.is_followed(content[:cut], end)


@given(st.lists(st.binary(min_size=1, max_size=100), min_size=2, max_size=4), st.data())
def test_a_damaged_body_is_told_from_a_torn_end(written: list[bytes], data: st.DataObject) -> None:
    records = [bytearray(RECORDS.encode(body)) for body in written]
    which = data.draw(st.integers(0, len(records) - 1))
    records[which][-1] ^= 1 << data.draw(st.integers(0, 7))
    content = b"".join(records)
    assert walked(content) == written[:which]
    at = sum(map(len, records[:which]))
    assert RECORDS.is_followed(content, at) is (which < len(records) - 1)


@pytest.mark.parametrize("length", [0, 101, 0xFFFF_FFFF])
def test_a_length_that_cannot_be_is_no_record(length: int) -> None:
    content = length.to_bytes(4, "big") + bytes(4) + bytes(200)
    assert walked(content) == []
    assert not RECORDS.is_followed(content, 0)
