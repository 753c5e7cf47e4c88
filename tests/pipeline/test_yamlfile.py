"""Pipelines as YAML: the same words, the same records as in Python, and every error with its line."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import functions
from penstock.base.errors import UsageError
from penstock.pipeline.definition import Pipeline, load_pipeline

SHOP = """\
pipeline: shop
settings:
  log_limit: 20GB
  strict: true
source:
  name: db
  adaptor: sqlite
  settings: {uri: "sqlite:///shop.db"}
  ns: orders|items
  then:
    - save: audit
      adaptor: file
      settings:
        uri: file:///audit.jsonl
        envelope: true
      ns: ^(orders|items)$
      on_error: {retry: 5, backoff: 2s, then: dead-letter}
      max_lag: {bytes: 10GB, age: 1d, then: detach}
    - transform: slim
      function: pick
      settings: {fields: [id, total]}
      ns: orders
      then:
        - save: ids
          adaptor: file
          settings: {uri: "file:///ids.jsonl"}
          on_error: dead-letter
        - transform: large
          function: skip
          settings: {field: total, operator: ">", match: 10.5}
          then:
            - save: large-ones
              adaptor: discard
              max_lag: 1GB
"""

SAME_IN_PYTHON = """\
from penstock import Pipeline, adaptors as a, functions as f, retry

shop = Pipeline("shop", log_limit="20GB", strict=True)
db = shop.source("db", a.sqlite(uri="sqlite:///shop.db"), ns="orders|items")
db.save(
    "audit",
    a.file(uri="file:///audit.jsonl", envelope=True),
    ns="^(orders|items)$",
    on_error=retry(5, backoff="2s", then="dead-letter"),
    max_lag={"bytes": "10GB", "age": "1d", "then": "detach"},
)
slim = db.transform("slim", f.pick(fields=["id", "total"]), ns="orders")
slim.save("ids", a.file(uri="file:///ids.jsonl"), on_error="dead-letter")
large = slim.transform("large", f.skip(field="total", operator=">", match=10.5))
large.save("large-ones", a.discard(), max_lag="1GB")
"""

LEAST = """\
pipeline: least
source:
  name: in
  adaptor: generate
  settings: {count: 1}
  then:
    - save: out
      adaptor: discard
