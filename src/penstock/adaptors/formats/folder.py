"""Many files as a source: what lies in a directory or under a prefix now, and what comes there later.

With one namespace for all, its position is the ledger of the files that were read (`ledger.py`) and the place in the
one that is being read. With a namespace for each file, each has a position of its own, as if it were read alone.

Files are taken when they are whole, which the `Place` they come from decides, and are not expected to change. One that
does while it is read is an error; one that did after it was read is read again, as the new file that it is.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import msgspec

from penstock.adaptors.base import Batch, Source, refuse_conditions
from penstock.adaptors.formats.contents import Content, bare_name
from penstock.adaptors.formats.ledger import Entry, FileOrder, Kept, Ledger
from penstock.adaptors.formats.reading import Batches, FileChangedError, OpenFile, Reading
from penstock.base.errors import UsageError
from penstock.log.message import Mode, Resume


class Folder(ABC):
    """Where files lie."""

    where: str
    """What errors call it."""
    late: int = 0
    """Microseconds by which a file may show up later than its time says."""

    @abstractmethod
    def entries(self, *, settled: bool) -> Sequence[Entry]:
        """The files that are there; if `settled`, those only that nobody writes to any more."""

    @abstractmethod
    def opened(self, entry: Entry) -> AbstractContextManager[Content]:
        """A file to read, which is the one that was listed; `FileChangedError` if it is another by now."""


class At(msgspec.Struct, frozen=True, omit_defaults=True):
    """The position of a namespace that many files share."""

    read: Kept = Kept()
    until: int = 0
    """The time of the newest file that was there when the copy began: what came later comes behind the copy."""
    name: str = ""
    """The file that is being read, if one is; and what it was."""
    tag: str = ""
    place: dict[str, int | str] = {}


class FolderSource(Source):
    """Reads the files of a folder, one after the other."""

    def __init__(
        self,
        adaptor: str,
        folder: Folder,
        *,
        ns: str | None,
        watch: bool,
        order: FileOrder,
        reading: Reading,
        poll: float,
    ) -> None:
        self._adaptor = adaptor
        self._folder = folder
        self._ns = ns
        self._watch = watch
        self._order: FileOrder = order
        self._reading = reading
        self._poll = poll
        self._batches = Batches(reading.bad_lines)

    @property
    def skipped(self) -> int:
        return self._batches.skipped

    def namespaces(self) -> Sequence[str]:
        entries = self._folder.entries(settled=False)
        return [self._ns] if self._ns is not None else sorted(self._by_namespace(entries))

    def read(
        self, accept: Callable[[str], bool], resume: Mapping[str, Resume], stop: threading.Event
    ) -> Iterator[Batch]:
        refuse_conditions(self._adaptor, accept, resume)
        if self._ns is None:
            return self._each(accept, resume, stop)
        return self._all(self._ns, resume.get(self._ns), stop) if accept(self._ns) else iter(())

    def _all(self, ns: str, known: Resume | None, stop: threading.Event) -> Iterator[Batch]:
        """All files as one namespace."""
        at = msgspec.convert(known.position if known else {}, At)
        ledger = Ledger.of(at.read, self._order, self._folder.late)
        mode = Mode.COPY if known is None or known.mode is Mode.COPY else Mode.SYNC
        until = at.until
        while not stop.is_set():
            there = entries = self._folder.entries(settled=self._watch)
            if mode is Mode.COPY:
                until = until or max((entry.time for entry in entries), default=0)
                entries = [entry for entry in entries if entry.time <= until]
            if at.name:
                yield from self._one(ns, mode, self._same(there, at), ledger, at, stop)
                at = At(until=until)
            for entry in ledger.new(entries):
                if stop.is_set():
                    return
                yield from self._one(ns, mode, entry, ledger, At(until=until), stop)
            if stop.is_set():
                return
            ledger.end_pass()
            if mode is Mode.COPY:
                mode = Mode.SYNC
                done = msgspec.to_builtins(At(ledger.kept()))
                yield Batch((), {ns: done}, completed=(ns,))
            if not self._watch:
                return
            stop.wait(self._poll)

    def _one(
        self, ns: str, mode: Mode, entry: Entry, ledger: Ledger, at: At, stop: threading.Event
    ) -> Iterator[Batch]:
        """One file of a shared namespace; its last batch says that it was read."""
        with self._folder.opened(entry) as content:
            file = OpenFile(content, self._reading, dict(at.place), "take")
            taken = file.walk.next()
            while taken is not None and not stop.is_set():
                place = file.position()
                following = None if taken.bad and self._reading.bad_lines == "stop" else file.walk.next()
                if following is None and not (taken.bad and self._reading.bad_lines == "stop"):
                    ledger.add(entry)
                    position = At(ledger.kept(), at.until)
                else:
                    position = At(ledger.kept(), at.until, entry.name, entry.tag, place)  # type: ignore[arg-type]
                yield self._batches.of(ns, mode, file, taken, msgspec.to_builtins(position))
                self._batches.complain(content.name, taken)
                if following is None:
                    return
                taken = following
            if taken is None:
                ledger.add(entry)  # nothing in it
                yield Batch((), {ns: msgspec.to_builtins(At(ledger.kept(), at.until))})

    def _same(self, entries: Sequence[Entry], at: At) -> Entry:
        """The file that was being read, which must be what it was."""
        found = next((entry for entry in entries if entry.name == at.name), None)
        if found is None or found.tag != at.tag:
            what = "is gone" if found is None else "is another one now"
            raise FileChangedError(
                f"{self._folder.where}: {at.name} was read in part, and {what}",
                hint="bring it back as it was; or read under another namespace, with the setting 'ns'",
            )
        return found

    def _each(
        self, accept: Callable[[str], bool], resume: Mapping[str, Resume], stop: threading.Event
    ) -> Iterator[Batch]:
        """Each file as a namespace of its own."""
        done: dict[str, str] = {}
        while not stop.is_set():
            found = self._by_namespace(self._folder.entries(settled=self._watch))
            for ns, entry in sorted(found.items(), key=lambda one: self._key(one[1])):
                if not accept(ns) or done.get(ns) == entry.tag:
                    continue
                if ns in done:
                    raise FileChangedError(
                        f"{self._folder.where}: {entry.name} was read, and has changed since",
                        hint="give what is new a name of its own",
                    )
                yield from self._alone(ns, entry, resume.get(ns), stop)
                if stop.is_set():
                    return
                done[ns] = entry.tag
            if not self._watch:
                return
            stop.wait(self._poll)

    def _alone(self, ns: str, entry: Entry, known: Resume | None, stop: threading.Event) -> Iterator[Batch]:
        mode = Mode.COPY if known is None or known.mode is Mode.COPY else Mode.SYNC
        with self._folder.opened(entry) as content:
            file = OpenFile(content, self._reading, known.position if known else {}, "take")
            while not stop.is_set():
                before = file.walk.place
                taken = file.walk.next()
                if taken is None:
                    if mode is Mode.COPY:
                        yield Batch((), {ns: file.position()}, completed=(ns,))
                    return
                if file.walk.place != before:
                    yield self._batches.of(ns, mode, file, taken, file.position())
                self._batches.complain(content.name, taken)

    def _by_namespace(self, entries: Sequence[Entry]) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        for entry in entries:
            other = found.setdefault(namespace_of(entry.name), entry)
            if other is not entry:
                raise UsageError(
                    f"{self._folder.where}: {other.name} and {entry.name} would be the same namespace",
                    hint="rename one of them, or read both as one namespace, with the setting 'ns'",
                )
        return found

    def _key(self, entry: Entry) -> tuple[int, str]:
        return (entry.time if self._order == "time" else 0, entry.name)


def namespace_of(name: str) -> str:
    """The name of a file without what tells of its format."""
    bare = bare_name(name)
    head, dot, ending = bare.rpartition(".")
    return head if dot and head and "/" not in ending and not head.endswith("/") else bare
