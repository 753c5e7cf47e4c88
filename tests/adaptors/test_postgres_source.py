"""The PostgreSQL source against a real server: the conformance kit."""

from __future__ import annotations

import pytest
from tests.adaptors.postgres_subject import PostgresSubject
from tests.servers.postgres import PostgresServer

from penstock.adaptors.postgres import run as postgres_run
from penstock.testing.adaptors import SourceConformance
from penstock.testing.adaptors.bench import FEW, Bench
from penstock.testing.adaptors.subject import Row

pytestmark = pytest.mark.xdist_group("postgres")


@pytest.fixture(scope="module")
def database(postgres_server: PostgresServer) -> str:
    postgres_server.database("source_kit")
    return "source_kit"


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_run, "LOOK_SECONDS", 0.5)
    monkeypatch.setattr(postgres_run, "BACK_SECONDS", 0.5)
    monkeypatch.setattr(postgres_run, "NOTE_SECONDS", 0.5)


class TestPostgresSource(SourceConformance):
    @pytest.fixture
    def subject(self, postgres_server: PostgresServer, database: str) -> PostgresSubject:
        return PostgresSubject(postgres_server, database)

    def test_a_namespace_that_is_followed_does_not_wait_for_the_copy_of_another(self, bench: Bench) -> None:
        """As in the kit, but that a table which is to be followed is copied with `tail`: the slot must be there."""
        first = bench.make(FEW)
        with bench.reading(tail=True) as reading:
            bench.catch_up(reading, first)
            bench.follow(reading, first)
        second = bench.make(bench.subject.several())
        bench.subject.insert(first, [Row(100, "behind the copy")])
        with bench.reading(tail=True) as reading:
            bench.catch_up(reading, first)
            bench.catch_up(reading, second)
        bench.check_copied(first)
        bench.check_copied(second)
