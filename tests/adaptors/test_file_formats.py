"""CSV, Parquet, compressed files, directories and standard input as sources: exact resume, bad rows named."""

from __future__ import annotations

import csv
import gzip
import io
import os
import threading
import time
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.adaptors.packed import messages_of

from penstock import adaptors as a
from penstock.adaptors.base import Batch
from penstock.adaptors.file.stdio import StdinSource
from penstock.adaptors.formats import csvrecords, ledger, walks
from penstock.adaptors.formats.ledger import Entry, Ledger
from penstock.adaptors.formats.reading import BadLineError, FileChangedError, Reading
from penstock.base.errors import CorruptError, UsageError
from penstock.log.message import MessageOffset, Mode, Resume
from penstock.log.schema import Kind


def everything(ns: str) -> bool:
    return True


def data(batches: list[Batch]) -> list[bytes]:
    return [message.data for batch in batches for message in messages_of(batch)]


def documents(batches: list[Batch]) -> list[object]:
    return [msgspec.json.decode(text) for text in data(batches)]


class Log:
    """What the log knows after some batches."""

    def __init__(self) -> None:
        self.resume: dict[str, Resume] = {}

    def take(self, batch: Batch) -> None:
        for ns, position in batch.positions.items():
            before = self.resume.get(ns)
            mode = before.mode if before else Mode.COPY
            if ns in batch.completed:
                mode = Mode.COMPLETE
            kept = msgspec.json.decode(msgspec.json.encode(position))
            self.resume[ns] = Resume(mode, kept, MessageOffset(0))


def read(path: Path | str, resume: Mapping[str, Resume] | None = None, **given: object) -> Iterator[Batch]:
    return a.file(uri=f"file://{path}", **given).source().read(everything, resume or {}, threading.Event())


def resumes_after_every_batch(path: Path | str, expected: list[bytes], least: int, **given: object) -> None:
    """Read whole, and again from each position on: never more, never less."""
    whole = list(read(path, None, **given))
    assert data(whole) == expected
    assert len(whole) >= least
    log = Log()
    for taken, batch in enumerate(whole, 1):
        log.take(batch)
        rest = list(read(path, log.resume, **given))
        assert data(whole[:taken]) + data(rest) == expected


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "BLOCK", 64)
    monkeypatch.setattr(walks, "MOST_LINES", 3)


LINES = [b'{"n":%d,"pad":"%s"}' % (n, b"x" * (n % 7)) for n in range(40)]
ZSTD = pa.Codec("zstd")


