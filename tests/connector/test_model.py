"""A worker against a plain one: the same frames, cut anywhere, give the same log, the same acknowledgements and the
same end, whether messages are looked at together or one by one.

The log here is slow and keeps what it was given where it lies, as the real one does: what it holds is looked at only
when it says that it is durable.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.connector import buffers, serving
from penstock.connector import frames as fr
from penstock.connector import intake as intake_module
from penstock.connector.frames import NOTHING_SEEN
from penstock.connector.framing import Splitter
from penstock.connector.instancelog import InstanceLog, OnDurable
from penstock.connector.instances import Instance
from penstock.connector.intake import Run
from penstock.connector.records import Point
from penstock.connector.serving import Peer
from penstock.connector.session import IllegalFrameError, Session, Side
from penstock.connector.settings import WorkerSettings
from penstock.connector.worker import Worker

STREAMS = (1, 2, 3, 2**64 - 2)
POINTS = {1: Point(100, name="s"), 2: Point(name="s"), 3: Point(2**63, name="s"), 2**64 - 2: Point(name="s")}
LIMIT = 3000
PARTITIONS = 2
NOTIFY, EOS = bytes([fr.Tag.NOTIFY]), bytes([fr.Tag.EOS_MESSAGE])


class HeldLog(InstanceLog):
    """What was given, in order, and what of it is durable: as many as `settle` was told."""

    def __init__(self) -> None:
        self.points = dict(POINTS)
        self.journals: list[bytes] = [b""] * PARTITIONS
        self.durable = {(stream, point.last) for stream, point in POINTS.items()}
        self._held: deque[tuple[int, Sequence[memoryview], dict[int, int], OnDurable | None]] = deque()

    def partition_of(self, stream: int) -> int:
        return stream % PARTITIONS

    def messages(self, run: Run, on_durable: OnDurable) -> None:
        self._held.append((run.partition, run.pieces, dict(run.lasts), on_durable))

    def opened(self, stream: int, name: str) -> None:
        raise AssertionError("all names are known")

    def ended(self, stream: int, on_durable: OnDurable) -> None:
        frame = memoryview(fr.encode(fr.EosMessage(stream)))
        self._held.append((self.partition_of(stream), [frame], {}, on_durable))

    @property
    def pending_bytes(self) -> int:
        return sum(len(piece) for _, pieces, _, _ in self._held for piece in pieces)

    async def flush(self) -> None:
        self.settle(len(self._held))

    async def close(self) -> None:
        pass

    def settle(self, count: int) -> None:
        for _ in range(min(count, len(self._held))):
            partition, pieces, lasts, on_durable = self._held.popleft()
            self.journals[partition] += b"".join(pieces)
            self.durable |= set(lasts.items())
            if on_durable is not None:
                on_durable()

    @property
    def held(self) -> int:
        return len(self._held)


class HeldWorker(Worker):
    """Puts everything into one such log."""

    def __init__(self, settings: WorkerSettings) -> None:
        super().__init__(settings)
        self.log = HeldLog()

    async def open_log(self, instance: Instance) -> InstanceLog:
        return self.log


class Line(asyncio.Transport):
    """What a worker writes, whether it reads, and what it acknowledged before the log had it."""

    def __init__(self, log: HeldLog) -> None:
        super().__init__()
        self.told: list[fr.Frame] = []
        self.early: list[tuple[int, int]] = []
        self._log = log
        self.reads = True
        self._splitter = Splitter()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        for frame in map(fr.frame_of, self._splitter.feed(bytes(data))):
            self.told.append(frame)
            if isinstance(frame, fr.Ack):
                self.early += (point for point in frame.points if point not in self._log.durable)

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def can_write_eof(self) -> bool:
        return False

    def abort(self) -> None:
        pass

    def pause_reading(self) -> None:
        assert self.reads
        self.reads = False

    def resume_reading(self) -> None:
        assert not self.reads
        self.reads = True


@dataclass
class Plain:
    """The frames one by one, by the session's tables: what should be in the log, and how it should end."""

    journals: list[bytes] = field(default_factory=lambda: [b""] * PARTITIONS)
    lasts: dict[int, int] = field(default_factory=dict)
    error: str = ""
    spent: int = 0
    session: Session = field(default_factory=lambda: Session(strict_credits=False))

    def __post_init__(self) -> None:
        self.session.frame(Side.CONNECTOR, fr.Hello("", b"", "", ""))
        self.session.frame(Side.WORKER, fr.Ok(0))
        for stream in STREAMS:
            self.session.frame(Side.CONNECTOR, fr.Notify(stream, "s", 0))
            self.session.frame(Side.WORKER, fr.NotifyAck(True, stream, POINTS[stream].last))

    def take(self, raw: bytes) -> None:
        """A frame, unless the connection has ended."""
        if self.error:
            return
        try:
            length = int.from_bytes(raw[:4], "big")
            if length == 0:
                raise fr.FrameError("a frame of length 0")
            if length > LIMIT:
                raise fr.FrameError(f"a frame of {length:,} bytes, the limit is {LIMIT:,}")
            self._judge(raw, fr.frame_of(raw[4:]))
        except (fr.FrameError, IllegalFrameError) as error:
            self.error = error.message

    def _judge(self, raw: bytes, frame: fr.Frame) -> None:
        before = self.session.last.get(frame.stream) if isinstance(frame, fr.Message) else None
        self.session.frame(Side.CONNECTOR, frame)
        if isinstance(frame, (fr.Message, fr.Notify)):
            self.spent += 1
        if isinstance(frame, fr.Message) and self.session.last[frame.stream] != before:
            self.journals[frame.stream % PARTITIONS] += raw
            self.lasts[frame.stream] = frame.id
        elif isinstance(frame, fr.EosMessage):
            self.journals[frame.stream % PARTITIONS] += raw
        elif isinstance(frame, fr.Error):
            self.error = "gave up"