"""


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def loaded(tmp_path: Path, text: str) -> Pipeline:
    return load_pipeline(written(tmp_path / "shop.yaml", text))


def refusal(act: Callable[[], object]) -> UsageError:
    with pytest.raises(UsageError) as caught:
        act()
    return caught.value


def test_both_forms_make_equal_pipelines(tmp_path: Path) -> None:
    yaml = loaded(tmp_path, SHOP)
    python = load_pipeline(written(tmp_path / "shop.py", SAME_IN_PYTHON))
    assert yaml.name == python.name
    assert yaml.settings == python.settings
    assert yaml.source_node == python.source_node
    assert yaml.transform_nodes == python.transform_nodes
    assert yaml.sink_nodes == python.sink_nodes


@pytest.mark.parametrize("suffix", [".yaml", ".yml"])
def test_the_suffix_tells_the_form(tmp_path: Path, suffix: str) -> None:
    assert load_pipeline(written(tmp_path / f"shop{suffix}", LEAST)).name == "least"
    assert load_pipeline(tmp_path / f"shop{suffix}", "least").name == "least"
    assert (
        "has no pipeline 'lest'; did you mean"
        in refusal(lambda: load_pipeline(tmp_path / f"shop{suffix}", "lest")).message
    )


def test_variables_are_replaced_as_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNT", "17")
    text = LEAST.replace("{count: 1}", "{count: '${COUNT}', namespaces: ['${NS}']}")
    pipeline = load_pipeline(written(tmp_path / "shop.yaml", text), settings={"NS": "orders"})
    shown = vars(pipeline.source_node.adaptor)
    assert (shown["count"], shown["namespaces"]) == (17, ["orders"])


def test_words_stay_words(tmp_path: Path) -> None:
    """`no` is a country, `007` an agent: where a name is expected YAML's guesses count for nothing."""
    text = LEAST.replace("name: in", "name: no").replace("save: out", "save: 007")
    pipeline = loaded(tmp_path, text)
    assert (pipeline.source_node.name, pipeline.sink_nodes[0].name) == ("no", "007")


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("pipeline:", "pipelin:", 1, "a pipeline: unknown word 'pipelin'; did you mean 'pipeline'?"),
        ("pipeline: shop", "pipeline:", 1, "a pipeline: 'pipeline' is missing"),
        ("pipeline: shop", "pipeline: 'a b'", 1, "a pipeline cannot be named 'a b'"),
        ("log_limit", "log_limt", 3, "unknown setting 'log_limt'; did you mean 'log_limit'?"),
        ("log_limit: 20GB", "name: other", 3, "unknown setting 'name'"),
        ("20GB", "lots", 3, "setting 'log_limit': expected a size"),
        ("strict: true", "strict: yes", 4, "setting 'strict': expected bool, got str"),
        ("  name: db\n", "  nme: db\n", 6, "a source: unknown word 'nme'; did you mean 'name'?"),
        ("  name: db\n", "", 6, "a source: 'name' is missing"),
        ("adaptor: sqlite", "adaptr: sqlite", 7, "unknown word 'adaptr'; did you mean 'adaptor'?"),
        ("adaptor: sqlite", "adaptor: sqlit", 7, "there is no adaptor 'sqlit'; did you mean 'sqlite'?"),
        ("  settings: {uri: \"sqlite:///shop.db\"}\n", "", 7, "setting 'uri' is missing"),
        ("settings: {uri: \"sql", "uri: \"sql", 8, "not YAML"),
        ("uri: \"sqlite", "url: \"sqlite", 8, "unknown setting 'url'; did you mean 'uri'?"),
        ("ns: orders|items", "ns: a(?=b)", 9, "source 'db': namespace pattern 'a(?=b)', character 2"),
        ("  then:\n    - save: audit", "  than:\n    - save: audit", 10, "unknown word 'than'; did you mean 'then'?"),
        ("- save: audit", "- sav: audit", 11, "expected 'save: NAME' or 'transform: NAME', got 'sav'"),
        ("save: audit", "save: db", 11, "pipeline 'shop' already has a source of this name"),
        ("save: audit", "save:", 11, "a sink cannot be named ''"),
        ("envelope: true", "envelop: true", 15, "unknown setting 'envelop'; did you mean 'envelope'?"),
        ("envelope: true", "envelope: 3", 15, "setting 'envelope': expected bool, got int"),
        ("envelope: true", "uri: again", 15, "'uri' is given twice; first in line 14"),
        ("ns: ^(orders|items)$", "ns: (", 16, "sink 'audit': namespace pattern '(', character 1"),
        ("on_error: {retry: 5", "on_error: {retri: 5", 17, "unknown word 'retri'; did you mean 'retry'?"),
        ("on_error: {", "on_eror: {", 17, "sink 'audit': unknown word 'on_eror'; did you mean 'on_error'?"),
        ("age: 1d", "age: soon", 18, "'max_lag', 'age': expected a duration"),
        ("function: pick", "function: pik", 20, "there is no function 'pik'; did you mean 'pick'?"),
        ("function: pick", "fonction: pick", 20, "unknown word 'fonction'; did you mean 'function'?"),
        ("function: pick", "function: sql", 20, "write 'sql:' instead of 'function: sql'"),
        ("{fields: [id, total]}", "{field: [id]}", 21, "unknown setting 'field'; did you mean 'fields'?"),
        ("{fields: [id, total]}", "{fields: [1]}", 21, "setting 'fields[0]': expected str, got int"),
        ("save: ids", "save: audit", 24, "pipeline 'shop' already has a sink of this name"),
        ("max_lag: 1GB", "then: []", 34, "sink 'large-ones': nothing comes after a sink"),
        ("max_lag: 1GB", "uri: x", 34, "unknown word 'uri'"),
        ("max_lag: {", "envelope: {", 18, "sink 'audit': 'envelope' is a setting of its adaptor"),
        ("pipeline: shop", "pipeline: &x shop\nmore: *y", 2, "the alias *y refers to nothing"),
        ("pipeline: shop", "pipeline: !!python/name:os.system x", 1, "the tag"),
    ],
)  # fmt: skip
def test_an_error_is_told_with_its_line_and_a_suggestion(
    tmp_path: Path, old: str, new: str, line: int, words: str
) -> None:
    """Trap 1 of the reference: the original took any key in silence."""
    assert old in SHOP
    error = refusal(lambda: loaded(tmp_path, SHOP.replace(old, new, 1)))
    assert error.message.startswith(f"{tmp_path / 'shop.yaml'}, line {line}: "), error.message
    assert words in error.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1: the file is empty"),
        ("# nothing\n", "line 1: the file is empty"),
        ("- a\n", "line 1: expected keys and values for a pipeline"),
        ("a: [\n", "not YAML"),
        (LEAST + "---\na: 1\n", "a second document"),
        (LEAST.partition("  then:")[0], "line 2: there is no sink"),
        (LEAST.partition("source:")[0], "line 1: a pipeline: 'source' is missing"),
        (LEAST.replace("settings: {count: 1}", "settings: 3"), "line 5: expected keys and values for 'settings'"),
        (LEAST.replace("- save: out\n      adaptor: discard", "save: out"), "line 7: expected a list for 'then'"),
        (LEAST.replace("save: out", "save: [out]"), "line 7: expected a single value for 'save'"),
        ("a: " + "[" * 300 + "]" * 300, "nested more than 200 levels deep"),
    ],
)  # fmt: skip
def test_what_is_no_pipeline(tmp_path: Path, text: str, words: str) -> None:
    assert words in refusal(lambda: loaded(tmp_path, text)).message


