"""`try` and `test`: functions and pipelines without data, servers or a data directory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .operating import Shop

CASES = """\
cases:
  - name: big orders are slimmed
    input:
      - {ns: orders, data: {id: 1, total: 5}}
      - {ns: orders, op: update, data: '{"id":2, "total":5.0}'}
      - {ns: items, data: {id: 3}}
    expect:
      ids: [drop, {data: {id: 2}, op: update}, drop]
      audit:
        - {contains: {total: 5}}
        - {text: '{"id":2, "total":5.0}', ns: orders}
        - {data: {id: 3}}
"""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    return Shop(tmp_path, monkeypatch)


def test_try_a_function_of_a_pipeline(bench: Shop) -> None:
    assert bench.ok("try", "shop.py:slim", input='{"id":1.0,"x":2}') == '{"id":1.0}\n'
    result = bench.run("try", "shop.py:shop:big", input='{"id":2}\n{"id":1}\n\n{"id":3}')
    assert result.exit_code == 0
    assert result.stdout == '{"id":2}\n{"id":3}\n'
    assert result.stderr == "document 2 dropped\n"
    assert not bench.data.exists()


def test_try_a_built_in_function_with_settings(bench: Shop) -> None:
    assert (
        bench.ok("try", "pick", "--set", 'fields=["b"]', input='{\n "a": 1,\n "b": [2]\n}') == '{"b":[2]}\n'
    )
    moved = bench.run("try", "remap", "--set", 'ns_map={"a":"b"}', "--ns", "a", input="{}")
    assert (moved.stdout, moved.stderr) == ("{}\n", "document 1: ns b\n")


def test_try_tells_what_is_refused_and_ends_with_1(bench: Shop) -> None:
    result = bench.run("try", "shop.py:big", "--json", input='{"id":"x"}\n{"id":7}\nnonsense')
    assert result.exit_code == 1
    told = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["outcome"] for line in told] == ["refused", "kept", "refused"]
    assert "incompatible type" in told[0]["error"]
    assert "document 1 refused: " in bench.run("try", "shop.py:big", input='{"id":"x"}').stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("shop.py:slm",), "did you mean 'slim'?"),
        (("shop.py",), "say which function of shop.py"),
        (("pik",), "did you mean 'pick'?"),
        (("pick",), "setting 'fields' is missing"),
        (("pick", "--set", "fields"), "expected NAME=VALUE"),
        (("pick", "--set", "fields=id"), "--set takes JSON"),
        (("shop.py:slim", "--set", "fields=[]"), "--set is for built-in functions"),
        (("shop.py:slim", "--op", "insrt"), "did you mean 'insert'?"),
        (("shop.py:audit",), "'audit' is a sink of pipeline 'shop', not a function"),
        (("shop.py:db",), "'db' is the source of pipeline 'shop', not a function"),
        (("omit", "--set", 'fields=["a"]', "--set", "fields=[]"), "--set fields: given twice"),
    ],
)
def test_try_refuses_what_makes_no_sense(bench: Shop, arguments: tuple[str, ...], words: str) -> None:
    assert words in bench.fails(2, "try", *arguments, input="{}")


def test_try_of_bytes_that_are_no_text_and_of_text_nested_without_end(bench: Shop) -> None:
    (bench.path / "bytes.json").write_bytes(b'{"id":"\xff"}')
    assert "document 1 is not UTF-8" in bench.fails(
        2, "try", "pick", "--set", 'fields=["id"]', "--file", "bytes.json"
    )
    (bench.path / "deep.json").write_text('{"id":' + "[" * 50_000 + "]" * 50_000 + "}")
    told = bench.run("try", "pick", "--set", 'fields=["id"]', "--file", "deep.json")
    assert (told.exit_code, told.stderr[:19]) == (1, "document 1 refused:")
    assert "setting 'fields'" in bench.fails(2, "try", "pick", "--set", "fields=" + "[" * 50_000, input="{}")


def test_try_without_a_document(bench: Shop) -> None:
    assert "no document" in bench.fails(2, "try", "shop.py:slim", input=" \n")


def test_cases_that_hold(bench: Shop) -> None:
    (bench.path / "shop.test.yaml").write_text(CASES)
    before = sorted(bench.path.iterdir())
    assert (
        bench.ok("test", "shop.py")
        == "shop.test.yaml\n  ok     big orders are slimmed (line 2)\n1 passed, 0 failed\n"
    )
    assert sorted(path for path in bench.path.iterdir() if path.name != "__pycache__") == before
    assert bench.lines("test", "shop.py")[0]["passed"] is True


FAILING = """\
cases:
  - name: wrong
    input:
      - {ns: orders, data: {id: 2, total: 5}}
      - {ns: orders, data: {id: 3, total: 5}}
      - {ns: orders, data: {id: x}}
    expect:
      ids: [{data: {id: 2.0}}, {data: {id: 3}}]
      audit: drop
  - name: right
    input: [{ns: orders, data: {id: x}}]
    expect: {ids: {error: incompatible type}}
