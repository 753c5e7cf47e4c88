"""Appends of the process that the broker is in: the same as over the socket, but for the way."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.base.errors import PenstockError
from penstock.journal import labels
from penstock.journal.client import (
    BrokerGoneError,
    Client,
    JournalError,
    RegisterMismatchError,
    TimedOutError,
)
from penstock.journal.embedded import EmbeddedBroker
from penstock.journal.protocol import LabelSelector
from penstock.log.commitlog import journal_spec

from .brokers import JOURNAL, Gate, HookedDisk, everything


@pytest.fixture
def near(broker: EmbeddedBroker, client: Client) -> Iterator[Client]:
    with broker.client() as near:
        yield near


def test_an_append_lands_whole_behind_those_that_came_over_the_socket(client: Client, near: Client) -> None:
    large = os.urandom(5 << 20)
    assert client.append(JOURNAL, b"one").end == 3
    landed = near.append(JOURNAL, [b"two", large, b"", bytearray(b"three")])
    assert (landed.begin, landed.end) == (3, 3 + 3 + len(large) + 5)
    assert client.append(JOURNAL, b"four").begin == landed.end
    assert everything(client) == b"onetwo" + large + b"threefour"


def test_registers_are_checked_and_changed(client: Client, near: Client) -> None:
    mine = labels.label_set({"epoch": "1"})
    assert near.append(JOURNAL, b"claim", union=mine).registers == mine
    assert near.append(JOURNAL, (), check=LabelSelector(include=mine)).registers == mine
    other = LabelSelector(include=labels.label_set({"epoch": "2"}))
    with pytest.raises(RegisterMismatchError) as error:
        near.append(JOURNAL, b"no", check=other)
    assert error.value.registers == mine
    assert everything(client) == b"claim"


def test_what_cannot_be_is_refused_in_the_same_words(client: Client, near: Client) -> None:
    for one in (client, near):
        with pytest.raises(JournalError, match="JOURNAL_NOT_FOUND"):
            one.append("none", b"content")
        with pytest.raises(PenstockError, match="the broker refused"):
            one.append("not a name/", b"content")


def test_appends_are_counted_as_others_are(broker: EmbeddedBroker, client: Client, near: Client) -> None:
    assert broker._near is not None
    metrics = broker._near._broker.metrics
    before = metrics.started["Append"], metrics.completed["Append", "ok"]
    client.append(JOURNAL, b"far")
    near.append(JOURNAL, b"near")
    with pytest.raises(JournalError):
        near.append("none", b"content")
    assert (metrics.started["Append"], metrics.completed["Append", "ok"]) == (before[0] + 3, before[1] + 2)
    assert metrics.completed["Append", "JOURNAL_NOT_FOUND"] == 1


def test_of_a_disk_that_is_full_the_appender_hears_and_goes_on_later(tmp_path: Path) -> None:
    disk = HookedDisk()

    def full(step: str, path: Path) -> None:
        if step == "write":
            raise OSError(errno.ENOSPC, "No space left on device")

    with EmbeddedBroker(tmp_path / "data", disk=disk) as broker, broker.client() as near:
        near.create(journal_spec(JOURNAL, 1 << 20, {}))
        near.append(JOURNAL, b"before")
        disk.before = full
        with pytest.raises(PenstockError, match="No space left"):
            near.append(JOURNAL, bytes(1 << 20))
        disk.before = lambda step, path: None
        assert near.append(JOURNAL, b"after").begin == 6
        assert everything(near) == b"beforeafter"


def test_an_append_that_takes_too_long_is_in_doubt(tmp_path: Path) -> None:
    disk, gate = HookedDisk(), Gate()
    with EmbeddedBroker(tmp_path / "data", disk=disk) as broker, broker.client() as near:
        near.create(journal_spec(JOURNAL, 1 << 20, {}))
        near.append(JOURNAL, b"before")
        disk.before = lambda step, path: gate.wait() if step == "sync" else None
        with pytest.raises(TimedOutError, match="in time"):
            near.append(JOURNAL, b"slow", timeout=0.1)
        gate.open()
        assert near.append(JOURNAL, b"after").begin in (6, 10)


def test_a_broker_that_has_stopped_takes_nothing(broker: EmbeddedBroker, near: Client) -> None:
    broker.stop()
    with pytest.raises(BrokerGoneError, match="has stopped") as error:
        near.append(JOURNAL, b"late")
    assert error.value.harmless