def zstd(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    whole: bytes = sink.getvalue().to_pybytes()
    return whole


# Compressed


@pytest.mark.parametrize("name, packed", [("in.jsonl.gz", gzip.compress), ("in.jsonl.zst", zstd)])
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.usefixtures("small_batches")
def test_a_compressed_file_is_resumed_exactly(
    tmp_path: Path, name: str, packed: object, members: int
) -> None:
    assert callable(packed)
    text = b"\n".join(LINES) + b"\n"
    third = len(text) // 3 + 5
    pieces = [text] if members == 1 else [text[:third], text[third : 2 * third], text[2 * third :]]
    (tmp_path / name).write_bytes(b"".join(packed(piece) for piece in pieces))
    resumes_after_every_batch(tmp_path / name, LINES, 10)
    assert a.file(uri=f"file://{tmp_path / name}").source().namespaces() == ["in"]


@pytest.mark.parametrize("name, packed", [("in.jsonl.gz", gzip.compress), ("in.jsonl.zst", zstd)])
def test_a_compressed_file_that_is_cut_off_is_an_error_by_name(
    tmp_path: Path, name: str, packed: object
) -> None:
    assert callable(packed)
    path = tmp_path / name
    path.write_bytes(packed(b"\n".join(LINES))[:-12])
    with pytest.raises(CorruptError, match=name):
        list(read(path))
    path.write_bytes(b"no such format")
    with pytest.raises(CorruptError, match=name):
        list(read(path))


def test_a_compressed_file_that_was_replaced_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl.gz"
    path.write_bytes(gzip.compress(LINES[0] + b"\n"))
    log = Log()
    for batch in read(path):
        log.take(batch)
    path.write_bytes(gzip.compress(LINES[1] + b"\n"))
    with pytest.raises(FileChangedError, match=r"in\.jsonl\.gz is not the file that was read"):
        list(read(path, log.resume))


@pytest.mark.parametrize("name", ["x.jsonl.gz", "x.parquet"])
def test_what_cannot_grow_cannot_be_followed(name: str) -> None:
    with pytest.raises(UsageError, match="setting 'tail'"):
        a.file(uri=f"file://{name}", tail=True)


# Dead letters


def test_bad_lines_go_to_the_dead_letters_with_file_line_and_byte(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"a":1}\nnonsense\n{"b":2}\n[]\n')
    batches = list(read(path, bad_lines="dead-letter"))
    assert data(batches) == [b'{"a":1}', b'{"b":2}']
    bad = [one for batch in batches for one in batch.bad]
    assert [(one.ns, one.place, one.content) for one in bad] == [
        ("in", f"{path}, line 2, byte 8", b"nonsense"),
        ("in", f"{path}, line 4, byte 25", b"[]"),
    ]
    assert bad[0].error.startswith("not JSON")


# CSV


def write_csv(path: Path, rows: list[list[str]], **how: object) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n", **how).writerows(rows)  # type: ignore[arg-type]


def test_csv_rows_become_documents_of_text(tmp_path: Path) -> None:
    path = tmp_path / "shop.csv"
    path.write_bytes(b'\xef\xbb\xbfid,name,note\r\n1,"a ""b"", c",\r\n\r\n2,"two\nlines",""\r\n3,\xc3\xa9,x')
    batches = list(read(path))
    assert documents(batches) == [
        {"id": "1", "name": 'a "b", c', "note": None},
        {"id": "2", "name": "two\nlines", "note": ""},
        {"id": "3", "name": "é", "note": "x"},
    ]
    schema = batches[0].schemas["shop"]
    assert [(field.name, field.kind) for field in schema.fields] == [
        ("id", Kind.STRING), ("name", Kind.STRING), ("note", Kind.STRING),
    ]  # fmt: skip
    assert sum(len(batch.schemas) for batch in batches) == 1


def test_csv_columns_can_have_types_and_what_does_not_read_as_one_is_bad(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(
        b"i,f,d,b,day,at,local,u,j\n"
        b"1,0.5,1.50,true,2026-11-16,2026-11-16T02:14:14Z,2026-11-16 02:14:14,"
        b'1a2f65b0-ef76-4981-8290-2f6ea12912d6,"{""a"":[1]}"\n'
        b"x,0,0,true,,,,,\n"
        b"2,,,,,,,,\n"
        b"3,0,zero,true,,,,,\n"
    )
    types = {"i": "int", "f": "float", "d": "decimal", "b": "bool", "day": "date", "at": "timestamp",
             "local": "local timestamp", "u": "uuid", "j": "any"}  # fmt: skip
    batches = list(read(path, types=types, bad_lines="dead-letter"))
    assert data(batches) == [
        b'{"i":1,"f":0.5,"d":1.50,"b":true,"day":{"$localDate":"2026-11-16"},"at":{"$date":"2026-11-16T02:14:14Z"},'
        b'"local":{"$localTimestamp":"2026-11-16T02:14:14"},"u":{"$uuid":"1a2f65b0-ef76-4981-8290-2f6ea12912d6"},'
        b'"j":{"a":[1]}}',
        b'{"i":2,"f":null,"d":null,"b":null,"day":null,"at":null,"local":null,"u":null,"j":null}',
    ]
    bad = [one for batch in batches for one in batch.bad]
    assert [one.place for one in bad] == [f"{path}, line 3, byte 144", f"{path}, line 5, byte 170"]
    assert bad[1].error == "column 'd': text that is not a number"
    assert b"x,0,0" in bad[0].content
    with pytest.raises(BadLineError, match="line 3, at byte 144"):
        list(read(path, types=types))


@pytest.mark.parametrize(
    "content, good, bad",
    [
        (b"a,b\n1,2\n3\n4,5\n", ["1", "4"], [(3, 8, "1 fields where 2 are expected")]),
        (b'a,b\n1,2\n3,x"y\n4,5\n6,"7\n8"\n', ["1", "4", "6"], [(3, 8, "a quote in the middle of a field")]),
        (b'a,b\n1,"2"x\n4,5\n', ["4"], [(2, 4, "a quote in the middle of a field")]),
        (b'a,b\n1,2\n3,"never\n4,5\n', ["1", "4"], [(3, 8, "a quote that is never closed")]),
        (
            b"a,b\n1,2,3\n1,\xff\n4,5",
            ["4"],
            [(2, 4, "3 fields"), (3, 10, "column 'b': text that is not UTF-8")],
        ),
    ],
)
def test_a_malformed_record_is_bad_and_swallows_nothing_behind_it(
    tmp_path: Path, content: bytes, good: list[str], bad: list[tuple[int, int, str]]
) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(content)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "in.csv").write_bytes(content)
    batches = list(read(tmp_path / "folder", ns="in", bad_lines="dead-letter"))
    assert [one["a"] for one in documents(batches)] == good  # type: ignore[index]
    found = [one for batch in batches for one in batch.bad]
    assert len(found) == len(bad)
    for one, (line, byte, reason) in zip(found, bad, strict=True):
        assert one.place.endswith(f"in.csv, line {line}, byte {byte}")
        assert one.error.startswith(reason)
    alone = list(read(path, bad_lines="dead-letter"))
    assert [one["a"] for one in documents(alone)] == good  # type: ignore[index]
    assert [one.error for batch in alone for one in batch.bad] == [one.error for one in found]
    with pytest.raises(BadLineError, match=f"line {bad[0][0]}, at byte {bad[0][1]}: {bad[0][2]}"):
        list(read(path))


@pytest.mark.parametrize("content", [b"a,b\r1,2\r3,4\r", b"a\r1\r2", b'"a",b\r"1",2\r'])
def test_lines_that_end_in_carriage_returns_alone_are_refused(tmp_path: Path, content: bytes) -> None:
    """All of them were the header, and there were no rows."""
    path = tmp_path / "in.csv"
    path.write_bytes(content)
    with pytest.raises(
        UsageError, match=r"in\.csv: its (lines end in carriage returns|first record is no header)"
    ):
        list(read(path))


@pytest.mark.parametrize("content", ["a,b\n1,2\n".encode("utf-16"), b"a,b\xff\n1,2\n"])
def test_names_of_columns_that_are_no_text_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="its first record is not UTF-8"):
        list(read(path, bad_lines="skip"))


