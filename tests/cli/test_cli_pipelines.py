"""`init`, `about` and `plan`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import pytest

from penstock import adaptors, functions
from penstock.base.settings import setting, settings_of
from penstock.cli.catalogue import in_words, quoted, sample
from penstock.pipeline.definition import load_pipeline

from .conftest import Invoke

SOURCES = sorted(name for name, kind in adaptors.ALL.items() if kind.reads)
SINKS = sorted(name for name, kind in adaptors.ALL.items() if kind.writes)


@pytest.mark.parametrize(("source", "sink"), list(itertools.product(SOURCES, SINKS)))
def test_init_writes_a_file_that_loads(invoke: Invoke, tmp_path: Path, source: str, sink: str) -> None:
    result = invoke("init", source, sink, "my-shop.py")
    assert result.exit_code == 0, result.stderr
    assert "penstock plan my-shop.py" in result.stdout
    pipeline = load_pipeline(tmp_path / "my-shop.py")
    assert pipeline.name == "my-shop"
    assert pipeline.source_node.adaptor.name == source
    assert [node.adaptor.name for node in pipeline.sink_nodes] == [sink]
    assert invoke("plan", "my-shop.py", "--offline").exit_code == 0


def test_init_writes_every_setting_of_a_role_with_its_help(invoke: Invoke, tmp_path: Path) -> None:
    invoke("init", "sqlite", "file")
    text = (tmp_path / "pipeline.py").read_text()
    for name, role, other in (("sqlite", "source", "sink"), ("file", "sink", "source")):
        for known in settings_of(adaptors.ALL[name]):
            mark = "" if known.required else "# "
            wanted = not known.help.startswith(f"{other}: ")
            assert (known.help.removeprefix(f"{role}: ") in text) is wanted
            assert f"        {mark}{known.name}=" in text or not wanted


def test_init_from_a_system_to_itself_does_not_write_what_it_reads(invoke: Invoke, tmp_path: Path) -> None:
    invoke("init", "file", "file")
    assert "writes what" not in invoke("plan", "pipeline.py", "--offline").stdout
    assert "-copy.jsonl" in (tmp_path / "pipeline.py").read_text()


def test_init_does_not_overwrite_unless_told_to(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.py"
    file.write_text("mine")
    result = invoke("init", "sqlite", "file")
    assert result.exit_code == 2
    assert "pipeline.py is already there" in result.stderr
    assert file.read_text() == "mine"
    assert invoke("init", "sqlite", "file", "--force").exit_code == 0
    assert "Pipeline(" in file.read_text()


@pytest.mark.parametrize(
    ("source", "sink", "words"),
    [
        ("sqlit", "file", "there is no adaptor 'sqlit'; did you mean 'sqlite'?"),
        ("sqlite", "flie", "there is no adaptor 'flie'; did you mean 'file'?"),
        ("discard", "file", "adaptor 'discard' cannot be a source"),
        ("sqlite", "sqlite", "adaptor 'sqlite' cannot be a sink"),
    ],
)
def test_init_refuses_before_it_touches_the_file(
    invoke: Invoke, tmp_path: Path, source: str, sink: str, words: str
) -> None:
    """The original had truncated and half written the file by the time it found the second name unknown."""
    file = tmp_path / "pipeline.py"
    file.write_text("mine")
    result = invoke("init", source, sink, "--force")
    assert result.exit_code == 2
    assert words in result.stderr
    assert file.read_text() == "mine"


def test_init_where_nothing_can_be_written(invoke: Invoke) -> None:
    result = invoke("init", "sqlite", "file", "missing/pipeline.py")
    assert result.exit_code == 2
    assert "cannot write missing/pipeline.py: No such file or directory" in result.stderr


def test_about_lists_everything_sorted(invoke: Invoke) -> None:
    lines = [line.split() for line in invoke("about").stdout.splitlines()]
    assert [line[1] for line in lines if line[:1] == ["adaptor"]] == sorted(adaptors.ALL)
    assert [line[1] for line in lines if line[:1] == ["function"]] == sorted(functions.ALL)


def test_about_one_tells_its_settings(invoke: Invoke) -> None:
    shown = invoke("about", "pick").stdout
    assert functions.ALL["pick"].description in shown
    assert "fields" in shown
    assert "f.pick(fields=" in shown
    assert "list of str" in shown
    [entry] = [json.loads(line) for line in invoke("about", "file", "--json").stdout.splitlines()]
    assert entry["kind"] == "adaptor"
    assert entry["uses"] == ["source", "sink"]
    assert "uri" in {known["name"] for known in entry["settings"]}


@pytest.mark.parametrize("name", sorted({*adaptors.ALL, *functions.ALL}))
def test_about_works_for_each(invoke: Invoke, name: str) -> None:
    assert invoke("about", name).exit_code == 0
    assert invoke("about", name, "--json").exit_code == 0


def test_about_something_unknown(invoke: Invoke) -> None:
    """The original ended with 0 and `no description available`."""
    result = invoke("about", "pik")
    assert result.exit_code == 2
    assert "there is no adaptor or function 'pik'; did you mean 'pick'?" in result.stderr


def test_plan_offline_shows_the_tree(invoke: Invoke, shop_file: Path) -> None:
    result = invoke("plan", "shop.py", "--offline")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "shop"
    depth = {word: line.index(word) for line in lines for word in ("audit", "slim", "ids  ") if word in line}
    assert depth["audit"] == depth["slim"] < depth["ids  "]
    assert "exactly once" in result.stdout
    assert "not known" in result.stdout


def test_plan_shows_what_it_can_when_the_source_does_not_answer(invoke: Invoke, shop_file: Path) -> None:
    result = invoke("plan", "shop.py")
    assert result.exit_code == 2
    assert "audit" in result.stdout
    assert "source 'db' could not be asked" in result.stderr
    assert not (shop_file.parent / "shop.db").exists()


def test_plan_of_a_missing_file(invoke: Invoke) -> None:
    result = invoke("plan", "none.py")
    assert result.exit_code == 2
    assert "there is no pipeline file none.py" in result.stderr


@pytest.mark.parametrize(
    "value", ["plain", 'a "quoted" one', "back\\slash\n", "größe", ["a", 1], {"a": None}, True, 1.5]
)
def test_values_are_written_as_python_reads_them(value: object) -> None:
    assert eval(quoted(value)) == value


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (str, "str"),
        (int | None, "int or None"),
        (Sequence[str], "list of str"),
        (Mapping[str, int], "dict of str to int"),
        (Literal["stop", "skip"], "'stop' or 'skip'"),
    ],
)
def test_types_are_told_in_words(hint: object, words: str) -> None:
    assert in_words(hint) == words


def test_a_required_setting_without_example_becomes_a_variable() -> None:
    @dataclass(frozen=True)
    class Kind:
        api_key: str = cast(str, setting("the key"))

    assert sample(settings_of(Kind)[0]) == '"${API_KEY}"'
