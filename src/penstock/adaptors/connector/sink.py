"""The writing half of `connector`: each batch one transaction at a sink, by two-phase commit.

    task      connects under the name of its lane, sends its lines and PHASE1, reports the vote and closes
    runner    when all have voted to commit, the offset log takes the decision, and with it where each lane ends
    runner    connects under each name once more and sends PHASE2

A lane is a worker name, `PIPELINE.SINK.NUMBER`: all messages of a key are in the same lane, in every batch. Only the
runner decides. A task that finds its own transaction voted on, by an attempt before it, asks for the vote again; one
that finds another's, or an offset that it does not expect, fails and leaves everything as it is. A sink that does not
vouch for the offset that it tells is believed nothing about it: its vote is what tells then that bytes are missing.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from penstock.adaptors.base import (
    AbortedError,
    Finding,
    Guarantee,
    Order,
    Refusal,
    Sink,
    SinkPosition,
    Stage,
    Staged,
    Stager,
    Voting,
)
from penstock.adaptors.connector import Connector
from penstock.adaptors.formats.linewriter import lines_of
from penstock.adaptors.staging import Tally
from penstock.base import faults
from penstock.base.errors import AwayError, PenstockError, UsageError
from penstock.connector.sinklink import SinkLink
from penstock.connector.twopc import Listed, SinkError, Who, decided, outcome
from penstock.log.offsets import Lane

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

LONGEST: Final = 8 << 20
"""Bytes of a frame. A message may be as long as the longest frame that sinks take, with nothing around it."""

AT_ONCE: Final = 8
"""Lanes that the runner talks to at the same time."""


class Plan(msgspec.Struct, frozen=True):
    """What the tasks of one job are told: nothing secret."""

    job: str
    begin: int
    end: int
    generation: int
    starts: dict[str, int]
    """Where the bytes of each lane go on."""

    def transaction(self, worker: str) -> str:
        """The same for all attempts of a task, and for no other job."""
        return f"{worker}:{self.job}:g={self.generation}:from={self.begin}:c_id={self.end}"


class Prepared(msgspec.Struct, frozen=True):
    """What a task has prepared at the sink, and how the sink voted."""

    worker: str
    transaction: str
    start: int
    end: int
    commit: bool


class ConnectorSink(Sink):
    """Exactly once, as far as the sink keeps its word."""

    def __init__(self, settings: Connector) -> None:
        self._settings = settings
        self.lanes = settings.connections
        self.order = Order.TOTAL if self.lanes == 1 else Order.PER_KEY
        self.guarantee = Guarantee.EXACTLY_ONCE if settings.transactional else Guarantee.AT_LEAST_ONCE

    def inspect(self, namespaces: Sequence[str] | None = None) -> Sequence[Finding]:
        """Whether the sink answers and knows our cookie. It is asked without a name, so it keeps nothing of it."""
        try:
            link_to(self._settings, "", 0).close()
        except AwayError as error:
            return [Finding(error.message)]
        except SinkError as error:
            if any(word in error.message.lower() for word in ("cookie", "version")):
                return [Finding(error.message, fatal=True)]
        return ()

    def stager(self) -> Stager:
        return ConnectorStager(self._settings, self.name or "sink")

    def publisher(self) -> ConnectorPublisher:
        return ConnectorPublisher(self._settings, self.name or "sink")

    def staging(self, scratch: Path) -> Path:
        return scratch


def link_to(settings: Connector, worker: str, offset: int) -> SinkLink:
    who = Who(worker, worker.rpartition(".")[0] or worker, settings.cookie.encode())
    return SinkLink(settings.address, who, offset, settings.timeout)


def patiently(settings: Connector, worker: str, offset: int) -> SinkLink:
    """A link under a name that an attempt before this one may still hold for a moment."""
    deadline = time.monotonic() + settings.timeout
    pause = 0.05
    while True:
        try:
            return link_to(settings, worker, offset)
        except SinkError as error:
            if "already active" not in error.message or time.monotonic() > deadline:
                raise
        time.sleep(pause)
        pause = min(pause * 2, 1.0)


class ConnectorStager(Stager):
    """Sends the rows of one lane, and asks for the vote."""

    def __init__(self, settings: Connector, name: str) -> None:
        self._settings = settings
        self._name = name

    def stage(self, stage: Stage, rows: Iterator[pa.RecordBatch]) -> Staged:
        tally = Tally(stage.skip_below)
        refused: list[Refusal] = []
        plan = msgspec.json.decode(stage.plan, type=Plan)
        sending = _Sending(self._settings, plan, f"{self._name}.{stage.lane}")
        with closing(sending):
            for batch in map(tally.fresh, rows):
                if not batch.num_rows:
                    continue
                lines, taken, refusals = lines_of(batch, envelope=self._settings.envelope)
                refused += refusals
                tally.add(taken)
                sending.write(lines)
            prepared = None if refused else sending.voted()  # a batch with refused messages is staged anew
        part = msgspec.json.encode(prepared).decode() if prepared is not None else ""
        return tally.staged(part, sending.size, refused)


class _Sending:
    """The bytes of one lane on their way. Connects when the first ones come."""

    def __init__(self, settings: Connector, plan: Plan, worker: str) -> None:
        self._settings = settings
        self._worker = worker
        self._transaction = plan.transaction(worker)
        self._start = plan.starts.get(worker, 0)
        self._link: SinkLink | None = None
        self._again = False
        self.size = 0

    def write(self, lines: memoryview) -> None:
        if not len(lines):
            return
        if self._link is None:
            self._link = self._connected()
        self.size += len(lines)
        if self._again:
            return
        for piece in _pieces(lines, self._settings.frame_bytes):
            self._link.write(piece)

    def voted(self) -> Prepared | None:
        """Ask for the vote on what was sent; None if there was nothing."""
        if self._link is None:
            return None
        end = self._start + self.size
        with faults.step("vote"):
            commit = self._link.vote(self._transaction, (self._start, end))
        return Prepared(self._worker, self._transaction, self._start, end, commit)

    def close(self) -> None:
        if self._link is not None:
            self._link.close()

    def _connected(self) -> SinkLink:
        link = patiently(self._settings, self._worker, self._start)
        listed = link.listed.transactions
        self._again = listed == (self._transaction,)
        if listed and not self._again:
            link.close()
            raise PenstockError(f"worker {self._worker}: transaction {listed[0]} is open at the sink")
        if not listed and is_strange(link.listed, self._start, self._settings):
            link.close()
            raise PenstockError(strange_offset(self._worker, link.listed.offset, self._start))
        return link


def _pieces(lines: memoryview, size: int) -> Iterator[memoryview]:
    """The lines in frames of about `size` bytes, cut between lines; a longer line has frames of its own."""
    whole, at = bytes(lines), 0
    while at < len(whole):
        end = whole.rfind(b"\n", at, at + size) + 1 if at + size < len(whole) else len(whole)
        if end <= at:
            end = min(whole.find(b"\n", at) + 1 or len(whole), at + LONGEST)
        yield memoryview(whole)[at:end]
        at = end


def is_strange(listed: Listed, expected: int, settings: Connector) -> bool:
    return settings.check_offsets and listed.vouched and listed.offset != expected


def strange_offset(worker: str, offset: int, expected: int) -> str:
    return (
        f"worker {worker}: the sink expects byte {offset} next, by the offset log it is {expected}: something else has "
        "written under this name, or the sink was brought back from a copy"
    )


class ConnectorPublisher(Voting):
    """The half that decides. It stays connected to nobody: PHASE2 goes over connections of its own."""

    def __init__(self, settings: Connector, name: str) -> None:
        self._settings = settings
        self.workers = [f"{name}.{number}" for number in range(settings.connections)]
        self._clean = False

    def open(self, start: SinkPosition) -> SinkPosition:
        """Its position is the offset log's."""
        return start

    def publish(self, parts: Sequence[Staged], position: SinkPosition) -> None:
        raise PenstockError("a connector sink is told decisions, it does not publish")

    def close(self) -> None:
        self._clean = False

    def settle(self, decided: Mapping[str, Lane], confirm: Callable[[], None]) -> None:
        names = sorted({*self.workers, *decided})
        self._clean = False
        with faults.step("settle"):
            _each(names, lambda worker: self._settle_one(worker, decided.get(worker), confirm))
        self._clean = True

    def _settle_one(self, worker: str, lane: Lane | None, confirm: Callable[[], None]) -> None:
        end = lane.end if lane is not None else 0
        committed = {lane.transaction} if lane is not None else set[str]()
        with closing(patiently(self._settings, worker, end)) as link:
            decisions = decided(link.listed.transactions, committed)
            if not decisions and is_strange(link.listed, end, self._settings):
                raise UsageError(
                    strange_offset(worker, link.listed.offset, end),
                    hint="give the pipeline or the sink another name, or bring the state back that belongs to it",
                )
            if not all(commit for _, commit in decisions):
                confirm()
            link.tell(decisions)

    def begin(
        self,
        decided: Mapping[str, Lane],
        confirm: Callable[[], None],
        span: tuple[int, int],
        generation: int,
    ) -> str:
        if not self._clean:
            self.settle(decided, confirm)
        self._clean = False
        starts = {worker: lane.end for worker, lane in decided.items()}
        return msgspec.json.encode(Plan(uuid.uuid4().hex[:12], *span, generation, starts)).decode()

    def name_of(self, plan: str) -> str:
        return msgspec.json.decode(plan, type=Plan).job

    def votes(self, parts: Sequence[Staged]) -> dict[str, bool]:
        return {one.worker: one.commit for one in _prepared(parts)}

    def judge(self, parts: Sequence[Staged]) -> dict[str, Lane]:
        prepared = _prepared(parts)
        if prepared and not outcome({one.worker: one.commit for one in prepared}):
            against = next(one for one in prepared if not one.commit)
            raise AbortedError(
                f"the sink at {self._settings.to} voted to abort {against.transaction}",
                hint="its log says why; `penstock connector sink list` shows it for sinks of the kit",
            )
        return {one.worker: Lane(one.end, one.transaction) for one in prepared}

    def tell(self, lanes: Mapping[str, Lane]) -> None:
        with faults.step("phase2"):
            _each(sorted(lanes), lambda worker: self._tell_one(worker, lanes[worker]))
        self._clean = True

    def _tell_one(self, worker: str, lane: Lane) -> None:
        with closing(patiently(self._settings, worker, lane.end)) as link:
            link.tell(decided(link.listed.transactions, {lane.transaction}))

    def leave(self, workers: Sequence[str]) -> None:
        """Whatever is open there under the name that tells it, of a task that came too late, is settled afterwards."""
        with faults.step("workers left"), closing(patiently(self._settings, self.workers[0], 0)) as link:
            link.leave(workers)


def _prepared(parts: Sequence[Staged]) -> list[Prepared]:
    return [msgspec.json.decode(part.part, type=Prepared) for part in parts if part.part]


def _each(names: Iterable[str], work: Callable[[str], T]) -> list[T]:
    """Do it for all, a few at once; all are tried before the first error is raised."""
    wanted = list(names)
    if len(wanted) < 2:
        return [work(name) for name in wanted]
    with ThreadPoolExecutor(min(AT_ONCE, len(wanted))) as pool:
        futures = [pool.submit(work, name) for name in wanted]
    return [future.result() for future in futures]
