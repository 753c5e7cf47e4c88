"""The allocator's steps (reference 13): each rule by itself, what each step compares, how steps share transactions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from penstock.journal.cluster.allocator import changes
from penstock.journal.cluster.allocator.changes import Checkpoint, Step, transactions
from penstock.journal.cluster.allocator.converge import converge
from penstock.journal.cluster.allocator.picture import Picture
from penstock.journal.cluster.allocator.state import State
from penstock.journal.cluster.entries import LeasedEntry
from penstock.journal.cluster.etcd_values import Compare, Delete, Field, Put
from penstock.journal.protocol import BrokerSpec, JournalSpec

from .allocating import Etcd, held, id_of, items, members, route

LIMITS = {"a1": 9, "b1": 9, "c1": 9, "d1": 9}


def steps(
    replication: int,
    slots: Mapping[str, int],
    desired: Sequence[str],
    *,
    synced: bool = True,
    limits: Mapping[str, int] = LIMITS,
) -> list[str]:
    """What is done about one journal: `+b1#2`, `-a1#0`, `a1#1>0`; what belongs together in one text."""
    state = State(
        members(limits), items({"x": replication}), {"x": held("x", slots, synced=synced)} if slots else {}
    )
    return [told(checkpoint) for checkpoint in converge(state, {"x": tuple(map(id_of, desired))})]


def told(checkpoint: Checkpoint) -> str:
    puts = [_short(operation.key) for operation in checkpoint.operations if isinstance(operation, Put)]
    deletes = [_short(operation.key) for operation in checkpoint.operations if isinstance(operation, Delete)]
    found = []
    for key in deletes:
        same = [put for put in puts if put.split("#")[0] == key.split("#")[0]]
        found.append(f"{key}>{same[0].split('#')[1]}" if same else f"-{key}")
        puts = [put for put in puts if put not in same]
    return " ".join(found + [f"+{put}" for put in puts])


def _short(key: str) -> str:
    journal, zone, suffix, slot = key.removeprefix("assign/").split("#")
    assert journal == "x"
    return f"{zone}{suffix}#{slot}"


def test_a_new_journal_gets_all_its_members_and_the_first_is_primary() -> None:
    assert steps(3, {}, ["a1", "b1", "c1"]) == ["+a1#0", "+b1#1", "+c1#2"]


def test_of_a_new_journal_the_one_that_leads_least_is_primary() -> None:
    state = State(members(LIMITS), items({"w": 1, "x": 2}), {"w": held("w", {"a1": 0})})
    desired = {"w": (id_of("a1"),), "x": (id_of("a1"), id_of("b1"))}
    assert [told(checkpoint) for checkpoint in converge(state, desired)] == ["+b1#0", "+a1#1"]


def test_several_new_journals_are_led_by_several_members() -> None:
    state = State(members(LIMITS), items({f"j{at}": 2 for at in range(8)}), {})
    pairs = [(id_of("a1"), id_of("b1")), (id_of("c1"), id_of("d1"))]
    led = [
        operation.key.split("#")[1]
        for checkpoint in converge(state, {f"j{at}": pairs[at % 2] for at in range(8)})
        for operation in checkpoint.operations
        if operation.key.endswith("#0")
    ]
    assert sorted(led) == ["a", "a", "b", "b", "c", "c", "d", "d"]


def test_a_member_is_added_before_one_is_removed() -> None:
    assert steps(2, {"a1": 0, "b1": 1}, ["a1", "c1"]) == ["+c1#2"]


def test_nothing_is_removed_while_a_replica_has_not_agreed() -> None:
    assert steps(2, {"a1": 0, "b1": 1, "c1": 2}, ["a1", "c1"], synced=False) == []


def test_nothing_is_removed_in_the_round_in_which_somebody_joins() -> None:
    assert steps(1, {"a1": 0, "b1": 1}, ["c1"]) == ["+c1#2"]


def test_one_is_removed_when_all_have_agreed() -> None:
    assert steps(2, {"a1": 0, "b1": 1, "c1": 2}, ["a1", "c1"]) == ["-b1#1"]


def test_one_stale_route_of_three_is_enough_to_wait() -> None:
    group = held("x", {"a1": 0, "b1": 1, "c1": 2})
    stale = replace(group[1], value=route(["a1", "b1"], "a1"))
    state = State(members(LIMITS), items({"x": 2}), {"x": (group[0], stale, group[2])})
    assert converge(state, {"x": (id_of("a1"), id_of("c1"))}) == []


def test_replication_is_kept_if_the_target_is_smaller() -> None:
    assert steps(3, {"a1": 0, "b1": 1, "c1": 2}, ["a1", "b1"]) == []


def test_a_lower_replication_removes_several_at_once() -> None:
    assert steps(1, {"a1": 0, "b1": 1, "c1": 2}, ["a1"]) == ["-c1#2 -b1#1"]


def test_a_journal_that_asks_for_none_is_let_go_at_once() -> None:
    assert steps(0, {"a1": 0, "b1": 1}, [], synced=False) == ["-b1#1 -a1#0"]


def test_the_member_with_the_highest_load_goes_first_and_an_unknown_one_before_it() -> None:
    limits = {"a1": 9, "b1": 9, "c1": 2}
    assert steps(2, {"a1": 0, "b1": 1, "c1": 2}, ["a1"], limits=limits) == ["-c1#2"]
    assert steps(3, {"a1": 0, "b1": 1, "c1": 2, "z9": 3}, ["a1"], limits=limits) == ["-z9#3"]


def test_a_member_at_its_limit_is_not_added() -> None:
    limits = {"a1": 9, "b1": 0, "c1": 9}
    assert steps(2, {"a1": 0}, ["a1", "b1", "c1"], limits=limits) == ["+c1#1"]


def test_what_a_round_adds_counts_towards_the_limit() -> None:
    state = State(members({"a1": 2}), items({f"j{at}": 1 for at in range(3)}), {})
    assert len(converge(state, {f"j{at}": (id_of("a1"),) for at in range(3)})) == 2


def test_what_a_round_removes_makes_room_for_what_it_adds() -> None:
    now = {"w": held("w", {"b1": 0, "a1": 1}), "x": held("x", {"b1": 0})}
    state = State(members({"a1": 1, "b1": 9}), items({"w": 1, "x": 2}), now)
    desired = {"w": (id_of("b1"),), "x": (id_of("a1"), id_of("b1"))}
    assert [one.steps for one in converge(state, desired)] == [(Step.REMOVE,), (Step.ADD,)]


def test_a_member_that_sheds_takes_nothing_new() -> None:
    everyone = members(LIMITS, exiting=["a1"])
    state = State(everyone, items({"x": 2}), {"x": held("x", {"b1": 0})})
    assert state.shed
    assert [told(one) for one in converge(state, {"x": (id_of("a1"), id_of("b1"))})] == []


def test_who_takes_over_from_a_primary_that_goes_does_so_in_the_same_step() -> None:
    assert steps(1, {"a1": 0, "b1": 1}, ["b1"]) == ["-a1#0 b1#1>0"]


def test_a_journal_without_a_primary_gets_one_though_nobody_has_agreed() -> None:
    assert steps(3, {"b1": 1, "c1": 2}, ["b1", "c1", "d1"], synced=False) == ["+d1#3", "b1#1>0"]


def test_one_that_has_agreed_before_is_promoted_before_one_that_is_new() -> None:
    group = held("x", {"b1": 1, "c1": 2})
    old = replace(group[1], value=route(["a1", "c1"], "a1"))
    new = replace(group[0], value=b"")
    state = State(members(LIMITS), items({"x": 2}), {"x": (new, old)})
    assert [told(one) for one in converge(state, {"x": (id_of("b1"), id_of("c1"))})] == ["c1#2>0"]


def test_one_that_is_to_stay_is_promoted_before_one_that_is_not() -> None:
    assert steps(3, {"b1": 1, "c1": 2}, ["a1", "c1", "d1"], synced=False) == ["+a1#3", "+d1#4", "c1#2>0"]


def test_of_equals_the_one_that_leads_least_is_promoted() -> None:
    state = State(
        members(LIMITS),
        items({"w": 1, "x": 2}),
        {"w": held("w", {"b1": 0}), "x": held("x", {"b1": 1, "c1": 2})},
    )
    desired = {"w": (id_of("b1"),), "x": (id_of("b1"), id_of("c1"))}
    assert [told(one) for one in converge(state, desired)] == ["c1#2>0"]


def test_slots_are_packed_one_a_round_when_nothing_else_is_to_do() -> None:
    assert steps(3, {"a1": 0, "b1": 3, "c1": 5}, ["a1", "b1", "c1"]) == ["c1#5>1"]
    assert steps(3, {"a1": 0, "c1": 1, "b1": 3}, ["a1", "b1", "c1"], synced=False) == ["b1#3>2"]
    assert steps(3, {"a1": 0, "c1": 1, "b1": 2}, ["a1", "b1", "c1"], synced=False) == []
    assert steps(3, {"a1": 0, "b1": 3}, ["a1", "b1", "c1"]) == ["+c1#4"]


def test_a_slot_that_two_have_is_cleared_up() -> None:
    assert steps(3, {"a1": 0, "b1": 0, "c1": 1}, ["a1", "b1", "c1"]) == ["b1#0>2"]


def test_a_member_that_is_assigned_twice_keeps_the_lower_slot() -> None:
    group = held("x", {"a1": 0, "b1": 1})
    twice = replace(group[1], assignment=group[1].assignment._replace(slot=2))
    state = State(members(LIMITS), items({"x": 2}), {"x": (*group, twice)})
    (checkpoint,) = converge(state, {"x": (id_of("a1"), id_of("b1"))})
    assert checkpoint.operations == (Delete("assign/x#b#1#2"),)


def test_assignments_of_a_journal_that_is_gone_are_deleted() -> None:
    state = State(members(LIMITS), {}, {"x": held("x", {"a1": 0, "b1": 1}, synced=False)})
    assert [told(one) for one in converge(state, {})] == ["-a1#0", "-b1#1"]


def test_assignments_of_a_journal_that_cannot_be_read_are_left_alone() -> None:
    state = State(members(LIMITS), {}, {"x": held("x", {"a1": 0})}, frozenset({"x"}))
    assert converge(state, {}) == []


# What is compared, and what is written.


def test_each_step_compares_what_it_was_decided_upon() -> None:
    member = members(LIMITS)[id_of("b1")]
    item = items({"x": 1})["x"]
    (one,) = held("x", {"b1": 3})
    one = replace(one, lease=77)
    of_member = Compare("members/b#1", Field.MOD_REVISION, member.mod_revision)
    of_item = Compare("items/x", Field.MOD_REVISION, 50)
    of_one = Compare("assign/x#b#1#3", Field.MOD_REVISION, 70)
    added = changes.added("x", member, 3)
    assert (added.compares, added.operations) == ((of_member,), (Put("assign/x#b#1#3", b"", member.lease),))
    removed = changes.removed(item, one)
    assert (removed.compares, removed.operations) == ((of_item, of_one), (Delete("assign/x#b#1#3"),))
    orphan = changes.orphaned(one)
    gone = Compare("items/x", Field.CREATE_REVISION, 0)
    assert (orphan.compares, orphan.operations) == ((gone,), (Delete("assign/x#b#1#3"),))
    shifted = changes.shifted(one, 0, Step.PROMOTE)
    assert shifted.compares == (of_one,)
    assert shifted.operations == (Delete("assign/x#b#1#3"), Put("assign/x#b#1#0", one.value, 77))


@pytest.mark.parametrize("count", [1, 127, 128, 129, 400])
def test_transactions_stay_within_etcds_limits_and_all_compare_the_leaders_key(count: int) -> None:
    everyone = members({f"a{at}": 9 for at in range(count)})
    leader = members(LIMITS)[id_of("b1")]
    checkpoints = [changes.added("x", member, at) for at, member in enumerate(everyone.values())]
    made = list(transactions(leader, checkpoints))
    own = Compare("members/b#1", Field.MOD_REVISION, leader.mod_revision)
    assert all(transaction.compares[0] == own for transaction in made)
    assert all(len(one.compares) <= 128 and len(one.operations) <= 128 for one in made)
    written = [operation for transaction in made for operation in transaction.operations]
    assert written == [operation for checkpoint in checkpoints for operation in checkpoint.operations]
    assert sum(len(transaction.steps) for transaction in made) == count
    assert len(made) == -(-count // 127)


def test_a_checkpoint_is_never_cut_in_two() -> None:
    leader = members(LIMITS)[id_of("a1")]
    one, two, three = held("x", {"a1": 1, "b1": 2, "c1": 3})
    moved = [
        changes.shifted(one, at, Step.PACK) + changes.shifted(two, at, Step.PACK) for at in range(10, 80)
    ]
    for transaction in transactions(leader, [changes.orphaned(three), *moved]):
        starts = [at for at, step in enumerate(transaction.operations) if step == moved[0].operations[0]]
        assert len(starts) * 4 == len([op for op in transaction.operations if "c#1#3" not in op.key])


def test_nothing_to_do_is_no_transaction() -> None:
    assert list(transactions(members(LIMITS)[id_of("a1")], [])) == []


# The picture of the key space.


def entry(value: bytes, lease: int = 0) -> LeasedEntry:
    return LeasedEntry(value, 5, 6, lease)


def broker(zone: str, suffix: str, limit: int = 3) -> bytes:
    spec = BrokerSpec(journal_limit=limit)
    spec.process_spec.id.zone, spec.process_spec.id.suffix = zone, suffix
    return spec.SerializeToString()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("members/a#1", b"\xff"),
        ("members/a#1", broker("a", "2")),
        ("members/a1", broker("a", "1")),
        ("items/x", b"\xff"),
        ("items/x", JournalSpec(name="y", replication=1).SerializeToString()),
        ("assign/x#a#1#one", b""),
        ("assign/x#a#1#-1", b""),
        ("assign/x#a#1#01", b""),
        ("assign/x#a#1", b""),
        ("trims/x", b"5"),
        ("elsewhere", b""),
    ],
)
def test_a_key_that_does_not_read_is_as_if_it_were_not_there(
    key: str, value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    picture = Picture(3)
    for _ in range(2):
        picture.update(key, entry(value))
    state = picture.state()
    assert (state.members, state.items, state.held) == ({}, {}, {})
    assert state.unread == ({"x"} if key == "items/x" else frozenset())
    known = key.startswith(("members/", "items/", "assign/"))
    assert len(caplog.records) == known, "reported once"
    picture.update(key, None)
    assert picture.state() == Picture(3).state()


def test_a_good_value_repairs_a_bad_one() -> None:
    picture = Picture(2)
    picture.update("items/x", entry(b"\xff"))
    picture.update("items/x", entry(JournalSpec(name="x", replication=3).SerializeToString()))
    assert picture.state().items["x"].replication == 2, "at most what the broker was told"
    assert picture.state().unread == frozenset()
    picture.update("items/x", entry(b"\xff"))
    assert picture.state().items == {}
    assert picture.state().unread == {"x"}


def test_a_state_does_not_change_with_the_picture() -> None:
    etcd = Etcd()
    etcd.announce("a1", 3, lease=7)
    etcd.make("x", 1)
    etcd.put("assign/x#a#1#0", b"", 7)
    state = etcd.picture.state()
    assert etcd.picture.load(id_of("a1")) == 1
    etcd.expire(7)
    assert etcd.picture.load(id_of("a1")) == 0
    assert len(state.members) == len(state.held) == 1
    assert etcd.picture.state().held == {}


def test_values_that_are_no_routes_are_not_agreed_on() -> None:
    group = tuple(replace(one, value=b"\xff") for one in held("x", {"a1": 0}))
    assert not State(members(LIMITS), {}, {"x": group}).is_consistent("x")
    other = tuple(replace(one, value=route(["a1"], None)) for one in group)
    assert not State(members(LIMITS), {}, {"x": other}).is_consistent("x")
    assert State(members(LIMITS), {}, {"x": held("x", {"a1": 0})}).is_consistent("x")
