"""CSV, compressed lines and standard output: one file, or none."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from tests.adaptors.test_partition_sink import at, names, order, rows_of

from penstock import adaptors as a
from penstock.adaptors.base import Guarantee, Publisher, Sink, Stage, Staged
from penstock.adaptors.file.sink import position_of
from penstock.base.errors import UsageError


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


def test_columns_are_those_of_the_first_message_that_has_fields(csv_file: Path) -> None:
    """A truncate has none: its word was taken for the one column there is, and the fields of all others ignored."""
    sink = a.file(uri=f"file://{csv_file}", unknown_fields="ignore").sink()
    emptied = rows_of(['{"command":"truncate"}'], op="command")
    nothing, some = rows_of(["{}"], first=1), rows_of(['{"id":1,"x":2}', '{"id":2}'], first=2)
    report = through(sink, emptied, nothing, some, to=4)
    assert csv_file.read_text() == "id,x\n1,2\n2,\n"
    assert [(one.offset, one.error.partition(":")[0]) for one in report.refused] == [
        (1, "no fields, and there is no header yet")
    ]


def test_a_null_that_would_be_a_blank_line_is_refused(csv_file: Path) -> None:
    """Readers skip those: the row was gone when the file was read."""
    rows = rows_of(['{"id":1}', '{"id":null}', '{"id":""}', "{}"])
    sink = a.file(uri=f"file://{csv_file}", columns=["id"]).sink()
    report = sink.stager().stage(Stage(csv_file.parent / "parts", "part", 0), iter([rows]))
    assert [(refusal.offset, "set null_text" in refusal.error) for refusal in report.refused] == [
        (1, True),
        (3, True),
    ]
    assert Path(report.part).read_text() == '1\n""\n'
    named = a.file(uri=f"file://{csv_file}", columns=["id"], null_text="NULL").sink()
    through(named, rows, to=4)
    assert csv_file.read_text() == 'id\n1\nNULL\n""\nNULL\n'


@pytest.mark.parametrize("name", ["out.tsv", "out.TSV.gz"])
def test_between_the_fields_of_a_tsv_stand_tabs(tmp_path: Path, name: str) -> None:
    target = tmp_path / name
    through(a.file(uri=f"file://{target}").sink(), rows_of(['{"id":1,"x":"a,b\\tc"}']), to=1)
    content = target.read_bytes()
    assert (gzip.decompress(content) if name.endswith("gz") else content) == b'id\tx\n1\t"a,b\tc"\n'
    set_so = tmp_path / "set.tsv"
    through(a.file(uri=f"file://{set_so}", delimiter=";").sink(), rows_of(['{"id":1,"x":2}']), to=1)
    assert set_so.read_text() == "id;x\n1;2\n"


def test_a_file_with_commas_gets_no_records_with_something_else(tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    through(a.file(uri=f"file://{target}").sink(), rows_of(['{"id":1,"x":2}']), to=1)
    target.rename(tmp_path / "out.tsv")
    position_of(target).rename(position_of(tmp_path / "out.tsv"))
    with pytest.raises(UsageError, match="has commas between its fields"):
        through(a.file(uri=f"file://{tmp_path}/out.tsv").sink(), rows_of(['{"id":2,"x":2}'], first=1), to=2)


def test_a_number_that_looks_as_a_null_does_is_in_quotes(csv_file: Path) -> None:
    through(
        a.file(uri=f"file://{csv_file}", null_text="-1").sink(), rows_of(['{"a":-1,"b":null,"c":"-1"}']), to=1
    )
    assert csv_file.read_text() == 'a,b,c\n"-1",-1,"-1"\n'


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv"])
def test_a_message_of_several_rows_is_refused_whole_also_if_they_come_in_two_batches(
    tmp_path: Path, name: str
) -> None:
    target = tmp_path / name
    batches = [rows_of(['{"id":1}']), rows_of(['{"id"\n:']), rows_of(['{"id":3}'], first=1)]
    report = through(a.file(uri=f"file://{target}").sink(), *batches, to=2)
    assert ([one.offset for one in report.refused], report.messages) == ([0], 1)
    assert target.read_text().removeprefix("id\n") in ('{"id":3}\n', "3\n")


@pytest.mark.parametrize(
    "before, behind", [("none", "gzip"), ("none", "zstd"), ("gzip", "none"), ("zstd", "gzip")]
)
@pytest.mark.parametrize("mine", [True, False])
def test_lines_are_not_added_to_those_that_are_compressed_in_another_way(
    tmp_path: Path, before: str, behind: str, mine: bool
) -> None:
    target = tmp_path / "out.jsonl"
    through(a.file(uri=f"file://{target}", compression=before).sink(), rows_of(['{"id":1}']), to=1)
    if not mine:
        (tmp_path / ".out.jsonl.penstock").unlink()
    content = target.read_bytes()
    again = a.file(uri=f"file://{target}", compression=behind, if_exists="append").sink()
    with pytest.raises(UsageError, match=f"has the compression '{before}', and '{behind}' was to be added"):
        through(again, rows_of(['{"id":2}'], first=1), to=2, start=1)
    assert target.read_bytes() == content


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
