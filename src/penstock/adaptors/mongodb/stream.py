"""Change streams: opened where the log says, read as they come, opened anew when they end.

A stream of a database or a deployment serves many namespaces, each with a mark of its own. It is opened at the
oldest mark; what others have already is passed over by comparing resume tokens, which sort in the order of the
changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from penstock.adaptors.mongodb import MongoDb
from penstock.adaptors.mongodb.client import Bson, Name, collection_of
from penstock.adaptors.mongodb.events import Act, Change, change_of
from penstock.adaptors.mongodb.place import Mark
from penstock.adaptors.needs import need

if TYPE_CHECKING:
    from pymongo import MongoClient
    from pymongo.change_stream import ChangeStream

WAIT = 100
"""Milliseconds that the server waits for a change before it answers that there is none."""


def oldest(marks: Iterable[Mark]) -> Mark:
    """Where a stream has to begin that serves all of these; too early does no harm."""
    known = list(marks)
    if all(mark.token is not None for mark in known):
        return min(known, key=lambda mark: mark.token or "")
    return Mark(min(mark.time for mark in known))


class Feed:
    """One change stream. `own` is its collection, None for one of the whole database or deployment."""

    def __init__(self, client: MongoClient[Bson], settings: MongoDb, own: Name | None, mark: Mark) -> None:
        self._client, self._settings, self._own = client, settings, own
        self._mark = mark
        self._stream = self._open()

    def next(self) -> Change | None:
        """The next change; None if there is none now."""
        event = self._stream.try_next()
        if event is None:
            if not self._stream.alive:
                self._reopen()
            return None
        change = change_of(event, self._own)
        self._mark = Mark(change.time, change.token)
        if change.act is Act.END:
            self._reopen()
        return change

    @property
    def token(self) -> str | None:
        """Behind everything that was read, also behind changes that are not for this stream."""
        found = self._stream.resume_token
        return str(found["_data"]) if found else None

    def close(self) -> None:
        self._stream.close()

    def _reopen(self) -> None:
        self._stream.close()
        self._stream = self._open()

    def _open(self) -> ChangeStream[Bson]:
        timestamp = need("bson", "mongodb").Timestamp
        options: dict[str, Any] = {"full_document": "updateLookup", "max_await_time_ms": WAIT}
        if self._settings.images:
            options |= {"full_document": "required", "full_document_before_change": "whenAvailable"}
        if self._mark.token is not None:
            options["start_after"] = {"_data": self._mark.token}
        else:
            options["start_at_operation_time"] = timestamp(*self._mark.time)
        if self._own is not None:
            return collection_of(self._client, self._own).watch(**options)
        if self._settings.database is not None:
            return self._client.get_database(self._settings.database).watch(**options)
        return self._client.watch(**options)
