"""A server that is a program: started on a free port, waited for, stopped in order or killed, and never left behind."""

from __future__ import annotations

import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from tests.servers.cache import UnavailableError, end_with_parent
from tests.servers.ports import free_port

SHOWN = 3000
"""Characters of its log, if a server does not start."""


class ProcessServer(ABC):
    """One server, its data and its log in `home`. What it starts with is what `start` says."""

    name: str
    """For people."""
    in_order: ClassVar[signal.Signals] = signal.SIGTERM
    at_once: ClassVar[signal.Signals] = signal.SIGKILL
    """What it is sent if it does not end in order."""
    patience: ClassVar[float] = 30.0
    """Seconds to wait for a start or an end."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def start(self) -> None:
        """Start on the data and port that it had before; ready on return."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it is ready."""

    def stop(self) -> None:
        """Shut down in order."""
        self._end(self.in_order)

    def kill(self) -> None:
        """As a crash: kill -9."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def launch(self, command: Sequence[str | Path], **options: Any) -> None:
        """Run `command` until it answers. Raises `UnavailableError` with the end of its log if it does not."""
        with (self.home / "log").open("ab") as log:
            self._process = process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.home, start_new_session=True,
                preexec_fn=end_with_parent, **options,
            )  # fmt: skip
        until = time.monotonic() + self.patience
        while not self.answers():
            if process.poll() is not None or time.monotonic() > until:
                self.kill()
                shown = (self.home / "log").read_text(errors="replace")[-SHOWN:]
                raise UnavailableError(f"{self.name} does not start:\n{shown}")
            time.sleep(0.03)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(self.patience)
        except subprocess.TimeoutExpired:
            process.send_signal(self.at_once)
            process.wait(self.patience)
