"""The part of the battery for sources that is about what comes behind the copy, and the step from one to the other."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import pytest

from penstock.base.errors import AwayError
from penstock.log.message import Mode, Op
from penstock.testing.adaptors.aspects import Aspect, aspect
from penstock.testing.adaptors.bench import (
    ADDED,
    FEW,
    Bench,
    at_rest,
    changes,
    differing,
    grown,
    pour,
    writing,
)
from penstock.testing.adaptors.source_copy import CopyConformance
from penstock.testing.adaptors.subject import Can, Row

ACKNOWLEDGED_WITHIN = 1.5
"""Seconds after which a source that acknowledges what it should not has done so."""

CRASHES = 3
"""Inside one transaction."""


class TailConformance(CopyConformance):
    """Everything about what comes behind the copy."""

    @aspect(Aspect.HAND_OVER, Can.TAIL, Can.SEVERAL)
    @pytest.mark.parametrize("crashing", [False, True], ids=["in one go", "with crashes"])
    def test_changes_during_the_copy_are_neither_lost_nor_doubled(self, bench: Bench, crashing: bool) -> None:
        ns = bench.make(bench.subject.several())
        with writing(changes(bench.subject, ns)):
            if crashing:
                _crash_at_every_batch(bench, lambda: _handed_over(bench, ns))
            else:
                with bench.reading(tail=True) as reading:
                    assert reading.until(lambda: _handed_over(bench, ns), bench.patience)
        with bench.reading(tail=True) as reading:
            bench.catch_up(reading, ns)
        bench.check_consistent(ns)

    @aspect(Aspect.HAND_OVER, Can.TAIL, Can.NAMESPACES, Can.SEVERAL, Can.COMES_TO_REST)
    def test_a_namespace_that_is_followed_does_not_wait_for_the_copy_of_another(self, bench: Bench) -> None:
        first = bench.make(FEW)
        _copy_to_follow(bench, first)
        second = bench.make(bench.subject.several())
        bench.subject.insert(first, [Row(100, "behind the copy")])
        with bench.reading(tail=True) as reading:
            bench.catch_up(reading, first)
            bench.catch_up(reading, second)
        bench.check_copied(first)
        bench.check_copied(second)

    @aspect(Aspect.TAIL, Can.TAIL)
    def test_rows_that_are_added_come_once_and_in_order(self, bench: Bench) -> None:
        ns = bench.make(FEW)
        with bench.reading(tail=True) as reading:
            bench.catch_up(reading, ns)
            bench.follow(reading, ns)
            for i in range(10, 40, 3):
                bench.subject.insert(ns, [Row(i + n, f"added {i + n}") for n in range(3)])
            bench.catch_up(reading, ns)
        bench.check_copied(ns)
        assert bench.ids(ns)[10:] == list(range(10, 40))
        if Can.COMES_TO_REST in bench.subject.can:
            assert bench.log.mode(ns) is Mode.SYNC

    @aspect(Aspect.TAIL, Can.TAIL)
    def test_what_changed_while_nobody_read_comes_at_the_next_start(self, bench: Bench) -> None:
        ns = bench.make(FEW)
        with bench.reading(tail=True) as reading:
            bench.catch_up(reading, ns)
            bench.follow(reading, ns)
        bench.subject.insert(ns, [Row(20, "meanwhile")])
        with bench.reading(tail=True) as reading:
            bench.catch_up(reading, ns)
        bench.check_copied(ns)

    @aspect(Aspect.TAIL, Can.TAIL, Can.ADDED)
    def test_a_namespace_that_is_made_while_tailing_is_followed(self, bench: Bench) -> None:
        first = bench.make(FEW)
        with bench.reading(tail=True) as reading:
            bench.catch_up(reading, first)
            second = bench.make(FEW)
            bench.catch_up(reading, second)
        bench.check_copied(second)

    @aspect(Aspect.RESUME, Can.TAIL)
    def test_tailing_goes_on_after_a_crash_at_any_batch(self, bench: Bench) -> None:
        """Each change is given twice, since the first time the log does not take it; and logged once."""
        ns = bench.make(FEW)
        with bench.reading(tail=True) as reading:
            bench.catch_up(reading, ns)
            bench.follow(reading, ns)
        for i in range(10, 15):
            bench.subject.insert(ns, [Row(i, f"added {i}")])
            with bench.reading(tail=True) as reading:
                assert reading.take(bench.patience) is not None, f"row {i} does not come"
            with bench.reading(tail=True) as reading:
                bench.catch_up(reading, ns)
        bench.check_copied(ns)

    @aspect(Aspect.RESUME, Can.TAIL, Can.TRANSACTIONS, Can.NAMESPACES, Can.SEVERAL, Can.COMES_TO_REST)
    def test_a_transaction_stays_whole_though_a_crash_cuts_it_and_a_copy_is_due(self, bench: Bench) -> None:
        """A batch of the copy between two parts of a transaction would end it, for every sink."""
        first, added = bench.make(FEW), [Row(ADDED + row.id, row.text) for row in bench.subject.several()]
        _copy_to_follow(bench, first)
        bench.subject.insert(first, added)
        all_of_it = len(FEW) + len(added)
        with bench.reading(tail=True) as reading:
            assert reading.until(
                lambda: bench.log.within or len(bench.log.messages) == all_of_it, bench.patience
            )
        second = bench.make(FEW)
        for _ in range(CRASHES):
            with bench.reading(tail=True) as reading:
                reading.step(bench.patience)
        with bench.reading(tail=True) as reading:
            bench.catch_up(reading, first)
            bench.catch_up(reading, second)
            assert reading.until(lambda: not bench.log.within, bench.patience), "it has no end for any sink"
        check_whole(bench, first, len(FEW))
        bench.check_copied(first)
        bench.check_copied(second)

    @aspect(Aspect.RESUME, Can.TAIL, Can.TRANSACTIONS, Can.SEVERAL)
    def test_a_transaction_stays_whole_while_nothing_crashes(self, bench: Bench) -> None:
        first = bench.make(FEW)
        _copy_to_follow(bench, first)
        second = bench.make(bench.subject.several())
        bench.subject.insert(first, [Row(ADDED + row.id, row.text) for row in bench.subject.several()])
        with bench.reading(tail=True) as reading:
            bench.catch_up(reading, first)
            bench.catch_up(reading, second)
            assert reading.until(lambda: not bench.log.within, bench.patience), "it has no end for any sink"
        check_whole(bench, first, len(FEW))
        bench.check_copied(second)

    @aspect(Aspect.ONCE, Can.TAIL)
    def test_nothing_is_acknowledged_before_it_is_logged(self, bench: Bench) -> None:
        ns = bench.make(FEW)
        with bench.reading(tail=True) as reading:
            bench.catch_up(reading, ns)
            bench.follow(reading, ns)
            bench.subject.insert(ns, [Row(i, f"added {i}") for i in range(20, 30)])
            assert reading.take(bench.patience) is not None
            time.sleep(ACKNOWLEDGED_WITHIN)
        with bench.reading(tail=True) as reading:
            bench.catch_up(reading, ns)
        bench.check_copied(ns)

    @aspect(Aspect.ONCE, Can.TAIL, Can.ACKNOWLEDGES)
    def test_what_is_logged_is_acknowledged_soon(self, bench: Bench) -> None:
        ns = bench.make(FEW)
        with bench.reading(tail=True) as reading:
            bench.catch_up(reading, ns)
            bench.subject.insert(ns, [Row(i, f"added {i}") for i in range(20, 30)])
            bench.catch_up(reading, ns)
            assert reading.until(lambda: bench.subject.held_back() == 0, bench.patience), (
                bench.subject.held_back()
            )

    @aspect(Aspect.UPDATES, Can.TAIL, Can.UPDATES)
    def test_updates_come_as_whole_rows_in_their_order(self, bench: Bench) -> None:
        ns = bench.make(FEW)
        with bench.reading(tail=True) as reading:
            bench.catch_up(reading, ns)
            bench.follow(reading, ns)
            before = len(bench.log.of(ns))
            for i in range(20):
                bench.subject.update(ns, Row(3, f"changed {i}"))
            bench.catch_up(reading, ns)
        changes = bench.log.of(ns)[before:]
        texts = [bench.subject.row(message).text for message in changes]
        assert {message.op for message in changes} == {Op.UPDATE}
        assert texts[-1] == "changed 19"
        assert texts == sorted(texts, key=lambda text: int(text.split()[1])), (
            "an older state came behind a newer"
        )
        if bench.exact and Can.CLEAN in bench.subject.can:
            assert texts == [f"changed {i}" for i in range(20)]

    @aspect(Aspect.DELETES, Can.TAIL, Can.DELETES)
    def test_a_delete_comes_with_its_key(self, bench: Bench) -> None:
        ns = bench.make(FEW)
        with bench.reading(tail=True) as reading:
            bench.catch_up(reading, ns)
            bench.follow(reading, ns)
            bench.subject.delete(ns, 3)
            bench.catch_up(reading, ns)
        last = bench.log.of(ns)[-1]
        assert (last.op, bench.subject.row(last).id) == (Op.DELETE, 3)
        bench.check_consistent(ns)

    @aspect(Aspect.KEYS, Can.TAIL, Can.REKEYS)
    def test_a_change_of_the_key_is_one_update_with_the_key_before(self, bench: Bench) -> None:
        ns = bench.make(FEW)
        with bench.reading(tail=True) as reading:
            bench.catch_up(reading, ns)
            bench.follow(reading, ns)
            before = len(bench.log.of(ns))
            bench.subject.rekey(ns, 3, 33)
            bench.catch_up(reading, ns)
        (change,) = bench.log.of(ns)[before:]
        assert (change.op, bench.subject.old_id(change)) == (Op.UPDATE, 3)
        assert bench.subject.row(change) == Row(33, "row 3")
        assert change.key != change.old_key

    @aspect(Aspect.DELETES, Can.TAIL, Can.TRUNCATE)
    def test_emptying_a_namespace_is_one_command(self, bench: Bench) -> None:
        ns = bench.make(FEW)
        with bench.reading(tail=True) as reading:
            bench.catch_up(reading, ns)
            bench.follow(reading, ns)
            before = len(bench.log.of(ns))
            bench.subject.truncate(ns)
            bench.subject.insert(ns, [Row(50, "afterwards")])
            bench.catch_up(reading, ns)
        command, row = bench.log.of(ns)[before:]
        assert (command.op, msgspec.json.decode(command.data)) == (Op.COMMAND, {"command": "truncate"})
        assert bench.subject.row(row) == Row(50, "afterwards")

    @aspect(Aspect.RESTART, Can.TAIL, Can.RESTART)
    def test_tailing_goes_on_when_the_server_is_back(self, bench: Bench) -> None:
        ns = bench.make(FEW)
        with bench.reading(tail=True) as reading:
            bench.catch_up(reading, ns)
            bench.follow(reading, ns)
            bench.subject.insert(ns, [Row(20, "before")])
            bench.subject.stop_server()
            try:
                assert bench.away(reading), "a source that tails ends only if it is told to"
                with pytest.raises(AwayError) as caught:
                    bench.subject.adaptor(tail=True).source().namespaces()
                bench.check_secret(caught.value)
            finally:
                bench.subject.start_server()
        bench.subject.insert(ns, [Row(21, "after")])
        with bench.reading(tail=True) as reading:
            bench.catch_up(reading, ns)
        bench.check_copied(ns)

    @aspect(Aspect.PRESSURE, Can.TAIL, Can.SEVERAL)
    def test_changes_are_not_read_far_ahead_of_the_log(self, bench: Bench) -> None:
        ns = bench.make(FEW)
        with bench.reading(tail=True) as reading:
            bench.catch_up(reading, ns)
            bench.follow(reading, ns)
            before = at_rest()
            pour(bench, ns)
            assert reading.take(bench.patience) is not None
            ahead = grown(before, 3 * bench.subject.read_ahead)
            assert ahead < 3 * bench.subject.read_ahead, (
                f"{ahead >> 20} MiB are in memory, and nobody asked for them"
            )

    @aspect(Aspect.PRESSURE, Can.TAIL)
    def test_tailing_stops_quickly_while_nothing_happens(self, bench: Bench) -> None:
        ns = bench.make(FEW)
        with bench.reading(tail=True) as reading:
            bench.catch_up(reading, ns)
            reading.step(0.5)
            reading.stop()

    @aspect(Aspect.TYPES, Can.TAIL, Can.TYPES)
    def test_types_are_the_same_behind_the_copy(self, bench: Bench) -> None:
        typed = bench.subject.typed("tailtypes")
        bench.namespaces.add(typed.ns)
        typed.insert()
        with bench.reading(tail=True) as reading:
            assert reading.until(lambda: len(bench.log.messages) == 1, bench.patience)
            bench.follow(reading, typed.ns)
            typed.insert()
            assert reading.until(lambda: len(bench.log.messages) > 1, bench.patience)
        assert differing(bench.log.of(typed.ns)[-1], typed.expected) == {}

    @aspect(Aspect.SCHEMA, Can.TAIL, Can.FIELDS)
    def test_a_field_that_is_added_is_in_the_rows_behind_it(self, bench: Bench) -> None:
        ns = bench.make(FEW)
        with bench.reading(tail=True) as reading:
            bench.catch_up(reading, ns)
            bench.follow(reading, ns)
            bench.subject.insert(ns, [Row(20, "before")])
            bench.subject.add_field(ns)
            bench.subject.insert_extra(ns, Row(21, "after"), "more")
            bench.catch_up(reading, ns)
        last = bench.log.of(ns)[-1]
        assert msgspec.json.decode(last.data, type=dict[str, object])["extra"] == "more"
        schema = bench.log.schema(ns)
        if schema is not None:
            assert "extra" in [field.name for field in schema.fields]
            (told,) = [at for at, of, one in bench.log.schemas if of == ns and one == schema]
            assert told <= bench.log.messages.index(last), "the schema goes before the first row that has it"


def check_whole(bench: Bench, ns: str, before: int) -> None:
    """The messages of a namespace behind the first `before` are one piece, and nothing else is in it."""
    offsets = [offset for offset, message in enumerate(bench.log.messages) if message.ns == ns][before:]
    first, last = offsets[0], offsets[-1]
    cuts = [end for end in bench.log.ends if first < end <= last]
    assert not cuts, (
        f"a transaction of {last - first + 1} messages is cut behind {[c - first for c in cuts]} of them"
    )
    among = {message.ns for message in bench.log.messages[first : last + 1]}
    assert among == {ns}, f"messages of {sorted(among - {ns})} are among those of the transaction"


def _copy_to_follow(bench: Bench, ns: str) -> None:
    """Copy a namespace as one that will be followed: what that takes at the system is set up with the copy."""
    with bench.reading(tail=True) as reading:
        bench.catch_up(reading, ns)
        bench.follow(reading, ns)


def _handed_over(bench: Bench, ns: str) -> bool:
    """Whether a change that came behind the copy is logged."""
    if Can.COMES_TO_REST in bench.subject.can:
        return bench.log.mode(ns) is Mode.SYNC
    return any(id >= ADDED for id in bench.ids(ns))


def _crash_at_every_batch(bench: Bench, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + bench.patience
    while not done():
        assert time.monotonic() < deadline, f"the copy does not end within {bench.patience} s"
        with bench.reading(tail=True) as reading:
            reading.step(bench.patience)
