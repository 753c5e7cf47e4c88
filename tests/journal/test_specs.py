"""Journal specs in YAML: what the hierarchy means, what is refused and where, and the way back."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base import yamltext
from penstock.base.errors import UsageError
from penstock.journal import durations
from penstock.journal.durations import format_duration, parse_duration
from penstock.journal.fragment import Codec
from penstock.journal.labels import label_set, values_of
from penstock.journal.protocol import CompressionCodec, JournalSpec, Label
from penstock.journal.specs import Change, flatten, hoist
from penstock.journal.tokens import ValidationError

SHOP = """\
comment: the shop's journals
name: shop/
replication: 1
labels:
  - name: team
    value: sales
  - {name: color, value: red}
fragment:
  length: 1_048_576
  compression_codec: GZIP
  stores: ["file:///"]
  refresh_interval: 5m
  flush_interval: 1h30m
revision: -1
children:
  - name: shop/items
    labels: [{name: color, value: blue}]
    fragment: {retention: 720h, path_postfix_template: '{{ .Spool.FirstAppendTime.Format "2006-01-02" }}'}
  - name: shop/old
    delete: true
  - name: shop/orders/
    replication: 3
    flags: O_RDWR
    children:
      - name: shop/orders/eu
        max_append_rate: 4096
      - name: shop/orders/us
        revision: 7
        suspend: {level: PARTIAL, offset: 12}
