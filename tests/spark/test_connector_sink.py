"""Pipelines into connector sinks: one transaction a batch, all sinks of a group or none, and what crashes leave."""

from __future__ import annotations

import errno
import json
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.servers.ports import free_port

from penstock import Pipeline
from penstock import adaptors as a
from penstock import functions as f
from penstock.adaptors.connector import Connector
from penstock.adaptors.connector.sink import ConnectorPublisher
from penstock.adaptors.generate import Generate
from penstock.base.errors import PenstockError, RefusedError
from penstock.connector.sink import SinkServer, Terms, Transaction, Workers, transactions
from penstock.connector.sink.files import FileStorage, committed_bytes, file_of
from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.log import offsets
from penstock.log.commitlog import CommitLog
from penstock.log.compaction import compact
from penstock.log.control import Control
from penstock.log.message import Message, MessageOffset
from penstock.log.offsets import Commit, OffsetLog
from penstock.log.transaction import Transaction as InFlight
from penstock.pipeline.atomic import GROUP
from penstock.pipeline.delivering import step
from penstock.pipeline.editing import open_editor
from penstock.pipeline.progress import Progress, Summary
from penstock.pipeline.runner import run
from penstock.spark.reach import Reach
from penstock.spark.tasks import lane_of
from penstock.spark.voting import VotingRunner

pytestmark = pytest.mark.spark
COOKIE = "dragons-love-tacos"


class PickyStorage(FileStorage):
    """A file that does not take everything."""

    refuses: Callable[[bytes], bool] = staticmethod(lambda content: False)

    def prepare(self, transaction: Transaction) -> None:
        content = self._path.read_bytes()[transaction.start : transaction.end]
        if type(self).refuses(content):
            raise RefusedError("not to my taste")
        super().prepare(transaction)


class Rig:
    """A directory with sinks and a data directory."""

    def __init__(self, path: Path, spark: SparkSession, stack: ExitStack) -> None:
        self.path = path
        self.spark = spark
        self._stack = stack
        self.ports: dict[str, int] = {}

    def sink(self, name: str, storage: type[FileStorage] = FileStorage) -> str:
        """Serve a file sink; its address."""
        workers = Workers(
            self.path / f"{name}.txns", lambda worker: storage(file_of(self.path / name, worker))
        )
        listen = ("127.0.0.1", self.ports.get(name, 0))
        server = self._stack.enter_context(SinkServer(listen, workers, Terms(cookie=COOKIE.encode())))
        self.ports[name] = server.address[1]
        return f"127.0.0.1:{server.address[1]}"

    def run(
        self,
        pipeline: Pipeline,
        report: Callable[[Progress], None] = lambda progress: None,
        broker: Reach | None = None,
    ) -> Summary:
        data = self.path / "data"
        return run(pipeline, data_dir=data, once=True, spark=self.spark, report=report, broker=broker)

    def documents(self, name: str, worker: str) -> list[dict[str, object]]:
        path = file_of(self.path / name, worker)
        return [json.loads(line) for line in committed_bytes(path).splitlines()] if path.exists() else []

    def open_transactions(self, name: str) -> list[str]:
        return [
            one.transaction for view in transactions(self.path / f"{name}.txns") for one in view.in_flight
        ]


@pytest.fixture
def rig(tmp_path: Path, spark: SparkSession) -> Iterator[Rig]:
    with ExitStack() as stack:
        yield Rig(tmp_path, spark, stack)


def numbers(count: int, **settings: object) -> Generate:
    return a.generate(count=count, **settings)


def to(address: str, **settings: object) -> Connector:
    return a.connector(sink=address, cookie=COOKIE, **settings)


def seqs(documents: list[dict[str, object]]) -> list[object]:
    return [document["seq"] for document in documents]


