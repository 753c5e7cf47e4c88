"""A Java process that is told from here what to do: it runs the gateway of py4j, which PySpark brings.

For servers that are libraries and have no command of their own. Nothing is compiled, and what they serve is served by
their own process.
"""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway
from tests.servers.cache import UnavailableError
from tests.servers.maven import java

PATIENCE = 30.0


class Jvm:
    """One process. `view` names classes: `jvm.view.java.util.ArrayList()`."""

    def __init__(self, classes: Path, place: Path, options: Sequence[str] = ()) -> None:
        with (place / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    java(), *options, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{classes}/*:{_py4j()}",
                    "py4j.GatewayServer", "--enable-auth", "0",
                ],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=place, text=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        port = self._process.stdout.readline().strip()
        if not port.isdigit():
            self.kill()
            raise UnavailableError(
                f"Java did not start: {(place / 'log').read_text(errors='replace')[-2000:]}"
            )
        given = self._process.stdout.readline().strip()
        parameters = GatewayParameters(port=int(port), auth_token=given, auto_convert=True)
        self.gateway: Any = JavaGateway(gateway_parameters=parameters)
        self.view: Any = self.gateway.jvm

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """As a crash: kill -9."""
        if hasattr(self, "gateway"):
            self.gateway.close(keep_callback_server=False, close_callback_server_connections=False)
        self._process.kill()
        self._process.wait(PATIENCE)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def _py4j() -> Path:
    spec = importlib.util.find_spec("pyspark")
    found = sorted(Path(spec.origin).parent.glob("jars/py4j-*.jar")) if spec and spec.origin else []
    if not found:
        raise UnavailableError("PySpark is not here, or came without its py4j")
    return found[-1]
