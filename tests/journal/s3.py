"""A server process that speaks S3, for tests: started on a free port, killed and started again at will."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

import psutil
import pytest
from tests.servers.ports import free_port

BUCKET = "fragments"
KEY_ID, SECRET = "AKIATEST", "a-secret-of-the-tests"


class S3Server:
    """One server. What it holds is gone when it is killed; its port stays."""

    def __init__(self) -> None:
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def store_url(self, prefix: str = "", bucket: str = BUCKET, **arguments: str) -> str:
        query = "".join(f"&{name}={quote(value, safe='')}" for name, value in arguments.items())
        return f"s3://{bucket}/{prefix}?endpoint={quote(self.endpoint, safe='')}{query}"

    def start(self, **environ: str) -> None:
        """Until it answers, with an empty bucket."""
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdout=quiet, stderr=quiet, env={**os.environ, **environ})
        deadline = time.monotonic() + 60
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the S3 server did not start")
            time.sleep(0.02)
        self.request("PUT", f"/{BUCKET}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """A request without credentials, which the server takes unless told otherwise."""
        request = urllib.request.Request(f"{self.endpoint}{path}", method=method, data=body)
        with urllib.request.urlopen(request, timeout=30) as response:
            content: bytes = response.read()
        return content

    def _listens(self) -> bool:
        """Whether it is this very process that answers there: another test's server may have drawn the same port."""
        assert self._process is not None
        try:
            there = psutil.Process(self._process.pid).net_connections("tcp4")
        except psutil.Error:
            return False
        return any(one.status == psutil.CONN_LISTEN and one.laddr.port == self.port for one in there)


@contextmanager
def s3_server(**environ: str) -> Iterator[S3Server]:
    server = S3Server()
    try:
        server.start(**environ)
        yield server
    finally:
        server.kill()


@contextmanager
def silent_server() -> Iterator[str]:
    """The endpoint of a server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def aws_environment() -> Iterator[pytest.MonkeyPatch]:
    """Credentials for the server, and nothing else of this machine's."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_", "GOOGLE_"))]:
            patch.delenv(name)
        patch.setenv("HOME", "/nonexistent")
        patch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        yield patch
