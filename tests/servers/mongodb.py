"""A server that speaks MongoDB's protocol, for tests: mongo-java-server, from Maven Central, in a process of its own.

No package that can be had without asking MongoDB's own host holds `mongod`. This server keeps documents in a file
(H2), keeps an oplog, and serves change streams of a collection, with resume tokens that outlive a restart. It does
not have: streams of a database, the name of the collection in events, sessions and transactions, users, binary
subtypes other than 0, 3 and 4.

    with running(tmp_path) as server:
        MongoClient(server.uri)
        server.kill(); server.start()       # same data, same port
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.servers.jvm import Jvm
from tests.servers.maven import jars
from tests.servers.ports import free_port

VERSION = "1.47.0"
NAME = f"mongo-java-server {VERSION}"
_WIRE_VERSION = 9
"""Of MongoDB 4.4, the oldest that the driver talks to; the server itself says 8."""


class MongoServer:
    """One server, its data in `place`."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._classes = jars(
            f"mongo-java-server-{VERSION}",
            f"de.bwaldvogel:mongo-java-server:{VERSION}",
            f"de.bwaldvogel:mongo-java-server-h2-backend:{VERSION}",
        )
        self.port = free_port()
        self._jvm: Jvm | None = None
        self._backend: Any = None

    @property
    def uri(self) -> str:
        return f"mongodb://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._jvm = jvm = Jvm(self._classes, self._place, ["-Xmx640m"])
        mongo = jvm.view.de.bwaldvogel.mongo
        version = mongo.ServerVersion.valueOf("MONGO_5_0")
        wire = version.getClass().getDeclaredField("wireVersion")
        wire.setAccessible(True)
        wire.setInt(version, _WIRE_VERSION)
        self._backend = mongo.backend.h2.H2Backend(str(self._place / "data.mv"))
        self._backend.version(version)
        server = mongo.MongoServer(self._backend)
        server.enableOplog()
        server.bind("127.0.0.1", self.port)

    def kill(self) -> None:
        """As a crash, but for what was acknowledged: the server writes its file once a second, and so is made to."""
        if self._jvm is not None:
            self._backend.commit()
            self._jvm.kill()
            self._jvm = None

    def restart(self) -> None:
        self.kill()
        self.start()


@contextmanager
def running(place: Path) -> Iterator[MongoServer]:
    """A server in the empty directory `place`. Raises `UnavailableError` if it cannot be had."""
    server = MongoServer(place)
    server.start()
    try:
        yield server
    finally:
        server.kill()
