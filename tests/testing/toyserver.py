"""A toy of an outside system, in memory: tables, a log of their changes, and a door that can be closed.

It keeps every change, so that a source can see its tables as they were at any moment; what was acknowledged can no
longer be followed.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from penstock.base.errors import AwayError, UsageError
from penstock.log.message import Op

Document = dict[str, object]
PASSWORD = "hunter2-hunter2"


@dataclass(frozen=True)
class Change:
    """One change of one row; `old` is the number that the row had before. `more` of its transaction may follow."""

    ns: str
    op: Op
    row: Document
    old: int | None = None
    more: bool = False


@dataclass
class ToyServer:
    """Everything behind one lock."""

    changes: list[Change] = field(default_factory=list)
    tables: dict[str, list[str]] = field(default_factory=dict)
    """The fields of each table."""
    forgotten: int = 0
    slots: set[str] = field(default_factory=set)
    up: bool = True
    staged: dict[str, Sequence[tuple[int, Change]]] = field(default_factory=dict)
    kept: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    @contextmanager
    def session(self, password: str) -> Iterator[ToyServer]:
        """Who knocks gets in, if the door is open and the password right."""
        with self.lock:
            if not self.up:
                raise AwayError("the toy does not answer")
            if password != PASSWORD:
                raise UsageError("the toy does not know this password")
            yield self

    def write(self, change: Change) -> None:
        with self.lock:
            if change.op in (Op.UPDATE, Op.DELETE):
                known = change.old if change.old is not None else change.row["id"]
                if known not in self.rows(change.ns):
                    return
            self.changes.append(change)

    def rows(self, ns: str, at: int | None = None) -> dict[int, Document]:
        """A table as it was when so many changes had been made."""
        with self.lock:
            rows: dict[int, Document] = {}
            for change in self.changes[:at]:
                if change.ns == ns:
                    apply(rows, change)
            return rows


def packed(row: Document) -> Document:
    """Long texts of a row made small: what the server keeps is not to show in the memory of the process."""
    text = str(row["text"])
    return row if len(text) < 10_000 else {**row, "text": zlib.compress(text.encode())}


def unpacked(row: Document) -> Document:
    text = row.get("text")
    return {**row, "text": zlib.decompress(text).decode()} if isinstance(text, bytes) else dict(row)


def apply(rows: dict[int, Document], change: Change) -> None:
    if change.op is Op.COMMAND:
        rows.clear()
        return
    id = int(str(change.row["id"]))
    if change.old is not None:
        rows.pop(change.old, None)
    if change.op is Op.DELETE:
        rows.pop(id, None)
    else:
        rows[id] = change.row


SERVERS: dict[str, ToyServer] = {}
"""By name, since what is pickled cannot hold one."""
