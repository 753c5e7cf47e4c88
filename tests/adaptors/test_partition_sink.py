"""Directories of files as a target: partitions as Hive has them, each row once whatever crashes."""

from __future__ import annotations

import gzip
import itertools
import json
import pickle
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from penstock import adaptors as a
from penstock.adaptors.base import Guarantee, Sink, SinkPosition, Stage, Staged
from penstock.adaptors.formats import partition_stage
from penstock.adaptors.formats.partition_stage import RAW
from penstock.base import locks
from penstock.base.errors import CorruptError, RefusedError, UsageError
from penstock.log.schema import Field, Kind, Schema, Told
from penstock.testing.adaptors.delivery import GivenSchemas

LOG = "0123-log"
ORDERS = Schema((Field("id", Kind.INT), Field("day", Kind.DATE), Field("city", Kind.STRING)), key=("id",))
names = itertools.count()
Given = dict[str, Schema | Sequence[Told]]


def at(watermark: int, generation: int = 0, log: str = LOG) -> SinkPosition:
    return SinkPosition(log, generation, watermark)


def rows_of(texts: Sequence[str], first: int = 0, ns: str = "orders", op: str = "insert") -> pa.RecordBatch:
    size = len(texts)
    offsets = range(first, first + size)
    return pa.record_batch(
        {
            "offset": pa.array(offsets, pa.int64()),
            "ts": pa.array([1_700_000_000_000_000] * size, pa.int64()).cast(pa.timestamp("us", "UTC")),
            "mode": ["copy"] * size,
            "op": [op] * size,
            "ns": [ns] * size,
            "key": pa.array([None] * size, pa.string()),
            "old_key": pa.array([None] * size, pa.string()),
            "data": list(texts),
            "origin": [ns] * size,
        }
    )


def order(number: int, city: str | None = "Bern", day: str = "2026-11-16") -> str:
    return json.dumps({"id": number, "day": {"$localDate": day}, "city": city}, separators=(",", ":"))


class Writer:
    """A sink with what the log knows about schemas."""

    def __init__(
        self, target: Path, schemas: Given | None = None, log: str = LOG, **settings: object
    ) -> None:
        given = {"format": "parquet", **settings}
        self.sink: Sink = a.file(uri=f"file://{target}/", **given).sink()
        self.schemas: Given = {"orders": ORDERS} if schemas is None else schemas
        self.sink.use(GivenSchemas(self.schemas), "p.s")
        self.publisher = self.sink.publisher()
        self.log = log
        self.position = self.publisher.open(at(0, log=log))

    def stage(self, *batches: pa.RecordBatch, skip_below: int = 0) -> Staged:
        stager = pickle.loads(pickle.dumps(self.sink.stager()))
        directory = self.sink.staging(Path("/nowhere")) / "batch"
        report = stager.stage(Stage(directory, f"part{next(names)}", skip_below), iter(batches))
        assert isinstance(report, Staged)
        return report

    def write(self, *batches: pa.RecordBatch, to: int) -> Staged:
        report = self.stage(*batches)
        self.publisher.publish([report], at(to, log=self.log))
        return report


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def files_of(target: Path) -> list[str]:
    return sorted(
        path.relative_to(target).as_posix()
        for path in target.rglob("*")
        if path.is_file() and ".penstock" not in path.parts
    )


def rows_in(target: Path) -> list[dict[str, object]]:
    found = ds.dataset(target, format="parquet", partitioning="hive", ignore_prefixes=[".", "_"])
    rows: list[dict[str, object]] = found.to_table().to_pylist()
    return sorted(rows, key=lambda row: int(str(row["id"])))


