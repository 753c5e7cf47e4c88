"""Test cases of a pipeline: messages in, and what each sink should get. No server and no data directory is touched.

They lie beside the pipeline file, `shop.test.yaml` or `shop_test.yaml` beside `shop.py`:

    env: {SHOP_DB: "sqlite://none.db"}          # for variables of the pipeline file that are not set
    cases:
      - name: small orders are left out
        input:
          - {ns: orders, data: {id: 1, total: 5}}              # op: insert unless said
          - {ns: orders, op: delete, data: {id: 2, total: 50}}
        expect:
          ids:                                  # for each sink that matters: what becomes of the input, in order
            - drop
            - {data: {id: 2}, op: delete}       # this document; with ns and op, if they are given
          audit:
            - {contains: {id: 1}}               # these fields, whatever else it has
            - {text: '{"id":2,"total":50}'}     # this text, byte for byte
          search: drop                          # nothing of it
          stock: {error: "not a number"}        # refused, with an error that contains this

Drops are compared only for a sink whose list names one. `data` of a message may be text: then it is that JSON text.
Numbers keep their kind: 1 is not 1.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from penstock.base import yamltext
from penstock.base.errors import UsageError, did_you_mean
from penstock.log.message import MODE_WORDS, OP_WORDS, Mode, Op, encode_text
from penstock.log.record import Record
from penstock.pipeline.definition import Pipeline, SinkNode
from penstock.pipeline.recompute import Course, passed
from penstock.pipeline.records import Passing

ENDINGS = (".test.yaml", "_test.yaml", ".test.yml", "_test.yml")
_EXAMPLE = (
    "cases:\n  - name: ...\n    input: [{ns: orders, data: {id: 1}}]\n    expect: {SINK: [{data: {id: 1}}]}"
)

FrameCourse = Callable[[Sequence[Record], SinkNode], Course]
"""Works out a course that needs Spark."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is expected to become of a message, or what became of it."""

    kind: str
    """data | contains | text | drop | error"""
    value: object = None
    ns: str | None = None
    op: str | None = None

    def __str__(self) -> str:
        if self.kind == "drop":
            return "drop"
        shown = self.value if isinstance(self.value, str) else encode_text(self.value).decode()
        extra = "".join(f" {word}={value}" for word, value in (("ns", self.ns), ("op", self.op)) if value)
        return f"{shown}{extra}" if self.kind in ("data", "text") else f"{self.kind} {shown}{extra}"


@dataclass(frozen=True, slots=True)
class Case:
    """One case: what goes in, and what is expected of each sink that matters."""

    name: str
    line: int
    input: tuple[Record, ...]
    expect: Mapping[str, tuple[Outcome, ...]]


