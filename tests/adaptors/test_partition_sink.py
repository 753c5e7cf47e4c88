"""Directories of files as a target: partitions as Hive has them, each row once whatever crashes."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import os
import pickle
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from penstock import adaptors as a
from penstock.adaptors.base import Guarantee, Publisher, Sink, SinkPosition, Stage, Staged
from penstock.adaptors.file.partition_local import LocalTarget
from penstock.adaptors.formats import partition_stage
from penstock.adaptors.formats.partition_sink import PartitionedSink, PartitionPublisher
from penstock.adaptors.formats.partition_stage import RAW, Layout
from penstock.base.disk import Buffer, Disk, DiskFile
from penstock.base.errors import CorruptError, RefusedError, UsageError
from penstock.log.schema import Field, Kind, LatestSchemas, Schema
from penstock.testing.powerloss import (
    BrokenPromiseError,
    Mark,
    RecordingDisk,
    check,
    every_sync_matters,
    marked,
    sync_sites,
)

LOG = "0123-log"
ORDERS = Schema((Field("id", Kind.INT), Field("day", Kind.DATE), Field("city", Kind.STRING)), key=("id",))
names = itertools.count()


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

    def __init__(self, target: Path, schemas: dict[str, Schema] | None = None, **settings: object) -> None:
        given = {"format": "parquet", **settings}
        self.sink: Sink = a.file(uri=f"file://{target}/", **given).sink()
        self.schemas = {"orders": ORDERS} if schemas is None else schemas
        self.sink.use(LatestSchemas(lambda ns: self.schemas.get(ns), lambda: self.schemas), "p.s")
        self.publisher = self.sink.publisher()
        self.position = self.publisher.open(at(0))

    def stage(self, *batches: pa.RecordBatch, skip_below: int = 0) -> Staged:
        stager = pickle.loads(pickle.dumps(self.sink.stager()))
        directory = self.sink.staging(Path("/nowhere")) / "batch"
        report = stager.stage(Stage(directory, f"part{next(names)}", skip_below), iter(batches))
        assert isinstance(report, Staged)
        return report

    def write(self, *batches: pa.RecordBatch, to: int) -> Staged:
        report = self.stage(*batches)
        self.publisher.publish([report], at(to))
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
    assert files_of(target) == [
        "ns=orders/part-00001-g0-000000000000002.parquet",
        "ns=orders/part-00001-g0-000000000000003.parquet",
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


def test_two_sinks_cannot_write_one_directory(target: Path) -> None:
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


# Crashes


class KillingDisk(Disk):
    """The process dies by SIGKILL at the n-th step that changes the disk."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self._step()
        super().remove(path)

    def sync_dir(self, path: Path) -> None:
        self._step()
        super().sync_dir(path)

    def replace_file(self, path: Path, content: Buffer, mode: int = 0o640) -> None:
        self._step()
        super().replace_file(path, content, mode)

    def open(self, path: Path, *, create: bool = False, mode: int = 0o640) -> DiskFile:
        self._step()
        return super().open(path, create=create, mode=mode)


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A directory on which a sync costs nothing."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as made:
        yield Path(made)


def staged_file(directory: Path, number: int, ns: str = "orders") -> Staged:
    """What a task would have staged: two files of one row."""
    part = directory / f"part{number}"
    for side in ("a", "b"):
        where = part / f"ns={ns}{side}"
        where.mkdir(parents=True, exist_ok=True)
        (where / "00000.jsonl").write_text(f"{number}\n")
    return Staged(str(part), 2, 1, 4, number, number, True, {ns: number})


def made(root: Path, disk: Disk) -> PartitionPublisher:
    layout = Layout("jsonl")
    sink = PartitionedSink(LocalTarget(root / "lake", disk), layout, "refuse")
    publisher = sink.publisher()
    assert isinstance(publisher, PartitionPublisher)
    return publisher


def visible(root: Path) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {"a": [], "b": []}
    for name in files_of(root / "lake"):
        side = name.partition("/")[0][-1]
        found[side] += [int(one) for one in (root / "lake" / name).read_text().split()]
    return {side: sorted(numbers) for side, numbers in found.items()}


