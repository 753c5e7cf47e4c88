"""Fragments: names, paths, sums and the wire (reference, 3, 19 and 27)."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.journal import protocol
from penstock.journal.fragment import (
    MAX_OFFSET,
    ZERO_SUM,
    Codec,
    Fragment,
    parse_name,
    parse_path,
    sum_from_proto,
    sum_parts,
    sum_to_proto,
)
from penstock.journal.tokens import ValidationError
from penstock.journal.validation import validate_fragment

FOOBAR = bytes.fromhex("8843d7f92416211de9ebb963ff4ce28125932878")
NAME = f"0000000000000000-0000000000000006-{FOOBAR.hex()}"


def test_the_sum_of_foobar() -> None:
    assert hashlib.sha1(b"foobar").digest() == FOOBAR
    assert sum_parts(FOOBAR) == (0x8843D7F92416211D, 0xE9EBB963FF4CE281, 0x25932878)
    wire = sum_to_proto(FOOBAR).SerializeToString()
    assert wire.hex() == "091d211624f9d743881181e24cff63b9ebe91d78289325"
    assert sum_from_proto(protocol.SHA1Sum.FromString(wire)) == FOOBAR


def test_the_zero_sum_is_nothing_on_the_wire() -> None:
    assert sum_to_proto(ZERO_SUM).SerializeToString() == b""
    assert sum_from_proto(protocol.SHA1Sum()) == ZERO_SUM


def test_the_content_name_of_the_reference() -> None:
    fragment = Fragment("foo/bar", 0, 6, FOOBAR, Codec.SNAPPY)
    assert fragment.content_name == f"{NAME}.sz"
    assert fragment.content_path == f"foo/bar/{NAME}.sz"


def test_the_postfix_stands_between_journal_and_name() -> None:
    fragment = Fragment("foo/bar", 0, 6, FOOBAR, path_postfix="date=2026-01-02/hour=03")
    assert fragment.content_path == f"foo/bar/date=2026-01-02/hour=03/{NAME}.raw"


def test_offsets_are_written_in_hexadecimal() -> None:
    assert Fragment("a/bc", 255, MAX_OFFSET).content_name.startswith("00000000000000ff-7fffffffffffffff-")


WRITTEN = [
    (Codec.NONE, ".raw"),
    (Codec.GZIP, ".gz"),
    (Codec.ZSTANDARD, ".zst"),
    (Codec.SNAPPY, ".sz"),
    (Codec.GZIP_OFFLOAD_DECOMPRESSION, ""),
]


@pytest.mark.parametrize("codec, suffix", WRITTEN)
def test_suffix_written(codec: Codec, suffix: str) -> None:
    assert codec.suffix == suffix
    assert Fragment("a/bc", 0, 6, FOOBAR, codec).content_name == NAME + suffix


ACCEPTED = [
    (".raw", Codec.NONE),
    (".gz", Codec.GZIP),
    (".gzip", Codec.GZIP),
    (".zst", Codec.ZSTANDARD),
    (".zstandard", Codec.ZSTANDARD),
    (".sz", Codec.SNAPPY),
    (".snappy", Codec.SNAPPY),
    ("", Codec.GZIP_OFFLOAD_DECOMPRESSION),
    (".gzod", Codec.GZIP_OFFLOAD_DECOMPRESSION),
]


@pytest.mark.parametrize("suffix, codec", ACCEPTED)
def test_suffixes_accepted_in_any_case(suffix: str, codec: Codec) -> None:
    for spelled in {suffix, suffix.upper(), suffix.title()}:
        assert parse_name("a/bc", NAME + spelled) == Fragment("a/bc", 0, 6, FOOBAR, codec)


def test_codecs_are_those_of_the_wire() -> None:
    assert {codec.name: int(codec) for codec in Codec} == dict(protocol.CompressionCodec.items())


BAD_NAMES = [
    "",
    "readme.txt",
    f"0-6-{FOOBAR.hex()}-x.raw",
    f"0-{FOOBAR.hex()}.raw",
    f"{NAME}.unknown",
    f"{NAME}.raw.gz",
    f"{NAME}.",
    f"{NAME}0.raw",
    f"{NAME[:-1]}.raw",
    f"{NAME[:-1]}g.raw",
    f"-{NAME[1:]}.raw",
    f"+000000000000000-0000000000000006-{FOOBAR.hex()}.raw",
    f"0x00000000000000-0000000000000006-{FOOBAR.hex()}.raw",
    f"-0000000000000006-{FOOBAR.hex()}.raw",
    f"0000000000000007-0000000000000006-{FOOBAR.hex()}.raw",
    f"0000000000000000-8000000000000000-{FOOBAR.hex()}.raw",
    f"00000000000000000-0000000000000006-{FOOBAR.hex()}.raw",
    f"٠-0000000000000006-{FOOBAR.hex()}.raw",
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        parse_name("a/bc", name)


def test_a_listed_path_ends_in_the_name_and_begins_with_the_postfix() -> None:
    listed = parse_path("a/bc", f"x=1/y/{NAME}.gz", backing_store="file:///s/", mod_time=17)
    assert listed == Fragment("a/bc", 0, 6, FOOBAR, Codec.GZIP, "file:///s/", 17, "x=1/y")
    assert parse_path("a/bc", f"{NAME}.gz").path_postfix == ""


@pytest.mark.parametrize(
    "path", [f"../{NAME}.raw", f"/{NAME}.raw/", f"a//b/{NAME}.raw", f"a b/{NAME}.raw", "x/"]
)
def test_a_listed_path_with_an_illegal_postfix_is_refused(path: str) -> None:
    with pytest.raises(ValidationError):
        parse_path("a/bc", path)


def test_spans() -> None:
    fragment = Fragment("a/bc", 10, 20)
    assert fragment.length == 10
    assert [fragment.contains(offset) for offset in (9, 10, 19, 20)] == [False, True, True, False]
    spans = [(10, 20), (11, 19), (9, 15), (15, 21), (9, 21), (30, 40)]
    covered = [fragment.covers(Fragment("a/bc", *span)) for span in spans]
    assert covered == [True, True, False, False, False, False]


FRAGMENTS = st.builds(
    lambda begin, length, *rest: Fragment("a/journal", begin, min(begin + length, MAX_OFFSET), *rest),
    st.integers(0, MAX_OFFSET),
    st.integers(0, 1 << 34),
    st.binary(min_size=20, max_size=20),
    st.sampled_from([codec for codec in Codec if codec is not Codec.INVALID]),
    st.sampled_from(["", "file:///", "s3://bucket/prefix/?profile=x"]),
    st.integers(0, 1 << 40),
    st.sampled_from(["", "date=2026-01-02", "a/b/c"]),
)


@given(FRAGMENTS)
def test_a_fragment_survives_its_path(fragment: Fragment) -> None:
    relative = fragment.content_path.removeprefix("a/journal/")
    parsed = parse_path(
        "a/journal", relative, backing_store=fragment.backing_store, mod_time=fragment.mod_time
    )
    assert parsed == fragment


@given(FRAGMENTS)
def test_a_fragment_survives_the_wire(fragment: Fragment) -> None:
    message = protocol.Fragment.FromString(fragment.to_proto().SerializeToString())
    validate_fragment(message)
    assert Fragment.from_proto(message) == fragment


@given(st.text(alphabet="0123456789abcdefABCDEF-./gzraw", max_size=90))
def test_any_path_is_a_fragment_or_an_error(path: str) -> None:
    try:
        fragment = parse_path("a/bc", path)
    except ValidationError:
        return
    validate_fragment(fragment.to_proto())
