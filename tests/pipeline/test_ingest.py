"""Ingest on a real broker: what the source is told and when, what is bad, transactions larger than a batch."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.cli.journaling import until
from tests.journal.brokers import HookedDisk

from penstock.adaptors.base import Bad, Batch, Source
from penstock.base.errors import AwayError
from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.log import deadletters
from penstock.log.commitlog import CommitLog, MessageTooLargeError
from penstock.log.deadletters import DeadLetters, Misfit
from penstock.log.message import MAX_MESSAGE_BYTES, Message, Mode, Resume
from penstock.log.packing import pack
from penstock.log.positions import LogPoint
from penstock.pipeline.ingest import Ingest
from penstock.pipeline.namespace import Namespace

NOW = 1_700_000_000_000_000

Reading = Callable[["Scripted", Mapping[str, Resume], threading.Event], Iterator[Batch]]


class Scripted(Source):
    """A source that does as it is told, and notes what it hears."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self.heard: list[Batch] = []
        self.hears = threading.Event()

    def namespaces(self) -> Sequence[str]:
        return ["a"]

    def read(
        self, accept: Callable[[str], bool], resume: Mapping[str, Resume], stop: threading.Event
    ) -> Iterator[Batch]:
        return self._reading(self, resume, stop)

    def logged(self, batch: Batch) -> None:
        self.heard.append(batch)
        self.hears.set()


def batch(n: int, *, mode: Mode = Mode.COPY, more: bool = False, bad: Sequence[Bad] = ()) -> Batch:
    message = Message("a", b'{"n":%d}' % n, ts=NOW, mode=mode)
    return Batch([message], {"a": {"n": n + 1}}, more=more, bad=bad)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
        yield client


def a_log(client: Client, tmp_path: Path) -> CommitLog:
    return CommitLog(client, "p", tmp_path / "index", None, NOW)


def ended(ingest: Ingest) -> Ingest:
    ingest.start()
    assert ingest.done.wait(20)
    return ingest


def test_a_source_hears_of_each_batch_in_order_once_the_log_has_it(client: Client, tmp_path: Path) -> None:
    log = a_log(client, tmp_path)
    at: list[int] = []

    def reading(self: Scripted, resume: Mapping[str, Resume], stop: threading.Event) -> Iterator[Batch]:
        for n in range(5):
            yield batch(n)

    class Looking(Scripted):
        def logged(self, batch: Batch) -> None:
            at.append(len(list(log.reader.show(0, 99))))
            super().logged(batch)

    source = Looking(reading)
    assert ended(Ingest(source, Namespace(".*"), log, lambda: None)).error is None
    assert [dict(b.positions) for b in source.heard] == [{"a": {"n": n + 1}} for n in range(5)]
    assert at == [1, 2, 3, 4, 5], "the log has what the source hears of"


@pytest.mark.parametrize("given", [0, 1])
def test_a_run_ended_while_its_source_is_away_fails_if_nothing_was_read(
    client: Client, tmp_path: Path, given: int
) -> None:
    tried = threading.Event()

    def reading(self: Scripted, resume: Mapping[str, Resume], stop: threading.Event) -> Iterator[Batch]:
        if given and not resume:
            yield batch(0)
        tried.set()
        raise AwayError("nobody answers at example:9", hint="start it")

    ingest = Ingest(Scripted(reading), Namespace(".*"), a_log(client, tmp_path), lambda: None)
    ingest.start()
    assert tried.wait(60)
    ingest.stop(60)
    said = "nothing was read, the source is away: nobody answers at example:9"
    assert (str(ingest.error) if ingest.error else None) == (None if given else said)


def test_a_source_that_waits_for_more_hears_meanwhile(client: Client, tmp_path: Path) -> None:
    waited: list[bool] = []

    def reading(self: Scripted, resume: Mapping[str, Resume], stop: threading.Event) -> Iterator[Batch]:
        yield batch(0)
        waited.append(self.hears.wait(10))

    source = Scripted(reading)
    ended(Ingest(source, Namespace(".*"), a_log(client, tmp_path), lambda: None))
    assert waited == [True]


def test_who_waits_for_the_first_message_and_for_the_end_is_told_of_both(
    client: Client, tmp_path: Path
) -> None:
    told: list[tuple[int, bool]] = []

    def reading(self: Scripted, resume: Mapping[str, Resume], stop: threading.Event) -> Iterator[Batch]:
        yield Batch([], {"a": {"n": 0}})
        yield batch(0)
        yield batch(1)

    def tell() -> None:
        told.append((ingest.read, ingest.done.is_set()))
        if len(told) == 2:
            both.set()

    both = threading.Event()
    ingest = Ingest(Scripted(reading), Namespace(".*"), a_log(client, tmp_path), lambda: None, tell=tell)
    ended(ingest)
    assert both.wait(20)
    assert told == [(1, False), (2, True)]


