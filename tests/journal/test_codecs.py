"""Fragment codecs: round trips, what other programs write and read, and damage (reference, 19)."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import random
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise

import cramjam
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.disk import Buffer
from penstock.base.errors import CorruptError, UsageError
from penstock.journal.codecs import BLOCK, compressed, content_encoding, decompressed, decompressed_chunks
from penstock.journal.fragment import Codec

CODECS = [codec for codec in Codec if codec is not Codec.INVALID]
PACKING = [codec for codec in CODECS if codec is not Codec.NONE]
GZIPS = [Codec.GZIP, Codec.GZIP_OFFLOAD_DECOMPRESSION]
SNAPPY_HEADER = b"\xff\x06\x00\x00sNaPpY"
RECORDS = b"".join(b'{"id": %d, "name": "record %d"}\n' % (i, i * i) for i in range(40_000))  # > 1 MiB
NOISE = random.Random(7).randbytes(300_000)


def pack(codec: Codec, content: bytes) -> bytes:
    return b"".join(compressed(codec, [content]))


def unpack(codec: Codec, stored: bytes) -> bytes:
    with decompressed(codec, io.BytesIO(stored)) as file:
        return file.read()


def split(content: bytes, cuts: list[int]) -> Iterator[bytes]:
    edges = [0, *sorted(cut % (len(content) + 1) for cut in cuts), len(content)]
    return (content[a:b] for a, b in pairwise(edges))


CONTENT = st.one_of(
    st.binary(max_size=5_000),
    st.builds(lambda piece, times: piece * times, st.binary(max_size=300), st.integers(0, 3_000)),
    st.builds(lambda seed, size: random.Random(seed).randbytes(size), st.integers(), st.integers(0, 200_000)),
)
CUTS = st.lists(st.integers(0, 1 << 20), max_size=6)


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=40, deadline=None)
@given(content=CONTENT, cuts=CUTS, stored_cuts=CUTS, sizes=st.lists(st.integers(1, 200_000), min_size=1))
def test_what_was_compressed_in_any_pieces_reads_back_in_any_pieces(
    codec: Codec, content: bytes, cuts: list[int], stored_cuts: list[int], sizes: list[int]
) -> None:
    stored = b"".join(compressed(codec, split(content, cuts)))
    assert b"".join(decompressed_chunks(codec, split(stored, stored_cuts))) == content
    read = bytearray()
    with decompressed(codec, io.BytesIO(stored)) as file:
        turn = 0
        while piece := file.read(sizes[turn % len(sizes)]):
            read += piece
            turn += 1
    assert read == content


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("content", [b"", b"x", RECORDS, NOISE, bytes(3 * BLOCK)], ids=len)
def test_sizes_around_the_blocks(codec: Codec, content: bytes) -> None:
    views: list[Buffer] = [memoryview(content)[:7], bytearray(content[7:])]
    assert unpack(codec, b"".join(compressed(codec, views))) == content


FOREIGN_READERS: list[tuple[Codec, Callable[[bytes], bytes]]] = [
    (Codec.GZIP, gzip.decompress),
    (Codec.GZIP_OFFLOAD_DECOMPRESSION, lambda stored: zlib.decompress(stored, 31)),
    (Codec.ZSTANDARD, lambda stored: zstandard.ZstdDecompressor().decompressobj().decompress(stored)),
    (Codec.ZSTANDARD, lambda stored: bytes(cramjam.zstd.decompress(stored))),
    (Codec.SNAPPY, lambda stored: bytes(cramjam.snappy.decompress(stored))),
]


@pytest.mark.parametrize(("codec", "read"), FOREIGN_READERS)
@pytest.mark.parametrize("content", [b"", b"x", RECORDS, NOISE], ids=len)
def test_other_programs_read_what_we_write(
    codec: Codec, read: Callable[[bytes], bytes], content: bytes
) -> None:
    assert read(pack(codec, content)) == content


def zstd_with(**options: object) -> Callable[[bytes], bytes]:
    def write(content: bytes) -> bytes:
        return zstandard.ZstdCompressor(**options).compress(content)  # type: ignore[arg-type]

    return write


def zstd_unsized(content: bytes) -> bytes:
    """As a program writes that does not know the length: the frame's header lacks it."""
    frame = zstandard.ZstdCompressor(level=9).compressobj()
    return frame.compress(content) + frame.flush()