"""


def test_cases_that_fail_show_what_came_instead(bench: Shop) -> None:
    (bench.path / "shop_test.yaml").write_text(FAILING)
    result = bench.run("test", "shop.py")
    assert result.exit_code == 1
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert lines[1:6] == [
        "FAILED wrong (line 2)",
        "sink ids: '-' was expected, '+' came",
        '- {"id":2.0}',
        '+ {"id":2}',
        '{"id":3}',
    ]
    assert lines[6].startswith("+ error big: ")
    assert "sink audit: '-' was expected, '+' came" in lines
    assert lines[-2:] == ["ok     right (line 10)", "1 passed, 1 failed"]
    assert bench.ok("test", "shop.py", "-k", "rig").endswith("1 passed, 0 failed\n")
    assert "no case" in bench.fails(2, "test", "shop.py", "-k", "zzz")


def test_a_case_may_set_variables_of_the_pipeline_file(bench: Shop) -> None:
    text = (bench.path / "shop.py").read_text().replace("file://in.jsonl", "${IN}")
    (bench.path / "shop.py").write_text(text)
    (bench.path / "more.yaml").write_text("env: {IN: 'file://in.jsonl'}\n" + CASES)
    assert "1 passed" in bench.ok("test", "shop.py", "--cases", "more.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1: the file is empty"),
        ("cases: []", "there are no cases in it"),
        ("casez: []", "did you mean 'cases'?"),
        ("cases:\n  - {name: a, input: []}", "line 2: a case needs 'expect'"),
        ("cases:\n  - {name: a, input: [], expect: {}}", "'expect' names no sink"),
        ("cases:\n  - {name: a, input: [{ns: x}], expect: {ids: drop}}", "a message needs 'data'"),
        ("cases:\n  - {name: a, input: [{ns: x, op: upd, data: 1}], expect: {ids: drop}}", "no op 'upd'"),
        ("cases:\n  - {name: a, input: [], expect: {ids: dropp}}", "expected 'drop' or one of"),
        ("cases:\n  - {name: a, input: [], expect: {ids: [{ns: x}]}}", "expected one of data"),
        ("cases:\n  - {name: a, input: [], expect: {ids: [{data: '{'}]}}", "not JSON"),
        ("cases: [", "not YAML"),
    ],
)
def test_cases_that_cannot_be_read_are_told_with_their_line(bench: Shop, text: str, words: str) -> None:
    (bench.path / "shop.test.yaml").write_text(text)
    assert words in bench.fails(2, "test", "shop.py")


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("{name: a, input: [], expect: {idz: drop}}", "has no sink 'idz'; did you mean 'ids'?"),
        (
            "{name: a, input: [{ns: users, data: 1}], expect: {ids: drop}}",
            "source 'db' does not read 'users'",
        ),
    ],
)
def test_a_case_that_can_never_be_fails_and_says_why(bench: Shop, case: str, words: str) -> None:
    (bench.path / "shop.test.yaml").write_text(f"cases:\n  - {case}")
    result = bench.run("test", "shop.py")
    assert (result.exit_code, words in result.stdout) == (1, True)


@pytest.mark.parametrize("file", [".", ""])
def test_what_is_no_file_has_no_cases(bench: Shop, file: str) -> None:
    assert "is no pipeline file" in bench.fails(2, "test", file)


def test_without_cases_it_says_where_to_write_them(bench: Shop) -> None:
    said = bench.fails(2, "test", "shop.py")
    assert "there are no cases for shop.py" in said
    assert "write shop.test.yaml beside it" in said


FRAMES = """\
from penstock import Pipeline, adaptors as a, functions as f

shop = Pipeline("shop")
orders = shop.source("db", a.file(uri="file://in.jsonl"))
rich = orders.transform("rich", lambda df: df.where("data:total::double > 10"), ns="orders")
rich.transform("slim", f.pick(fields=["id"])).save("ids", a.file(uri="file://ids.jsonl"))
orders.transform("few", f.sql("SELECT * FROM messages WHERE op = 'insert'")).save("new", a.discard())
"""

FRAME_CASES = """\
cases:
  - name: only the rich
    input:
      - {ns: orders, data: {id: 1, total: 5}}
      - {ns: orders, op: update, data: {id: 2, total: 50}}
      - {ns: other, data: {id: 3}}
    expect:
      ids: [drop, {text: '{"id":2}'}, {data: {id: 3}}]
      new: [{contains: {id: 1}}, drop, {contains: {id: 3}}]
  - name: what spark cannot read
    input: [{ns: orders, data: '{"id":1'}, {ns: orders, data: {id: 2}}, {ns: orders, data: '{"id":3,"id":4}'}]
    expect:
      ids: [{error: cannot read}, drop, {error: cannot read}]
      new: [{error: cannot read}, {data: {id: 2}}, {error: cannot read}]
"""


@pytest.mark.soak  # the cases of the sample shop have a function of a DataFrame as well
@pytest.mark.spark
def test_functions_of_dataframes_and_sql_are_tested_with_spark(bench: Shop) -> None:
    (bench.path / "shop.py").write_text(FRAMES)
    (bench.path / "shop.test.yaml").write_text(FRAME_CASES)
    code = "import sys; sys.argv[0] = 'penstock'; from penstock.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "test", "shop.py"],
        cwd=bench.path, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.stdout.endswith("2 passed, 0 failed\n"), done.stdout + done.stderr
    assert done.stderr.count("starting Spark") == 1
    assert not bench.data.exists()
