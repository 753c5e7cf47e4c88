"""How `journals read` gets bytes out of journals: one after the other to their ends, or all at once for good.

Following, each journal is read by a thread of its own, and one more watches for journals that come; the command's
own thread waits for a failure or an interrupt. A broker that goes away is waited for; everything else ends the
command. The offsets reached are always those of bytes that were written out.
"""

from __future__ import annotations

import base64
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import BinaryIO, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

import click
import msgspec

from penstock.base.errors import UNREADABLE, CorruptError, PenstockError, UsageError
from penstock.base.signals import next_of
from penstock.cli.common import visible
from penstock.journal import codecs
from penstock.journal.client import BrokerGoneError, Client, JournalError
from penstock.journal.fragment import Fragment
from penstock.journal.protocol import JournalSpec, LabelSelector, ListResponse, ReadResponse, Status
from penstock.journal.tokens import clean_path

_BACK_OFF = (0.05, 0.05, 0.1, 0.1, 1.0, 1.0, 5.0)
_QUIET_ATTEMPTS = 3
_LONGEST_LINE = 1 << 20
_BLOCK = 1 << 18
_LEAVING = 5.0  # seconds

T = TypeVar("T")


class Writes(Protocol):
    """Where chunks of journals go. Called by one thread at a time."""

    def write(self, journal: str, offset: int, chunk: bytes) -> None: ...

    def finish(self) -> None: ...


class Output:
    """Bytes as they are; `by_lines`, those of several journals are mixed by whole lines only."""

    def __init__(self, file: BinaryIO, *, by_lines: bool) -> None:
        self._file = file
        self._by_lines = by_lines
        self._held: dict[str, bytes] = {}

    def write(self, journal: str, offset: int, chunk: bytes) -> None:
        if not self._by_lines:
            self._file.write(chunk)
            return
        chunk = self._held.pop(journal, b"") + chunk
        cut = chunk.rfind(b"\n") + 1
        if not cut and len(chunk) > _LONGEST_LINE:
            cut = len(chunk)
        self._file.write(chunk[:cut])
        if chunk[cut:]:
            self._held[journal] = chunk[cut:]
        self._file.flush()

    def finish(self) -> None:
        for rest in self._held.values():
            self._file.write(rest)
        self._held.clear()
        self._file.flush()


class JsonOutput:
    """An object a chunk and line."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, journal: str, offset: int, chunk: bytes) -> None:
        content = base64.b64encode(chunk).decode()
        self._file.write(
            msgspec.json.encode({"journal": journal, "offset": offset, "content": content}) + b"\n"
        )
        self._file.flush()

    def finish(self) -> None:
        self._file.flush()


class Reader:
    """Reads journals into an output; `offsets` says how far it is in each."""

    def __init__(
        self,
        client: Client,
        out: Writes,
        begins: Mapping[str, int],
        *,
        tail: bool = False,
        since: int = 0,
        file_root: Path | None = None,
    ) -> None:
        self.offsets = dict(begins)
        self._client = client
        self._out = out
        self._tail = tail
        self._since = since
        self._file_root = file_root
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._failures: queue.Queue[BaseException] = queue.Queue()
        self._waiting = False
        self._threads: dict[str, threading.Thread] = {}
        self._watcher: threading.Thread | None = None

    def each(self, journals: Sequence[ListResponse.Journal]) -> None:
        """Read one journal after the other to its end."""
        for journal in journals:
            if not _suspended(journal):
                self._read(journal.spec.name, block=False)

    def follow(self, selector: LabelSelector) -> None:
        """Read all journals of the selector at the same time; returns only with an error."""
        self._watcher = threading.Thread(target=self._guarded, args=(self._watch, selector), daemon=True)
        self._watcher.start()
        raise next_of(self._failures)

    def finish(self) -> None:
        """Nothing is written after this, whatever threads are still at it."""
        with self._lock:
            self._ended.set()
            self._out.finish()

    def join(self) -> None:
        """Wait for the threads, once their client is closed: gRPC may not be left in one when the process ends."""
        deadline = time.monotonic() + _LEAVING
        if self._watcher is not None:
            self._watcher.join(_LEAVING)  # it is the one that adds threads
        for thread in list(self._threads.values()):
            thread.join(max(deadline - time.monotonic(), 0.0))

    def _watch(self, selector: LabelSelector) -> None:
        attempt = 0
        while not self._ended.is_set():
            try:
                for journals in self._client.watch(selector):
                    attempt = 0
                    self._start(journals)
            except BrokerGoneError:
                attempt = self._pause(attempt)

    def _start(self, journals: Sequence[ListResponse.Journal]) -> None:
        """A thread for each journal that has none, or whose last one ended with the journal's suspension."""
        for journal in journals:
            name = journal.spec.name
            running = self._threads.get(name)
            if _suspended(journal) or (running is not None and running.is_alive()):
                continue
            thread = threading.Thread(target=self._guarded, args=(self._follow, name), name=name, daemon=True)
            self._threads[name] = thread
            thread.start()

    def _follow(self, journal: str) -> None:
        attempt = 0
        while not self._ended.is_set():
            before = self.offsets.get(journal)
            try:
                self._read(journal, block=True)
            except BrokerGoneError:
                attempt = self._pause(attempt if self.offsets.get(journal) == before else 0)
            except JournalError as error:
                if error.status not in (Status.JOURNAL_NOT_FOUND, Status.SUSPENDED):
                    raise
                _note(f"{journal}: {error.status_name}, not read any more")
                return

    def _guarded(self, work: Callable[[T], None], argument: T) -> None:
        try:
            work(argument)
        except BaseException as error:  # noqa: BLE001 - raised where `follow` waits
            self._failures.put(error)

    def _pause(self, attempt: int) -> int:
        if attempt == _QUIET_ATTEMPTS and not self._waiting and not self._ended.is_set():
            self._waiting = True  # one journal's thread tells it for all
            _note("the broker does not answer; waiting for it")
        self._ended.wait(_BACK_OFF[min(attempt, len(_BACK_OFF) - 1)])
        return attempt + 1

    def _read(self, journal: str, *, block: bool) -> None:
        self._client.begin(journal)  # waits until the broker knows its stores; a read does not
        # Where reading begins at the beginning, or behind a time, bytes before that are not missed.
        expected = self.offsets.get(journal)
        if expected is None and self._tail:
            expected = self._client.head(journal)
        begin = expected or 0
        self.offsets.setdefault(journal, begin)
        for offset, chunk in self._chunks(journal, begin, block=block):
            if expected and offset > expected and not self._since:
                _note(f"{journal}: bytes {expected} to {offset} are gone")
            with self._lock:
                if self._ended.is_set():
                    return
                self._waiting = False
                self._out.write(journal, offset, chunk)
                expected = self.offsets[journal] = offset + len(chunk)

    def _chunks(self, journal: str, offset: int, *, block: bool) -> Iterator[tuple[int, bytes]]:
        if self._file_root is not None:
            offset = yield from self._stored(journal, offset, self._file_root)
        yield from self._client.read(journal, offset, block=block, timeout=None, begin_mod_time=self._since)

    def _stored(self, journal: str, offset: int, root: Path) -> Generator[tuple[int, bytes], None, int]:
        """Fragments of file:// stores, from the files themselves; returns where the broker must go on."""
        while True:
            answer = self._client.metadata(journal, offset, begin_mod_time=self._since)
            if answer.status != Status.OK or not answer.fragment_url.startswith("file://"):
                return offset
            yield from _file_content(answer, root)
            offset = answer.fragment.end


