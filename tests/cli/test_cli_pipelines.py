"""`init`, `about`, `plan` and `graph`."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, cast

import pytest

from penstock import adaptors, functions
from penstock.adaptors.base import Adaptor
from penstock.base.settings import setting, settings_of
from penstock.base.units import Unit
from penstock.cli.catalogue import entries, in_words, quoted, sample
from penstock.cli.connection import Connection
from penstock.cli.pipelines import stores_of
from penstock.journal import labels
from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.journal.fragment import Codec
from penstock.journal.protocol import JournalSpec
from penstock.pipeline.definition import load_pipeline

from .conftest import Invoke

SOURCES = sorted(name for name, kind in adaptors.ALL.items() if kind.reads)
SINKS = sorted(name for name, kind in adaptors.ALL.items() if kind.writes)
PAIRS = [*((source, "discard") for source in SOURCES), *(("generate", sink) for sink in SINKS)]
"""Each source and each sink at least once."""


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the examples ask the environment for."""
    for kind in adaptors.ALL.values():
        for known in settings_of(kind):
            for name in re.findall(r"\$\{(\w+)\}", str(known.example)):
                monkeypatch.setenv(name, "hunter2")


@pytest.mark.parametrize(("source", "sink"), PAIRS)
def test_init_writes_a_file_that_loads(invoke: Invoke, tmp_path: Path, source: str, sink: str) -> None:
    result = invoke("init", source, sink, "my-shop.py")
    assert result.exit_code == 0, result.stderr
    assert "penstock plan my-shop.py" in result.stdout
    pipeline = load_pipeline(tmp_path / "my-shop.py")
    assert pipeline.name == "my-shop"
    assert pipeline.source_node.adaptor.name == source
    assert [node.adaptor.name for node in pipeline.sink_nodes] == [sink]
    assert invoke("plan", "my-shop.py", "--offline").exit_code == 0


@pytest.mark.parametrize(("source", "sink"), PAIRS)
def test_init_writes_yaml_that_makes_the_same_pipeline(
    invoke: Invoke, tmp_path: Path, source: str, sink: str
) -> None:
    assert invoke("init", source, sink, "shop.py").exit_code == 0
    assert invoke("init", source, sink, "shop.yaml").exit_code == 0
    python, yaml = load_pipeline(tmp_path / "shop.py"), load_pipeline(tmp_path / "shop.yaml")
    assert (yaml.name, yaml.settings) == (python.name, python.settings)
    assert yaml.source_node == python.source_node
    assert yaml.sink_nodes == python.sink_nodes


def test_what_init_writes_of_test_data_comes_to_an_end(invoke: Invoke, tmp_path: Path) -> None:
    invoke("init", "generate", "discard", "load.py")
    assert load_pipeline(tmp_path / "load.py").source_node.adaptor == adaptors.generate(count=10_000)


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
        ("sqlite", "generate", "adaptor 'generate' cannot be a sink"),
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


SECRET_SHOP = """\
pipeline: shop
source:
  name: db
  adaptor: sqlite
  settings: {uri: "sqlite://${DB}/${secret:KEY}.db"}
  then:
    - save: audit
      adaptor: file
      settings: {uri: "file://${OUT:-audit}.jsonl"}
"""


