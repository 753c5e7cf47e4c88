"""Labels and selectors (reference, 7)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.journal import labels
from penstock.journal.labels import format_selector, label_set, match, parse_selector, subtract, union
from penstock.journal.protocol import Label, LabelSelector, LabelSet
from penstock.journal.tokens import ValidationError
from penstock.journal.validation import validate_label_set, validate_selector


def pairs(labels: LabelSet) -> list[tuple[str, str]]:
    return [(label.name, label.value) for label in labels.labels]


SET = [("app", "shop"), ("env", "eu"), ("env", "prod"), ("name", "shop/orders/part-000")]

MATCHES = [
    ("", True),
    ("app", True),
    ("app=shop", True),
    ("app=store", False),
    ("app=sho", False),  # no prefix unless told
    ("app:prefix=sho", True),
    ("app:prefix=shop", True),
    ("app:prefix=shops", False),
    ("missing", False),
    ("missing:prefix=a", False),
    ("env=eu", True),  # any of the set's values
    ("env=us", False),
    ("env in (us, prod)", True),  # values of one name are alternatives
    ("env in (us, dev)", False),
    ("env=us,env=prod", True),  # however they are written
    ("app=shop,env=prod", True),  # names must all match
    ("app=shop,env=us", False),
    ("app=store,env=prod", False),
    ("!missing", True),
    ("!app", False),
    ("app!=shop", False),
    ("app!=store", True),
    ("env!=prod", False),  # one matching value rejects
    ("env notin (us, dev)", True),
    ("env notin (us, eu)", False),
    ("app!=store,env!=eu", False),  # one matching name rejects
    ("name:prefix=shop/orders/", True),
    ("name:prefix=shop/carts/", False),
    ("name:prefix!=shop/orders/", False),
    ("app=shop,!missing", True),
    ("app=shop,env!=prod", False),
]


@pytest.mark.parametrize("text, expected", MATCHES)
def test_match(text: str, expected: bool) -> None:
    assert match(parse_selector(text), label_set(SET)) is expected


def test_a_set_without_labels_matches_only_what_includes_nothing() -> None:
    assert match(LabelSelector(), LabelSet())
    assert match(parse_selector("!foo,bar!=x"), LabelSet())
    assert not match(parse_selector("foo"), LabelSet())


def test_an_empty_value_of_the_set_is_matched_by_any_value_and_by_nothing_else() -> None:
    labels = label_set({"flag": ""})
    assert match(parse_selector("flag"), labels)
    assert not match(parse_selector("flag=x"), labels)


def test_label_set_sorts_and_drops_repetitions() -> None:
    assert pairs(label_set([("bb", "2"), ("aa", "9"), ("bb", "1"), ("bb", "2")])) == [
        ("aa", "9"),
        ("bb", "1"),
        ("bb", "2"),
    ]
    assert pairs(label_set({"bb": "1", "aa": "2"})) == [("aa", "2"), ("bb", "1")]
    assert label_set() == LabelSet()


UNIONS = [
    ([], [], []),
    ([("aa", "1")], [], [("aa", "1")]),
    ([], [("aa", "1")], [("aa", "1")]),
    ([("aa", "1")], [("bb", "2")], [("aa", "1"), ("bb", "2")]),
    ([("aa", "1")], [("aa", "2")], [("aa", "1")]),
    ([("aa", "1")], [("aa", "1"), ("aa", "2"), ("bb", "3")], [("aa", "1"), ("bb", "3")]),
    ([("aa", "1"), ("aa", "2")], [("aa", "3")], [("aa", "1"), ("aa", "2")]),
    ([("aa", "")], [("aa", "3")], [("aa", "")]),
]


@pytest.mark.parametrize("left, right, expected", UNIONS)
def test_union_takes_all_values_of_a_name_from_the_left_if_it_has_any(
    left: list[tuple[str, str]], right: list[tuple[str, str]], expected: list[tuple[str, str]]
) -> None:
    assert pairs(union(label_set(left), label_set(right))) == expected


SUBTRACTIONS = [
    ([], [("aa", "1")], []),
    ([("aa", "1")], [], [("aa", "1")]),
    ([("aa", "1")], [("aa", "1")], []),
    ([("aa", "1")], [("aa", "2")], [("aa", "1")]),
    ([("aa", "1")], [("aa", "1"), ("aa", "2")], [("aa", "1")]),
    ([("aa", "1"), ("aa", "2")], [("aa", "1")], [("aa", "1"), ("aa", "2")]),
    ([("aa", "1"), ("aa", "2")], [("aa", "1"), ("aa", "2")], []),
    ([("aa", "1"), ("bb", "2")], [("aa", "1"), ("bb", "3"), ("cc", "4")], [("bb", "2")]),
    ([("aa", "1")], [("aa", "")], [("aa", "1")]),
]


@pytest.mark.parametrize("left, right, expected", SUBTRACTIONS)
def test_subtract_removes_a_name_only_if_its_values_are_exactly_the_same(
    left: list[tuple[str, str]], right: list[tuple[str, str]], expected: list[tuple[str, str]]
) -> None:
    assert pairs(subtract(label_set(left), label_set(right))) == expected


# Text, include and exclude as (name, value, prefix), canonical text.
Triples = list[tuple[str, str, bool]]
CLAUSES: list[tuple[str, Triples, Triples, str]] = [
    ("", [], [], ""),
    ("  ", [], [], ""),
    ("foo = bar", [("foo", "bar", False)], [], "foo=bar"),
    ("foo == bar", [("foo", "bar", False)], [], "foo=bar"),
    ("foo=bar", [("foo", "bar", False)], [], "foo=bar"),
    ("foo==bar", [("foo", "bar", False)], [], "foo=bar"),
    ("foo != bar", [], [("foo", "bar", False)], "foo!=bar"),
    ("foo!=bar", [], [("foo", "bar", False)], "foo!=bar"),
    ("foo", [("foo", "", False)], [], "foo"),
    ("!foo", [], [("foo", "", False)], "!foo"),
    ("foo in (b, a)", [("foo", "a", False), ("foo", "b", False)], [], "foo in (a,b)"),
    ("foo in (a)", [("foo", "a", False)], [], "foo=a"),
    ("foo notin (a, b)", [], [("foo", "a", False), ("foo", "b", False)], "foo notin (a,b)"),
    ("foo not in (a,b)", [], [("foo", "a", False), ("foo", "b", False)], "foo notin (a,b)"),
    ("name:prefix=a/b/", [("name", "a/b/", True)], [], "name:prefix=a/b/"),
    ("name:prefix != a/", [], [("name", "a/", True)], "name:prefix!=a/"),
    (
        "name:prefix in (b/, a/)",
        [("name", "a/", True), ("name", "b/", True)],
        [],
        "name:prefix in (a/,b/)",
    ),
    ("foo=a=b%", [("foo", "a=b%", False)], [], "foo=a=b%"),
    ("foo in (=a)", [("foo", "=a", False)], [], "foo in (=a)"),
    ("foo=a,foo:prefix=a", [("foo", "a", True)], [], "foo:prefix=a"),
    (
        "!zz, mm = 1 , bb in (x, y), aa != 2",
        [("bb", "x", False), ("bb", "y", False), ("mm", "1", False)],
        [("aa", "2", False), ("zz", "", False)],
        "bb in (x,y),mm=1,aa!=2,!zz",
    ),
    ("AA in (11), BB", [("AA", "11", False), ("BB", "", False)], [], "AA=11,BB"),
    ("in in (notin)", [("in", "notin", False)], [], "in=notin"),
]


def triples(labels: LabelSet) -> Triples:
    return [(label.name, label.value, label.prefix) for label in labels.labels]


@pytest.mark.parametrize("text, include, exclude, canonical", CLAUSES)
def test_selector_text(text: str, include: Triples, exclude: Triples, canonical: str) -> None:
    selector = parse_selector(text)
    assert triples(selector.include) == include
    assert triples(selector.exclude) == exclude
    assert format_selector(selector) == canonical
    assert parse_selector(canonical) == selector


BAD_TEXTS = [
    *("foo,", ",foo", "foo,,bar", "foo bar", "foo=", "foo==", "foo = = bar baz", "!foo=bar", "!foo in (a)"),
    *("foo in", "foo in ()", "foo in (a,)", "foo in (a", "foo in a", "foo in (a b)", "foo:suffix=a", "=bar"),
    *("f", "foo=ba$r", "fo%o=bar", "foo in (a, #)", "foo!", "(foo)", "foo,foo=a", "!foo,foo!=a"),
]


@pytest.mark.parametrize("text", BAD_TEXTS)
def test_bad_selector_text_is_named(text: str) -> None:
    with pytest.raises(ValidationError):
        parse_selector(text)


def test_the_error_shows_the_clause() -> None:
    with pytest.raises(ValidationError, match=r"could not parse 'bar baz' of the selector 'foo=1,bar baz'"):
        parse_selector("foo=1,bar baz")
    with pytest.raises(ValidationError, match=r"'f=1' in a selector: invalid length \(1; expected 2"):
        parse_selector("f=1")


def test_a_journal_is_matched_by_its_labels_and_its_name() -> None:
    spec = label_set({"app": "shop", "zone": "a"})
    assert pairs(labels.with_name(spec, "shop/orders")) == [
        ("app", "shop"),
        ("name", "shop/orders"),
        ("zone", "a"),
    ]
    assert pairs(spec) == [("app", "shop"), ("zone", "a")]


def test_list_reads_a_prefix_label_as_the_beginning_of_the_name() -> None:
    selector = LabelSelector(
        include=label_set({"prefix": "shop/"}), exclude=label_set({"prefix": "shop/old/"})
    )
    rewritten = labels.for_list(selector)
    assert triples(rewritten.include) == [("name", "shop/", True)]
    assert triples(rewritten.exclude) == [("name", "shop/old/", True)]
    assert triples(selector.include) == [("prefix", "shop/", False)]
    for journal, expected in (("shop/orders", True), ("shop/old/orders", False), ("shopping/list", False)):
        assert match(rewritten, labels.with_name(LabelSet(), journal)) is expected


# A model: a set is a dict from name to a set of values.

NAMES = st.sampled_from(["aa", "bb", "cc"])
VALUES = st.sampled_from(["", "x", "xy", "y", "yx"])
Model = dict[str, set[str]]


def no_mixed_values(model: Model) -> Model:
    return {name: {""} if "" in values else values for name, values in model.items()}


MODELS = st.dictionaries(NAMES, st.sets(VALUES, min_size=1)).map(no_mixed_values)


def to_set(model: Model) -> LabelSet:
    return label_set([(name, value) for name, values in model.items() for value in values])


def to_model(labels: LabelSet) -> Model:
    model: Model = {}
    for label in labels.labels:
        model.setdefault(label.name, set()).add(label.value)
    return model


@st.composite
def selector_sides(draw: st.DrawFn) -> LabelSet:
    labels = to_set(draw(MODELS))
    for label in labels.labels:
        label.prefix = draw(st.booleans())
    return labels


SELECTORS = st.builds(
    lambda include, exclude: LabelSelector(include=include, exclude=exclude),
    selector_sides(),
    selector_sides(),
)


@given(MODELS, MODELS)
def test_union_and_subtract_agree_with_the_model(left: Model, right: Model) -> None:
    united, rest = union(to_set(left), to_set(right)), subtract(to_set(left), to_set(right))
    validate_label_set(united)
    validate_label_set(rest)
    assert to_model(united) == right | left
    assert to_model(rest) == {name: values for name, values in left.items() if right.get(name) != values}


@given(MODELS, MODELS)
def test_union_and_subtract_leave_their_arguments_alone(left: Model, right: Model) -> None:
    first, second = to_set(left), to_set(right)
    union(first, second).labels.add(name="zz")
    subtract(first, second).labels.add(name="zz")
    assert (first, second) == (to_set(left), to_set(right))


def label_matches(wanted: Label, value: str) -> bool:
    return wanted.value in ("", value) or (wanted.prefix and value.startswith(wanted.value))


@given(SELECTORS, MODELS)
def test_match_agrees_with_the_model(selector: LabelSelector, model: Model) -> None:
    def name_matches(side: LabelSet, name: str) -> bool:
        return any(
            label_matches(label, value)
            for label in side.labels
            if label.name == name
            for value in model.get(name, ())
        )

    included = all(name_matches(selector.include, label.name) for label in selector.include.labels)
    excluded = any(name_matches(selector.exclude, label.name) for label in selector.exclude.labels)
    assert match(selector, to_set(model)) is (included and not excluded)


@given(SELECTORS)
def test_a_selector_survives_its_text(selector: LabelSelector) -> None:
    validate_selector(selector)
    assert parse_selector(format_selector(selector)) == selector


@given(st.text(alphabet="ab=!,() :prefixnotin", max_size=30))
def test_any_text_is_a_legal_selector_or_an_error(text: str) -> None:
    try:
        selector = parse_selector(text)
    except ValidationError:
        return
    validate_selector(selector)
    assert parse_selector(format_selector(selector)) == selector
