"""YAML text as nodes that know their lines: the ground under everything that people write as YAML.

Nodes are put together from the parser's events, without recursion, so that no text can exhaust the stack.
Refused, with the line: what is not YAML, keys that come twice, tags, a second document, text that is too large
or nested too deeply, and aliases that would expand beyond any honest file. A scalar keeps its text: which
type it has is for whoever knows the field to say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from penstock.base.errors import UsageError

try:
    import yaml
except ModuleNotFoundError:
    raise UsageError("this is YAML, and PyYAML is not installed", hint="pip install PyYAML") from None

MAX_BYTES = 16 << 20
MAX_DEPTH = 200
MAX_NODES = 2_000_000
"""Aliases counted as often as they are used."""

_NULLS = ("", "~", "null", "Null", "NULL")
_STANDARD_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "bool", "null", "seq", "map")}


@dataclass(slots=True)
class Node:
    """Where a value stands (the first line is 1), and how many nodes it stands for."""

    line: int
    size: int = 1


@dataclass(slots=True)
class Scalar(Node):
    text: str = ""
    plain: bool = True

    @property
    def is_null(self) -> bool:
        return self.plain and self.text in _NULLS


@dataclass(slots=True)
class Sequence(Node):
    items: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class Mapping(Node):
    items: dict[str, Node] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    """Of the keys."""


def fail(line: int, complaint: str, *, hint: str | None = None) -> UsageError:
    return UsageError(f"line {line}: {complaint}", hint=hint)


def parse(text: str) -> Node | None:
    """The one document of a YAML text; None if there is none."""
    if len(text.encode()) > MAX_BYTES:
        raise UsageError(f"the text is longer than {MAX_BYTES >> 20} MiB", hint="split it into several files")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the fast one is not in every build
    composer = _Composer()
    try:
        for event in yaml.parse(text, Loader=loader):
            composer.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line if mark else 0
        tabbed = any(_TABBED.match(one) for one in text.splitlines()[line : line + 1])
        hint = "indent with blanks: this line begins with a tab" if tabbed else None
        raise fail(line + 1, f"not YAML: {error.problem or error.context}", hint=hint) from None
    except yaml.YAMLError as error:
        raise UsageError(f"not YAML: {error}") from None
    return composer.document


def dump(value: object) -> str:
    """Plain values as YAML, keys in the order they have."""
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    written: str = yaml.dump(
        value, Dumper=dumper, sort_keys=False, default_flow_style=False, allow_unicode=True, width=1000
    )
    return written


@dataclass(slots=True)
class _Open:
    """A mapping or sequence whose end has not come yet."""

    node: Mapping | Sequence
    anchor: str | None
    key: str | None = None


class _Composer:
    """Takes the parser's events one by one; `document` is what they amount to."""

    def __init__(self) -> None:
        self.document: Node | None = None
        self._open: list[_Open] = []
        self._anchors: dict[str, Node] = {}
        self._documents = 0

    def take(self, event: yaml.Event) -> None:
        line = event.start_mark.line + 1 if event.start_mark else 0
        match event:
            case yaml.DocumentStartEvent():
                self._documents += 1
                if self._documents > 1:
                    raise fail(line, "a second document", hint="give one document at a time")
            case yaml.ScalarEvent():
                _check_tag(event, line)
                self._add(Scalar(line, text=event.value, plain=not event.style), event.anchor, line)
            case yaml.SequenceStartEvent():
                self._push(Sequence(line), event, line)
            case yaml.MappingStartEvent():
                self._push(Mapping(line), event, line)
            case yaml.CollectionEndEvent():
                done = self._open.pop()
                self._add(done.node, done.anchor, done.node.line)
            case yaml.AliasEvent():
                if event.anchor not in self._anchors:
                    raise fail(line, f"the alias *{event.anchor} refers to nothing above it")
                self._add(self._anchors[event.anchor], None, line)

    def _push(self, node: Mapping | Sequence, event: yaml.CollectionStartEvent, line: int) -> None:
        _check_tag(event, line)
        if self._open and isinstance(self._open[-1].node, Mapping) and self._open[-1].key is None:
            raise fail(line, "a key must be a word")
        if len(self._open) >= MAX_DEPTH:
            raise fail(line, f"nested more than {MAX_DEPTH} levels deep")
        self._open.append(_Open(node, event.anchor))

    def _add(self, node: Node, anchor: str | None, line: int) -> None:
        if anchor is not None:
            self._anchors[anchor] = node
        if not self._open:
            self.document = node
            return
        parent = self._open[-1]
        parent.node.size += node.size
        if parent.node.size > MAX_NODES:
            raise fail(line, f"more than {MAX_NODES:,} values, aliases counted as often as they are used")
        if isinstance(parent.node, Sequence):
            parent.node.items.append(node)
        elif parent.key is None:
            parent.key = _key(parent.node, node, line)
        else:
            parent.node.items[parent.key] = node
            parent.key = None


