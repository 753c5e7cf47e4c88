"""The battery for sources: subclass `SourceConformance` in a test module, and give it a fixture `subject`.

    class TestPostgres(SourceConformance):
        @pytest.fixture
        def subject(self, postgres: Server) -> PostgresSubject:
            return PostgresSubject(postgres)

Everything goes through `Source` itself and a model of the log (`model.py`) that crashes where a test says so.
"""

from __future__ import annotations

import pytest

from penstock.adaptors.base import Adaptor
from penstock.base.errors import AwayError, UsageError
from penstock.testing.adaptors.aspects import Aspect, aspect
from penstock.testing.adaptors.bench import FEW, Bench
from penstock.testing.adaptors.model import Log, Reading
from penstock.testing.adaptors.source_tail import TailConformance
from penstock.testing.adaptors.subject import Can, Row


class SourceConformance(TailConformance):
    """The whole battery."""

    @aspect(Aspect.ERRORS)
    def test_inspect_finds_namespaces_and_keys(self, bench: Bench) -> None:
        ns = bench.make(FEW)
        source = bench.subject.adaptor(tail=False).source()
        source.use(source.copier, "kit.source")
        found = {one.ns: one for one in source.inspect(lambda ns: ns in bench.namespaces).namespaces}
        assert ns in found
        assert ns in source.namespaces()
        assert (found[ns].rows or 0) >= 0
        assert list(found[ns].key) == list(bench.subject.key)

    @aspect(Aspect.ERRORS, Can.CONNECTS)
    def test_settings_that_are_wrong_are_told_apart_from_a_server_that_is_away(
        self, bench: Bench, caplog: pytest.LogCaptureFixture
    ) -> None:
        cases = bench.subject.misconfigured()
        assert cases
        for what, adaptor in cases.items():
            with pytest.raises((UsageError, AwayError)) as caught:
                adaptor.source().namespaces()
            bench.check_secret(caught.value)
            with pytest.raises((UsageError, AwayError)) as caught:
                _read(adaptor, bench.patience)
            bench.check_secret(caught.value)
            assert caught.value.message, what
        assert not bench.subject.secret or bench.subject.secret not in caplog.text

    @aspect(Aspect.ERRORS)
    def test_release_takes_away_what_was_set_up_and_may_be_repeated(self, bench: Bench) -> None:
        ns = bench.make(FEW)
        tail = Can.TAIL in bench.subject.can
        with bench.reading(tail=tail) as reading:
            bench.catch_up(reading, ns)
        set_up = list(bench.subject.leftovers())
        source = bench.subject.adaptor(tail=tail).source()
        source.use(source.copier, "kit.source")
        told = " ".join(source.release())
        assert list(bench.subject.leftovers()) == []
        assert [name for name in set_up if name not in told] == [], "it tells what it took away"
        assert list(source.release()) == []

    @aspect(Aspect.ERRORS, Can.TAIL)
    def test_behind_a_release_nothing_is_passed_over_in_silence(self, bench: Bench) -> None:
        """It goes on exactly, or refuses to and says what to copy anew."""
        ns = bench.make(FEW)
        with bench.reading(tail=True) as reading:
            bench.catch_up(reading, ns)
            bench.follow(reading, ns)
        bench.release()
        bench.subject.insert(ns, [Row(20, "meanwhile")])
        refused: UsageError | None = None
        with bench.reading(tail=True) as reading:
            try:
                bench.catch_up(reading, ns)
            except UsageError as error:
                refused = error
        if refused is None:
            bench.check_copied(ns)
        else:
            assert f"penstock backfill {ns}" in f"{refused.message} {refused.hint}"


def _read(adaptor: Adaptor, patience: float) -> None:
    with Reading(adaptor, Log(), lambda ns: True) as reading:
        reading.to_the_end(patience)