@dataclass(frozen=True, slots=True)
class CaseFile:
    path: Path
    cases: tuple[Case, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Difference:
    """A line of a comparison: ` ` as expected, `-` expected and missing, `+` came and was not expected."""

    sign: str
    text: str


@dataclass(frozen=True, slots=True)
class CaseResult:
    """How a case went; `differences` by sink, for those that got something else."""

    name: str
    line: int
    passed: bool
    differences: Mapping[str, Sequence[Difference]] = field(default_factory=dict)
    problem: str | None = None


def find_cases(pipeline_file: Path) -> Path:
    """The file of cases beside a pipeline file."""
    if not pipeline_file.name:
        raise UsageError(f"{pipeline_file} is no pipeline file")
    stem = pipeline_file.name.removesuffix(pipeline_file.suffix)
    places = [pipeline_file.with_name(stem + ending) for ending in ENDINGS]
    for place in places:
        if place.exists():
            return place
    raise UsageError(
        f"there are no cases for {pipeline_file}", hint=f"write {places[0].name} beside it:\n{_EXAMPLE}"
    )


def load_cases(path: Path) -> CaseFile:
    """Read and check a file of cases."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"cannot read {path}: {reason}") from None
    try:
        return _case_file(path, yamltext.parse(text))
    except UsageError as error:
        raise UsageError(f"{path}, {error.message}", hint=error.hint) from None


def _case_file(path: Path, document: yamltext.Node | None) -> CaseFile:
    if document is None:
        raise UsageError("line 1: the file is empty", hint=f"for example:\n{_EXAMPLE}")
    top = _keys(document, "the file", ("cases", "env"), ("cases",))
    env = yamltext.mapping(top["env"], "'env'").items if "env" in top else {}
    nodes = yamltext.sequence(top["cases"], "'cases'")
    cases = tuple(_case(node) for node in nodes)
    if not cases:
        raise yamltext.fail(document.line, "there are no cases in it", hint=f"for example:\n{_EXAMPLE}")
    return CaseFile(path, cases, {name: yamltext.text(value, f"'{name}'") for name, value in env.items()})


def _case(node: yamltext.Node) -> Case:
    given = _keys(node, "a case", ("name", "input", "expect"), ("name", "input", "expect"))
    inputs = yamltext.sequence(given["input"], "'input'")
    expect = yamltext.mapping(given["expect"], "'expect'").items
    if not expect:
        raise yamltext.fail(given["expect"].line, "'expect' names no sink")
    return Case(
        name=yamltext.text(given["name"], "'name'"),
        line=node.line,
        input=tuple(_message(place, item) for place, item in enumerate(inputs)),
        expect={sink: _expected(sink, wanted) for sink, wanted in expect.items()},
    )


def _message(offset: int, node: yamltext.Node) -> Record:
    given = _keys(node, "a message", ("ns", "op", "data", "ts", "mode", "key", "old_key"), ("ns", "data"))
    return Record(
        offset=offset,
        ts=yamltext.integer(given["ts"], "'ts'") if "ts" in given else 0,
        mode=Mode(MODE_WORDS.index(_word(given.get("mode"), "mode", MODE_WORDS, "copy"))),
        op=Op(OP_WORDS.index(_word(given.get("op"), "op", OP_WORDS, "insert"))),
        ns=yamltext.text(given["ns"], "'ns'"),
        data=_text(given["data"]),
        key=_text(given["key"]) if "key" in given else None,
        extra={"old": _text(given["old_key"]).decode()} if "old_key" in given else None,
    )


def _expected(sink: str, node: yamltext.Node) -> tuple[Outcome, ...]:
    """What is wanted of a sink. `drop` alone means that nothing comes: an empty list."""
    if isinstance(node, yamltext.Sequence):
        return tuple(_outcome(sink, item) for item in node.items)
    one = _outcome(sink, node)
    return () if one.kind == "drop" else (one,)


def _outcome(sink: str, node: yamltext.Node) -> Outcome:
    kinds = ("data", "contains", "text", "error")
    if isinstance(node, yamltext.Scalar):
        if node.text == "drop":
            return Outcome("drop")
        raise yamltext.fail(
            node.line, f"'{sink}': expected 'drop' or one of {', '.join(kinds)}, got '{node.text}'"
        )
    given = _keys(node, f"what '{sink}' should get", (*kinds, "ns", "op"), ())
    named = [kind for kind in kinds if kind in given]
    if len(named) != 1:
        raise yamltext.fail(
            node.line, f"'{sink}': expected one of {', '.join(kinds)}", hint="for example: {data: {id: 1}}"
        )
    value = yamltext.plain(given[named[0]])
    if named[0] == "data" and isinstance(value, str):
        value = _json(value, given["data"].line)
    ns, op = (yamltext.text(given[word], word) if word in given else None for word in ("ns", "op"))
    return Outcome(named[0], value, ns, op)


def _keys(
    node: yamltext.Node, what: str, known: Sequence[str], needed: Sequence[str]
) -> dict[str, yamltext.Node]:
    given = yamltext.mapping(node, what)
    for key in given.items:
        if key not in known:
            raise yamltext.fail(
                given.lines.get(key, node.line), f"unknown key '{key}' of {what}{did_you_mean(key, known)}"
            )
    for key in needed:
        if key not in given.items:
            raise yamltext.fail(node.line, f"{what} needs '{key}'")
    return given.items


def _word(node: yamltext.Node | None, what: str, known: Sequence[str], default: str) -> str:
    if node is None:
        return default
    word = yamltext.text(node, f"'{what}'")
    if word not in known:
        raise yamltext.fail(node.line, f"there is no {what} '{word}'{did_you_mean(word, known)}")
    return word


def _text(node: yamltext.Node) -> bytes:
    """The JSON text of a value; text is taken as it stands, so that any text can be tried."""
    value = yamltext.plain(node)
    return value.encode() if isinstance(value, str) else encode_text(value)


def _json(text: str, line: int) -> object:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise yamltext.fail(line, f"not JSON: {error}") from None


def check_case(case: Case, pipeline: Pipeline, frames: FrameCourse) -> CaseResult:
    """Lead the case's messages through the pipeline and compare. `frames` is asked where Spark is needed."""
    sinks = {sink.name: sink for sink in pipeline.sink_nodes}
    for name in case.expect:
        if name not in sinks:
            return _broken(
                case, f"pipeline '{pipeline.name}' has no sink '{name}'{did_you_mean(name, sinks)}"
            )
    source = pipeline.source_node
    for record in case.input:
        if not source.ns.matches(record.ns):
            return _broken(
                case, f"source '{source.name}' does not read '{record.ns}' (its ns is '{source.ns}')"
            )
    differences = {}
    for name, wanted in case.expect.items():
        course = passed(case.input, sinks[name])
        if course.needs_spark is not None:
            course = frames(case.input, sinks[name])
        found = compared(wanted, list(outcomes(case.input, course)))
        if any(line.sign != " " for line in found):
            differences[name] = found
    return CaseResult(case.name, case.line, not differences, differences)


def _broken(case: Case, problem: str) -> CaseResult:
    return CaseResult(case.name, case.line, passed=False, problem=problem)


def outcomes(records: Sequence[Record], course: Course) -> Iterator[Outcome]:
    """What became of each message, in the order of the input."""
    refused = course.refused
    out: dict[int, list[Passing]] = {}
    for row in course.out:
        out.setdefault(row.offset, []).append(row)
    for record in records:
        if record.offset in refused:
            node, error = refused[record.offset]
            yield Outcome("error", f"{node}: {error}")
        elif record.offset not in out:
            yield Outcome("drop")
        for row in out.get(record.offset, ()):
            yield Outcome("text", row.data, row.ns, row.op)


def compared(wanted: Sequence[Outcome], came: Sequence[Outcome]) -> list[Difference]:
    """The two lists against each other, with as many lines in common as there can be."""
    if not any(outcome.kind == "drop" for outcome in wanted):
        came = [outcome for outcome in came if outcome.kind != "drop"]
    common = _common(wanted, came)
    lines: list[Difference] = []
    i = j = 0
    while i < len(wanted) or j < len(came):
        if i < len(wanted) and j < len(came) and meets(wanted[i], came[j]):
            lines.append(Difference(" ", str(wanted[i])))
            i, j = i + 1, j + 1
        elif j >= len(came) or (i < len(wanted) and common[i + 1][j] >= common[i][j + 1]):
            lines.append(Difference("-", str(wanted[i])))
            i += 1
        else:
            lines.append(Difference("+", _shown(came[j], wanted)))
            j += 1
    return lines


def _common(wanted: Sequence[Outcome], came: Sequence[Outcome]) -> list[list[int]]:
    """`[i][j]`: how many pairs the lists from `i` and from `j` on have in common at most."""
    table = [[0] * (len(came) + 1) for _ in range(len(wanted) + 1)]
    for i in reversed(range(len(wanted))):
        for j in reversed(range(len(came))):
            best = max(table[i + 1][j], table[i][j + 1])
            table[i][j] = max(best, table[i + 1][j + 1] + 1 if meets(wanted[i], came[j]) else 0)
    return table


def _shown(came: Outcome, wanted: Sequence[Outcome]) -> str:
    """What came, told with its namespace or op only where somebody asked for them."""
    ns = came.ns if any(outcome.ns for outcome in wanted) else None
    op = came.op if any(outcome.op for outcome in wanted) else None
    return str(Outcome(came.kind, came.value, ns, op))


def meets(wanted: Outcome, came: Outcome) -> bool:
    """Whether what came is what was wanted."""
    if wanted.kind in ("drop", "error") or came.kind in ("drop", "error"):
        if wanted.kind != came.kind:
            return False
        return wanted.kind == "drop" or str(wanted.value or "") in str(came.value)
    if wanted.ns not in (None, came.ns) or wanted.op not in (None, came.op):
        return False
    if wanted.kind == "text":
        return wanted.value == came.value
    try:
        document: object = msgspec.json.decode(str(came.value))
    except msgspec.DecodeError:
        return False
    return same(wanted.value, document, subset=wanted.kind == "contains")


def same(wanted: object, came: object, *, subset: bool) -> bool:
    """Whether two values are equal, numbers of the same kind; a `subset` may lack fields at any depth."""
    if isinstance(wanted, dict) and isinstance(came, dict):
        if not (wanted.keys() <= came.keys() if subset else wanted.keys() == came.keys()):
            return False
        return all(same(value, came[key], subset=subset) for key, value in wanted.items())
    if isinstance(wanted, list) and isinstance(came, list):
        pairs = zip(wanted, came, strict=False)
        return len(wanted) == len(came) and all(same(one, two, subset=subset) for one, two in pairs)
    return type(wanted) is type(came) and wanted == came
