"""Clusters of real processes: etcd, and brokers started with `penstock broker serve`, to be killed, frozen and cut off.

    with cluster(tmp_path, "abcd") as running:
        running["a"].kill(); running["a"].start()
        running.create("a/journal", replication=3)

Each broker has a data directory and a port of its own, which it keeps. With `links`, others reach it through a proxy,
and it reaches etcd through another one: `running["a"].link`, `running["a"].to_etcd`. With `spaces` each is in a network
namespace, which can be cut off from the others, while clients and etcd are reached. Its way to the store is its own as
well: `running["a"].store`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.servers.cache import end_with_parent
from tests.servers.etcd import EtcdServer, running
from tests.servers.namespaces import Namespace
from tests.servers.ports import free_port
from tests.servers.proxy import Proxy, proxied

from penstock.journal.client import Client
from penstock.journal.protocol import JournalSpec, ListResponse
from penstock.journal.tls import ClientTls
from penstock.log.commitlog import journal_spec

PATIENCE = 60.0
LEASE = 4
"""Seconds: short enough to wait for its end, long enough not to end by itself on a machine with much to do."""


class BrokerProcess:
    """One broker of a cluster: its place, its address, and how it fares."""

    def __init__(
        self,
        name: str,
        zone: str,
        place: Path,
        store: Path,
        etcd: Sequence[str],
        *,
        link: Proxy | None = None,
        to_etcd: Proxy | None = None,
        options: Sequence[str] = (),
        tls: ClientTls | None = None,
        space: Namespace | None = None,
    ) -> None:
        self.name = name
        self.zone = zone
        self.id = f"broker-{name}"
        self.directory = place / name
        self.log = place / f"{name}.log"
        self.port = free_port()
        self.space = space
        self.address = f"{space.address if space is not None else '127.0.0.1'}:{self.port}"
        self.link = link
        self.to_etcd = to_etcd
        self.tls = tls
        """Whom its clients trust, and what they show."""
        self.environment: dict[str, str] = {}
        self.store = place / f"{name}.store"
        """Where it finds what all of them share."""
        self.store.symlink_to(store)
        self._etcd = [to_etcd.uri] if to_etcd is not None else list(etcd)
        self._options = list(options)
        self.process: subprocess.Popen[str] | None = None
        if link is not None:
            link.lead_to(self.port)

    def begin(self) -> None:
        """Start, and do not wait."""
        listen, advertised = self.address, self.address
        if self.link is not None:
            advertised = f"127.0.0.1:{self.link.port}"
        elif self.space is not None:
            listen, advertised = f"0.0.0.0:{self.port}", f"{self.space.among_others}:{self.port}"
        command = [
            *(self.space.enter if self.space is not None else ()),
            sys.executable, "-m", "penstock", "broker", "serve", "--etcd", ",".join(self._etcd),
            "--etcd-lease", str(LEASE), "--zone", self.zone, "--id", self.id, "--listen", listen,
            "--advertise", advertised, "--http", "off", "--data-dir", str(self.directory),
            "--file-root", str(self.store), "--json", "--log-level", "info", *self._options,
        ]  # fmt: skip
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **self.environment},
                preexec_fn=end_with_parent,
            )

    def ready(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"{self.name} did not start: {self.log.read_text()[-3000:]}"
        assert json.loads(line)["grpc"].endswith(f":{self.port}")

    def start(self) -> None:
        self.begin()
        self.ready()

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.wait()

    def stop(self) -> int:
        """In order; the exit code."""
        self.send(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        assert self.process is not None
        process, self.process = self.process, None
        code = process.wait(PATIENCE)
        assert process.stdout is not None
        process.stdout.close()
        return code

    def freeze(self) -> None:
        self.send(signal.SIGSTOP)

    def thaw(self) -> None:
        self.send(signal.SIGCONT)

    def client(self) -> Client:
        return Client(self.address, tls=self.tls)

    def set_aside(self) -> list[Path]:
        """Spools that this broker has set aside."""
        return sorted((self.directory / "spools").rglob("*.aside"))


class Running:
    """The brokers of a cluster, by name, and their etcd."""

    def __init__(self, place: Path, etcds: list[EtcdServer], store: Path) -> None:
        self.place = place
        self.etcds = etcds
        self.store = store
        self.brokers: dict[str, BrokerProcess] = {}

    def __getitem__(self, name: str) -> BrokerProcess:
        return self.brokers[name]

    @property
    def etcd(self) -> EtcdServer:
        return self.etcds[0]

    def add(self, name: str, zone: str, **extras: object) -> BrokerProcess:
        uris = [etcd.uri for etcd in self.etcds]
        broker = BrokerProcess(name, zone, self.place, self.store, uris, **extras)  # type: ignore[arg-type]
        self.brokers[name] = broker
        return broker

    def start(self, names: str) -> None:
        """Brokers that are not running, at the same time."""
        for name in names:
            self[name].begin()
        for name in names:
            self[name].ready()

    def any_alive(self) -> BrokerProcess:
        return next(broker for broker in self.brokers.values() if broker.alive)

    def create(self, journal: str, replication: int = 3, length: int = 64 << 10) -> None:
        """A journal, once all of its replicas agree."""
        spec = journal_spec(journal, length, {})
        spec.replication = replication
        self.apply(spec)
        self.settled(journal)

    def apply(self, spec: JournalSpec) -> None:
        with self.any_alive().client() as client:
            assert client.create(spec)

    def listed(self, journal: str) -> ListResponse.Journal:
        with self.any_alive().client() as client:
            return next(found for found in client.list() if found.spec.name == journal)

    def members(self, journal: str) -> list[str]:
        """The names of the brokers of a journal's route, the primary first."""
        route = self.listed(journal).route
        names = [member.suffix.removeprefix("broker-") for member in route.members]
        if route.primary >= 0:
            names.insert(0, names.pop(route.primary))
        return names

    def settled(self, journal: str) -> list[str]:
        """Wait until a journal has all of its replicas and takes appends; its members then."""

        def appended() -> bool:
            with self.any_alive().client() as client:
                client.append(journal, b"", timeout=5)
            found = self.listed(journal)
            return len(found.route.members) == found.spec.replication

        until(appended)
        return self.members(journal)

    def close(self) -> None:
        for broker in self.brokers.values():
            if broker.process is not None:
                broker.kill()


