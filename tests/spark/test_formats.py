"""The data source without Spark: options, planning, and what bytes become, against a real broker."""

from __future__ import annotations

import datetime
import decimal
import json
import logging
import math
import pkgutil
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as hs
from pyspark.sql import types as st

from penstock.base.errors import CorruptError, PenstockError, UsageError
from penstock.journal import auth
from penstock.journal.client import Client, UnauthenticatedError
from penstock.journal.embedded import EmbeddedBroker
from penstock.spark import ranges
from penstock.spark.access import TokenFile
from penstock.spark.byteplanning import BytePlanner, LinePlanner
from penstock.spark.formats import read_range
from penstock.spark.jsonrows import JsonRows
from penstock.spark.options import OPTIONS, Content, DataLossError, SourceOptions
from penstock.spark.options import Mode as JsonMode
from penstock.spark.planner import Planner
from penstock.spark.planning import planner
from penstock.spark.ranges import JournalRange, LocalFile
from penstock.spark.rowtext import RowError, Rows
from penstock.spark.source import PenstockSource

from .places import Place, Stream, opened, rows_of, schema_of

DOCS = Path(__file__).parents[2] / "docs" / "spark.md"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with opened(tmp_path_factory.mktemp("formats") / "data") as place:
        yield place


# Options


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"dataDir": "x"}, "'journal' is missing"),
        ({"journal": "j"}, "neither 'dataDir' nor 'broker'"),
        ({"dataDir": "x", "journal": "j", "pipeline": "p"}, "exclude each other"),
        (
            {"dataDir": "x", "pipeline": "p", "maxByte": "1"},
            "unknown option 'maxbyte'; did you mean 'maxBytes'",
        ),
        ({"dataDir": "x", "journal": "j", "content": "line"}, "no 'line'; did you mean 'lines'"),
        ({"dataDir": "x", "pipeline": "p", "content": "json"}, "a commit log has no content 'json'"),
        ({"dataDir": "x", "journal": "j", "startOffset": "-1"}, "expected earliest, latest or a number"),
        ({"dataDir": "x", "journal": "j", "maxBytes": "0"}, "at least 1 byte"),
        ({"dataDir": "x", "journal": "j", "maxBytes": "much"}, "option 'maxBytes'"),
        ({"dataDir": "x", "journal": "j", "failOnDataLoss": "no"}, "expected true or false"),
        ({"dataDir": "x", "journal": "j", "token": "t0ps3cret"}, "Spark shows options in its plans"),
        ({"dataDir": "x", "journal": "j", "txnAppId": "a"}, "go together"),
        ({"dataDir": "x", "journal": "j", "txnAppId": "a b", "txnVersion": "1"}, "not a valid token"),
        ({"broker": "h:1", "journal": "j", "tokenFile": "a", "authKeysFile": "b"}, "exclude each other"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as caught:
        SourceOptions.parse(options)
    assert "t0ps3cret" not in str(caught.value)


def test_options_are_read_without_case_and_in_units() -> None:
    options = SourceOptions.parse(
        {"DATADIR": "x", "Journal": "j", "maxBytes": "8MiB", "wait": "250ms", "startOffset": "Latest"}
    )
    assert (options.max_bytes, options.wait, options.start) == (8 << 20, 0.25, "latest")
    assert options.content is Content.LINES
    assert SourceOptions.parse({"dataDir": "x", "pipeline": "p"}).content is Content.RECORDS


def test_the_documentation_lists_every_option() -> None:
    table = re.findall(
        r"^\| `(\w+)` \|", DOCS.read_text().partition("### Options")[2].partition("###")[0], re.MULTILINE
    )
    assert sorted(table) == sorted(OPTIONS)


def test_a_token_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(UsageError, match="cannot read the token"):
        TokenFile(file).for_read("j")
    file.write_text("one\n")
    token = TokenFile(file)
    assert token.for_read("j") == "one"
    file.write_text("two\n")
    assert token.for_append("j") == "two"


def test_a_data_directory_that_nobody_serves_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data"
    EmbeddedBroker(path).stop()
    reader = PenstockSource({"dataDir": str(path), "journal": "j"}).reader(
        schema_of("offset BIGINT, value STRING")
    )
    with pytest.raises(UsageError, match="nobody serves") as caught:
        reader.partitions()
    assert "broker serve" in str(caught.value.hint)


def test_spark_finds_the_source_by_itself() -> None:
    import pyspark_penstock

    assert "pyspark_penstock" in {module.name for module in pkgutil.iter_modules()}
    assert pyspark_penstock.DefaultSource.name() == "penstock"


KEYS = "c2VjcmV0IG9mIHRoZSBicm9rZXI="


def test_a_broker_that_asks_for_tokens_is_reached_with_files(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.touch(0o600)
    keys.write_text(KEYS)
    code = "import sys; sys.argv[0] = 'penstock'; from penstock.cli import main; main()"
    arguments = [
        "broker",
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--http",
        "off",
        "--json",
        "--auth-keys",
        f"@{keys}",
    ]
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    ) as broker:
        try:
            assert broker.stdout is not None
            address = json.loads(broker.stdout.readline())["grpc"]
            source = auth.TokenSource(auth.keys_from(f"@{keys}"))
            with Client(address, tokens=source) as client:
                Place(tmp_path, client).create("shop/lines")
                client.append("shop/lines", b"one\ntwo\n")
            token = tmp_path / "token"
            token.write_text(source.for_read("shop/lines"))
            for credentials in ({"authKeysFile": str(keys)}, {"tokenFile": str(token)}, {}):
                reader = PenstockSource({"broker": address, "journal": "shop/lines", **credentials}).reader(
                    schema_of("offset BIGINT, value STRING")
                )
                if credentials:
                    assert rows_of(reader) == [(0, "one"), (4, "two")]
                else:
                    with pytest.raises(UnauthenticatedError):
                        reader.partitions()
        finally:
            broker.terminate()


# Lines


def test_lines_are_rows_and_the_last_one_may_lack_its_newline(place: Place) -> None:
    place.create("lines/a")
    place.client.append("lines/a", "one\n\nzwölf ÄÖÜ, ein langer Text\nlast".encode())
    rows = place.read(journal="lines/a")
    assert rows == [(0, "one"), (4, ""), (5, "zwölf ÄÖÜ, ein langer Text"), (36, "last")]
    assert place.read(journal="lines/a", startOffset=5, endOffset=36) == rows[2:3]


def test_a_stream_gives_a_line_only_when_it_is_whole(place: Place) -> None:
    place.create("lines/b")
    stream = Stream(place, journal="lines/b")
    assert stream.batch() == []
    place.client.append("lines/b", b"one\ntw")
    assert stream.batch() == [(0, "one")]
    assert stream.batch() == []
    place.client.append("lines/b", b"o\nthr")
    assert stream.batch() == [(4, "two")]
    place.client.append("lines/b", b"ee\n")
    assert stream.batch() == [(8, "three")]


def test_an_unfinished_line_is_not_searched_twice(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.create("lines/grows")
    stream = Stream(place, journal="lines/grows")
    read: list[tuple[int, int]] = []
    plain = Client.read_bytes

    def noted(self: Client, journal: str, begin: int, end: int) -> bytes:
        read.append((begin, end))
        return plain(self, journal, begin, end)

    monkeypatch.setattr(Client, "read_bytes", noted)
    for _ in range(5):
        place.client.append("lines/grows", b"x" * 1000)
        assert stream.batch() == []
    assert sum(end - begin for begin, end in read) == 5000
    place.client.append("lines/grows", b"\n")
    assert [len(value) for _, value in stream.batch()] == [5000]


def test_limits_of_a_stream_of_lines(place: Place) -> None:
    place.create("lines/c")
    lines = [b"%05d" % i + b"x" * (i % 50) for i in range(1000)]
    place.client.append("lines/c", b"\n".join(lines) + b"\n")
    for options, most in (("maxBytes", 1000), 200), (("maxMessages", 7), 7), (("maxBytes", 3), 1):
        stream = Stream(place, None, **{"journal": "lines/c", options[0]: options[1]})
        batches = []
        while batch := stream.batch():
            batches.append(batch)
            if len(batches) > 20:
                break
        assert max(map(len, batches)) <= most, options
        got = [value.encode() for batch in batches for _, value in batch]
        assert got == lines[: len(got)], options
        assert len(got) >= 20


def test_a_stream_from_the_latest_place_begins_with_a_whole_line(place: Place) -> None:
    place.create("lines/d")
    place.client.append("lines/d", b"old\nunfin")
    stream = Stream(place, journal="lines/d", startOffset="latest")
    place.client.append("lines/d", b"ished\nnew\n")
    assert stream.batch() == [(4, "unfinished"), (15, "new")]


def test_available_now_ends_at_the_head_of_its_start(place: Place) -> None:
    place.create("lines/now")
    place.client.append("lines/now", b"a\nb\nc")
    stream = Stream(place, journal="lines/now", maxMessages=1)
    stream.reader.prepareForTriggerAvailableNow()  # type: ignore[attr-defined]
    place.client.append("lines/now", b"\nlater\n")
    assert [stream.batch() for _ in range(3)] == [[(0, "a")], [(2, "b")], []]


def test_large_ranges_of_lines_are_cut_at_lines(place: Place) -> None:
    place.create("lines/large", 4 << 20)
    lines = [b'{"n":%d,"x":"%s"}' % (i, b"y" * (i * 7 % 900)) for i in range(30_000)]
    for at in range(0, len(lines), 3000):
        place.client.append("lines/large", b"\n".join(lines[at : at + 3000]) + b"\n")
    options = SourceOptions.parse({"dataDir": str(place.path), "journal": "lines/large", "partitions": "3"})
    ranges = planner(options, stream=False).batch()
    assert len(ranges) == 3
    read = [
        value.encode()
        for wanted in ranges
        for batch in read_range(options, None, wanted)
        for value in batch.column("value").to_pylist()
    ]
    assert read == lines


def test_a_line_that_is_not_utf8_is_named_and_can_be_read_as_binary(place: Place) -> None:
    place.create("lines/bytes")
    place.client.append("lines/bytes", b"good\nb\xffd\n")
    with pytest.raises(CorruptError, match=r"lines/bytes, byte 6: a line that is not UTF-8"):
        place.read(journal="lines/bytes")
    binary = place.read("offset BIGINT, value BINARY", journal="lines/bytes")
    assert binary == [(0, b"good"), (5, b"b\xffd")]


def test_a_line_without_end_is_named(place: Place) -> None:
    place.create("lines/endless", 16 << 20)
    place.client.append("lines/endless", b"x" * (5 << 20))
    with pytest.raises(PenstockError, match="do not end") as caught:
        place.read(journal="lines/endless", maxLineBytes="1MiB")
    assert "maxLineBytes" in str(caught.value.hint)
    assert len(place.read(journal="lines/endless")[0][1]) == 5 << 20


@settings(max_examples=25)
@given(
    hs.lists(hs.binary(max_size=40).map(lambda b: b.replace(b"\n", b"")), max_size=30),
    hs.booleans(),
    hs.integers(1, 64),
)
def test_lines_come_back_whatever_the_window(lines: list[bytes], finished: bool, size: int) -> None:
    from penstock.spark.formats import Lines
    from penstock.spark.ranges import Window

    content = b"\n".join(lines) + (b"\n" if finished and lines else b"")

    class Reader:
        journal, position = "j", 0

        def readinto(self, target: memoryview) -> int:
            piece = content[self.position : self.position + min(len(target), size)]
            target[: len(piece)] = piece
            self.position += len(piece)
            return len(piece)

    window = Window(Reader(), 1 << 20, 16)  # type: ignore[arg-type]
    found: list[tuple[int, bytes]] = []
    more = True
    while more:
        more = window.fill()
        part = Lines(window, whole=not more)
        found += zip(part.offsets().to_pylist(), part.binaries().to_pylist(), strict=True)
        window.consume(part.consumed)
    expected = content.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert [value for _, value in found] == expected
    assert all(content[at : at + len(value)] == value for at, value in found)


# Raw bytes


def test_raw_pieces_do_not_depend_on_where_a_read_begins(place: Place) -> None:
    place.create("raw/a")
    content = bytes(range(256)) * 20
    for at in range(0, len(content), 700):
        place.client.append("raw/a", content[at : at + 700])
    rows = place.read(journal="raw/a", content="raw", chunkBytes=1000)
    assert [at for at, _ in rows] == [0, 1000, 2000, 3000, 4000, 5000]
    assert b"".join(value for _, value in rows) == content
    later = place.read(journal="raw/a", content="raw", chunkBytes=1000, startOffset=2500)
    assert [at for at, _ in later] == [2500, 3000, 4000, 5000]
    assert later[1:] == rows[3:]
    stream = Stream(place, journal="raw/a", content="raw", chunkBytes=1000, maxMessages=2)
    assert stream.batch() == rows[:2]
    assert stream.batch() == rows[2:4]


# JSON


def test_json_without_a_schema_is_text_without_blank_lines(place: Place) -> None:
    place.create("json/a")
    place.client.append("json/a", b'{"a": 1.0}\n\n  \n {"b":2}\n')
    assert place.read(journal="json/a", content="json") == [(0, '{"a": 1.0}'), (15, ' {"b":2}')]


def test_json_with_a_schema_is_its_columns(place: Place) -> None:
    place.create("json/b")
    place.client.append(
        "json/b",
        b'{"id":1,"name":"x","other":[1,2]}\n'
        b'{"id":2,"name":{"deep": 1.50},"when":"2026-01-02T03:04:05.678901+02:00"}\n'
        b'{"name":null,"total":"NaN"}\n'
        b'{"id":"three"}\n'
        b"not json\n"
        b"null\n"
        b'{"id":4}{"id":5}\n'
        b'{"id":9223372036854775808}\n'
        b'{"id":6,"total":7,"day":"2026-01-02","ok":true}\n',
    )
    schema = "_offset BIGINT, id BIGINT, name STRING, total DOUBLE, day DATE, ok BOOLEAN, when TIMESTAMP"
    bad = [b'{"id":"three"}', b"not json", b"null", b'{"id":4}{"id":5}', b'{"id":9223372036854775808}']
    rows = place.read(f"{schema}, _corrupt_record STRING", journal="json/b", content="json")
    assert [row[1] for row in rows] == [1, 2, None, None, None, None, None, None, 6]
    assert [row[-1] for row in rows] == [None, None, None, *[text.decode() for text in bad], None]
    when = datetime.datetime(2026, 1, 2, 1, 4, 5, 678901, tzinfo=datetime.UTC)
    assert rows[1][2:] == ('{"deep": 1.50}', None, None, None, when, None)
    assert math.isnan(rows[2][3])
    assert rows[8][3:6] == (7.0, datetime.date(2026, 1, 2), True)
    dropped = place.read(schema, journal="json/b", content="json", mode="dropMalformed")
    assert [row[1] for row in dropped] == [1, 2, None, 6]
    with pytest.raises(CorruptError, match=r"json/b, byte 135: a document that does not fit"):
        place.read(schema, journal="json/b", content="json", mode="FAILFAST")


def test_schemas_that_a_content_cannot_give_are_refused(place: Place) -> None:
    for content, schema, complaint in (
        ("lines", "id BIGINT", "has the columns offset BIGINT, value STRING or offset BIGINT, value BINARY"),
        ("raw", "offset BIGINT, value STRING", "content 'raw' has the columns"),
        ("json", "_offset STRING, a INT", "'_offset' is BIGINT"),
    ):
        with pytest.raises(UsageError, match=complaint):
            place.source(journal="j", content=content).reader(schema_of(schema))
    variant = st.StructType([st.StructField("v", st.VariantType())])
    with pytest.raises(UsageError, match="column 'v' cannot be VARIANT"):
        place.source(journal="j", content="json").reader(variant)


NESTED = st.StructType(
    [
        st.StructField("_offset", st.LongType()),
        st.StructField("tiny", st.ByteType()),
        st.StructField("price", st.DecimalType(30, 4)),
        st.StructField("local", st.TimestampNTZType()),
        st.StructField("at", st.TimestampType()),
        st.StructField("blob", st.BinaryType()),
        st.StructField("ratio", st.DoubleType()),
        st.StructField("tags", st.ArrayType(st.StringType())),
        st.StructField("sizes", st.MapType(st.StringType(), st.DecimalType(10, 2))),
        st.StructField("with blank", st.StructType([st.StructField("x", st.IntegerType())])),
    ]
)

VALUES = hs.fixed_dictionaries(
    {
        "tiny": hs.none() | hs.integers(-128, 127),
        "price": hs.none() | hs.decimals(-(10**20), 10**20, places=4),
        "local": hs.none() | hs.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2200, 1, 1)),
        "at": hs.none()
        | hs.datetimes(
            datetime.datetime(1900, 1, 1), datetime.datetime(2200, 1, 1), timezones=hs.just(datetime.UTC)
        ),
        "blob": hs.none() | hs.binary(max_size=20),
        "ratio": hs.none() | hs.floats(allow_nan=False),
        "tags": hs.none() | hs.lists(hs.none() | hs.text(max_size=5), max_size=3),
        "sizes": hs.none()
        | hs.dictionaries(hs.text(max_size=4), hs.none() | hs.decimals(-99, 99, places=2), max_size=3).map(
            lambda found: list(found.items())
        ),
        "with blank": hs.none() | hs.fixed_dictionaries({"x": hs.none() | hs.integers(-9, 9)}),
    }
)


