"""Content without protobuf: the same bytes, and everything else as before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.journal import chunks
from penstock.journal.chunks import Content
from penstock.journal.protocol import AppendRequest, LabelSet


@pytest.mark.parametrize("size", [1, 127, 128, 4095, 4096, 16383, 16384, 1 << 20, (4 << 20) - 10])
def test_content_is_encoded_as_protobuf_does_it(size: int) -> None:
    content = b"x" * size
    encoded = chunks.encode(Content(memoryview(content)))
    assert encoded == AppendRequest(content=content).SerializeToString()
    decoded = chunks.decode(encoded)
    assert isinstance(decoded, Content) == (len(encoded) >= 4096)
    assert chunks.whole(decoded) == AppendRequest(content=content)


@given(st.binary(max_size=100), st.integers(0, 1 << 40), st.booleans())
def test_what_has_more_than_content_goes_through_protobuf(tail: bytes, offset: int, registers: bool) -> None:
    request = AppendRequest(content=b"x" * 5000, offset=offset or 1, journal="a/journal")
    if registers:
        request.union_registers.CopyFrom(LabelSet())
    assert chunks.decode(chunks.encode(request)) == request


@given(st.binary(max_size=100), st.binary(max_size=20))
def test_any_bytes_are_read_as_protobuf_reads_them(head: bytes, tail: bytes) -> None:
    data = head + b"x" * 4096 + tail
    for candidate in (data, b"\x22" + data, b"\x22\x80\x20" + data, b"\x22" + b"\xff" * 10 + data):
        try:
            expected: AppendRequest | None = AppendRequest.FromString(candidate)
        except Exception:  # noqa: BLE001 - protobuf's own error, of whichever implementation
            expected = None
        try:
            found: AppendRequest | None = chunks.whole(chunks.decode(candidate))
        except Exception:  # noqa: BLE001
            found = None
        assert found == expected
