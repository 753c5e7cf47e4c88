"""A pipeline that takes connectors itself is shown by `connector status` as workers are, as long as it runs."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from tests.servers.ports import free_port

from penstock import adaptors as a
from penstock.base.errors import UsageError
from penstock.cli import cli
from penstock.connector import directory, web
from penstock.connector.frames import Ack, Frame, Hello, Message, Notify, NotifyAck, encode, frame_of
from penstock.connector.framing import Splitter
from penstock.connector.registry import Owner
from penstock.connector.settings import WorkerSettings
from penstock.connector.status import WorkerStatus, request
from penstock.connector.threaded import Threaded
from penstock.connector.worker import Worker
from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker

WAIT = 60.0


def penstock(*arguments: str) -> Result:
    """In this process, which is quicker."""
    return CliRunner().invoke(cli, list(arguments), prog_name="penstock")


def told(data: Path) -> list[WorkerStatus]:
    done = penstock("connector", "status", "--data-dir", str(data), "--json")
    assert done.exit_code == 0, done.output
    return msgspec.json.decode(done.output, type=list[WorkerStatus])


def eventually(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def connected(port: int) -> socket.socket:
    deadline = time.monotonic() + WAIT
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), WAIT)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def until(peer: socket.socket, wanted: Callable[[Frame], bool]) -> None:
    splitter = Splitter()
    while data := peer.recv(65536):
        if any(wanted(frame_of(payload)) for payload in splitter.feed(data)):
            return
    raise AssertionError("closed")


@contextmanager
def reading(client: Client, port: int, pipeline: str = "shop", **settings: object) -> Iterator[None]:
    """The source of a pipeline as a run reads it, over the broker that the run is."""
    source = a.connector(listen=f"127.0.0.1:{port}", instance="i", tail=True, **settings).source()
    source.use(source.copier, f"{pipeline}.in")
    source.announce(client, pipeline)
    stop, failed = threading.Event(), list[BaseException]()

    def read() -> None:
        try:
            for batch in source.read(lambda ns: True, {}, stop):
                source.logged(batch)
        except BaseException as error:  # noqa: BLE001 - the test is told below
            failed.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(WAIT)
    assert (thread.is_alive(), failed) == (False, [])


def test_status_shows_the_session_and_the_stream_of_a_pipelines_source(tmp_path: Path) -> None:
    port, data = free_port(), tmp_path / "data"
    with EmbeddedBroker(data) as broker, broker.client() as client:
        with reading(client, port), connected(port) as peer:
            peer.sendall(encode(Hello("0.0.1", b"", "till", "i")) + encode(Notify(7, "orders", 0)))
            until(peer, lambda frame: isinstance(frame, NotifyAck))
            peer.sendall(encode(Message(7, 3, body=b"{}")))
            until(peer, lambda frame: isinstance(frame, Ack) and (7, 3) in frame.points)
            eventually(lambda: bool(told(data)))
            (shown,) = told(data)
            (session,), (stream,) = shown.sessions, shown.streams
            people = penstock("connector", "status", "--data-dir", str(data)).output
            status, page = request(shown.http, "GET", "/metrics")
        assert told(data) == [], "a source that was ended is in the directory no longer"
    assert (shown.name, shown.address, shown.pipeline, shown.answers) == (
        "shop.in",
        f"127.0.0.1:{port}",
        "shop",
        True,
    )
    assert (session.program, session.instance, session.state, session.messages) == (
        "till",
        "i",
        "streaming",
        1,
    )
    assert 0 < session.credits <= 131072
    assert (stream.name, stream.id, stream.state, stream.session) == ("orders", 7, "active", session.number)
    assert (stream.last_seen, stream.last_durable, stream.last_acked) == (3, 3, 3)
    assert f"shop.in at 127.0.0.1:{port}: 1 session, the source of pipeline shop\n" in people
    assert "orders" in people
    assert status == 200
    labels = 'instance="i",stream="7",name="orders",state="active"'
    assert f"penstock_connector_stream_last_acked{{{labels}}} 3" in page.decode()


def test_status_answers_at_once_though_another_process_keeps_the_directory(tmp_path: Path) -> None:
    """A run does not let its directory go, so nobody waits for that; nor does anything start Spark."""
    port, data = free_port(), tmp_path / "data"
    with EmbeddedBroker(data) as broker, broker.client() as client, reading(client, port):
        eventually(lambda: bool(told(data)))
        took = []
        for _ in range(3):
            began = time.monotonic()
            told(data)
            took.append(time.monotonic() - began)
    assert min(took) < 1.0
    imported = (
        "import sys, penstock.cli.connectors, penstock.connector.status; sys.exit('pyspark' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", imported], check=True, timeout=WAIT)


def test_a_source_that_tells_nothing_over_http_is_listed_all_the_same(tmp_path: Path) -> None:
    port, data = free_port(), tmp_path / "data"
    with EmbeddedBroker(data) as broker, broker.client() as client, reading(client, port, http="off"):
        eventually(lambda: bool(told(data)))
        people = penstock("connector", "status", "--data-dir", str(data)).output
    assert people == f'shop.in at 127.0.0.1:{port}: tells nothing (http="off"), the source of pipeline shop\n'
    with pytest.raises(UsageError, match="expected HOST:PORT, got 'here'"):
        a.connector(listen="127.0.0.1:1", http="here").source()


def test_no_worker_sends_its_connectors_to_a_pipeline(tmp_path: Path) -> None:
    """It would take them, if its instance has the same name, and their messages would go into another log."""
    port, data = free_port(), tmp_path / "data"
    with EmbeddedBroker(data) as broker, broker.client() as client, reading(client, port):
        eventually(lambda: bool(told(data)))

        async def others() -> list[directory.Entry]:
            worker = Worker(WorkerSettings())
            worker.listing = Threaded(client)
            return await worker._others()

        assert asyncio.run(others()) == []


def test_streams_of_a_pipeline_are_not_moved_to_a_worker(tmp_path: Path) -> None:
    port, data = free_port(), tmp_path / "data"
    with (
        EmbeddedBroker(data) as broker,
        broker.client() as client,
        reading(client, port),
        connected(port) as peer,
    ):
        peer.sendall(encode(Hello("0.0.1", b"", "till", "i")) + encode(Notify(7, "orders", 0)))
        eventually(lambda: any(each.sessions for each in told(data)))
        move = ("connector", "migrate", "--to", "127.0.0.1:1", "--data-dir", str(data))
        prefix = directory.pipeline_prefix("shop")
        done = penstock(*move, "i", "--journals", prefix)
        unknown = penstock(*move, "nothing", "--journals", prefix)
        assert told(data)[0].sessions
    assert done.exit_code == 1
    assert "this is the source of pipeline 'shop', whose streams cannot move" in done.output
    assert "no worker has an instance or an open stream called 'nothing'" in unknown.output


def test_a_port_that_is_anothers_by_now_does_not_bring_the_dead_to_life(tmp_path: Path) -> None:
    """Who was killed cannot leave the directory, and its HTTP port may be given to a worker that comes later."""

    async def test() -> list[WorkerStatus]:
        from penstock.connector.status import survey

        with EmbeddedBroker(tmp_path / "data") as broker, broker.client() as client:
            calls = Threaded(client)
            worker = Worker(WorkerSettings(), name="alive")
            worker.listing = calls
            await worker.start("127.0.0.1:0")
            server = await web.serve(worker, "127.0.0.1:0")
            worker.announce()
            dead = directory.Entry(Owner("shop.in", "127.0.0.1:1", "ab"), worker.http, "shop")
            prefix = directory.pipeline_prefix("shop")
            await directory.enter(calls, prefix, dead, replication=1, store="file:///")
            async with asyncio.timeout(WAIT):
                while len(found := await survey(calls)) < 2:  # noqa: ASYNC110 - the worker enters by itself
                    await asyncio.sleep(0.01)
            await worker.stop()
            server.close()
            calls.close()
            return list(found)

    shown = {each.name: (each.answers, each.pipeline) for each in asyncio.run(test())}
    assert shown == {"alive": (True, ""), "shop.in": (False, "shop")}


SHOP = """\
from penstock import Pipeline, adaptors as a