def _file_content(answer: ReadResponse, root: Path) -> Iterator[tuple[int, bytes]]:
    fragment = Fragment.from_proto(answer.fragment)
    path = root / clean_path(unquote(urlsplit(answer.fragment_url).path)).lstrip("/")
    try:
        raw = path.open("rb")
    except OSError as error:
        raise UsageError(
            f"cannot read the fragment {path}: {error.strerror}",
            hint="--file-root is the directory that the broker has as its file root; leave it out to let "
            "the broker read",
        ) from None
    position = fragment.begin
    with codecs.decompressed(fragment.codec, raw, where=str(path)) as content:
        while chunk := content.read(_BLOCK):
            wanted = chunk[max(answer.offset - position, 0) :]
            if wanted:
                yield position + len(chunk) - len(wanted), wanted
            position += len(chunk)
    if position != fragment.end:
        raise CorruptError(
            f"the fragment holds {position - fragment.begin} bytes, its name says {fragment.length}",
            where=str(path),
            position=0,
        )


def _suspended(journal: ListResponse.Journal) -> bool:
    """Whether no broker serves it, and nothing is there to be read."""
    return journal.spec.suspend.level == JournalSpec.Suspend.FULL


def _note(text: str) -> None:
    click.echo(visible(text), err=True)


@contextmanager
def opened(output: str, *, add: bool) -> Iterator[BinaryIO]:
    """The file to write to; `-` is stdout."""
    if output == "-":
        yield sys.stdout.buffer
        return
    with ExitStack() as stack:
        try:
            file = stack.enter_context(Path(output).open("ab" if add else "wb"))
        except OSError as error:
            raise UsageError(f"cannot write {output}: {error.strerror}") from None
        yield file


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM ends like an interrupt, so that the offsets are written."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def load_offsets(path: Path) -> dict[str, int]:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, int])
    except (*UNREADABLE, OSError) as error:
        raise UsageError(
            f"cannot read offsets from {path}: {error}", hint='expected an object such as {"a/journal": 42}'
        ) from None
    if any(offset < 0 for offset in found.values()):
        raise UsageError(f"an offset in {path} is below 0")
    return found


def save_offsets(path: Path, offsets: Mapping[str, int]) -> None:
    """Written aside, then renamed: the file is the old one or the new one."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(dict(sorted(offsets.items())))) + b"\n")
        partial.replace(path)
    except OSError as error:
        raise PenstockError(f"cannot write offsets to {path}: {error.strerror}") from None
