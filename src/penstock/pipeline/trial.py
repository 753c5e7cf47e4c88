"""A function tried on a few documents: `try`. No log, no sink, and no Spark unless the function is Spark's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from penstock import functions
from penstock.adaptors.discard import Discard
from penstock.base.errors import UNREADABLE, UsageError, did_you_mean
from penstock.functions.base import Function
from penstock.log.message import OP_WORDS, Mode, Op
from penstock.log.record import Record
from penstock.pipeline.definition import Pipeline, SinkNode, TransformNode
from penstock.pipeline.frames import frame_courses
from penstock.pipeline.namespace import Namespace
from penstock.pipeline.recompute import passed
from penstock.pipeline.records import Passing


@dataclass(frozen=True, slots=True)
class Tried:
    """What a function made of one document; they count from 1."""

    number: int
    ns: str
    op: str
    outcome: str
    """kept | dropped | refused"""
    out: Sequence[Passing] = ()
    error: str | None = None


def documents(text: bytes) -> list[bytes]:
    """The documents in a text: the whole of it if it is one, else its lines. What is no JSON is for the function."""
    whole = text.strip()
    if not whole:
        raise UsageError(
            "there is no document on standard input", hint="as in: penstock try FUNCTION < doc.json"
        )
    try:
        msgspec.json.decode(whole)
    except UNREADABLE:
        return [line.strip() for line in whole.splitlines() if line.strip()]
    return [whole]


def settings(given: Sequence[str]) -> dict[str, object]:
    """`NAME=VALUE` settings; a value that is no JSON is text."""
    found: dict[str, object] = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise UsageError(f"--set {item}: expected NAME=VALUE", hint="""as in --set 'fields=["id"]'""")
        if name in found:
            raise UsageError(f"--set {name}: given twice")
        try:
            found[name] = msgspec.json.decode(value)
        except UNREADABLE:
            found[name] = value
    return found


def builtin(name: str, given: Mapping[str, object]) -> TransformNode:
    """A built-in function by its name, with these settings."""
    make: Callable[..., Function] | None = getattr(functions, name, None)
    if name not in functions.ALL or make is None:
        raise UsageError(
            f"there is no function '{name}'{did_you_mean(name, functions.ALL)}",
            hint="a function of your own is FILE:NODE, as in shop.py:slim",
        )
    try:
        return TransformNode(name, make(**given), Namespace())
    except UsageError as error:
        if error.hint or "expected" not in error.message:
            raise
        hint = """--set takes JSON, as in --set 'fields=["id"]'; what is no JSON is text"""
        raise UsageError(error.message, hint=hint) from None


def tried(
    pipeline: Pipeline | None,
    step: TransformNode,
    texts: Sequence[bytes],
    ns: str,
    op: str,
    starting: Callable[[], None],
) -> Iterator[Tried]:
    """Apply one function to documents that arrive in namespace `ns`; its own filter is not asked."""
    if op not in OP_WORDS:
        raise UsageError(f"there is no op '{op}'{did_you_mean(op, OP_WORDS)}")
    what = Op(OP_WORDS.index(op))
    records = [Record(i, 0, Mode.COPY, what, ns, text) for i, text in enumerate(texts)]
    _refuse_what_is_no_text(records)
    alone = TransformNode(step.name, step.function, Namespace())
    sink = SinkNode("try", Discard(), Namespace(), (alone,))
    course = passed(records, sink)
    if course.needs_spark is not None:
        with frame_courses(pipeline or Pipeline("try"), starting) as frames:
            course = frames(records, sink)
    refused = course.refused
    for record in records:
        number = record.offset + 1
        out = [row for row in course.out if row.offset == record.offset]
        if record.offset in refused:
            yield Tried(number, ns, op, "refused", error=refused[record.offset][1])
        else:
            yield Tried(number, ns, op, "kept" if out else "dropped", out)


def _refuse_what_is_no_text(records: Sequence[Record]) -> None:
    for record in records:
        try:
            record.data.decode()
        except UnicodeDecodeError as error:
            raise UsageError(f"document {record.offset + 1} is not UTF-8: {error.reason}") from None
