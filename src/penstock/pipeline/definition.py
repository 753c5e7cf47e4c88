"""A pipeline as a person writes it: one source, functions, sinks.

    shop = Pipeline("shop")
    orders = shop.source("db", a.sqlite(uri="sqlite://shop.db"), ns="orders|items")
    orders.save("audit", a.file(uri="file://audit.jsonl"))
    orders.transform("slim", f.pick(fields=["id"])).save("ids", a.file(uri="file://ids.jsonl"))

The functions form a tree: `transform` gives back a new node and leaves the old one as it was, so a node
that is kept in a variable can feed any number of sinks, and none of them sees what another one added.

Names are how a sink finds its position again after a restart, so each node has one and no two are equal.
What is built here are frozen records; nothing connects and nothing runs.

`load_pipeline` reads a pipeline file. The file is a program of its own: it may import modules that lie
beside it, and what goes wrong in it is told with its file and line.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import linecache
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, TypedDict, Unpack, cast

from penstock.adaptors.base import Adaptor
from penstock.base.errors import PenstockError, UsageError, did_you_mean
from penstock.base.settings import load, setting
from penstock.functions.base import Function
from penstock.pipeline.namespace import Namespace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MIB = 1024 * 1024
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

DataFrameFunction = Callable[["DataFrame"], "DataFrame"]
"""A transformation of a whole batch: a Spark DataFrame in, one out."""


class PipelineArguments(TypedDict, total=False):
    """The settings of a pipeline as keyword arguments; see `PipelineSettings`."""

    segment_bytes: int
    batch_bytes: int
    batch_messages: int
    partitions: int | None


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """What holds for the whole pipeline."""

    segment_bytes: int = cast(int, setting("size at which a segment of the log is closed", default=64 * MIB))
    batch_bytes: int = cast(int, setting("most bytes of the log in one batch of a sink", default=64 * MIB))
    batch_messages: int = cast(int, setting("most messages in one batch of a sink", default=500_000))
    partitions: int | None = cast(
        "int | None", setting("partitions of a large batch; one a core if not given", default=None)
    )

    def __post_init__(self) -> None:
        for name in ("segment_bytes", "batch_bytes", "batch_messages", "partitions"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"setting '{name}': expected a number above 0, got {value}")


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
    function: Function | DataFrameFunction
    ns: Namespace

    @property
    def label(self) -> str:
        """What kind of step it is, as shown to a person."""
        return self.function.name if isinstance(self.function, Function) else "DataFrame function"


@dataclass(frozen=True, slots=True)
class SinkNode:
    """Where messages go whose namespace, as the log has it, matches `ns`: through `steps`, in this order."""

    name: str
    adaptor: Adaptor
    ns: Namespace
    steps: tuple[TransformNode, ...] = ()


class Pipeline:
    """A pipeline under construction; complete once it has a source and a sink."""

    def __init__(self, name: str, **settings: Unpack[PipelineArguments]) -> None:
        self.name = _checked_name("a pipeline", name)
        self.settings = load(f"pipeline '{name}'", PipelineSettings, cast("dict[str, object]", settings))
        self.modules: tuple[str, ...] = ()
        """Modules that only the pipeline file can import; Spark's workers get their functions by value."""
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

    def transform(self, name: str, function: Function | DataFrameFunction, ns: str = ".*") -> Node:
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

    def save(self, name: str, adaptor: Adaptor, ns: str = ".*") -> None:
        """Send the messages that match `ns` from here to a sink.

        `ns` is tested on the namespace as the log has it, before any transformation.
        """
        _checked_name("a sink", name)
        _checked_adaptor(f"sink '{name}'", adaptor)
        if not adaptor.writes:
            raise UsageError(
                f"sink '{name}': adaptor '{adaptor.name}' cannot be written", hint="see `penstock about`"
            )
        sink = SinkNode(name, adaptor, _pattern(f"sink '{name}'", ns), self._steps)
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
            hint="a name has 1 to 64 letters, digits, '_', '.' or '-', and starts with a letter or digit",
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
    if isinstance(function, Function):
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
    if isinstance(value, Function):
        return f"the function '{value.name}'"
    if isinstance(value, type):
        return f"the class '{value.__name__}'"
    if callable(value):
        return f"the function '{getattr(value, '__name__', type(value).__name__)}'"
    return (
        repr(value) if isinstance(value, (str, int, float)) or value is None else f"a {type(value).__name__}"
    )


