"""The part of the battery for sinks that is about delivery: everything arrives, and once, whatever crashes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from penstock.base.errors import PenstockError
from penstock.log.message import Message, Op
from penstock.testing.adaptors.aspects import Aspect, Conformance, aspect
from penstock.testing.adaptors.delivery import Delivery, message
from penstock.testing.adaptors.subject import Can, Holds, Row, SinkSubject


@dataclass
class Target:
    """One test of a sink: its messages, and what the target must then hold."""

    subject: SinkSubject
    scratch: Path
    delivery: Delivery = field(init=False)

    def __post_init__(self) -> None:
        self.delivery = Delivery(self.subject, self.scratch)

    def make(self) -> str:
        return self.subject.make(f"k{uuid.uuid4().hex[:8]}")

    def deliver(self, *messages: Message) -> None:
        """Log and deliver in one batch; nothing may be refused."""
        if self.delivery.end == 0:
            self.delivery.open()
        self.delivery.add(*messages)
        assert self.delivery.deliver() == []

    def other_log(self) -> Delivery:
        return Delivery(self.subject, self.scratch)

    def check(self, ns: str) -> None:
        """The target holds what was logged, and nothing else."""
        self.check_holds(ns, [one for one in self.delivery.messages if one.ns == ns])

    def check_holds(self, ns: str, messages: Sequence[Message]) -> None:
        """The target holds what these messages come to. Where it keeps each message, and may do so twice, none less."""
        self.subject.settle()
        wanted, found = list(self.subject.expected(messages)), list(self.subject.contents(ns))
        if self.subject.holds is Holds.ROWS:
            assert sorted(found) == sorted(wanted)
        elif Can.EXACT in self.subject.can:
            assert found == wanted
        else:
            assert _without_repeats(found, wanted) == wanted

    def check_secret(self, error: PenstockError) -> None:
        if self.subject.secret:
            shown = f"{error} {error.hint} {error.__cause__}"
            assert self.subject.secret not in shown, f"a password is in the text of {type(error).__name__}"


def _without_repeats(found: Sequence[Row], wanted: Sequence[Row]) -> list[Row]:
    """What was found, but for ranges that came again: a message may be repeated, the last word may not change.

    For each row that was wanted so often, its last so many appearances count; and in their order.
    """
    left = {row: list(wanted).count(row) for row in wanted}
    kept: list[Row] = []
    for row in reversed(found):
        assert row in left, f"{row} is in the target, and was never sent"
        if left[row]:
            left[row] -= 1
            kept.append(row)
    return kept[::-1]


class OnceConformance(Conformance):
    """Everything arrives."""

    side = "sink"

    @pytest.fixture
    def target(self, subject: SinkSubject, tmp_path: Path) -> Iterator[Target]:
        target = Target(subject, tmp_path / "scratch")
        target.scratch.mkdir()
        yield target
        target.delivery.close()

    @aspect(Aspect.WRITE)
    def test_rows_arrive(self, target: Target) -> None:
        ns = target.make()
        target.deliver(*_rows(ns, 0, 100))
        target.deliver(*_rows(ns, 100, 150))
        target.check(ns)

    @aspect(Aspect.WRITE, Can.NAMESPACES)
    def test_each_namespace_has_its_own_rows(self, target: Target) -> None:
        one, two = target.make(), target.make()
        target.deliver(
            *(each for i in range(20) for each in (message(one, i, "one"), message(two, i, f"two {i}")))
        )
        target.check(one)
        target.check(two)

    @aspect(Aspect.WRITE)
    def test_nothing_is_visible_before_it_is_published(self, target: Target) -> None:
        ns = target.make()
        target.delivery.open()
        target.delivery.add(*_rows(ns, 0, 10))
        staged = target.delivery.stage()
        target.check_holds(ns, [])
        target.delivery.publish(staged)
        target.delivery.commit()
        target.check(ns)

    @aspect(Aspect.WRITE)
    def test_a_report_counts_what_was_staged(self, target: Target) -> None:
        ns = target.make()
        target.delivery.open()
        target.delivery.add(*_rows(ns, 0, 10))
        staged = target.delivery.stage(parts=2)
        assert [(part.rows, part.messages, part.first, part.last) for part in staged] == [
            (5, 5, 0, 4),
            (5, 5, 5, 9),
        ]
        assert [dict(part.namespaces) for part in staged] == [{ns: 4}, {ns: 9}]
        assert all(part.ordered for part in staged)

    @aspect(Aspect.WRITE)
    def test_an_empty_batch_moves_the_position_alone(self, target: Target) -> None:
        ns = target.make()
        target.deliver(*_rows(ns, 0, 5))
        (empty,) = target.delivery.stage(target.delivery.end, target.delivery.end, parts=1)
        assert (empty.rows, empty.first, empty.last) == (0, -1, -1)
        target.delivery.publish([empty], end=9)  # as behind messages that a function dropped
        target.delivery.watermark = 9
        held = target.delivery.reopen()
        assert held is None or held == target.delivery.position
        target.check(ns)

    @aspect(Aspect.ONCE)
    def test_what_is_staged_when_a_crash_comes_does_no_harm(self, target: Target) -> None:
        ns = target.make()
        target.deliver(*_rows(ns, 0, 5))
        target.delivery.add(*_rows(ns, 5, 20))
        target.delivery.stage()
        target.delivery.reopen()
        target.check_holds(ns, target.delivery.messages[:5])
        target.delivery.deliver()
        target.check(ns)

    @aspect(Aspect.ONCE)
    def test_a_crash_before_the_offset_log_moves_repeats_the_batch_without_harm(self, target: Target) -> None:
        ns = target.make()
        target.deliver(*_rows(ns, 0, 5))
        target.delivery.add(*_rows(ns, 5, 20))
        target.delivery.publish(target.delivery.stage())
        held = target.delivery.reopen()
        assert held is None or held.watermark == 20, "the position inside the target moves with the rows"
        target.delivery.add(*_rows(ns, 20, 30))
        target.delivery.deliver()
        target.check(ns)

    @aspect(Aspect.ONCE, Can.UPDATES, Can.DELETES)
    def test_a_repeated_batch_of_changes_comes_to_the_same(self, target: Target) -> None:
        ns = target.make()
        target.deliver(*_rows(ns, 0, 5))
        target.delivery.add(
            message(ns, 7, "new"),
            message(ns, 1, "changed", Op.UPDATE),
            message(ns, 2, "row 2", Op.DELETE),
            message(ns, 7, "row 7", Op.DELETE),
            message(ns, 2, "back"),
        )
        target.delivery.publish(target.delivery.stage())
        target.delivery.reopen()
        target.delivery.deliver(parts=2)
        target.check(ns)

    @aspect(Aspect.ONCE)
    def test_two_attempts_of_each_task_count_once(self, target: Target) -> None:
        ns = target.make()
        target.delivery.open()
        target.delivery.add(*_rows(ns, 0, 30))
        assert target.delivery.deliver(attempts=2) == []
        target.check(ns)

    @aspect(Aspect.ONCE)
    def test_other_boundaries_after_a_crash_do_no_harm(self, target: Target) -> None:
        """A batch is recognised by its offsets: the one after a crash may begin before what the target has."""
        ns = target.make()
        target.deliver(*_rows(ns, 0, 5))
        target.delivery.add(*_rows(ns, 5, 20))
        target.delivery.publish(target.delivery.stage(end=12), end=12)
        target.delivery.reopen()
        target.delivery.deliver(parts=1)
        target.check(ns)

    @aspect(Aspect.ONCE)
    def test_crashes_at_every_step_lose_nothing(self, target: Target) -> None:
        ns = target.make()
        target.delivery.open()
        for turn in range(8):
            target.delivery.add(*_rows(ns, turn * 5, turn * 5 + 5))
            staged = target.delivery.stage(parts=2)
            if turn % 4 >= 1:
                target.delivery.publish(staged)
            if turn % 4 >= 2:
                target.delivery.commit()
            if turn % 4 <= 2:
                target.delivery.reopen()
        target.delivery.deliver()
        target.check(ns)

    @aspect(Aspect.ONCE)
    def test_an_older_range_comes_again_after_a_rewind(self, target: Target) -> None:
        """The operator wants it again: a new generation, in which the old position counts for nothing."""
        ns = target.make()
        target.deliver(*_rows(ns, 0, 20))
        target.delivery.rewind(10)
        held = target.delivery.open()
        assert held is None or held == target.delivery.position
        target.delivery.deliver()
        again = target.delivery.messages
        if target.subject.holds is Holds.MESSAGES:
            again = [*again, *again[10:]]
        target.check_holds(ns, again)
        held = target.delivery.reopen()
        assert held is None or held == target.delivery.position

    @aspect(Aspect.ONCE)
    def test_staging_that_was_abandoned_is_cleaned_up_by_open(self, target: Target) -> None:
        ns = target.make()
        target.deliver(*_rows(ns, 0, 5))
        target.delivery.add(*_rows(ns, 5, 20))
        target.delivery.stage(attempts=2)
        target.delivery.reopen()
        assert list(target.subject.leftovers()) == []
        staging = target.delivery.staging
        if not staging.is_relative_to(target.scratch):  # that one is the runner's
            assert [path for path in staging.rglob("*") if path.is_file()] == []

    @aspect(Aspect.ONCE)
    def test_nothing_is_left_behind_by_a_run_that_ends_in_order(self, target: Target) -> None:
        ns = target.make()
        target.deliver(*_rows(ns, 0, 20))
        target.delivery.close()
        assert list(target.subject.leftovers()) == []
        target.delivery.reopen()
        target.deliver(*_rows(ns, 20, 30))
        target.check(ns)


def _rows(ns: str, begin: int, end: int) -> list[Message]:
    return [message(ns, i, f"row {i}") for i in range(begin, end)]
