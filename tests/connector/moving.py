"""A broker, two workers and a connector that moves between them, as processes of their own; and who is killed when.

The connector never ends: at any moment the journal must hold the ids 1, 2, 3 … of each stream, once, in order, and at
least as many as were acknowledged. A step is met when the process that entered it says so in the trace; it is that
process which kills the victim, so that the kill falls into the step and not somewhere behind it.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import msgspec
from tests.connector.killing import PENSTOCK, STREAMS, Processes, faults_of
from tests.servers.ports import free_port

from penstock.base import faults
from penstock.connector.status import WorkerStatus, request

STEPS = (
    "connector-migrate",  # 1 the old worker sends MIGRATE
    "source-close",  # 2 the connector sends EOS for its streams
    "connector-close",  # 3 the old worker makes durable what came before an EOS
    "connector-let-go",  # 4 it has acknowledged the last ids, and lets the journal go
    "source-move",  # 5 the connector says HELLO to the new worker
    "connector-claim",  # 5 which claims the journal
    "source-moved",  # 6 MIGRATION_ACK to the old worker
    "source-notify",  # 7 NOTIFY of each stream
    "connector-notify",  # 7 NOTIFY_ACK with the last id
)
"""Of a migration, in their order (protocol reference 9.3)."""
SENT_AWAY = "connector-restart"
WORKERS = ("a", "b")
VICTIMS = ("old", "new", "connector")
ENDLESS = 1_000_000_000
SENDER = """
import asyncio, sys
from tests.connector.rig import Numbers
from penstock.connector.source import Connector


class Paced(Numbers):
    async def read(self):
        await asyncio.sleep(0.02)
        return super().read()


streams = [Paced(f"s{n}", int(sys.argv[2]), 10) for n in range(10)]
Connector(sys.argv[1].split(","), "load", streams, cookie=b"secret", migration_tries=3).run()
"""


class Moving(Processes):
    """Two workers, `a` and `b`; whichever has the connector is the old one."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, ENDLESS, seconds=1.0)
        self.ports = {which: free_port() for which in WORKERS}
        self.web = {which: f"127.0.0.1:{free_port()}" for which in WORKERS}
        self.order = directory / "order"
        self.met: Counter[str] = Counter()

    def command(self, which: str) -> list[str]:
        if which in WORKERS:
            return [
                *PENSTOCK, "connector", "worker", "--listen", self.listen(which), "--http", self.web[which],
                "--name", which, "--cookie-file", str(self.cookie), "--broker", self.address, "--log-level", "info",
            ]  # fmt: skip
        if which == "connector":
            return [sys.executable, "-c", SENDER, ",".join(map(self.listen, WORKERS)), str(ENDLESS)]
        return super().command(which)

    def faults(self, which: str) -> dict[str, str]:
        return {} if which == "broker" else {faults.TRACE: str(self.trace), faults.KILL: f"@{self.order}"}

    def listen(self, which: str) -> str:
        return f"127.0.0.1:{self.ports[which]}"

    def start_all(self) -> None:
        for which in ("broker", *WORKERS, "connector"):
            self.start(which)

    # What the workers say.

    def status(self, which: str) -> WorkerStatus | None:
        try:
            code, body = request(self.web[which], "GET", "/status")
        except OSError:
            return None
        return msgspec.json.decode(body, type=WorkerStatus) if code == 200 else None

    def active(self, which: str) -> bool:
        """Whether the connector has all its streams there, with something acknowledged on each, and is to stay."""
        status = self.status(which)
        if status is None or any(session.state != "streaming" for session in status.sessions):
            return False
        streams = [each for each in status.streams if each.state == "active"]
        return len(streams) == STREAMS and all(each.last_acked for each in streams)

    def old(self) -> str:
        """The worker that has the connector, once one has."""
        found: list[str] = []

        def settled() -> bool:
            self.settle()
            found[:] = filter(self.active, WORKERS)
            return bool(found)

        self.wait_for("no worker has the connector", settled)
        return found[0]

    # What is done.

    def migrate(self, old: str, new: str) -> None:
        body = msgspec.json.encode({"what": "load", "to": self.listen(new)})
        code, answer = request(self.web[old], "POST", "/migrate", body, b"secret")
        assert code == 200, answer

    def killed_at(self, step: str, victim: str) -> None:
        """Move the connector; a process dies when one of them is at this step. Then all is well again somewhere.

        A worker is at `SENT_AWAY` when it is told to stop.
        """
        old = self.old()
        new = WORKERS[1 - WORKERS.index(old)]
        self.wait_for("the other worker does not answer", lambda: self.status(new) is not None)
        dying = {"old": old, "new": new}.get(victim, victim)
        process = self.running[dying]
        self.trace.write_text("")
        aside = self.order.with_suffix(".new")
        aside.write_text(f"{step}:1 {process.pid}")
        aside.rename(self.order)
        if step == SENT_AWAY:
            self.running[old].terminate()
        else:
            self.migrate(old, new)
        self.wait_for(f"{victim} was not killed at {step}", lambda: process.poll() is not None)
        assert f"!{step} " in self.trace.read_text()
        self.met[f"{step} {victim}"] += 1
        self.old()
        self.whole()

    def terminated(self) -> None:
        """SIGTERM to the worker that has the connector: it ends well, and the other has the connector then."""
        old = self.old()
        new = WORKERS[1 - WORKERS.index(old)]
        self.wait_for("the other worker does not answer", lambda: self.status(new) is not None)
        process = self.running[old]
        process.terminate()
        assert process.wait(60) == 0, self.logs()
        self.wait_for("the connector was not handed over", lambda: self.active(new))
        assert self.running["connector"].poll() is None
        self.whole()
        self.settle()

    def whole(self) -> None:
        """All that was acknowledged is in the journal, once, in order."""
        acked = [
            each for worker in map(self.status, WORKERS) if worker is not None for each in worker.streams
        ]
        found = self.ids()
        for each in acked:
            assert each.last_acked is None or found[each.id][-1] >= each.last_acked, each
        for stream, ids in found.items():
            wanted = list(range(1, len(ids) + 1))
            assert ids == wanted, f"stream {stream}: {faults_of(ids, wanted)}\n{self.logs()}"
