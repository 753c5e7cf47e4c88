"""The part of the battery for sources that is about the copy: all rows, once, whatever crashes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from penstock.base.errors import PenstockError
from penstock.log.message import MAX_MESSAGE_BYTES, Mode, Op
from penstock.testing.adaptors.aspects import Aspect, Conformance, aspect
from penstock.testing.adaptors.bench import FEW, Bench, at_rest, differing, grown, pour
from penstock.testing.adaptors.subject import Can, Row, SourceSubject

FEWEST_BATCHES = 3
MEGABYTE = 1024 * 1024


class CopyConformance(Conformance):
    """Everything about the copy."""

    side = "source"

    @pytest.fixture
    def bench(self, subject: SourceSubject) -> Iterator[Bench]:
        bench = Bench(subject)
        yield bench
        bench.release()

    @aspect(Aspect.COPY)
    def test_every_row_is_copied_once(self, bench: Bench) -> None:
        ns = bench.make(FEW)
        bench.copy(ns)
        bench.check_copied(ns)
        messages = bench.log.of(ns)
        assert {message.op for message in messages} == {Op.INSERT}
        assert all(message.ts > 1_500_000_000_000_000 for message in messages), "`ts` counts microseconds"
        told = [offset for offset, of, _ in bench.log.schemas if of == ns]
        assert told in ([], [0]), "a schema goes before the first row, and once"
        if bench.subject.key:
            keys = {message.key for message in messages}
            assert len(keys) == len(FEW)
            assert None not in keys

    @aspect(Aspect.COPY, Can.COMES_TO_REST)
    def test_the_end_of_a_copy_is_told_once(self, bench: Bench) -> None:
        ns = bench.make(FEW)
        bench.copy(ns)
        assert bench.log.completed == [ns]
        assert {message.mode for message in bench.log.of(ns)} == {Mode.COPY}
        assert ns in bench.log.resume(), "a source tells its position, so that the next start knows"

    @aspect(Aspect.COPY, Can.COMES_TO_REST)
    def test_an_empty_namespace_is_complete_without_a_message(self, bench: Bench) -> None:
        ns = bench.make()
        bench.copy(ns)
        assert bench.log.messages == []
        assert bench.log.completed == [ns]

    @aspect(Aspect.COPY, Can.NAMESPACES)
    def test_each_of_several_namespaces_is_copied(self, bench: Bench) -> None:
        made = [bench.make(FEW[: i + 2]) for i in range(3)]
        bench.copy(*made)
        for ns in made:
            bench.check_copied(ns)

    @aspect(Aspect.COPY, Can.NAMESPACES)
    def test_a_namespace_that_is_not_wanted_is_not_read(self, bench: Bench) -> None:
        wanted, other = bench.make(FEW), bench.make(FEW)
        bench.namespaces.discard(other)
        bench.copy(wanted)
        assert {message.ns for message in bench.log.messages} == {wanted}

    @aspect(Aspect.RESUME, Can.SEVERAL)
    def test_a_copy_goes_on_after_a_crash_at_any_batch(self, bench: Bench) -> None:
        """A crash with 0, 1, 2 … batches logged, and one more given that was not."""
        rows = bench.subject.several()
        logged = 0
        while True:
            bench.again()
            ns = bench.make(rows)
            with bench.reading() as reading:
                for _ in range(logged):
                    if len(set(bench.ids(ns))) < len(rows):
                        reading.step(bench.patience)
                lost = reading.take(bench.patience) if len(bench.ids(ns)) < len(rows) else None
            with bench.reading() as reading:
                bench.finish(reading, ns)
            bench.check_copied(ns)
            if lost is None:
                break
            logged += 1
        assert logged >= FEWEST_BATCHES, f"`several` of this subject makes only {logged} batches"

    @aspect(Aspect.RESUME, Can.SEVERAL)
    def test_a_copy_goes_on_after_a_crash_at_every_batch(self, bench: Bench) -> None:
        rows = bench.subject.several()
        ns = bench.make(rows)
        while bench.log.mode(ns) is Mode.COPY and (logged := len(set(bench.ids(ns)))) < len(rows):
            with bench.reading() as reading:
                moved = reading.until(partial(_moved, bench, ns, logged), bench.patience)
            assert moved, f"no new row in {bench.patience} s after {logged} of {len(rows)}"
        bench.copy(ns)
        bench.check_copied(ns)

    @aspect(Aspect.RESUME, Can.COMES_TO_REST)
    def test_a_finished_copy_is_not_begun_again(self, bench: Bench) -> None:
        ns = bench.make(FEW)
        bench.copy(ns)
        bench.copy(ns)
        assert len(bench.log.of(ns)) == len(FEW)
        assert bench.log.completed == [ns]

    @aspect(Aspect.RESTART, Can.SEVERAL, Can.RESTART)
    def test_a_copy_goes_on_when_the_server_is_back(self, bench: Bench) -> None:
        ns = bench.make(bench.subject.several())
        with bench.reading() as reading:
            reading.step(bench.patience)
            bench.subject.stop_server()
            try:
                bench.away(reading)
            finally:
                bench.subject.start_server()
        with bench.reading() as reading:
            bench.finish(reading, ns)
        bench.check_copied(ns)

    @aspect(Aspect.HUGE, Can.HUGE)
    def test_a_megabyte_and_nothing_are_texts_like_any_other(self, bench: Bench) -> None:
        ns = bench.make([Row(1, ""), Row(2, "ü" * (MEGABYTE // 2)), Row(3, 'a "quoted"\n\\ text\t☃ 𝄞')])
        bench.copy(ns)
        bench.check_copied(ns)

    @aspect(Aspect.HUGE, Can.OVERSIZE)
    def test_a_value_above_the_limit_is_an_error_that_names_its_namespace(self, bench: Bench) -> None:
        ns = bench.make([Row(1, "x" * (MAX_MESSAGE_BYTES + 1))])
        with bench.reading() as reading, pytest.raises(PenstockError, match=ns.rpartition(".")[2]):
            reading.to_the_end(bench.patience)
        assert bench.log.messages == []

    @aspect(Aspect.PRESSURE, Can.SEVERAL)
    def test_a_copy_is_not_read_far_ahead_of_the_log(self, bench: Bench) -> None:
        bench.copy(bench.make([Row(1, "of a first copy, for which libraries are loaded")]))
        bench.again()
        ns = bench.make()
        pour(bench, ns)
        before = at_rest()
        with bench.reading() as reading:
            assert reading.take(bench.patience) is not None
            ahead = grown(before, 3 * bench.subject.read_ahead)
        assert ahead < 3 * bench.subject.read_ahead, (
            f"{ahead >> 20} MiB are in memory, and nobody asked for them"
        )

    @aspect(Aspect.PRESSURE, Can.SEVERAL)
    def test_a_copy_stops_quickly(self, bench: Bench) -> None:
        bench.make(bench.subject.several())
        with bench.reading() as reading:
            reading.step(bench.patience)
            reading.stop()

    @aspect(Aspect.TYPES, Can.TYPES)
    def test_types_are_kept_by_the_copy(self, bench: Bench) -> None:
        typed = bench.subject.typed("types")
        bench.namespaces.add(typed.ns)
        typed.insert()
        with bench.reading() as reading:
            assert reading.until(lambda: bool(bench.log.messages), bench.patience)
        assert differing(bench.log.of(typed.ns)[0], typed.expected) == {}
        schema = bench.log.schema(typed.ns)
        told = {} if schema is None else {field.name: field.kind for field in schema.fields}
        assert {name: told.get(name) for name in typed.kinds} == dict(typed.kinds)


def _moved(bench: Bench, ns: str, logged: int) -> bool:
    return len(set(bench.ids(ns))) > logged or bench.log.mode(ns) is not Mode.COPY
