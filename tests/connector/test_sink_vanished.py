"""A worker whose machine vanishes without a word: its name is another's soon, with what it had voted on."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.connector.sinking import PATIENCE, ROOT, eventually
from tests.connector.storing import MemoryStorage
from tests.servers.namespaces import namespaces

from penstock.connector.sink import Limits, SinkServer, Transaction, Workers
from penstock.connector.sinklink import SinkLink
from penstock.connector.twopc import SinkError, Who

WORKER = """
import sys
from penstock.connector.sinklink import SinkLink
from penstock.connector.twopc import Who

link = SinkLink((sys.argv[1], int(sys.argv[2])), Who("w"), 0, 60)
print("connected", flush=True)
if sys.argv[3] == "an answer under way":
    link.write(b"data")
    link.vote("t1")
sys.stdin.read()
"""


class Waiting(MemoryStorage):
    """Prepares when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.may = threading.Event(), threading.Event()

    def prepare(self, transaction: Transaction) -> None:
        self.asked.set()
        assert self.may.wait(PATIENCE)
        super().prepare(transaction)


@pytest.mark.parametrize("state", ["idle", "an answer under way"])
def test_the_name_of_a_worker_whose_machine_has_vanished_is_free_again(tmp_path: Path, state: str) -> None:
    """Until then a second connection is refused: the first may still be alive."""
    storage = Waiting()
    workers = Workers(tmp_path, lambda worker: storage, patience=0.05)
    with (
        namespaces("a") as spaces,
        SinkServer(("0.0.0.0", 0), workers, limits=Limits(silence=3)) as server,
    ):
        port = server.address[1]
        command = [*spaces["a"].enter, sys.executable, "-c", WORKER, spaces["a"].gate_among_others, str(port)]
        with subprocess.Popen(
            [*command, state], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
        ) as far:
            assert far.stdout is not None
            assert far.stdout.readline() == b"connected\n"
            assert state == "idle" or storage.asked.wait(PATIENCE)
            listed: list[tuple[str, ...]] = []

            def comes_in() -> bool:
                try:
                    with SinkLink(("127.0.0.1", port), Who("w"), 0, PATIENCE) as link:
                        listed.append(link.listed.transactions)
                except SinkError as error:
                    assert error.message == "the sink refused: worker w is already active"  # noqa: PT017
                return bool(listed)

            assert not comes_in(), "it may only be slow"
            spaces["a"].cut()
            storage.may.set()
            assert eventually(comes_in)
            assert listed == [() if state == "idle" else ("t1",)]
            far.kill()