"""


def spec_of(changes: list[Change], name: str) -> JournalSpec:
    (found,) = [change.spec for change in changes if change.name == name]
    assert found is not None
    return found


def test_children_inherit_what_they_leave_out() -> None:
    changes = flatten(SHOP)
    assert [change.name for change in changes] == [
        "shop/items",
        "shop/old",
        "shop/orders/eu",
        "shop/orders/us",
    ]
    assert [change.revision for change in changes] == [-1, -1, -1, 7]
    assert [change.spec is None for change in changes] == [False, True, False, False]
    items, us = spec_of(changes, "shop/items"), spec_of(changes, "shop/orders/us")
    assert (items.replication, us.replication) == (1, 3)
    assert (items.flags, us.flags) == (0, JournalSpec.O_RDWR)
    for spec in (items, us):
        assert spec.fragment.length == 1 << 20
        assert spec.fragment.compression_codec == CompressionCodec.GZIP
        assert list(spec.fragment.stores) == ["file:///"]
        assert spec.fragment.refresh_interval.ToSeconds() == 300
        assert spec.fragment.flush_interval.ToSeconds() == 5400
    assert items.fragment.retention.ToSeconds() == 720 * 3600
    assert us.fragment.retention.ToSeconds() == 0
    assert (us.suspend.level, us.suspend.offset) == (JournalSpec.Suspend.PARTIAL, 12)
    assert not items.HasField("suspend")
    assert spec_of(changes, "shop/orders/eu").max_append_rate == 4096


def test_labels_merge_by_name_and_the_child_wins() -> None:
    changes = flatten(SHOP)
    items, eu = spec_of(changes, "shop/items").labels, spec_of(changes, "shop/orders/eu").labels
    assert (values_of(items, "color"), values_of(items, "team")) == (["blue"], ["sales"])
    assert values_of(eu, "color") == ["red"]


def test_a_change_is_what_the_broker_is_asked() -> None:
    requests = [change.to_proto() for change in flatten(SHOP)]
    assert requests[1].delete == "shop/old"
    assert requests[1].expect_mod_revision == -1
    assert requests[3].upsert.name == "shop/orders/us"
    assert not requests[3].delete


def test_an_explicit_delete_false_keeps_a_journal_of_a_deleted_directory() -> None:
    text = SHOP.replace("replication: 1\n", "replication: 1\ndelete: true\n", 1).replace(
        "max_append_rate: 4096", "delete: false"
    )
    assert [change.name for change in flatten(text) if change.spec is not None] == ["shop/orders/eu"]


def test_words_stay_words_whatever_yaml_takes_them_for() -> None:
    text = SHOP.replace("{name: color, value: red}", "{name: color, value: 007}").replace("sales", "yes")
    eu = spec_of(flatten(text), "shop/orders/eu").labels
    assert (values_of(eu, "color"), values_of(eu, "team")) == (["007"], ["yes"])


def test_aliases_can_share_what_a_directory_cannot() -> None:
    text = SHOP.replace("fragment: {retention: 720h", "fragment: &old {retention: 720h").replace(
        "max_append_rate: 4096", "fragment: *old"
    )
    changes = flatten(text)
    assert spec_of(changes, "shop/orders/eu").fragment == spec_of(changes, "shop/items").fragment


REFUSED = [
    ("max_append_rate: 4096", "max_apend_rate: 4096", "line 26: unknown key 'max_apend_rate'; did you mean"),
    ("length: 1_048_576", "lenght: 4096", "line 9: unknown key 'lenght'; did you mean 'length'?"),
    ("  - name: team\n    value", "  - name: team\n    valeu", "line 6: unknown key 'valeu'; did you mean 'value'?"),
    ("compression_codec: GZIP", "compression_codec: GZPI", "line 10: unknown compression_codec 'GZPI'; did you"),
    ("flags: O_RDWR", "flags: 4", "line 23: unknown flags '4'"),
    ("level: PARTIAL", "level: HALF", "line 29: unknown level 'HALF'"),
    ("refresh_interval: 5m", "refresh_interval: 300", "line 12: refresh_interval: not a duration (300;"),
    ("replication: 3", "replication: three", "line 22: expected a whole number for replication (three)"),
    ("replication: 3", "replication: 5000000000", "line 22: the number for replication is too large"),
    ("replication: 3", "replication: [3]", "line 22: expected a single value for replication"),
    ("replication: 3", "replication: 9", "line 25: journal shop/orders/eu: Replication: expected 1 to 5 (9)"),
    ("  length: 1_048_576\n", "", "journal shop/items: Fragment.Length: expected 1024 to"),
    ("  refresh_interval: 5m\n", "", "journal shop/items: Fragment.RefreshInterval: expected"),
    ("name: shop/old\n", "name: shop/a\n", "line 19: children are sorted by name: 'shop/a' comes behind 'shop/items'"),
    ("name: shop/old\n", "name: shop/items\n", "line 19: children are sorted by name: 'shop/items' comes behind"),
    ("name: shop/orders/eu", "name: shop/eu", "line 25: 'shop/eu' must begin with the name of its directory, 'shop/o"),
    ("name: shop/orders/\n", "name: shop/orders\n", "line 21: 'shop/orders' has children, but is not a directory"),
    ("name: shop/old\n", "name: shop/old/\n", "line 19: the directory 'shop/old/' has no children"),
    ("delete: true", "delete: maybe", "line 20: expected true or false for delete (maybe)"),
    ("delete: true", "{delete: true, revision: 0", "not YAML"),
    ("stores: [\"file:///\"]", "stores: file:///", "line 11: expected a list for stores"),
    ("children:\n  -", "children:\n  - shop/items\n  -", "line 16: expected keys and values"),
    ("replication: 1\n", "replication: 1\nreplication: 2\n", "line 4: 'replication' is given twice; first in line 3"),
    ("{name: color, value: red}", "{value: red}", "line 7: a label has a name"),
    ("{name: color, value: red}", "{name: team, value: sales}", "Labels.Labels[2]: not in unique, sorted order"),
    ("name: shop/orders/us", "name: shop/orders/u s", "journal shop/orders/u s: Name: not a valid token"),
    ("revision: 7", "revision: -7", "journal shop/orders/us: Revision: expected -1, 0 or more (-7)"),
]  # fmt: skip


@pytest.mark.parametrize(("good", "bad", "complaint"), REFUSED, ids=[bad for _, bad, _ in REFUSED])
def test_what_is_wrong_is_told_with_its_line(good: str, bad: str, complaint: str) -> None:
    assert good in SHOP
    with pytest.raises(UsageError) as error:
        flatten(SHOP.replace(good, bad, 1))
    assert complaint in error.value.message
    assert error.value.message.startswith("line ")


def test_to_delete_a_journal_takes_its_revision() -> None:
    with pytest.raises(UsageError, match="to delete a journal, tell its revision"):
        flatten("{name: a/journal, delete: true}")


def test_a_journal_in_a_directory_and_beside_it_is_given_twice() -> None:
    once = SHOP.replace(
        "  - name: shop/items\n", "  - name: shop/orders/\n    children: [{name: shop/orders/eu}]\n"
    )
    with pytest.raises(UsageError, match=r"children are sorted|given twice"):
        flatten(once)
    text = textwrap.dedent("""\
        name: ''
        children:
          - name: a/
            children: [{name: a/journal, delete: true, revision: 1}]
          - {name: a/journal, delete: true, revision: 1}
        """)
    with pytest.raises(UsageError, match="line 5: the journal a/journal is given twice"):
        flatten(text)


@pytest.mark.parametrize("text", ["", "# nothing\n", "~", "---\n"])
def test_an_empty_text_is_not_taken_for_no_changes(text: str) -> None:
    with pytest.raises(UsageError, match="holds no journals"):
        flatten(text)


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{after}: &{after} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, after in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (BOMB, "aliases counted as often as they are used"),
        ("a: &a [*a]", r"the alias \*a refers to nothing above it"),
        ("[" * 100_000, "nested more than"),
        ("{a: " * 100_000, "nested more than"),
        ("a: !!python/object/apply:os.system [id]", "the tag .* is not understood"),
        ("a: !thing 1", "the tag !thing is not understood"),
        ("a: 1\n---\na: 1", "line 2: a second document"),
        ("? {a: b}\n: c", "a key must be a word"),
        ("a: b: c", "line 1: not YAML"),
        ("a: \x01", "not YAML"),
        ("x" * (yamltext.MAX_BYTES + 1), "longer than 16 MiB"),
    ],
    ids=["bomb", "cycle", "lists", "maps", "python", "tag", "documents", "key", "syntax", "control", "size"],
)
def test_hostile_text_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        flatten(text)


# The way back.

SEGMENTS = st.sampled_from(["a", "b", "a-b", "a.b", "ab", "long-segment", "ü", "1"])
NAMES = st.lists(SEGMENTS, min_size=1, max_size=5).map("/".join).filter(lambda name: len(name.encode()) >= 4)
NANOSECONDS = st.integers(min_value=-(2**63) + 1, max_value=2**63 - 1)
LABELS = st.lists(
    st.tuples(st.sampled_from(["color", "team", "true"]), st.sampled_from(["red", "null", "007", "x/y=%"])),
    max_size=4,
)


@st.composite
def changes(draw: st.DrawFn) -> Change:
    """Small ranges, so that journals have much in common."""
    spec = JournalSpec(
        name=draw(NAMES),
        replication=draw(st.integers(1, 2)),
        labels=label_set(draw(LABELS)),
        flags=draw(st.sampled_from([0, 1, 4])),
        max_append_rate=draw(st.sampled_from([0, 0, 5])),
    )
    fragment = spec.fragment
    fragment.length = draw(st.sampled_from([1024, 1 << 34]))
    fragment.compression_codec = draw(st.sampled_from([Codec.NONE, Codec.GZIP])).to_proto()
    fragment.stores.extend(
        draw(st.sampled_from([[], ["s3://bucket/"], ["file:///a/", "s3://bucket/x/?region=y"]]))
    )
    fragment.refresh_interval.CopyFrom(durations.to_proto(draw(st.sampled_from([10**9, 1_500_000_001]))))
    for interval, values in ((fragment.flush_interval, [0, 60 * 10**9]), (fragment.retention, [0, 1, -1])):
        value = draw(st.sampled_from(values))
        if value:
            interval.CopyFrom(durations.to_proto(value))
    fragment.path_postfix_template = draw(
        st.sampled_from(["", "x: y", 'd={{ .Spool.FirstAppendTime.Format "06" }}'])
    )
    if fragment.path_postfix_template == "x: y":
        fragment.path_postfix_template = "x=y"
    if draw(st.booleans()):
        spec.suspend.level = draw(st.sampled_from([JournalSpec.Suspend.NONE, JournalSpec.Suspend.PARTIAL]))
        spec.suspend.offset = draw(st.sampled_from([0, 7]))
        spec.suspend.SetInParent()
    return Change(spec.name, spec, draw(st.sampled_from([-1, 0, 3])))


DELETIONS = st.builds(Change, NAMES, st.none(), st.sampled_from([-1, 5]))


@given(st.lists(st.one_of(changes(), changes(), DELETIONS), max_size=8, unique_by=lambda change: change.name))
def test_what_was_hoisted_flattens_to_the_same_changes(given: list[Change]) -> None:
    assert flatten(hoist(given)) == sorted(given, key=lambda change: change.name)


def test_hoisting_says_once_what_all_share() -> None:
    text = hoist(flatten(SHOP))
    assert text.count("length: 1048576") == 1
    assert text.count("refresh_interval: 5m0s") == 1
    assert text.count("value: sales") == 1
    assert text.startswith("name: shop/\n")
    assert "  - name: shop/orders/\n" in text.replace("\n- ", "\n  - ")


def test_deep_names_are_hoisted_without_end_to_the_stack() -> None:
    specs = []
    for depth in range(2, 250):
        spec = JournalSpec()
        spec.CopyFrom(spec_of(flatten(SHOP), "shop/orders/eu"))
        spec.name = "/".join("a" * depth)
        specs.append(Change(spec.name, spec))
    specs = [change for change in specs if len(change.name) >= 4]
    assert flatten(hoist(specs)) == specs


def test_no_journals_hoist_to_a_text_without_changes() -> None:
    assert flatten(hoist([])) == []


# Durations.

DURATIONS = [
    ("0s", 0),
    ("1ns", 1),
    ("1.5µs", 1500),
    ("500ms", 500_000_000),
    ("1.5s", 1_500_000_000),
    ("1m0s", 60 * 10**9),
    ("1h30m0s", 5400 * 10**9),
    ("100h0m0.000000001s", 360_000 * 10**9 + 1),
    ("-1m0s", -60 * 10**9),
]


@pytest.mark.parametrize(("text", "value"), DURATIONS)
def test_durations_print_and_read_as_go_has_them(text: str, value: int) -> None:
    assert format_duration(value) == text
    assert parse_duration(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("+5s", 5 * 10**9),
        ("1h30m", 5400 * 10**9),
        ("1us", 1000),
        ("1μs", 1000),
        (".5s", 500_000_000),
        ("1.s", 10**9),
        ("0.3ns", 0),
    ],
)
def test_durations_read_in_other_spellings(text: str, value: int) -> None:
    assert parse_duration(text) == value


@pytest.mark.parametrize(
    "text", ["", "-", "5", "1d", "s", ".s", "1s 2s", "1h-3m", "2562047h47m16.854775808s", "１s"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="not a duration"):
        parse_duration(text)


@given(NANOSECONDS)
def test_every_duration_reads_back(value: int) -> None:
    assert parse_duration(format_duration(value)) == value
    proto = durations.to_proto(value)
    assert proto.seconds * 10**9 + proto.nanos == value
    assert abs(proto.nanos) < 10**9


def test_a_label_value_that_is_empty_survives() -> None:
    spec = JournalSpec()
    spec.CopyFrom(spec_of(flatten(SHOP), "shop/orders/eu"))
    spec.labels.labels.insert(0, Label(name="bare"))
    assert flatten(hoist([Change(spec.name, spec)])) == [Change(spec.name, spec)]


def test_without_the_library_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['yaml'] = None; import penstock.journal.specs"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "PyYAML is not installed" in done.stderr
    assert "UsageError" in done.stderr