def test_a_pipeline_goes_through_and_goes_on_where_it_was_also_if_it_was_stepped_by_hand(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that is killed behind its decision holds, although each sink decides for itself in the next run."""
    addresses = {name: rig.sink(name) for name in ("out", "more")}

    def pipeline(count: int, *sinks: str, ns: str = ".*", **settings: object) -> Pipeline:
        made = Pipeline("p", batch_messages=400)
        source = made.source("numbers", numbers(count))
        for name in sinks:
            source.save(name, to(addresses[name], **settings), ns=ns)
        return made

    def stepped(count: int) -> list[tuple[str, int]]:
        with open_editor(rig.path / "data", "me") as editor:
            return [(one.sink, one.offset) for one in step(editor, both, "out", count, bury=False)]

    def killed(log: OffsetLog, commit: Commit, namespaces: dict[str, int], now: int) -> None:
        if log.journal.endswith("/more"):
            raise KeyboardInterrupt
        committed(log, commit, namespaces, now)

    summary = rig.run(pipeline(1000, "out"))
    assert (summary.exit_code, summary.sinks[0].delivered, summary.adds_up) == (0, 1000, True)
    assert seqs(rig.documents("out", "p.out.0")) == list(range(1000))
    assert rig.open_transactions("out") == []
    both, committed = pipeline(1500, "out", "more"), OffsetLog.commit
    assert stepped(2) == [("more", 0), ("more", 1)], "the one that lacks them"
    with monkeypatch.context() as patched:
        patched.setattr(OffsetLog, "commit", killed)
        with pytest.raises(KeyboardInterrupt):
            stepped(1)
    assert len(rig.open_transactions("more")) == 1
    alone = rig.run(pipeline(1000, "out", "more", ns="none", atomic=False))
    assert [(sink.sink, sink.dropped) for sink in alone.sinks] == [("out", 0), ("more", 997)]
    assert [sink.delivered for sink in rig.run(both).sinks] == [500, 500]
    assert seqs(rig.documents("out", "p.out.0")) == list(range(1500))
    assert seqs(rig.documents("more", "p.more.0")) == [0, 1, 2, *range(1000, 1500)]


def test_a_key_stays_in_its_lane_and_lanes_that_go_are_announced(rig: Rig) -> None:
    address = rig.sink("out")

    def pipeline(connections: int, rounds: int, partitions: int = 0) -> Pipeline:
        """Each round writes all ten rows anew."""
        with closing(sqlite3.connect(rig.path / "in.db")) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY, n INTEGER)")
            database.execute(f"CREATE TABLE IF NOT EXISTS r{rounds} (id INTEGER PRIMARY KEY, n INTEGER)")
            database.executemany(
                f"INSERT INTO r{rounds} VALUES (?, ?)", [(n, rounds * 10 + n) for n in range(10)]
            )
        made = Pipeline("p", batch_messages=6, partitions=partitions or 2)
        source = made.source("in", a.sqlite(uri=f"sqlite://{rig.path}/in.db"), ns="^r[0-9]$")
        node = source.transform("named", f.remap(ns_map={f"r{n}": "r" for n in range(9)}))
        node = node.transform("same", lambda df: df) if partitions else node
        node.save("out", to(address, connections=connections))
        return made

    def lanes() -> dict[int, list[object]]:
        found = {lane: rig.documents("out", f"p.out.{lane}") for lane in range(3)}
        return {lane: [row["n"] for row in rows] for lane, rows in found.items() if rows}

    def expected(rounds: int) -> dict[int, list[object]]:
        dealt: dict[int, list[object]] = {}
        for one in range(rounds):
            for n in range(10):
                dealt.setdefault(
                    lane_of(f"r{one}", json.dumps({"id": n}, separators=(",", ":")), 3), []
                ).append(one * 10 + n)
        return dealt

    assert rig.run(pipeline(3, 0)).exit_code == 0
    assert lanes() == expected(1)
    assert len(lanes()) > 1
    assert rig.run(pipeline(3, 1, partitions=5)).exit_code == 0
    assert lanes() == expected(2), "also through a DataFrame function, and with other partitions"
    assert rig.run(pipeline(1, 2)).exit_code == 0
    assert [path.name for path in rig.path.glob("out.p.out.[12]")] == [], "the others have left"
    assert lanes()[0] == [*expected(2)[0], *range(20, 30)]
    assert rig.run(pipeline(3, 3)).exit_code == 0, "and come back, at 0"
    assert sum(len(found) for found in lanes().values()) == len(expected(2)[0]) + 20


def recorded(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The states of every sink's transactions, as they come."""
    states: dict[str, list[str]] = {}
    held: dict[VotingRunner, InFlight | None] = {}

    def put(runner: VotingRunner, one: InFlight | None) -> None:
        held[runner] = one
        states.setdefault(runner.name, []).append(one.state if one is not None else "-")

    monkeypatch.setattr(VotingRunner, "transaction", property(held.get, put))
    return states


def _dies(*_: object) -> None:
    raise PenstockError("killed")


def test_three_sinks_commit_together_and_one_vote_to_abort_holds_for_all(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    votes: list[bool] = []
    states, was_told = recorded(monkeypatch), threading.Event()
    told: list[InFlight] = []

    class Moody(PickyStorage):
        @staticmethod
        def refuses(content: bytes) -> bool:
            assert was_told.wait(60), "what is staged is told while it is"
            votes.append(len(votes) in (1, 2))
            return votes[-1]

    addresses = [rig.sink("one"), rig.sink("two", Moody), rig.sink("three")]
    seen: list[tuple[int, ...]] = []
    lanes = {"one": lane_of("generated", None, 2), "two": 0, "three": 0}
    assert lanes["one"] == 1

    def look(progress: Progress) -> None:
        seen.append(tuple(len(rig.documents(n, f"p.{n}.{lanes[n]}")) for n in ("one", "two", "three")))
        told[:] = told or [
            node.transaction for node in progress.nodes if node.node == "two" and node.transaction
        ]
        if told:
            was_told.set()

    def pipeline(count: int, connections: int = 2) -> Pipeline:
        made = Pipeline("p", batch_messages=100)
        source = made.source("numbers", numbers(count))
        source.save("one", to(addresses[0], connections=connections))
        source.transform("even", lambda df: df.where("data:seq::bigint % 2 = 0")).save(
            "two", to(addresses[1])
        )
        source.save("three", to(addresses[2]), ns="nothing of it")
        return made

    summary = rig.run(pipeline(300), look)
    assert summary.exit_code == 0
    assert sorted(votes) == [False] * 3 + [True] * 2, "the same messages came again"
    assert [(one.begin, one.state) for one in told] == [(0, "staging")]
    done, undone = ["staging", "voted", "decided", "telling", "-"], ["staging", "aborted", "aborted", "-"]
    assert states["two"] == ["-", *done, *undone, *undone, *done, *done]
    assert set(states["three"]) == {"-", "staging", "voted", "decided", "aborted"}, "nothing to tell it"
    assert [(sink.sink, sink.delivered, sink.dropped) for sink in summary.sinks] == [
        ("one", 300, 0), ("two", 150, 150), ("three", 0, 300),
    ]  # fmt: skip
    assert seqs(rig.documents("one", "p.one.1")) == list(range(300))
    assert seqs(rig.documents("two", "p.two.0")) == list(range(0, 300, 2))
    assert rig.open_transactions("one") == rig.open_transactions("two") == []
    assert all(abs(one - 2 * two) <= 100 for one, two, _ in seen)
    assert rig.run(pipeline(350)).exit_code == 0
    assert (len(rig.documents("one", "p.one.1")), len(rig.documents("two", "p.two.0"))) == (350, 175)
    with monkeypatch.context() as patched:
        patched.setattr(ConnectorPublisher, "leave", _dies)
        with pytest.raises(PenstockError, match="killed"):
            rig.run(pipeline(350, 1))
    for connections in (2, 1, 1, 2):
        assert rig.run(pipeline(350, connections)).exit_code == 0, "who has left is not called back"


@pytest.mark.soak
@pytest.mark.parametrize("group", [False, True])
def test_a_message_that_no_vote_is_given_for_follows_the_policy(rig: Rig, group: bool) -> None:
    class Picky(PickyStorage):
        @staticmethod
        def refuses(content: bytes) -> bool:
            return b'"seq":33,' in content or content.rstrip().endswith(b'"seq":33}')

    addresses = [rig.sink("one", Picky), rig.sink("two")]
    policy = ["stop"]

    def pipeline() -> Pipeline:
        made = Pipeline("p")
        source = made.source("numbers", numbers(50))
        source.save("one", to(addresses[0]), on_error=policy[0])
        if group:
            source.save("two", to(addresses[1]), on_error=policy[0])
        return made

    stopped = rig.run(pipeline())
    assert stopped.exit_code == 3
    assert "voted 3 times to abort" in (stopped.sinks[0].error or "")
    assert rig.documents("one", "p.one.0") == []
    stopped = rig.run(pipeline())
    assert stopped.exit_code == 3
    assert "before message 33" in (stopped.sinks[0].error or "")
    assert seqs(rig.documents("one", "p.one.0")) == list(range(33))
    policy[0] = "dead-letter"
    done = rig.run(pipeline())
    assert (done.exit_code, [sink.dead for sink in done.sinks]) == (0, [1] * len(done.sinks))
    others = [number for number in range(50) if number != 33]
    assert seqs(rig.documents("one", "p.one.0")) == others
    if group:
        assert seqs(rig.documents("two", "p.two.0")) == others


@pytest.mark.parametrize("group", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_rewind_into_compacted_messages_is_narrowed_down_to_the_one_that_no_vote_is_given_for(
    rig: Rig, group: bool
) -> None:
    """The range has holes, which is no reason to stop; and what the sink has stays known to the offset log."""
    names = ["a", "b", "c", "d", "e"]
    refused: list[bytes] = []

    class Picky(PickyStorage):
        @staticmethod
        def refuses(content: bytes) -> bool:
            return any(one in content for one in refused)

    pipeline = Pipeline("p", segment_bytes=2_000)
    source = pipeline.source("numbers", numbers(60, namespaces=names))
    sinks = ["one", "two"] if group else ["one"]
    for name in sinks:
        source.save(name, to(rig.sink(name, Picky if name == "one" else FileStorage)), on_error="dead-letter")
    assert rig.run(pipeline).exit_code == 0
    with EmbeddedBroker(rig.path / "data") as broker, Client(broker.address) as client:
        log = CommitLog(client, "p", rig.path / "data" / "index", None, 1)
        client.roll(log.journal)
        log.append([Message("a", b'{"seq":60}')], {}, [], 1)
        first = compact(log, MessageOffset(60), now=1).first.offset
        kept = [record.offset for record in log.reader.compacted(0, first - 1)]
        for name in [*sinks, GROUP] if group else sinks:
            offsets.edit(client, "p", name, 1, lambda held: (Commit(careful=first), {}))
    assert (first, len(kept)) == (60, 5)
    refused.append(b'"seq":%d,' % kept[2])
    again = rig.run(pipeline)
    assert (again.exit_code, [sink.dead for sink in again.sinks]) == (0, [1] * len(sinks))
    for name in sinks:
        assert seqs(rig.documents(name, f"p.{name}.0")) == [
            *range(60), *(n for n in kept if n != kept[2]), 60,
        ]  # fmt: skip


def test_a_sink_that_is_away_or_full_is_waited_for_and_batches_queue_in_the_log(rig: Rig) -> None:
    """It listens when the log has everything, and has a full disk then: one batch at a time goes to it, none dies."""

    class Full(FileStorage):
        full = True

        def write(self, offset: int, data: memoryview) -> None:
            if Full.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            super().write(offset, data)

    port = rig.ports["out"] = free_port()
    told: list[str] = []
    served: list[str] = []

    def report(progress: Progress) -> None:
        told.extend(node.error or "" for node in progress.nodes if node.state == "away")
        if not served and progress.log_next == 100 and any("does not answer" in error for error in told):
            served.append(rig.sink("out", Full))
        Full.full = Full.full and not any("No space left" in error for error in told)

    made = Pipeline("p", batch_messages=40)
    made.source("numbers", numbers(100)).save("out", to(f"127.0.0.1:{port}"), on_error="dead-letter")
    done = rig.run(made, report)
    assert (done.exit_code, done.sinks[0].dead) == (0, 0)
    assert any("the sink cannot go on now: [Errno 28] No space left on device" in error for error in told)
    assert seqs(rig.documents("out", "p.out.0")) == list(range(100))
    (view,) = transactions(rig.path / "out.txns")
    spans = [re.search(r":from=(\d+):c_id=(\d+)$", one.transaction) for one in view.decided if one.commit]
    assert [(int(span[1]), int(span[2])) for span in spans if span] == [(0, 40), (40, 80), (80, 100)]


def test_behind_a_broker_a_transaction_that_lasts_is_told_with_its_votes(rig: Rig) -> None:
    """Whoever cannot see the run's file hears of it through the control journal."""
    heard: dict[str, InFlight] = {}

    def until(state: str) -> None:
        """The target takes its time with the first one: until the control journal has it in this state."""
        if state in heard:
            return
        with Client(broker.address) as client:
            for _ in range(600):
                run = Control(client, "p").state().run
                found = run.in_flight.get("out") if run is not None else None
                if found is not None and found.state == state:
                    heard[state] = found
                    return
                time.sleep(0.1)

    class Slow(FileStorage):
        def prepare(self, transaction: Transaction) -> None:
            until("staging")
            super().prepare(transaction)

        def commit(self, transaction: Transaction) -> None:
            until("telling")

    made = Pipeline("p", batch_messages=10)
    made.source("numbers", numbers(20)).save("out", to(rig.sink("out", Slow)))
    with EmbeddedBroker(rig.path / "elsewhere") as broker:
        summary = rig.run(made, broker=Reach(broker.address))
        with Client(broker.address) as client:
            run = Control(client, "p").state().run
    assert (summary.exit_code, summary.sinks[0].delivered) == (0, 20)
    assert [(one.begin, one.end, one.votes) for one in heard.values()] == [
        (0, 10, {}),
        (0, 10, {"p.out.0": True}),
    ]
    assert run is not None
    assert run.in_flight == {}, "it is over"


def test_plan_asks_the_sink_and_leaves_nothing_there(rig: Rig) -> None:
    address = rig.sink("out")
    assert to(address).sink().inspect() == ()
    (finding,) = a.connector(sink=address, cookie="wrong-cookie").sink().inspect()
    assert (finding.fatal, "Bad cookie" in finding.what) == (True, True)
    (finding,) = to("127.0.0.1:1").sink().inspect()
    assert (finding.fatal, "does not answer" in finding.what) == (False, True)
    assert transactions(rig.path / "out.txns") == []
    assert to(address, transactional=False).sink().guarantee.value == "at least once"
