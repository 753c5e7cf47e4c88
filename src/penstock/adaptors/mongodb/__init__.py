"""`mongodb`: the collections of MongoDB, copied and followed change by change; and written by `_id`.

Each collection is a namespace: `collection` if the uri names a database, `database.collection` if it does not. What
the source promises is told in `penstock.adaptors.mongodb.source`, what the sink promises in
`penstock.adaptors.mongodb.sink`; what becomes of each BSON type in `penstock.adaptors.mongodb.values`. Servers from
MongoDB 4.4 on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Literal

from penstock.adaptors.base import Adaptor, Sink, Source
from penstock.base.secrets import mask
from penstock.base.settings import setting
from penstock.base.units import Unit

_SCHEMES = ("mongodb://", "mongodb+srv://")
_DATABASE = re.compile(r"^[^:]+://[^/]*/([^?]*)")


@dataclass(frozen=True, repr=False)
class MongoDb(Adaptor):
    """A MongoDB database, or a whole deployment."""

    name: ClassVar[str] = "mongodb"
    description: ClassVar[str] = (
        "MongoDB. Source: copies collections in the order of _id and, if asked to, follows them through change "
        "streams. Sink: replaces and deletes documents by _id, in the order of the log."
    )
    reads: ClassVar[bool] = True
    writes: ClassVar[bool] = True
    extra: ClassVar[str] = "mongodb"

    uri: str = setting(
        "the deployment and the database in it, as MongoDB's drivers take it; a source without a database reads all",
        example="mongodb://penstock:${SHOP_PASSWORD}@db.example/shop?replicaSet=rs0&tls=true",
    )
    tail: bool = setting("source: go on with what changes after the copy", default=False)
    watch: Literal["database", "collection"] = setting(
        "source: one change stream for all, or one for each 'collection', for rights that are given by collection",
        default="database",
    )
    images: bool = setting(
        "source: have every state of a document, from the pre- and post-images that MongoDB 6 keeps if told to",
        default=False,
    )
    collection_filters: dict[str, dict[str, object]] = setting(  # noqa: RUF009 - a field, made by a function
        "source: queries by namespace, in extended JSON; only documents that meet them are read",
        default={},
    )
    numbers: Literal["plain", "typed"] = setting(
        "source: 'typed' writes 64-bit integers that would fit into 32 bits as {\"$numberLong\": …}, so that a mongodb "
        "sink makes 64-bit integers of them again",
        default="plain",
    )
    poll_interval: float = setting("source: seconds between two looks for new collections", default=5.0)
    copy_bytes: int = setting(
        "source: size of the ranges that are copied at once", default=8 << 20, unit=Unit.BYTES
    )
    transactions: bool = setting(
        "sink: write each batch and the sink's position in one transaction; wants a replica set",
        default=False,
    )
    times: Literal["date", "text"] = setting(
        "sink: moments as BSON dates, which are cut to milliseconds, or as 'text' with all digits",
        default="date",
    )
    own_collection: str = setting("sink: the collection in which it keeps its position", default="penstock")
    timeout: float = setting("seconds to wait for an answer", default=20.0)

    def __post_init__(self) -> None:
        if not self.uri.startswith(_SCHEMES):
            raise ValueError("setting 'uri': expected mongodb://USER:PASSWORD@HOST:PORT/DATABASE")
        for name in ("poll_interval", "timeout", "copy_bytes"):
            if not getattr(self, name) > 0:
                raise ValueError(f"setting '{name}': expected more than 0, got {getattr(self, name)}")

    def __repr__(self) -> str:
        return f"MongoDb({self.shown!r})"

    @property
    def shown(self) -> str:
        """The uri for people."""
        return mask(self.uri)

    @property
    def database(self) -> str | None:
        """The database that the uri names."""
        found = _DATABASE.match(self.uri)
        return found[1] if found and found[1] else None

    def source(self) -> Source:
        from penstock.adaptors.mongodb.source import MongoSource

        return MongoSource(self)

    def sink(self) -> Sink:
        from penstock.adaptors.mongodb.sink import MongoSink

        return MongoSink(self)
