"""The battery for sinks: subclass `SinkConformance` in a test module, and give it a fixture `subject`.

    class TestPostgresSink(SinkConformance):
        @pytest.fixture
        def subject(self, postgres: Server) -> PostgresTarget:
            return PostgresTarget(postgres)

Everything goes through `Stager` and `Publisher` themselves, driven as the runner drives them (`delivery.py`).
"""

from __future__ import annotations

import msgspec
import pytest

from penstock.adaptors.base import Guarantee, SinkPosition
from penstock.base.errors import AwayError, RefusedError, UsageError
from penstock.log.message import Message, Op
from penstock.log.schema import Field, Kind, Schema
from penstock.testing.adaptors.aspects import Aspect, aspect
from penstock.testing.adaptors.delivery import ROWS, GivenSchemas, message, truncate
from penstock.testing.adaptors.sink_once import OnceConformance, Target
from penstock.testing.adaptors.subject import Can

MEGABYTE = 1024 * 1024
BAD = 666


class SinkConformance(OnceConformance):
    """The whole battery."""

    @aspect(Aspect.UPDATES, Can.UPDATES)
    def test_updates_of_a_row_leave_the_last_one(self, target: Target) -> None:
        ns = target.make()
        target.deliver(*(message(ns, i, "first") for i in range(5)))
        target.deliver(*(message(ns, i % 5, f"then {i}", Op.UPDATE) for i in range(50)))
        target.check(ns)

    @aspect(Aspect.UPDATES, Can.UPDATES)
    def test_an_update_of_a_row_that_is_not_there_is_taken(self, target: Target) -> None:
        """As after a function that drops inserts, or a backfill that began in the middle."""
        ns = target.make()
        target.deliver(message(ns, 1, "new", Op.UPDATE))
        target.check(ns)

    @aspect(Aspect.DELETES, Can.DELETES)
    def test_deletes_leave_nothing_of_a_row(self, target: Target) -> None:
        ns = target.make()
        target.deliver(*(message(ns, i, f"row {i}") for i in range(6)))
        target.deliver(message(ns, 2, "row 2", Op.DELETE), message(ns, 4, "row 4", Op.DELETE))
        target.check(ns)

    @aspect(Aspect.DELETES, Can.DELETES)
    def test_a_row_that_is_made_deleted_and_made_again_in_one_batch_is_there(self, target: Target) -> None:
        ns = target.make()
        target.deliver(
            message(ns, 1, "old"),
            message(ns, 1, "old", Op.DELETE),
            message(ns, 1, "new"),
            message(ns, 2, "gone"),
            message(ns, 2, "gone", Op.DELETE),
        )
        target.check(ns)

    @aspect(Aspect.DELETES, Can.DELETES)
    def test_a_delete_of_a_row_that_is_not_there_does_no_harm(self, target: Target) -> None:
        ns = target.make()
        target.deliver(message(ns, 1, "row 1"), message(ns, 9, "", Op.DELETE), message(ns, 2, "row 2"))
        target.check(ns)

    @aspect(Aspect.KEYS, Can.REKEYS)
    def test_a_change_of_the_key_leaves_nothing_under_the_old_one(self, target: Target) -> None:
        ns = target.make()
        target.deliver(*(message(ns, i, f"row {i}") for i in range(5)))
        target.deliver(
            message(ns, 12, "row 2", Op.UPDATE, was=2),
            message(ns, 2, "another", Op.INSERT),
            message(ns, 13, "row 3", Op.UPDATE, was=3),
            message(ns, 13, "row 3, changed", Op.UPDATE),
        )
        target.check(ns)

    @aspect(Aspect.KEYS, Can.REKEYS)
    def test_rows_may_swap_their_keys(self, target: Target) -> None:
        ns = target.make()
        target.deliver(message(ns, 1, "one"), message(ns, 2, "two"))
        target.deliver(
            message(ns, 99, "one", Op.UPDATE, was=1),
            message(ns, 1, "two", Op.UPDATE, was=2),
            message(ns, 2, "one", Op.UPDATE, was=99),
        )
        target.check(ns)

    @aspect(Aspect.DELETES, Can.TRUNCATE)
    def test_a_truncate_empties_its_namespace_and_no_other(self, target: Target) -> None:
        ns, other = target.make(), target.make()
        target.deliver(message(ns, 1, "gone"), message(other, 1, "stays"))
        target.deliver(message(ns, 2, "gone"), truncate(ns), message(ns, 3, "afterwards"))
        target.check(ns)
        target.check(other)

    @aspect(Aspect.REFUSALS, Can.REFUSES)
    def test_a_row_that_the_target_cannot_take_is_reported_and_none_is_lost(self, target: Target) -> None:
        """By its offset when it is staged; or else the bulk is refused as a whole, and then message by message."""
        ns = target.make()
        bad = Message(ns, target.subject.bad(ns), Op.INSERT, 0, key=msgspec.json.encode({"id": BAD}))
        good = [message(ns, i, f"row {i}") for i in range(6)]
        messages = [*good[:3], bad, *good[3:]]
        target.delivery.add(*messages)
        target.delivery.open()
        try:
            refused = [refusal.offset for refusal in target.delivery.deliver()]
        except RefusedError:
            target.delivery.reopen()
            target.check_holds(ns, [])
            refused = _one_at_a_time(target)
        assert refused == [3]
        target.check_holds(ns, good)

    @aspect(Aspect.TYPES, Can.TYPES)
    def test_types_arrive_as_they_are(self, target: Target) -> None:
        typed = target.subject.typed("types")
        target.delivery.schemas[typed.ns] = typed.schema
        target.delivery.add(Message(typed.ns, typed.data, key=typed.key))
        target.delivery.open()
        assert target.delivery.deliver() == []
        target.subject.settle()
        found = typed.read()
        differing = {
            name: found.get(name) for name in typed.expected if found.get(name) != typed.expected[name]
        }
        assert differing == {}, f"expected { ({name: typed.expected[name] for name in differing}) }"

    @aspect(Aspect.HUGE, Can.HUGE)
    def test_a_megabyte_and_nothing_are_texts_like_any_other(self, target: Target) -> None:
        ns = target.make()
        texts = ["", "ü" * (MEGABYTE // 2), 'a "quoted"\n\\ text\t☃ 𝄞', "null", "{}", "a,b;c|d", "\\N", "'--"]
        target.deliver(*(message(ns, i, text) for i, text in enumerate(texts)))
        target.check(ns)

    @aspect(Aspect.SCHEMA, Can.FIELDS)
    def test_a_field_that_is_added_in_mid_stream_arrives(self, target: Target) -> None:
        ns = target.make()
        target.deliver(message(ns, 1, "before"))
        target.delivery.schemas[ns] = Schema((*ROWS.fields, Field("extra", Kind.STRING)), ROWS.key)
        target.deliver(message(ns, 2, "after", extra="more"))
        target.check(ns)
        assert target.subject.extra(ns, 2) == "more"

    @aspect(Aspect.RESTART, Can.RESTART)
    def test_a_server_that_goes_away_is_waited_for(self, target: Target) -> None:
        ns = target.make()
        target.deliver(*(message(ns, i, f"row {i}") for i in range(10)))
        target.delivery.add(*(message(ns, i, f"row {i}") for i in range(10, 20)))
        staged = target.delivery.stage()
        target.subject.stop_server()
        try:
            with pytest.raises(AwayError) as caught:
                target.delivery.publish(staged)
            target.check_secret(caught.value)
            with pytest.raises(AwayError) as caught:
                target.delivery.reopen()
            target.check_secret(caught.value)
        finally:
            target.subject.start_server()
        target.delivery.reopen_when_back()
        target.delivery.deliver()
        target.check(ns)

    @aspect(Aspect.ERRORS, Can.CONNECTS)
    def test_settings_that_are_wrong_are_told_apart_from_a_server_that_is_away(
        self, target: Target, caplog: pytest.LogCaptureFixture
    ) -> None:
        cases = target.subject.misconfigured()
        assert cases
        for adaptor in cases.values():
            sink = adaptor.sink()
            sink.use(GivenSchemas({}, ROWS), "kit.sink")
            publisher = sink.publisher()
            with pytest.raises((UsageError, AwayError)) as caught:
                publisher.open(SinkPosition("some log", 0, 0))
            publisher.close()
            target.check_secret(caught.value)
        assert not target.subject.secret or target.subject.secret not in caplog.text

    @aspect(Aspect.ERRORS, Can.CLAIMS)
    def test_a_target_that_another_log_wrote_is_refused(self, target: Target) -> None:
        ns = target.make()
        target.deliver(message(ns, 1, "ours"))
        target.delivery.close()
        stranger = target.other_log()
        stranger.add(message(ns, 1, "theirs"))
        with pytest.raises(UsageError):
            stranger.open()
        stranger.crash()
        target.check(ns)

    @aspect(Aspect.ERRORS)
    def test_inspect_has_nothing_to_say_against_a_good_target(self, target: Target) -> None:
        ns = target.make()
        for namespaces in (None, [ns], []):
            found = target.delivery.sink.inspect(namespaces)
            assert [finding for finding in found if finding.fatal] == []

    @aspect(Aspect.ERRORS)
    def test_what_the_sink_says_of_itself_is_what_the_subject_says(self, target: Target) -> None:
        exact = target.delivery.sink.guarantee is Guarantee.EXACTLY_ONCE
        assert exact == (Can.EXACT in target.subject.can)


def _one_at_a_time(target: Target) -> list[int]:
    """As the runner does with a range that was refused as a whole; tells which messages were refused again."""
    delivery, refused = target.delivery, []
    for offset in range(delivery.watermark, delivery.end):
        staged = delivery.stage(offset, offset + 1, parts=1)
        if staged[0].refused:
            refused.append(offset)
        else:
            try:
                delivery.publish(staged, offset + 1)
            except RefusedError:
                refused.append(offset)
                delivery.reopen()
        delivery.commit(offset + 1)
    return refused
