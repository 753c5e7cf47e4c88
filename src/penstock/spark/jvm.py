"""The JVM behind a session: its launch, its output, its end. It knows nothing of what Spark is set to.

A Python process has at most one, started through Spark's own launcher with the Java of `penstock.spark.java`.
What the JVM and the Python workers below it print is passed on to `sys.stderr` line by line, so it appears
above a live display rather than inside it, and never between a command's own output on `sys.stdout`.
The JVM lives as long as its standard input is open: it ends with this process, however that ends.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from subprocess import Popen, TimeoutExpired

from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway

from penstock.base.errors import PenstockError

_launch_gateway: Callable[[SparkConf, dict[str, int]], JavaGateway] = launch_gateway

_LAST_LINES = 8


class JvmFailedError(PenstockError):
    """The JVM ended before it was ready."""


class Jvm:
    """The JVM of this process, from its launch to its end."""

    def __init__(self, gateway: JavaGateway, output: _Output) -> None:
        self.gateway = gateway
        # None if this process runs inside `spark-submit`, which started the JVM and ends it.
        self.process: Popen[bytes] | None = gateway.proc
        self._output = output
        # A script that ends without stopping its session still has its JVM waited for, not left behind.
        atexit.register(self.end, 5.0)

    def property(self, name: str) -> str:
        return str(self.gateway.jvm.java.lang.System.getProperty(name))

    def end(self, patience: float) -> None:
        """Close the gateway and wait for the process behind it; kill it after `patience` seconds."""
        atexit.unregister(self.end)
        self._output.silence()
        with contextlib.suppress(Py4JError, OSError):
            self.gateway.shutdown()
        if SparkContext._gateway is self.gateway:
            SparkContext._gateway = SparkContext._jvm = None
        if self.process is None:
            return
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        try:
            self.process.wait(patience)
        except TimeoutExpired:
            self.kill()
            self.process.wait()
        self._output.close()

    def kill(self) -> None:
        self._output.silence()
        if self.process is not None:
            self.process.kill()


def launch(conf: Mapping[str, str]) -> Jvm:
    """Start a JVM with this part of Spark's settings, which everyone on the machine can read."""
    output = _Output()
    try:
        handles = {"stdout": output.write_end, "stderr": output.write_end}
        gateway = _launch_gateway(SparkConf(loadDefaults=False).setAll(list(conf.items())), handles)
    except PySparkRuntimeError as error:
        said = output.close()
        raise JvmFailedError(
            f"the JVM of Spark ended before it was ready: {said or 'it said nothing'}"
        ) from error
    except OSError:
        output.close()
        raise
    output.started()
    logging.getLogger().addFilter(_not_py4j)
    SparkContext._gateway, SparkContext._jvm = gateway, gateway.jvm
    return Jvm(gateway, output)


def joined(options: Sequence[str]) -> str:
    """JVM options as Spark's launcher splits them again: one with a blank or a quote in it is quoted."""
    return " ".join(
        '"' + re.sub(r'(["\\])', r"\\\1", option) + '"' if re.search(r"[\s\"'\\]", option) else option
        for option in options
    )


def _not_py4j(record: logging.LogRecord) -> bool:
    """Py4J logs to the root what it also raises: whoever handles a dead JVM would still have it printed."""
    return f"{os.sep}py4j{os.sep}" not in record.pathname


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set these variables for what is started inside; the launcher takes the process's own and no others."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class _Output:
    """A pipe that the JVM prints into, and the thread that passes it on."""

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self._silent = False
        self._thread = threading.Thread(target=self._pass_on, name="penstock-jvm-output", daemon=True)
        self._thread.start()

    def started(self) -> None:
        """The JVM has its own copy: with ours closed, the thread ends when the JVM does."""
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def silence(self) -> None:
        """Workers that are cut off in the JVM's end complain about it: nobody needs to read that."""
        self._silent = True

    def close(self) -> str:
        """Wait for the last of it; returns the last lines."""
        self.started()
        self._thread.join(1.0)
        return "; ".join(self._last)

    def _pass_on(self) -> None:
        held: list[str] = []
        farewell = False
        with open(self._read_end, errors="replace") as lines:  # noqa: PTH123 - a descriptor, not a path
            for line in lines:
                self._last.append(line.strip())
                held.append(line)
                if _goes_on(held):
                    continue
                farewell = _is_farewell(held) or (farewell and not line.strip())
                if not self._silent and not farewell:
                    # Whoever closed it wants no output; the JVM must be able to go on.
                    with contextlib.suppress(ValueError, OSError, AttributeError):
                        sys.stderr.write("".join(held))
                        sys.stderr.flush()
                held = []


_MOST_HELD = 200
_TRACEBACK = "Traceback (most recent call last)"
_COMPLAINT = "PySpark daemon failed to flush"
"""What a worker may say before its traceback."""


def _goes_on(held: list[str]) -> bool:
    """Whether the lines are a traceback that has not come to its error yet; or several, line by line in turn."""
    if not held[0].startswith((_TRACEBACK, _COMPLAINT)) or len(held) > _MOST_HELD:
        return False
    begun = sum(line.startswith(_TRACEBACK) for line in held)
    return len(_errors(held)) < max(begun, 1)


def _errors(held: list[str]) -> list[str]:
    """The lines that end a traceback."""
    return [line for line in held if line.strip() and not line.startswith((" ", _TRACEBACK, _COMPLAINT))]


def _is_farewell(held: list[str]) -> bool:
    """Whether workers complain that the query they served has ended: that is how they end."""
    errors = _errors(held)
    ends = bool(errors) and all(error.startswith("BrokenPipeError") for error in errors)
    return ends and "pyspark/daemon.py" in "".join(held)
