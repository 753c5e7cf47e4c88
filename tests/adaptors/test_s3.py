"""Objects of a bucket, read and written, against a server process that speaks S3."""

from __future__ import annotations

import gzip
import itertools
import json
import pickle
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.adaptors.test_file_formats import ALL, Log, data, everything
from tests.adaptors.test_partition_sink import ORDERS, at, order, rows_of
from tests.journal.s3 import SECRET, S3Server, aws_environment, s3_server

from penstock import adaptors as a
from penstock.adaptors.base import Guarantee, Publisher, Sink, Stage, Staged
from penstock.adaptors.formats import walks
from penstock.adaptors.formats.reading import FileChangedError
from penstock.adaptors.s3 import objects as s3_objects
from penstock.adaptors.s3.places import S3Target
from penstock.base.errors import AwayError, UsageError
from penstock.log.message import Resume
from penstock.log.schema import Schema
from penstock.testing.adaptors.delivery import GivenSchemas

pytestmark = pytest.mark.xdist_group("s3")
names = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with aws_environment(), s3_server() as running:
        yield running


class Place:
    """A prefix of its own."""

    def __init__(self, server: S3Server) -> None:
        self.server = server
        self.prefix = f"t{uuid.uuid4().hex[:8]}/"
        self.url = server.store_url(self.prefix)
        self.objects = s3_objects.Objects(self.url)

    def put(self, name: str, content: bytes) -> None:
        self.objects.put(name, [content])

    def get(self, name: str) -> bytes:
        return self.objects.bytes_of(name)

    def names(self) -> list[str]:
        return sorted(entry.name for entry in self.objects.entries())

    def files(self) -> list[str]:
        return [name for name in self.names() if not name.startswith("_")]

    def own(self) -> list[str]:
        return [name for name in self.names() if name.startswith("_penstock")]

    def read(self, resume: Mapping[str, Resume] | None = None, **given: object) -> list[object]:
        source = a.s3(uri=self.url, **given).source()
        return list(source.read(everything, resume or {}, threading.Event()))


@pytest.fixture
def place(server: S3Server) -> Place:
    return Place(server)


@pytest.fixture
def filled(place: Place) -> Place:
    for number in range(5):
        rows = b"".join(b'{"f":%d,"n":%d}\n' % (number, n) for n in range(6))
        name = f"sub/{number}.jsonl"
        place.put(name + ".gz" if number == 2 else name, gzip.compress(rows) if number == 2 else rows)
    place.put("_penstock/position-1", b"nonsense")
    place.put("sub/.hidden", b"nonsense")
    return place


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "BLOCK", 64)
    monkeypatch.setattr(walks, "MOST_LINES", 3)
    monkeypatch.setattr(s3_objects, "RANGE", 50)


# Source


@pytest.mark.usefixtures("small_batches")
def test_objects_are_one_namespace_resumed_inside_and_between(filled: Place) -> None:
    whole = filled.read(ns="all")
    assert data(whole) == ALL  # type: ignore[arg-type]
    log = Log()
    for taken, batch in enumerate(whole, 1):
        log.take(batch)  # type: ignore[arg-type]
        if taken % 2:
            rest = filled.read(log.resume, ns="all")
            assert data(whole[:taken]) + data(rest) == ALL  # type: ignore[arg-type]


def test_each_object_is_a_namespace_if_none_is_set(filled: Place) -> None:
    assert a.s3(uri=filled.url).source().namespaces() == [f"sub/{number}" for number in range(5)]
    assert data(filled.read()) == ALL  # type: ignore[arg-type]


def test_objects_that_stand_for_directories_are_none(filled: Place) -> None:
    """Consoles make them, and no sink could write where there was one."""
    for name in ("", "sub/", "none/of/these/"):
        filled.server.request("PUT", f"/fragments/{filled.prefix}{name}", b"")
    assert a.s3(uri=filled.url).source().namespaces() == ["none/of/these", *(f"sub/{n}" for n in range(5))]
    assert data(filled.read()) == ALL  # type: ignore[arg-type]
    empty = Place(filled.server)
    empty.server.request("PUT", f"/fragments/{empty.prefix}", b"")
    assert a.s3(uri=empty.url).sink().publisher().open(at(0)) == at(0)


def test_a_name_that_the_client_cannot_have_is_told(filled: Place) -> None:
    """It was waited for, as if the store were away."""
    filled.server.request("PUT", f"/fragments/{filled.prefix}a//b.jsonl", b"{}")
    with pytest.raises(UsageError, match=r"a//b\.jsonl") as refused:
        filled.read()
    assert "no part of a name may be empty" in str(refused.value.hint)