@settings(max_examples=60)
@given(hs.lists(VALUES, min_size=1, max_size=5))
def test_rows_written_as_json_come_back_the_same(values: list[dict[str, Any]]) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    data = st.StructType(NESTED.fields[1:])
    batch = pa.RecordBatch.from_pylist(values, schema=to_arrow_schema(data, timezone="UTC"))
    text = b"".join(Rows(data, Content.JSON).encode(batch))
    lines = text.splitlines()
    back = JsonRows(NESTED, JsonMode.FAILFAST, "j").batch(range(len(lines)), lines)
    assert back.drop_columns(["_offset"]).equals(batch)


def test_decimals_are_rounded_to_their_scale() -> None:
    schema = st.StructType([st.StructField("d", st.DecimalType(6, 2))])
    rows = JsonRows(schema, JsonMode.PERMISSIVE, "j")
    batch = rows.batch([0, 1, 2], [b'{"d":1.005}', b'{"d":"2.5"}', b'{"d":123456.7}'])
    assert batch.column("d").to_pylist() == [decimal.Decimal("1.01"), decimal.Decimal("2.50"), None]


# Rows to bytes


def value_batch(values: Sequence[object], kind: pa.DataType) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, kind)], names=["value"])


def test_values_become_lines_or_raw_bytes() -> None:
    text, binary = schema_of("value STRING"), schema_of("value BINARY")
    batch = value_batch(["", "skipped", "ä", "", "bc"], pa.string()).slice(2)
    assert b"".join(Rows(text, Content.LINES).encode(batch)) == "ä\n\nbc\n".encode()
    assert b"".join(Rows(text, Content.RAW).encode(batch)) == "äbc".encode()
    raw = value_batch([b"\n\xff", b"", b"x"], pa.binary())
    assert b"".join(Rows(binary, Content.RAW).encode(raw)) == b"\n\xffx"


