"""A model of the log, as a source meets it: takes its batches, tells it what is durable, crashes anywhere.

`Log` keeps what the real one would give back at the next start: mode, position (through JSON and back), the last
message of each namespace, and nothing of a batch that it did not take. `Reading` is one start of the source: it runs
`read` in a thread, a batch ahead of the log as the runner does, and calls `logged` from another one.

A crash is a reading that ends with what it has given out of hand; the log stays. The next reading has a source that
was made anew and hears from the log alone.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from penstock.adaptors.base import Adaptor, Bad, Batch, Source
from penstock.base.errors import PenstockError
from penstock.log import record
from penstock.log.message import MAX_MESSAGE_BYTES, Message, MessageOffset, Mode, Position, Resume
from penstock.log.schema import Schema

QUICK = 10.0
"""Seconds in which a source must end once it is told to, whatever else the machine has to do."""
LONGEST = 6
"""How many times its patience a reading waits at most while something comes."""


class TooLargeError(PenstockError):
    """A message above the limit of the log; names its namespace."""


@dataclass
class _Known:
    """What the log last heard of a namespace."""

    mode: Mode = Mode.COPY
    position: Position | None = None
    offset: int = -1
    message: Message | None = None
    schema: Schema | None = None


@dataclass
class Log:
    """All that was logged. `messages` have their index as offset."""

    messages: list[Message] = field(default_factory=list)
    bad: dict[str, Bad] = field(default_factory=dict)
    schemas: list[tuple[int, str, Schema]] = field(default_factory=list)
    """Each schema that was told, with the offset of the message that came next."""
    completed: list[str] = field(default_factory=list)
    batches: int = 0
    within: bool = False
    """Whether a transaction of the source is begun and not ended."""
    ends: list[int] = field(default_factory=list)
    """After how many messages each piece ended: a sink gets what lies between two of them at once."""
    _known: dict[str, _Known] = field(default_factory=dict)

    def append(self, batch: Batch) -> None:
        """Take a batch: all of it, or, if one of its messages is too large, nothing."""
        messages = messages_of(batch)
        for message in messages:
            if len(message.data) > MAX_MESSAGE_BYTES:
                raise TooLargeError(f"a message of namespace '{message.ns}' has {len(message.data)} bytes")
        positions = {ns: _through_json(position) for ns, position in batch.positions.items()}
        self.bad.update({one.place: one for one in batch.bad})
        for ns, schema in batch.schemas.items():
            self._hear_schema(ns, schema)
        for message in messages:
            known = self._of(message.ns)
            known.offset, known.mode, known.message = len(self.messages), message.mode, message
            self.messages.append(message)
        for ns, position in positions.items():
            self._of(ns).position = position
        for ns in batch.completed:
            self._of(ns).mode = Mode.COMPLETE
        self.completed += batch.completed
        self.batches += 1
        self.within = batch.more
        if not self.within:
            self.ends.append(len(self.messages))

    def resume(self) -> dict[str, Resume]:
        """What a source hears at its next start."""
        return {
            ns: Resume(known.mode, known.position, MessageOffset(known.offset), known.message)
            for ns, known in self._known.items()
            if known.position is not None
        }

    def of(self, ns: str) -> list[Message]:
        return [message for message in self.messages if message.ns == ns]

    def schema(self, ns: str) -> Schema | None:
        return self._of(ns).schema

    def mode(self, ns: str) -> Mode:
        return self._of(ns).mode

    def backfill(self, ns: str) -> None:
        """What an operator's `penstock backfill` does: the namespace is copied anew."""
        self._known[ns] = _Known(schema=self._of(ns).schema)

    def _hear_schema(self, ns: str, schema: Schema) -> None:
        again = msgspec.json.decode(msgspec.json.encode(schema), type=Schema)
        if again != self._of(ns).schema:
            self._of(ns).schema = again
            self.schemas.append((len(self.messages), ns, again))

    def _of(self, ns: str) -> _Known:
        return self._known.setdefault(ns, _Known())


def messages_of(batch: Batch) -> list[Message]:
    """The messages of a batch in the order of the log; those that came packed are unpacked."""
    messages = list(batch.messages)
    for packed in batch.packed:
        for start in packed.starts:
            one = record.decode(packed.content, int(start), f"packed rows of '{packed.ns}'")
            messages.append(Message(one.ns, one.data, one.op, one.ts, one.mode, one.key, one.old_key))
    return messages