@contextmanager
def cluster(
    place: Path,
    names: str = "abcd",
    *,
    zones: str = "xy",
    etcds: list[EtcdServer] | None = None,
    links: bool = False,
    delay: float = 0.0,
    options: Sequence[str] = (),
    tls: ClientTls | None = None,
    spaces: Mapping[str, Namespace] | None = None,
) -> Iterator[Running]:
    """Brokers of these names, in the zones by turns. Killed at the end."""
    place.mkdir(parents=True, exist_ok=True)
    store = place / "store"
    store.mkdir()
    with ExitStack() as ends:
        if etcds is None:
            etcds = [ends.enter_context(running(place / "etcd"))]
        found = Running(place, etcds, store)
        ends.callback(found.close)
        for at, name in enumerate(names):
            space = spaces[name] if spaces is not None else None
            link = ends.enter_context(proxied(1, delay=delay)) if links else None
            to_etcd = None
            if links or space is not None:
                host = space.gate if space is not None else "127.0.0.1"
                to_etcd = ends.enter_context(proxied(etcds[0].port, host=host))
            extras = {"link": link, "to_etcd": to_etcd, "options": options, "tls": tls, "space": space}
            found.add(name, zones[at % len(zones)], **extras)
        found.start(names)
        yield found


def until(condition: Callable[[], object], patience: float = PATIENCE) -> None:
    """Wait for something that other processes bring about; errors of brokers on the way are no answer."""
    deadline = time.monotonic() + patience
    while True:
        try:
            if condition():
                return
            error: Exception | None = None
        except Exception as failure:  # noqa: BLE001 - told if it stays so
            error = failure
        assert time.monotonic() < deadline, f"it does not come about: {error!r}"
        time.sleep(0.05)
