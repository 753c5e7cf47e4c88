"""The fields of a journal spec in YAML: how each is read and printed, and how one spec inherits from another.

A field is *given* if it is not zero; that is all inheritance looks at, as in the original. `inherit` fills what
a child leaves out, `common` is what several specs share, `without` takes that away again:
`inherit(without(spec, shared), shared) == spec` for every `shared` that `common` made of `spec` and others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import cast

from google.protobuf.duration_pb2 import Duration

from penstock.base.errors import did_you_mean
from penstock.base.yamltext import Node, fail, integer, mapping, sequence, text
from penstock.journal import durations, labels
from penstock.journal.fragment import Codec
from penstock.journal.protocol import JournalSpec, Label, LabelSet
from penstock.journal.tokens import ValidationError
from penstock.journal.validation_specs import nanoseconds

_INTEGERS = ("replication", "max_append_rate")
_DURATIONS = ("refresh_interval", "retention", "flush_interval")
_FRAGMENT = ("length", "compression_codec", "stores", *_DURATIONS, "path_postfix_template")
_SUSPEND = ("level", "offset")

KEYS = ("name", "replication", "labels", "fragment", "flags", "max_append_rate", "suspend")
"""Of a spec; a node of the hierarchy has a few more."""


class _Flag(IntEnum):
    NOT_SPECIFIED = 0
    O_RDONLY = 1
    O_WRONLY = 2
    O_RDWR = 4


class _Level(IntEnum):
    NONE = 0
    PARTIAL = 1
    FULL = 2


def read(spec: JournalSpec, key: str, node: Node) -> None:
    """Set the field `key`, one of KEYS, to what the node says."""
    if key == "name":
        spec.name = text(node, key)
    elif key == "labels":
        spec.labels.CopyFrom(_read_labels(node))
    elif key == "fragment":
        for inner, value in _known(node, key, _FRAGMENT):
            _read_fragment(spec.fragment, inner, value)
    elif key == "flags":
        spec.flags = _read_name(node, key, _Flag)
    elif key == "suspend":
        spec.suspend.SetInParent()
        for inner, value in _known(node, key, _SUSPEND):
            if inner == "level":
                # At run time the wire's enum values are plain numbers.
                spec.suspend.level = cast("JournalSpec.Suspend.Level", _read_name(value, inner, _Level))
            else:
                spec.suspend.offset = integer(value, inner)
    else:
        _set_integer(spec, key, node)


def _read_fragment(fragment: JournalSpec.Fragment, key: str, node: Node) -> None:
    if key == "compression_codec":
        fragment.compression_codec = Codec(_read_name(node, key, Codec)).to_proto()
    elif key == "stores":
        fragment.stores[:] = [text(item, "a store") for item in sequence(node, key)]
    elif key in _DURATIONS:
        written = text(node, key)
        try:
            value = durations.parse_duration(written) if written else 0
        except ValidationError as error:
            raise fail(node.line, f"{key}: {error}") from None
        if value:
            getattr(fragment, key).CopyFrom(durations.to_proto(value))
    elif key == "path_postfix_template":
        fragment.path_postfix_template = text(node, key)
    else:
        _set_integer(fragment, key, node)


def _set_integer(message: JournalSpec | JournalSpec.Fragment, key: str, node: Node) -> None:
    value = integer(node, key)
    try:
        setattr(message, key, value)
    except ValueError:  # `replication` has 32 bits
        raise fail(node.line, f"the number for {key} is too large ({value})") from None


def _read_labels(node: Node) -> LabelSet:
    """Sorted; one that comes twice stays twice, for validation to complain about."""
    found: list[Label] = []
    for item in sequence(node, "labels"):
        given = {key: text(value, key) for key, value in _known(item, "a label", ("name", "value"))}
        if not given.get("name"):
            raise fail(item.line, "a label has a name", hint="write it as `{name: color, value: red}`")
        found.append(Label(name=given["name"], value=given.get("value", "")))
    found.sort(key=lambda label: (label.name, label.value))
    return LabelSet(labels=found)


def _read_name(node: Node, key: str, known: type[IntEnum]) -> int:
    written = text(node, key)
    if not written:
        return 0
    if written not in known.__members__:
        raise fail(node.line, f"unknown {key} '{written}'{did_you_mean(written, known.__members__)}")
    return known[written]


def _known(node: Node, what: str, keys: Sequence[str]) -> Iterable[tuple[str, Node]]:
    found = mapping(node, what)
    for key, value in found.items.items():
        check_key(key, keys, found.lines[key])
        yield key, value


def check_key(key: str, known: Iterable[str], line: int) -> None:
    """Refuse a key that nobody knows."""
    known = list(known)
    if key not in known:
        raise fail(line, f"unknown key '{key}'{did_you_mean(key, known)}")


def plain(spec: JournalSpec) -> dict[str, object]:
    """The spec as values that YAML and JSON can hold, under the keys that `read` takes; zeros are left out."""
    found: dict[str, object] = {
        "name": spec.name,
        "replication": spec.replication,
        "labels": [{"name": label.name, "value": label.value} for label in spec.labels.labels],
        "fragment": _plain_fragment(spec.fragment),
        "flags": _Flag(spec.flags).name if spec.flags else "",
        "max_append_rate": spec.max_append_rate,
    }
    given = {key: value for key, value in found.items() if value}
    if spec.HasField("suspend"):
        given["suspend"] = {"level": _Level(spec.suspend.level).name, "offset": spec.suspend.offset}
    return given


def _plain_fragment(fragment: JournalSpec.Fragment) -> dict[str, object]:
    found: dict[str, object] = {
        "length": fragment.length,
        "compression_codec": Codec(fragment.compression_codec).name if fragment.compression_codec else "",
        "stores": list(fragment.stores),
    }
    for key in _DURATIONS:
        length = nanoseconds(getattr(fragment, key))
        found[key] = durations.format_duration(length) if length else ""
    found["path_postfix_template"] = fragment.path_postfix_template
    return {key: value for key, value in found.items() if value}


# Inheritance. The scalar parts of a spec are looked at one by one, as (message, field) pairs.

_Parts = tuple[tuple[Callable[[JournalSpec], JournalSpec | JournalSpec.Fragment], str], ...]


def _itself(spec: JournalSpec) -> JournalSpec:
    return spec


def _fragment(spec: JournalSpec) -> JournalSpec.Fragment:
    return spec.fragment


_PARTS: _Parts = (
    *((_itself, name) for name in (*_INTEGERS, "flags")),
    *((_fragment, name) for name in _FRAGMENT),
)


def inherit(child: JournalSpec, parent: JournalSpec) -> JournalSpec:
    """The child, with the parent's value for whatever it leaves out. Labels go by name."""
    merged = JournalSpec()
    merged.CopyFrom(child)
    for part, name in _PARTS:
        if not _given(part(merged), name):
            _set(part(merged), name, part(parent))
    merged.labels.CopyFrom(labels.union(child.labels, parent.labels))
    if not child.HasField("suspend") and parent.HasField("suspend"):
        merged.suspend.CopyFrom(parent.suspend)
    return merged