def test_parquet_and_csv_are_read_in_ranges(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(s3_objects, "RANGE", 700)
    table = pa.table({"id": pa.array(range(500)), "text": [f"row {n}" for n in range(500)]})
    pq.write_table(table, tmp_path / "x", row_group_size=100)
    place.put("a.parquet", (tmp_path / "x").read_bytes())
    place.put("b.csv", b"id,text\n" + b"".join(b"%d,row %d\n" % (n, n) for n in range(500, 600)))
    rows = [json.loads(text) for text in data(place.read(ns="x"))]  # type: ignore[arg-type]
    assert [int(row["id"]) for row in rows] == list(range(600))
    assert all(row["text"] == f"row {row['id']}" for row in rows)


@pytest.mark.usefixtures("small_batches")
def test_an_object_that_changed_while_it_was_read_is_an_error_by_name(filled: Place) -> None:
    filled.put("sub/0.jsonl", b"".join(b'{"n":%d}\n' % n for n in range(100)))
    source = a.s3(uri=filled.url, ns="all").source()
    batches = source.read(everything, {}, threading.Event())
    log = Log()
    log.take(next(batches))
    filled.put("sub/0.jsonl", b'{"another":1}\n' * 20)
    with pytest.raises(FileChangedError, match=r"sub/0\.jsonl changed while it was read"):
        list(batches)
    with pytest.raises(FileChangedError, match=r"sub/0\.jsonl was read in part, and is another one now"):
        filled.read(log.resume, ns="all")


def test_new_objects_are_read_as_they_come_also_those_that_sort_earlier(filled: Place) -> None:
    stop = threading.Event()
    source = a.s3(uri=filled.url, ns="all", watch=True, poll_interval=0.05).source()
    found: list[bytes] = []
    log = Log()

    def run() -> None:
        for batch in source.read(everything, {}, stop):
            log.take(batch)
            found.extend(data([batch]))

    thread = threading.Thread(target=run)
    thread.start()

    def wait(count: int) -> None:
        deadline = time.monotonic() + 60
        while len(found) < count and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(found) == count

    wait(30)
    filled.put("earlier.jsonl", b'{"late":1}\n')
    wait(31)
    stop.set()
    thread.join()
    filled.put("a.jsonl", b'{"late":2}\n')
    assert data(filled.read(log.resume, ns="all")) == [b'{"late":2}']  # type: ignore[arg-type]


# Sink


class Writer:
    def __init__(
        self, place: Place, scratch: Path, schemas: dict[str, Schema] | None = None, **given: object
    ) -> None:
        self.sink: Sink = a.s3(uri=place.url, **given).sink()
        known = {"orders": ORDERS} if schemas is None else schemas
        self.sink.use(GivenSchemas(known), "p.s")
        self.scratch = scratch
        self.publisher: Publisher = self.sink.publisher()

    def part(self, *texts: str, first: int) -> Staged:
        stager = pickle.loads(pickle.dumps(self.sink.stager()))
        stage = Stage(self.sink.staging(self.scratch), f"part{next(names)}", 0)
        report = stager.stage(stage, iter([rows_of(texts, first=first)]))
        assert isinstance(report, Staged)
        return report

    def write(self, *texts: str, first: int) -> None:
        self.publisher.publish([self.part(*texts, first=first)], at(first + len(texts)))


def rows_in(place: Place) -> list[int]:
    found = []
    for name in place.files():
        table = pq.read_table(pa.BufferReader(place.get(name)))
        found += [row["id"] for row in table.to_pylist()]
    return sorted(found)


def test_rows_become_parquet_by_partition_with_one_position(place: Place, tmp_path: Path) -> None:
    writer = Writer(place, tmp_path, partition_by=["ns", "city"])
    assert writer.publisher.open(at(0)) == at(0)
    writer.write(order(0), order(1, "a/b"), first=0)
    writer.write(order(2), first=2)
    assert rows_in(place) == [0, 1, 2]
    directories = {name.rpartition("/")[0] for name in place.files()}
    assert directories == {"ns=orders/city=Bern", "ns=orders/city=a%2Fb"}
    assert len(place.own()) <= 2
    writer.publisher.close()
    assert Writer(place, tmp_path).publisher.open(at(0)) == at(3)
    assert writer.sink.guarantee is Guarantee.EXACTLY_ONCE


def test_rows_become_lines_as_well(place: Place, tmp_path: Path) -> None:
    writer = Writer(place, tmp_path, format="jsonl", compression="gzip", partition_by=[])
    writer.publisher.open(at(0))
    writer.write('{"a": 1.00}', '{"b":2}', first=0)
    (name,) = place.files()
    assert gzip.decompress(place.get(name)) == b'{"a": 1.00}\n{"b":2}\n'


class Stop(Exception):  # noqa: N818 - what a crash is
    pass


@pytest.mark.parametrize(
    "where, after",
    [
        ("note", True),
        ("bring half", False),
        ("bring", True),
        ("save", False),
        ("save", True),
        ("forget_notes", False),
    ],
)
def test_a_crash_at_any_step_neither_loses_nor_doubles(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, after: bool
) -> None:
    writer = Writer(place, tmp_path, partition_by=["city"])
    writer.publisher.open(at(0))
    writer.write(order(0), first=0)
    method = where.partition(" ")[0]
    real = getattr(S3Target, method)

    def crash(self: S3Target, *arguments: Sequence[object]) -> None:
        if where == "bring half":
            real(self, list(arguments[0])[:1])
        elif after:
            real(self, *arguments)
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(S3Target, method, crash)
        with pytest.raises(Stop):
            writer.write(order(1), order(2, "Rom"), first=1)
    again = Writer(place, tmp_path, partition_by=["city"])
    position = again.publisher.open(at(0))
    assert position is not None
    watermark = position.watermark
    assert watermark == (3 if where == "forget_notes" or (where == "save" and after) else 1)
    assert rows_in(place) == list(range(watermark))
    if watermark == 1:
        again.write(order(1), order(2, "Rom"), first=1)
    assert rows_in(place) == [0, 1, 2]
    assert not [name for name in place.own() if "note" in name]


def test_of_two_writers_the_one_that_was_there_first_is_too_late(place: Place, tmp_path: Path) -> None:
    first = Writer(place, tmp_path)
    first.publisher.open(at(0))
    first.write(order(0), first=0)
    second = Writer(place, tmp_path)
    second.publisher.open(at(0))
    with pytest.raises(UsageError, match="is being written by another sink"):
        first.write(order(1), first=1)
    second.write(order(1), first=1)
    third = Writer(place, tmp_path)
    assert third.publisher.open(at(0)) == at(2)
    assert rows_in(place) == [0, 1]


@pytest.mark.parametrize("if_exists", ["refuse", "append", "replace"])
def test_what_others_put_is_refused_kept_or_lost(place: Place, tmp_path: Path, if_exists: str) -> None:
    place.put("old/x", b"1")
    writer = Writer(place, tmp_path, if_exists=if_exists)
    if if_exists == "refuse":
        with pytest.raises(UsageError, match="did not write, such as old/x"):
            writer.publisher.open(at(0))
        assert place.names() == ["old/x"]
        return
    writer.publisher.open(at(0))
    writer.write(order(0), first=0)
    assert ("old/x" in place.names()) is (if_exists == "append")


# Errors


def test_a_bucket_that_is_not_there_is_a_usage_error(server: S3Server) -> None:
    with pytest.raises(UsageError, match="NoSuchBucket"):
        a.s3(uri=server.store_url(bucket="nowhere")).source().namespaces()


def test_a_server_that_does_not_answer_is_away_and_tells_no_secret() -> None:
    with aws_environment():
        source = a.s3(uri="s3://b/p/?endpoint=http%3A%2F%2F127.0.0.1%3A9&region=x").source()
        with pytest.raises(AwayError) as error:
            source.namespaces()
    assert SECRET not in str(error.value)


def test_a_server_that_goes_away_in_the_middle_is_away(tmp_path: Path) -> None:
    with aws_environment(), s3_server() as server:
        place = Place(server)
        place.put("a.jsonl", b"{}\n" * 10)
        writer = Writer(Place(server), tmp_path)
        writer.publisher.open(at(0))
        part = writer.part(order(0), first=0)
        source = a.s3(uri=place.url, ns="x", watch=True, poll_interval=0.01).source()
        batches = source.read(everything, {}, threading.Event())
        next(batches)
        server.kill()
        with pytest.raises(AwayError):
            list(batches)
        with pytest.raises(AwayError):
            writer.publisher.publish([part], at(1))


@pytest.mark.parametrize(
    "given, complaint",
    [
        ({"uri": "http://x"}, "expected s3://BUCKET/PREFIX"),
        ({"uri": "s3://b/p", "types": {"a": "what"}}, "setting 'types'"),
        ({"uri": "s3://b/p", "delimiter": ""}, "setting 'delimiter'"),
        ({"uri": "s3://b/p", "ns": ""}, "setting 'ns'"),
    ],
)
def test_bad_settings_are_refused_at_load(given: dict[str, object], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        a.s3(**given)


def test_the_position_of_a_large_prefix_stays_small(filled: Place) -> None:
    log = Log()
    for batch in filled.read(ns="all"):
        log.take(batch)  # type: ignore[arg-type]
    assert len(msgspec.json.encode(log.resume["all"].position)) < 1000
