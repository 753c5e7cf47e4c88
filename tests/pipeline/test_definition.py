"""Pipelines as people write them: the tree, the names, and what is refused with which words."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import Pipeline
from penstock import adaptors as a
from penstock import functions as f
from penstock.base.errors import UsageError
from penstock.pipeline.definition import Node, TransformNode, load_pipeline
from penstock.pipeline.namespace import Namespace

SHOP = """\
from penstock import Pipeline, adaptors as a, functions as f

shop = Pipeline("shop")
orders = shop.source("db", a.sqlite(uri="sqlite://shop.db"), ns="orders|items")
orders.save("audit", a.file(uri="file://audit.jsonl"))
orders.transform("slim", f.pick(fields=["id"])).save("ids", a.file(uri="file://ids.jsonl"), ns="^orders$")
"""


def started(name: str = "shop") -> tuple[Pipeline, Node]:
    pipeline = Pipeline(name)
    return pipeline, pipeline.source("db", a.sqlite(uri="sqlite://shop.db"), ns="orders|items")


def file_sink() -> Any:
    return a.file(uri="file://out.jsonl")


def refusal(act: Callable[[], object]) -> UsageError:
    with pytest.raises(UsageError) as caught:
        act()
    return caught.value


# The tree


def test_a_sink_knows_its_way_from_the_source() -> None:
    pipeline, orders = started()
    orders.save("audit", file_sink())
    orders.transform("slim", f.pick(fields=["id"]), ns="orders").transform("same", lambda df: df).save(
        "ids", file_sink(), ns="^orders$"
    )
    audit, ids = pipeline.sink_nodes
    assert pipeline.source_node.ns == Namespace("orders|items")
    assert audit.steps == ()
    assert audit.ns.everything
    assert [(step.name, step.label) for step in ids.steps] == [
        ("slim", "pick"),
        ("same", "DataFrame function"),
    ]
    assert ids.ns == Namespace("^orders$")


def test_a_node_used_twice_shares_nothing() -> None:
    pipeline, orders = started()
    slim = orders.transform("slim", f.pick(fields=["id"]))
    slim.transform("more", f.omit(fields=["id"])).save("one", file_sink())
    slim.save("two", file_sink())
    orders.save("three", file_sink())
    assert [tuple(step.name for step in sink.steps) for sink in pipeline.sink_nodes] == [
        ("slim", "more"),
        ("slim",),
        (),
    ]


def test_nodes_are_frozen() -> None:
    pipeline, orders = started()
    orders.save("audit", file_sink())
    with pytest.raises(dataclasses.FrozenInstanceError):
        pipeline.sink_nodes[0].name = "other"  # type: ignore[misc]


def test_save_ends_a_branch() -> None:
    """In the original save() gave back a node, and chaining it made a sink the child of a sink."""
    _, orders = started()
    result: object = orders.save("audit", file_sink())  # type: ignore[func-returns-value]
    assert result is None


def test_a_second_source_is_refused_and_the_first_one_kept() -> None:
    pipeline, _ = started()
    error = refusal(lambda: pipeline.source("other", a.sqlite(uri="sqlite://x.db")))
    assert "already has a source, 'db'" in error.message
    assert pipeline.source_node.name == "db"


def test_a_pipeline_without_source_or_sink_is_refused() -> None:
    assert "no source" in refusal(Pipeline("empty").check).message
    pipeline, _ = started()
    assert "no sink" in refusal(pipeline.check).message


# Names: how a sink finds its position again


@pytest.mark.parametrize("name", ["a", "A9", "orders_v2.1-x", "9", "x" * 64])
def test_names_that_are_taken(name: str) -> None:
    pipeline, orders = started()
    orders.save(name, file_sink())
    assert [sink.name for sink in pipeline.sink_nodes] == [name]


@pytest.mark.parametrize("name", ["", "_a", "-a", ".a", "a b", "a/b", "ä", "x" * 65, "a\n", ".."])
def test_names_that_are_refused(name: str) -> None:
    _, orders = started()
    for act in (
        lambda: orders.save(name, file_sink()),
        lambda: orders.transform(name, f.pick(fields=["id"])),
        lambda: Pipeline(name),
    ):
        error = refusal(act)
        assert "cannot be named" in error.message
        assert error.hint
        assert "letters, digits" in error.hint


def test_a_name_is_given_once_whatever_it_names() -> None:
    pipeline, orders = started()
    orders.save("audit", file_sink())
    for act in (
        lambda: orders.save("audit", file_sink()),
        lambda: orders.transform("audit", f.pick(fields=["id"])),
        lambda: orders.save("db", file_sink()),
    ):
        assert "already has a" in refusal(act).message
    assert [sink.name for sink in pipeline.sink_nodes] == ["audit"]


def test_a_refused_node_does_not_take_its_name() -> None:
    pipeline, orders = started()
    refusal(lambda: orders.save("audit", file_sink(), ns="("))
    orders.save("audit", file_sink())
    assert len(pipeline.sink_nodes) == 1


def test_a_missing_name_is_told_as_such() -> None:
    _, orders = started()
    nameless: Any = orders.save
    error = refusal(lambda: nameless(file_sink(), "orders"))
    assert "a sink needs a name first, got the adaptor 'file'" in error.message


# What a node takes


def test_only_adaptors_that_can_are_sources_or_sinks() -> None:
    _, orders = started()
    assert (
        "adaptor 'generate' cannot be written"
        in refusal(lambda: orders.save("x", a.generate(count=1))).message
    )
    assert (
        "adaptor 'discard' cannot be read" in refusal(lambda: Pipeline("p").source("x", a.discard())).message
    )


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("file://x", "expected an adaptor, got 'file://x'"),
        (None, "expected an adaptor, got None"),
        (a.file, "was given without calling it"),
        (f.pick(fields=["id"]), "expected an adaptor, got the function 'pick'"),
    ],
)
def test_what_is_no_adaptor_is_named(wrong: Any, words: str) -> None:
    _, orders = started()
    assert words in refusal(lambda: orders.save("x", wrong)).message


async def later(df: object) -> object:
    return df


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("pick", "expected a function, got 'pick'"),
        ({"fields": ["id"]}, "expected a function, got a dict"),
        (f.pick, "was given without calling it"),
        (TransformNode, "the class 'TransformNode' was given without calling it"),
        (lambda: None, "cannot be called with one argument"),
        (lambda df, other: df, "cannot be called with one argument"),
        (later, "a coroutine cannot transform"),
    ],
)
def test_what_is_no_function_is_named(wrong: Any, words: str) -> None:
    _, orders = started()
    error = refusal(lambda: orders.transform("x", wrong))
    assert words in error.message
    assert error.hint


def test_any_callable_of_one_argument_is_a_function() -> None:
    class Limit:
        def __call__(self, df: Any, rows: int = 10) -> Any:
            return df.limit(rows)

    def first(df: Any, rows: int = 3) -> Any:
        return df.limit(rows)

    pipeline, orders = started()
    orders.transform("object", Limit()).transform("function", first).transform("lambda", lambda df: df)
    assert [step.name for step in pipeline.transform_nodes] == ["object", "function", "lambda"]


def test_a_bad_pattern_names_its_node() -> None:
    _, orders = started()
    error = refusal(lambda: orders.save("audit", file_sink(), ns="a(?=b)"))
    assert error.message.startswith("sink 'audit': namespace pattern 'a(?=b)', character 2: look-around")


# Pipeline files


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_is_loaded(tmp_path: Path) -> None:
    pipeline = load_pipeline(written(tmp_path / "shop.py", SHOP))
    assert pipeline.name == "shop"
    assert [sink.name for sink in pipeline.sink_nodes] == ["audit", "ids"]


def test_a_pipeline_kept_only_through_a_node_is_found(tmp_path: Path) -> None:
    text = """\