@pytest.mark.parametrize(
    "name, content",
    [
        ("in.CSV.GZ", gzip.compress(b"a,b\n1,2\n", mtime=0)),
        ("in.csv.ZST", zstd(b"a,b\n1,2\n")),
        ("in.TSV", b"a\tb\n1\t2\n"),
        ("in.tsv.gz", gzip.compress(b"a\tb\n1\t2\n", mtime=0)),
    ],
)
def test_a_name_says_what_a_file_is_in_any_case_and_behind_its_compression(
    tmp_path: Path, name: str, content: bytes
) -> None:
    path = tmp_path / "folder" / name
    path.parent.mkdir()
    path.write_bytes(content)
    for where in (path, path.parent):
        assert documents(list(read(where))) == [{"a": "1", "b": "2"}]


@pytest.mark.parametrize("name, rest", [("in.jsonl", b'{"a":1}\n{"a"'), ("in.csv", b'a\n1\n"2')])
def test_a_last_line_that_nobody_can_finish_is_a_bad_one(tmp_path: Path, name: str, rest: bytes) -> None:
    path = tmp_path / f"{name}.gz"
    path.write_bytes(gzip.compress(rest))
    batches = list(read(path, bad_lines="dead-letter"))
    assert (len(documents(batches)), sum(len(batch.bad) for batch in batches)) == (1, 1)


texts = st.text(st.sampled_from('ab,;"\n é'), max_size=5)


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 4).flatmap(lambda width: st.lists(st.lists(texts, min_size=width, max_size=width), max_size=6)),
       st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]), st.sampled_from(["\n", "\r\n"]))  # fmt: skip
def test_records_are_those_of_the_csv_module(rows: list[list[str]], quoting: int, ending: str) -> None:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator=ending, quoting=quoting).writerows(rows)  # type: ignore[arg-type]
    text = buffer.getvalue().encode()
    width = len(rows[0]) if rows else 1
    found = csvrecords.split(text, width, ord(","))
    fields = [field.decode() for field in found.fields.to_pylist()]
    assert [fields[at : at + width] for at in range(0, len(fields), width)] == rows
    assert (found.size, found.wrong) == (len(text), None)


@pytest.mark.parametrize("how", [{}, {"delimiter": ";"}])
@pytest.mark.usefixtures("small_batches")
def test_csv_is_resumed_exactly_also_between_lines_of_a_field(tmp_path: Path, how: dict[str, str]) -> None:
    path = tmp_path / "in.csv"
    rows = [[str(n), "text\nof lines," * (n % 3), "x" * (n % 5)] for n in range(20)]
    write_csv(path, [["id", "text", "pad"], *rows], **how)
    expected = [
        msgspec.json.encode({"id": row[0], "text": row[1] or None, "pad": row[2] or None}) for row in rows
    ]
    resumes_after_every_batch(path, expected, 6, **how)


