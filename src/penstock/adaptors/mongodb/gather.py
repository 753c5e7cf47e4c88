"""Changes on their way into one batch: whose they are, who has them already, what messages they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from penstock.adaptors.base import Batch
from penstock.adaptors.mongodb import MongoDb
from penstock.adaptors.mongodb.client import Bson, Names, collection_of
from penstock.adaptors.mongodb.events import Act, Change
from penstock.adaptors.mongodb.place import Mark, Place
from penstock.adaptors.mongodb.values import Reader, Writer
from penstock.log.message import Message, Mode, Op

if TYPE_CHECKING:
    from pymongo import MongoClient

MOST_BYTES = 1024 * 1024
MOST_CHANGES = 10_000
"""What makes a batch."""

TRUNCATE = b'{"command":"truncate"}'


class Gathering:
    """One batch in the making. `places` move along."""

    def __init__(
        self,
        client: MongoClient[Bson],
        settings: MongoDb,
        accept: Callable[[str], bool],
        places: dict[str, Place],
        conditions: Mapping[str, bytes],
        writer: Writer,
    ) -> None:
        self._client, self._settings, self._accept = client, settings, accept
        self._names = Names(settings)
        self._places, self._conditions, self._writer = places, conditions, writer
        self._messages: list[Message] = []
        self._looked_up: dict[int, tuple[str, Any]] = {}
        """Messages of namespaces with a filter, whose documents are to be looked up: by index."""
        self._bytes = 0
        self._transaction: object = None
        self.moved: set[str] = set()

    @property
    def is_full(self) -> bool:
        return self._bytes >= MOST_BYTES or len(self._messages) >= MOST_CHANGES

    def is_of(self, transaction: object) -> bool:
        """Whether a change is of the same transaction as the last one here."""
        return transaction is not None and transaction == self._transaction

    def add(self, change: Change) -> None:
        self._transaction = change.transaction
        if change.act is Act.RENAME:
            self._rename(change)
        ns = self._names.ns_of(change.name) if change.name is not None else None
        if ns is None or not self._accept(ns):
            return
        place = self._place(ns, change)
        if (
            place.mode is Mode.COPY
            or place.mark is None
            or not place.mark.is_before(change.token, change.time)
        ):
            return
        message = self._message(ns, place, change)
        place.move(change.token, change.time)
        self.moved.add(ns)
        if message is not None:
            self._put(message, change)

    def batch(self, *, more: bool) -> Batch:
        """All of it. If no `more` is to come of its transaction, the places that are within one leave it."""
        self._look_up()
        for ns, place in self._places.items():
            if place.within and not more:
                place.within = False
                self.moved.add(ns)
            elif more and ns in self.moved and place.mode is Mode.SYNC:
                place.within = True
        positions = {ns: self._places[ns].position(self._writer) for ns in self.moved}
        return Batch(self._messages, positions, more=more)

    def _place(self, ns: str, change: Change) -> Place:
        """A namespace that nobody knew was made after the stream began: all that it holds comes through the stream."""
        if ns not in self._places:
            self._places[ns] = Place(ns, Mode.SYNC, Mark(change.time), streamed=True)
        return self._places[ns]

    def _message(self, ns: str, place: Place, change: Change) -> Message | None:
        writer = self._writer
        if change.act in (Act.EMPTY, Act.RENAME):
            return Message(ns, TRUNCATE, Op.COMMAND, change.ts, Mode.SYNC)
        if change.act is Act.DELETE:
            document = change.document or {"_id": change.id}
            return Message(
                ns, writer.document(document), Op.DELETE, change.ts, Mode.SYNC, writer.key(change.id)
            )
        if change.act not in (Act.INSERT, Act.UPDATE) or change.document is None:
            return None
        again = place.until is not None and change.time <= place.until
        op = Op.INSERT if change.act is Act.INSERT and not again else Op.UPDATE
        return Message(
            ns, writer.document(change.document), op, change.ts, Mode.SYNC, writer.key(change.document["_id"])
        )

    def _rename(self, change: Change) -> None:
        """The new name holds other documents than before: they are copied, as if it had just been found."""
        ns = self._names.ns_of(change.to) if change.to is not None else None
        if ns is None or not self._accept(ns):
            return
        known = self._places.get(ns)
        if known is not None and (known.mark is None or not known.mark.is_before(change.token, change.time)):
            return
        self._places[ns] = Place(ns, Mode.COPY, Mark(change.time, change.token))
        self.moved.add(ns)
        self._messages.append(Message(ns, TRUNCATE, Op.COMMAND, change.ts, Mode.COPY))

    def _put(self, message: Message, change: Change) -> None:
        if self._conditions.get(message.ns) and message.op in (Op.INSERT, Op.UPDATE):
            self._looked_up[len(self._messages)] = (message.ns, change.id)
        self._messages.append(message)
        self._bytes += len(message.data)

    def _look_up(self) -> None:
        """Of namespaces with a filter, have the documents as they are now; those that do not meet it are deleted."""
        for ns in {ns for ns, _ in self._looked_up.values()}:
            ids = [id for of, id in self._looked_up.values() if of == ns]
            condition = Reader("date").document(self._conditions[ns])
            collection = collection_of(self._client, self._names.name_of(ns))
            found = {
                self._writer.key(document["_id"]): document
                for document in collection.find({"$and": [{"_id": {"$in": ids}}, condition]})
            }
            for index, (of, id) in self._looked_up.items():
                if of == ns:
                    self._messages[index] = self._as_found(self._messages[index], found, id)

    def _as_found(self, message: Message, found: Mapping[bytes, Bson], id: object) -> Message:
        key = self._writer.key(id)
        if key in found:
            return Message(
                message.ns, self._writer.document(found[key]), message.op, message.ts, message.mode, key
            )
        return Message(
            message.ns, self._writer.document({"_id": id}), Op.DELETE, message.ts, message.mode, key
        )