def _key(mapping: Mapping, node: Node, line: int) -> str:
    if not isinstance(node, Scalar):
        raise fail(line, "a key must be a word")
    if node.text in mapping.lines:
        raise fail(line, f"'{node.text}' is given twice; first in line {mapping.lines[node.text]}")
    mapping.lines[node.text] = line
    return node.text


def _check_tag(event: yaml.ScalarEvent | yaml.CollectionStartEvent, line: int) -> None:
    tag = event.tag
    if tag is not None and tag != "!" and tag not in _STANDARD_TAGS:
        raise fail(line, f"the tag {tag} is not understood here")


def mapping(node: Node, what: str) -> Mapping:
    """The node as keys and values; one that is left empty has none."""
    if isinstance(node, Mapping):
        return node
    if isinstance(node, Scalar) and node.is_null:
        return Mapping(node.line)
    raise fail(node.line, f"expected keys and values for {what}")


def sequence(node: Node, what: str) -> list[Node]:
    """The node as a list; one that is left empty has no items."""
    if isinstance(node, Sequence):
        return node.items
    if isinstance(node, Scalar) and node.is_null:
        return []
    raise fail(node.line, f"expected a list for {what} (lines that begin with '- ')")


def text(node: Node, what: str) -> str:
    """The node's text, whatever YAML would take it for: `yes` and `007` are words here."""
    if not isinstance(node, Scalar):
        raise fail(node.line, f"expected a single value for {what}")
    return "" if node.is_null else node.text


_TABBED = re.compile(r" *\t")
_INTEGER = re.compile(r"[-+]?[0-9]+")
_MOST_DIGITS = 1000
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?")


def plain(node: Node) -> object:
    """The node as Python values, by YAML 1.2's core rules: `yes`, `on` and `1:30` are words, `0o7` is not a number."""
    if isinstance(node, Mapping):
        return {key: plain(value) for key, value in node.items.items()}
    if isinstance(node, Sequence):
        return [plain(item) for item in node.items]
    assert isinstance(node, Scalar)
    if not node.plain:
        return node.text
    if node.is_null:
        return None
    if node.text in ("true", "True", "TRUE", "false", "False", "FALSE"):
        return node.text.lower() == "true"
    if _INTEGER.fullmatch(node.text):
        if len(node.text) > _MOST_DIGITS:
            raise fail(node.line, f"a number of more than {_MOST_DIGITS} digits", hint="put it in quotes")
        return int(node.text)
    return float(node.text) if _FLOAT.fullmatch(node.text) else node.text


def integer(node: Node, what: str) -> int:
    """A whole number of 64 bits; digits may be grouped with `_`."""
    written = text(node, what)
    if not written:
        return 0
    try:
        value = int(written)
    except ValueError:
        raise fail(node.line, f"expected a whole number for {what} ({written})") from None
    if not -(1 << 63) <= value < 1 << 63:
        raise fail(node.line, f"the number for {what} does not fit 64 bits ({written})")
    return value


def boolean(node: Node, what: str) -> bool | None:
    """True, False, or None if it is left empty."""
    written = text(node, what).lower()
    if written not in ("", "true", "false"):
        raise fail(node.line, f"expected true or false for {what} ({written})")
    return None if not written else written == "true"
