"""Journal specs as people write them: the YAML hierarchy of Gazette's tools (reference, 22).

A node is a journal, or, if its name is empty or ends in `/`, a directory: its children inherit every field they
leave out, and labels by name. `flatten` turns the text into changes, each a complete spec that passes
validation; nobody fills in a default. `hoist` is the reverse: what all children of a directory share is said
there, once. `flatten(hoist(changes)) == changes`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from penstock.base import yamltext
from penstock.base.errors import UsageError
from penstock.journal import specs_fields
from penstock.journal.protocol import ApplyRequest, JournalSpec, ListResponse
from penstock.journal.tokens import ValidationError, check_journal
from penstock.journal.validation_specs import validate_journal_spec

ANY_REVISION = -1
_MAX_LEVELS = 32
"""Directories within directories that `hoist` makes; what lies deeper is told in the last of them."""

_KEYS = ("comment", "delete", *specs_fields.KEYS, "revision", "children")


@dataclass(frozen=True, slots=True)
class Change:
    """A journal to be as `spec` says, or, without one, to be deleted.

    `revision` is the one it must have now: 0 means that it must not exist, -1 that any will do.
    """

    name: str
    spec: JournalSpec | None
    revision: int = 0

    @classmethod
    def of(cls, journal: ListResponse.Journal) -> Change:
        """The change that leaves a listed journal as it is."""
        return cls(journal.spec.name, journal.spec, journal.mod_revision)

    def to_proto(self) -> ApplyRequest.Change:
        if self.spec is None:
            return ApplyRequest.Change(expect_mod_revision=self.revision, delete=self.name)
        return ApplyRequest.Change(expect_mod_revision=self.revision, upsert=self.spec)


@dataclass(slots=True)
class _Node:
    """A node as it is written; `inherited` makes one that says all of itself."""

    line: int
    spec: JournalSpec = field(default_factory=JournalSpec)
    revision: int = 0
    delete: bool | None = None
    children: list[_Node] | None = None

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def is_directory(self) -> bool:
        return not self.name or self.name.endswith("/")

    def inherited(self, parent: _Node) -> _Node:
        """An explicit `delete: false` stands, whatever the parent says."""
        return _Node(
            self.line,
            specs_fields.inherit(self.spec, parent.spec),
            self.revision or parent.revision,
            parent.delete if self.delete is None else self.delete,
            self.children,
        )


def flatten(text: str) -> list[Change]:
    """The changes that a YAML text asks for, in the order of their names."""
    document = yamltext.parse(text)
    if document is None or (isinstance(document, yamltext.Scalar) and document.is_null):
        raise UsageError("the text holds no journals", hint="`penstock journals list -o yaml` shows the form")
    changes: dict[str, Change] = {}
    for node in _leaves(_read(document), _Node(0)):
        if node.name in changes:
            raise yamltext.fail(node.line, f"the journal {node.name} is given twice")
        changes[node.name] = _change(node)
    return [changes[name] for name in sorted(changes)]


def _read(node: yamltext.Node) -> _Node:
    mapping = yamltext.mapping(node, "a journal, or a directory of journals")
    found = _Node(node.line)
    for key, value in mapping.items.items():
        specs_fields.check_key(key, _KEYS, mapping.lines[key])
        if key == "children":
            found.children = [_read(child) for child in yamltext.sequence(value, key)]
        elif key == "revision":
            found.revision = yamltext.integer(value, key)
        elif key == "delete":
            found.delete = yamltext.boolean(value, key)
        elif key != "comment":
            specs_fields.read(found.spec, key, value)
    _check_children(found)
    return found


def _check_children(node: _Node) -> None:
    if node.is_directory and node.children is None:
        what = f"the directory '{node.name}'" if node.name else "a node without a name is a directory, and"
        raise yamltext.fail(
            node.line,
            f"{what} has no children",
            hint="a journal's name does not end in '/'; or give children",
        )
    if node.children and not node.is_directory:
        raise yamltext.fail(
            node.line,
            f"'{node.name}' has children, but is not a directory",
            hint=f"a directory's name ends in '/': '{node.name}/'",
        )
    before = None
    for child in node.children or ():
        if not child.name.startswith(node.name):
            raise yamltext.fail(
                child.line, f"'{child.name}' must begin with the name of its directory, '{node.name}'"
            )
        if before is not None and child.name <= before:
            raise yamltext.fail(
                child.line, f"children are sorted by name: '{child.name}' comes behind '{before}'"
            )
        before = child.name


def _leaves(node: _Node, parent: _Node) -> Iterator[_Node]:
    node = node.inherited(parent)
    if not node.is_directory:
        yield node
    for child in node.children or ():
        yield from _leaves(child, node)


def _change(node: _Node) -> Change:
    """What a journal's node asks for; the broker would refuse the same, but could not tell the line."""
    try:
        if node.delete:
            check_journal(node.name)
            if not (node.revision > 0 or node.revision == ANY_REVISION):
                raise ValidationError("to delete a journal, tell its revision, or -1 for whichever it has")
            return Change(node.name, None, node.revision)
        if node.revision < ANY_REVISION:
            raise ValidationError(f"expected -1, 0 or more ({node.revision})", field="Revision")
        validate_journal_spec(node.spec)
    except ValidationError as error:
        raise yamltext.fail(
            node.line,
            f"journal {node.name}: {error}",
            hint="what a journal leaves out comes from its directories; nothing else has a default",
        ) from None
    return Change(node.name, node.spec, node.revision)


