"""Immortals in Python as real processes, each with its coordinator: started, killed, looked at."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
from tests.servers.ports import free_port

from penstock.base.errors import AwayError
from penstock.immortal.binding.outside import Outside

REPOSITORY = Path(__file__).parents[2]
APPS = Path(__file__).parent / "apps.py"
PATIENCE = 180.0


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, f"{what} did not happen in {PATIENCE} s"
        time.sleep(0.02)


class Pair:
    """A binding, which starts its coordinator."""

    def __init__(
        self, place: str, folder: Path, name: str, app: str, *coordinator: str, apps: Path = APPS
    ) -> None:
        self.place = place
        self.folder = folder
        self.name = name
        self.app = app
        self.apps = apps
        self.coordinator_options = coordinator
        self.port = free_port()
        self.output = folder / f"{name}-{self.port}.log"
        self.trace = folder / f"{name}-{self.port}.trace"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *, upgrade_to: str = "", **environment: str) -> None:
        app = f"{self.apps}:{self.app}"
        what = ["run", app, "--name", self.name]
        if upgrade_to:
            what = ["upgrade", self.name, "--from", app, "--to", f"{self.apps}:{upgrade_to}"]
        command = [sys.executable, "-m", "penstock", "immortal", *what, "--log", self.place]
        command += ["--http", f"127.0.0.1:{self.port}", "--", "--keep-checkpoints", "1000"]
        if environment:
            environment["PENSTOCK_TRACE_STEPS"] = str(self.trace)
        with self.output.open("ab") as out:
            self.process = subprocess.Popen(
                [*command, *self.coordinator_options],
                cwd=REPOSITORY,
                env={**os.environ, "PYTHONHASHSEED": "0", **environment},
                stdout=out,
                stderr=out,
            )

    @property
    def coordinator(self) -> psutil.Process | None:
        assert self.process is not None
        try:
            children = psutil.Process(self.process.pid).children()
            return next((one for one in children if "serve" in one.cmdline()), None)
        except psutil.NoSuchProcess:
            return None

    def kill(self, what: str) -> None:
        """kill -9 of the coordinator, the binding, or both; whatever is left ends by itself."""
        assert self.process is not None
        coordinator = self.coordinator
        if what != "binding" and coordinator is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                coordinator.send_signal(signal.SIGKILL)
        if what != "coordinator":
            self.process.send_signal(signal.SIGKILL)
        self.wait(coordinator)

    def wait(self, coordinator: psutil.Process | None = None) -> None:
        """The pair has ended: both of it."""
        assert self.process is not None
        self.process.wait(PATIENCE)
        if coordinator is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                coordinator.wait(PATIENCE)

    def stop(self) -> None:
        if self.process is None:
            return
        coordinator = self.coordinator if self.process.poll() is None else None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.wait(coordinator)

    def ask(self, what: Callable[[Outside], Any]) -> Any:
        """Ask the instance; None if it does not answer at the moment."""
        outside = Outside(f"127.0.0.1:{self.port}")
        try:
            return what(outside)
        except AwayError:
            return None
        finally:
            outside.close()

    def state(self) -> dict[str, Any]:
        return self.ask(lambda outside: msgspec.json.decode(outside.ask("GET", "/state"))) or {}

    def wait_for(self, field: str, at_least: int) -> None:
        assert self.process is not None

        def reached() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, f"{self.name} ended:\n{self.said()[-3000:]}"
            return int(self.state().get(field, -1)) >= at_least

        until(reached, f"{field} of {self.name} at {at_least}, which says {self.said()[-2000:]}")

    def ready(self) -> None:
        until(lambda: self.ask(lambda outside: outside.ask("GET", "/ready")), f"{self.name} to be ready")

    def said(self) -> str:
        return self.output.read_text() if self.output.exists() else ""


@contextmanager
def running(*pairs: Pair) -> Iterator[None]:
    """Start them; whatever happens, nothing of them is left."""
    try:
        for pair in pairs:
            pair.start()
        yield
    finally:
        for pair in pairs:
            pair.stop()


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    """A broker that outlives the pairs; its address."""
    from penstock.journal.embedded import EmbeddedBroker

    with EmbeddedBroker(folder / "journals") as serving:
        yield serving.address