def test_rows_that_would_not_come_back_are_refused() -> None:
    lines = Rows(schema_of("value STRING"), Content.LINES)
    for values, complaint in (["a\nb"], "newline"), (["a", None], "null"):
        with pytest.raises(RowError, match=complaint):
            list(lines.encode(value_batch(values, pa.string())))
    with pytest.raises(UsageError, match="from a column 'value' of STRING or BINARY"):
        Rows(schema_of("id BIGINT"), Content.LINES)
    interval = st.StructType([st.StructField("i", st.DayTimeIntervalType())])
    with pytest.raises(UsageError, match="no JSON form"):
        Rows(interval, Content.JSON)


# Trimmed journals


def test_a_stream_fails_when_what_it_wants_was_trimmed_unless_told_to_go_on(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.create("trimmed/a")
    place.client.append("trimmed/a", b"one\ntwo\n")
    strict = Stream(place, journal="trimmed/a")
    lax = Stream(place, journal="trimmed/a", failOnDataLoss=False)
    place.trim("trimmed/a", 8)
    place.client.append("trimmed/a", b"three\n")
    with pytest.raises(DataLossError, match="bytes 0 to 8 are gone") as caught:
        strict.batch()
    assert "failOnDataLoss=false" in str(caught.value.hint)
    with caplog.at_level(logging.WARNING):
        assert lax.batch() == [(8, "three")]
    assert "bytes 0 to 8 are gone" in caplog.text
    assert Stream(place, journal="trimmed/a").batch() == [(8, "three")], "earliest is what there is"


def test_a_batch_read_below_the_begin_jumps_forward_unless_told_to_fail(place: Place) -> None:
    place.create("trimmed/b")
    place.client.append("trimmed/b", b"one\ntwo\n")
    place.trim("trimmed/b", 8)
    place.client.append("trimmed/b", b"three\n")
    assert place.read(journal="trimmed/b", startOffset=2) == [(8, "three")]
    assert place.read(journal="trimmed/b", startOffset=2, content="raw") == [(8, b"three\n")]
    with pytest.raises(DataLossError):
        place.read(journal="trimmed/b", startOffset=2, failOnDataLoss=True)
    with pytest.raises(UsageError, match="ends at byte 14"):
        place.read(journal="trimmed/b", startOffset=99)


def test_bytes_that_go_between_planning_and_reading_are_not_passed_over_in_silence(place: Place) -> None:
    place.create("trimmed/c")
    place.client.append("trimmed/c", b"one\ntwo\n")
    plain = SourceOptions.parse({"dataDir": str(place.path), "journal": "trimmed/c"})
    strict = SourceOptions.parse(
        {"dataDir": str(place.path), "journal": "trimmed/c", "failOnDataLoss": "true"}
    )
    place.trim("trimmed/c", 8)
    place.client.append("trimmed/c", b"three\n")
    wanted = JournalRange(plain.journal, 2, 14)
    with pytest.raises(DataLossError):
        list(read_range(strict, None, wanted))
    (batch,) = read_range(plain, None, wanted)
    assert batch.column("value").to_pylist() == ["three"]


def test_a_range_beyond_the_end_of_its_journal_is_not_waited_for_for_ever(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head was set back after the range was planned; a replica that is behind would come up with it."""
    monkeypatch.setattr(ranges, "PATIENCE", 0.2)
    place.create("set-back")
    place.client.append("set-back", b"one\n")
    options = SourceOptions.parse({"dataDir": str(place.path), "journal": "set-back"})
    with pytest.raises(PenstockError, match="ends at byte 4; it had the bytes up to 8 before"):
        list(read_range(options, None, JournalRange(options.journal, 0, 8)))


def test_a_stream_behind_the_end_of_its_journal_says_so(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait until other bytes are there, and go on in the midst of them."""
    monkeypatch.setattr(ranges, "PATIENCE", 0.2)
    place.create("set-back/stream")
    place.client.append("set-back/stream", b"one\n")
    options = {"dataDir": str(place.path), "journal": "set-back/stream", "wait": "0.1s"}
    planning = planner(SourceOptions.parse(options), stream=True)
    assert isinstance(planning, Planner)
    assert planning.wait(8) == 4
    time.sleep(0.2)
    with pytest.raises(PenstockError, match="ends at byte 4; it had the bytes up to 8 before"):
        planning.wait(8)
    assert planning.wait(0) == 4


def test_a_replica_that_is_behind_is_waited_for(place: Place) -> None:
    place.create("behind")
    place.client.append("behind", b"one\n")
    options = SourceOptions.parse({"dataDir": str(place.path), "journal": "behind"})
    later = threading.Timer(0.3, lambda: place.client.append("behind", b"two\n"))
    later.start()
    batches = list(read_range(options, None, JournalRange(options.journal, 0, 8)))
    later.join()
    assert [text for batch in batches for text in batch.column("value").to_pylist()] == ["one", "two"]


def test_a_file_that_is_shorter_than_it_should_be_is_not_opened_for_ever(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.create("short")
    place.client.append("short", b"one\ntwo\n")
    (tmp_path / "short").write_bytes(b"one\n")
    found: list[int] = []

    def short(*_: object) -> list[LocalFile]:
        found.append(1)
        assert len(found) < 100, "it is looked up again and again"
        return [LocalFile(0, 8, str(tmp_path / "short"), 0)]

    monkeypatch.setattr(ranges, "locate", short)
    options = SourceOptions.parse({"dataDir": str(place.path), "journal": "short"})
    batches = list(read_range(options, None, JournalRange(options.journal, 0, 8)))
    assert [text for batch in batches for text in batch.column("value").to_pylist()] == ["one", "two"]


def test_planners_go_with_the_content() -> None:
    for content, kind in (("raw", BytePlanner), ("lines", LinePlanner), ("json", LinePlanner)):
        options = SourceOptions.parse({"dataDir": "x", "journal": "j", "content": content})
        assert type(planner(options, stream=True)) is kind
