"""The logs against models of a few lines: random work, crashes between any two steps, restarts, operators.

One broker serves all examples; each has pipelines of its own.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run

from penstock.base import faults
from penstock.journal.client import BrokerGoneError, Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.log import offsets
from penstock.log.commitlog import CommitLog, LogReader
from penstock.log.compaction import STEPS, compact
from penstock.log.message import Message, MessageOffset, Mode, Position
from penstock.log.offsets import Commit, OffsetLog, SinkOffsets
from penstock.log.ownership import InDoubtError
from penstock.log.positions import LogCache, NamespaceState
from penstock.log.schema import Field, Kind, Schema, Told, still

NOW = 1_700_000_000_000_000
NAMES = ("A", "B", "C", "D")
SCHEMAS = [Schema((Field("id", kind),)) for kind in (Kind.INT, Kind.STRING)]

QUICK = settings(
    max_examples=6,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
LONG = settings(QUICK, max_examples=120, stateful_step_count=60)

_numbers = itertools.count()


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    memory = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(prefix="models-", dir=memory if memory.is_dir() else None) as name,
        EmbeddedBroker(Path(name) / "data") as broker,
        Client(broker.address) as client,
    ):
        yield client


class CrashError(Exception):
    """Stands for the end of the process."""


@contextmanager
def crashing_at(step: str | None) -> Iterator[None]:
    """The first time this step is entered, the process ends."""
    real = faults.step

    @contextmanager
    def watched(name: str) -> Iterator[None]:
        if name == step:
            raise CrashError
        yield

    faults.step = watched
    try:
        with suppress(CrashError):
            yield
    finally:
        faults.step = real


def readable(namespaces: Mapping[str, NamespaceState], begin: int) -> dict[str, NamespaceState]:
    """What is said of messages from `begin` on."""
    return {
        ns: msgspec.structs.replace(
            known, told=[Told(max(one.since, begin), one.schema) for one in still(known.told, begin)]
        )
        for ns, known in namespaces.items()
    }


class CompactionMachine(RuleBasedStateMachine):
    """Appends, closed segments, watermarks, compactions that crash anywhere, restarts with the cache and without.

    The model: the namespaces of all messages; the borders of segments; up to which border a generation was kept, and
    up to which one the log was trimmed. Readable is the newest of each namespace before the one, as far as it lies
    before the other, and everything from there on.
    """

    client: Client

    @initialize()
    def begin(self) -> None:
        self.name = f"model{next(_numbers)}"
        self.caches = tempfile.TemporaryDirectory(prefix="cache-")
        self.messages: list[str] = []
        self.borders: list[int] = []
        self.written = True
        self.kept = self.trimmed = -1
        self.watermark = 0
        self.namespaces: dict[str, NamespaceState] = {}
        self.log = self.opened("0")

    def opened(self, cache: str) -> CommitLog:
        self.cache = Path(self.caches.name) / cache
        return CommitLog(self.client, self.name, self.cache, 1 << 20, NOW)

    def teardown(self) -> None:
        if hasattr(self, "caches"):
            self.caches.cleanup()

    @rule(
        keys=st.lists(st.sampled_from(NAMES), max_size=6),
        told=st.sets(st.sampled_from(NAMES)),
        completed=st.sets(st.sampled_from(NAMES), max_size=1),
        schema=st.none() | st.sampled_from(SCHEMAS),
    )
    def append(self, keys: list[str], told: set[str], completed: set[str], schema: Schema | None) -> None:
        first = len(self.messages)
        positions: dict[str, Position] = {ns: {"n": first} for ns in told}
        schemas = {keys[0]: schema} if keys and schema is not None else {}
        messages = [Message(ns, b'{"n":%d}' % (first + i)) for i, ns in enumerate(keys)]
        before = self.log.point
        self.log.append(messages, positions, sorted(completed), NOW, schemas)
        self.written |= self.log.point != before
        self.messages += keys
        for ns in {*keys, *told, *completed}:
            known = self.namespaces.setdefault(ns, NamespaceState())
            if ns in keys:
                known.offset = max(i for i, key in enumerate(self.messages) if key == ns)
                known.mode = Mode.COPY
            known.position = positions.get(ns, known.position)
            if ns in schemas and known.schema != schemas[ns]:
                known.told = [*(one for one in known.told if one.since < first), Told(first, schemas[ns])]
            if ns in completed:
                known.mode, known.backfill, known.where, known.before = Mode.COMPLETE, False, None, None

    @precondition(lambda self: self.namespaces)
    @rule(data=st.data(), where=st.none() | st.just("id > 1"))
    def backfill(self, data: st.DataObject, where: str | None) -> None:
        ns = data.draw(st.sampled_from(sorted(self.namespaces)))
        self.log.backfill(ns, where, NOW)
        self.written = True
        known = self.namespaces[ns]
        stood = known.before if known.backfill else known.position
        known.mode, known.position, known.backfill, known.where = Mode.COPY, None, True, where
        known.before = stood if where is not None else None

    @precondition(lambda self: self.written)
    @rule()
    def close(self) -> None:
        self.client.roll(self.log.journal)
        self.borders.append(len(self.messages))
        self.written = False

    @rule(share=st.integers(0, 4))
    def acknowledge(self, share: int) -> None:
        self.watermark = max(self.watermark, len(self.messages) * share // 4)

    @rule(crash_at=st.none() | st.sampled_from(STEPS))
    def compact(self, crash_at: str | None) -> None:
        may_go = [
            i
            for i, border in enumerate(self.borders)
            if border <= self.watermark and border < len(self.messages)
        ]
        with crashing_at(crash_at):
            compact(self.log, MessageOffset(self.watermark), now=NOW)
        cut = max(may_go, default=-1)
        if cut > self.kept and crash_at not in STEPS[:3]:
            self.kept = cut
        if cut <= self.kept and crash_at != "compact trim":
            self.trimmed = max(self.trimmed, cut)
        self.check(self.log)

    @rule(cache=st.sampled_from(["0", "1", "2"]))
    def restart(self, cache: str) -> None:
        self.log = self.opened(cache)
        self.written = True
        self.check(self.log)

    def check(self, log: CommitLog) -> None:
        first, kept = self.offset(self.trimmed), self.offset(self.kept)
        newest = {ns: i for i, ns in enumerate(self.messages[:kept])}
        expected = [*sorted(i for i in newest.values() if i < first), *range(first, len(self.messages))]
        for reader in (log.reader, LogReader(self.client, log.journal, LogCache(self.cache, log.journal))):
            shown = [record.offset for record in reader.show(0, len(self.messages))]
            assert shown == expected
            assert reader.oldest() == (expected[0] if expected else None)
        for state in (log.state, LogReader(self.client, log.journal, None).state()):
            assert state.next == len(self.messages)
            assert readable(state.namespaces, kept) == readable(self.namespaces, kept)
        for ns, resume in log.resume().items():
            known = self.namespaces[ns]
            assert (resume.position, resume.offset) == (known.position or {}, known.offset)
            assert (resume.message is not None) == (known.offset in expected)

    def offset(self, border: int) -> int:
        return self.borders[border] if border >= 0 else 0


def test_compaction_is_what_the_model_says(client: Client) -> None:
    CompactionMachine.client = client
    run(CompactionMachine, settings=QUICK)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_soak_compaction_is_what_the_model_says(client: Client) -> None:
    CompactionMachine.client = client
    run(CompactionMachine, settings=LONG)


@dataclass(frozen=True)
class Has:
    """What a sink has: the whole model."""

    commit: Commit = field(default_factory=Commit)
    namespaces: dict[str, int] = field(default_factory=dict)

    def moved(self, n: int, ns: str, **counts: int) -> Has:
        """Behind the next n messages, the last of them of this namespace."""
        watermark = self.commit.watermark + n
        after = msgspec.structs.replace(self.commit, watermark=watermark, **counts)
        return Has(after, {**self.namespaces, **({ns: watermark - 1} if n else {})})


class Losing:
    """A client that loses the answer to the next append: it has landed, or has not."""

    def __init__(self, client: Client, *, lands: bool) -> None:
        self._client, self._lands, self._real = client, lands, client.append

    def __enter__(self) -> None:
        def append(journal: str, content: bytes, **options: object) -> object:
            self._client.append = self._real  # type: ignore[method-assign]
            if self._lands:
                self._real(journal, content, **options)  # type: ignore[arg-type]
            raise BrokerGoneError("the answer is lost")

        self._client.append = append  # type: ignore[method-assign, assignment]

    def __exit__(self, *_: object) -> None:
        self._client.append = self._real  # type: ignore[method-assign]


some = st.integers(0, 5)
names = st.sampled_from(NAMES)


class OffsetsMachine(RuleBasedStateMachine):
    """A sink's offsets: batches that go well or fail in part, messages dropped, crashes, restarts, operators' edits.

    The model holds what is durable and what was noted since; a crash goes back from the one to the other.
    """

    client: Client

    @initialize()
    def begin(self) -> None:
        self.name = f"sink{next(_numbers)}"
        self.durable = self.noted = Has()
        self.log = OffsetLog(self.client, "model", self.name, NOW)

    def commit(self, has: Has) -> None:
        changed = {ns: o for ns, o in has.namespaces.items() if self.noted.namespaces.get(ns) != o}
        self.log.commit(has.commit, changed, NOW)
        self.durable = self.noted = has

    @rule(n=some, ns=names)
    def bulk_ok(self, n: int, ns: str) -> None:
        self.commit(self.noted.moved(n, ns, delivered=self.noted.commit.delivered + n))

    @rule(n=some, ns=names)
    def deliver_one_at_a_time(self, n: int, ns: str) -> None:
        for _ in range(n):
            self.bulk_ok(1, ns)

    @rule(n=some, ns=names)
    def drop(self, n: int, ns: str) -> None:
        """Acknowledged without being sent; written at the next interval."""
        self.noted = self.noted.moved(n, ns, dropped=self.noted.commit.dropped + n)
        self.log.note(self.noted.commit, self.noted.namespaces)

    @rule()
    def interval(self) -> None:
        assert self.log.flush(NOW) == (self.noted is not self.durable)
        self.durable = self.noted

    @rule(good=some, bad=st.integers(1, 5), ns=names)
    def partial_failure(self, good: int, bad: int, ns: str) -> None:
        careful = self.noted.commit.watermark + good + bad
        self.commit(self.noted.moved(good, ns, careful=careful))

    @rule(n=st.integers(1, 5), ns=names, lands=st.booleans(), again=st.booleans())
    def commit_in_doubt(self, n: int, ns: str, lands: bool, again: bool) -> None:
        wanted = self.noted.moved(n, ns)
        with Losing(self.client, lands=lands), pytest.raises(BrokerGoneError):
            self.log.commit(wanted.commit, wanted.namespaces, NOW)
        if lands:
            self.durable = wanted
        if not again:
            self.crash()
        elif lands:
            with pytest.raises(InDoubtError, match="has landed"):
                self.log.commit(wanted.commit, wanted.namespaces, NOW)
            self.noted = self.durable
        else:
            self.commit(wanted)

    @rule()
    def crash(self) -> None:
        self.noted = self.durable
        self.log = OffsetLog(self.client, "model", self.name, NOW)

    @rule(crash_at=st.none() | st.sampled_from(["roll", "append", "trim"]))
    def compact(self, crash_at: str | None) -> None:
        with crashing_at(f"compact offsets {crash_at}"):
            self.log.compact(NOW, least_bytes=0)
        if crash_at in (None, "trim"):
            self.durable = self.noted
        if crash_at is not None:
            self.crash()

    @rule(ahead=st.integers(0, 3))
    def operator_acknowledges(self, ahead: int) -> None:
        """What is next moves the watermark, what is further ahead waits for its turn."""
        commit = self.durable.commit
        acked = {*commit.acked, commit.watermark + ahead}
        watermark = next(o for o in itertools.count(commit.watermark) if o not in acked)
        left = tuple(sorted(o for o in acked if o > watermark))
        self.edit(
            replace(self.durable, commit=msgspec.structs.replace(commit, watermark=watermark, acked=left))
        )

    @rule(n=st.integers(1, 5))
    def operator_marks_forward(self, n: int) -> None:
        self.edit(self.durable.moved(n, "A"))

    @rule(n=st.integers(1, 5))
    def operator_marks_back(self, n: int) -> None:
        to = max(self.durable.commit.watermark - n, 0)
        kept = {ns: o for ns, o in self.durable.namespaces.items() if o < to}
        self.edit(Has(msgspec.structs.replace(self.durable.commit, watermark=to, acked=()), kept))

    def edit(self, wanted: Has) -> None:
        """Back opens a new generation; otherwise what the target was given stays known."""
        before = self.durable.commit
        commit, namespaces = wanted.commit, wanted.namespaces
        done = offsets.edit(self.client, "model", self.name, NOW, lambda held: (commit, namespaces))
        back = commit.watermark < before.watermark
        told = None if back else before.in_target
        commit = msgspec.structs.replace(commit, generation=before.generation + back, published=told)
        self.durable = Has(commit, namespaces)
        assert self.of(done) == self.durable
        self.crash()

    @rule()
    def forget_and_begin_again(self) -> None:
        generation = self.durable.commit.generation
        assert offsets.forget(self.client, "model", self.name)
        assert offsets.load(self.client, "model", self.name) == SinkOffsets()
        self.durable = Has(Commit(generation=generation + 1))
        self.crash()

    @invariant()
    def the_log_says_what_the_model_says(self) -> None:
        if hasattr(self, "log"):
            assert self.of(self.log.state) == self.noted
            assert self.of(offsets.load(self.client, "model", self.name)) == self.durable

    def of(self, state: SinkOffsets) -> Has:
        return Has(state.commit, state.namespaces)


def test_offsets_are_what_the_model_says(client: Client) -> None:
    OffsetsMachine.client = client
    run(OffsetsMachine, settings=QUICK)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_soak_offsets_are_what_the_model_says(client: Client) -> None:
    OffsetsMachine.client = client
    run(OffsetsMachine, settings=LONG)