def test_names_of_columns_can_be_set_and_must_be_names(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(b"1,2\n3,4\n")
    assert documents(list(read(path, columns=["x", "y"]))) == [{"x": "1", "y": "2"}, {"x": "3", "y": "4"}]
    path.write_bytes(b"a,a\n1,2\n")
    with pytest.raises(UsageError, match="two columns have the name 'a'"):
        list(read(path))
    path.write_bytes(b"a,\n1,2\n")
    with pytest.raises(UsageError, match="a column without a name"):
        list(read(path))
    path.write_bytes(b"a,b\n1,2\n")
    with pytest.raises(UsageError, match="no column 'c'"):
        list(read(path, types={"c": "int"}))
    with pytest.raises(UsageError, match="setting 'types': column 'c' cannot be 'integer'"):
        a.file(uri="file://x.csv", types={"c": "integer"})
    with pytest.raises(UsageError, match="setting 'delimiter'"):
        a.file(uri="file://x.csv", delimiter="ab")


def test_a_csv_file_is_followed_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(b'id,text\n1,"half')
    batches = read(path, tail=True)
    first = next(batches)
    assert first.completed == ("in",)
    with path.open("ab") as file:
        file.write(b'\nwhole"\n2,b\n')
    assert documents([next(batches)]) == [{"id": "1", "text": "half\nwhole"}, {"id": "2", "text": "b"}]
    batches.close()  # type: ignore[attr-defined]


# Parquet

TABLE = pa.table(
    {
        "id": pa.array(range(16), pa.int64()),
        "total": pa.array([Decimal(n).scaleb(-2) for n in range(16)], pa.decimal128(10, 2)),
        "at": pa.array(range(16), pa.timestamp("us", "UTC")),
        "tags": pa.array([["a"] * (n % 3) for n in range(16)]),
    }
)


@pytest.mark.usefixtures("small_batches")
def test_parquet_is_read_with_its_schema_and_resumed_inside_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(TABLE, path, row_group_size=7)
    whole = list(read(path))
    assert data(whole)[7] == (
        b'{"id":7,"total":0.07,"at":{"$date":"1970-01-01T00:00:00.000007Z"},"tags":["a"]}'
    )
    kinds = [field.kind for field in whole[0].schemas["in"].fields]
    assert kinds == [Kind.INT, Kind.DECIMAL, Kind.TIMESTAMP, Kind.LIST]
    resumes_after_every_batch(path, data(whole), 6)
    assert len(data(whole)) == 16


def test_a_parquet_file_that_is_cut_off_is_an_error_by_name(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(TABLE, path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CorruptError, match=r"in\.parquet.* not a Parquet file, or cut off"):
        list(read(path))


# Directories


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "in"
    made.mkdir()
    for number in range(5):
        rows = b"".join(b'{"f":%d,"n":%d}\n' % (number, n) for n in range(6))
        name = f"{number}.jsonl"
        (made / (name + ".gz" if number == 2 else name)).write_bytes(
            gzip.compress(rows) if number == 2 else rows
        )
    (made / "_hidden.jsonl").write_bytes(b"nonsense")
    (made / ".hidden.jsonl").write_bytes(b"nonsense")
    (made / "9.jsonl.tmp").write_bytes(b"nonsense")
    (made / "sub").mkdir()
    return made


ALL = [b'{"f":%d,"n":%d}' % (f, n) for f in range(5) for n in range(6)]


@pytest.mark.parametrize("order", ["name", "time"])
@pytest.mark.usefixtures("small_batches")
def test_a_directory_is_one_namespace_resumed_inside_and_between_files(folder: Path, order: str) -> None:
    if order == "time":
        for number in (4, 3, 2, 1, 0):  # in this order they come
            path = next(folder.glob(f"{number}.jsonl*"))
            path.rename(folder / f"x{path.name}")
            time.sleep(0.01)
        expected = [b'{"f":%d,"n":%d}' % (f, n) for f in (4, 3, 2, 1, 0) for n in range(6)]
    else:
        expected = ALL
    resumes_after_every_batch(folder, expected, 10, ns="all", order=order)


@pytest.mark.usefixtures("small_batches")
def test_a_directory_is_a_namespace_a_file_if_none_is_set(folder: Path) -> None:
    assert a.file(uri=f"file://{folder}").source().namespaces() == ["0", "1", "2", "3", "4"]
    batches = list(read(folder))
    assert data(batches) == ALL
    assert [ns for batch in batches for ns in batch.completed] == ["0", "1", "2", "3", "4"]
    resumes_after_every_batch(folder, ALL, 10)


def test_a_pattern_chooses_files(folder: Path) -> None:
    (folder / "sub" / "7.jsonl").write_bytes(b'{"deep":1}\n')
    assert data(list(read(f"{folder}/[13].jsonl", ns="x"))) == ALL[6:12] + ALL[18:24]
    assert data(list(read(f"{folder}/**/7.jsonl", ns="x"))) == [b'{"deep":1}']
    assert a.file(uri=f"file://{folder}/**/7.jsonl").source().namespaces() == ["sub/7"]


def test_two_files_of_one_name_are_not_one_namespace(folder: Path) -> None:
    (folder / "0.csv").write_bytes(b"a\n1\n")
    with pytest.raises(
        UsageError, match=r"0\.csv and 0\.jsonl would be the same namespace|0\.jsonl and 0\.csv"
    ):
        list(read(folder))


def test_a_directory_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such directory"):
        list(read(f"{tmp_path}/nowhere/", ns="x"))


class Watching:
    """A source that watches a directory, read in a thread."""

    def __init__(self, folder: Path, resume: Mapping[str, Resume] | None = None, settle: float = 0.0) -> None:
        self.log = Log()
        self.found: list[bytes] = []
        self.stop = threading.Event()
        given: dict[str, object] = {"ns": "all", "watch": True, "settle": settle, "poll_interval": 0.01}
        source = a.file(uri=f"file://{folder}", **given).source()
        self._batches = source.read(everything, resume or {}, self.stop)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for batch in self._batches:
            self.log.take(batch)
            self.found += data([batch])

    def wait(self, count: int) -> None:
        deadline = time.monotonic() + 60
        while len(self.found) < count and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(self.found) == count

    def end(self) -> Mapping[str, Resume]:
        self.stop.set()
        self._thread.join(20)
        return self.log.resume


def test_new_files_are_read_as_they_appear_also_those_that_sort_earlier(folder: Path) -> None:
    watching = Watching(folder)
    watching.wait(30)
    (folder / "..aside").write_bytes(b'{"late":1}\n')
    time.sleep(0.05)
    os.rename(folder / "..aside", folder / "0-earlier.jsonl")
    watching.wait(31)
    (folder / "in-place.jsonl").write_bytes(b'{"late":2}\n')
    watching.wait(32)
    resume = watching.end()
    assert watching.found[30:] == [b'{"late":1}', b'{"late":2}']
    again = Watching(folder, resume)
    (folder / "5.jsonl").write_bytes(b'{"late":3}\n')
    again.wait(1)
    again.end()
    assert again.found == [b'{"late":3}']


def test_a_file_that_is_still_written_is_not_taken(folder: Path) -> None:
    watching = Watching(folder, settle=2.0)
    path = folder / "growing.jsonl"
    for n in range(8):
        with path.open("ab") as file:
            file.write(b'{"grows":%d' % n)
            file.flush()
            time.sleep(0.1)
            file.write(b"}\n")
    watching.wait(38)
    watching.end()
    assert watching.found[30:] == [b'{"grows":%d}' % n for n in range(8)]


def test_a_file_that_is_still_written_is_not_passed_over_for_a_newer_one_that_is_whole(folder: Path) -> None:
    """One that is renamed into place is whole at once; what is known by its time must not cover the older one."""
    watching = Watching(folder, settle=0.5)
    watching.wait(30)
    whole = folder / ".aside"
    whole.write_bytes(b'{"whole":1}\n')
    os.utime(whole, (1_000_000_000, 1_000_000_000))
    (folder / "in-place.jsonl").write_bytes(b'{"written":1}\n')
    time.sleep(0.05)
    whole.rename(folder / "whole.jsonl")
    watching.wait(32)
    watching.end()
    assert sorted(watching.found[30:]) == [b'{"whole":1}', b'{"written":1}']


def test_a_file_of_the_future_is_read_now(folder: Path) -> None:
    watching = Watching(folder, settle=0.1)
    watching.wait(30)
    (folder / "future.jsonl").write_bytes(b'{"future":1}\n')
    os.utime(folder / "future.jsonl", (4_000_000_000, 4_000_000_000))
    watching.wait(31)
    watching.end()


@pytest.mark.usefixtures("small_batches")
def test_a_file_that_changed_while_it_was_read_is_an_error_by_name(folder: Path) -> None:
    log = Log()
    batches = read(folder, ns="all")
    log.take(next(batches))
    (folder / "0.jsonl").write_bytes(b'{"another":1}\n')
    with pytest.raises(FileChangedError, match=r"0\.jsonl was read in part, and is another one now"):
        list(read(folder, log.resume, ns="all"))
    (folder / "0.jsonl").unlink()
    with pytest.raises(FileChangedError, match=r"0\.jsonl was read in part, and is gone"):
        list(read(folder, log.resume, ns="all"))


def test_a_file_without_rows_is_read_once_as_well(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"")
    (tmp_path / "b.jsonl").write_bytes(b"{}\n")
    batches = list(read(tmp_path, ns="all"))
    assert data(batches) == [b"{}"]
    assert batches[-1].completed == ("all",)


# The ledger


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), max_size=25, unique_by=lambda one: one[0]),
    st.sampled_from(["name", "time"]),
    st.data(),
)
def test_each_file_is_new_once_whatever_comes_when(
    files: list[tuple[int, int]], order: ledger.FileOrder, draw: st.DataObject
) -> None:
    """Files appear with times that never go back; the reader crashes anywhere and has only what it kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "MOST", 4)
        held = Ledger(order, 0)
        clock, there, read_ones = 0, [], []
        for name, later in files:
            clock += later
            there.append(Entry(f"{name:02d}", clock, 1, "t"))
            if draw.draw(st.booleans()):
                continue
            for entry in held.new(there)[: draw.draw(st.integers(0, 5))]:
                read_ones.append(entry.name)
                held.add(entry)
            if not held.new(there):
                held.end_pass()
            kept = msgspec.json.decode(msgspec.json.encode(held.kept()), type=ledger.Kept)
            held = Ledger.of(kept, order, 0)
        for entry in held.new(there):
            read_ones.append(entry.name)
            held.add(entry)
    assert sorted(read_ones) == sorted(entry.name for entry in there)


def test_the_ledger_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "MOST", 100)
    held = Ledger("name", 0)
    for _ in range(5):
        for entry in held.new([Entry(f"{n:05d}", n // 3, 1, "t") for n in range(5000)]):
            held.add(entry)
        held.end_pass()
    assert len(held.recent) + len(held.older) <= 100
    assert len(msgspec.json.encode(held.kept())) < 5000


def test_the_ledger_stays_small_also_if_files_may_be_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "MOST", 100)
    held = Ledger("name", 10**9)
    there: list[Entry] = []
    for number in range(1000):
        there.append(Entry(f"{number * 7919 % 1000:05d}", number // 3, 1, "t"))
        (entry,) = held.new(there)
        held.add(entry)
        held.end_pass()
        assert len(held.recent) + len(held.older) <= 160
    assert held.has(Entry("an old one", 5, 1, "t"))
    assert not held.has(Entry("a late one", 320, 1, "t"))


# Standard input


def test_lines_of_standard_input_are_read_to_its_end() -> None:
    reader, writer = os.pipe()
    source = StdinSource("stdin", Reading("dead-letter"), fd=reader)
    os.write(writer, b'{"a":1}\n{"b"')
    batches = source.read(everything, {}, threading.Event())
    assert data([next(batches)]) == [b'{"a":1}']
    os.write(writer, b':2}\nbad\n{"c":3}')
    assert data([next(batches)]) == [b'{"b":2}']
    os.close(writer)
    rest = list(batches)
    os.close(reader)
    assert data(rest) == [b'{"c":3}']
    assert rest[-1].completed == ("stdin",)


def test_a_source_of_standard_input_ends_when_it_is_stopped() -> None:
    reader, writer = os.pipe()
    stop = threading.Event()
    batches = StdinSource("stdin", Reading(), fd=reader).read(everything, {}, stop)
    threading.Timer(0.1, stop.set).start()
    assert list(batches) == []
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("uri, half", [("stdout://", "source"), ("stdin://", "sink")])
def test_standard_input_is_no_sink_and_output_no_source(uri: str, half: str) -> None:
    with pytest.raises(UsageError, match=f"cannot be a {half}"):
        getattr(a.file(uri=uri), half)()
