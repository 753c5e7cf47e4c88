"""The plan: who gets what, and what a person may not have meant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from penstock import Pipeline, retry
from penstock import adaptors as a
from penstock import functions as f
from penstock.adaptors.base import Adaptor, Guarantee, Order, Publisher, Sink, Stager
from penstock.base.errors import UsageError
from penstock.base.secrets import forget_all, register
from penstock.base.settings import setting
from penstock.pipeline.definition import Node
from penstock.pipeline.plan import Plan, make_plan, shown_settings

HERE = ["orders", "items", "order_items", "staff"]


class _LooseSink(Sink):
    order = Order.NONE
    guarantee = Guarantee.AT_LEAST_ONCE

    def stager(self) -> Stager:
        raise NotImplementedError

    def publisher(self) -> Publisher:
        raise NotImplementedError

    def staging(self, scratch: Path) -> Path:
        return scratch


@dataclass(frozen=True)
class Loose(Adaptor):
    """A sink that may repeat itself, with secrets."""

    name: ClassVar[str] = "loose"
    description: ClassVar[str] = "for tests"
    writes: ClassVar[bool] = True
    uri: str = cast(str, setting("where", example="loose://host"))
    token: str = cast(str, setting("key to it", default="", secret=True))
    size: int = cast(int, setting("how many", default=3))

    def sink(self) -> Sink:
        return _LooseSink()


def shop(ns: str = "^orders$|items") -> tuple[Pipeline, Node]:
    pipeline = Pipeline("shop")
    return pipeline, pipeline.source("db", a.sqlite(uri="sqlite://shop.db"), ns=ns)


def out(name: str = "out") -> Any:
    return a.file(uri=f"file://{name}.jsonl")


def texts(plan: Plan, node: str) -> Iterator[str]:
    return (remark.text for remark in plan.warnings if remark.node == node)


def test_each_sink_gets_what_source_and_sink_let_through() -> None:
    pipeline, orders = shop()
    orders.save("all", out("all"))
    orders.transform("slim", f.pick(fields=["id"])).save("some", out("some"), ns="^items$")
    plan = make_plan(pipeline, HERE)
    assert plan.source.namespaces == ("items", "order_items", "orders")
    assert plan.source.left_out == ("staff",)
    every, some = plan.sinks
    assert every.namespaces == ("items", "order_items", "orders")
    assert some.namespaces == ("items",)
    assert [(step.name, step.function) for step in some.steps] == [("slim", "pick")]
    assert every.guarantee == "exactly once"
    assert plan.problem is None


def test_unknown_namespaces_are_told_and_not_guessed() -> None:
    pipeline, orders = shop()
    orders.save("all", out(), ns="orders")
    plan = make_plan(pipeline, None, "no such file")
    assert plan.source.namespaces is None
    assert plan.sinks[0].namespaces is None
    assert plan.problem == "no such file"
    assert plan.warnings == ()


def test_a_pattern_that_matches_more_than_it_seems() -> None:
    pipeline, orders = shop(ns="orders|items")
    orders.save("all", out("all"))
    orders.save("some", out("some"), ns="items")
    plan = make_plan(pipeline, HERE)
    assert "'orders|items' matches more than it seems: order_items" in texts(plan, "db")
    assert "'items' matches more than it seems: order_items" in texts(plan, "some")
    assert not list(texts(plan, "all"))


def test_patterns_that_match_nothing() -> None:
    pipeline, orders = shop(ns="^nothing$")
    orders.save("all", out())
    assert "'^nothing$' matches none of its namespaces" in texts(make_plan(pipeline, HERE), "db")
    pipeline, orders = shop()
    orders.transform("idle", f.pick(fields=["id"]), ns="staff").save("staff", out("s"), ns="staff")
    orders.transform("idle2", f.pick(fields=["id"]), ns="staff").save("rest", out("r"))
    plan = make_plan(pipeline, HERE)
    assert "'staff' matches no namespace that is read" in texts(plan, "staff")
    assert "'staff' matches nothing on the way to 'rest'" in texts(plan, "idle2")


def test_behind_a_step_that_may_rename_nothing_is_presumed() -> None:
    pipeline, orders = shop()
    moved = orders.transform("move", f.remap(ns_map={"orders": "sales"}))
    moved.transform("late", f.pick(fields=["id"]), ns="sales").save("sales", out("s"))
    orders.transform("frame", lambda df: df).transform("later", f.pick(fields=["id"]), ns="sales").save(
        "x", out("x")
    )
    assert make_plan(pipeline, HERE).warnings == ()


def test_each_function_is_shown_with_the_names_it_is_applied_to() -> None:
    pipeline, orders = shop(ns=".*")
    moved = orders.transform("move", f.remap(ns_map={"orders": "sales"}), ns="orders")
    late = moved.transform("late", f.pick(fields=["id"]), ns="^(sales|staff)$")
    late.transform("frame", lambda df: df, ns="^items$").transform("after", f.pick(fields=["id"])).save(
        "all", out("a")
    )
    late.transform("idle", lambda df: df, ns="^nobody$").transform("known", f.pick(fields=["id"])).save(
        "few", out("f"), ns="^(orders|staff)$"
    )
    plan = make_plan(pipeline, HERE)
    every, few = plan.sinks
    assert [(step.name, step.namespaces) for step in every.steps] == [
        ("move", ("orders",)),
        ("late", ("sales", "staff")),
        ("frame", ("items",)),
        ("after", None),  # a DataFrame function may have given any name
    ]
    assert [(step.name, step.namespaces) for step in few.steps] == [
        ("move", ("orders",)),
        ("late", ("sales", "staff")),
        ("idle", ()),
        ("known", ("sales", "staff")),
    ]
    assert "'^nobody$' matches nothing on the way to 'few'" in texts(plan, "idle")


def test_a_functions_pattern_that_matches_more_than_it_seems() -> None:
    pipeline, orders = shop(ns=".*")
    slim = orders.transform("slim", f.pick(fields=["id"]), ns="items")
    slim.save("one", out("1"))
    slim.save("two", out("2"))
    assert list(texts(make_plan(pipeline, HERE), "slim")) == [
        "'items' matches more than it seems: order_items"
    ]  # once, though it is on the way to two sinks


def test_policies_lag_limits_and_pipeline_settings_are_shown() -> None:
    pipeline = Pipeline("shop", log_limit="20GB", strict=True, retain_age="7d")
    orders = pipeline.source("db", a.sqlite(uri="sqlite://shop.db"))
    orders.save("one", out("1"), on_error=retry(3, backoff="2s", then="dead-letter"), max_lag="10GB")
    orders.save("two", out("2"))
    plan = make_plan(pipeline, HERE)
    one, two = plan.sinks
    assert (one.on_error, one.max_lag) == ("retry 3 times from 2s on, then dead-letter", "10GB, then hold")
    assert (two.on_error, two.max_lag) == ("stop", None)
    assert plan.settings == {"log_limit": "20GB", "strict": "True", "retain_age": "7d"}


def test_a_lag_limit_above_the_logs_own_is_told() -> None:
    pipeline = Pipeline("shop", log_limit="20GB")
    pipeline.source("db", a.sqlite(uri="sqlite://shop.db")).save("one", out(), max_lag="30GB")
    assert "max_lag of 30GB is never reached: the source pauses when the log has 20GB" in texts(
        make_plan(pipeline, HERE), "one"
    )


def test_registered_secrets_are_masked_in_settings_and_in_what_went_wrong() -> None:
    register("hunter22")
    try:
        pipeline, orders = shop()
        orders.save("loose", Loose(uri="loose://host/hunter22"))
        plan = make_plan(pipeline, None, "cannot open hunter22")
    finally:
        forget_all()
    assert plan.sinks[0].settings["uri"] == "loose://host/***"
    assert plan.problem == "cannot open ***"


def test_a_source_without_namespaces() -> None:
    pipeline, orders = shop()
    orders.save("all", out())
    assert "the source has no namespaces yet" in texts(make_plan(pipeline, []), "db")


def test_at_least_once_is_said() -> None:
    pipeline, orders = shop()
    orders.save("loose", Loose(uri="loose://host"))
    plan = make_plan(pipeline, HERE)
    assert plan.sinks[0].guarantee == "at least once"
    assert plan.sinks[0].order == "none"
    assert any("at least once" in text for text in texts(plan, "loose"))


def test_sinks_that_commit_together_are_told_and_one_that_cannot_abort() -> None:
    pipeline, orders = shop()
    orders.save("one", a.connector(sink="127.0.0.1:1"))
    orders.save("two", a.connector(sink="127.0.0.1:1", transactional=False))
    orders.save("alone", a.connector(sink="127.0.0.1:1", atomic=False))
    plan = make_plan(pipeline, HERE)
    assert [(sink.commits_with, sink.guarantee) for sink in plan.sinks] == [
        (("two",), "exactly once"), (("one",), "at least once"), ((), "exactly once"),
    ]  # fmt: skip
    assert any(text.startswith("cannot abort what it has taken when one,") for text in texts(plan, "two"))
    orders.save("three", a.connector(sink="127.0.0.1:1"), on_error="dead-letter")
    with pytest.raises(UsageError, match="'one' and 'three' commit together and need the same on_error"):
        make_plan(pipeline, HERE)


def test_branches_without_a_sink_and_shared_targets_are_told() -> None:
    pipeline, orders = shop()
    orders.transform("lost", f.pick(fields=["id"]))
    orders.save("one", out("same"))
    orders.save("two", out("same"))
    plan = make_plan(pipeline, HERE)
    assert "leads to no sink, so it will not run" in texts(plan, "lost")
    assert "writes the same target as 'one'" in texts(plan, "two")


def test_a_sink_that_writes_what_the_source_reads_is_told() -> None:
    pipeline = Pipeline("loop")
    pipeline.source("in", out("same")).save("out", out("same"))
    assert "writes what 'in' reads" in texts(make_plan(pipeline, ["same"]), "out")


def test_a_pipeline_without_sinks_has_no_plan() -> None:
    pipeline, _ = shop()
    with pytest.raises(UsageError, match="no sink"):
        make_plan(pipeline, HERE)


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("loose://host/x", "loose://host/x"),
        ("loose://me:pass@host/x", "loose://me:***@host/x"),
        ("loose://me:p@ss/w@host/x", "loose://me:***@host/x"),
        ("loose://:pass@host", "loose://:***@host"),
        ("loose://me@host/x", "loose://me@host/x"),
        ("loose://host/x?user=me&password=p%20w&a=1", "loose://host/x?user=me&password=***&a=1"),
    ],
)
def test_passwords_are_masked(uri: str, shown: str) -> None:
    assert shown_settings(Loose(uri=uri)) == {"uri": shown}


def test_secrets_are_masked_and_defaults_left_out() -> None:
    assert shown_settings(Loose(uri="loose://h", token="abc", size=4)) == {
        "uri": "loose://h",
        "token": "***",
        "size": "4",
    }
