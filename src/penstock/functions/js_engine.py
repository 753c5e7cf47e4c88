"""The other side of `js_child`: starts the process, gives it batches, and ends it when a limit is passed.

One engine for each script and process: a forked process makes its own. It is started at the first batch and lives
until it fails or its owner ends. After a failure the next call starts a new one.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import importlib.resources
import importlib.util
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO

from penstock.base.errors import PenstockError, UsageError
from penstock.functions.js_child import BUDGET, FRAME

START_SECONDS = 30.0
"""For Python, V8 and the script's own first run."""

_PIPE_BYTES = 1 << 20
_TICKS = os.sysconf("SC_CLK_TCK")
_BYTES_PER_SECOND = 10_000_000
"""Slower than any machine moves and parses JSON: what a large message may take on top of its limit."""


@dataclass(frozen=True, slots=True)
class Script:
    """What an engine is made of."""

    code: str
    shown: str
    """Its name in errors."""
    otto: bool
    timeout: float
    memory_bytes: int


class LimitError(PenstockError):
    """A call took too long or too much memory; its engine is gone, and with it what the call had done."""


class Engine:
    """A V8 process with one script in it. Calls come one at a time."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None

    def start(self) -> None:
        """Start the process and load the script. Raises `UsageError` if the script cannot be used."""
        with self._lock:
            self._started()

    def call(self, batch: bytes, *, messages: int) -> bytes:
        """What the harness answers to a batch. Raises `LimitError` if a message in it passes a limit.

        Of several messages the harness begins none once half the time for one is over, so that after twice that
        time one of them is certain to have passed its own.
        """
        script = self._script
        with self._lock:
            process = self._started()
            budget = BUDGET.pack(int(script.timeout * 500))
            seconds = script.timeout * (1 if messages == 1 else 2) + len(batch) / _BYTES_PER_SECOND
            self._send(process, b"B", budget + batch)
            kind, answer = self._answer(process, seconds)
            if kind == b"M":
                raise self._failed(self._out_of_memory())
            return answer

    def close(self) -> None:
        with self._lock:
            self._end()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None:
            return self._process
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = process = subprocess.Popen(
            [sys.executable, "-P", _child()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
            env=_environment(),
        )
        for pipe in (process.stdin, process.stdout):
            _widen(pipe)
        script = self._script
        told = {
            "harness": _harness(),
            "script": script.code,
            "url": "penstock-script.js",
            "shown": script.shown,
            "otto": script.otto,
            "memory": script.memory_bytes,
        }
        self._send(process, b"S", json.dumps(told).encode())
        try:
            kind, answer = self._answer(process, START_SECONDS, loading=True)
        except LimitError as error:
            raise UsageError(f"{script.shown}: the script cannot be loaded: {error.message}") from None
        if kind == b"E":
            self._end()
            message, line = json.loads(answer)
            raise UsageError(f"{script.shown}{f', line {line}' if line else ''}: {message}")
        return process

    def _send(self, process: subprocess.Popen[bytes], kind: bytes, content: bytes) -> None:
        assert process.stdin is not None
        rest = memoryview(FRAME.pack(len(content), kind) + content)
        try:
            while rest:
                rest = rest[process.stdin.write(rest) or 0 :]
        except BrokenPipeError:
            raise self._failed(self._ended(process)) from None

    def _answer(
        self, process: subprocess.Popen[bytes], seconds: float, *, loading: bool = False
    ) -> tuple[bytes, bytes]:
        assert process.stdout is not None
        patience = _Patience(process.pid, seconds)
        length, kind = FRAME.unpack(self._read(process, FRAME.size, patience, loading=loading))
        return kind, self._read(process, length, patience, loading=loading)

    def _read(
        self, process: subprocess.Popen[bytes], length: int, patience: _Patience, *, loading: bool
    ) -> bytes:
        assert process.stdout is not None
        pipe, parts, missing = process.stdout.fileno(), [], length
        while missing:
            if not select.select([pipe], [], [], patience.left())[0]:
                if not patience.over():
                    continue
                limit = START_SECONDS if loading else self._script.timeout
                raise self._failed(f"the script took longer than {limit * 1000:.0f} ms")
            part = os.read(pipe, missing)
            if not part:
                raise self._failed(self._ended(process))
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def _failed(self, why: str) -> LimitError:
        self._end()
        return LimitError(why)

    def _ended(self, process: subprocess.Popen[bytes]) -> str:
        """Why the process ended by itself: memory, as far as anybody knows."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
        if process.returncode is not None and process.returncode < 0:
            return self._out_of_memory()
        assert self._errors is not None
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").strip().splitlines()[-1:]
        return f"the JavaScript engine ended: {last[0] if last else f'exit code {process.returncode}'}"

    def _out_of_memory(self) -> str:
        return f"the script took more memory than {self._script.memory_bytes >> 20} MB"

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, self._errors):
            if pipe is not None:
                pipe.close()