def load_pipeline(path: Path, name: str | None = None) -> Pipeline:
    """Run a pipeline file and give back the pipeline in it: the only one, or the one called `name`."""
    code = _compile(path)
    module = _fresh_module(path)
    directory = str(path.resolve().parent)
    if directory in sys.path:
        sys.path.remove(directory)
    sys.path.insert(0, directory)
    try:
        exec(code, module.__dict__)
    except (Exception, SystemExit) as error:
        raise _in_the_file(path, error) from error
    pipeline = _chosen(path, _pipelines_of(module), name)
    pipeline.check()
    pipeline.modules = _modules_beside(path, module)
    return pipeline


def _compile(path: Path) -> CodeType:
    try:
        text = importlib.util.decode_source(path.read_bytes())
        return compile(text, str(path), "exec", dont_inherit=True)
    except FileNotFoundError:
        raise UsageError(
            f"there is no pipeline file {path}",
            hint="make one with `penstock init SOURCE SINK`; see `penstock about`",
        ) from None
    except OSError as error:
        raise UsageError(f"cannot read the pipeline file {path}: {error.strerror}") from None
    except SyntaxError as error:
        line = f"\n    {error.text.strip()}" if error.text else ""
        raise UsageError(f"{path}, line {error.lineno or 1}: {error.msg}{line}") from None
    except ValueError as error:
        raise UsageError(f"{path} is not Python text: {error}") from None


def _fresh_module(path: Path) -> ModuleType:
    """An empty module for the file, known to Python so that classes in it find their own module.

    The name is one that no worker process can import by accident; see `Pipeline.modules`.
    """
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    module = ModuleType(f"penstock_pipeline_{digest}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    linecache.checkcache(str(path))
    return module


def _pipelines_of(module: ModuleType) -> list[Pipeline]:
    """Every pipeline that a variable of the file leads to, once, in the file's order."""
    found: dict[int, Pipeline] = {}
    for value in vars(module).values():
        if isinstance(value, Node):
            value = value.pipeline
        if isinstance(value, Pipeline):
            found[id(value)] = value
    return list(found.values())


def _chosen(path: Path, pipelines: list[Pipeline], name: str | None) -> Pipeline:
    if not pipelines:
        raise UsageError(f"{path} defines no pipeline", hint='start with: shop = Pipeline("shop")')
    names = [pipeline.name for pipeline in pipelines]
    for given in names:
        if names.count(given) > 1:
            raise UsageError(f"{path} defines two pipelines named '{given}'", hint="give each its own name")
    if name is None and len(pipelines) > 1:
        raise UsageError(
            f"{path} defines {len(pipelines)} pipelines: {', '.join(names)}",
            hint=f"say which one: {path}:{names[0]}",
        )
    for pipeline in pipelines:
        if name is None or pipeline.name == name:
            return pipeline
    raise UsageError(f"{path} has no pipeline '{name}'{did_you_mean(name or '', names)}")


def _modules_beside(path: Path, module: ModuleType) -> tuple[str, ...]:
    """The file's own module, and those it imported from its directory."""
    directory = path.resolve().parent
    beside = [module.__name__]
    for name, other in list(sys.modules.items()):
        file = Path(getattr(other, "__file__", None) or "")
        home = file.parent.parent if file.name == "__init__.py" else file.parent
        own = name in (module.__name__, "__main__", "penstock")
        if file.name and "." not in name and not own and home.resolve() == directory:
            beside.append(name)
    return tuple(beside)


def _in_the_file(path: Path, error: BaseException) -> UsageError:
    """What went wrong, and where in the file or in a module beside it: the innermost line a person wrote."""
    place, line = str(path), None
    for frame in traceback.extract_tb(error.__traceback__):
        beside = Path(frame.filename).resolve().parent == path.resolve().parent
        if beside and not frame.filename.startswith("<"):  # as Python calls code that has no file
            place, line = f"{frame.filename}, line {frame.lineno}", frame.line
    if isinstance(error, SyntaxError):
        place, line = f"{error.filename}, line {error.lineno}", (error.text or "").strip()
    shown = f"\n    {line}" if line else ""
    if isinstance(error, PenstockError):
        return UsageError(f"{place}: {error.message}{shown}", hint=error.hint)
    if isinstance(error, SystemExit):
        return UsageError(f"{place}: the file ended itself with exit({error.code}){shown}")
    hint = None
    if isinstance(error, TypeError) and "missing 1 required positional argument" in str(error):
        hint = 'a node\'s name comes first, as in node.save("audit", a.file(uri="file://audit.jsonl"))'
    return UsageError(f"{place}: {type(error).__name__}: {error}{shown}", hint=hint)
