"""Registers: check and change (reference, 7, 8 and 27)."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.journal import registers
from penstock.journal.labels import label_set, match, parse_selector, subtract, union
from penstock.journal.protocol import LabelSet


def test_the_register_sequence_of_the_reference() -> None:
    now = registers.apply(LabelSet(), label_set({"AA": "11", "BB": "22"}), None)
    assert now == label_set({"AA": "11", "BB": "22"})

    assert registers.check(now, parse_selector("AA in (11), BB"))
    now = registers.apply(now, label_set({"CC": "33"}), label_set({"AA": "11", "BB": "XYZ"}))
    assert now == label_set({"BB": "22", "CC": "33"})

    assert registers.check(now, parse_selector("!AA, CC"))
    now = registers.apply(now, label_set({"AA": "44"}), label_set({"CC": "33"}))
    assert now == label_set({"AA": "44", "BB": "22"})

    assert not registers.check(now, parse_selector("AA = 55"))
    assert now == label_set({"AA": "44", "BB": "22"})


def test_empty_registers_match_any_selector() -> None:
    for text in ("", "author=me", "author", "!author", "author!=you"):
        assert registers.check(LabelSet(), parse_selector(text))


def test_no_selector_checks_nothing() -> None:
    assert registers.check(label_set({"author": "you"}), None)


def test_subtraction_comes_before_union() -> None:
    # The other way round the new value would be taken away again.
    now = registers.apply(label_set({"epoch": "1"}), label_set({"epoch": "1"}), label_set({"epoch": "1"}))
    assert now == label_set({"epoch": "1"})


def test_a_new_value_replaces_the_old_ones() -> None:
    before = label_set([("epoch", "1"), ("epoch", "2"), ("owner", "a")])
    assert registers.apply(before, label_set({"epoch": "3"}), None) == label_set({"epoch": "3", "owner": "a"})


PAIRS = st.sets(st.tuples(st.sampled_from(["aa", "bb"]), st.sampled_from(["x", "y"])))


@given(PAIRS, st.none() | PAIRS, st.none() | PAIRS)
def test_apply_is_subtract_then_union(
    before: set[tuple[str, str]], united: set[tuple[str, str]] | None, taken: set[tuple[str, str]] | None
) -> None:
    start = label_set(before)
    coming = None if united is None else label_set(united)
    going = None if taken is None else label_set(taken)
    after = registers.apply(start, coming, going)
    assert after == union(label_set(united or ()), subtract(start, label_set(taken or ())))
    assert start == label_set(before)
    assert after is not start


@given(PAIRS, PAIRS)
def test_a_fence_lets_pass_who_holds_it_and_nobody_else(
    before: set[tuple[str, str]], others: set[tuple[str, str]]
) -> None:
    now = registers.apply(label_set(before), label_set({"epoch": "7"}), label_set(others))
    assert registers.check(now, parse_selector("epoch=7"))
    assert not registers.check(now, parse_selector("epoch=6"))
    assert match(parse_selector("epoch=7"), now)


NAMES = st.sampled_from(["aa", "bb", "cc"])
VALUES = st.sets(st.sampled_from(["x", "y", "z"]), min_size=1)
SETS = st.dictionaries(NAMES, VALUES)


def labels_of(model: dict[str, set[str]]) -> LabelSet:
    return label_set((name, value) for name, values in model.items() for value in values)


class Registers(RuleBasedStateMachine):
    """Against a plain dictionary of sets: names are replaced whole, and taken away only as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.now = LabelSet()
        self.model: dict[str, set[str]] = {}

    @rule(coming=SETS, going=SETS)
    def append(self, coming: dict[str, set[str]], going: dict[str, set[str]]) -> None:
        self.now = registers.apply(self.now, labels_of(coming), labels_of(going))
        left = {name: values for name, values in self.model.items() if going.get(name) != values}
        self.model = {**left, **coming}

    @rule(name=NAMES, value=st.sampled_from(["x", "y", "z"]), included=st.booleans())
    def checked(self, name: str, value: str, included: bool) -> None:
        held = value in self.model.get(name, set())
        expected = not self.model or held == included
        assert (
            registers.check(self.now, parse_selector(f"{name}{'=' if included else '!='}{value}")) == expected
        )

    @invariant()
    def the_registers_are_the_model(self) -> None:
        assert self.now == labels_of(self.model)


TestRegisters = Registers.TestCase