# The other way.


@dataclass(slots=True)
class _Tree:
    """A journal, or a directory (then `children`); `spec` is a journal's own, or what the children share."""

    name: str
    spec: JournalSpec
    change: Change | None = None
    children: Sequence[_Tree] = ()


def hoist(changes: Iterable[Change]) -> str:
    """The YAML text that asks for these changes, what journals share being said once."""
    ordered = sorted(changes, key=lambda change: change.name)
    if not ordered:
        return yamltext.dump({"children": []})
    return yamltext.dump(_plain(_tree(ordered, 0), JournalSpec()))


def _tree(changes: Sequence[Change], level: int) -> _Tree:
    if len(changes) == 1:
        (change,) = changes
        return _Tree(change.name, change.spec or JournalSpec(), change)
    directory = _directory(changes)
    if level < _MAX_LEVELS:
        children = [_tree(group, level + 1) for group in _groups(changes, directory)]
    else:
        children = [_tree([change], level) for change in changes]
    specs = [child.spec for child in children if child.change is None or child.change.spec is not None]
    shared = specs_fields.common(specs) if specs else JournalSpec()
    return _Tree(directory, shared, children=children)


def _directory(changes: Sequence[Change]) -> str:
    """The longest directory that all of the names, which are sorted, lie in."""
    common = posixpath.commonprefix([changes[0].name, changes[-1].name])
    return common[: common.rfind("/") + 1]


def _groups(changes: Sequence[Change], directory: str) -> Iterator[Sequence[Change]]:
    """Those that go on with the same path segment and a slash, which sorted names do in a row."""
    start = 0
    while start < len(changes):
        segment, slash, _ = changes[start].name[len(directory) :].partition("/")
        inside = f"{directory}{segment}{slash}"
        stop = start + 1
        while slash and stop < len(changes) and changes[stop].name.startswith(inside):
            stop += 1
        yield changes[start:stop]
        start = stop


def _plain(tree: _Tree, above: JournalSpec) -> dict[str, object]:
    if tree.change is not None and tree.change.spec is None:
        return {"name": tree.name, "delete": True, "revision": tree.change.revision}
    own = specs_fields.plain(specs_fields.without(tree.spec, above))
    own.pop("name", None)
    found = {"name": tree.name, **own} if tree.name else own
    if tree.change is not None:
        return {**found, "revision": tree.change.revision} if tree.change.revision else found
    # A child holds what is shared here and further up: `above` is a part of what this directory shares.
    return {**found, "children": [_plain(child, tree.spec) for child in tree.children]}