def test_rows_have_the_columns_of_the_schema_under_their_namespace(target: Path) -> None:
    writer = Writer(target)
    writer.write(rows_of([order(0), order(1, None)]), to=2)
    writer.write(rows_of([order(2)], first=2), to=3)
    assert [name.rpartition("-")[0] for name in files_of(target)] == [
        "ns=orders/part-00001-g0-000000000000002",
        "ns=orders/part-00001-g0-000000000000003",
    ]
    table = pq.read_table(target / files_of(target)[0], partitioning=None)
    assert table.schema.types == [pa.int64(), pa.date32(), pa.large_string()]
    assert [(row["id"], row["city"], row["ns"]) for row in rows_in(target)] == [
        (0, "Bern", "orders"), (1, None, "orders"), (2, "Bern", "orders"),
    ]  # fmt: skip
    assert writer.sink.guarantee is Guarantee.EXACTLY_ONCE


def test_tasks_write_the_columns_of_a_namespace_from_its_first_batch_on(target: Path) -> None:
    """The publisher has one process; were it to write them, it would for every batch of a run."""
    writer = Writer(target)
    staged = writer.stage(rows_of([order(0), order(1), order(2)]))
    assert not (Path(staged.part) / RAW).exists()
    assert list(Path(staged.part).rglob("*.parquet"))


def test_a_namespace_without_a_schema_is_left_to_the_publisher_once(target: Path) -> None:
    writer = Writer(target, {})
    first = writer.stage(rows_of([order(0), order(1), order(2)]))
    assert (Path(first.part) / RAW).exists(), "the log may know more when the batch is published"
    before = writer.sink.learnt
    writer.publisher.publish([first], at(3))
    assert writer.sink.learnt > before
    second = writer.stage(rows_of([order(0), order(1), order(2)]))
    assert not (Path(second.part) / RAW).exists()


def test_tasks_know_each_field_that_a_namespace_has_had(target: Path) -> None:
    """Also one that came and went since the tasks last got the sink."""
    writer = Writer(target)
    writer.write(rows_of([order(0)]), to=1)
    for field in ("extra", "other"):
        before = writer.sink.learnt
        writer.schemas["orders"] = Schema((Field("id", Kind.INT), Field(field, Kind.FLOAT)))
        writer.write(rows_of([f'{{"id":1,"{field}":0.5}}'], first=1), to=2)
        assert writer.sink.learnt > before
    before = writer.sink.learnt
    assert not writer.write(rows_of(['{"id":2,"extra":1.5}'], first=2), to=3).refused
    assert writer.sink.learnt == before, "nothing new, and no new copy"


