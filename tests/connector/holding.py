"""A file sink as a program, whose storage can be held at a call, before it is done or after, until it is killed there.

    python -m tests.connector.holding PORT ROOT

The call that is named in `ROOT/hold` does not go on; `ROOT/held` says that it is there. A storage may be slow at any
of its calls, so whoever sees that has all the time to kill the process from outside, in the middle of the step.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from penstock.connector.sink import SinkServer, Transaction, Workers
from penstock.connector.sink.files import FileStorage, file_of


class HeldStorage(FileStorage):
    """Files, with patience."""

    def __init__(self, root: Path, worker: str) -> None:
        super().__init__(file_of(root / "out", worker))
        self._root = root

    def prepare(self, transaction: Transaction) -> None:
        self._reached("before prepare")
        super().prepare(transaction)
        self._reached("after prepare")

    def commit(self, transaction: Transaction) -> None:
        self._reached("before commit")
        super().commit(transaction)
        self._reached("after commit")

    def discard(self, offset: int) -> None:
        self._reached("before discard")
        super().discard(offset)
        self._reached("after discard")

    def retire(self, mark: str) -> None:
        self._reached("before retire")
        super().retire(mark)
        self._reached("after retire")

    def _reached(self, point: str) -> None:
        order = self._root / "hold"
        if order.exists() and order.read_text() == point:
            (self._root / "held").touch()
            threading.Event().wait()


def main(port: int, root: Path) -> None:
    workers = Workers(root / "txns", lambda worker: HeldStorage(root, worker), patience=30.0)
    with SinkServer(("127.0.0.1", port), workers) as server:
        while not server.wait(3600):
            pass


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