def test_kill_9_at_any_step_neither_loses_nor_doubles(in_memory: Path) -> None:
    for steps in itertools.count():
        root = in_memory / str(steps)
        staged = [staged_file(root / "scratch", number) for number in range(2)]
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                publisher = made(root, KillingDisk(steps))
                publisher.open(at(0))
                for number, part in enumerate(staged):
                    publisher.publish([part], at(number + 1))
                os._exit(0)
            os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
        publisher = made(root, Disk())
        watermark = publisher.open(at(0)).watermark
        assert visible(root) == {"a": list(range(watermark)), "b": list(range(watermark))}, steps
        for number in range(watermark, 2):
            publisher.publish([staged_file(root / "again", number)], at(number + 1))
        publisher.close()
        assert visible(root) == {"a": [0, 1], "b": [0, 1]}
        if not os.WIFSIGNALED(status):
            assert steps > 20
            return


def publish_some(disk: RecordingDisk, root: Path) -> None:
    for start in (0, 2):
        publisher = made(root, disk)
        publisher.open(at(start))
        disk.mark(start)
        for number in range(start, start + 2):
            part = root / "staged" / f"part{number}"
            where = part / "ns=ordersa"
            disk.make_dirs(where)
            with disk.open(where / "00000.jsonl", create=True) as file:
                file.write_at(b"%d\n" % number, 0)
            publisher.publish([Staged(str(part), 1, 1, 2, number, number, True, {})], at(number + 1))
            disk.mark(number + 1)
        publisher.close()


def verify(root: Path, marks: Sequence[Mark]) -> None:
    promised = max(marked(marks, int), default=0)
    publisher = made(root, Disk())
    position = publisher.open(at(promised))
    publisher.close()
    assert position.watermark >= promised
    assert visible(root)["a"] == list(range(position.watermark))


def test_power_loss_neither_loses_nor_doubles_and_no_sync_is_needless() -> None:
    # The syncs in `open` and `load` are for what a killed process left in memory.
    exempt = [
        "partition_local.py:LocalTarget.open *",
        "partition_local.py:LocalTarget.load",
        "test_partition_sink.py:*",
    ]
    every_sync_matters(publish_some, verify, seed=1, untracked=["staged/*"], exempt=exempt)


def killed_publishers(steps: int) -> Callable[[RecordingDisk, Path], None]:
    """A publisher that is killed after so many steps, and one that opens what it left and says what it has."""

    def record(disk: RecordingDisk, root: Path) -> None:
        part = root / "staged" / "part0"
        disk.make_dirs(part / "ns=ordersa")
        with disk.open(part / "ns=ordersa" / "00000.jsonl", create=True) as file:
            file.write_at(b"0\n", 0)
        with disk.killed_after(steps):
            first = made(root, disk)
            first.open(at(0))
            first.publish([Staged(str(part), 1, 1, 2, 0, 0, True, {})], at(1))
        with contextlib.suppress(OSError):
            first.close()
        second = made(root, disk)
        disk.mark(second.open(at(0)).watermark)
        second.close()

    return record


def broken_without(
    site: str,
    record: Callable[[RecordingDisk, Path], None],
    verify: Callable[[Path, Sequence[Mark]], None],
    seed: int,
) -> bool:
    """Whether a promise that holds does not when this one sync is left out."""
    log = check(record, verify, seed=seed, untracked=["staged/*"]).log
    for found in sync_sites(log):
        if found.label == f"partition_local.py:{site}":
            try:
                check(record, verify, seed=seed, untracked=["staged/*"], drop_sync=found)
            except BrokenPromiseError:
                return True
    return False


@pytest.mark.soak
def test_what_a_killed_publisher_left_is_durable_before_it_is_told() -> None:
    site = "LocalTarget.load"
    needed = [broken_without(site, killed_publishers(steps), verify, seed=steps) for steps in range(40, 80)]
    assert any(needed), f"no promise is broken without the sync in {site}"


def test_a_position_without_files_is_durable_from_the_first_one_on() -> None:
    def record(disk: RecordingDisk, root: Path) -> None:
        publisher = made(root, disk)
        publisher.open(at(0))
        publisher.publish([], at(1))
        disk.mark(1)
        publisher.close()

    def kept(root: Path, marks: Sequence[Mark]) -> None:
        publisher = made(root, Disk())
        position = publisher.open(at(0))
        publisher.close()
        assert position.watermark >= max(marked(marks, int), default=0)

    assert broken_without("LocalTarget.open Disk.make_dirs", record, kept, seed=1)


# CSV, compressed lines and standard output: one file, or none


@pytest.fixture
def csv_file(tmp_path: Path) -> Path:
    return tmp_path / "out.csv"


