"""A real RabbitMQ for tests, with its management API: Debian's packages and the Erlang that they need, unpacked.

Erlang's start script names the directory it was installed in: a copy of it that names the cache goes before it. The
server has a name service (epmd) of its own, and all its ports are free ones of 127.0.0.1.

    with running() as server:
        connect(server.uri)
        server.kill(); server.start()       # as a crash: same data, same port
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers.cache import UnavailableError, end_with_parent, missing
from tests.servers.debian import unpacked
from tests.servers.ports import free_port

if TYPE_CHECKING:
    from tests.servers.tls import ServerFiles

USER, PASSWORD = "penstock", "not-to-be-shown"
PATIENCE = 120.0

_CONFIGURATION = f"""
listeners.tcp.1 = 127.0.0.1:{{port}}
management.tcp.ip = 127.0.0.1
management.tcp.port = {{management}}
default_user = {USER}
default_pass = {PASSWORD}
collect_statistics_interval = 500
log.console = false
"""

_TLS = """
listeners.ssl.1 = 127.0.0.1:{port}
ssl_options.certfile = {certificate}
ssl_options.keyfile = {key}
ssl_options.verify = verify_none
"""

_WRAPPER = """#!/bin/sh
exec '{python}' -S -c 'import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
os.execv(sys.argv[1], sys.argv[1:])' '{real}' "$@"
"""
"""Erlang ends with the start script that runs it, as that does with the test process (PR_SET_PDEATHSIG)."""


class RabbitServer:
    """One server, its data in `home`. `uri` is what clients are given."""

    def __init__(self, home: Path, tls: ServerFiles | None = None) -> None:
        """With `tls` there is a listener for it beside the plain one, at `tls_port`."""
        self._home = home
        self._tls = tls
        self.tls_port = free_port()
        self._tree = unpacked("rabbitmq", ["rabbitmq-server"])
        self._erlang = self._tree.path("usr/lib/erlang")
        self._server = next(self._tree.path("usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))
        self._runtime = next(self._erlang.glob("erts-*")) / "bin"
        self._names: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.port, self._management, self._epmd, self._nodes = (free_port() for _ in range(4))
        self.uri = f"amqp://{USER}:{PASSWORD}@127.0.0.1:{self.port}/"
        self.management = f"http://127.0.0.1:{self._management}"
        self._prepare()

    @property
    def version(self) -> str:
        return f"RabbitMQ {self._server.name.partition('-')[2]}"

    def start(self) -> None:
        if self._names is None:
            self._names = self._run(
                [str(self._runtime / "epmd"), "-port", str(self._epmd), "-address", "127.0.0.1"]
            )
            _await(self._epmd, self._names)
        self._process = self._run([str(self._server / "sbin" / "rabbitmq-server")])
        try:
            _await(self.port, self._process)
            _await(self._management, self._process)
        except UnavailableError as error:
            self.close()
            shown = (self._home / "out").read_text(errors="replace")[-1500:]
            raise UnavailableError(f"{error}\n{shown}") from None

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """As a crash: kill -9, of the server and all that it started."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        self.kill()
        if self._names is not None:
            self._names.kill()
            self._names.wait(PATIENCE)
            self._names = None

    def control(self, *arguments: str) -> None:
        """What an operator does with `rabbitmqctl`."""
        command = [str(self._server / "sbin" / "rabbitmqctl"), "-n", "kit@localhost", *arguments]
        subprocess.run(command, env=self._environment(), check=True, capture_output=True, timeout=PATIENCE)

    def _prepare(self) -> None:
        (self._home / "bin").mkdir()
        script = self._home / "bin" / "erl"
        text = (self._erlang / "bin" / "erl").read_text()
        real = script.with_name("erl.real")
        real.write_text(text.replace("ROOTDIR=/usr/lib/erlang", f"ROOTDIR={self._erlang}"))
        script.write_text(_WRAPPER.format(python=sys.executable, real=real))
        for one in (script, real):
            one.chmod(0o755)
        content = _CONFIGURATION.format(port=self.port, management=self._management)
        if self._tls is not None:
            content += _TLS.format(port=self.tls_port, certificate=self._tls.certificate, key=self._tls.key)
        (self._home / "rabbitmq.conf").write_text(content)
        (self._home / "plugins").write_text("[rabbitmq_management].")

    def _environment(self) -> dict[str, str]:
        home = str(self._home)
        return {
            **self._tree.environment(), "HOME": home, "ERL_EPMD_PORT": str(self._epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "PATH": f"{home}/bin:{self._erlang}/bin:{self._runtime}:{os.environ['PATH']}",
            "RABBITMQ_NODENAME": "kit@localhost", "RABBITMQ_MNESIA_BASE": f"{home}/data",
            "RABBITMQ_LOG_BASE": f"{home}/log", "RABBITMQ_CONFIG_FILE": f"{home}/rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{home}/plugins", "RABBITMQ_DIST_PORT": str(self._nodes),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null", "ERL_CRASH_DUMP_SECONDS": "0",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }  # fmt: skip

    def _run(self, command: list[str]) -> subprocess.Popen[bytes]:
        with (self._home / "out").open("ab") as out:
            return subprocess.Popen(
                command, env=self._environment(), cwd=self._home, stdout=out, stderr=out,
                stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=end_with_parent,
            )  # fmt: skip

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            # The start script runs the server as its child.
            os.killpg(process.pid, how)
            process.wait(PATIENCE)
            _await_end(self.port)


@contextmanager
def running(tls: ServerFiles | None = None) -> Iterator[RabbitServer]:
    """A server of its own; where it cannot be had, the test is skipped, or in CI fails."""
    home = Path(tempfile.mkdtemp(prefix="penstock-rabbitmq-"))
    try:
        try:
            server = RabbitServer(home, tls)
            server.start()
        except (UnavailableError, StopIteration) as error:
            missing("RabbitMQ", error)
        try:
            yield server
        finally:
            server.close()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _await(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + PATIENCE
    while not _listens(port):
        if process.poll() is not None or time.monotonic() > until:
            raise UnavailableError("RabbitMQ did not start")
        time.sleep(0.1)


def _await_end(port: int) -> None:
    until = time.monotonic() + PATIENCE
    while _listens(port) and time.monotonic() < until:
        time.sleep(0.05)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