FOREIGN_WRITERS: list[tuple[Codec, Callable[[bytes], bytes]]] = [
    (Codec.GZIP, gzip.compress),
    (Codec.GZIP, lambda content: gzip.compress(content[:9]) + gzip.compress(content[9:])),
    (Codec.GZIP_OFFLOAD_DECOMPRESSION, gzip.compress),
    (Codec.ZSTANDARD, zstd_with()),
    (Codec.ZSTANDARD, zstd_with(write_checksum=True)),
    (Codec.ZSTANDARD, zstd_with(write_content_size=False)),
    (Codec.ZSTANDARD, zstd_with(level=1, threads=2)),
    (Codec.ZSTANDARD, zstd_unsized),
    (Codec.ZSTANDARD, lambda content: zstd_unsized(content[:9]) + zstd_with()(content[9:])),
    (Codec.ZSTANDARD, lambda content: b"\x5a\x2a\x4d\x18\x03\0\0\0abc" + zstd_with()(content)),
    (Codec.ZSTANDARD, lambda content: bytes(cramjam.zstd.compress(content))),
    (Codec.SNAPPY, lambda content: bytes(cramjam.snappy.compress(content)) or SNAPPY_HEADER),
    (Codec.SNAPPY, lambda content: SNAPPY_HEADER + bytes(cramjam.snappy.compress(content))),
    (Codec.SNAPPY, lambda content: SNAPPY_HEADER + b"\xfe\x03\0\0abc" + pack(Codec.SNAPPY, content)),
]


@pytest.mark.parametrize(("codec", "write"), FOREIGN_WRITERS)
@pytest.mark.parametrize("content", [b"", b"a short text, twice: a short text", RECORDS, NOISE], ids=len)
def test_we_read_what_other_programs_write(
    codec: Codec, write: Callable[[bytes], bytes], content: bytes
) -> None:
    assert unpack(codec, write(content)) == content


@pytest.mark.parametrize("codec", PACKING)
def test_files_joined_read_as_one(codec: Codec) -> None:
    assert unpack(codec, pack(codec, RECORDS) + pack(codec, b"") + pack(codec, NOISE)) == RECORDS + NOISE


@pytest.mark.parametrize("codec", PACKING)
def test_a_file_cut_anywhere_is_corrupt(codec: Codec) -> None:
    stored = pack(codec, b"some content that is long enough to be cut, to be cut, to be cut")
    header = len(SNAPPY_HEADER) if codec is Codec.SNAPPY else 0
    for end in set(range(len(stored))) - {header or -1}:  # a snappy header alone is a whole, empty file
        with pytest.raises(CorruptError):
            unpack(codec, stored[:end])


@pytest.mark.parametrize("codec", PACKING)
def test_a_large_file_cut_is_corrupt_after_its_whole_blocks(codec: Codec) -> None:
    stored = pack(codec, RECORDS)
    file = decompressed(codec, io.BytesIO(stored[:-3]), where="s3://bucket/x.sz")
    read = b""
    with pytest.raises(CorruptError, match=r"^s3://bucket/x.sz, byte \d+: ") as caught:  # noqa: PT012
        while piece := file.read(10_000):
            read += piece
    assert RECORDS.startswith(read)
    assert 0 < caught.value.position <= len(stored)
    with pytest.raises(CorruptError):
        file.read(1)  # the end must not look like one on a second try


@pytest.mark.parametrize("codec", PACKING)
@settings(max_examples=40, deadline=None)
@given(at=st.integers(0, 1 << 20), flip=st.integers(1, 255))
def test_a_changed_byte_is_noticed_or_harmless(codec: Codec, at: int, flip: int) -> None:
    content = RECORDS[:70_000]
    stored = bytearray(pack(codec, content))
    stored[at % len(stored)] ^= flip
    with contextlib.suppress(CorruptError):
        assert unpack(codec, bytes(stored)) == content  # a byte of gzip's header, such as its file time


