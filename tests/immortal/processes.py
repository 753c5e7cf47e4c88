"""Coordinators and test bindings as real processes, to be killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.servers.ports import free_port

REPOSITORY = Path(__file__).parents[2]
PATIENCE = 60.0


def until(true: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
    """Wait until something holds; an error that says what, if it does not."""
    deadline = time.monotonic() + patience
    while not true():
        assert time.monotonic() < deadline, f"{what} did not happen in {patience} s"
        time.sleep(0.02)


class Instance:
    """One coordinator with its binding; started and killed as often as one likes."""

    def __init__(
        self, place: str, folder: Path, name: str, app: str, options: Mapping[str, Any], *arguments: str
    ) -> None:
        self.place = place
        self.folder = folder
        self.name = name
        self.app = app
        self.options = dict(options)
        self.arguments = arguments
        self.enter: list[str] = []
        """What comes before its commands, to run them on a machine of its own."""
        self.report_file = folder / f"{name}.json"
        self.output = folder / f"{name}-{id(self)}.log"
        self._begin = 0
        self.coordinator: subprocess.Popen[bytes] | None = None
        self.binding: subprocess.Popen[bytes] | None = None

    def start(self, **environment: str) -> None:
        self._begin = len(self.said())
        receive, send = str(free_port()), str(free_port())
        command = ["immortal", "serve", "--name", self.name, "--receive-port", receive, "--send-port", send]
        env = {**os.environ, **environment}
        with self.output.open("ab") as out:
            self.coordinator = subprocess.Popen(
                [*self.enter, sys.executable, "-m", "penstock", *command, "--log", self.place, *self.arguments],
                cwd=REPOSITORY, env=env, stdout=out, stderr=out,
            )  # fmt: skip
            self.binding = subprocess.Popen(
                [*self.enter, sys.executable, "-m", "tests.immortal.lb", self.app, receive, send,
                 str(self.report_file), json.dumps(self.options)],
                cwd=REPOSITORY, stdout=out, stderr=out,
            )  # fmt: skip

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in (self.coordinator, self.binding) if process is not None]

    @property
    def has_ended(self) -> bool:
        return any(process.poll() is not None for process in self.processes)

    def stop(self) -> None:
        """Kill what is left of both, and wait for it."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
        for process in self.processes:
            process.wait()

    def fail_together(self) -> None:
        """One of the two is gone, or was replaced: both end by themselves."""
        for process in self.processes:
            process.wait(2 * PATIENCE)

    def report(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self.report_file.read_text())
        except FileNotFoundError:
            return {}
        return found

    @property
    def is_primary(self) -> bool:
        """Whether it told so since its last start, and runs."""
        return not self.has_ended and "Primary: " in self.said()[self._begin :]

    def said(self) -> str:
        return self.output.read_text() if self.output.exists() else ""


@contextmanager
def running(*instances: Instance) -> Iterator[None]:
    """Start them all; whatever happens, nothing of them is left."""
    try:
        for instance in instances:
            instance.start()
        yield
    except BaseException:
        for instance in instances:
            sys.stderr.write(f"--- {instance.name}\n{instance.said()[-3000:]}\n")
        raise
    finally:
        for instance in instances:
            instance.stop()


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    """A broker that outlives the coordinators; its address."""
    from penstock.journal.embedded import EmbeddedBroker

    with EmbeddedBroker(folder / "journals") as serving:
        yield serving.address


@contextmanager
def broker_on_a_network(folder: Path, host: str) -> Iterator[str]:
    """One that is reached by TCP, at this address of the test's; its address."""
    command = ["broker", "serve", "--data-dir", str(folder / "journals"), "--listen", f"{host}:0"]
    with (folder / "broker.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", *command, "--http", "off", "--json"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    with process:
        try:
            assert process.stdout is not None
            yield f"http://{json.loads(process.stdout.readline())['grpc']}"
        finally:
            process.kill()