def _through_json(position: Position) -> Position:
    """As the log gives it back; what is not JSON is the source's error."""
    again: Position = msgspec.json.decode(msgspec.json.encode(position))
    if not isinstance(again, dict):
        raise TypeError(f"a position is a JSON object, not {position!r}")
    return again


class Reading:
    """One start of a source. Use as a context: leaving it is a crash, unless `stop` came first."""

    def __init__(
        self, adaptor: Adaptor, log: Log, accept: Callable[[str], bool], name: str = "kit.source"
    ) -> None:
        self.source: Source = adaptor.source()
        self.source.use(self.source.copier, name)
        self._log = log
        self._accept = accept
        self._stop = threading.Event()
        self._given: queue.SimpleQueue[Batch | BaseException | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(1)
        self._thread = threading.Thread(target=self._run, name="kit source", daemon=True)

    def __enter__(self) -> Reading:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.crash()

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def take(self, patience: float) -> Batch | None:
        """The next batch, not logged yet; None if there was none in time, or the source has run out.

        What `read` raised is raised here, behind the batches that it gave before.
        """
        try:
            given = self._given.get(timeout=patience)
        except queue.Empty:
            return None
        if isinstance(given, BaseException):
            raise given
        return given

    def log(self, batch: Batch) -> None:
        """The log takes a batch, and the source is told, from a thread that is not its own."""
        self._log.append(batch)
        teller = threading.Thread(target=self.source.logged, args=(batch,))
        teller.start()
        teller.join()
        self._room.release()

    def step(self, patience: float) -> Batch | None:
        """Take and log the next batch."""
        batch = self.take(patience)
        if batch is not None:
            self.log(batch)
        return batch

    def until(self, done: Callable[[], bool], patience: float) -> bool:
        """Log what comes until `done`, or the source has run out; False if that takes too long.

        That is when nothing new came for as long as `patience`, so that a slow machine is no fault; but a source that
        gives something for ever is.
        """
        latest = time.monotonic() + LONGEST * patience
        deadline = time.monotonic() + patience
        while not done():
            if time.monotonic() > deadline:
                return False
            batch = self.step(min(0.25, patience))
            if batch is None and self.ended and self._given.empty():
                return done()
            if batch is not None and (batch.messages or batch.packed):
                deadline = min(latest, time.monotonic() + patience)
        return True

    def to_the_end(self, patience: float) -> None:
        """Log everything until the source returns."""
        if not self.until(lambda: self.ended and self._given.empty(), patience):
            raise AssertionError(f"the source has not come to its end within {patience} s")
        if self._log.within:
            raise AssertionError(
                "the source ended within a transaction, which no sink gets before its end is logged"
            )

    def stop(self) -> None:
        """Tell the source to stop, which it must soon; what it gave and was not taken is lost."""
        self._stop.set()
        self._room.release()
        self._thread.join(QUICK)
        if self._thread.is_alive():
            raise AssertionError(f"the source does not stop: {QUICK} s after it was told to it still reads")

    def crash(self) -> None:
        """End here: what was given and not logged is lost, and so is all that the source knows."""
        if self._thread.is_alive():
            self.stop()

    def _run(self) -> None:
        try:
            found = self.source.read(self._accept, self._log.resume(), self._stop)
            try:
                self._give(found)
            finally:  # in the thread that runs it, as the runner does
                if isinstance(found, Generator):
                    found.close()
        except BaseException as error:  # noqa: BLE001 - raised where the batch would have been taken
            self._given.put(error)
        else:
            self._given.put(None)

    def _give(self, batches: Iterator[Batch]) -> None:
        for batch in batches:
            # One batch ahead: the next one is asked for while this one is not logged yet.
            self._room.acquire()
            if self._stop.is_set():
                return
            self._given.put(batch)


def read_all(adaptor: Adaptor, log: Log, namespaces: Sequence[str], patience: float) -> None:
    """Read a source that ends, to its end."""
    with Reading(adaptor, log, set(namespaces).__contains__) as reading:
        reading.to_the_end(patience)