def test_what_cannot_be_read(tmp_path: Path) -> None:
    assert "there is no such pipeline file" in refusal(lambda: load_pipeline(tmp_path / "none.yaml")).message
    (tmp_path / "latin.yaml").write_bytes(b"pipeline: \xe4\n")
    assert "not UTF-8 text (byte 10)" in refusal(lambda: load_pipeline(tmp_path / "latin.yaml")).message
    (tmp_path / "d.yaml").mkdir()
    assert "cannot read the pipeline file" in refusal(lambda: load_pipeline(tmp_path / "d.yaml")).message


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, len(SHOP)),
    st.integers(0, 12),
    st.one_of(
        st.text(max_size=6), st.sampled_from([": ", "- ", "[", "{}", "*x", "&x ", "!t ", "\n", "${X}", "|"])
    ),
)
def test_a_damaged_file_is_refused_by_name_or_read_and_never_breaks_the_reader(
    at: int, length: int, put: str
) -> None:
    before = list(sys.path)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "shop.yaml"
        file.write_bytes((SHOP[:at] + put + SHOP[at + length :]).encode("utf-8", "surrogatepass"))
        with contextlib.suppress(UsageError):
            load_pipeline(file)
    sys.path[:] = before


def with_step(step: str) -> str:
    """The least pipeline with a transformation before its sink; the step's words are on line 8."""
    return f"""\
pipeline: least
source:
  name: in
  adaptor: generate
  settings: {{count: 1}}
  then:
    - transform: step
      {step}
      then:
        - save: out
          adaptor: discard
"""


