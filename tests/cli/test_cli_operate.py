"""`status`, `xlog` and `offset`, over a data directory in memory."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from .conftest import FakeDirectory, Invoke, entries

READING = [
    ("status",),
    ("xlog", "oldest"),
    ("xlog", "current"),
    ("xlog", "show", "0"),
    ("offset", "list"),
    ("offset", "show", "audit"),
]


@pytest.mark.parametrize("command", READING)
def test_reading_does_not_make_a_data_directory(
    invoke: Invoke, tmp_path: Path, command: tuple[str, ...]
) -> None:
    result = invoke(*command)
    assert result.exit_code == 2
    assert "no data directory at .penstock: run a pipeline first" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", READING)
def test_an_empty_data_directory_says_so(
    invoke: Invoke, directory: FakeDirectory, command: tuple[str, ...]
) -> None:
    directory.logs.clear()
    result = invoke(*command)
    assert result.exit_code == 2
    assert "holds no pipeline yet" in result.stderr


def test_the_data_directory_comes_from_option_or_environment(
    invoke: Invoke, directory: FakeDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".penstock").rename(tmp_path / "elsewhere")
    assert invoke("xlog", "current").exit_code == 2
    assert invoke("xlog", "current", "--data-dir", "elsewhere").stdout == "4\n"
    monkeypatch.setenv("PENSTOCK_DATA_DIR", "elsewhere")
    assert invoke("xlog", "current").stdout == "4\n"


@pytest.mark.parametrize("command", READING[1:])
def test_of_several_pipelines_one_must_be_named(
    invoke: Invoke, directory: FakeDirectory, command: tuple[str, ...]
) -> None:
    directory.logs["mall"] = entries(2)
    result = invoke(*command)
    assert result.exit_code == 2
    assert "2 pipelines: mall, shop" in result.stderr
    assert "--pipeline mall" in result.stderr
    assert invoke(*command, "--pipeline", "shop").exit_code == 0
    wrong = invoke(*command, "--pipeline", "shopp")
    assert wrong.exit_code == 2
    assert "did you mean 'shop'?" in wrong.stderr


def test_oldest_and_current(invoke: Invoke, directory: FakeDirectory) -> None:
    directory.base = 3
    assert invoke("xlog", "oldest").stdout == "3\n"
    assert invoke("xlog", "current").stdout == "7\n"
    assert json.loads(invoke("xlog", "current", "--json").stdout) == {"pipeline": "shop", "offset": 7}


def test_an_empty_log_has_no_current_offset(invoke: Invoke, directory: FakeDirectory) -> None:
    directory.logs["shop"] = []
    assert invoke("xlog", "current").stdout == "-1\n"
    assert invoke("xlog", "show", "0").exit_code == 2


def test_show_prints_the_lines_of_the_original(invoke: Invoke, directory: FakeDirectory) -> None:
    assert invoke("xlog", "show", "3").stdout == (
        "offset    : 3\n"
        "timestamp : 2023-11-14T22:13:20.000003Z\n"
        "mode      : COPY\n"
        "op        : INSERT\n"
        "ns        : orders\n"
        'value     : {"id":3}\n'
    )


def test_show_tells_the_key_where_there_is_one(invoke: Invoke, directory: FakeDirectory) -> None:
    directory.logs["shop"] = [dataclasses.replace(entries(1)[0], key='{"id":0}')]
    assert 'key       : {"id":0}\n' in invoke("xlog", "show", "0").stdout


def test_a_range_includes_both_ends(invoke: Invoke, directory: FakeDirectory) -> None:
    blocks = invoke("xlog", "show", "1", "3").stdout.split("\n\n")
    assert [block.splitlines()[0] for block in blocks] == [f"offset    : {n}" for n in (1, 2, 3)]
    lines = [json.loads(line) for line in invoke("--json", "xlog", "show", "1", "3").stdout.splitlines()]
    assert [line["offset"] for line in lines] == [1, 2, 3]
    assert lines[0]["data"] == '{"id":1}'


@pytest.mark.parametrize("wanted", [("9",), ("0", "9"), ("2", "5"), ("--", "-1")])
def test_an_offset_that_is_not_there_names_the_range_there_is(
    invoke: Invoke, directory: FakeDirectory, wanted: tuple[str, ...]
) -> None:
    result = invoke("xlog", "show", *wanted)
    assert result.exit_code == 2
    assert "holds 0 to 4" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("wrong", [("x",), (), ("1", "2", "3"), ("3", "1"), ("1.5",)])
def test_what_is_no_range_is_refused(
    invoke: Invoke, directory: FakeDirectory, wrong: tuple[str, ...]
) -> None:
    assert invoke("xlog", "show", *wrong).exit_code == 2


def test_unknown_subcommands_are_refused(invoke: Invoke, directory: FakeDirectory) -> None:
    """In the original an unknown subcommand printed nothing and ended with 0."""
    assert invoke("xlog", "shw").exit_code == 2
    assert invoke("offset", "lst").exit_code == 2


def test_data_cannot_steer_the_terminal(invoke: Invoke, directory: FakeDirectory) -> None:
    directory.logs["shop"] = [dataclasses.replace(entries(1)[0], ns="a\x1b[2Jb", data='"\x9b\x07"')]
    shown = invoke("xlog", "show", "0").stdout
    assert "ns        : a\\x1b[2Jb\n" in shown
    assert "\x1b" not in shown
    assert "\x9b" not in shown


def test_offset_list(invoke: Invoke, directory: FakeDirectory) -> None:
    rows = [line.split() for line in invoke("offset", "list").stdout.splitlines()]
    assert rows == [["SINK", "OFFSET", "LAG"], ["audit", "4", "0"], ["ids", "-1", "5"]]
    lines = [json.loads(line) for line in invoke("offset", "list", "--json").stdout.splitlines()]
    assert [(line["sink"], line["offset"], line["lag"]) for line in lines] == [
        ("audit", 4, 0),
        ("ids", -1, 5),
    ]


def test_offset_show_is_sorted(invoke: Invoke, directory: FakeDirectory) -> None:
    rows = [line.split() for line in invoke("offset", "show", "audit").stdout.splitlines()]
    assert rows == [["NAMESPACE", "OFFSET"], ["items", "0"], ["orders", "4"]]
    lines = [json.loads(line) for line in invoke("offset", "show", "audit", "--json").stdout.splitlines()]
    assert lines[0] == {"sink": "audit", "namespace": "items", "offset": 0}


def test_offset_show_of_an_unknown_sink(invoke: Invoke, directory: FakeDirectory) -> None:
    """In the original, asking for an unknown sink made its directory."""
    result = invoke("offset", "show", "adit")
    assert result.exit_code == 2
    assert "there is no sink 'adit'; did you mean 'audit'?" in result.stderr


def test_status_tells_log_and_sinks(invoke: Invoke, directory: FakeDirectory) -> None:
    directory.logs["mall"] = []
    shown = invoke("status").stdout
    assert "shop  not running  log 0 to 4, 2.0 KiB" in shown
    assert "mall  not running  log empty" in shown
    assert "orders complete @4" in shown
    [ids] = [line.split() for line in shown.splitlines() if line.startswith("ids") and line.split()[5] == "5"]
    assert ids[:2] == ["ids", "-1"]


def test_status_for_programs(invoke: Invoke, directory: FakeDirectory) -> None:
    directory.logs["mall"] = []
    mall, shop = (json.loads(line) for line in invoke("status", "--json").stdout.splitlines())
    assert mall["pipeline"] == "mall"
    assert shop["next"] == 5
    assert shop["sinks"][0]["namespaces"] == {"orders": 4, "items": 0}
    [only] = invoke("status", "--json", "--pipeline", "shop").stdout.splitlines()
    assert json.loads(only) == shop