def message(stream: int, number: int, time: int = 0, key: bytes = b"", body: bytes = b"") -> bytes:
    return fr.encode(fr.Message(stream, number, time, key, body))


IDS = st.one_of(
    st.integers(0, 300), st.integers(2**63 - 3, 2**63 + 3), st.integers(2**64 - 5, 2**64 - 2), st.just(0)
)
MESSAGES = st.builds(
    message,
    st.sampled_from(STREAMS),
    IDS,
    st.integers(-(2**63), 2**63 - 1),
    st.binary(max_size=6),
    st.binary(max_size=40),
)
OTHERS = st.one_of(
    st.builds(lambda stream: fr.encode(fr.Notify(stream, "s", 0)), st.sampled_from(STREAMS)),
    st.builds(lambda stream: fr.encode(fr.EosMessage(stream)), st.sampled_from(STREAMS)),
)
BAD = st.sampled_from(
    [
        bytes(4),
        message(1, NOTHING_SEEN),
        message(2**64 - 2, NOTHING_SEEN, body=b"x"),
        message(9, 5),
        message(1, 200, body=bytes(LIMIT - 26)),
        fr.encode(fr.Ok(5)),
        fr.encode(fr.Error("enough")),
        b"\0\0\0\x05\x05\0\0\0\0",
        b"\0\0\0\x1b\x05" + bytes(7) + b"\1" + bytes(6) + b"\xff\xff" + bytes(8) + b"\0\1",
        b"\0\0\0\1\x09",
        fr.encode(fr.EosMessage(77)),
    ]
)


