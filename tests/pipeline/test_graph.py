"""The shape of a pipeline, as data and as drawings."""

from __future__ import annotations

import json

from penstock import Pipeline, retry
from penstock import adaptors as a
from penstock import functions as f
from penstock.pipeline.graph import as_dot, as_json, as_mermaid, as_text, graph_of


def shop() -> Pipeline:
    pipeline = Pipeline("shop")
    db = pipeline.source("db", a.sqlite(uri="sqlite://me:pass@shop.db"), ns=r"public\.(orders|items)")
    db.save("audit", a.file(uri="file://audit.jsonl"), on_error=retry(3), max_lag="1GB")
    slim = db.transform("slim", f.pick(fields=["id"]), ns='a"b')
    slim.save("one", a.discard())
    slim.transform("more", lambda df: df).save("two", a.discard(), ns="^orders$")
    db.transform("lost", f.pick(fields=["id"]))
    return pipeline


def test_a_node_that_feeds_several_sinks_is_one_node_and_a_lost_branch_is_none() -> None:
    graph = graph_of(shop())
    assert [(node.name, node.kind, node.what) for node in graph.nodes] == [
        ("db", "source", "sqlite"),
        ("audit", "sink", "file"),
        ("slim", "transform", "pick"),
        ("one", "sink", "discard"),
        ("more", "transform", "DataFrame function"),
        ("two", "sink", "discard"),
    ]
    assert graph.edges == (
        ("db", "audit"),
        ("db", "slim"),
        ("slim", "one"),
        ("slim", "more"),
        ("more", "two"),
    )


def test_the_tree() -> None:
    assert as_text(graph_of(shop())) == (
        "shop\n"
        "└── db  sqlite  ns public\\.(orders|items)\n"
        "    ├── audit  file  on error retry 3 times from 1s on, then stop  at most 1GB, then hold\n"
        '    └── slim  pick  ns a"b\n'
        "        ├── one  discard\n"
        "        └── more  DataFrame function\n"
        "            └── two  discard  ns ^orders$"
    )


def test_mermaid_signs_of_a_pattern_are_spelled_out() -> None:
    lines = as_mermaid(graph_of(shop())).splitlines()
    assert lines[0] == "flowchart LR"
    assert lines[1] == '    n0[("db<br/>sqlite<br/>ns public#92;.#40;orders#124;items#41;")]'
    assert '    n2["slim<br/>pick<br/>ns a#34;b"]' in lines
    assert lines[-1] == "    n4 --> n5"
    assert len(lines) == 1 + 6 + 5


def test_dot_quotes_what_it_must() -> None:
    lines = as_dot(graph_of(shop())).splitlines()
    assert lines[0] == 'digraph "shop" {'
    assert lines[2] == '    "db" [shape=cylinder, label="db\\nsqlite\\nns public\\\\.(orders|items)"];'
    assert '    "slim" [shape=box, label="slim\\npick\\nns a\\"b"];' in lines
    assert lines[-2:] == ['    "more" -> "two";', "}"]


def test_json_has_nodes_and_edges() -> None:
    shown = json.loads(as_json(graph_of(shop())))
    assert shown["pipeline"] == "shop"
    assert shown["nodes"][1] == {
        "name": "audit",
        "kind": "sink",
        "what": "file",
        "ns": ".*",
        "on_error": "retry 3 times from 1s on, then stop",
        "max_lag": "1GB, then hold",
    }
    assert shown["edges"][0] == {"from": "db", "to": "audit"}


def test_no_setting_is_in_any_drawing() -> None:
    graph = graph_of(shop())
    for drawn in (as_text(graph), as_mermaid(graph), as_dot(graph), as_json(graph)):
        assert "pass" not in drawn
        assert "jsonl" not in drawn


def test_sinks_that_commit_together_are_told() -> None:
    pipeline = Pipeline("p")
    source = pipeline.source("in", a.generate(count=1))
    for name in ("one", "two"):
        source.save(name, a.connector(sink="127.0.0.1:1"))
    source.save("alone", a.connector(sink="127.0.0.1:1", atomic=False))
    graph = graph_of(pipeline)
    assert as_text(graph).splitlines()[2:] == [
        "    ├── one  connector  commits with two",
        "    ├── two  connector  commits with one",
        "    └── alone  connector",
    ]
    assert [node.get("commits_with") for node in json.loads(as_json(graph))["nodes"][1:]] == [
        ["two"], ["one"], None,
    ]  # fmt: skip
