"""The writing half of `mongodb`: documents replaced and deleted by `_id`, in the order of the log.

The namespace is the collection. `_id` is the value of the message's key, or, of a key of several fields, the map of
them; a message without a key is known by the `_id` in its data, or else gets one that follows from its offset. A
document always takes the place of the one before, so fields that are gone at the source are gone here.

    transactions=False   Documents are written with the write concern `majority`, then the position. A batch that a
                         crash interrupts comes again and is written over itself: for a moment an older state may
                         show, and at its end all is as the log says.
    transactions=True    Documents and position are written in one transaction: each batch shows as a whole, once.

The position stands in a collection of its own, `penstock` if not told otherwise, under the name of the sink.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.adaptors.base import (
    Finding,
    Guarantee,
    Order,
    Publisher,
    Refusal,
    Sink,
    SinkPosition,
    Staged,
    Stager,
)
from penstock.adaptors.continuing import continued
from penstock.adaptors.mongodb import MongoDb
from penstock.adaptors.mongodb.client import Bson, asking, client_of, connected, error_of
from penstock.adaptors.mongodb.values import Reader
from penstock.adaptors.needs import need
from penstock.adaptors.parts import PartStager, read_parts
from penstock.base.errors import AwayError, PenstockError, RefusedError, UsageError
from penstock.log.schema import Schema
from penstock.log.values import ValuesError

if TYPE_CHECKING:
    import pyarrow as pa
    from pymongo import MongoClient
    from pymongo.client_session import ClientSession

MOST_WRITES = 1000
MOST_BYTES = 16 << 20
"""What goes into one bulk."""

LARGEST = 16 << 20
"""Bytes of BSON that a document may have."""

FORMAT = 1
_COLUMNS = ("offset", "op", "ns", "key", "old_key", "data", "origin")
_WRITES = ("insert", "update", "delete")


@dataclass(frozen=True, slots=True)
class Row:
    offset: int
    op: str
    ns: str
    key: str | None
    old_key: str | None
    data: str
    origin: str


class MongoSink(Sink):
    """Collections of one database."""

    order = Order.TOTAL

    def __init__(self, settings: MongoDb) -> None:
        if settings.database is None:
            raise UsageError(
                "adaptor 'mongodb': the uri of a sink names a database", hint="mongodb://HOST:PORT/DATABASE"
            )
        self._settings = settings
        self.guarantee = Guarantee.EXACTLY_ONCE if settings.transactions else Guarantee.AT_LEAST_ONCE

    def inspect(self, namespaces: Sequence[str] | None = None) -> Sequence[Finding]:
        from penstock.adaptors.mongodb.sink_inspect import findings_of

        findings: list[Finding] = []
        with connected(self._settings) as client:
            about = client.admin.command("isMaster")
            if namespaces is not None:
                findings += findings_of(client, self._settings, namespaces)
        if self._settings.transactions:
            if "setName" not in about and about.get("msg") != "isdbgrid":
                findings.append(
                    Finding(
                        "the server is no member of a replica set: it has no transactions",
                        "start mongod with --replSet rs0, then: rs.initiate()",
                        fatal=True,
                    )
                )
            findings.append(Finding("`transactions` was never run against a MongoDB server"))
        return findings

    def stager(self) -> Stager:
        return PartStager(Check(self._settings))

    def publisher(self) -> Publisher:
        return MongoPublisher(self._settings, self.name, self)

    def staging(self, scratch: Path) -> Path:
        return scratch


class Check:
    """Names, in the task, the messages that can never be documents."""

    def __init__(self, settings: MongoDb) -> None:
        self._settings = settings

    def __call__(self, batch: pa.RecordBatch) -> Sequence[Refusal]:
        bson = need("bson", "mongodb")
        documents = Documents(self._settings)
        refused = []
        for row in rows_of(batch):
            try:
                if row.op == "command" and _command(row) != "truncate":
                    raise ValuesError("a command other than truncate")
                if row.op in _WRITES:
                    size = len(bson.encode(documents.of(row, "", None)))
                    if size > LARGEST:
                        raise ValuesError(f"a document of {size:,} bytes, MongoDB takes {LARGEST:,}")
            except (PenstockError, bson.errors.BSONError, OverflowError, UnicodeError, SystemError) as error:
                refused.append(Refusal(row.offset, row.ns, str(error), ""))
        return refused


class Documents:
    """Makes documents of rows."""

    def __init__(self, settings: MongoDb) -> None:
        self._reader = Reader(settings.times)
        self._bson = need("bson", "mongodb")

    def of(self, row: Row, log: str, schema: Schema | None) -> Bson:
        """The document, `_id` first; of a delete, as much of it as is known."""
        fields = self._reader.document(row.data, schema)
        found = fields.pop("_id", None)
        if row.key is not None:
            id = self.id_of(row.key)
            if found is not None and found != id and "_id" not in self._reader.document(row.key):
                raise ValuesError(
                    "a field '_id' that is not the key: its place is the key's, and it would be lost"
                )
        elif found is not None:
            id = found
        elif row.op == "insert":
            digest = hashlib.sha256(f"{log}:{row.offset}".encode()).digest()
            id = self._bson.ObjectId(digest[:12])
        else:
            raise ValuesError(f"an {row.op} without a key: no document can be found by it")
        if isinstance(id, (list, self._bson.Regex)):
            raise ValuesError("MongoDB takes no list and no regular expression as an _id")
        for name in fields:
            if "\0" in name:
                raise ValuesError("MongoDB takes no name of a field that holds a zero")
        return {"_id": id, **fields}

    def id_of(self, key: str) -> Any:
        fields = self._reader.document(key)
        return next(iter(fields.values())) if len(fields) == 1 else fields


class MongoPublisher(Publisher):
    """Writes what was staged."""

    def __init__(self, settings: MongoDb, name: str, sink: Sink) -> None:
        self._settings, self._name, self._sink = settings, name, sink
        self._client: MongoClient[Bson] | None = None

    def open(self, start: SinkPosition) -> SinkPosition:
        self.close()
        self._client = client_of(self._settings)
        try:
            with asking(self._settings):
                known = self._own().find_one({"_id": self._name})
                if known is None:
                    self._keep(start, None)
                    return start
        except PenstockError:
            self.close()
            raise
        return self._continued(known, start)

    def publish(self, parts: Sequence[Staged], position: SinkPosition) -> None:
        if self._client is None:
            raise PenstockError(f"the sink '{self._name}' is not open")
        errors = need("pymongo.errors", "mongodb")
        try:
            with asking(self._settings), ExitStack() as stack:
                session = self._begun(stack)
                for ns, writes in self._bulks(parts, position.log):
                    self._write(ns, writes, session)
                self._keep(position, session)
        except errors.PyMongoError as error:
            raise error_of(self._settings, error) from None
        except PenstockError:
            self.close()
            raise

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _begun(self, stack: ExitStack) -> ClientSession | None:
        """A transaction that ends with the work: committed, or aborted if that fails."""
        if not self._settings.transactions or self._client is None:
            return None
        pymongo = need("pymongo", "mongodb")
        session = stack.enter_context(self._client.start_session())
        stack.enter_context(
            session.start_transaction(
                read_concern=need("pymongo.read_concern", "mongodb").ReadConcern("snapshot"),
                write_concern=pymongo.WriteConcern("majority"),
            )
        )
        return session

    def _bulks(self, parts: Sequence[Staged], log: str) -> Iterator[tuple[str, list[tuple[int, Any]]]]:
        """Writes that go together: those of one namespace that follow each other, as many as one bulk takes."""
        documents = Documents(self._settings)
        bulk: list[tuple[int, Any]] = []
        ns, size = "", 0
        for batch in read_parts(parts, _COLUMNS):
            for row in rows_of(batch):
                if bulk and (row.ns != ns or len(bulk) >= MOST_WRITES or size >= MOST_BYTES):
                    yield ns, bulk
                    bulk, size = [], 0
                ns = row.ns
                bulk += self._writes(row, documents, log)
                size += len(row.data)
        if bulk:
            yield ns, bulk

    def _writes(self, row: Row, documents: Documents, log: str) -> Iterator[tuple[int, Any]]:
        pymongo = need("pymongo", "mongodb")
        if row.op == "command":
            yield row.offset, pymongo.DeleteMany({})
            return
        if row.op not in _WRITES:
            return
        document = documents.of(row, log, self._sink.schemas.at(row.origin, row.offset))
        if row.old_key is not None:
            yield row.offset, pymongo.DeleteOne({"_id": documents.id_of(row.old_key)})
        if row.op == "delete":
            yield row.offset, pymongo.DeleteOne({"_id": document["_id"]})
        else:
            yield row.offset, pymongo.ReplaceOne({"_id": document["_id"]}, document, upsert=True)

    def _write(self, ns: str, writes: list[tuple[int, Any]], session: ClientSession | None) -> None:
        """One bulk, in order: it ends at the first write that is not taken."""
        assert self._client is not None
        errors = need("pymongo.errors", "mongodb")
        options = {"session": session} if session is not None else {}
        try:
            self._collection(ns, session).bulk_write([write for _, write in writes], ordered=True, **options)
        except errors.BulkWriteError as error:
            raise self._refused(ns, writes, error) from None

    def _refused(self, ns: str, writes: list[tuple[int, Any]], error: Any) -> PenstockError:
        details = error.details or {}
        told = details.get("writeErrors") or []
        if not told:
            return AwayError(
                f"{self._settings.shown}: written, but not by a majority: {details.get('writeConcernErrors')}"
            )
        offset = writes[told[0]["index"]][0]
        return RefusedError(f"message {offset} of '{ns}' is not taken by MongoDB: {told[0].get('errmsg')}")

    def _collection(self, ns: str, session: ClientSession | None) -> Any:
        """With the write concern `majority`; in a transaction that belongs to the transaction."""
        assert self._client is not None
        pymongo = need("pymongo", "mongodb")
        concern = None if session is not None else pymongo.WriteConcern("majority")
        return self._client.get_database(self._settings.database).get_collection(ns, write_concern=concern)

    def _own(self) -> Any:
        return self._collection(self._settings.own_collection, None)

    def _keep(self, position: SinkPosition, session: ClientSession | None) -> None:
        kept = {
            "_id": self._name, "log": position.log, "generation": position.generation,
            "watermark": position.watermark, "format": FORMAT,
        }  # fmt: skip
        options = {"session": session} if session is not None else {}
        own = self._collection(self._settings.own_collection, session)
        own.replace_one({"_id": self._name}, kept, upsert=True, **options)

    def _continued(self, known: Bson, start: SinkPosition) -> SinkPosition:
        place = f"'{self._name}' in the collection '{self._settings.own_collection}'"
        held = SinkPosition(str(known["log"]), int(known["generation"]), int(known["watermark"]))
        try:
            return continued(held, start, f"the target of {place}", "delete that document")
        except UsageError:
            self.close()
            raise


def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    columns = [batch.column(name).to_pylist() for name in _COLUMNS]
    return (Row(*values) for values in zip(*columns, strict=True))


def _command(row: Row) -> object:
    try:
        return msgspec.json.decode(row.data, type=dict[str, object]).get("command")
    except msgspec.DecodeError:
        return json.dumps(row.data)
