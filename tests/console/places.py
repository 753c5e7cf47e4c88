"""Data directories to look at, made by the code that makes them in a run; and a console over one, in this process."""

from __future__ import annotations

import math
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from penstock.console.cluster import Cluster
from penstock.console.definitions import Definitions
from penstock.console.reaching import DirectoryPlace, Reaching
from penstock.console.serving import Door, beside
from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.log.commitlog import CommitLog
from penstock.log.control import Control, ControlEntry, Detail
from penstock.log.deadletters import DeadLetters, Death
from penstock.log.message import Message, Mode
from penstock.log.offsets import Commit, OffsetLog, SinkOffsets, load
from penstock.pipeline.clock import now_us
from penstock.pipeline.graph import as_values, graph_of
from penstock.pipeline.loading import load_pipeline
from penstock.pipeline.progress import (
    BatchProgress,
    NodeProgress,
    Progress,
    QueryProgress,
    RunFile,
    SparkProgress,
    publish,
)

SEGMENT = 1 << 20

SHOP = """\
from penstock import Pipeline, adaptors as a, functions as f

shop = Pipeline("shop")
orders = shop.source("orders", a.file(uri="file://in.jsonl"))
clean = orders.transform("no-cards", f.omit(fields=["card"]))
clean.save("archive", a.file(uri="file://archive.jsonl"))
large = clean.transform("large", f.skip(field="total", operator=">", match=300))
large.transform("slim", f.pick(fields=["id", "customer", "total"])).save("sales", a.file(uri="file://sales.jsonl"))
"""
POISON = 14
"""The message that `sales` refuses: its total is not a number. As in the seed, of sixteen."""
REASON = (
    "sink 'sales' stopped before message 14 of namespace 'orders', which 'large' refused: field 'total': "
    "incompatible type: '>' wants a number, the value is a string, \"on request\""
)
_NAMES = ("Ann", "Bob", "Cleo", "Dora", "Ed", "Fay", "Gus", "Hana")


def order(number: int) -> Message:
    total = '"on request"' if number == POISON else f"{350 + number * 7}.50"
    text = (
        f'{{"id":{number},"customer":"{_NAMES[number % 8]}","total":{total},"card":"4111-{number:04}",'
        f'"placed":{{"$date":"2026-03-0{1 + number % 9}T09:30:00Z"}},"lines":[{{"sku":"A-{number}","qty":1}},'
        f'{{"sku":"B-{number}","qty":3}}],"gift":false,"note":null}}'
    )
    return Message("orders", text.encode(), ts=now_us() - (60 - number) * 1_000_000, mode=Mode.SYNC)


class Place:
    """A directory with a pipeline file and a data directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path / "data"
        self.file = path / "shop.py"

    @contextmanager
    def client(self) -> Iterator[Client]:
        with EmbeddedBroker(self.data) as broker, Client(broker.address) as client:
            yield client

    def held(self, sink: str, pipeline: str = "shop") -> SinkOffsets:
        """What a sink's offset log says."""
        with self.client() as client:
            return load(client, pipeline, sink)

    def audit(self, pipeline: str = "shop") -> list[ControlEntry]:
        """What operators did."""
        with self.client() as client:
            entries = Control(client, pipeline).entries()
        return [entry for entry in entries if not entry.action.startswith("run-")]

    def log(self, client: Client, messages: Sequence[Message], pipeline: str = "shop") -> None:
        log = CommitLog(client, pipeline, self.data / "index", SEGMENT, now_us())
        log.append(messages, {m.ns: {"at": 1} for m in messages}, (), now_us())
        log.close()

    def ran(self, client: Client, file: Path, *, exit_code: int, pipeline: str = "shop") -> None:
        """Leave the record of a run."""
        definition = load_pipeline(file, pipeline)
        detail: Detail = {"run": "r1", "pid": 4711, "host": socket.gethostname(), "process": ""}
        detail |= {"file": definition.file, "cwd": str(self.path), "graph": as_values(graph_of(definition))}
        control = Control(client, pipeline)
        control.append(ControlEntry(now_us() - 90_000_000, "penstock run", "run-begin", None, detail))
        ended: Detail = {"run": "r1", "exit_code": exit_code}
        control.append(ControlEntry(now_us() - 30_000_000, "penstock run", "run-end", None, ended))