def test_a_source_never_hears_of_what_the_log_does_not_have(client: Client, tmp_path: Path) -> None:
    large = Batch([Message("a", b"x" * (MAX_MESSAGE_BYTES + 1))], {"a": {"n": 2}})

    def reading(self: Scripted, resume: Mapping[str, Resume], stop: threading.Event) -> Iterator[Batch]:
        yield batch(0)
        yield large
        stop.wait(10)
        yield batch(2)

    source = Scripted(reading)
    log = a_log(client, tmp_path)
    ingest = ended(Ingest(source, Namespace(".*"), log, lambda: None))
    assert isinstance(ingest.error, MessageTooLargeError)
    assert [dict(b.positions) for b in source.heard] == [{"a": {"n": 1}}]
    assert log.resume()["a"].position == {"n": 1}


def packed(n: int, count: int = 1, size: int = 10) -> Batch:
    texts = [b'{"n":%d,"x":"%s"}' % (n + i, b"x" * size) for i in range(count)]
    return Batch(packed=[pack("a", pa.array(texts), ts=NOW)], positions={"a": {"n": n + count}})


def test_rows_of_a_copy_wait_for_the_disk_together_and_the_source_hears_of_each(
    tmp_path: Path,
) -> None:
    """A kill between two appends costs nothing: what is in the log says where to go on."""
    given, slow, syncs = threading.Event(), threading.Event(), threading.Event()

    def before(asked: str, path: Path) -> None:
        if asked == "sync" and slow.is_set():
            syncs.set()
            assert given.wait(20)

    def reading(self: Scripted, resume: Mapping[str, Resume], stop: threading.Event) -> Iterator[Batch]:
        slow.set()
        for n in range(0, 40, 2):
            yield packed(n, 2)
            assert syncs.wait(20)
        given.set()

    with (
        EmbeddedBroker(tmp_path / "data", disk=HookedDisk(before)) as broker,
        broker.client() as client,
    ):
        log = a_log(client, tmp_path)
        appends: list[int] = []
        append = log.append

        def counted(*args: Any, **more: Any) -> LogPoint:
            appends.append(1)
            return append(*args, **more)

        log.append = counted  # type: ignore[method-assign]
        source = Scripted(reading)
        ingest = ended(Ingest(source, Namespace(".*"), log, lambda: None))
        assert (ingest.error, ingest.read) == (None, 40)
        assert len(appends) == 2, "one while the disk was slow, and all that waited"
        assert [dict(b.positions) for b in source.heard] == [{"a": {"n": n + 2}} for n in range(0, 40, 2)]
        assert [record.offset for record in log.reader.show(0, 99)] == list(range(40))
        assert log.resume()["a"].position == {"n": 40}
        assert a_log(client, tmp_path).resume() == log.resume()


def test_packed_rows_too_large_for_the_log_end_it_behind_those_before_them(
    client: Client, tmp_path: Path
) -> None:
    log = CommitLog(client, "p", tmp_path / "index", None, NOW, max_message_bytes=100)

    def reading(self: Scripted, resume: Mapping[str, Resume], stop: threading.Event) -> Iterator[Batch]:
        yield packed(0)
        yield packed(1)
        yield packed(2, size=200)
        yield packed(3)

    source = Scripted(reading)
    ingest = ended(Ingest(source, Namespace(".*"), log, lambda: None))
    assert isinstance(ingest.error, MessageTooLargeError)
    assert log.resume()["a"].position == {"n": 2}
    assert len(source.heard) == 2


def test_a_source_does_not_hear_of_an_append_that_the_broker_never_answered(tmp_path: Path) -> None:
    broker = ExitStack()
    client = Client(broker.enter_context(EmbeddedBroker(tmp_path / "data")).address)
    log = a_log(client, tmp_path)

    def reading(self: Scripted, resume: Mapping[str, Resume], stop: threading.Event) -> Iterator[Batch]:
        yield batch(0)
        self.hears.wait(10)
        broker.close()
        yield batch(1)
        stop.wait(30)

    source = Scripted(reading)
    ingest = ended(Ingest(source, Namespace(".*"), log, lambda: None))
    assert ingest.error is not None
    assert [dict(b.positions) for b in source.heard] == [{"a": {"n": 1}}]
    client.close()


