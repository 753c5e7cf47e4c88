"""Settings of adaptors on their way to tasks: never in what Spark pickles, plans, logs or shows (DESIGN 12).

A task is pickled into Spark's own messages and may be kept by it; the settings of a sink hold passwords. So the runner
puts each sink into a *safe*, and tasks get a `Sealed`, which says where it is and nothing else:

    tasks on this machine     a file of the run's scratch directory that only this user reads
    tasks elsewhere           a variable of the executors' environment, whose name Spark redacts wherever it shows it

What a sink knows of schemas is no secret and changes: it travels with the task.

With the settings comes what must not be said of them (`penstock.base.secrets`), since Spark logs and shows the errors
of tasks: `discreet` takes it out of what an error says.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.base import secrets
from penstock.base.errors import PenstockError, UsageError

if TYPE_CHECKING:
    from penstock.adaptors.base import Schemas, Sink

VARIABLE = "PENSTOCK_SINKS_SECRET"
"""Spark redacts what has `secret` in its name."""

MOST = 120 * 1024
"""Bytes that a variable may have; Linux takes 128 KiB."""


@dataclass(frozen=True)
class Sealed:
    """A sink in the safe. `place` is its file; None where it is in the environment."""

    key: str
    place: Path | None
    schemas: Schemas
    name: str

    def open(self) -> Sink:
        """The sink, in a task; as it is after `use`."""
        sink: Sink = unsealed(self._content())
        sink.use(self.schemas, self.name)
        return sink

    def _content(self) -> bytes:
        if self.place is not None:
            try:
                return self.place.read_bytes()
            except FileNotFoundError:
                raise PenstockError(
                    f"the settings of sink '{self.key}' are gone from {self.place.parent}",
                    hint="the run that this task belongs to has ended, or runs on another machine",
                ) from None
        try:
            return msgspec.json.decode(os.environ[VARIABLE], type=dict[str, bytes])[self.key]
        except KeyError:
            raise PenstockError(f"this executor was not given the settings of sink '{self.key}'") from None


class Safe:
    """Where the runner keeps the sinks of a run: in files of `directory`, or, without one, for the environment.

    Nothing is pickled before it is needed: a run that has nothing to do does without PySpark.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._sinks: dict[str, Sink] = {}
        self._sealed: dict[str, tuple[int, Sealed]] = {}

    @property
    def here(self) -> bool:
        """Whether tasks are on this machine."""
        return self._directory is not None

    def put(self, key: str, sink: Sink) -> None:
        """Keep a sink under the name of its node."""
        self._sinks[key] = sink
        self._sealed.pop(key, None)

    def sealed(self, key: str, begin: int) -> Sealed:
        """What tasks are given for messages from `begin` on: the sink as it was when it last learnt something."""
        sink = self._sinks[key]
        known, found = self._sealed.get(key, (-1, None))
        learnt = sink.learnt  # before it is sealed: it may learn more at any moment
        if found is None or known != learnt:
            place = None if self._directory is None else _written(self._directory, key, seal(sink))
            found = Sealed(key, place, sink.schemas, sink.name)
            self._sealed[key] = (learnt, found)
        return replace(found, schemas=sink.schemas.since(begin))

    def clear(self) -> None:
        """The run is over."""
        self._sealed.clear()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def variables(self) -> dict[str, str]:
        """What the environment of executors elsewhere must have."""
        if self._directory is not None or not self._sinks:
            return {}
        text = msgspec.json.encode({key: seal(sink) for key, sink in self._sinks.items()}).decode()
        if len(text) > MOST:
            raise UsageError(
                f"the sinks' settings have {len(text)} bytes; {MOST} is the most that executors can be given",
                hint="an adaptor of your own may have taken a whole module with it: import it from a package",
            )
        return {VARIABLE: text}


def seal(settings: object) -> bytes:
    """Something with settings, pickled, together with what must not be said."""
    from pyspark import cloudpickle

    content: bytes = cloudpickle.dumps((secrets.known(), settings))  # type: ignore[no-untyped-call]
    return content


def unsealed(content: bytes) -> Any:
    """What was sealed; from now on this process does not say what must not be said."""
    from pyspark import cloudpickle

    hidden, settings = cloudpickle.loads(content)
    secrets.learn(hidden)
    return settings


@contextmanager
def discreet() -> Iterator[None]:
    """Around the work of a task: an error says no secret when Spark gets it, nor do those that led to it."""
    try:
        yield
    except Exception as error:
        causes = _chain(error)
        for one in causes:
            one.args = tuple(secrets.mask(arg) if isinstance(arg, str) else arg for arg in one.args)
        if any(str(one) != secrets.mask(str(one)) for one in causes):
            raise PenstockError(secrets.mask(f"{type(error).__name__}: {error}")) from None
        raise


def _chain(error: BaseException) -> list[BaseException]:
    """The error and all that it came of."""
    found = [error]
    for one in found:
        found += [led for led in (one.__cause__, one.__context__) if led is not None and led not in found]
    return found


def _written(directory: Path, key: str, content: bytes) -> Path:
    """A new file each time: tasks of an earlier start may still read the one before."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return private_file(directory / f"{key}-{uuid.uuid4().hex}", content)


def private_file(path: Path, content: bytes) -> Path:
    """A new file that only this user reads, from its first byte on."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    return path