def stuck(path: Path) -> Place:
    """The seed's poison message: sixteen orders; `archive` has all, `sales` stopped before number 14."""
    place = Place(path)
    place.file.write_text(SHOP)
    with place.client() as client:
        place.log(client, [order(number) for number in range(16)])
        place.ran(client, place.file, exit_code=3)
        archive = OffsetLog(client, "shop", "archive", now_us())
        archive.replace(Commit(watermark=16, delivered=16, rows=16), {"orders": 15}, now_us() - 40_000_000)
        sales = OffsetLog(client, "shop", "sales", now_us())
        sales.replace(
            Commit(watermark=POISON, delivered=12, dropped=2, rows=12, careful=16), {"orders": 13}, now_us()
        )
    publish(place.data, _last_word())
    return place


def _last_word() -> RunFile:
    """What the run told before it ended."""
    nodes = [
        NodeProgress("orders", "source", "file", "done", messages_in=16, delivered=16),
        NodeProgress("no-cards", "function", "omit", "running", messages_in=30, delivered=30),
        NodeProgress("large", "function", "skip", "running", messages_in=14, delivered=12, dropped=2, dead=1),
        NodeProgress("slim", "function", "pick", "running", messages_in=12, delivered=12),
        NodeProgress("archive", "sink", "file", "done", delivered=16),
        NodeProgress(
            "sales", "sink", "file", "stopped", delivered=12, dropped=2, lag=2, pending=2, error=REASON
        ),
    ]
    progress = Progress("shop", 61.0, "stopping", 16, nodes, log_bytes=3700, log_limit=50 << 30)
    now = now_us()
    return RunFile("r1", 4711, socket.gethostname(), now - 90_000_000, now - 30_000_000, progress, None, 3)


def buried(place: Place, *offsets: int, sink: str = "sales", error: str = "the target says no") -> None:
    """Make dead letters of messages in the log."""
    from penstock.log.journals import log_journal
    from penstock.log.reader import LogReader

    with place.client() as client:
        reader = LogReader(client, log_journal("shop"), None)
        deaths = [Death(offset, "orders", sink, error) for offset in offsets]
        DeadLetters(client, "shop", now_us()).add(sink, 0, deaths, reader, now_us())


@contextmanager
def flowing(place: Place, address: str) -> Iterator[None]:
    """A run, of this process, that reads on: `archive` takes everything, `sales` still stands before the poison."""
    over = threading.Event()
    thread = threading.Thread(target=_flow, args=(place, address, over), name="flow")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _flow(place: Place, address: str, over: threading.Event) -> None:
    with Client(address) as client:
        log = CommitLog(client, "shop", place.data / "index", SEGMENT, now_us())
        archive = OffsetLog(client, "shop", "archive", now_us())
        began, end = now_us(), 16
        while not over.wait(0.1 + 0.08 * math.sin(end / 40)):
            log.append([order(end)], {"orders": {"at": end}}, (), now_us())
            end += 1
            archive.replace(Commit(watermark=end, delivered=end, rows=end), {"orders": end - 1}, now_us())
            nodes = [_onwards(node, end) for node in _last_word().progress.nodes]
            progress = Progress("shop", 61.0, "running", end, nodes, log_bytes=end * 230, log_limit=50 << 30)
            progress = replace(progress, spark=_spark())
            publish(place.data, RunFile("r2", os.getpid(), "here", began, now_us(), progress))
        log.close()


def _spark() -> SparkProgress:
    steps = {"stage": 900.0, "publish": 80.0, "offsets": 20.0}
    batch = BatchProgress(now_us(), 0, 16, 16, 0, 0, 16, 1.25, steps)
    queries = [QueryProgress("archive", "shop/archive", True, [batch])]
    return SparkProgress("4.3.0", "local[1,4]", "local-1", "http://127.0.0.1:4040", queries)


def _onwards(node: NodeProgress, end: int) -> NodeProgress:
    """A node of the run that goes on."""
    if node.node == "sales":
        return replace(node, lag=end - POISON, pending=end - POISON)
    through = node.kind == "function"
    seen = end + POISON if node.node == "no-cards" else node.messages_in if through else end
    passed = end + POISON if node.node == "no-cards" else node.delivered if through else end
    return replace(node, state="running", messages_in=seen, delivered=passed)


@contextmanager
def console(
    data: Path,
    door: Door | None = None,
    *,
    reaching: Reaching | None = None,
    files: dict[str, str] | None = None,
    cluster: Cluster | None = None,
    cookie: bytes = b"",
    run: str = "",
) -> Iterator[str]:
    """A console in a thread; gives its address."""
    address: list[str] = []
    definitions = Definitions(files or {}, recorded=True)
    place = reaching or DirectoryPlace(data, f" --data-dir {data}")
    with beside(place, definitions, door or Door("127.0.0.1:0"), address.append, cluster, cookie, run):
        yield address[0].rstrip("/")
