"""A real OpenSearch for tests: one node from its jars on Maven Central, in a process of its own.

It is the server that others run, with its HTTP and the module for `_delete_by_query`; without its security plugin,
so it has no users, and without TLS.

    with running(tmp_path) as server:
        server.uri
        server.kill(); server.start()       # same data, same port
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from tests.servers.cache import UnavailableError
from tests.servers.jvm import Jvm
from tests.servers.maven import jars
from tests.servers.ports import free_port

VERSION = "2.19.3"
NAME = f"OpenSearch {VERSION}"
PATIENCE = 60.0

_PLUGINS = ("org.opensearch.transport.Netty4Plugin", "org.opensearch.index.reindex.ReindexPlugin")


class OpenSearchServer:
    """One node, its data in `place`."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._classes = jars(
            f"opensearch-{VERSION}",
            f"org.opensearch:opensearch:{VERSION}",
            f"org.opensearch.plugin:transport-netty4-client:{VERSION}",
            f"org.opensearch.plugin:reindex-client:{VERSION}",
            "org.apache.logging.log4j:log4j-core:2.21.0",
        )
        self.port, self._transport = free_port(), free_port()
        self._jvm: Jvm | None = None
        (place / "config").mkdir()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        options = ["-Xmx640m", "-Xms256m", "-Djava.security.manager=allow", "-Dlog4j2.disable.jmx=true"]
        self._jvm = jvm = Jvm(self._classes, self._place, [*options, "-Dlog4j2.level=WARN"])
        java = jvm.view.java
        settings = jvm.view.org.opensearch.common.settings.Settings.builder()
        for name, value in self._settings().items():
            settings.put(name, value)
        config = java.io.File(str(self._place / "config")).toPath()
        environment = jvm.view.org.opensearch.env.Environment(settings.build(), config)
        load = java.lang.Class.forName
        plugins = java.util.ArrayList()
        for plugin in _PLUGINS:
            plugins.add(load(plugin))
        # The constructor with plugins from the class path is for subclasses; the public one wants a whole installation.
        (constructor,) = [
            one
            for one in load("org.opensearch.node.Node").getDeclaredConstructors()
            if one.getParameterCount() == 3
        ]
        constructor.setAccessible(True)
        arguments = jvm.gateway.new_array(java.lang.Object, 3)
        arguments[0], arguments[1], arguments[2] = environment, plugins, False
        constructor.newInstance(arguments).start()
        self._await()

    def kill(self) -> None:
        """As a crash: kill -9. What was acknowledged is in its translog."""
        if self._jvm is not None:
            self._jvm.kill()
            self._jvm = None

    def restart(self) -> None:
        self.kill()
        self.start()

    def _settings(self) -> dict[str, str]:
        return {
            "path.home": str(self._place), "path.data": str(self._place / "data"),
            "path.logs": str(self._place / "logs"), "cluster.name": "penstock", "node.name": "one",
            "network.host": "127.0.0.1", "http.port": str(self.port), "transport.port": str(self._transport),
            "discovery.type": "single-node", "http.type": "netty4", "transport.type": "netty4",
            "cluster.routing.allocation.disk.threshold_enabled": "false", "node.processors": "2",
        }  # fmt: skip

    def _await(self) -> None:
        """Until all shards that there are can be written."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                with urlopen(f"{self.uri}/_cluster/health?wait_for_status=yellow&timeout=30s", timeout=40):
                    return
            except (URLError, OSError) as error:
                if time.monotonic() > until:
                    raise UnavailableError(f"OpenSearch does not come up: {error}") from error
                time.sleep(0.1)


@contextmanager
def running(place: Path) -> Iterator[OpenSearchServer]:
    """A node in the empty directory `place`. Raises `UnavailableError` if it cannot be had."""
    server = OpenSearchServer(place)
    server.start()
    try:
        yield server
    finally:
        server.kill()
