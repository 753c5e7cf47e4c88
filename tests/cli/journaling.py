"""Commands on journals, run in this process against an embedded broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import penstock
from penstock.cli import cli
from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker

SPECS = """\
name: shop/
replication: 1
fragment: {length: 1024, compression_codec: NONE, stores: ["file:///"], refresh_interval: 5m}
children:
  - name: shop/items
  - name: shop/orders
    labels: [{name: content-type, value: application/x-ndjson}, {name: color, value: red}]
"""


class Shell:
    """A current directory with a data directory that holds SPECS, and what is typed there."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("BROKER", "AUTH_KEYS", "AUTH_TOKEN", "DEBUG"):
            monkeypatch.delenv(f"PENSTOCK_{name}", raising=False)
        monkeypatch.setenv("PENSTOCK_DATA_DIR", str(path / "data"))
        monkeypatch.chdir(path)
        self.path = path
        self.data = path / "data"
        self.broker = EmbeddedBroker(self.data)
        self.ok("apply", input=SPECS)

    def run(self, *arguments: str, input: str | bytes | None = None) -> Result:
        return CliRunner().invoke(cli, ["journals", *arguments], prog_name="penstock", input=input)

    def ok(self, *arguments: str, input: str | bytes | None = None) -> str:
        """The output of a command that does not fail."""
        result = self.run(*arguments, input=input)
        assert result.exit_code == 0, result.output
        return result.stdout

    def fails(self, code: int, *arguments: str, input: str | bytes | None = None) -> str:
        """What a command that fails says on stderr."""
        result = self.run(*arguments, input=input)
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.stderr
        return result.stderr

    def lines(self, *arguments: str) -> list[Any]:
        """The objects that a command prints with --json."""
        return [json.loads(line) for line in self.ok(*arguments, "--json").splitlines()]

    def append(self, journal: str, *contents: bytes, roll: bool = False) -> None:
        """Append; with `roll`, each as a fragment that is in the store."""
        with Client(self.broker.address) as client:
            for content in contents:
                client.append(journal, content)
                if roll:
                    client.roll(journal)
                    until(lambda: all(found.spec.backing_store for found in client.fragments(journal)))

    def restarted(self, change: Callable[[Path], None]) -> None:
        """Stop the broker, change files of its store, and start it again."""
        self.broker.stop()
        change(self.data / "fragments")
        self.broker = EmbeddedBroker(self.data)


class Process:
    """A command as a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def line(self) -> str:
        """The next line of its output, waited for."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            assert self.process.stderr is not None
            raise AssertionError(f"it has ended: {self.process.stderr.read()}")
        return line

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Its exit code, once the signal has ended it; a process that hangs says where."""
        self.process.send_signal(how)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)
            assert self.process.stderr is not None
            raise AssertionError(f"it does not end: {self.process.stderr.read()}") from None


@contextmanager
def started(*arguments: str, cwd: Path) -> Iterator[Process]:
    """Start `penstock ...`; it is killed in the end if it is still there."""
    code = "import sys; sys.argv[0] = 'penstock'; from penstock.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", code, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(Path(penstock.__file__).parents[1])},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Process(process)
        finally:
            process.kill()


def until(condition: Callable[[], bool], patience: float = 60.0) -> None:
    """Wait for something that another thread or process brings about."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