def test_a_dataframe_function_is_named_by_module_and_name(tmp_path: Path) -> None:
    written(
        tmp_path / "rules_of_yaml.py",
        "class Rules:\n    @staticmethod\n    def keep(df):\n        return df\n",
    )
    pipeline = loaded(tmp_path, with_step("dataframe: rules_of_yaml:Rules.keep"))
    [step] = pipeline.transform_nodes
    assert step.label == "DataFrame function"
    assert not isinstance(step.function, functions.ALL["pick"])
    assert callable(step.function)
    assert pipeline.modules == ("rules_of_yaml",)


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("dataframe: no_such_rules:keep", "'dataframe': there is no module 'no_such_rules'"),
        ("dataframe: rules_refused:kep", "'rules_refused' has no 'kep'; did you mean 'keep'?"),
        ("dataframe: rules_refused", "expected module:function, got 'rules_refused'"),
        ("dataframe: rules_broken:keep", "rules_broken.py, line 2: KeyError: 'gone'"),
        ("dataframe: rules_unmet:keep", "rules_unmet.py, line 1: ModuleNotFoundError: No module named 'nowhere_met'"),
        ("dataframe: rules_refused:two", "cannot be called with one argument, the DataFrame"),
        ("dataframe: rules_refused:LIST", "expected a function, got a list"),
        ("dataframe: {a: 1}", "expected a single value for 'dataframe'"),
        ("ns: x", "expected one of function, sql, python, arrow, dataframe, got none"),
        ("{dataframe: 'rules_refused:keep', sql: 'SELECT'}", "got sql and dataframe"),
    ],
)  # fmt: skip
def test_functions_that_cannot_be_had(tmp_path: Path, step: str, words: str) -> None:
    rules = "def keep(df):\n    return df\ndef two(df, other):\n    return df\nLIST = []\n"
    written(tmp_path / "rules_refused.py", rules)
    written(tmp_path / "rules_broken.py", "\nraise KeyError('gone')\n")
    written(tmp_path / "rules_unmet.py", "import nowhere_met\n")
    text = with_step(step)
    if step.startswith("{"):
        text = text.replace("    - transform: step\n      {", "    - {transform: step, ").replace(
            "'SELECT'}\n      then:\n        - save: out\n          adaptor: discard\n", "'SELECT'}\n"
        )
    error = refusal(lambda: loaded(tmp_path, text))
    assert words in error.message
    assert "line 8: " in error.message or "line 7: " in error.message


def test_sql_and_functions_of_ones_own(tmp_path: Path) -> None:
    rules = "def clean(message):\n    return message\ndef batch(batch):\n    return batch\n"
    written(tmp_path / "rules_of_functions.py", rules)
    for step, label in (
        ("sql: SELECT * FROM messages", "sql"),
        ("python: rules_of_functions:clean", "python"),
        ("arrow: rules_of_functions:batch", "arrow"),
    ):
        pipeline = loaded(tmp_path, with_step(step))
        assert [known.label for known in pipeline.transform_nodes] == [label]
    [step_node] = loaded(tmp_path, with_step("sql: SELECT * FROM messages")).transform_nodes
    assert step_node.function == functions.sql("SELECT * FROM messages")
    error = refusal(lambda: loaded(tmp_path, with_step("sql: SELEC * FROM messages")))
    assert "line 8: function 'sql'" in error.message


def test_the_example_of_the_documents_loads(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text(encoding="utf-8")
    [example] = re.findall(r"```yaml\n(pipeline: .*?)```", page, re.DOTALL)
    pipeline = loaded(tmp_path, example)
    assert [sink.name for sink in pipeline.sink_nodes] == ["audit", "big-orders"]
    assert [step.label for step in pipeline.sink_nodes[1].steps] == ["pick", "sql"]


def test_only_a_function_has_settings(tmp_path: Path) -> None:
    text = with_step("sql: SELECT * FROM messages\n      settings: {a: 1}")
    assert (
        "line 9: transformation 'step': 'sql' takes no settings"
        in refusal(lambda: loaded(tmp_path, text)).message
    )


def test_reading_yaml_imports_no_spark(tmp_path: Path) -> None:
    file = written(tmp_path / "shop.yaml", SHOP)
    code = f"""
import sys
from pathlib import Path
from penstock.pipeline.definition import load_pipeline
load_pipeline(Path({str(file)!r}))
sys.exit('pyspark' in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
