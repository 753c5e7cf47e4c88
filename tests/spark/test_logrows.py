"""Commit logs as rows, without Spark: the columns, and what a read of a log covers."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as hs
from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock.base.disk import Buffer
from penstock.base.errors import UsageError
from penstock.journal.client import Client, Span
from penstock.journal.fragment import Codec
from penstock.log import record as rec
from penstock.log.commitlog import CommitLog
from penstock.log.compaction import compact
from penstock.log.message import Message, MessageOffset, Mode, Op
from penstock.log.record import CorruptRecordError, boundaries
from penstock.spark import columns
from penstock.spark.formats import RECORDS_SCHEMA, read_range
from penstock.spark.options import DataLossError, SourceOptions
from penstock.spark.planning import RecordPlanner
from penstock.spark.ranges import JournalRange, locate
from penstock.spark.source import PenstockSource

from .places import NOW, Place, Stream, opened, schema_of


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with opened(tmp_path_factory.mktemp("logs") / "data") as place:
        yield place


def messages(first: int, count: int) -> list[Message]:
    return [
        Message(
            ns=("orders", "items", "ünïcode", "a namespace of some length")[i % 4],
            data=b'{"n":%d,"a":"%s"}' % (i, b"x" * (i % 200)),
            op=(Op.INSERT, Op.UPDATE, Op.DELETE)[i % 3],
            ts=NOW + i,
            mode=Mode.COPY,  # what is followed is never cut within an append (`test_endsearch.py`)
            key=b'{"n":%d}' % i if i % 5 == 0 else None,
            old_key=b'{"n":"%d before"}' % i if i % 15 == 0 else None,
        )
        for i in range(first, first + count)
    ]


@settings(max_examples=40)
@given(
    hs.lists(
        hs.tuples(
            hs.text(max_size=20),
            hs.text(max_size=40),
            hs.none() | hs.text(max_size=20),
            hs.none() | hs.dictionaries(hs.sampled_from(["old", "position"]), hs.text(max_size=9)),
            hs.booleans(),
        ),
        max_size=12,
    ),
    hs.integers(0, 30),
)
def test_columns_agree_with_the_record_codec(
    rows: list[tuple[str, str, str | None, dict[str, object] | None, bool]], cut: int
) -> None:
    records = [
        rec.Record(
            -1 if control else i, NOW + i, Mode(i % 3), Op(i % 4), ns, data.encode(),
            key=None if key is None else key.encode(), extra=extra, control=control,
        )
        for i, (ns, data, key, extra, control) in enumerate(rows)
    ]  # fmt: skip
    content = b"".join(map(rec.encode, records))
    content = content[: max(len(content) - cut, 0)]
    starts, consumed = boundaries(content, "j")
    fast, fast_consumed = columns.record_starts(content, "j")
    assert (fast.tolist(), fast_consumed) == (list(starts), consumed)
    batch, _ = columns.decode(content, "j")
    expected = [r for r in map(lambda at: rec.decode(content, at, "j"), starts) if not r.control]  # noqa: C417
    assert batch.column("offset").to_pylist() == [r.offset for r in expected]
    assert batch.column("ns").to_pylist() == [r.ns for r in expected]
    assert batch.column("data").to_pylist() == [r.data.decode() for r in expected]
    assert batch.column("key").to_pylist() == [None if r.key is None else r.key.decode() for r in expected]
    old_keys = [None if r.old_key is None else r.old_key.decode() for r in expected]
    assert batch.column("old_key").to_pylist() == old_keys
    assert batch.column("op").to_pylist() == [r.op.word for r in expected]
    assert batch.column("mode").to_pylist() == [r.mode.word for r in expected]


def together(count: int, ts: int, ns: str = "shop.orders", **more: Any) -> bytes:
    """Records that came in one append."""
    return b"".join(
        rec.encode(rec.Record(i, ts, Mode.COPY, Op.INSERT, ns, b"{}" * (i % 50), **more))
        for i in range(count)
    )


LIKE_A_RECORD = rec.encode(rec.Record(3, NOW, Mode.COPY, Op.INSERT, "a", b"{}"))
CLAIM = rec.encode(rec.Record(-1, NOW, Mode.COPY, Op.NOOP, "", b"", extra={"claim": "x"}, control=True))


@pytest.mark.parametrize(
    "content",
    [
        together(5000, NOW),
        together(5000, NOW) + CLAIM + together(5000, NOW + 1) + together(3, NOW),
        b"".join(together(1, NOW + i) for i in range(5000)),
        b"".join(together(5, NOW + i) for i in range(1000)),
        b"".join(together(n, NOW + n) for n in (1, 2, 3, 2000, 4, 5, 1030, 6)),
        (together(6, NOW) + rec.encode(rec.Record(0, NOW, Mode.SYNC, Op.UPDATE, "b", LIKE_A_RECORD))) * 500,
        together(3000, NOW, key=b"7"),
        together(3000, NOW) + b"\0" * 20,
        together(3000, NOW) + b"\0" * 26,
        together(3000, NOW)[:-1],
    ],
    ids=["alike", "appends", "each its own", "in fives", "mixed", "lookalikes", "keyed", "cut", "nonsense", "cut too"],
)  # fmt: skip
def test_records_that_came_together_are_found_where_a_walk_finds_them(content: bytes) -> None:
    def told(walk: Callable[..., tuple[Iterable[int], int]], buffer: Buffer) -> tuple[list[int], int] | str:
        try:
            starts, consumed = walk(buffer, "j")
        except CorruptRecordError as error:
            return f"{error.message} at {error.position}"
        return list(starts), consumed

    expected = told(boundaries, content)
    for buffer in (content, bytearray(content), memoryview(content)):
        assert told(columns.record_starts, buffer) == expected


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({8: struct.pack(">I", 3)}, "a record of size 3"),
        ({8: struct.pack(">I", 1 << 31)}, "a record of size 2147483648"),
        ({20: b"\x80"}, "a record of a newer format"),
        ({21: struct.pack(">I", 99)}, "a key longer than its record"),
        ({27: struct.pack(">I", 1)}, "lengths that do not add up"),
        ({31: b"\xff"}, "not UTF-8"),
    ],
)
def test_damaged_records_are_named(change: dict[int, bytes], complaint: str) -> None:
    first = rec.encode(rec.Record(0, NOW, Mode.COPY, Op.INSERT, "ns", b"{}"))
    content = bytearray(first)
    for at, patch in change.items():
        content[at : at + len(patch)] = patch
    with pytest.raises(CorruptRecordError, match=complaint) as caught:
        columns.decode(first + bytes(content) + first, "j", 1000)
    assert caught.value.position in (1000, 1000 + len(first))


def test_nothing_decoded_refers_to_the_buffer() -> None:
    buffer = bytearray(rec.encode_messages(messages(0, 50), 0, {}))
    batch, _ = columns.decode(buffer, "j")
    before = batch.to_pylist()
    buffer[:] = b"\xff" * len(buffer)
    assert batch.to_pylist() == before


@dataclass
class Log:
    place: Place
    log: CommitLog
    messages: list[Message]


@pytest.fixture(scope="module")
def written(place: Place) -> Log:
    log = CommitLog(place.client, "shop", place.path / "index", 1 << 20, NOW)
    everything: list[Message] = []
    for i in range(0, 30_000, 500):
        batch = messages(i, 500)
        log.append(batch, {"orders": {"i": i}}, [], NOW)
        everything += batch
    return Log(place, log, everything)


@pytest.mark.parametrize("lost", ["nothing", "files", "some", "all"])
def test_a_task_whose_file_has_gone_looks_again(written: Log, lost: str) -> None:
    """A spool moves into the store between planning and reading; or there was no local file to begin with."""
    head = written.log.point.byte
    options = SourceOptions.parse({"dataDir": str(written.place.path), "pipeline": "shop"})
    files = locate(options.access, options.journal, 0, head)
    assert len(files) > 2
    if lost == "files":
        files = [file._replace(path=f"{file.path}.gone") for file in files]
    elif lost == "some":
        files = files[1::2]
    elif lost == "all":
        files = []
    read = [
        offset
        for batch in read_range(options, None, JournalRange(options.journal, 0, head, files))
        for offset in batch.column("offset").to_pylist()
    ]
    assert read == list(range(30_000))


def test_what_no_local_file_holds_comes_through_the_broker(
    written: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(self: Client, journal: str, begin: int, end: int) -> list[Span]:
        return [Span(begin, end, Path("/nowhere"), 0, Codec.NONE)]

    monkeypatch.setattr(Client, "locate", elsewhere)
    options = SourceOptions.parse({"dataDir": str(written.place.path), "pipeline": "shop"})
    batches = list(read_range(options, None, JournalRange(options.journal, 0, written.log.point.byte)))
    assert sum(batch.num_rows for batch in batches) == 30_000


@pytest.mark.parametrize("index", [True, False], ids=["with the index", "without"])
def test_batches_of_a_log_keep_to_their_limits(written: Log, index: bool) -> None:
    path = str(written.place.path)
    reached = {"dataDir": path} if index else {"broker": f"unix:{path}/broker.sock"}
    for limits in ({"maxMessages": "3000"}, {"maxBytes": "300000"}, {"maxMessages": "1"}, {"maxBytes": "1"}):
        source = PenstockSource({**reached, "pipeline": "shop", "wait": "0.05", **limits})
        reader = source.streamReader(schema_of(RECORDS_SCHEMA))
        position = reader.initialOffset()
        seen: list[int] = []
        for _ in range(12):
            end = reader.latestOffset(position, reader.getDefaultReadLimit())
            assert end["offset"] - position["offset"] <= int(limits.get("maxMessages", 30_000))
            if "maxBytes" in limits and int(limits["maxBytes"]) > 1000:
                assert end["byte"] - position["byte"] <= 300_000
            for partition in reader.partitions(position, end):
                for batch in reader.read(partition):
                    assert isinstance(batch, pa.RecordBatch)
                    seen += batch.column("offset").to_pylist()
            position = end
            assert seen == list(range(position["offset"]))
        assert len(seen) >= 10, limits
        assert reader.latestOffset(position, ReadAllAvailable()) == written.log.point._asdict()


def test_a_log_without_an_index_is_cut_where_fragments_begin(written: Log) -> None:
    options = SourceOptions.parse(
        {"broker": f"unix:{written.place.path}/broker.sock", "pipeline": "shop", "partitions": "4"}
    )
    found = RecordPlanner(options, stream=False)
    begins = {fragment.spec.begin for fragment in written.place.client.fragments(written.log.journal)}
    assert len(begins) > 1
    assert set(found._borders(0, written.log.point.byte)) <= begins


@pytest.mark.parametrize("parts", [2, 3, 7])
def test_large_appends_are_cut_between_records_into_parts_of_one_size(
    place: Place, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    monkeypatch.setattr("penstock.spark.planner.SMALL_BATCH", 1000)
    log = CommitLog(place.client, f"large-{parts}", place.path / "index", 1 << 30, NOW)
    for i in range(0, 900, 300):
        log.append(messages(i, 300), {}, [], NOW)
    options = {
        "broker": f"unix:{place.path}/broker.sock", "pipeline": f"large-{parts}", "partitions": str(parts),
    }  # fmt: skip
    parsed = SourceOptions.parse(options)
    found = RecordPlanner(parsed, stream=False).batch()
    sizes = [one.end - one.begin for one in found if isinstance(one, JournalRange)]
    assert len(sizes) == parts
    assert max(sizes) - min(sizes) < log.point.byte / parts / 4
    offsets = [
        offset
        for one in found
        for batch in read_range(parsed, None, one)
        for offset in batch.column("offset").to_pylist()
    ]
    assert offsets == list(range(900))


def test_a_batch_is_gone_through_once_however_many_parts_lie_in_an_append(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.spark.planner.SMALL_BATCH", 100)
    log = CommitLog(place.client, "one", place.path / "index", 1 << 30, NOW)
    log.append(messages(0, 900), {}, [], NOW)
    walks: list[tuple[int, int]] = []
    walked = RecordPlanner._walked

    def noted(self: RecordPlanner, below: int, ideal: int) -> int:
        walks.append((below, ideal))
        return walked(self, below, ideal)

    monkeypatch.setattr(RecordPlanner, "_walked", noted)
    parsed = SourceOptions.parse(
        {"broker": f"unix:{place.path}/broker.sock", "pipeline": "one", "partitions": "30"}
    )
    assert len(RecordPlanner(parsed, stream=False).batch()) == 30
    assert len(walks) > 20
    assert sum(high - low for low, high in walks) < 1.5 * log.point.byte


def test_a_batch_read_shows_what_compaction_kept_and_then_the_log(place: Place) -> None:
    log = CommitLog(place.client, "compacted", place.path / "index", 1 << 14, NOW)
    for i in range(0, 400, 20):
        log.append(messages(i, 20), {}, [], NOW)
    place.client.roll(log.journal)
    compact(log, MessageOffset(300), keep_bytes=None, keep_seconds=None, now=NOW)
    first = log.reader.first().offset
    assert 4 < first <= 300
    offsets = [row[0] for row in place.read(pipeline="compacted")]
    kept = [offset for offset in offsets if offset < first]
    assert kept == list(range(first - 4, first)), "the newest of each namespace"
    assert offsets[4:] == list(range(first, 400))
    assert [r[0] for r in place.read(pipeline="compacted", startOffset=2, endOffset=first + 3)] == [
        *kept, first, first + 1, first + 2,
    ]  # fmt: skip
    assert [r[0] for r in place.read(pipeline="compacted", startOffset=399)] == [399]
    with pytest.raises(DataLossError):
        place.read(pipeline="compacted", startOffset=2, failOnDataLoss=True)
    with pytest.raises(UsageError, match="compacted"):
        Stream(place, pipeline="compacted", startOffset=2)
    assert Stream(place, pipeline="compacted").batch()[0][0] == first
    assert place.read(pipeline="compacted", startOffset="latest") == []