def test_rows_are_parted_by_fields_date_and_namespace(target: Path) -> None:
    writer = Writer(target, partition_by=["ns", "date", "city"])
    texts = [order(0, "a/b=c%"), order(1, None), order(2, "Zürich"), order(3, "")]
    writer.write(rows_of(texts), to=4)
    assert [name.rpartition("/")[0] for name in files_of(target)] == [
        "ns=orders/date=2023-11-14/city=Zürich",
        "ns=orders/date=2023-11-14/city=__HIVE_DEFAULT_PARTITION__",
        "ns=orders/date=2023-11-14/city=a%2Fb%3Dc%25",
    ]
    found = [row["city"] for row in rows_in(target)]
    assert found == ["a/b=c%", None, "Zürich", None]
    inside = pq.read_table(target / files_of(target)[0], partitioning=None)
    assert inside.schema.names == ["id", "day"]


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
@pytest.mark.parametrize(
    ("field", "value", "directory"),
    [
        ("late", "x", "late=x"),
        ("latest", "x", "latest=x"),
        ("city", "x.parquet", "city=x.parquet"),
        ("city", "x.jsonl", "city=x.jsonl"),
        ("city", 'a\\"é\n', "city=a%5C%22é%0A"),
        ("a/b=c", "..", "a%2Fb%3Dc=.."),
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_a_partition_is_the_field_and_its_value_whatever_they_are(
    target: Path, form: str, field: str, value: str, directory: str, known: bool
) -> None:
    schema = Schema((Field("id", Kind.INT), Field(field, Kind.STRING)))
    writer = Writer(target, {"orders": schema} if known else {}, format=form, partition_by=[field])
    writer.write(rows_of([json.dumps({"id": 1, field: value})]), to=1)
    assert [name.rpartition("/")[0] for name in files_of(target)] == [directory]


def test_a_binary_is_a_partition_as_base64(target: Path) -> None:
    writer = Writer(
        target, {"orders": Schema((Field("id", Kind.INT), Field("b", Kind.BINARY)))}, partition_by=["b"]
    )
    writer.write(rows_of(['{"id":1,"b":{"$binary":{"base64":"AP8=","subType":"00"}}}', '{"id":2}']), to=2)
    assert [name.rpartition("/")[0] for name in files_of(target)] == [
        "b=AP8%3D",
        "b=__HIVE_DEFAULT_PARTITION__",
    ]


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_a_value_too_long_for_the_name_of_a_directory_is_refused(target: Path, form: str) -> None:
    writer = Writer(target, format=form, partition_by=["ns", "city"])
    report = writer.write(rows_of([order(0), order(1, "ü" * 126), order(2, "y" * 250), order(3)]), to=4)
    assert [(one.offset, one.error) for one in report.refused] == [
        (1, "field 'city' is too long for a partition: a name of 257 bytes, 255 is the most")
    ]
    assert (report.rows, len(files_of(target))) == (3, 2)


@pytest.mark.parametrize("word", ["ns", "date"])
def test_a_field_with_the_name_of_a_partition_that_is_no_field_stays_in_the_file(
    target: Path, word: str
) -> None:
    """It was left out, as if the directory told it: the directory tells the namespace, or the day of the message."""
    schema = Schema((Field("id", Kind.INT), Field(word, Kind.STRING)))
    writer = Writer(target, {"orders": schema}, partition_by=[word])
    writer.write(rows_of([f'{{"id":1,"{word}":"of the row"}}']), to=1)
    assert pq.ParquetFile(target / files_of(target)[0]).read().to_pylist() == [{"id": 1, word: "of the row"}]


def test_a_field_may_have_no_name(target: Path) -> None:
    writer = Writer(target, {"orders": Schema((Field("id", Kind.INT), Field("", Kind.STRING)))})
    writer.write(rows_of(['{"id":1,"":"x"}']), to=1)
    assert pq.ParquetFile(target / files_of(target)[0]).read().to_pylist() == [{"id": 1, "": "x"}]


def test_rows_that_are_all_partition_are_rows(target: Path) -> None:
    """Without a column there is no row in a Parquet file."""
    writer = Writer(target, {"orders": Schema((Field("id", Kind.INT),))}, partition_by=["id"])
    writer.write(rows_of(['{"id":1}', '{"id":1}', '{"id":2}']), to=3)
    inside = [pq.ParquetFile(target / name).read().to_pylist() for name in files_of(target)]
    assert inside == [[{"id": 1}, {"id": 1}], [{"id": 2}]]


def test_a_message_of_several_rows_is_refused_whole_also_if_they_come_in_two_batches(target: Path) -> None:
    writer = Writer(target)
    batches = [rows_of([order(1)]), rows_of(['{"id":"x"}']), rows_of([order(2)], first=1)]
    report = writer.write(*batches, to=2)
    assert ([one.offset for one in report.refused], report.rows) == ([0], 1)
    assert [row["id"] for row in rows_in(target)] == [2]


@pytest.mark.parametrize("met", [True, False])
def test_a_row_that_does_not_fit_is_refused(target: Path, met: bool) -> None:
    writer = Writer(target)
    if met:
        writer.write(rows_of([order(0)]), to=1)
    report = writer.stage(rows_of([order(1), '{"id":"x"}', '{"new":1}', order(4)], first=1))
    assert [one.offset for one in report.refused] == [2, 3]
    assert "field 'id': 'x' (string) does not fit int64" in report.refused[0].error
    assert "field 'new' is not in the schema" in report.refused[1].error
    assert (report.rows, report.messages) == (2, 2)
    writer.publisher.publish([report], at(5))
    assert [row["id"] for row in rows_in(target)] == [*([0] if met else []), 1, 4]


def test_a_batch_that_does_not_fit_what_the_log_says_meanwhile_is_refused_whole(target: Path) -> None:
    writer = Writer(target, {})
    report = writer.stage(rows_of([order(0), '{"id":"x"}']))
    writer.schemas["orders"] = ORDERS
    with pytest.raises(RefusedError, match="message 1 of orders: field 'id'"):
        writer.publisher.publish([report], at(2))
    assert files_of(target) == []
    assert writer.publisher.open(at(0)) == at(0)


def test_a_new_field_is_a_new_column_and_old_rows_are_written_as_well(target: Path) -> None:
    writer = Writer(target)
    writer.write(rows_of([order(0)]), to=1)
    writer.schemas["orders"] = Schema((Field("id", Kind.INT), Field("extra", Kind.FLOAT)))
    report = writer.stage(rows_of([order(1), '{"id":2,"extra":0.5}'], first=1))
    assert not report.refused
    writer.publisher.publish([report], at(3))
    table = pq.read_table(target / files_of(target)[1], partitioning=None)
    assert table.to_pylist()[1] == {"id": 2, "extra": 0.5, "day": None, "city": None}
    writer.publisher.close()
    again = Writer(target, schemas={})
    assert again.position == at(3)
    assert not again.stage(rows_of(['{"id":3,"extra":1.5}'], first=3)).refused


NUMBERED = Schema((Field("id", Kind.INT), Field("x", Kind.INT)))
NAMED = Schema((Field("id", Kind.INT), Field("x", Kind.STRING)))
RENAMED = (Told(0, NUMBERED), Told(2, NAMED))


def test_a_sink_that_lags_writes_rows_by_the_schema_that_held_when_they_were_logged(target: Path) -> None:
    """Of a column that has another type since, rows from before were refused for ever."""
    writer = Writer(target, {"orders": RENAMED})
    before, after = ['{"id":0,"x":5}', '{"id":1,"x":9007199254740993}'], ['{"id":2,"x":"a"}']
    assert not writer.write(rows_of(before), to=2).refused
    assert not writer.write(rows_of(after, first=2), to=3).refused
    tables = [pq.read_table(target / name, partitioning=None) for name in files_of(target)]
    assert [table.schema.field("x").type for table in tables] == [pa.int64(), pa.large_string()]
    assert [table.column("x").to_pylist() for table in tables] == [[5, 9007199254740993], ["a"]]


def test_a_batch_across_a_change_of_a_type_is_written_by_both_schemas(target: Path) -> None:
    writer = Writer(target, {"orders": RENAMED})
    wrong = ['{"id":1,"x":"early"}', '{"id":3,"x":4}']
    report = writer.write(rows_of(['{"id":0,"x":5}', wrong[0], '{"id":2,"x":"a"}', wrong[1]]), to=4)
    assert [refusal.offset for refusal in report.refused] == [1, 3]
    found = [pq.read_table(target / name, partitioning=None).to_pylist() for name in files_of(target)]
    assert sorted(map(str, found)) == ["[{'id': 0, 'x': 5}]", "[{'id': 2, 'x': 'a'}]"]


def test_a_field_that_came_and_went_while_the_sink_was_away_is_a_column(target: Path) -> None:
    went = (Told(0, NUMBERED), Told(1, NAMED), Told(2, Schema((Field("id", Kind.INT),))))
    writer = Writer(target, {"orders": went})
    assert not writer.write(rows_of(['{"id":0,"x":5}', '{"id":1,"x":"a"}', '{"id":2}']), to=3).refused
    assert not writer.write(rows_of(['{"id":3,"x":"b"}'], first=3), to=4).refused


def test_without_a_schema_the_document_is_a_column(target: Path) -> None:
    writer = Writer(target, schemas={}, envelope=True, partition_by=[])
    writer.write(rows_of(['{"a": 1.50}'], op="delete"), to=1)
    (row,) = pq.read_table(target / files_of(target)[0]).to_pylist()
    assert (row["data"], row["_op"], row["_ns"], row["_offset"]) == ('{"a": 1.50}', "delete", "orders", 0)


def test_json_lines_can_be_parted_and_compressed_as_well(target: Path) -> None:
    writer = Writer(target, format="jsonl", compression="gzip", partition_by=["city"])
    writer.write(rows_of([order(0), order(1, "Rom"), order(2)]), to=3)
    assert [name.rpartition("/")[0] for name in files_of(target)] == ["city=Bern", "city=Rom"]
    content = gzip.decompress((target / files_of(target)[0]).read_bytes())
    assert content.decode().splitlines() == [order(0), order(2)]


def test_messages_below_the_watermark_are_not_staged(target: Path) -> None:
    writer = Writer(target)
    writer.write(rows_of([order(0)]), to=1)
    report = writer.stage(rows_of([order(n) for n in range(4)]), skip_below=2)
    assert (report.rows, report.messages) == (2, 4)
    assert writer.stage(rows_of([order(0)]), skip_below=2).part == ""


def test_many_partitions_do_not_hold_many_files_open(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_stage, "MOST_OPEN", 3)
    monkeypatch.setattr(partition_stage, "MOST_HELD", 1000)
    writer = Writer(target, partition_by=["city"])
    writer.write(rows_of([order(-1)], first=99), to=1)
    batches = [
        rows_of([order(n, f"c{n % 7}") for n in range(start, start + 20)], first=start)
        for start in (0, 20, 40)
    ]
    writer.write(*batches, to=60)
    assert [row["id"] for row in rows_in(target)] == [-1, *range(60)]


@pytest.mark.parametrize("if_exists", ["refuse", "append", "replace"])
def test_what_others_wrote_is_refused_kept_or_lost(target: Path, if_exists: str) -> None:
    (target / "old").mkdir(parents=True)
    (target / "old" / "x.parquet").write_bytes(b"")
    if if_exists == "refuse":
        with pytest.raises(UsageError, match=r"did not write, such as old/x\.parquet"):
            Writer(target)
        return
    Writer(target, if_exists=if_exists).write(rows_of([order(0)]), to=1)
    assert ("old/x.parquet" in files_of(target)) is (if_exists == "append")


def test_what_another_log_wrote_is_not_written_over(target: Path) -> None:
    """Both begin at offset 0, and their batches may well end at the same one."""
    first = Writer(target)
    first.write(rows_of([order(0), order(1)]), to=2)
    first.publisher.close()
    Writer(target, log="another", if_exists="append").write(rows_of([order(7), order(8)]), to=2)
    assert [row["id"] for row in rows_in(target)] == [0, 1, 7, 8]


def test_a_rewound_sink_goes_on_in_a_new_generation(target: Path) -> None:
    writer = Writer(target)
    writer.write(rows_of([order(0)]), to=1)
    writer.publisher.close()
    other = a.file(uri=f"file://{target}/", format="parquet").sink().publisher()
    assert other.open(at(0, generation=1)) == at(0, generation=1)
    other.publish([], at(1, generation=1))
    other.close()
    with pytest.raises(UsageError, match="older than the target"):
        other.open(at(0))


def test_two_sinks_cannot_write_one_directory(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "PATIENCE", 0.1)
    writer = Writer(target)
    with pytest.raises(UsageError, match="is being written by another sink"):
        Writer(target)
    writer.publisher.close()


@pytest.mark.parametrize(
    "text, complaint",
    [("{}", "not the position"), ('{"format":9,"log":"x","generation":0,"watermark":0}', "format 9")],
)
def test_a_position_that_cannot_be_read_is_refused(target: Path, text: str, complaint: str) -> None:
    (target / ".penstock").mkdir(parents=True)
    (target / ".penstock" / "position").write_text(text)
    with pytest.raises(CorruptError, match=complaint):
        Writer(target)
