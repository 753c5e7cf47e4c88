"""The connection to MongoDB, and what its errors mean.

Every socket has a timeout; the driver repeats reads and writes once by itself where the server lets it. What remains
is told apart here: a server that is away, a setting or a right that a person has to see to, work that failed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.adaptors.mongodb import MongoDb
from penstock.adaptors.needs import need
from penstock.base.errors import AwayError, PenstockError, UsageError
from penstock.base.secrets import mask

if TYPE_CHECKING:
    from pymongo import MongoClient
    from pymongo.collection import Collection

Bson = dict[str, Any]

_DENIED = frozenset({11, 13, 18, 8000})
_AWAY = frozenset(
    {6, 7, 43, 50, 89, 91, 112, 133, 134, 175, 189, 234, 237, 262, 317, 358, 384, 9001, 10107, 11600, 11602, 13435,
     13436, 14031}
)  # fmt: skip
"""What a server answers that is stopping, electing, busy, out of disk, or has forgotten a cursor."""

LOST = frozenset({260, 280, 286})
"""Of a change stream: the oplog no longer reaches back to where it was to begin."""

_NO_STREAMS = frozenset({40573, 40324})
_TOKEN_LOST = "the changes since then are no longer kept"


class StreamLostError(UsageError):
    """What happened after a position is no longer in the oplog."""


class Name(NamedTuple):
    """A collection."""

    database: str
    collection: str


@contextmanager
def connected(settings: MongoDb) -> Iterator[MongoClient[Bson]]:
    """A client for as long as it is needed; errors of the driver come out as ours."""
    client = client_of(settings)
    try:
        with asking(settings):
            yield client
    finally:
        client.close()


def client_of(settings: MongoDb) -> MongoClient[Bson]:
    pymongo = need("pymongo", "mongodb")
    patience = int(settings.timeout * 1000)
    with asking(settings):
        # Everything is read with its type; dates beyond Python's years too.
        client: MongoClient[Bson] = pymongo.MongoClient(
            settings.uri,
            appname="penstock",
            serverSelectionTimeoutMS=patience,
            connectTimeoutMS=patience,
            socketTimeoutMS=max(patience, 60_000),
            waitQueueTimeoutMS=patience,
            tz_aware=True,
            uuidRepresentation="unspecified",
            datetime_conversion="DATETIME_AUTO",
        )
    return client


@contextmanager
def asking(settings: MongoDb) -> Iterator[None]:
    """Errors of the driver become ours, without passwords."""
    errors = need("pymongo.errors", "mongodb")
    bson = need("bson.errors", "mongodb")
    try:
        yield
    except errors.PyMongoError as error:
        raise error_of(settings, error) from None
    except bson.InvalidBSON as error:
        raise PenstockError(f"{settings.shown}: a document is no valid BSON: {mask(str(error))}") from None


def error_of(settings: MongoDb, error: Exception) -> PenstockError:
    errors = need("pymongo.errors", "mongodb")
    text = mask(str(getattr(error, "_message", None) or error)).partition(", full error:")[0]
    what = f"{settings.shown}: {text}"
    if isinstance(error, errors.OperationFailure):
        return _failure(what, error.code or 0, error.has_error_label("TransientTransactionError"))
    if isinstance(error, errors.ConnectionFailure) and "certificate verify failed" in str(error):
        return UsageError(
            what, hint="name the file of the server's authority in the uri: tlsCAFile=/path/ca.pem"
        )
    if isinstance(error, (errors.ConnectionFailure, errors.ExecutionTimeout)):
        return AwayError(what)
    if isinstance(error, (errors.ConfigurationError, errors.InvalidURI)):
        return UsageError(what)
    return PenstockError(what)


def _failure(what: str, code: int, transient: bool) -> PenstockError:
    if code in LOST:
        return StreamLostError(
            f"{what}: {_TOKEN_LOST}",
            hint="copy the namespaces anew: `penstock backfill NAMESPACE`; and keep a longer oplog at the server",
        )
    if code in _DENIED:
        return UsageError(what, hint="check user, password and `authSource` in the uri, and the user's roles")
    if code in _NO_STREAMS:
        return UsageError(what, hint="only a replica set has change streams: start mongod with --replSet")
    if transient or code in _AWAY:
        return AwayError(what)
    return PenstockError(what)


class Names:
    """Namespaces and collections, to and fro."""

    def __init__(self, settings: MongoDb) -> None:
        self._database = settings.database

    def name_of(self, ns: str) -> Name:
        if self._database is not None:
            return Name(self._database, ns)
        database, _, collection = ns.partition(".")
        return Name(database, collection)

    def ns_of(self, name: Name) -> str | None:
        """None for what is not read: the server's own, and other databases than the one named."""
        if name.collection.startswith("system."):
            return None
        if self._database is not None:
            return name.collection if name.database == self._database else None
        if name.database in ("admin", "local", "config"):
            return None
        return f"{name.database}.{name.collection}"


def collection_of(client: MongoClient[Bson], name: Name) -> Collection[Bson]:
    return client.get_database(name.database).get_collection(name.collection)


def collections(client: MongoClient[Bson], settings: MongoDb) -> list[tuple[str, str]]:
    """All namespaces there are now, with their kind: `collection` or `timeseries`; views are none."""
    names = Names(settings)
    databases = [settings.database] if settings.database is not None else client.list_database_names()
    found = []
    for database in databases:
        for about in client.get_database(database).list_collections():
            ns = names.ns_of(Name(database, about["name"]))
            if ns is not None and about.get("type", "collection") != "view":
                found.append((ns, str(about.get("type", "collection"))))
    return sorted(found)


def now_of(client: MongoClient[Bson]) -> tuple[int, int] | None:
    """The cluster time behind all that has been written by now; None if the server keeps no oplog."""
    errors = need("pymongo.errors", "mongodb")
    try:
        with client.start_session() as session:
            client.admin.command("ping", session=session)
            stamp = session.operation_time
            return (stamp.time, stamp.inc + 1) if stamp is not None else None
    except errors.ConfigurationError:  # no sessions: an old server, or one that is no MongoDB
        oplog = client.get_database("local").get_collection("oplog.rs")
        last = list(oplog.find({}, {"ts": 1}).sort("ts", -1).limit(1))
        if last:
            return last[0]["ts"].time, last[0]["ts"].inc + 1
        return int(client.admin.command("isMaster")["localTime"].timestamp()), 0
