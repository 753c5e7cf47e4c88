"""A test process that is killed leaves no server behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from tempfile import TemporaryDirectory

import pytest

PATIENCE = 60.0

_STARTS = {
    "nats": "from tests.servers.nats import running; context = running(Path(mkdtemp()))",
    "redis": "from tests.servers.redis import running; context = running(Path(mkdtemp()))",
    "postgres": "from tests.servers.postgres import running; context = running()",
    "mariadb": "from tests.servers.mariadb import MARIADB, running; context = running(MARIADB)",
    "rabbitmq": "from tests.servers.rabbitmq import running; context = running()",
}

_BODY = """
import sys
from pathlib import Path
from tempfile import mkdtemp
{start}
with context as server:
    print(server.port, flush=True)
    sys.stdin.read()
"""


@pytest.mark.soak
@pytest.mark.parametrize("server", _STARTS)
def test_a_server_ends_with_the_process_that_started_it(server: str) -> None:
    with TemporaryDirectory(ignore_cleanup_errors=True) as place:
        os.chmod(place, 0o755)  # PostgreSQL may run as another user
        port = _start_and_kill(_BODY.format(start=_STARTS[server]), place)
        assert port, f"{server} cannot be had here"
        until = time.monotonic() + PATIENCE
        while _listens(int(port)):
            assert time.monotonic() < until, f"{server} still answers"
            time.sleep(0.1)


def _start_and_kill(body: str, place: str) -> str:
    """Run a process that starts a server below `place` and tells its port; kill it as soon as it has."""
    process = subprocess.Popen(
        [sys.executable, "-c", body], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": place},
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        process.kill()
    return port


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
