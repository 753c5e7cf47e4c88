"""Labels, and the selectors that match them (reference, 7).

Plain functions over the wire's own LabelSet and LabelSelector, which they never change. The sets they return
are sorted by name and value, as the wire wants them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from penstock.journal.protocol import Label, LabelSelector, LabelSet
from penstock.journal.tokens import PATH_SYMBOLS, ValidationError, check_token

NAME_LENGTH = (2, 64)
VALUE_LENGTH = (0, 1024)


def label_set(labels: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> LabelSet:
    """The set of these labels. Pairs may repeat a name to give it several values."""
    pairs = labels.items() if isinstance(labels, Mapping) else labels
    return LabelSet(labels=[Label(name=name, value=value) for name, value in sorted(set(pairs))])


def values_of(labels: LabelSet, name: str) -> list[str]:
    """The values the set has for a name, in order; none if it has no such label."""
    return [label.value for label in labels.labels if label.name == name]


def with_name(labels: LabelSet, journal: str) -> LabelSet:
    """The labels a journal is matched by: its spec's, and the synthetic `name`."""
    return union(label_set({"name": journal}), labels)


def match(selector: LabelSelector, labels: LabelSet) -> bool:
    """Whether the selector includes the set and does not exclude it.

    Of `include`, every name must match; of `exclude`, none may. A name matches if any of the selector's
    values for it matches any of the set's.
    """
    have = _by_name(labels)
    included = all(_matches(wanted, have.get(name)) for name, wanted in _by_name(selector.include).items())
    return included and not any(
        _matches(unwanted, have.get(name)) for name, unwanted in _by_name(selector.exclude).items()
    )


def union(left: LabelSet, right: LabelSet) -> LabelSet:
    """All labels of `left`, and those of `right` whose name `left` does not have."""
    return _from_groups(_by_name(right) | _by_name(left))


def subtract(left: LabelSet, right: LabelSet) -> LabelSet:
    """`left` without the names for which `right` lists exactly the same values."""
    unwanted = {name: _values(labels) for name, labels in _by_name(right).items()}
    return _from_groups(
        {
            name: labels
            for name, labels in _by_name(left).items()
            if name not in unwanted or unwanted[name] != _values(labels)
        }
    )


def for_list(selector: LabelSelector) -> LabelSelector:
    """The selector as List understands it: a label `prefix` is a `name` matched by its beginning."""
    rewritten = LabelSelector()
    for source, target in ((selector.include, rewritten.include), (selector.exclude, rewritten.exclude)):
        labels: list[Label] = [
            Label(name="name", value=label.value, prefix=True) if label.name == "prefix" else label
            for label in source.labels
        ]
        labels.sort(key=_order)
        target.labels.extend(labels)
    return rewritten


def _matches(wanted: list[Label], have: list[Label] | None) -> bool:
    if have is None:
        return False
    for label in wanted:
        if label.value == "":
            return True
        if label.prefix:
            if any(own.value.startswith(label.value) for own in have):
                return True
        elif any(own.value == label.value for own in have):
            return True
    return False


def _by_name(labels: LabelSet) -> dict[str, list[Label]]:
    groups: dict[str, list[Label]] = {}
    for label in labels.labels:
        groups.setdefault(label.name, []).append(label)
    return groups


def _values(labels: list[Label]) -> list[str]:
    return sorted(label.value for label in labels)


def _from_groups(groups: dict[str, list[Label]]) -> LabelSet:
    united = [label for labels in groups.values() for label in labels]
    united.sort(key=_order)
    return LabelSet(labels=united)


def _order(label: Label) -> tuple[str, str, bool]:
    return label.name, label.value, label.prefix


# Selector text: comma-separated clauses, where a comma inside the parentheses of `in (…)` separates values.

