"""The logs when things go wrong: appends in doubt, holes, caches that cannot be written, records too large."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.base.disk import Buffer
from penstock.base.errors import CorruptError, UsageError
from penstock.journal.client import Appended, BrokerGoneError, Client, JournalError
from penstock.journal.embedded import EmbeddedBroker
from penstock.journal.protocol import Status
from penstock.log import commitlog, offsets, positions, walking
from penstock.log import record as rec
from penstock.log.commitlog import CommitLog, LogReader, MessageTooLargeError
from penstock.log.journals import Extent
from penstock.log.message import ByteOffset, Message, Mode, Op
from penstock.log.offsets import Commit, OffsetLog
from penstock.log.ownership import FencedError, InDoubtError
from penstock.log.positions import LogCache, LogPoint
from penstock.log.record import Record

NOW = 1_700_000_000_000_000


def a_log(client: Client, tmp_path: Path, segment: int = 1 << 20) -> CommitLog:
    return CommitLog(client, "shop", tmp_path / "index", segment, NOW)


def some(count: int, size: int = 10) -> list[Message]:
    return [Message("orders", b'{"n":%d,"pad":"%s"}' % (i, b"x" * size), ts=NOW + i) for i in range(count)]


class Flaky:
    """Makes the appends of a client fail after they have landed, or before they are sent."""

    def __init__(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real = client.append
        self.lands = False
        self.error: Exception | None = None
        monkeypatch.setattr(client, "append", self._append)

    def _append(self, journal: str, content: Buffer | Sequence[Buffer], **options: Any) -> Appended:
        if self.error is None:
            return self._real(journal, content, **options)
        error, self.error = self.error, None
        if self.lands:
            self._real(journal, content, **options)
        raise error


@pytest.fixture
def flaky(client: Client, monkeypatch: pytest.MonkeyPatch) -> Flaky:
    return Flaky(client, monkeypatch)


@pytest.mark.parametrize("lands", [True, False])
def test_after_an_append_in_doubt_nothing_is_appended_before_a_new_claim(
    client: Client, tmp_path: Path, flaky: Flaky, lands: bool
) -> None:
    """A repeated append would write the same offsets twice if the first one has landed after all."""
    log = a_log(client, tmp_path)
    log.append(some(2), {"orders": {"id": 2}}, [], NOW)
    flaky.lands, flaky.error = lands, BrokerGoneError("gone in the middle of an append")
    with pytest.raises(BrokerGoneError):
        log.append(some(1), {"orders": {"id": 3}}, [], NOW)
    with pytest.raises(InDoubtError, match="gone in the middle"):
        log.append(some(1), {"orders": {"id": 3}}, [], NOW)
    again = a_log(client, tmp_path)
    assert again.point.offset == (3 if lands else 2)
    assert again.resume()["orders"].position == {"id": 3 if lands else 2}
    assert again.append(some(1), {}, [], NOW).offset == again.point.offset
    with pytest.raises(InDoubtError):
        log.append(some(1), {}, [], NOW)


def test_an_append_that_the_broker_refused_by_status_is_not_in_doubt(
    client: Client, tmp_path: Path, flaky: Flaky
) -> None:
    log = a_log(client, tmp_path)
    flaky.error = JournalError(log.journal, Status.NOT_ALLOWED)
    with pytest.raises(JournalError):
        log.append(some(1), {}, [], NOW)
    assert log.append(some(1), {}, [], NOW).offset == 1


def test_a_commit_in_doubt_is_settled_by_a_new_claim_before_the_next_one(
    client: Client, flaky: Flaky
) -> None:
    log = OffsetLog(client, "shop", "audit", NOW)
    log.commit(Commit(watermark=3), {"a": 2}, NOW)
    flaky.lands, flaky.error = False, BrokerGoneError("gone")
    with pytest.raises(BrokerGoneError):
        log.commit(Commit(watermark=5), {"a": 4}, NOW)
    log.commit(Commit(watermark=5), {"a": 4}, NOW)
    assert offsets.load(client, "shop", "audit").commit == Commit(watermark=5)
    assert log.state == offsets.load(client, "shop", "audit")


def test_a_commit_in_doubt_that_landed_is_told_before_anything_is_built_on_the_old_one(
    client: Client, flaky: Flaky
) -> None:
    log = OffsetLog(client, "shop", "audit", NOW)
    log.commit(Commit(watermark=3, delivered=3), {"a": 2}, NOW)
    flaky.lands, flaky.error = True, BrokerGoneError("gone")
    with pytest.raises(BrokerGoneError):
        log.commit(Commit(watermark=5, delivered=5), {"a": 4}, NOW)
    with pytest.raises(InDoubtError, match="has landed"):
        log.commit(Commit(watermark=5, delivered=5), {"a": 4}, NOW)
    assert log.state.commit == Commit(watermark=5, delivered=5)
    log.commit(Commit(watermark=6, delivered=6), {"a": 5}, NOW)
    assert offsets.load(client, "shop", "audit") == log.state


@pytest.mark.parametrize("lands", [True, False])
def test_a_new_claim_whose_own_answer_was_lost_does_not_fence_its_owner(
    client: Client, tmp_path: Path, flaky: Flaky, lands: bool
) -> None:
    log = a_log(client, tmp_path)
    log.append(some(2), {"orders": {"id": 2}}, [], NOW)
    flaky.lands = lands
    flaky.error = BrokerGoneError("gone in the middle of an append")
    with pytest.raises(BrokerGoneError):
        log.append(some(1), {"orders": {"id": 3}}, [], NOW)
    flaky.error = BrokerGoneError("gone in the middle of a claim")
    with pytest.raises(BrokerGoneError):
        log.renew(NOW)
    assert log.renew(NOW).offset == (3 if lands else 2)
    assert log.append(some(1), {}, [], NOW).offset == (4 if lands else 3)


def test_a_new_claim_whose_answer_was_lost_still_gives_way_to_a_later_owner(
    client: Client, tmp_path: Path, flaky: Flaky
) -> None:
    log = a_log(client, tmp_path)
    flaky.lands, flaky.error = True, BrokerGoneError("gone in the middle of a claim")
    with pytest.raises(BrokerGoneError):
        log.renew(NOW)
    a_log(client, tmp_path)
    with pytest.raises(FencedError):
        log.renew(NOW)


def test_an_owner_in_doubt_that_was_replaced_is_fenced(client: Client, flaky: Flaky) -> None:
    old = OffsetLog(client, "shop", "audit", NOW)
    flaky.error = BrokerGoneError("gone")
    with pytest.raises(BrokerGoneError):
        old.commit(Commit(watermark=1), {}, NOW)
    OffsetLog(client, "shop", "audit", NOW)
    with pytest.raises(FencedError):
        old.commit(Commit(watermark=1), {}, NOW)


@pytest.fixture
def finely_indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions, "GRANULE", 2000)
    monkeypatch.setattr(commitlog, "GRANULE", 2000)
    monkeypatch.setattr(walking, "CHUNK", 3000)


@pytest.mark.usefixtures("finely_indexed")
def test_records_end_where_they_were_asked_to(client: Client, tmp_path: Path) -> None:
    log = a_log(client, tmp_path)
    for i in range(80):
        log.append([*some(1, size=900), *some(i % 9)], {}, [], NOW)
    everything = list(log.reader.records(ByteOffset(0), log.point.byte))
    borders = [byte for byte, _ in everything]
    for end in borders[::5]:
        found = list(log.reader.records(ByteOffset(0), ByteOffset(end)))
        assert found == [entry for entry in everything if entry[0] < end]


@pytest.mark.usefixtures("finely_indexed")
def test_a_reader_of_a_log_that_grows_sees_it_as_it_was(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = a_log(client, tmp_path)
    for i in range(80):
        log.append([*some(1, size=900), *some(i % 9)], {}, [], NOW)
    before = log.point
    real = client.head

    def head_then_growth(journal: str) -> int:
        head = real(journal)
        log.append(some(20), {}, [], NOW)
        return head

    monkeypatch.setattr(client, "head", head_then_growth)
    bare = LogReader(client, log.journal, None)
    assert bare.state().point == before
    assert bare.points(positions.ORIGIN, before.byte)[-1] == before


def test_messages_that_come_while_the_first_is_looked_for_are_not_taken_for_compacted(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = a_log(client, tmp_path)
    real = LogReader._first_message
    grown: list[bool] = []

    def looked_then_growth(self: LogReader, held: Extent) -> LogPoint | None:
        found = real(self, held)
        if not grown:
            grown.append(True)
            log.append(some(3), {"orders": {"id": 3}}, [], NOW)
        return found

    monkeypatch.setattr(LogReader, "_first_message", looked_then_growth)
    assert log.reader.first().offset == 0


def stored_in(broker: EmbeddedBroker, journal: str, at_least: int) -> None:
    """Wait until all closed fragments are in the store for good, their spools gone."""
    deadline = time.monotonic() + 60
    while len(list(broker.directory.spools(journal).iterdir())) > 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(list((broker.directory.fragments / journal).glob("*.raw"))) >= at_least


def test_bytes_that_are_missing_in_the_middle_are_reported_not_waited_for(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
        log = a_log(client, tmp_path, segment=1024)
        for _ in range(10):
            log.append(some(30), {}, [], NOW)
        stored_in(broker, log.journal, at_least=5)
    missing = sorted((broker.directory.fragments / log.journal).iterdir())[2]
    missing.unlink()
    begin = int(missing.name[:16], 16)
    with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
        reader = LogReader(client, log.journal, None)
        with pytest.raises(CorruptError, match=f"byte {begin}: bytes up to .* are missing"):
            reader.state()


@pytest.mark.usefixtures("finely_indexed")
@pytest.mark.parametrize("with_cache", [True, False])
def test_a_log_whose_front_is_gone_is_read_from_where_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_cache: bool
) -> None:
    with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
        log = a_log(client, tmp_path, segment=3000)
        for i in range(40):
            log.append(some(5, size=60), {"orders": {"i": i}}, [], NOW)
        stored_in(broker, log.journal, at_least=4)
        end, resume = log.point, log.resume()
    for file in sorted((broker.directory.fragments / log.journal).iterdir())[:2]:
        file.unlink()
    with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
        cache = LogCache(tmp_path / "index", log.journal) if with_cache else None
        reader = LogReader(client, log.journal, cache)
        oldest = reader.oldest()
        assert oldest is not None
        assert oldest > 0
        assert reader.seek(oldest).offset == oldest
        assert [record.offset for record in reader.show(oldest, oldest + 2)] == [
            oldest,
            oldest + 1,
            oldest + 2,
        ]
        with pytest.raises(UsageError, match="is not in the log"):
            reader.seek(oldest - 1)
        assert reader.state().point == end
        again = a_log(client, tmp_path if with_cache else tmp_path / "new", segment=3000)
        assert again.point.offset == end.offset
        assert again.resume() == resume


@pytest.mark.usefixtures("finely_indexed")
def test_a_cache_that_cannot_be_written_costs_nothing_but_time(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = a_log(client, tmp_path)

    def full(self: LogCache, *_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(LogCache, "_write_index", full)
        patch.setattr(LogCache, "_write_state", full)
        for _ in range(40):
            log.append(some(5, size=50), {}, [], NOW)
        assert log.point.offset == 200
        log.close()
    assert log.reader.seek(150).offset == 150
    again = a_log(client, tmp_path)
    assert again.point.offset == 200
    assert len(LogCache(tmp_path / "index", log.journal).entries()) > 5


@pytest.mark.usefixtures("finely_indexed")
@pytest.mark.parametrize("tail", [b"\x00" * 5, b"\x00" * 48, b"\xff" * 20])
def test_a_torn_index_is_mended_before_more_is_added(client: Client, tmp_path: Path, tail: bytes) -> None:
    log = a_log(client, tmp_path)
    for _ in range(40):
        log.append(some(5, size=50), {}, [], NOW)
    log.close()
    cache = LogCache(tmp_path / "index", log.journal)
    known = cache.entries()
    with cache._index.open("ab") as file:
        file.write(tail)
    again = a_log(client, tmp_path)
    for _ in range(40):
        again.append(some(5, size=50), {}, [], NOW)
    entries = cache.entries()
    assert entries[: len(known)] == known
    assert len(entries) > len(known) + 3
    bare = LogReader(client, log.journal, None)
    assert all(bare.seek(point.offset).byte >= point.byte for point in entries)


OVERSIZED: list[tuple[str, Callable[[], tuple[list[Message], dict[str, Any]]]]] = [
    ("row key", lambda: ([Message("a", b"x" * (16 << 20), key=b"k" * (2 << 20))], {})),
    ("namespace", lambda: ([Message("n" * (18 << 20), b"x")], {})),
    ("position", lambda: ([Message("a", b"x" * (16 << 20))], {"a": {"p": "y" * (2 << 20)}})),
    ("position alone", lambda: ([], {"a": {"p": "y" * (18 << 20)}})),
]


@pytest.mark.parametrize(("what", "batch"), OVERSIZED, ids=[name for name, _ in OVERSIZED])
def test_no_record_is_logged_that_could_not_be_read_back(
    client: Client, tmp_path: Path, what: str, batch: Callable[[], tuple[list[Message], dict[str, Any]]]
) -> None:
    log = a_log(client, tmp_path)
    messages, told = batch()
    with pytest.raises(MessageTooLargeError, match="bytes"):
        log.append(messages, told, [], NOW)
    assert log.append(some(1), {}, [], NOW).offset == 1
    assert a_log(client, tmp_path).point.offset == 1


def test_a_damaged_record_raises_the_one_error_whatever_is_damaged() -> None:
    good = rec.encode(Record(0, 1, Mode.COPY, Op.INSERT, "ns", b"data", b"key", {"position": {}}))
    seen = set()
    for at in range(12, len(good)):
        for value in (0x00, 0x03, 0x1C, 0x7F, 0xFF):
            bad = bytearray(good)
            bad[at] = value
            with contextlib.suppress(rec.CorruptRecordError):
                rec.decode(bytes(bad), 0, "a/journal")
                continue
            seen.add(at)
    assert 20 in seen  # the attributes: an op or a mode that is none
    assert 25 in seen  # the namespace: not UTF-8