class _Patience:
    """How long to wait for a process: by its own time, not by that which others on the machine took from it."""

    def __init__(self, pid: int, seconds: float) -> None:
        self._stat = Path(f"/proc/{pid}/stat")
        self._seconds = seconds
        self._used = self._cpu()
        self._begun = time.monotonic()
        self._next = self._begun + seconds

    def left(self) -> float:
        return max(0.0, self._next - time.monotonic())

    def over(self) -> bool:
        """Asked when the time is up; False gives as much again as the process has not had yet."""
        unused = self._seconds - (self._cpu() - self._used)
        if unused <= 0 or time.monotonic() - self._begun > 10 * self._seconds:
            return True
        self._next = time.monotonic() + max(unused, 0.05)
        return False

    def _cpu(self) -> float:
        try:
            fields = self._stat.read_text().rpartition(")")[2].split()
        except OSError:
            return float("inf")
        return (int(fields[11]) + int(fields[12])) / _TICKS


def _environment() -> dict[str, str]:
    """What Python needs to start and find its packages, and nothing that a person keeps secret there."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "LC_ALL": "C.UTF-8"}


def _widen(pipe: IO[bytes] | None) -> None:
    """Let a pipe hold more at once, where the system allows it: fewer turns for a batch."""
    with contextlib.suppress(OSError):
        assert pipe is not None
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


_engines: dict[tuple[int, Script], Engine] = {}
_engines_lock = threading.Lock()


def engine_of(script: Script) -> Engine:
    """This process's engine for a script."""
    owner = os.getpid()
    with _engines_lock:
        for key in [key for key in _engines if key[0] != owner]:
            del _engines[key]  # belongs to the process that this one was forked from
        return _engines.setdefault((owner, script), Engine(script))


def check(script: Script) -> None:
    """Load the script once, to see that it can be loaded."""
    require_package()
    engine = Engine(script)
    try:
        engine.start()
    finally:
        engine.close()


def require_package() -> None:
    if importlib.util.find_spec("py_mini_racer") is None:
        raise UsageError(
            "function 'js': the package mini-racer, which runs JavaScript, is not installed",
            hint="pip install 'penstock[js]'",
        )


@atexit.register
def _close_all() -> None:
    for (owner, _), engine in list(_engines.items()):
        if owner == os.getpid():
            engine.close()


@lru_cache(maxsize=1)
def _harness() -> str:
    return importlib.resources.files("penstock.functions").joinpath("js_harness.js").read_text("utf-8")


@lru_cache(maxsize=1)
def _child() -> str:
    """The path of `js_child.py`; a copy of it if Penstock itself lies in an archive."""
    module = importlib.resources.files("penstock.functions").joinpath("js_child.py")
    if isinstance(module, Path):
        return str(module)
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as copy:
        copy.write(module.read_text("utf-8"))
    atexit.register(os.unlink, copy.name)
    return copy.name
