"""The source kit against real workers: streams, credits, lost connections, migration."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import threading
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from tests.connector.rig import COOKIE, Numbers, Raw, Rig, eventually, ids_of, rigged

from penstock.base.errors import UsageError
from penstock.connector import frames as fr
from penstock.connector.addresses import wait_after
from penstock.connector.framing import Splitter
from penstock.connector.link import Link
from penstock.connector.settings import split
from penstock.connector.source import (
    CannotSeekError,
    Columns,
    Connector,
    IteratorStream,
    Record,
    Records,
    SourceFailedError,
    Stream,
    stream_id,
)
from penstock.connector.worker import Worker


def connector(addresses: list[str], streams: list[Stream], instance: str = "i") -> Connector:
    return Connector(addresses, instance, streams, cookie=COOKIE, patience=60, migration_tries=2)


def serves(worker: Worker) -> bool:
    return "i" in worker.instances and bool(worker.instances["i"].peers)


def grown(worker: Worker, beyond: int, unless: asyncio.Task[None] | None = None) -> bool:
    return worker.counters.messages > beyond or (unless is not None and unless.done())


def bodies(frames: Sequence[fr.Frame]) -> list[bytes]:
    return [bytes(frame.body) for frame in frames if isinstance(frame, fr.Message)]


def test_the_id_of_a_stream_is_made_of_its_name() -> None:
    assert stream_id("key_0") == 13630618416057149338


def test_streams_with_one_id_are_refused_before_anything_is_sent() -> None:
    with pytest.raises(UsageError, match="have the same id"):
        Connector(["h:1"], "i", [Numbers("a", 1), Numbers("b", 1), Numbers("a", 1)])


def test_several_streams_arrive_whole_with_few_credits(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker(credits=7)
        streams: list[Stream] = [Numbers(f"s{n}", 300) for n in range(4)]
        running = connector([worker.me.address], streams)
        await running.serve()
        wanted = {stream_id(stream.name): list(range(1, 301)) for stream in streams}
        assert ids_of(await rig.frames()) == wanted
        assert running.acked == {stream.name: 300 for stream in streams}
        assert sum(isinstance(frame, fr.EosMessage) for frame in await rig.frames()) == 4

    rigged(tmp_path / "d", test)


def test_iterators_and_coroutines_are_streams_too(tmp_path: Path) -> None:
    def letters(point: int | None) -> Iterator[Record]:
        for number, letter in enumerate(b"abcdef", 1):
            if point is None or number > point:
                yield Record(number, bytes([letter]), b"key", number)

    class Counted(Stream):
        name = "counted"

        def __init__(self) -> None:
            self.at = 0
            self.acks: list[int] = []

        async def seek(self, point: int | None) -> None:
            self.at = 0

        async def read(self) -> Records:
            self.at += 1
            return [Record(self.at, b"s")] if self.at <= 3 else None

        async def ack(self, point: int) -> None:
            self.acks.append(point)

    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        streams: list[Stream] = [
            IteratorStream("letters", letters),
            IteratorStream("again", letters, blocking=True),
        ]
        counted = Counted()
        await connector([worker.me.address], [*streams, counted]).serve()
        ids = ids_of(await rig.frames())
        assert ids[stream_id("letters")] == ids[stream_id("again")] == [1, 2, 3, 4, 5, 6]
        assert counted.acks[-1] == 3
        first = next(frame for frame in await rig.frames() if isinstance(frame, fr.Message))
        assert (bytes(first.key), first.time) == (b"key", 1)

    rigged(tmp_path / "d", test)


def test_a_source_may_seek_too_early_and_a_second_run_adds_nothing(tmp_path: Path) -> None:
    class Early(Numbers):
        def seek(self, point: int | None) -> None:
            super().seek(None if point is None else max(0, point - 30))

    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        await connector([worker.me.address], [Early("s", 100)]).serve()
        await connector([worker.me.address], [Early("s", 120)]).serve()
        assert ids_of(await rig.frames()) == {stream_id("s"): list(range(1, 121))}
        assert worker.counters.dropped == 30

    rigged(tmp_path / "d", test)


@pytest.mark.parametrize("at_once", [False, True])
def test_a_source_that_seeks_too_early_and_ends_before_the_point_has_ended(
    tmp_path: Path, at_once: bool
) -> None:
    """What it repeats is dropped, and does not take back how far the stream is."""

    class Early(Numbers):
        def seek(self, point: int | None) -> None:
            super().seek(None)

        def read(self) -> Records:
            records = super().read()
            if not records or not at_once:
                return records
            return Columns([record[0] for record in records], [record[1] for record in records])

    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        await connector([worker.me.address], [Early("s", 100)]).serve()
        again = connector([worker.me.address], [Early("s", 70)])
        await again.serve()
        assert again.acked == {"s": 100}
        assert ids_of(await rig.frames()) == {stream_id("s"): list(range(1, 101))}

    rigged(tmp_path / "d", test)


class Given(Stream):
    """What `read` gives, one after the other, from the beginning after each `seek`."""

    name = "s"

    def __init__(self, *reads: object) -> None:
        self.reads = reads

    def seek(self, point: int | None) -> None:
        self.left = iter(self.reads)

    def read(self) -> Records:
        return cast(Records, next(self.left, None))


def listed(*ids: int) -> Records:
    return [Record(number, b"") for number in ids]


def in_columns(*ids: int) -> Records:
    return Columns(ids, [b""] * len(ids))


def refusal(path: Path, *reads: object, sent: Sequence[int] = ()) -> str:
    """Why a connector ends whose stream gives these, when no more than `sent` is in the journal."""
    told: list[str] = []

    async def test(rig: Rig) -> None:
        running = connector([(await rig.worker()).me.address], [Given(*reads)])
        with pytest.raises(SourceFailedError) as caught:
            async with asyncio.timeout(20):
                await running.serve()
        told.append(caught.value.message)
        assert set(ids_of(await rig.frames()).get(stream_id("s"), [])) <= set(sent)

    rigged(path / "d", test)
    return told[0]


@pytest.mark.parametrize("given", [listed, in_columns])
@pytest.mark.parametrize(
    ("reads", "told"),
    [
        ([[1, 3, 2]], "message 2 comes behind message 3"),
        ([[1, 2, 2, 3]], "message 2 comes behind message 2"),
        ([[5], [3]], "message 3 comes behind message 5"),
        ([[5], [5, 6]], "message 5 comes behind message 5"),
        (
            [[7, fr.NOTHING_SEEN, 8]],
            "record 1 of a `read` has the id 18446744073709551615, which stands for none",
        ),
    ],
)
def test_ids_that_do_not_grow_are_refused_with_all_of_their_read(
    tmp_path: Path, given: Callable[..., Records], reads: list[list[int]], told: str
) -> None:
    """A worker would take them for repeats and drop them without a word."""
    batches = [given(*ids) for ids in reads]
    assert refusal(tmp_path, *batches, sent=reads[0][: 1 if len(reads) > 1 else 0]).startswith(
        f"stream 's': {told}"
    )


def test_ids_may_begin_anew_after_a_seek(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        given = Given(listed(1, 2), listed(3, 4), *[[]] * 1000)
        running = connector([worker.me.address], [given])
        serving = asyncio.create_task(running.serve())
        await eventually(lambda: running.acked.get("s") == 4)
        for peer in list(worker.peers):
            assert peer.wire.transport is not None
            peer.wire.transport.abort()
        await eventually(lambda: worker.counters.dropped == 4)
        assert not serving.done()
        running.stop()
        await serving
        assert ids_of(await rig.frames()) == {stream_id("s"): [1, 2, 3, 4]}

    rigged(tmp_path / "d", test)


WIDE = array("I", [1, 2, 3])


@pytest.mark.parametrize(
    ("records", "told"),
    [
        ([(1, b"a", b"", 0), (2, WIDE, b"", 0)], "message 2 has a body of type array, and not bytes"),
        ([(1, memoryview(WIDE), b"", 0)], "message 1 has a body of type memoryview, and not bytes"),
        ([(1, b"", memoryview(WIDE), 0)], "message 1 has a key of type memoryview"),
        ([(1, np.array([1, 2], np.uint32), b"", 0)], "message 1 has a body of type ndarray"),
        ([(1, b"", np.array([1], np.uint32), 0)], "message 1 has a key of type ndarray"),
        ([(1, "text", b"", 0)], "message 1 has a body of type str"),
        (Columns([1, 2], cast("list[bytes]", [b"", WIDE])), "message 2 has a body of type array"),
        (Columns([1], [b""], keys=cast("list[bytes]", [WIDE])), "message 1 has a key of type array"),
        ([Record(0, b"a"), Record(-1, b"a")], "record 1 of a `read` has the id -1: ids are whole numbers"),
        ([Record(2**64, b"a")], "record 0 of a `read` has the id 18446744073709551616: ids are"),
        ([(1.5, b"a", b"", 0)], "record 0 of a `read` has the id 1.5: ids are"),
        ([Record(1, b"a", b"", 2**63)], "message 1 has the time 9223372036854775808: times are"),
        ([(1, b"a")], "record 0 of a `read` is (1, b'a'), and not id, body, key and time"),
        ([5], "record 0 of a `read` is 5, and not"),
        ((each for each in [Record(1, b"a")]), "`read` gives a list of records, and not one of type generator"),
        ([Record(1, b"a", b"k" * 70_000)], "message 1 is too large"),
    ],
)  # fmt: skip
def test_a_record_that_no_frame_can_carry_is_named_and_not_sent(
    tmp_path: Path, records: object, told: str
) -> None:
    assert refusal(tmp_path, records).startswith(f"stream 's': {told}")


@pytest.mark.parametrize(
    ("odd", "told"),
    [
        ((299, b"", b"", 0), "message 299 comes behind message 299"),
        ((300, WIDE, b"", 0), "message 300 has a body of type array"),
        ((300, "text", b"", 0), "message 300 has a body of type str"),
        ((300, b"", WIDE, 0), "message 300 has a key of type array"),
        ((-1, b"", b"", 0), "record 299 of a `read` has the id -1"),
        ((300, b"", b"", 0.5), "message 300 has the time 0.5"),
        ((300, b"", b"", 0, 0), "record 299 of a `read` is (300, b'', b'', 0, 0), and not"),
        ((300, b""), "record 299 of a `read` is (300, b''), and not"),
        ({"id": 1, "body": b"", "key": b"", "time": 0}, "record 299 of a `read` is {'id': 1, "),
    ],
)
def test_one_record_of_many_that_no_frame_can_carry_is_named(tmp_path: Path, odd: object, told: str) -> None:
    """Many are looked at together."""
    many: list[object] = [Record(number, b"") for number in range(1, 300)]
    assert refusal(tmp_path, [*many, odd], sent=range(1, 300)).startswith(f"stream 's': {told}")


@pytest.mark.parametrize("count", [10, 300])
@pytest.mark.parametrize(
    ("record", "told"),
    [
        (lambda number: (number, b"", b"", None), "message 1 has the time None"),
        (lambda number: (number, b"", b"", 0.0), r"message 1 has the time 0\.0"),
        (lambda number: (number, b"", b"", ""), "message 1 has the time ''"),
        (
            lambda number: {"id": number, "body": b"", "key": b"", "time": 0},
            "record 0 of a `read` is {'id': 1,",
        ),
    ],
    ids=["None", "float", "text", "dict"],
)
def test_many_records_are_judged_as_few_are(
    tmp_path: Path, count: int, record: Callable[[int], object], told: str
) -> None:
    """Also if all of them are wrong in the same way."""
    assert re.match(f"stream 's': {told}", refusal(tmp_path, [record(n) for n in range(1, count + 1)]))


def test_many_records_arrive_as_few_do(tmp_path: Path) -> None:
    """Also with an absent key among them, as `if key` takes it."""

    async def test(rig: Rig) -> None:
        given = [(n, b"%d" % n, b"k" if n % 3 else cast("bytes", None), -n) for n in range(1, 1001)]
        await connector([(await rig.worker(credits=400)).me.address], [Given(given)]).serve()
        found = [frame for frame in await rig.frames() if isinstance(frame, fr.Message)]
        assert [(each.id, bytes(each.body), bytes(each.key) or None, each.time) for each in found] == given

    rigged(tmp_path / "d", test)


def test_columns_that_cannot_be_made_are_told_with_their_stream(tmp_path: Path) -> None:
    class Odd(Given):
        def read(self) -> Records:
            return Columns([1, -1], [b"", b""])

    async def test(rig: Rig) -> None:
        told = "stream 's': ids that are no whole numbers of 64 bits: -1 at place 1"
        with pytest.raises(SourceFailedError, match=told):
            await connector([(await rig.worker()).me.address], [Odd()]).serve()

    rigged(tmp_path / "d", test)


@pytest.mark.parametrize("name", ["s\udcff", "n" * 65_536, "ü" * 32_768], ids=["surrogate", "long", "wide"])
def test_a_name_that_no_frame_can_carry_is_refused_where_it_is_given(name: str) -> None:
    with pytest.raises(UsageError, match="a stream cannot be called '"):
        Connector(["h:1"], "i", [Numbers(name, 1)])
    with pytest.raises(UsageError, match="fit no HELLO"):
        Connector(["h:1"], name, [Numbers("s", 1)])


def test_a_source_that_cannot_go_back_tells_the_worker_why(tmp_path: Path) -> None:
    class Lost(Numbers):
        def seek(self, point: int | None) -> None:
            raise CannotSeekError("the tape is gone")

    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        with pytest.raises(SourceFailedError, match="the tape is gone"):
            await connector([worker.me.address], [Lost("s", 5)]).serve()
        await eventually(lambda: worker.counters.given_up == 1)
        assert "the tape is gone" in worker.counters.recent[-1]

    rigged(tmp_path / "d", test)


def test_a_wrong_cookie_ends_the_connector_at_once(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        with pytest.raises(Exception, match="Bad cookie"):
            await Connector([worker.me.address], "i", [Numbers("s", 5)], cookie=b"no").serve()

    rigged(tmp_path / "d", test)


def test_a_message_too_large_for_a_frame_is_named(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        big = IteratorStream("big", lambda point: [Record(1, bytes(2000))])
        running = Connector([worker.me.address], "i", [big], cookie=COOKIE, max_frame=1000)
        with pytest.raises(SourceFailedError, match="message 1 is too large"):
            await running.serve()

    rigged(tmp_path / "d", test)


@pytest.mark.parametrize("said", [frozenset[str](), frozenset({"frame=x", "frame=99999999999", "other"})])
def test_a_worker_that_does_not_say_how_much_it_takes_is_sent_short_frames_only(said: frozenset[str]) -> None:
    """Workers of others close the connection without a word at a longer one, again and again."""
    took: list[int] = []

    async def foreign(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        splitter = Splitter()
        while data := await reader.read(1 << 16):
            for payload in splitter.feed(data):
                match fr.frame_of(payload):
                    case fr.Hello():
                        writer.write(fr.encode(fr.Ok(500, said)))
                    case fr.Notify(stream=stream):
                        writer.write(fr.encode(fr.NotifyAck(True, stream, fr.NOTHING_SEEN)))
                    case fr.Message(stream=stream):
                        took.append(len(payload))
                        writer.write(fr.encode(fr.Ack(1, ((stream, 1),))))
                    case fr.EosMessage(stream=stream):
                        writer.write(fr.encode(fr.Ack(0, ((stream, 1),))))
        writer.close()

    async def test() -> None:
        async with await asyncio.start_server(foreign, "127.0.0.1", 0) as server:
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            fits = IteratorStream("fits", lambda point: [Record(1, bytes(16_384 - 27))])
            await Connector([address], "i", [fits]).serve()
            more = IteratorStream("more", lambda point: [Record(1, bytes(16_384 - 26))])
            with pytest.raises(SourceFailedError, match="16,384 bytes, which is what the worker at"):
                await Connector([address], "i", [more]).serve()

    asyncio.run(test())
    assert took == [16_384]


def test_a_worker_is_sent_what_it_says_that_it_takes(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker(max_frame=40_000)
        fits = IteratorStream("fits", lambda point: [Record(1, bytes(40_000 - 27))])
        await Connector([worker.me.address], "i", [fits], cookie=COOKIE).serve()
        more = IteratorStream("more", lambda point: [Record(1, bytes(40_000 - 26))])
        with pytest.raises(SourceFailedError, match="40,000 bytes, which is what the worker at"):
            await Connector([worker.me.address], "i", [more], cookie=COOKIE).serve()

    rigged(tmp_path / "d", test)


def test_waits_between_attempts_grow_and_differ_and_end_somewhere() -> None:
    for failures, longest in enumerate([0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0], 1):
        waits = {wait_after(failures) for _ in range(20)}
        assert len(waits) > 1
        assert longest / 2 <= min(waits) <= max(waits) <= longest
    assert wait_after(100_000) <= 5.0


def test_a_worker_that_is_gone_after_much_went_well_is_not_asked_without_a_pause(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        streams = [Numbers("s", 100)]
        running = connector([worker.me.address], list(streams))
        await started(running, streams, 50)
        attempts = 0
        connected = running._connected

        async def counted(address: str) -> Link:
            nonlocal attempts
            attempts += 1
            return await connected(address)

        running._connected = counted  # type: ignore[method-assign]
        assert worker._server is not None
        worker._server.close()
        for peer in list(worker.peers):
            assert peer.wire.transport is not None
            peer.wire.transport.abort()
        await asyncio.sleep(1.5)
        running.stop()
        await rig_done(running)
        assert 1 <= attempts <= 8

    rigged(tmp_path / "d", test)


def test_a_connector_that_waits_for_an_answer_stops_when_it_is_told_to() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def test() -> None:
        async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
            running = connector([f"127.0.0.1:{server.sockets[0].getsockname()[1]}"], [Numbers("s", 1)])
            serving = asyncio.create_task(running.serve())
            await asyncio.sleep(0.2)
            running.stop()
            async with asyncio.timeout(20):
                await serving

    asyncio.run(test())


def test_lost_connections_and_rollbacks_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker(credits=20)
        streams = [Numbers(f"s{n}", 2000) for n in range(3)]
        running = connector([worker.me.address], list(streams))
        serving = asyncio.create_task(running.serve())
        for step in range(1, 7):
            await eventually(partial(grown, worker, 300 * step, serving))
            if step % 2:
                for peer in list(worker.peers):
                    assert peer.wire.transport is not None
                    peer.wire.transport.abort()
            elif "i" in worker.instances:
                worker.failed(worker.instances["i"], UsageError("as if the broker were gone"))
        await serving
        assert ids_of(await rig.frames()) == {stream_id(s.name): list(range(1, 2001)) for s in streams}
        assert len(streams[0].seeks) > 2

    rigged(tmp_path / "d", test)


def test_the_same_stream_from_two_senders_is_one_stream(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        first, second = Numbers("s", 200), Numbers("s", 200)
        first.gate = 100
        one, two = connector([worker.me.address], [first]), connector([worker.me.address], [second])
        serving_one = asyncio.create_task(one.serve())
        await eventually(lambda: one.acked.get("s") == 100)
        serving_two = asyncio.create_task(two.serve())
        await eventually(lambda: worker.counters.refused > 0)
        assert two.acked == {}
        one.stop()
        await serving_one
        await serving_two
        assert ids_of(await rig.frames()) == {stream_id("s"): list(range(1, 201))}
        assert second.seeks == [100]

    rigged(tmp_path / "d", test)


def test_a_worker_that_stops_hands_its_connectors_over_under_load(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        first, second = await rig.worker("a"), await rig.worker("b")
        await eventually(lambda: not first._tasks and not second._tasks)
        streams = [Numbers(f"s{n}", 3000) for n in range(3)]
        running = connector([first.me.address], list(streams))
        serving = asyncio.create_task(running.serve())
        await eventually(lambda: first.counters.messages > 1000)
        await first.stop()
        await serving
        assert ids_of(await rig.frames()) == {stream_id(s.name): list(range(1, 3001)) for s in streams}
        assert second.counters.messages > 0

    rigged(tmp_path / "d", test)


# Migration.


async def moved(rig: Rig, running: Connector, streams: list[Numbers]) -> None:
    """The connector goes on to the end, and the journal has everything once."""
    for stream in streams:
        stream.gate = stream.count
    await rig_done(running)
    assert ids_of(await rig.frames()) == {stream_id(s.name): list(range(1, s.count + 1)) for s in streams}


async def rig_done(running: Connector) -> None:
    async with asyncio.timeout(60):
        await TASKS.pop(running)


TASKS: dict[Connector, asyncio.Task[None]] = {}


async def started(running: Connector, streams: list[Numbers], gate: int) -> None:
    for stream in streams:
        stream.gate = gate
    TASKS[running] = asyncio.create_task(running.serve())
    await eventually(lambda: all(running.acked.get(stream.name) == gate for stream in streams))


def test_a_connector_moves_to_another_worker_and_no_stream_ends_by_that(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        old, new = await rig.worker("old"), await rig.worker("new")
        streams = [Numbers(f"s{n}", 500) for n in range(3)]
        running = connector([old.me.address], list(streams))
        await started(running, streams, 200)
        assert await old.migrate("s1", new.me.address) == "i"
        await eventually(lambda: running.link is not None and running.link.address == new.me.address)
        assert not any(isinstance(frame, fr.EosMessage) for frame in await rig.frames())
        await eventually(lambda: not old.peers and "i" not in old.instances)
        await moved(rig, running, streams)
        assert new.counters.messages > 0
        assert all(stream.seeks == [None, 200] for stream in streams)

    rigged(tmp_path / "d", test)


class Waits(Numbers):
    """Moves its source on, and then waits before it gives what is there: whoever breaks that off must seek."""

    def __init__(self, name: str) -> None:
        super().__init__(name, 20, batch=10)
        self.go_on = threading.Event()
        self.waits = 0

    def wait(self) -> None:
        self.waits += 1
        self.go_on.wait(60)


class WaitsInThread(Waits):
    blocking = True

    def read(self) -> Records:
        records = super().read()
        if self.next == 21 and records:
            self.wait()
        return records


class WaitsInTask(Waits):
    async def read(self) -> Records:  # type: ignore[override]
        records = super().read()
        if self.next == 21 and records:
            await asyncio.to_thread(self.wait)
        return records


class WaitsInDriver(WaitsInTask):
    """Its driver has an error of its own for what is broken off."""

    async def read(self) -> Records:  # type: ignore[override]
        try:
            return await super().read()
        except asyncio.CancelledError:
            raise ConnectionError("closed in the middle of a query") from None


class WaitsInSeek(Waits):
    async def seek(self, point: int | None) -> None:  # type: ignore[override]
        super().seek(point)
        await asyncio.to_thread(self.wait)


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("kind", [WaitsInThread, WaitsInTask, WaitsInDriver, WaitsInSeek])
def test_a_stream_that_waits_holds_no_move_up_and_goes_on_where_it_was(
    tmp_path: Path, kind: type[Waits], there: bool
) -> None:
    """Neither one that succeeds nor one that comes to nothing."""

    async def test(rig: Rig) -> None:
        old, new = await rig.worker("old"), await rig.worker("new")
        waits, busy = kind("waits"), Numbers("busy", 200)
        running = connector([old.me.address], [waits, busy])
        busy.gate = 100
        TASKS[running] = asyncio.create_task(running.serve())
        await eventually(lambda: running.acked.get("busy") == 100 and waits.waits == 1)
        async with asyncio.timeout(10):  # and not 30, after which the worker sends it away
            await old.migrate("i", new.me.address if there else "127.0.0.1:1")
            busy.gate = 200
            await eventually(lambda: running.acked.get("busy") == 200)
        assert (running.link is not None and running.link.address == new.me.address) is there
        waits.go_on.set()
        await rig_done(running)
        numbers = {stream_id("waits"): list(range(1, 21)), stream_id("busy"): list(range(1, 201))}
        assert ids_of(await rig.frames()) == numbers
        assert waits.seeks == ([None, None] if kind is WaitsInSeek else [None, 10])

    rigged(tmp_path / "d", test)


def test_a_stream_that_cancels_itself_ends_the_connector_and_is_not_left_unread(tmp_path: Path) -> None:
    class Gone(Numbers):
        async def read(self) -> Records:  # type: ignore[override]
            raise asyncio.CancelledError

    async def test(rig: Rig) -> None:
        with pytest.raises(SourceFailedError, match="stream 's': it was cancelled, and not by us"):
            async with asyncio.timeout(20):
                await connector([(await rig.worker()).me.address], [Gone("s", 5)]).serve()

    rigged(tmp_path / "d", test)


def test_an_ack_that_cancels_itself_ends_the_connector_and_nobody_is_left_unheard(tmp_path: Path) -> None:
    class Gone(Numbers):
        async def ack(self, point: int) -> None:
            raise asyncio.CancelledError

    async def test(rig: Rig) -> None:
        with pytest.raises(SourceFailedError, match="stream 's': `ack` was cancelled, and not by us"):
            async with asyncio.timeout(20):
                await connector([(await rig.worker()).me.address], [Gone("s", 5)]).serve()

    rigged(tmp_path / "d", test)


def test_a_plain_method_that_was_cancelled_ends_the_connector_too(tmp_path: Path) -> None:
    """As the result of a future does that was."""

    class Gone(Numbers):
        def read(self) -> Records:
            raise asyncio.CancelledError

    async def test(rig: Rig) -> None:
        with pytest.raises(SourceFailedError, match="was cancelled, and not by us"):
            async with asyncio.timeout(20):
                await connector([(await rig.worker()).me.address], [Gone("s", 5)]).serve()

    rigged(tmp_path / "d", test)


def test_a_source_that_always_has_something_lets_others_run_between_its_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or there are no ACKs, and no end when it is told to stop, until credits or buffers are used up."""
    monkeypatch.setattr("penstock.connector.conversation._TURN", 0.0)
    ran: list[int] = []

    class Busy(Numbers):
        def read(self) -> Records:
            asyncio.get_running_loop().call_soon(ran.append, self.next)
            assert self.next == 1 or ran
            return super().read()

    async def test(rig: Rig) -> None:
        await connector([(await rig.worker()).me.address], [Busy("s", 50, batch=10)]).serve()
        assert ids_of(await rig.frames()) == {stream_id("s"): list(range(1, 51))}

    rigged(tmp_path / "d", test)