@pytest.mark.parametrize("codec", PACKING)
@given(st.binary(max_size=200))
def test_other_bytes_are_corrupt(codec: Codec, junk: bytes) -> None:
    with pytest.raises(CorruptError):
        unpack(codec, b"junk" + junk)


@pytest.mark.parametrize("codec", PACKING)
def test_junk_after_the_end_is_corrupt(codec: Codec) -> None:
    with pytest.raises(CorruptError):
        unpack(codec, pack(codec, b"content") + b"\0\0\0\0")


SNAPPY_LIES = {
    "no header": pack(Codec.SNAPPY, b"x")[10:],
    "another header": b"\xff\x06\x00\x00sNaPpX",
    "unknown chunk": SNAPPY_HEADER + b"\x02\x01\0\0x",
    "too long a chunk": SNAPPY_HEADER + b"\x00\xff\xff\xff" + bytes(1 << 24),
    "chunk without checksum": SNAPPY_HEADER + b"\x01\x02\0\0xx",
}


@pytest.mark.parametrize("lie", SNAPPY_LIES)
def test_snappy_chunks_that_break_the_format(lie: str) -> None:
    with pytest.raises(CorruptError):
        unpack(Codec.SNAPPY, SNAPPY_LIES[lie])


@pytest.mark.parametrize("codec", PACKING)
def test_reading_a_little_of_a_bomb_expands_a_little(codec: Codec) -> None:
    stored = b"".join(compressed(codec, (bytes(1 << 20) for _ in range(256))))
    assert len(stored) < 16 << 20
    tracemalloc.start()
    try:
        with decompressed(codec, io.BytesIO(stored)) as file:
            assert file.read(100) == bytes(100)
        with_http = decompressed_chunks(codec, [stored])
        assert max(len(next(with_http)) for _ in range(20)) <= BLOCK
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < len(stored) * 2 + (4 << 20)


def test_a_zstandard_bomb_of_repeated_bytes_is_read_a_block_at_a_time() -> None:
    frame_header = b"\x28\xb5\x2f\xfd" + b"\x00" + b"\x38"
    block = (1 << 17 << 3 | 1 << 1).to_bytes(3, "little") + b"x"
    bomb = frame_header + block * 100_000  # 400 KB that stand for 12 GiB, and never end
    pieces = decompressed_chunks(Codec.ZSTANDARD, [bomb])
    assert {len(next(pieces)) for _ in range(20)} == {1 << 17}


@pytest.mark.parametrize("codec", CODECS)
def test_compressing_takes_as_it_goes(codec: Codec) -> None:
    taken = 0

    def source() -> Iterator[bytes]:
        nonlocal taken
        for _ in range(64):
            taken += 1
            yield os.urandom(1 << 16)

    out = compressed(codec, source())
    assert sum(len(next(out)) for _ in range(4)) > 0
    assert taken < 32


def test_closing_closes_the_stored_file() -> None:
    for codec in CODECS:
        raw = io.BytesIO(pack(codec, b"x"))
        decompressed(codec, raw).close()
        assert raw.closed


def test_what_the_store_decompressed_is_passed_through() -> None:
    class Answered(io.BytesIO):
        content_encoding = ""

    codec = Codec.GZIP_OFFLOAD_DECOMPRESSION
    assert decompressed(codec, Answered(b"plain")).read() == b"plain"
    assert b"".join(decompressed_chunks(codec, [b"plain"], encoding="")) == b"plain"
    assert decompressed(Codec.GZIP, Answered(pack(Codec.GZIP, b"x"))).read() == b"x"


def test_only_offloaded_gzip_is_announced() -> None:
    assert {codec: content_encoding(codec) for codec in CODECS if content_encoding(codec)} == {
        Codec.GZIP_OFFLOAD_DECOMPRESSION: "gzip"
    }


def test_an_invalid_codec_is_refused() -> None:
    with pytest.raises(UsageError, match="INVALID"):
        compressed(Codec.INVALID, [])
    with pytest.raises(UsageError, match="INVALID"):
        decompressed_chunks(Codec.INVALID, [])