@st.composite
def rows(draw: st.DrawFn) -> list[bytes]:
    """Many messages that are alike, or alike but for their lengths; some repeated, some of another stream."""
    stream, first, step = draw(st.sampled_from(STREAMS)), draw(IDS), draw(st.sampled_from([1, 1, 2, 0]))
    key, body = draw(st.binary(max_size=3)), draw(st.binary(max_size=5))
    longer = draw(st.sampled_from([0, 0, 7, LIMIT // 20]))
    turns = draw(st.sampled_from([0, 0, 9, 40]))
    made = []
    for number in range(draw(st.integers(50, 250))):
        turned = STREAMS[0] if turns and number % turns > turns // 2 else stream
        made.append(
            message(
                turned,
                min(first + number * step, 2**64 - 2),
                -number,
                key,
                body + bytes(number * longer % 31),
            )
        )
    for _ in range(draw(st.integers(0, 2))):
        made[draw(st.integers(0, len(made) - 1))] = draw(
            st.one_of(
                MESSAGES,
                OTHERS,
                st.builds(message, st.just(stream), IDS, key=st.just(key), body=st.just(body)),
            )
        )
    return made


def in_time(sent: list[bytes]) -> list[bytes]:
    """Without what is said of a stream that has ended: whether it is closed by then depends on the log."""
    ended: set[bytes] = set()
    kept = []
    for frame in sent:
        if frame[4:5] not in (NOTIFY, EOS) or frame[5:13] not in ended:
            kept.append(frame)
        if frame[4:5] == EOS:
            ended.add(frame[5:13])
    return kept


SENT = st.tuples(
    st.lists(st.one_of(rows(), st.lists(MESSAGES, max_size=8), st.lists(OTHERS, max_size=1)), max_size=6),
    st.one_of(st.just([]), st.lists(BAD, min_size=1, max_size=1)),
    st.lists(MESSAGES, max_size=3),
).map(lambda parts: in_time([frame for row in (*parts[0], parts[1], parts[2]) for frame in row]))


class Talk:
    """A peer of a worker, fed by hand."""

    def __init__(self, worker: HeldWorker) -> None:
        self.worker, self.log = worker, worker.log
        self.peer, self.line = Peer(worker, 1), Line(worker.log)
        self.peer.connection_made(self.line)

    async def begin(self) -> None:
        await self.bring(fr.encode(fr.Hello("0.0.1", b"", "p", "i")))
        assert self.peer._joining is not None
        await self.peer._joining
        await self.bring(b"".join(fr.encode(fr.Notify(stream, "s", 0)) for stream in STREAMS))
        await asyncio.sleep(0)
        assert sum(isinstance(frame, fr.NotifyAck) and frame.success for frame in self.line.told) == 4

    async def bring(self, data: bytes) -> None:
        """Bytes as a socket would bring them: none while the worker does not read."""
        while data:
            while not self.line.reads:
                self.log.settle(1)
                await asyncio.sleep(0)
            room = self.peer.get_buffer(-1)
            taken = min(len(room), len(data))
            room[:taken] = data[:taken]
            del room
            self.peer.buffer_updated(taken)
            data = data[taken:]

    async def quiet(self) -> None:
        while self.log.held:
            self.log.settle(1)
            await asyncio.sleep(0)
        for _ in range(3):
            await asyncio.sleep(0)


async def talked(sent: list[bytes], sizes: Sequence[int], settled: Sequence[int], pending: int) -> None:
    worker = HeldWorker(WorkerSettings(max_frame=LIMIT, max_pending=pending, partitions=PARTITIONS))
    talk, plain = Talk(worker), Plain()
    await talk.begin()
    for frame in sent:
        plain.take(frame)
    raw, at, turn = b"".join(sent), 0, 0
    while at < len(raw):
        size = sizes[turn % len(sizes)]
        await talk.bring(raw[at : at + size])
        talk.log.settle(settled[turn % len(settled)])
        await asyncio.sleep(0)
        at, turn = at + size, turn + 1
    await talk.quiet()
    assert talk.log.journals == plain.journals
    errors = [frame.reason for frame in talk.line.told if isinstance(frame, fr.Error)]
    assert errors == ([plain.error] if plain.error not in ("", "gave up") else [])
    assert talk.line.early == []
    if not plain.error:
        given = sum(frame.credits for frame in talk.line.told if isinstance(frame, (fr.Ok, fr.Ack)))
        refusals = sum(isinstance(frame, fr.NotifyAck) and not frame.success for frame in talk.line.told)
        # What a refusal cost comes back later.
        assert given == worker.settings.credits + len(STREAMS) + plain.spent - refusals
        newest = {
            stream: point
            for frame in talk.line.told
            if isinstance(frame, fr.Ack)
            for stream, point in frame.points
        }
        assert {stream: newest[stream] for stream in plain.lasts} == plain.lasts
        assert worker.counters.messages + worker.counters.dropped + refusals == plain.spent
    talk.peer._end()


@settings(max_examples=150, deadline=None)
@given(
    SENT,
    st.lists(st.one_of(st.integers(1, 70), st.integers(3000, 20_000)), min_size=1, max_size=5),
    st.lists(st.integers(0, 3), min_size=1, max_size=4),
    st.sampled_from([64, 2048, intake_module._SMALL]),
    st.sampled_from([300, 5000, 1 << 24]),
)
def test_what_is_sent_ends_as_if_each_frame_had_come_alone(
    sent: list[bytes], sizes: list[int], settled: list[int], small: int, pending: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(serving, "REFUSAL_DELAY", 3600.0)
        patched.setattr(intake_module, "_SMALL", small)
        patched.setattr(intake_module, "_FEW", small // 2)
        patched.setattr(intake_module, "_WORTH_KEEPING", small // 2)
        patched.setattr(intake_module, "SIZE", 4 * small)
        patched.setattr(buffers, "SIZE", 4 * small)
        patched.setattr(buffers, "MOST", 3)
        asyncio.run(asyncio.wait_for(talked(sent, sizes, settled, pending), 20))


def test_messages_that_each_go_to_another_journal_wait_in_bounded_memory() -> None:
    """Each is then a run of its own, and takes much more than its bytes."""

    async def test() -> None:
        talk = Talk(HeldWorker(WorkerSettings(max_pending=1 << 20, partitions=PARTITIONS)))
        await talk.begin()
        turns = iter(range(101, 5000))
        while talk.line.reads:
            await talk.bring(message(1, number := next(turns)) + message(2, number))
        assert 100 < talk.log.held < 1000
        talk.log.settle(talk.log.held)
        assert talk.line.reads
        talk.peer._end()

    asyncio.run(test())
