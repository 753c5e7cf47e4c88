"""The copy of a collection: ranges of `_id`, found by a walk over the index, each read in one go.

A range is planned by its end alone, so a copy goes on from any `_id` that the log holds. The walk reads only the
index.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.adaptors.base import CopyTask
from penstock.adaptors.mongodb import MongoDb
from penstock.adaptors.mongodb.client import Bson, Name, collection_of, connected
from penstock.adaptors.mongodb.order import RARE, behind, up_to
from penstock.adaptors.mongodb.values import Reader, Writer
from penstock.adaptors.needs import need
from penstock.log.message import MAX_MESSAGE_BYTES, MessageTooLargeError
from penstock.log.packing import Packed, pack

if TYPE_CHECKING:
    from pymongo import MongoClient
    from pymongo.collection import Collection

AVERAGE = 1024
"""Bytes of a document, where the server does not say."""

MOST_ROWS = 100_000

_UNKNOWN_TYPE = frozenset({2, 14})
"""What a server answers that does not know the name of a type."""


@dataclass(frozen=True)
class Range(CopyTask):
    """The documents behind one `_id`, up to and including another, that meet a condition.

    The bounds are the texts of keys, empty for none: what is pickled holds no types of the driver.
    """

    settings: MongoDb
    ns: str
    name: Name
    after: bytes
    last: bytes
    condition: bytes
    rare: bool

    def read(self) -> Iterator[Packed]:
        import pyarrow as pa

        writer = Writer(self.settings.numbers == "typed")
        with connected(self.settings) as client:
            found = collection_of(client, self.name).find(self._query(), batch_size=1000).sort("_id", 1)
            data: list[bytes] = []
            keys: list[bytes] = []
            for document in found:
                data.append(writer.document(document))
                keys.append(writer.key(document["_id"]))
                if len(data[-1]) > MAX_MESSAGE_BYTES:
                    raise MessageTooLargeError(
                        f"a message of namespace '{self.ns}' has {len(data[-1]):,} bytes, "
                        f"the limit is {MAX_MESSAGE_BYTES:,}",
                        hint="leave the document out with `collection_filters`",
                    )
        if data:
            binary = pa.large_binary()
            now = time.time_ns() // 1000
            yield pack(self.ns, pa.array(data, binary), ts=now, keys=pa.array(keys, binary))

    def _query(self) -> dict[str, Any]:
        reader = Reader("date")
        terms: list[dict[str, Any]] = []
        if self.condition:
            terms.append(reader.document(self.condition))
        if self.after:
            terms.append(behind(reader.document(self.after)["_id"], self.rare))
        if self.last:
            terms.append(up_to(reader.document(self.last)["_id"], self.rare))
        return {"$and": terms} if terms else {}


class Plan:
    """The ranges of one collection from an `_id` on, as they are asked for. `ends` are the `_id`s they end with."""

    def __init__(
        self,
        client: MongoClient[Bson],
        settings: MongoDb,
        ns: str,
        name: Name,
        after: tuple[Any, ...],
        condition: bytes,
    ) -> None:
        self._collection = collection_of(client, name)
        self._settings, self._ns, self._name = settings, ns, name
        self._after = after
        self._writer = Writer(typed_numbers=True)
        self._condition = condition
        self._rare = _has_rare(self._collection)
        self.ends: list[tuple[Any, ...]] = []
        """Of the ranges that were planned, in order; the last one has none."""
        self.rows, average = _size(client, name)
        self._step = max(1, min(MOST_ROWS, settings.copy_bytes // average))

    def __iter__(self) -> Iterator[Range]:
        while True:
            end = self._end()
            self.ends.append(end)
            bounds = self._key(self._after), self._key(end)
            yield Range(self._settings, self._ns, self._name, *bounds, self._condition, self._rare)
            if not end:
                return
            self._after = end

    def _end(self) -> tuple[Any, ...]:
        """The `_id` of the document with which the next range ends; nothing if fewer are left."""
        query = behind(self._after[0], self._rare) if self._after else {}
        found = list(self._collection.find(query, {"_id": 1}).sort("_id", 1).skip(self._step - 1).limit(1))
        return (found[0]["_id"],) if found else ()

    def _key(self, id: tuple[Any, ...]) -> bytes:
        return self._writer.key(id[0]) if id else b""


def _size(client: MongoClient[Bson], name: Name) -> tuple[int | None, int]:
    """About how many documents, and of how many bytes."""
    errors = need("pymongo.errors", "mongodb")
    try:
        told = client.get_database(name.database).command("collStats", name.collection)
    except errors.OperationFailure:  # a right that a copy does not need
        return None, AVERAGE
    return int(told.get("count", 0)), max(1, int(told.get("avgObjSize") or AVERAGE))


def _has_rare(collection: Collection[Bson]) -> bool:
    """Whether an `_id` has one of the types that a server need not know; the index tells at once."""
    errors = need("pymongo.errors", "mongodb")
    try:
        return collection.find_one({"_id": {"$type": sorted(RARE)}}, {"_id": 1}) is not None
    except errors.OperationFailure as error:
        if error.code in _UNKNOWN_TYPE:
            return False
        raise
