"""The record of what operators did to journals and connectors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.journal import upkeep
from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.log import audit
from penstock.log.audit import JOURNAL, Deed, deeds, note
from penstock.log.journals import extent, journal_spec


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
        yield client


def deed(number: int, journal: str = "shop/orders") -> Deed:
    return Deed(number, "anna@laptop", "suspend", journal, "suspended (FULL)")


def test_looking_makes_nothing_and_deeds_come_in_their_order(client: Client) -> None:
    assert deeds(client) == []
    assert client.list() == []
    assert [note(client, deed(n, f"j{n % 2}")) for n in range(4)] == [None] * 4
    assert deeds(client) == [deed(n, f"j{n % 2}") for n in range(4)]
    assert [one.time for one in deeds(client, "j1")] == [1, 3]
    assert audit.told(client, 1, "j0") == audit.Told((deed(2, "j0"),))
    assert audit.told(client, 5, action="migrate").deeds == ()


def test_the_record_is_to_be_as_safe_as_what_it_is_about_and_says_if_it_is_not(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "_PATIENCE", 0.1)
    spec = journal_spec("shop/orders", 1 << 20, {})
    spec.replication = 3
    spec.fragment.stores[:] = ["file:///elsewhere/"]
    told = note(client, deed(0), spec)
    assert told is not None
    assert told.startswith("what was done to shop/orders could not be put on record: ")
    assert "INSUFFICIENT_JOURNAL_BROKERS" in told
    assert audit.told(client, 5).problem is not None
    made = upkeep.named(client, JOURNAL)
    assert made is not None
    assert (made.spec.replication, list(made.spec.fragment.stores)) == (3, ["file:///elsewhere/"])


def test_only_the_newest_part_is_kept(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "_SEGMENT_BYTES", 2048)
    monkeypatch.setattr(audit, "_ROOM", 4096)
    for number in range(200):
        assert note(client, deed(number)) is None
    found = [one.time for one in deeds(client)]
    assert found == list(range(found[0], 200))
    assert 4096 <= extent(client, JOURNAL).size <= 4096 + 2 * 2048
