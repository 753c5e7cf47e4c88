"""A pipeline as a person writes it: one source, functions, sinks.

    shop = Pipeline("shop")
    orders = shop.source("db", a.sqlite(uri="sqlite://shop.db"), ns="orders|items")
    orders.save("audit", a.file(uri="file://audit.jsonl"))
    orders.transform("slim", f.pick(fields=["id"])).save("ids", a.file(uri="file://ids.jsonl"))

The functions form a tree: `transform` gives back a new node and leaves the old one as it was, so a node
that is kept in a variable can feed any number of sinks, and none of them sees what another one added.

Names are how a sink finds its position again after a restart, so each node has one and no two are equal.
What is built here are frozen records; nothing connects and nothing runs.

A pipeline can also be read from a file, Python or YAML: `load_pipeline`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, cast

from penstock.adaptors.base import Adaptor
from penstock.base.errors import UsageError
from penstock.base.settings import load
from penstock.functions.base import Function
from penstock.functions.sql import SqlFunction
from penstock.log.journals import NAME
from penstock.pipeline.namespace import Namespace
from penstock.pipeline.policy import MaxLag, Policy
from penstock.pipeline.saving import MaxLagWords, RetryWords, max_lag_of, policy_of
from penstock.pipeline.settings import PipelineArguments, PipelineSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STOP = Policy()
"""What a sink does with a refused message if nothing else is said."""

DataFrameFunction = Callable[["DataFrame"], "DataFrame"]
"""A transformation of a whole batch: a Spark DataFrame in, one out."""


@dataclass(frozen=True, slots=True)
class SourceNode:
    """Where the messages come from; only namespaces that match `ns` are read."""

    name: str
    adaptor: Adaptor
    ns: Namespace


@dataclass(frozen=True, slots=True)
class TransformNode:
    """One step on the way to a sink, for messages whose current namespace matches `ns`."""

    name: str
    function: Function | SqlFunction | DataFrameFunction
    ns: Namespace

    @property
    def label(self) -> str:
        """What kind of step it is, as shown to a person."""
        if isinstance(self.function, (Function, SqlFunction)):
            return self.function.name
        return "DataFrame function"


@dataclass(frozen=True, slots=True)
class SinkNode:
    """Where messages go whose namespace, as the log has it, matches `ns`: through `steps`, in this order."""

    name: str
    adaptor: Adaptor
    ns: Namespace
    steps: tuple[TransformNode, ...] = ()
    on_error: Policy = STOP
    max_lag: MaxLag | None = None


class Pipeline:
    """A pipeline under construction; complete once it has a source and a sink."""

    def __init__(self, name: str, **settings: Unpack[PipelineArguments]) -> None:
        self.name = _checked_name("a pipeline", name)
        self.settings = load(f"pipeline '{name}'", PipelineSettings, cast("dict[str, object]", settings))
        self.modules: tuple[str, ...] = ()
        """Modules that only the pipeline file can import; Spark's workers get their functions by value."""
        self.file: str | None = None
        """Where it was loaded from, as FILE:NAME; None for one that a program made."""
        self._names: dict[str, str] = {}
        self._source: SourceNode | None = None
        self._transforms: list[TransformNode] = []
        self._sinks: list[SinkNode] = []

    def source(self, name: str, adaptor: Adaptor, ns: str = ".*") -> Node:
        """Say where the messages come from. A pipeline has one source."""
        _checked_name("a source", name)
        if self._source is not None:
            raise UsageError(
                f"pipeline '{self.name}' already has a source, '{self._source.name}'",
                hint="keep the node that source() gave back and use it for every sink",
            )
        _checked_adaptor(f"source '{name}'", adaptor)
        if not adaptor.reads:
            raise UsageError(
                f"source '{name}': adaptor '{adaptor.name}' cannot be read", hint="see `penstock about`"
            )
        node = SourceNode(name, adaptor, _pattern(f"source '{name}'", ns))
        self._claim("source", name)
        self._source = node
        return Node(self, ())

    @property
    def source_node(self) -> SourceNode:
        if self._source is None:
            raise UsageError(
                f"pipeline '{self.name}' has no source",
                hint='add one: orders = pipeline.source("db", a.sqlite(...))',
            )
        return self._source

    @property
    def transform_nodes(self) -> tuple[TransformNode, ...]:
        return tuple(self._transforms)

    @property
    def sink_nodes(self) -> tuple[SinkNode, ...]:
        return tuple(self._sinks)

    def check(self) -> None:
        """Refuse a pipeline that could not do anything."""
        source = self.source_node
        if not self._sinks:
            raise UsageError(
                f"pipeline '{self.name}' has no sink, so nothing would leave '{source.name}'",
                hint='add one: node.save("audit", a.file(uri="file://audit.jsonl"))',
            )

    def _claim(self, kind: str, name: str) -> None:
        if name in self._names:
            raise UsageError(
                f"{kind} '{name}': pipeline '{self.name}' already has a {self._names[name]} of this name",
                hint="give each node its own name; a sink finds its position by it",
            )
        self._names[name] = kind

    def __repr__(self) -> str:
        return f"<Pipeline '{self.name}': {len(self._sinks)} sinks>"