_CLAUSE = re.compile(
    r"""\s* (?P<absent>!)? \s* (?P<name>[^\s,()=!:]+) (?P<prefix>:prefix)?
    (?: \s+ (?P<among>in|not\s?in) \s* \( (?P<values>[^()]*) \)
      | \s* (?P<equality>==|!=|=(?!=)) \s* (?P<value>[^\s,()!]+)
    )? \s* (?P<end>,|$)""",
    re.VERBOSE,
)


def parse_selector(text: str) -> LabelSelector:
    """Read a selector as people write it; the empty text selects everything.

    Clauses: `foo = bar`, `foo == bar`, `foo != bar`, `foo`, `!foo`, `foo in (a, b)`, `foo notin (a, b)`; a
    name may end in `:prefix`. Several values of one name are alternatives, however they are written. Raises
    ValidationError, which shows the clause that does not read as any of these.
    """
    include: set[tuple[str, str, bool]] = set()
    exclude: set[tuple[str, str, bool]] = set()
    position = 0
    more = bool(text.strip())
    while more:
        clause = _CLAUSE.match(text, position)
        if clause is None or (clause["absent"] and (clause["among"] or clause["equality"])):
            raise ValidationError(
                f"could not parse '{text[position:].strip()}' of the selector '{text}' "
                "(expected clauses such as foo, !foo, foo = bar, foo != bar, foo in (a, b), foo notin (a, b))"
            )
        excludes, labels = _read_clause(clause)
        (exclude if excludes else include).update(labels)
        position = clause.end()
        more = clause["end"] == ","
    return LabelSelector(include=_from_triples(include), exclude=_from_triples(exclude))


def format_selector(selector: LabelSelector) -> str:
    """The canonical text: include clauses, then exclude clauses, each sorted by name."""
    clauses: list[str] = []
    for labels, bare, equality, among in (
        (selector.include, "", "=", "in"),
        (selector.exclude, "!", "!=", "notin"),
    ):
        groups: dict[tuple[str, bool], list[str]] = {}
        for label in sorted(labels.labels, key=_order):
            groups.setdefault((label.name, label.prefix), []).append(label.value)
        for (name, prefix), values in groups.items():
            shown = f"{name}:prefix" if prefix else name
            if "" in values:
                clauses.append(f"{bare}{shown}")
                values = [value for value in values if value]
            # A value that begins with `=` would join the operator before it.
            if len(values) == 1 and not values[0].startswith("="):
                clauses.append(f"{shown}{equality}{values[0]}")
            elif values:
                clauses.append(f"{shown} {among} ({','.join(values)})")
    return ",".join(clauses)


def _read_clause(clause: re.Match[str]) -> tuple[bool, list[tuple[str, str, bool]]]:
    """Whether the clause excludes, and its labels as (name, value, prefix)."""
    name = clause["name"]
    excludes = bool(clause["absent"])
    values = [""]
    if clause["among"]:
        excludes = clause["among"] != "in"
        values = [value.strip() for value in clause["values"].split(",")]
    elif clause["equality"]:
        excludes = clause["equality"] == "!="
        values = [clause["value"]]
    try:
        check_token(name, *NAME_LENGTH)
        for value in values:
            check_token(value, 1 if clause["among"] else 0, VALUE_LENGTH[1], PATH_SYMBOLS)
    except ValidationError as error:
        raise ValidationError(f"'{clause[0].strip(' ,')}' in a selector: {error.complaint}") from None
    return excludes, [(name, value, clause["prefix"] is not None) for value in values]


def _from_triples(triples: set[tuple[str, str, bool]]) -> LabelSet:
    # One label a name and value: if there is one with and one without prefix, the former matches all that the
    # latter does, and it sorts last.
    prefixes = {(name, value): prefix for name, value, prefix in sorted(triples)}
    for name, value in prefixes:
        if value and (name, "") in prefixes:
            raise ValidationError(f"'{name}' is selected both with any value and with '{value}'")
    return LabelSet(
        labels=[Label(name=name, value=value, prefix=prefix) for (name, value), prefix in prefixes.items()]
    )
