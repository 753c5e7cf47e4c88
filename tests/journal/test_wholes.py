"""Batches of appends without protobuf: the same message, and everything else as before."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from penstock.journal import wholes
from penstock.journal.labels import label_set, parse_selector
from penstock.journal.protocol import AppendBatch, AppendRequest, Header
from penstock.journal.wholes import Pieces, Whole, Wholes

FIRSTS = st.builds(
    AppendRequest,
    journal=st.sampled_from(["", "a/journal", "x" * 300]),
    do_not_proxy=st.booleans(),
    offset=st.sampled_from([0, 1, 1 << 40, (1 << 63) - 1, -1]),
    check_registers=st.sampled_from([None, parse_selector("epoch=2")]),
    union_registers=st.sampled_from([None, label_set({"a": "b"})]),
    header=st.sampled_from([None, Header(process_id=Header().process_id)]),
    suspend=st.sampled_from([0, 3]),
    min_etcd_revision=st.sampled_from([0, 7, 1 << 62]),
)
CONTENTS = st.sampled_from([b"", b"x", b"y" * 127, b"z" * 128, b"\x22\x01" * 3000, b"\0" * 20000])
BATCHES = st.builds(
    Wholes, st.lists(st.builds(Whole, FIRSTS, CONTENTS), max_size=4), st.booleans(), st.booleans()
)


def message(batch: AppendBatch | Wholes) -> AppendBatch:
    if isinstance(batch, AppendBatch):
        return batch
    appends = [append.request() for append in batch.appends]
    return AppendBatch(appends=appends, independent=batch.independent, unsummed=batch.unsummed)


@given(BATCHES)
def test_a_batch_is_the_message_that_protobuf_reads(batch: Wholes) -> None:
    encoded = wholes.encode(batch)
    assert AppendBatch.FromString(encoded) == message(batch)
    assert message(wholes.decode(encoded)) == message(batch)


@given(BATCHES)
def test_what_protobuf_writes_is_read_without_a_copy_of_the_content(batch: Wholes) -> None:
    encoded = message(batch).SerializeToString()
    decoded = wholes.decode(encoded)
    assert message(decoded) == message(batch)
    assert wholes.wholes(message(batch)) == wholes.wholes(batch)
    if isinstance(decoded, Wholes):
        for append in decoded.appends:
            assert not append.content or (
                isinstance(append.content, memoryview) and append.content.obj is encoded
            )


@given(FIRSTS, st.lists(CONTENTS, max_size=4))
def test_content_in_pieces_is_the_message_of_the_whole_content(
    first: AppendRequest, parts: list[bytes]
) -> None:
    pieces, together = Pieces(parts), b"".join(parts)
    assert len(pieces) == len(together)
    assert wholes.encode(Wholes([Whole(first, pieces)])) == wholes.encode(Wholes([Whole(first, together)]))
    assert Whole(first, pieces).request() == Whole(first, together).request()


def test_a_large_batch_of_the_appender_is_read_without_protobuf() -> None:
    sent = Wholes([Whole(AppendRequest(journal="a/journal"), b"x" * 5000)] * 2, unsummed=True)
    assert isinstance(wholes.decode(wholes.encode(sent)), Wholes)


@given(st.binary(max_size=60), st.integers(0, 5100), st.binary(max_size=3))
def test_any_bytes_are_read_as_protobuf_reads_them(put: bytes, at: int, tail: bytes) -> None:
    good = wholes.encode(
        Wholes([Whole(AppendRequest(journal="a/journal", offset=9), b"x" * 5000)], True, True)
    )
    at = min(at, 40) if at % 2 else at
    for data in (good[:at] + put + good[at + len(put) :] + tail, good + put, put + good):
        expected = read(AppendBatch.FromString, data)
        assert read(lambda raw: message(wholes.decode(raw)), data) == expected


def read(how: Callable[[bytes], AppendBatch], data: bytes) -> AppendBatch | None:
    try:
        return how(data)
    except Exception:  # noqa: BLE001 - protobuf's own error, of whichever implementation
        return None