def test_settings_and_secrets_come_from_files_and_secrets_never_show(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DB", raising=False)
    (tmp_path / "shop.yaml").write_text(SECRET_SHOP)
    (tmp_path / "test.env").write_text("DB=/data\nOUT=other\n")
    (tmp_path / "secrets.env").write_text("KEY=hunter22\n")
    given = ("shop.yaml", "--settings", "test.env", "--secrets", "secrets.env")
    (tmp_path / "secrets.env").chmod(0o644)
    refused = invoke("plan", *given)
    assert refused.exit_code == 2
    assert "can be read by others" in refused.stderr
    (tmp_path / "secrets.env").chmod(0o600)
    for extra in ([], ["--offline"], ["--json"]):
        result = invoke("plan", *given, *extra)
        assert "sqlite:///data/***.db" in result.stdout
        assert "other.jsonl" in result.stdout
        assert "hunter22" not in result.output
    assert "hunter22" not in invoke("--debug", "plan", *given).output
    unset = invoke("plan", "shop.yaml", "--settings", "test.env")
    assert unset.exit_code == 2
    assert "line 5: adaptor 'sqlite', setting 'uri': the secret KEY is not known" in unset.stderr
    monkeypatch.setenv("PENSTOCK_SETTINGS", "test.env")
    monkeypatch.setenv("PENSTOCK_SECRETS", "secrets.env")
    assert invoke("graph", "shop.yaml").exit_code == 0


def test_plan_refuses_a_master_whose_tasks_could_not_reach_the_log(invoke: Invoke, shop_file: Path) -> None:
    plan = ("plan", "shop.py", "--offline", "--master")
    assert invoke(*plan, "local[4]").exit_code == 0
    assert invoke(*plan, "spark://localhost:7077").exit_code == 0
    for extra, words in (
        ([], "the data directory's own broker cannot be reached from other machines"),
        (["--broker", "http://10.0.0.4:8080"], "there is no token"),
        (["--broker", "http://10.0.0.4:8080", "--auth-token", "x"], "no store is known that they share"),
    ):
        result = invoke(*plan, "spark://10.0.0.5:7077", *extra)
        assert result.exit_code == 2
        assert words in result.stderr
        assert "audit" in result.stdout


def test_plan_shows_the_matched_set_of_every_pattern_policy_and_lag(invoke: Invoke, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db:
        for table in ("orders", "items", "order_items", "staff"):
            db.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY)")
    (tmp_path / "shop.py").write_text(
        """\
from penstock import Pipeline, adaptors as a, functions as f, retry
shop = Pipeline("shop", log_limit="20GB")
db = shop.source("db", a.sqlite(uri="sqlite://shop.db"), ns="orders|items")
slim = db.transform("slim", f.pick(fields=["id"]), ns="^items$")
slim.save("audit", a.file(uri="file://audit.jsonl"), on_error=retry(2), max_lag="1GB")
slim.save("rest", a.file(uri="file://rest.jsonl"), ns="^order")
"""
    )
    result = invoke("plan", "shop.py")
    assert result.exit_code == 0, result.stderr
    for words in (
        "shop  log_limit=20GB",
        "reads items, order_items, orders",
        "leaves out staff",
        "changes items",
        "gets items, order_items, orders; exactly once",
        "gets order_items, orders; exactly once",
        "on error: retry 2 times from 1s on, then stop; may lag by 1GB, then hold",
        "on error: stop",
        "warning db: 'orders|items' matches more than it seems: order_items",
    ):
        assert words in result.stdout


@pytest.mark.parametrize(
    ("form", "words"),
    [("text", "└── db"), ("mermaid", "flowchart LR"), ("dot", 'digraph "shop" {'), ("json", '"edges"')],
)
def test_graph_draws_the_tree(invoke: Invoke, shop_file: Path, form: str, words: str) -> None:
    result = invoke("graph", "shop.py", "--format", form)
    assert result.exit_code == 0, result.stderr
    assert words in result.stdout
    assert "jsonl" not in result.stdout


def test_graph_is_json_for_programs(invoke: Invoke, shop_file: Path) -> None:
    shown = json.loads(invoke("graph", "shop.py", "--json").stdout)
    assert {node["name"] for node in shown["nodes"]} == {"db", "audit", "slim", "ids"}


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


def test_a_number_with_a_unit_is_told_as_size_or_duration() -> None:
    @dataclass(frozen=True)
    class Kind(Adaptor):
        name: ClassVar[str] = "kind"
        description: ClassVar[str] = "for tests"
        size: int = cast(int, setting("how large", default=1, unit=Unit.BYTES))
        age: float | None = cast("float | None", setting("how old", default=None, unit=Unit.SECONDS))

    [entry] = entries({"kind": Kind}, {})
    assert [known.type for known in entry.settings] == ["size", "duration or None"]


def test_a_required_setting_without_example_becomes_a_variable() -> None:
    @dataclass(frozen=True)
    class Kind:
        api_key: str = cast(str, setting("the key"))

    assert sample(settings_of(Kind)[0]) == '"${API_KEY}"'


def test_plan_looks_up_the_stores_of_the_pipelines_journals(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker, Client(broker.address) as client:
        for name in ("pipelines/shop/log", "pipelines/shop/offsets/audit", "pipelines/shopping/log"):
            spec = JournalSpec(name=name, replication=1, labels=labels.label_set({}))
            spec.fragment.length = 1 << 20
            spec.fragment.compression_codec = Codec.NONE.to_proto()
            spec.fragment.refresh_interval.FromSeconds(300)
            spec.fragment.stores.append(f"file:///{name.replace('/', '-')}/")
            assert client.create(spec)
        connection = Connection(broker.address, tmp_path)
        assert stores_of("shop", connection) == [
            "file:///pipelines-shop-log/",
            "file:///pipelines-shop-offsets-audit/",
        ]
        assert stores_of("none", connection) == []