shop = Pipeline("shop")
orders = shop.source("in", a.connector(listen="127.0.0.1:{port}", instance="i"))
orders.save("out", a.file(uri="file://{path}/out.jsonl"))
"""


def test_a_run_is_shown_while_it_runs_and_not_as_alive_once_it_was_killed(tmp_path: Path) -> None:
    port, data = free_port(), tmp_path / "data"
    (tmp_path / "shop.py").write_text(SHOP.format(port=port, path=tmp_path))
    command = [
        sys.executable,
        "-m",
        "penstock",
        "run",
        str(tmp_path / "shop.py"),
        "--follow",
        "--data-dir",
        str(data),
    ]
    with (tmp_path / "said").open("w") as said:
        runs = []
        try:
            for _ in range(2):
                runs.append(subprocess.Popen(command, stdout=said, stderr=said, cwd=tmp_path))
                with connected(port) as peer:
                    peer.sendall(encode(Hello("0.0.1", b"", "till", "i")) + encode(Notify(7, "orders", 0)))
                    eventually(lambda: data.exists() and any(each.sessions for each in told(data)))
                    (shown,) = told(data)
                assert (shown.name, shown.pipeline, shown.answers) == ("shop.in", "shop", True)
                if len(runs) == 1:
                    runs[0].kill()
                    runs[0].wait(WAIT)
                    (dead,) = told(data)
                    assert (dead.name, dead.pipeline, dead.answers, dead.sessions) == (
                        "shop.in",
                        "shop",
                        False,
                        [],
                    )
                    people = penstock("connector", "status", "--data-dir", str(data)).output
                    where = f"shop.in at 127.0.0.1:{port}: does not answer"
                    assert people == f"{where}, the source of pipeline shop\n"
            runs[1].terminate()
            assert runs[1].wait(WAIT) == 0, (tmp_path / "said").read_text()
            assert told(data) == [], "one that has ended has left, and took the killed one before it along"
            assert json.loads(penstock("connector", "status", "--data-dir", str(data), "--json").output) == []
        finally:
            for run in runs:
                run.kill()
                run.wait(WAIT)