def test_a_connector_moves_there_and_back_under_load(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        a, b = await rig.worker("a", credits=10), await rig.worker("b", credits=10)
        streams = [Numbers(f"s{n}", 400) for n in range(3)]
        running = connector([a.me.address], list(streams))
        TASKS[running] = asyncio.create_task(running.serve())
        for old, new in ((a, b), (b, a), (a, b)):
            await eventually(partial(serves, old))
            await eventually(partial(grown, old, old.counters.messages + 100))
            await old.migrate("i", new.me.address)
            await eventually(partial(serves, new))
        await moved(rig, running, streams)

    rigged(tmp_path / "d", test)


def test_the_later_of_two_addresses_counts(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        old, new = await rig.worker("old"), await rig.worker("new")
        streams = [Numbers("s", 300)]
        running = connector([old.me.address], list(streams))
        await started(running, streams, 100)
        await old.migrate("i", "127.0.0.1:1")
        await old.migrate("i", new.me.address)
        await moved(rig, running, streams)

    rigged(tmp_path / "d", test)


def test_the_later_of_two_addresses_counts_for_those_too_that_do_not_go_by_themselves(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        old, new = await rig.worker("old", migration_timeout=0.5), await rig.worker("new")
        stays = await rig.peer(old, tokens=["migrate"])
        await stays.ok()
        await stays.open(7)
        await old.migrate("i", "127.0.0.1:1")
        await old.migrate("i", new.me.address)
        (served,) = old.peers
        served._parting.disarm()  # its own time; that of the whole instance is over as soon
        assert await stays.until(lambda frame: isinstance(frame, fr.Restart)) == fr.Restart(new.me.address)
        again = await rig.peer(new)
        await again.ok()
        assert await again.open(7) == fr.NotifyAck(True, 7, fr.NOTHING_SEEN)

    rigged(tmp_path / "d", test)


def test_a_new_address_that_is_dead_brings_the_connector_back(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        old = await rig.worker("old")
        streams = [Numbers("s", 300)]
        running = connector([old.me.address], list(streams))
        await started(running, streams, 100)
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
            await old.migrate("i", f"127.0.0.1:{port}")
            await moved(rig, running, streams)
        assert old.counters.messages == 300

    rigged(tmp_path / "d", test)


def test_a_rollback_while_migrating_cancels_it_and_nothing_is_lost(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        old, new = await rig.worker("old"), await rig.worker("new")
        streams = [Numbers("s", 300)]
        running = connector([old.me.address], list(streams))
        await started(running, streams, 100)
        instance = old.instances["i"]
        await old.migrate("i", new.me.address)
        old.failed(instance, UsageError("as if the claim were lost"))
        await moved(rig, running, streams)
        assert (new.instances, old.moved) == ({}, {}), "it stays where it was"

    rigged(tmp_path / "d", test)


@pytest.mark.parametrize("victim", ["old", "new", "connection"])
def test_a_crash_while_migrating_loses_nothing(tmp_path: Path, victim: str) -> None:
    async def test(rig: Rig) -> None:
        old, new = await rig.worker("old"), await rig.worker("new")
        third = await rig.worker("third")
        streams = [Numbers("s", 300), Numbers("t", 300)]
        running = connector([old.me.address, third.me.address], list(streams))
        await started(running, streams, 100)
        await old.migrate("i", new.me.address)
        if victim == "connection":
            for peer in list(old.peers):
                assert peer.wire.transport is not None
                peer.wire.transport.abort()
        else:
            gone = old if victim == "old" else new
            assert gone._server is not None
            gone._server.close()
            for peer in list(gone.peers):
                assert peer.wire.transport is not None
                peer.wire.transport.abort()
        await moved(rig, running, streams)

    rigged(tmp_path / "d", test)


def test_a_peer_without_the_token_gets_what_is_durable_and_a_restart(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        old, new = await rig.worker("old"), await rig.worker("new")
        peer = await rig.peer(old)
        await peer.ok()
        await peer.open(7)
        await peer.send(fr.Message(7, 1))
        await peer.acked(7, 1)
        await old.migrate("7", new.me.address)
        assert await peer.until(lambda frame: isinstance(frame, fr.Restart)) == fr.Restart(new.me.address)
        again = await rig.peer(new)
        await again.ok()
        assert await again.open(7) == fr.NotifyAck(True, 7, 1)

    rigged(tmp_path / "d", test)


def test_a_peer_that_ignores_migrate_is_sent_away_in_time(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        old, new = await rig.worker("old", migration_timeout=0.2), await rig.worker("new")
        peer = await rig.peer(old, tokens=["migrate"])
        await peer.ok()
        await peer.open(7)
        with pytest.raises(UsageError, match="this worker itself"):
            await old.migrate("i", old.me.address)
        await old.migrate("i", new.me.address)
        host, port = split(new.me.address)
        assert await peer.until(lambda frame: isinstance(frame, fr.Migrate)) == fr.Migrate(host, port)
        assert await peer.open(8) == fr.NotifyAck(False, 8, 0)
        assert await peer.until(lambda frame: isinstance(frame, fr.Restart)) == fr.Restart(new.me.address)
        with pytest.raises(UsageError, match="no instance and no open stream"):
            await new.migrate("nothing", old.me.address)

    rigged(tmp_path / "d", test)


def test_the_old_address_is_tried_before_the_new_one_when_a_migration_is_cut_off(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        first, old, new = [await rig.worker(name) for name in ("first", "old", "new")]
        streams = [Numbers("s", 300)]
        running = connector([first.me.address, old.me.address], list(streams))
        tried: list[str] = []
        connected = running._connected

        async def noted(address: str) -> Link:
            tried.append(address)
            if address != new.me.address or tried.count(address) > 1:
                return await connected(address)
            for peer in list(old.peers):  # on its way to the new one the old one is gone
                assert peer.wire.transport is not None
                peer.wire.transport.abort()
            await asyncio.sleep(60)
            raise AssertionError

        running._connected = noted  # type: ignore[method-assign]
        running._addresses.prefer(old.me.address)
        await started(running, streams, 100)
        await old.migrate("i", new.me.address)
        await moved(rig, running, streams)
        assert tried[:3] == [old.me.address, new.me.address, old.me.address]

    rigged(tmp_path / "d", test)


def test_an_end_that_crosses_a_migrate_is_said_again_at_the_new_worker() -> None:
    """The old worker may have taken it for the end of a stream that goes on elsewhere, and not put it on record."""
    ends: list[str] = []

    async def serve(name: str, migrate: fr.Migrate | None) -> asyncio.Server:
        async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            splitter = Splitter()
            while data := await reader.read(1 << 16):
                for payload in splitter.feed(data):
                    match fr.frame_of(payload):
                        case fr.Hello():
                            writer.write(fr.encode(fr.Ok(500)))
                        case fr.Notify(stream=stream):
                            point = 1 if ends else fr.NOTHING_SEEN
                            writer.write(fr.encode(fr.NotifyAck(True, stream, point)))
                        case fr.Message(stream=stream):
                            writer.write(fr.encode(fr.Ack(1, ((stream, 1),))))
                        case fr.EosMessage(stream=stream):
                            ends.append(name)
                            if migrate is not None:
                                writer.write(fr.encode(migrate))
                            writer.write(fr.encode(fr.Ack(0, ((stream, 1),))))
            writer.close()

        return await asyncio.start_server(peer, "127.0.0.1", 0)

    async def test() -> None:
        async with await serve("new", None) as new:
            there = fr.Migrate("127.0.0.1", new.sockets[0].getsockname()[1])
            async with await serve("old", there) as old, asyncio.timeout(30):
                address = f"127.0.0.1:{old.sockets[0].getsockname()[1]}"
                await Connector([address], "i", [Numbers("s", 1)]).serve()

    asyncio.run(test())
    assert ends == ["old", "new"]


@asynccontextmanager
async def answering(answer: Callable[[Raw, fr.Frame], Awaitable[None]]) -> AsyncIterator[str]:
    """The address of a worker that takes whoever comes, and answers each frame behind HELLO like this."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Raw(reader, writer)
        while (frame := await peer.next()) is not None:
            if isinstance(frame, fr.Hello):
                await peer.send(fr.Ok(500))
            else:
                await answer(peer, frame)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("acknowledges", [True, False])
def test_an_end_that_a_worker_did_not_acknowledge_is_said_again_though_the_last_id_was(
    monkeypatch: pytest.MonkeyPatch, acknowledges: bool
) -> None:
    """Nor is one waited for without end that acknowledges nothing before."""
    monkeypatch.setattr("penstock.connector.conversation._ACK_PATIENCE", 20.0 if acknowledges else 0.1)

    heard: list[str] = []

    async def answer(peer: Raw, frame: fr.Frame) -> None:
        match frame:
            case fr.Notify(stream=stream):
                await peer.send(fr.NotifyAck(True, stream, 3 if "end" in heard else fr.NOTHING_SEEN))
            case fr.Message(stream=stream, id=number):
                heard.append(str(number))
                if acknowledges:
                    await peer.send(fr.Ack(1, ((stream, number),)))
            case fr.EosMessage(stream=stream):
                heard.append("end")
                if heard.count("end") == 1:
                    peer.writer.transport.abort()  # it crashes
                else:
                    await peer.send(fr.Ack(0, ((stream, 3),)))

    async def test() -> None:
        async with answering(answer) as address, asyncio.timeout(30):
            await Connector([address], "i", [Numbers("s", 3)]).serve()

    asyncio.run(test())
    assert heard == ["1", "2", "3", "end", "end"]


def test_an_end_is_said_once_the_last_id_is_acknowledged_and_not_before() -> None:
    """An ACK of the last id that passes the end on its way would be taken for that of the end."""
    early: list[fr.Frame] = []

    async def answer(peer: Raw, frame: fr.Frame) -> None:
        match frame:
            case fr.Notify(stream=stream):
                await peer.send(fr.NotifyAck(True, stream, fr.NOTHING_SEEN))
            case fr.Message(stream=stream, id=3):
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.3):
                        if (hasty := await peer.next()) is not None:
                            early.append(hasty)
                await peer.send(fr.Ack(3, ((stream, 3),)))
            case fr.EosMessage(stream=stream):
                await peer.send(fr.Ack(0, ((stream, 3),)))

    async def test() -> None:
        async with answering(answer) as address, asyncio.timeout(30):
            await Connector([address], "i", [Numbers("s", 3)]).serve()

    asyncio.run(test())
    assert early == []


def test_a_read_that_outlives_its_connection_is_over_before_the_next_seek(tmp_path: Path) -> None:
    """Or it would move the source on, and what it read would be missing."""

    class Stuck(Numbers):
        blocking = True

        def __init__(self) -> None:
            super().__init__("s", 300)
            self.reading, self.go_on = threading.Event(), threading.Event()

        def read(self) -> Records:
            if self.next == 101:
                self.reading.set()
                self.go_on.wait(60)
            return super().read()

    async def test(rig: Rig) -> None:
        worker = await rig.worker(credits=1000)
        stream = Stuck()
        running = connector([worker.me.address], [stream])
        serving = asyncio.create_task(running.serve())
        await asyncio.to_thread(stream.reading.wait, 60)
        for peer in list(worker.peers):
            assert peer.wire.transport is not None
            peer.wire.transport.abort()
        await eventually(lambda: bool(worker.instances["i"].registry.held))
        stream.go_on.set()
        await serving
        assert ids_of(await rig.frames()) == {stream_id("s"): list(range(1, 301))}

    rigged(tmp_path / "d", test)


def test_a_worker_that_is_not_there_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as nobody:  # bound and not listening: connections are refused
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        waiting = Connector(
            [address], "i", [IteratorStream("n", lambda _: iter(()))], cookie=COOKIE, patience=0.5
        )
        with caplog.at_level(logging.INFO, "penstock.connector.source"), pytest.raises(SourceFailedError):
            waiting.run()
    told = [(one.levelno, address in one.getMessage()) for one in caplog.records]
    assert told[0] == (logging.WARNING, True)
    assert {level for level, _ in told[1:]} == {logging.INFO}
