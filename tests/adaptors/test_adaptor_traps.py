"""The traps of the Transporter reference, section 10, that sources and sinks can fall into; named by number."""

from __future__ import annotations

import errno
import json
import sqlite3
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pytest
from tests.adaptors.packed import messages_of

from penstock import adaptors as a
from penstock.adaptors.base import Batch, SinkPosition, Stage, Staged
from penstock.adaptors.file.sink import FilePublisher
from penstock.adaptors.file.source import BadLineError
from penstock.base.disk import Buffer, Disk, DiskFile
from penstock.base.errors import AwayError
from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.log.commitlog import CommitLog
from penstock.log.message import MessageOffset, Mode, Resume

sqlite_module = import_module("penstock.adaptors.sqlite")  # the package gives its name to the function


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
        yield client


def opened(client: Client, tmp_path: Path) -> CommitLog:
    return CommitLog(client, "p", tmp_path / "cache", 1 << 24, now=1)


def append(log: CommitLog, batch: Batch) -> None:
    log.append(batch.messages, batch.positions, batch.completed, now=2)


def test_trap_6_a_copy_is_not_complete_because_another_namespaces_tail_wrote_the_last_entry(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_module, "MOST_ROWS", 1)
    database = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    database.executescript(
        "PRAGMA journal_mode = WAL; CREATE TABLE big (id INTEGER PRIMARY KEY); CREATE TABLE small (x)"
    )
    database.executemany("INSERT INTO big VALUES (?)", [(n,) for n in range(1, 6)])
    database.execute("INSERT INTO small VALUES (1)")
    source = a.sqlite(uri=f"sqlite://{tmp_path}/shop.db", tail=True, poll_interval=1e-9).source()

    log, stop = opened(client, tmp_path), threading.Event()
    for batch in source.read({"small"}.__contains__, log.resume(), stop):
        append(log, batch)
        if batch.completed:
            stop.set()

    stop = threading.Event()
    for batch in source.read({"big", "small"}.__contains__, log.resume(), stop):
        append(log, batch)
        if batch.messages[-1].ns == "small":
            break  # as kill -9 would: the tail of `small` wrote last, `big` is in the middle of its copy
        database.execute("INSERT INTO small VALUES (2)")

    again = opened(client, tmp_path)
    resume = again.resume()
    end = again.point.offset
    assert [record.ns for record in again.reader.show(end - 1, end - 1)] == ["small"]
    assert (resume["small"].mode, resume["big"].mode) == (Mode.SYNC, Mode.COPY)
    last = resume["big"].message
    assert last is not None
    assert json.loads(last.data) == {"id": 1}, "the reader is given its last message"

    stop = threading.Event()
    rest: list[Batch] = []
    for batch in source.read({"big"}.__contains__, resume, stop):
        append(again, batch)
        rest.append(batch)
        if batch.completed:
            stop.set()
    assert [(m.data, m.mode) for batch in rest for m in batch.messages] == [
        (b'{"id":%d}' % n, Mode.COPY) for n in (2, 3, 4, 5)
    ]
    assert again.resume()["big"].mode is Mode.COMPLETE
    database.close()


class FullDisk(Disk):
    """Has room for `room` more bytes in all its files."""

    def __init__(self, room: int) -> None:
        self.room = room

    def open(self, path: Path, *, create: bool = False, mode: int = 0o640) -> DiskFile:
        return FullFile(self, path, super().open(path, create=create, mode=mode).fileno())


class FullFile(DiskFile):
    disk: FullDisk

    def write_at(self, data: Buffer, position: int) -> None:
        fits = bytes(data)[: self.disk.room]
        super().write_at(fits, position)
        self.disk.room -= len(fits)
        if len(fits) < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")

    def copy_from(self, source: Path, position: int) -> int:
        self.write_at(source.read_bytes(), position)
        return source.stat().st_size


def staged(target: Path, name: str, *texts: str, first: int = 0) -> Staged:
    sink = a.file(uri=f"file://{target}").sink()
    size = len(texts)
    rows = pa.record_batch(
        {
            "offset": pa.array(range(first, first + size), pa.int64()),
            "ts": pa.array([0] * size, pa.timestamp("us", "UTC")),
            "mode": ["copy"] * size,
            "op": ["insert"] * size,
            "ns": ["n"] * size,
            "key": pa.array([None] * size, pa.string()),
            "data": list(texts),
            "origin": ["n"] * size,
        }
    )
    return sink.stager().stage(Stage(sink.staging(target.parent) / "batch", name, 0), iter([rows]))


def test_trap_8_a_message_that_a_bulk_cannot_take_is_reported_and_the_others_counted(tmp_path: Path) -> None:
    report = staged(
        tmp_path / "out.jsonl", "part", '{"a":1}', '{"a":\n', '{"a":3}', '\n"b', '{"a":5}', first=7
    )
    assert Path(report.part).read_text() == '{"a":1}\n{"a":3}\n{"a":5}\n'
    assert [refusal.offset for refusal in report.refused] == [8, 10]
    assert all("data is not JSON" in refusal.error for refusal in report.refused)
    assert report.messages + len(report.refused) == 5, "each is delivered or refused, none is both or neither"
    assert (report.rows, report.first, report.last) == (3, 7, 11)


@pytest.mark.parametrize("room", [0, 5, 8, 20, 30])
def test_trap_8_a_bulk_written_in_part_is_no_success_and_comes_again_whole(tmp_path: Path, room: int) -> None:
    target = tmp_path / "out.jsonl"
    start = SinkPosition("log", 0, 0)
    before = FilePublisher(target)
    before.open(start)
    before.close()
    full = FilePublisher(target, disk=FullDisk(room))
    full.open(start)
    parts = [staged(target, "p1", '{"a":1}', '{"a":2}'), staged(target, "p2", '{"a":3}', first=2)]
    with pytest.raises(AwayError, match=r"cannot write .*out\.jsonl: No space left on device"):
        full.publish(parts, SinkPosition("log", 0, 3))
    full.close()

    later = FilePublisher(target)
    assert later.open(start).watermark == 0
    assert target.read_bytes() == b"", "what was written of it is gone"
    later.publish([staged(target, "p3", '{"a":1}', '{"a":2}', '{"a":3}')], SinkPosition("log", 0, 3))
    assert target.read_text() == '{"a":1}\n{"a":2}\n{"a":3}\n'
    later.close()


@pytest.mark.parametrize("tail", [False, True])
def test_trap_10_a_poison_line_is_an_error_by_file_line_and_byte_and_never_spins(
    tmp_path: Path, tail: bool
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"a":1}\n\n{"a":2}\n{"a":,}\n{"a":3}\n')
    source = a.file(uri=f"file://{path}", tail=tail).source()
    resume: dict[str, Resume] = {}
    found: list[Batch] = []
    for start in range(3):
        with pytest.raises(BadLineError) as error:
            found.extend(source.read(lambda ns: True, resume, threading.Event()))
        assert f"{path}, line 4, at byte 17: not JSON" in error.value.message, start
        assert "bad_lines='skip'" in str(error.value.hint)
        resume = {"in": Resume(Mode.COPY, found[-1].positions["in"], MessageOffset(1))}
    assert [m.data for batch in found for m in messages_of(batch)] == [b'{"a":1}', b'{"a":2}']
    path.write_bytes(path.read_bytes().replace(b'{"a":,}', b'{"a":0}'))
    mended = a.file(uri=f"file://{path}").source().read(lambda ns: True, resume, threading.Event())
    assert [m.data for batch in mended for m in messages_of(batch)] == [b'{"a":0}', b'{"a":3}']