@pytest.mark.parametrize("step", ["write", "sync"])
def test_a_disk_without_room_is_waited_for_and_the_source_goes_on_where_the_log_stands(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Refused as a whole, or in doubt since the sync failed: either way each message is in the log once.

    A claim finds room all the time: it is tried later each time nevertheless.
    """
    monkeypatch.setattr("penstock.pipeline.ingest._DELAYS", (0.1, 0.2, 0.3))
    full, refused, claims = threading.Event(), threading.Event(), threading.Event()
    renew = CommitLog.renew

    def renewed(self: CommitLog, now: int) -> LogPoint:
        claims.set()
        try:
            return renew(self, now)
        finally:
            claims.clear()

    monkeypatch.setattr(CommitLog, "renew", renewed)

    def before(asked: str, path: Path) -> None:
        if full.is_set() and asked == step and not claims.is_set():
            refused.set()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def reading(self: Scripted, resume: Mapping[str, Resume], stop: threading.Event) -> Iterator[Batch]:
        position = resume["a"].position["n"] if resume else 0
        assert isinstance(position, int)
        for n in range(position, 6):
            if n == 3 and not refused.is_set():
                assert self.hears.wait(10)
                full.set()
            yield batch(n)

    with (
        EmbeddedBroker(tmp_path / "data", disk=HookedDisk(before)) as broker,
        Client(broker.address) as client,
    ):
        log = a_log(client, tmp_path)
        source = Scripted(reading)
        ingest = Ingest(source, Namespace(".*"), log, lambda: None)
        ingest.start()
        assert refused.wait(10)
        until(lambda: "tried again in 0.3 s" in caplog.text)
        assert ingest.state == "away"
        assert "No space left on device" in str(ingest.away)
        full.clear()
        assert ingest.done.wait(20)
        assert (ingest.error, ingest.away) == (None, None)
        assert [record.data for record in log.reader.show(0, 99)] == [b'{"n":%d}' % n for n in range(6)]


def test_a_run_that_ends_while_its_disk_has_no_room_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = threading.Event()

    def before(asked: str, path: Path) -> None:
        if full.is_set() and asked == "write":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def reading(self: Scripted, resume: Mapping[str, Resume], stop: threading.Event) -> Iterator[Batch]:
        full.set()
        yield batch(0)

    with (
        EmbeddedBroker(tmp_path / "data", disk=HookedDisk(before)) as broker,
        Client(broker.address) as client,
    ):
        ingest = Ingest(Scripted(reading), Namespace(".*"), a_log(client, tmp_path), lambda: None)
        ingest.start()
        until(lambda: ingest.away is not None)
        ingest.stop(20)
        assert "No space left on device" in str(ingest.error)


class TestBad:
    place = Bad("a", "in.jsonl, line 2, byte 9", "not JSON", b"{oh")

    def ingest(self, reading: Reading, client: Client, tmp_path: Path) -> Ingest:
        letters = DeadLetters(client, "p", NOW)

        def keep(bad: Sequence[Bad]) -> int:
            misfits = [Misfit(one.ns, one.place, one.error, one.content) for one in bad]
            return letters.add_misfits("in", misfits, NOW)

        log = a_log(client, tmp_path)
        return Ingest(Scripted(reading), Namespace(".*"), log, lambda: None, keep_bad=keep)

    def test_what_is_bad_is_kept_once_though_it_is_read_again_after_a_crash(
        self, client: Client, tmp_path: Path
    ) -> None:
        """The first reading dies after the letter is kept and before its batch is logged."""
        too_large = Batch([Message("a", b"x" * (MAX_MESSAGE_BYTES + 1))], bad=[self.place])

        def dying(self: Scripted, resume: Mapping[str, Resume], stop: threading.Event) -> Iterator[Batch]:
            yield too_large

        def reading(self: Scripted, resume: Mapping[str, Resume], stop: threading.Event) -> Iterator[Batch]:
            assert "a" not in resume
            yield batch(0, bad=[TestBad.place, Bad("a", "in.jsonl, line 5, byte 40", "not JSON", b"[")])

        first = self.ingest(dying, client, tmp_path)
        assert (ended(first).bad, type(first.error)) == (1, MessageTooLargeError)
        assert [letter.place for letter in deadletters.load(client, "p")] == [self.place.place]
        again = self.ingest(reading, client, tmp_path)
        assert (ended(again).bad, again.error, again.read) == (1, None, 1)
        letters = deadletters.load(client, "p")
        assert [(x.number, x.sink, x.node, x.offset, x.ns, x.error, x.data) for x in letters] == [
            (0, "in", "in", -1, "a", "not JSON", "{oh"),
            (1, "in", "in", -1, "a", "not JSON", "["),
        ]

    def test_a_source_of_bad_things_ends_with_an_error_where_nobody_keeps_them(
        self, client: Client, tmp_path: Path
    ) -> None:
        def reading(self: Scripted, resume: Mapping[str, Resume], stop: threading.Event) -> Iterator[Batch]:
            yield Batch(bad=[TestBad.place])

        ingest = ended(Ingest(Scripted(reading), Namespace(".*"), a_log(client, tmp_path), lambda: None))
        assert "in.jsonl, line 2, byte 9: not JSON" in str(ingest.error)


class TestTransactions:
    @pytest.mark.parametrize("closing", ["positions", "changes", "rows of a copy"])
    def test_rows_of_a_copy_that_wait_are_no_part_of_a_transaction_that_is_still_under_way(
        self, tmp_path: Path, closing: str
    ) -> None:
        """A sink would be given all of it in one piece, whatever its limits."""
        given, slow = threading.Event(), threading.Event()
        ends = {
            "positions": Batch(positions={"a": {"n": 1}}),
            "changes": batch(1, mode=Mode.SYNC),
            "rows of a copy": packed(1),
        }

        def before(asked: str, path: Path) -> None:
            if asked == "sync" and slow.is_set():
                given.wait(0.3)

        def reading(self: Scripted, resume: Mapping[str, Resume], stop: threading.Event) -> Iterator[Batch]:
            slow.set()
            yield batch(0, mode=Mode.SYNC, more=True)
            yield ends[closing]
            for n in range(2, 12):
                yield packed(n)
            given.set()

        with (
            EmbeddedBroker(tmp_path / "data", disk=HookedDisk(before)) as broker,
            broker.client() as client,
        ):
            log = a_log(client, tmp_path)
            closed: list[int] = []
            append = log.append

            def noted(*args: Any, **more: Any) -> LogPoint:
                if log.is_open:
                    closed.append(sum(map(len, args[5])))
                return append(*args, **more)

            log.append = noted  # type: ignore[method-assign]
            ingest = ended(Ingest(Scripted(reading), Namespace(".*"), log, lambda: None))
            assert ingest.error is None
            assert closed == [1 if closing == "rows of a copy" else 0]

    def test_a_transaction_goes_on_where_a_crash_left_it(self, client: Client, tmp_path: Path) -> None:
        def reading(self: Scripted, resume: Mapping[str, Resume], stop: threading.Event) -> Iterator[Batch]:
            begin = resume["a"].position["n"] if "a" in resume else 0
            assert isinstance(begin, int)
            for n in range(begin, 4):
                yield batch(n, mode=Mode.SYNC, more=n < 3)
                if begin == 0 and n == 1:
                    raise ValueError("a crash")

        log = a_log(client, tmp_path)
        first = ended(Ingest(Scripted(reading), Namespace(".*"), log, lambda: None))
        assert isinstance(first.error, ValueError)
        assert (first.given.offset, first.end.offset, first.read) == (0, 2, 2)
        log = a_log(client, tmp_path)
        second = ended(Ingest(Scripted(reading), Namespace(".*"), log, lambda: None))
        assert (second.error, second.given, second.read) == (None, log.point, 2)
        assert [record.data for record in log.reader.show(0, 9)] == [b'{"n":%d}' % n for n in range(4)]

    def test_reading_does_not_pause_within_a_transaction_that_nobody_can_take_yet(
        self, client: Client, tmp_path: Path
    ) -> None:
        log = a_log(client, tmp_path)
        asked: list[int] = []

        def full() -> str | None:
            asked.append(log.point.offset)
            return "the log is at its limit" if 0 < log.point.offset < 3 else None

        def reading(self: Scripted, resume: Mapping[str, Resume], stop: threading.Event) -> Iterator[Batch]:
            for n in range(3):
                yield batch(n, mode=Mode.SYNC, more=n < 2)

        ingest = ended(Ingest(Scripted(reading), Namespace(".*"), log, full))
        assert (ingest.error, ingest.paused, log.point.offset) == (None, None, 3)

    def test_a_source_that_ends_within_a_transaction_is_an_error(
        self, client: Client, tmp_path: Path
    ) -> None:
        def reading(self: Scripted, resume: Mapping[str, Resume], stop: threading.Event) -> Iterator[Batch]:
            yield batch(0, mode=Mode.SYNC, more=True)

        ingest = ended(Ingest(Scripted(reading), Namespace(".*"), a_log(client, tmp_path), lambda: None))
        assert "ended within a transaction" in str(ingest.error)

    def test_a_source_that_goes_away_within_a_transaction_is_read_again_from_there(
        self, client: Client, tmp_path: Path
    ) -> None:
        begun: list[object] = []

        def reading(self: Scripted, resume: Mapping[str, Resume], stop: threading.Event) -> Iterator[Batch]:
            begun.append(resume["a"].position["n"] if "a" in resume else 0)
            if len(begun) == 1:
                yield batch(0, mode=Mode.SYNC, more=True)
                raise AwayError("the server restarts")
            yield batch(1, mode=Mode.SYNC)

        log = a_log(client, tmp_path)
        ingest = ended(Ingest(Scripted(reading), Namespace(".*"), log, lambda: None))
        assert (ingest.error, begun, log.is_open, log.point.offset) == (None, [0, 1], False, 2)
