"""A broker, a worker and a connector as processes of their own, to be killed; and what the journal must hold then.

The connector sends 1..n on each of ten streams. Whatever is killed is started again at once, as an operator or an
init system would. At the end the journal holds each id once, in order, and the end of each stream behind them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tests.connector.rig import frames_of, ids_of
from tests.servers.ports import free_port

from penstock.base import faults
from penstock.connector import frames as fr
from penstock.connector.partitions import partition_of_journal
from penstock.connector.source import stream_id
from penstock.journal.client import Client
from penstock.journal.embedded import connect

STREAMS = 10
PARTITIONS = 2
STEPS = ("connector-claim", "connector-append", "connector-notify", "connector-ack")
PENSTOCK = (sys.executable, "-m", "penstock")
SENDER = """
import asyncio, sys
from tests.connector.rig import Numbers
from penstock.connector.source import Connector

address, count, batch, pause = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])


class Paced(Numbers):
    async def read(self):
        await asyncio.sleep(pause)
        return super().read()


Connector(address.split(","), "load", [Paced(f"s{n}", count, batch) for n in range(10)], cookie=b"secret").run()
"""
WAIT = 60.0


class Processes:
    """All three, and how they are started."""

    def __init__(
        self, directory: Path, count: int, seconds: float, batch: int = 20, *, embedded: bool = False
    ) -> None:
        """The connector takes at least so many seconds. `embedded`: the broker is in the worker's own process."""
        self.directory = directory
        self.embedded = embedded
        self.count = count
        self.batch = batch
        self.pause = seconds * batch / count
        self.cookie = directory / "cookie"
        self.cookie.write_text("secret\n")
        self.trace = directory / "trace"
        self.trace.touch()
        self.broker_port, self.worker_port = free_port(), free_port()
        self.address = f"http://127.0.0.1:{self.broker_port}"
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.armed: str | None = None
        """Where the next worker that is started kills itself."""
        self.under_fault = False
        self.hit: Counter[str] = Counter()

    def command(self, which: str) -> list[str]:
        commands: dict[str, list[str]] = {
            "broker": [
                *PENSTOCK, "broker", "serve", "--listen", f"127.0.0.1:{self.broker_port}", "--http", "off",
                "--data-dir", str(self.directory / "data"),
            ],
            "worker": [
                *PENSTOCK, "connector", "worker", "--listen", f"127.0.0.1:{self.worker_port}", "--credits", "256",
                "--partitions", str(PARTITIONS), "--cookie-file", str(self.cookie),
                *(("--data-dir", str(self.directory / "data")) if self.embedded else ("--broker", self.address)),
                "--log-level", "info", "--http", "off",
            ],
            "connector": [
                sys.executable, "-c", SENDER, f"127.0.0.1:{self.worker_port}", str(self.count), str(self.batch),
                str(self.pause),
            ],
        }  # fmt: skip
        return commands[which]

    def faults(self, which: str) -> dict[str, str]:
        """What a process that is about to start is told of where to die."""
        if which != "worker":
            return {}
        armed, self.armed = self.armed, None
        self.under_fault = armed is not None
        if armed is None:
            return {}
        self.trace.write_text("")
        return {faults.TRACE: str(self.trace), faults.KILL: armed}

    def start(self, which: str) -> None:
        with (self.directory / f"{which}.log").open("ab") as log:
            self.running[which] = subprocess.Popen(
                self.command(which), stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                env=os.environ | self.faults(which), cwd=Path(__file__).parents[2],
            )  # fmt: skip

    def start_all(self) -> None:
        """The worker before its broker: it waits for it."""
        for which in ("worker", "connector") if self.embedded else ("worker", "connector", "broker"):
            self.start(which)

    def kill(self, *victims: str) -> None:
        for which in victims:
            self.running[which].send_signal(signal.SIGKILL)
        for which in victims:
            self.running[which].wait()

    def settle(self) -> None:
        """Start again whatever is dead and has work to do."""
        for which, process in self.running.items():
            code = process.poll()
            if code is not None and (which != "connector" or code != 0):
                if which == "worker" and self.under_fault:
                    self._count_hit()
                self.start(which)

    def _count_hit(self) -> None:
        for line in self.trace.read_text().splitlines():
            if line.startswith("!"):
                self.hit[line[1:].split()[0]] += 1

    @property
    def done(self) -> bool:
        return self.running["connector"].poll() == 0

    def wait_for(self, what: str, true: object, seconds: float = WAIT) -> None:
        assert callable(true)
        deadline = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < deadline, f"{what}\n{self.logs()}"
            time.sleep(0.02)

    def durable(self) -> int:
        """Messages in the journal, as far as one can tell at the moment."""
        try:
            return sum(len(ids) for ids in self.ids().values())
        except Exception:  # noqa: BLE001 - the broker may be the one that was killed
            return -1

    def ids(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for frames in self.journals():
            some = ids_of(frames)
            assert not some.keys() & found.keys(), "a stream in two journals"
            found |= some
        return found

    def journals(self) -> list[list[fr.Message | fr.EosMessage]]:
        """What each of them holds."""
        with connect(self.directory / "data") if self.embedded else Client(self.address) as client:
            names = [journal.spec.name for journal in client.list()]
            ours = [name for name in names if partition_of_journal("connectors/load", name) is not None]
            return [
                frames_of(client.read_bytes(name, 0, head)) for name in ours if (head := client.head(name))
            ]

    def finish(self) -> None:
        """Let it run to its end, and look at what is in the journal."""

        def over() -> bool:
            self.settle()
            return self.done

        self.wait_for("the connector did not end", over, 120)
        self.settle()
        self.wait_for("the broker does not answer", lambda: self.durable() >= 0)
        wanted = list(range(1, self.count + 1))
        found = self.ids()
        assert set(found) == {stream_id(f"s{n}") for n in range(STREAMS)}
        for stream, ids in found.items():
            assert ids == wanted, f"stream {stream}: {faults_of(ids, wanted)}"
        last = [{f.stream: f for f in frames}.values() for frames in self.journals()]
        ended = {frame.stream for frames in last for frame in frames if isinstance(frame, fr.EosMessage)}
        assert ended == set(found), "a connector that has ended has left a stream open"

    def stop(self) -> None:
        for process in self.running.values():
            if process.poll() is None:
                process.kill()
            process.wait()

    def logs(self) -> str:
        return json.dumps(
            {which: (self.directory / f"{which}.log").read_text()[-3000:] for which in self.running}, indent=1
        )


def faults_of(ids: list[int], wanted: list[int]) -> str:
    twice = [number for number, times in Counter(ids).items() if times > 1]
    return (
        f"missing {sorted(set(wanted) - set(ids))[:10]}, twice {twice[:10]}, in order: {ids == sorted(ids)}"
    )
