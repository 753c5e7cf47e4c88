"""Calls of the process that the broker is in: the same as over the socket, but for the way."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

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


def test_questions_are_answered_as_over_the_socket(client: Client, near: Client) -> None:
    client.create(journal_spec("other", 1 << 20, {}))
    client.append(JOURNAL, b"content")
    one = LabelSelector(include=labels.label_set({"name": JOURNAL}))
    for ask in (
        lambda of: of.list(),
        lambda of: of.list(one),
        lambda of: of.list(store_health=True),
        lambda of: of.head(JOURNAL),
        lambda of: of.begin(JOURNAL),
        lambda of: of.begin("other"),
        lambda of: of.metadata(JOURNAL, 3),
        lambda of: list(of.fragments(JOURNAL)),
        lambda of: list(of.fragments(JOURNAL, own=True)),
        lambda of: of.locate(JOURNAL, 0, 7),
        lambda of: of.heads(),
        lambda of: list(of.read(JOURNAL, 0)),
        lambda of: list(of.read(JOURNAL, 2, 5)),
        lambda of: of.read_bytes(JOURNAL, 0, 7),
        lambda of: of.read_bytes(JOURNAL, 4, 99),
        lambda of: of.read_bytes(JOURNAL, 7, 9),
        lambda of: of.wait(JOURNAL, 3, 5.0),
        lambda of: next(of.watch(timeout=30)),
    ):
        assert ask(near) == ask(client)


@pytest.mark.parametrize(
    "ask",
    [
        lambda of: of.head("none"),
        lambda of: of.begin("none"),
        lambda of: of.locate("none", 0, 1),
        lambda of: of.metadata(JOURNAL, -7),
        lambda of: of.read_bytes("none", 0, 1),
        lambda of: of.head("not a name/"),
        lambda of: list(of.fragments("not a name/")),
    ],
)
def test_questions_are_refused_in_the_same_words(
    client: Client, near: Client, ask: Callable[[Client], object]
) -> None:
    told = []
    for one in (client, near):
        with pytest.raises(PenstockError) as error:
            ask(one)
        told.append((type(error.value), error.value.message))
    assert told[0] == told[1]


def test_bytes_that_are_gone_are_missed_likewise(client: Client, near: Client) -> None:
    near.append(JOURNAL, b"gone")
    near.roll(JOURNAL)
    near.append(JOURNAL, b"there")
    near.trim(JOURNAL, 4)
    assert near.begin(JOURNAL) == client.begin(JOURNAL) == 4
    assert list(near.read(JOURNAL, 0, 9)) == list(client.read(JOURNAL, 0, 9)) == [(4, b"there")]
    for one in (client, near):
        with pytest.raises(PenstockError, match="gone"):
            one.read_bytes(JOURNAL, 0, 9)


def test_questions_need_no_socket_and_are_counted(broker: EmbeddedBroker, near: Client) -> None:
    assert broker._near is not None
    metrics = broker._near._broker.metrics
    operations = ("List", "Read", "ListFragments", "Locate")
    before = [(metrics.started[each], metrics.completed[each, "ok"]) for each in operations]
    near._homes.current.channel.close()
    near.append(JOURNAL, b"content")
    near.list()
    near.metadata(JOURNAL, 0)
    near.begin(JOURNAL)
    near.locate(JOURNAL, 0, 7)
    after = [(metrics.started[each], metrics.completed[each, "ok"]) for each in operations]
    assert after == [(started + 1, completed + 1) for started, completed in before]
    near.head(JOURNAL)
    assert metrics.completed["Read", "OFFSET_NOT_YET_AVAILABLE"] == 1


def test_what_comes_when_the_loop_has_just_ended_is_told_so(
    near: Client, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never_begun(work: Coroutine[Any, Any, object], loop: asyncio.AbstractEventLoop) -> Future[object]:
        work.close()
        return Future()

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", never_begun)
    with pytest.raises(TimedOutError):
        near.append(JOURNAL, b"late", timeout=0.01)
    broker.stop()
    with pytest.raises(BrokerGoneError, match="stops") as error:
        near.append(JOURNAL, b"late")
    assert not error.value.harmless


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
    with pytest.raises(BrokerGoneError, match="has stopped"):
        near.head(JOURNAL)
