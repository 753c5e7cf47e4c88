"""What the tests of a source share: namespaces that are theirs, readings of them, and what the messages add up to."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import msgspec

from penstock.base.errors import AwayError, PenstockError
from penstock.log.message import Message, Op
from penstock.testing.adaptors.model import Log, Reading
from penstock.testing.adaptors.subject import Can, Row, SourceSubject

FEW = [Row(i, f"row {i}") for i in range(10)]
PIECE = 64 * 1024
ADDED, REKEYED = 1_000_000, 2_000_000
"""From here on rows are numbered that `changes` adds, and those that it gives another number."""


@dataclass(frozen=True)
class Folded:
    """The rows that messages leave, and what was wrong on the way: `strange` says where they contradict each other."""

    rows: Mapping[int, str]
    strange: Sequence[str]


def fold(subject: SourceSubject, messages: Sequence[Message]) -> Folded:
    """Apply the messages of one namespace to an empty table."""
    rows: dict[int, str] = {}
    strange: list[str] = []
    for message in messages:
        if message.op is Op.COMMAND:
            rows.clear()
            continue
        row, old = subject.row(message), subject.old_id(message)
        if message.op is Op.INSERT and row.id in rows:
            strange.append(f"row {row.id} is inserted twice")
        elif message.op is not Op.INSERT and (row.id if old is None else old) not in rows:
            strange.append(f"{message.op.word} of row {row.id if old is None else old}, which is not there")
        if old is not None:
            rows.pop(old, None)
        if message.op is Op.DELETE:
            rows.pop(row.id, None)
        else:
            rows[row.id] = row.text
    return Folded(rows, strange)


@dataclass
class Bench:
    """One test of a source."""

    subject: SourceSubject
    log: Log = field(default_factory=Log)
    namespaces: set[str] = field(default_factory=set)

    @property
    def patience(self) -> float:
        return self.subject.patience

    @property
    def exact(self) -> bool:
        return Can.EXACT in self.subject.can

    def make(self, rows: Sequence[Row] = ()) -> str:
        """A namespace of this test alone, with these rows."""
        ns = self.subject.make(f"k{uuid.uuid4().hex[:8]}")
        self.namespaces.add(ns)
        if rows:
            self.subject.insert(ns, rows)
        return ns

    def again(self) -> None:
        """Begin anew: another log, and none of the namespaces so far."""
        self.log = Log()
        self.namespaces.clear()

    def reading(self, *, tail: bool = False) -> Reading:
        """A start of the source; one that cannot end by itself always tails."""
        tail = tail or Can.COMES_TO_REST not in self.subject.can
        return Reading(self.subject.adaptor(tail=tail), self.log, lambda ns: ns in self.namespaces)

    def copy(self, *namespaces: str) -> None:
        """Log all rows that are there, in one reading."""
        with self.reading() as reading:
            self.finish(reading, *namespaces)

    def finish(self, reading: Reading, *namespaces: str) -> None:
        """Go on until all rows that are there are logged, and the source has come to its end if it has one."""
        if Can.COMES_TO_REST in self.subject.can:
            reading.to_the_end(self.patience)
        for ns in namespaces:
            self.catch_up(reading, ns)

    def catch_up(self, reading: Reading, ns: str) -> None:
        """Log what comes until the messages add up to what the system has."""
        wanted = dict(self.subject.contents(ns))
        if not reading.until(lambda: self.rows(ns) == wanted, self.patience):
            found = self.rows(ns)
            missing = sorted(wanted.keys() - found.keys())[:5]
            too_many = sorted(found.keys() - wanted.keys())[:5]
            other = [id for id in wanted.keys() & found.keys() if wanted[id] != found[id]][:5]
            raise AssertionError(
                f"the messages of {ns} do not add up to its rows: missing {missing}, too many {too_many}, "
                f"with another text {other} ({len(found)} of {len(wanted)} rows after {self.patience} s)"
            )

    def follow(self, reading: Reading, ns: str) -> None:
        """Go on until the copy is over: what changes from now on comes behind it."""
        if Can.COMES_TO_REST in self.subject.can:
            assert reading.until(lambda: ns in self.log.completed, self.patience), "the copy does not end"

    def rows(self, ns: str) -> Mapping[int, str]:
        return fold(self.subject, self.log.of(ns)).rows

    def ids(self, ns: str) -> list[int]:
        """The numbers of all messages, in their order."""
        return [self.subject.row(message).id for message in self.log.of(ns)]

    def check_copied(self, ns: str) -> None:
        """Each row that there is was logged; and once, where the subject promises that."""
        ids, there = self.ids(ns), dict(self.subject.contents(ns))
        doubled = sorted(id for id in set(ids) if ids.count(id) > 1) if len(ids) > len(set(ids)) else []
        assert self.rows(ns) == there, f"{len(set(ids))} of {len(there)} rows of {ns} were logged"
        assert not (self.exact and doubled), f"logged more than once: {doubled[:10]}"

    def check_consistent(self, ns: str) -> None:
        """Where the hand-over is clean, no message contradicts those before it."""
        if Can.CLEAN in self.subject.can:
            assert not (strange := fold(self.subject, self.log.of(ns)).strange), strange[:10]

    def away(self, reading: Reading) -> bool:
        """Log what still comes; whether the source then says that the system is away, rather than end in order."""
        deadline = time.monotonic() + self.patience
        while time.monotonic() < deadline:
            try:
                if reading.step(0.25) is None and reading.ended:
                    return False
            except AwayError as error:
                self.check_secret(error)
                return True
        raise AssertionError(f"the server is gone, and the source says nothing for {self.patience} s")

    def check_secret(self, error: PenstockError) -> None:
        if self.subject.secret:
            shown = f"{error} {error.hint} {error.__cause__}"
            assert self.subject.secret not in shown, f"a password is in the text of {type(error).__name__}"

    def release(self) -> None:
        with suppress(PenstockError):
            source = self.subject.adaptor(tail=Can.TAIL in self.subject.can).source()
            source.use(source.copier, "kit.source")
            source.release()


def changes(subject: SourceSubject, ns: str) -> Callable[[int], None]:
    """A writer that changes a namespace that holds `several` rows, in all the ways that the subject can."""
    ids = [row.id for row in subject.several()]
    can = subject.can

    def change(turn: int) -> None:
        subject.insert(ns, [Row(ADDED + turn, f"added {turn}")])
        if Can.UPDATES in can:
            subject.update(ns, Row(ids[turn * 7 % len(ids)], f"changed {turn}"))
        if Can.DELETES in can and turn % 5 == 0:
            subject.delete(ns, ids[turn * 11 % len(ids)])
        if Can.REKEYS in can and turn % 7 == 0:
            subject.rekey(ns, ADDED + turn, REKEYED + turn)

    return change


def pour(bench: Bench, ns: str) -> None:
    """Put four times what a source may read ahead into a namespace, a little at a time."""
    pieces = 4 * bench.subject.read_ahead // PIECE
    for i in range(0, pieces, 16):
        bench.subject.insert(ns, [Row(1000 + n, f"{n:08d}" * (PIECE // 8)) for n in range(i, i + 16)])


def differing(message: Message, expected: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """The fields whose text is another than expected: what came, and what was expected."""
    found = msgspec.json.decode(message.data, type=dict[str, msgspec.Raw])
    texts = {name: bytes(raw).decode() for name, raw in found.items()}
    return {
        name: (texts.get(name, "not there"), text)
        for name, text in expected.items()
        if texts.get(name) != text
    }


@contextmanager
def writing(write: Callable[[int], None]) -> Iterator[threading.Event]:
    """Call `write` with 0, 1, 2 … in a thread until the context ends; its error is raised there."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        turn = 0
        try:
            while not stop.is_set():
                write(turn)
                turn += 1
                stop.wait(0.002)
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    thread = threading.Thread(target=run, name="kit writer", daemon=True)
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join()
        if failures:
            raise failures[0]


def resident() -> int:
    """The bytes of memory that this process has, but for pages of files: the system takes these away as it likes."""
    with open("/proc/self/statm", encoding="ascii") as file:
        _, resident, of_files, *_ = map(int, file.read().split())
    return (resident - of_files) * os.sysconf("SC_PAGE_SIZE")


def at_rest() -> int:
    """As `resident`, once memory that is free has been given back: what is taken from it would not show."""
    gc.collect()
    with suppress(AttributeError):  # only the C library of GNU has it
        ctypes.CDLL(None).malloc_trim(0)
    return resident()


def grown(before: int, limit: int) -> int:
    """By how much the memory of this process has grown since it was `before`, once it grows no more; or the `limit`.

    What others give back meanwhile (tests that went before leave threads and caches) does not hide growth: the least
    that the process had is what counts.
    """
    deadline = time.monotonic() + 20.0
    least, found, since = before, resident(), time.monotonic()
    while time.monotonic() - since < 2.0 and time.monotonic() < deadline and found - least < limit:
        time.sleep(0.05)
        now = resident()
        if now < least:
            least = found = now
        elif now > found + 256 * 1024:
            found, since = now, time.monotonic()
    return found - least