from penstock import Pipeline, adaptors as a
orders = Pipeline("shop").source("db", a.sqlite(uri="sqlite://shop.db"))
orders.save("audit", a.file(uri="file://audit.jsonl"))
"""
    assert load_pipeline(written(tmp_path / "shop.py", text)).name == "shop"


def second(name: str) -> str:
    """The shop once more, under other variables."""
    return (
        SHOP.replace("orders", "second")
        .replace("shop =", "mall =")
        .replace('("shop")', f'("{name}")')
        .replace("shop.source", "mall.source")
    )


def test_the_path_of_a_file_may_be_any_bytes(tmp_path: Path) -> None:
    file = tmp_path / "caf\udce9.py"
    file.write_text(
        "from penstock import Pipeline, adaptors as a\n"
        "p = Pipeline('p')\n"
        "p.source('in', a.file(uri='file://in.jsonl')).save('out', a.file(uri='file://out.jsonl'))\n"
    )
    assert load_pipeline(file).name == "p"


def test_of_several_pipelines_one_is_named(tmp_path: Path) -> None:
    file = written(tmp_path / "two.py", SHOP + second("mall"))
    error = refusal(lambda: load_pipeline(file))
    assert "defines 2 pipelines: shop, mall" in error.message
    assert error.hint == f"say which one: {file}:shop"
    assert load_pipeline(file, "mall").name == "mall"
    assert "did you mean 'mall'?" in refusal(lambda: load_pipeline(file, "mal")).message


def test_two_pipelines_of_one_name_are_refused(tmp_path: Path) -> None:
    file = written(tmp_path / "two.py", SHOP + second("shop"))
    assert "two pipelines named 'shop'" in refusal(lambda: load_pipeline(file)).message


def test_a_file_may_import_its_neighbours(tmp_path: Path) -> None:
    written(tmp_path / "shop_rules_beside.py", "WANTED = 'orders'\ndef keep(df):\n    return df\n")
    text = (
        "import shop_rules_beside as rules\n"
        + SHOP
        + 'orders.transform("kept", rules.keep).save("k", a.discard())\n'
    )
    pipeline = load_pipeline(written(tmp_path / "shop.py", text))
    assert "shop_rules_beside" in pipeline.modules
    assert "penstock" not in pipeline.modules


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("x = (\n", "line 1", "'(' was never closed"),
        ("\n\nprnt('x')\n", "line 3", "NameError: name 'prnt' is not defined"),
        (SHOP + "orders.save('audit', a.discard())\n", "line 7", "sink 'audit': pipeline 'shop' already has"),
        (SHOP.replace("uri=", "url=", 1), "line 4", "unknown setting 'url'; did you mean 'uri'?"),
        (SHOP.replace("fields", "field"), "line 6", "unknown setting 'field'; did you mean 'fields'?"),
        (SHOP + "orders.save(a.discard())\n", "line 7", "missing 1 required positional argument"),
        ("import sys\nsys.exit(3)\n", "line 2", "ended itself with exit(3)"),
        ("1 / 0\n", "line 1", "ZeroDivisionError: division by zero"),
        ("def f():\n    raise ValueError('no')\nf()\n", "line 2", "ValueError: no"),
        ("x = 'a\x00b'\n", "", "null byte"),
        ("x = 1\n", "", "defines no pipeline"),
    ],
)
def test_an_error_in_the_file_is_told_with_its_line(
    tmp_path: Path, text: str, place: str, words: str
) -> None:
    file = written(tmp_path / "shop.py", text)
    error = refusal(lambda: load_pipeline(file))
    assert str(file) in error.message
    assert place in error.message
    assert words in error.message
    assert "Traceback" not in error.message


def test_a_setting_without_its_name_is_answered_with_how_to_name_it(tmp_path: Path) -> None:
    file = written(tmp_path / "shop.py", SHOP + "orders.save('copy', a.file('file://copy.jsonl'))\n")
    hint = refusal(lambda: load_pipeline(file)).hint
    assert hint == 'settings are given by name, as in a.file(uri="file://audit.jsonl")'


def test_an_error_in_a_neighbour_is_told_with_the_neighbours_line(tmp_path: Path) -> None:
    written(tmp_path / "broken_beside.py", "\nraise KeyError('gone')\n")
    error = refusal(lambda: load_pipeline(written(tmp_path / "shop.py", "import broken_beside\n")))
    assert "broken_beside.py, line 2: KeyError: 'gone'" in error.message


def test_an_error_below_the_file_is_told_with_the_files_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "shop.py", "import importlib\nimportlib.import_module('none_such')\n")
    error = refusal(lambda: load_pipeline(Path("shop.py")))
    assert error.message.startswith("shop.py, line 2: ModuleNotFoundError: No module named 'none_such'")


def test_a_missing_name_in_the_file_says_what_comes_first(tmp_path: Path) -> None:
    error = refusal(lambda: load_pipeline(written(tmp_path / "shop.py", SHOP + "orders.save(a.discard())\n")))
    assert error.hint
    assert "name comes first" in error.hint


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "orders.save('x', a.discard(), on_eror='stop')",
            "save() has no 'on_eror'; did you mean 'on_error'?",
        ),
        ("orders.save('x', a.discard(), maxlag='1GB')", "save() has no 'maxlag'; did you mean 'max_lag'?"),
        (
            "orders.transform('x', f.pick(fields=['a']), nz='a')",
            "transform() has no 'nz'; known: function, name, ns",
        ),
        ("Pipeline('p').source('x', a.generate(count=1), namespace='a')", "source() has no 'namespace'"),
        ("retry(3, back_off='1s')", "retry() has no 'back_off'; did you mean 'backoff'?"),
        ("Pipeline('p', segment_size=1)", "unknown setting 'segment_size'; did you mean 'segment_bytes'?"),
        ("a.fil(uri='x')", "'penstock.adaptors' has no attribute 'fil'; did you mean 'file'?"),
        ("f.pik(fields=['x'])", "'penstock.functions' has no attribute 'pik'; did you mean 'pick'?"),
        ("orders.sav('x', a.discard())", "'Node' object has no attribute 'sav'; did you mean 'save'?"),
        ("shop.sourc('x', a.discard())", "no attribute 'sourc'; did you mean 'source'?"),
        ("'x'.sav()", "AttributeError: 'str' object has no attribute 'sav'\n"),
    ],
)
def test_a_misspelt_word_is_refused_with_a_suggestion(tmp_path: Path, line: str, words: str) -> None:
    """Trap 1 of the reference: the original took any key in silence."""
    file = written(tmp_path / "shop.py", SHOP + f"from penstock import retry\n{line}\n")
    error = refusal(lambda: load_pipeline(file))
    assert f"{file}, line 8: " in error.message
    assert words in error.message


def test_variables_of_a_file_come_from_environment_settings_and_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FROM_ENV", "env")
    monkeypatch.delenv("FROM_FILE", raising=False)
    written(tmp_path / "beside.txt", "content\n")
    uri = "file:///${FROM_ENV}/${FROM_FILE}/${secret:KEY}/${file:beside.txt}"
    text = SHOP.replace("file://audit.jsonl", uri)
    pipeline = load_pipeline(
        written(tmp_path / "shop.py", text),
        settings={"FROM_ENV": "hidden", "FROM_FILE": "file"},
        secrets={"KEY": "hunter22"},
    )
    adaptor: Any = pipeline.sink_nodes[0].adaptor
    assert adaptor.uri == "file:///env/file/hunter22/content"
    error = refusal(lambda: load_pipeline(tmp_path / "shop.py"))
    assert (
        "line 5: adaptor 'file', setting 'uri': the environment variable FROM_FILE is not set"
        in error.message
    )


def test_a_sink_without_a_name_cannot_be_written(tmp_path: Path) -> None:
    """Trap 13 of the reference: an unnamed sink got a new name at every start, and never resumed."""
    for line in (
        "orders.save(a.discard())",
        "orders.save(adaptor=a.discard())",
        "orders.save('', a.discard())",
    ):
        file = written(tmp_path / "shop.py", SHOP + f"{line}\n")
        assert "line 7" in refusal(lambda file=file: load_pipeline(file)).message  # type: ignore[misc]


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    assert "there is no pipeline file" in refusal(lambda: load_pipeline(tmp_path / "none.py")).message
    assert "cannot read" in refusal(lambda: load_pipeline(tmp_path)).message
    (tmp_path / "latin.py").write_bytes(b"x = '\xe4'\n")
    assert "latin.py" in refusal(lambda: load_pipeline(tmp_path / "latin.py")).message


def test_each_load_is_fresh(tmp_path: Path) -> None:
    file = written(tmp_path / "shop.py", SHOP)
    first, second = load_pipeline(file), load_pipeline(file)
    assert first is not second
    assert len(second.sink_nodes) == 2


def test_classes_of_the_file_find_their_own_module(tmp_path: Path) -> None:
    text = """\
from __future__ import annotations
import dataclasses
@dataclasses.dataclass
class Rule:
    limit: int = 0
"""
    assert load_pipeline(written(tmp_path / "shop.py", text + SHOP)).name == "shop"


def test_functions_of_the_file_can_be_sent_to_workers_by_value(tmp_path: Path) -> None:
    """What the runner does before it starts Spark: the file's modules are pickled by value."""
    written(tmp_path / "rules_by_value.py", "def double(x):\n    return x * 2\n")
    text = "import rules_by_value\n" + SHOP + "def twice(x):\n    return rules_by_value.double(x)\n"
    file = written(tmp_path / "shop.py", text)
    script = f"""
import sys
from pathlib import Path
from penstock.pipeline.definition import load_pipeline
pipeline = load_pipeline(Path({str(file)!r}))
assert 'pyspark' not in sys.modules
from pyspark import cloudpickle
for name in pipeline.modules:
    cloudpickle.register_pickle_by_value(sys.modules[name])
sys.stdout.buffer.write(cloudpickle.dumps(sys.modules[pipeline.modules[0]].twice))
"""
    pickled = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, timeout=60
    ).stdout
    twice = pickle.loads(pickled)
    assert twice(21) == 42
