"""A sink as a real process, killed at a step by name or at any moment, and a coordinator that remembers decisions."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.servers.ports import free_port

from penstock.base.errors import AwayError
from penstock.connector.sink.files import committed_bytes, file_of
from penstock.connector.sinklink import SinkLink
from penstock.connector.twopc import SinkError, Who, decided

PATIENCE = 60.0
ROOT = Path(__file__).parents[2]
FIRST, SECOND = b"one\ntwo\n", b"three\n"


def of_files(port: int, root: Path) -> list[str]:
    """The command of a file sink."""
    return [sys.executable, "-m", "tests.connector.holding", str(port), str(root)]


class SinkProcess:
    """A sink on one port and one directory, started and killed at will."""

    def __init__(self, root: Path, command: Callable[[int, Path], list[str]] = of_files) -> None:
        self.root = root
        self.port = free_port()
        self._command = command(self.port, root)
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    @property
    def trace(self) -> Path:
        return self.root / f"steps-{self.starts}"

    def start(self, kill_at: str = "") -> None:
        """Start it, to be killed at a step (`sink reply:3`); returns when it listens."""
        self.starts += 1
        environment = {**os.environ, "PENSTOCK_TRACE_STEPS": str(self.trace)}
        environment |= {"PENSTOCK_KILL_AT": kill_at} if kill_at else {}
        log = (self.root / "sink.log").open("ab")
        self.process = subprocess.Popen(self._command, env=environment, stdout=log, stderr=log, cwd=ROOT)
        log.close()
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            assert self.process.poll() is None, (self.root / "sink.log").read_text()
            with socket.socket() as probe:
                if probe.connect_ex(self.address) == 0:
                    return
            time.sleep(0.02)
        raise AssertionError("the sink does not listen")

    def died(self) -> None:
        """It was killed by its own fault point."""
        assert self.process is not None
        assert self.process.wait(PATIENCE) == -signal.SIGKILL

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    @contextmanager
    def held_and_killed(self, point: str) -> Iterator[None]:
        """Within this it is held at a call of its storage (`holding.py`), and killed once it is seen there."""
        order, held = self.root / "hold", self.root / "held"
        order.write_text(point)

        def kill() -> None:
            if eventually(held.exists):
                self.kill()

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        yield
        killer.join()
        assert held.exists(), f"it did not come {point}"
        held.unlink()
        order.unlink()

    def committed(self, worker: str) -> bytes:
        path = file_of(self.root / "out", worker)
        return committed_bytes(path) if path.exists() else b""

    def held(self, worker: str) -> bytes:
        return file_of(self.root / "out", worker).read_bytes()


class Worker:
    """The coordinator of one worker name: sends a stream of lines, a transaction at a time, and records decisions."""

    def __init__(self, sink: SinkProcess, name: str = "w") -> None:
        self.sink = sink
        self.name = name
        self.committed: dict[str, int] = {}
        """The record of decisions: each committed transaction, and where it ended."""
        self.number = 0

    @property
    def end(self) -> int:
        return max(self.committed.values(), default=0)

    def connect(self, address: tuple[str, int] | None = None) -> SinkLink:
        """Connect and settle what is open, as often as it takes."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                link = SinkLink(address or self.sink.address, Who(self.name), self.end, PATIENCE)
                link.tell(decided(link.listed.transactions, self.committed))
                return link
            except (AwayError, SinkError):
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def listed(self) -> tuple[str, ...]:
        with SinkLink(self.sink.address, Who(self.name), self.end, PATIENCE) as link:
            return link.listed.transactions

    def transaction(self) -> str:
        self.number += 1
        return f"app-w-{self.name}-id-1:c_id={self.number}"

    def record(self, transaction: str, end: int) -> None:
        """The decision, durable from here on."""
        self.committed[transaction] = end

    def send(self, link: SinkLink, lines: bytes) -> tuple[str, bool]:
        """Data and PHASE1; the transaction and its vote."""
        link.write(lines)
        transaction = self.transaction()
        return transaction, link.vote(transaction)

    def send_bad(self, link: SinkLink, lines: bytes) -> tuple[str, bool]:
        """The same with a range that the sink must refuse: it ends beyond the data."""
        link.write(lines)
        transaction = self.transaction()
        return transaction, link.vote(transaction, (link.machine.start, link.machine.offset + 1))


def committed_first(sink: SinkProcess, worker: Worker, kill_at: str = "") -> None:
    """A sink with one committed transaction, which will die at a step."""
    sink.start(kill_at)
    with worker.connect() as link:
        transaction, vote = worker.send(link, FIRST)
        assert vote
        worker.record(transaction, len(FIRST))
        link.tell([(transaction, True)])


def cut_off(work: Callable[[], object]) -> None:
    """The sink dies under this."""
    with pytest.raises(AwayError):
        work()


def goes_on(sink: SinkProcess, worker: Worker, expected: bytes) -> None:
    """What is committed is as expected, nothing is open, and the next transaction goes through."""
    with worker.connect() as link:
        assert link.listed.transactions == ()
        assert sink.committed(worker.name) == sink.held(worker.name) == expected
    with worker.connect() as link:
        assert link.listed.offset == len(expected) == worker.end
        transaction, vote = worker.send(link, b"last\n")
        assert vote
        worker.record(transaction, len(expected) + 5)
        link.tell([(transaction, True)])
    assert sink.committed(worker.name) == expected + b"last\n"


def eventually(true: Callable[[], bool]) -> bool:
    """Wait for what, once it holds, goes on to hold."""
    deadline = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def steps_of(trace: Path) -> Mapping[str, int]:
    """How often each step was entered."""
    found: dict[str, int] = {}
    for line in trace.read_text().splitlines() if trace.exists() else ():
        if line.startswith("+"):
            name = line[1:].rpartition(" ")[0]
            found[name] = found.get(name, 0) + 1
    return found
