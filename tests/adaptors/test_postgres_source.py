"""The PostgreSQL source against a real server: the conformance kit."""

from __future__ import annotations

import pytest
from tests.adaptors.postgres_subject import PostgresSubject
from tests.servers.postgres import PostgresServer

from penstock.adaptors.postgres import run as postgres_run
from penstock.testing.adaptors import SourceConformance

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