def common(specs: Sequence[JournalSpec]) -> JournalSpec:
    """What all of the specs say, and say alike; without a name."""
    shared = JournalSpec()
    first, *others = specs
    for part, name in _PARTS:
        value = _given(part(first), name)
        if value and all(_given(part(other), name) == value for other in others):
            _set(part(shared), name, part(first))
    groups = [_label_groups(spec) for spec in specs]
    shared.labels.CopyFrom(
        labels.label_set(
            (name, value)
            for name, values in groups[0].items()
            if all(group.get(name) == values for group in groups)
            for value in values
        )
    )
    if all(spec.HasField("suspend") and spec.suspend == first.suspend for spec in specs):
        shared.suspend.CopyFrom(first.suspend)
    return shared


def without(spec: JournalSpec, shared: JournalSpec) -> JournalSpec:
    """The spec without what it has in common with others."""
    rest = JournalSpec()
    rest.CopyFrom(spec)
    for part, name in _PARTS:
        if _given(part(shared), name):
            part(rest).ClearField(name)
    names = _label_groups(shared)
    rest.labels.CopyFrom(LabelSet(labels=[label for label in spec.labels.labels if label.name not in names]))
    if shared.HasField("suspend"):
        rest.ClearField("suspend")
    return rest


def _given(message: JournalSpec | JournalSpec.Fragment, name: str) -> object:
    """The field's value if it is not zero."""
    value = getattr(message, name)
    if isinstance(value, Duration):
        return nanoseconds(value)
    return list(value) if name == "stores" else value


def _set(message: JournalSpec | JournalSpec.Fragment, name: str, source: object) -> None:
    value = getattr(source, name)
    if isinstance(value, Duration):
        if nanoseconds(value):
            getattr(message, name).CopyFrom(value)
    elif name == "stores":
        getattr(message, name)[:] = value
    else:
        setattr(message, name, value)


def _label_groups(spec: JournalSpec) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for label in spec.labels.labels:
        groups.setdefault(label.name, []).append(label.value)
    return groups