class Node:
    """A place in the pipeline that messages pass: the source, or the end of some transformations."""

    __slots__ = ("_steps", "pipeline")

    def __init__(self, pipeline: Pipeline, steps: tuple[TransformNode, ...]) -> None:
        self.pipeline = pipeline
        self._steps = steps

    def transform(
        self, name: str, function: Function | SqlFunction | DataFrameFunction, ns: str = ".*"
    ) -> Node:
        """A new node behind this one, at which `function` was applied to the messages that match `ns`.

        `function` is one of `penstock.functions`, or any callable that takes a Spark DataFrame and gives
        one back. `ns` is tested on the namespace that the message has by then.
        """
        _checked_name("a transformation", name)
        _checked_function(f"transformation '{name}'", function)
        step = TransformNode(name, function, _pattern(f"transformation '{name}'", ns))
        self.pipeline._claim("transformation", name)
        self.pipeline._transforms.append(step)
        return Node(self.pipeline, (*self._steps, step))

    def save(
        self,
        name: str,
        adaptor: Adaptor,
        ns: str = ".*",
        *,
        on_error: str | Policy | RetryWords = "stop",
        max_lag: int | str | MaxLagWords | MaxLag | None = None,
    ) -> None:
        """Send the messages that match `ns` from here to a sink.

        `ns` is tested on the namespace as the log has it, before any transformation. `on_error` says what
        becomes of a message that a function or the sink refuses: "stop", "dead-letter" or `retry(...)`.
        `max_lag` says how far the sink may fall behind: "10GB", or {"bytes": ..., "age": ..., "then": ...}.
        """
        _checked_name("a sink", name)
        _checked_adaptor(f"sink '{name}'", adaptor)
        if not adaptor.writes:
            raise UsageError(
                f"sink '{name}': adaptor '{adaptor.name}' cannot be written", hint="see `penstock about`"
            )
        sink = SinkNode(
            name,
            adaptor,
            _pattern(f"sink '{name}'", ns),
            self._steps,
            policy_of(f"sink '{name}'", on_error),
            max_lag_of(f"sink '{name}'", max_lag),
        )
        self.pipeline._claim("sink", name)
        self.pipeline._sinks.append(sink)


def _checked_name(what: str, name: object) -> str:
    if not isinstance(name, str):
        raise UsageError(
            f"{what} needs a name first, got {_kind(name)}",
            hint='as in node.save("audit", a.file(uri="file://audit.jsonl"))',
        )
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{what} cannot be named '{name}'",
            hint="a name has 1 to 64 ASCII letters, digits, '_', '.' or '-', and starts with a letter or digit",
        )
    return name


def _checked_adaptor(where: str, adaptor: object) -> None:
    if isinstance(adaptor, Adaptor):
        return
    hint = 'an adaptor with its settings is expected, as in a.file(uri="file://audit.jsonl")'
    if callable(adaptor):
        raise UsageError(f"{where}: {_kind(adaptor)} was given without calling it", hint=hint)
    raise UsageError(f"{where}: expected an adaptor, got {_kind(adaptor)}", hint=hint)


def _checked_function(where: str, function: object) -> None:
    if isinstance(function, (Function, SqlFunction)):
        return
    hint = 'give a function with its settings, f.pick(fields=["id"]), or a callable, lambda df: df.where(...)'
    if not callable(function):
        raise UsageError(f"{where}: expected a function, got {_kind(function)}", hint=hint)
    if (
        isinstance(function, type)
        or getattr(function, "__module__", "").partition(".functions")[0] == "penstock"
    ):
        raise UsageError(f"{where}: {_kind(function)} was given without calling it", hint=hint)
    if inspect.iscoroutinefunction(function):
        raise UsageError(f"{where}: a coroutine cannot transform a DataFrame", hint=hint)
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        raise UsageError(
            f"{where}: {_kind(function)} cannot be called with one argument, the DataFrame", hint=hint
        ) from None
    except ValueError:
        return  # a callable written in C tells nothing about itself


def _pattern(where: str, ns: str) -> Namespace:
    try:
        return Namespace(ns)
    except UsageError as error:
        raise UsageError(f"{where}: {error.message}", hint=error.hint) from None


def _kind(value: object) -> str:
    """What a person would call this value."""
    if isinstance(value, Adaptor):
        return f"the adaptor '{value.name}'"
    if isinstance(value, (Function, SqlFunction)):
        return f"the function '{value.name}'"
    if isinstance(value, type):
        return f"the class '{value.__name__}'"
    if callable(value):
        return f"the function '{getattr(value, '__name__', type(value).__name__)}'"
    return (
        repr(value) if isinstance(value, (str, int, float)) or value is None else f"a {type(value).__name__}"
    )


def load_pipeline(
    path: Path,
    name: str | None = None,
    *,
    settings: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
) -> Pipeline:
    """The pipeline that a file defines: the only one, or the one called `name`; see `penstock.pipeline.loading`."""
    from penstock.pipeline import loading  # which needs what is defined here

    return loading.load_pipeline(path, name, settings=settings, secrets=secrets)