def through(sink: Sink, *batches: pa.RecordBatch, to: int, start: int = 0) -> Staged:
    publisher: Publisher = sink.publisher()
    publisher.open(at(start))
    stager = pickle.loads(pickle.dumps(sink.stager()))
    report = stager.stage(Stage(sink.staging(Path("/nowhere")) / "b", f"part{next(names)}", 0), iter(batches))
    assert isinstance(report, Staged)
    publisher.publish([report], at(to))
    publisher.close()
    return report


def test_csv_has_one_header_and_fields_as_people_write_them(csv_file: Path) -> None:
    sink = a.file(uri=f"file://{csv_file}").sink()
    first = (
        '{"id":1,"t":"a \\"b\\", c\\n","none":null,"empty":"","n":1.50,"day":{"$localDate":"2026-11-16"},'
        '"raw":{"$binary":{"base64":"AP8=","subType":"00"}},"u":{"$uuid":"1a2f65b0-ef76-4981-8290-2f6ea12912d6"},'
        '"list":[1,{"a":2}],"b":true}'
    )
    through(sink, rows_of([first]), to=1)
    report = through(sink, rows_of(['{"id":2}', '{"id":3,"new":1}', "{"], first=1), to=4, start=1)
    assert csv_file.read_text() == (
        "id,t,none,empty,n,day,raw,u,list,b\n"
        '1,"a ""b"", c\n",,"",1.50,2026-11-16,AP8=,1a2f65b0-ef76-4981-8290-2f6ea12912d6,"[1,{""a"":2}]",true\n'
        "2,,,,,,,,,\n"
    )
    assert [(one.offset, one.error.partition(":")[0]) for one in report.refused] == [
        (2, "field 'new' is none of the columns"),
        (3, "data is not JSON"),
    ]
    assert sorted(path.name for path in csv_file.parent.iterdir()) == [".out.csv.penstock", "out.csv"]


def test_csv_columns_can_be_set_and_unknown_fields_ignored(csv_file: Path) -> None:
    settings = {"columns": ["id", "x"], "unknown_fields": "ignore", "delimiter": ";", "envelope": True}
    sink = a.file(uri=f"file://{csv_file}", **settings).sink()
    through(sink, rows_of(['{"id":"a;b","new":1}'], op="delete"), to=1)
    assert csv_file.read_text() == '_op;_ts;_ns;_offset;id;x\ndelete;1700000000000000;orders;0;"a;b";\n'


def test_csv_is_not_appended_to_columns_nobody_told(csv_file: Path) -> None:
    csv_file.write_text("id,x\n1,2\n")
    with pytest.raises(UsageError, match="columns that nobody has told"):
        through(a.file(uri=f"file://{csv_file}", if_exists="append").sink(), rows_of(["{}"]), to=1)
    sink = a.file(uri=f"file://{csv_file}", if_exists="append", columns=["id", "x"]).sink()
    through(sink, rows_of(['{"id":5}']), to=1)
    assert csv_file.read_text() == "id,x\n1,2\n5,\n"


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_a_compressed_target_is_cut_between_members_and_read_back(tmp_path: Path, ending: str) -> None:
    target = tmp_path / f"out.jsonl.{ending}"
    sink = a.file(uri=f"file://{target}").sink()
    through(sink, rows_of(['{"a":1}']), to=1)
    with target.open("ab") as file:
        file.write(b"what a crash left")
    through(sink, rows_of(['{"a":2}', '{"a":3}'], first=1), to=3, start=1)
    with pa.CompressedInputStream(pa.OSFile(str(target)), "gzip" if ending == "gz" else "zstd") as stream:
        assert stream.read().decode() == '{"a":1}\n{"a":2}\n{"a":3}\n'


def test_lines_go_to_standard_output(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    sink = a.file(uri="stdout://", format="csv", columns=["id"], unknown_fields="ignore").sink()
    stager, publisher = pickle.loads(pickle.dumps(sink.stager())), sink.publisher()
    assert publisher.open(at(0)) is None
    assert sink.guarantee is Guarantee.AT_LEAST_ONCE
    for number in range(2):
        report = stager.stage(Stage(tmp_path, f"part{number}", 0), iter([rows_of([order(number)])]))
        publisher.publish([report], at(number + 1))
    assert capfdbinary.readouterr().out == b"id\n0\n1\n"
    assert list(tmp_path.glob("part0")) == []
    with pytest.raises(UsageError, match="needs the setting 'columns'"):
        a.file(uri="stdout://", format="csv").sink()
