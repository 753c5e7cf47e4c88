"""What a mirror holds: readings and events, in any mixture, lead to what etcd has, and each difference is told once."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.journal.cluster.entries import Entries, LeasedEntry
from penstock.journal.cluster.etcd_values import Change, KeyValue

PREFIX = b"/p/"
KEYS = ("a", "a/b", "b", "ü")


def kv(key: str, value: bytes, create: int, mod: int, lease: int = 0, version: int = 0) -> KeyValue:
    return KeyValue(PREFIX + key.encode(), value, create, mod, lease, version)


def put(key: str, value: bytes, create: int, mod: int, lease: int = 0) -> Change:
    return Change(kv(key, value, create, mod, lease), False)


def deleted(key: str, mod: int) -> Change:
    return Change(kv(key, b"", 0, mod), True)


def held(entries: Entries) -> dict[str, LeasedEntry]:
    return dict(entries.under(""))


def entries(*, bad: bytes = b"bad") -> Entries:
    return Entries(PREFIX, lambda key, value: "it is bad" if value == bad else None)


class Etcd:
    """The model: transactions make revisions; it remembers them all."""

    def __init__(self) -> None:
        self.revision = 1
        self.now: dict[str, KeyValue] = {}
        self.history: list[list[Change]] = []

    def transact(self, changes: dict[str, bytes | None]) -> None:
        self.revision += 1
        made: list[Change] = []
        for key, value in changes.items():
            before = self.now.get(key)
            if value is not None:
                created = before.create_revision if before else self.revision
                version = before.version + 1 if before else 1
                self.now[key] = kv(key, value, created, self.revision, version=version)
                made.append(Change(self.now[key], False))
            elif before is not None:
                del self.now[key]
                made.append(deleted(key, self.revision))
        self.history.append(made)

    def events(self, start: int) -> list[list[Change]]:
        return self.history[start - 2 :]

    def newest_below_prefix(self) -> int:
        return max((change.entry.mod_revision for made in self.history for change in made), default=0)


transactions = st.dictionaries(st.sampled_from(KEYS), st.sampled_from([b"1", b"2", None]), min_size=0)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("transact"), transactions),
        st.tuples(st.just("deliver"), st.integers(1, 3)),
        st.tuples(st.just("fault"), st.none()),
    )
)


@given(steps)
def test_readings_and_events_in_any_mixture_lead_to_what_etcd_has(
    steps: Sequence[tuple[str, object]],
) -> None:
    etcd, mirror, told = Etcd(), entries(), dict[str, LeasedEntry]()
    mirror.read([], etcd.revision)
    waiting: list[list[Change]] = []
    seen = 1

    def tell(keys: list[str]) -> None:
        assert len(keys) == len(set(keys))
        for key in keys:
            assert told.get(key) != mirror.get(key), "told of a key that is as it was"
            entry = mirror.get(key)
            told.pop(key, None)
            if entry is not None:
                told[key] = entry
        assert told == held(mirror), "a difference was not told"
        assert mirror.misfit is None

    def deliver(count: int) -> None:
        nonlocal waiting
        now, waiting = waiting[:count], waiting[count:]
        before = mirror.revision
        tell(mirror.apply([change for made in now for change in made]))
        assert mirror.revision >= before

    for kind, what in steps:
        if kind == "transact":
            assert isinstance(what, dict)
            etcd.transact(what)
            waiting += etcd.events(etcd.revision)
        elif kind == "deliver":
            assert isinstance(what, int)
            deliver(what)
        else:
            seen = mirror.revision
            tell(mirror.read(sorted(etcd.now.values(), key=lambda one: one.key), etcd.revision))
            assert held(mirror) == expected(etcd)
            waiting = etcd.events(max(seen, 1) + 1)
    deliver(len(waiting))
    assert held(mirror) == expected(etcd)
    assert mirror.revision == etcd.newest_below_prefix()
    assert [key for key, _ in mirror.under("a")] == [key for key in sorted(told) if key.startswith("a")]


def expected(etcd: Etcd) -> dict[str, LeasedEntry]:
    return {
        key: LeasedEntry(one.value, one.create_revision, one.mod_revision, one.lease)
        for key, one in etcd.now.items()
    }


def test_a_key_that_came_and_went_between_two_looks_is_no_difference() -> None:
    mirror = entries()
    assert mirror.apply([put("a", b"1", 5, 5), deleted("a", 6)]) == []
    assert (mirror.revision, held(mirror)) == (6, {})


def test_a_key_that_was_made_anew_is_a_difference() -> None:
    mirror = entries()
    mirror.apply([put("a", b"1", 5, 5)])
    assert mirror.apply([deleted("a", 6), put("a", b"1", 7, 7)]) == ["a"]


def test_keys_are_told_in_the_order_of_their_last_change() -> None:
    mirror = entries()
    changes = [put("a", b"1", 2, 2), put("b", b"1", 3, 3), put("a", b"2", 2, 4)]
    assert mirror.apply(changes) == ["b", "a"]
    found = [kv("a", b"3", 2, 9), kv("c", b"1", 8, 8)]
    assert mirror.read(found, 9) == ["b", "c", "a"]


def test_events_that_a_reading_has_seen_count_for_the_revision_only() -> None:
    mirror = entries()
    mirror.read([kv("a", b"2", 2, 4)], 10)
    assert mirror.revision == 4
    assert mirror.apply([put("a", b"1", 2, 2), put("b", b"1", 5, 5), deleted("b", 6)]) == []
    assert (mirror.revision, held(mirror)) == (6, {"a": LeasedEntry(b"2", 2, 4)})


def test_a_refused_value_leaves_what_was_there_until_a_good_one_comes() -> None:
    mirror = entries()
    mirror.apply([put("a", b"good", 2, 2)])
    assert mirror.apply([put("a", b"bad", 2, 3)]) == []
    assert (mirror.revision, mirror.refused) == (3, {"a": "it is bad"})
    assert mirror.get("a") == LeasedEntry(b"good", 2, 2)
    assert mirror.read([kv("a", b"bad", 2, 3), kv("b", b"bad", 4, 4)], 5) == []
    assert (mirror.get("a"), mirror.get("b")) == (LeasedEntry(b"good", 2, 2), None)
    assert set(mirror.refused) == {"a", "b"}
    assert mirror.apply([put("a", b"better", 2, 6), deleted("b", 7)]) == ["a"]
    assert mirror.refused == {}


def test_a_key_that_is_no_text_is_skipped_and_counts_for_the_revision() -> None:
    mirror = entries()
    odd = KeyValue(PREFIX + b"\xff", b"", 2, 3, 0)
    assert mirror.read([odd], 3) == []
    assert mirror.apply([Change(KeyValue(PREFIX + b"\xff", b"", 2, 4, 0), False)]) == []
    assert (mirror.revision, held(mirror)) == (4, {})


@settings(max_examples=50)
@given(st.lists(transactions, min_size=1, max_size=8), st.data())
def test_an_event_that_was_left_out_is_found_by_the_next_of_its_key(
    made: Sequence[dict[str, bytes | None]], data: st.DataObject
) -> None:
    etcd, mirror = Etcd(), entries()
    for one in made:
        etcd.transact(one)
    events = [change for changes in etcd.history for change in changes]
    if not events:
        return
    left_out = data.draw(st.integers(0, len(events) - 1))
    missed = events[left_out]
    mirror.apply(events[:left_out] + events[left_out + 1 :])
    later = [change for change in events[left_out + 1 :] if change.entry.key == missed.entry.key]
    # A put that was missed does not matter once the key is deleted, unless it had made the key.
    found = later and (not later[0].deleted or missed.entry.version == 1)
    assert (mirror.misfit is not None) is bool(found)
    mirror.read(list(etcd.now.values()), etcd.revision)
    assert mirror.misfit is None
    assert held(mirror) == expected(etcd)
