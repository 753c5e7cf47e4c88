"""Follows the binlog for all namespaces that are past their copy, and makes batches of what it says.

A batch holds whole transactions, as many as have come; a transaction that is larger than a batch is told in several,
with `more` on all but the last. After each, positions say where to go on, within a transaction too. While the log has
a part of a transaction and not its end, the follower is `inside`: then nothing else may be given, and what it gives
itself says `more`. The end comes in a batch, if only with positions.

**Columns as they were.** With `binlog_row_metadata=FULL` each row event comes with the names and types of its
columns. Without, the columns of a table are those of its copy, carried in its position, until a statement changes
the table. Then the table is looked at as it is now, and the binlog between the statement and now is searched for
another one that changes it: if there is none, the columns now are the columns then. If there is one, rows in between
cannot be read, and the source stops with an explanation at the first of them.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from penstock.adaptors.base import Batch
from penstock.adaptors.mysql.charsets import Charsets
from penstock.adaptors.mysql.connection import Server, Session
from penstock.adaptors.mysql.copy import current_place
from penstock.adaptors.mysql.ddl import Does, Effect, effects
from penstock.adaptors.mysql.follow import Followed, meet
from penstock.adaptors.mysql.inspect import check_table
from penstock.adaptors.mysql.place import Place, Transaction
from penstock.adaptors.mysql.stream import (
    Begins,
    Changes,
    Ends,
    Identity,
    Prepares,
    Says,
    Stream,
    identity_of,
    scan,
)
from penstock.adaptors.mysql.table import tables_of
from penstock.adaptors.mysql.types import Structure
from penstock.base.errors import UsageError
from penstock.log.message import Message, Mode, Op, Position
from penstock.log.schema import Schema

MOST_BYTES = 1024 * 1024
MOST_MESSAGES = 10_000
"""What makes a batch."""

TURN = 1.0
"""Seconds after which others have their turn, however much there is."""

TELL_EVERY = 10.0
"""Seconds after which namespaces without changes are told to have come along."""

TRUNCATE = b'{"command":"truncate"}'


@dataclass
class _Gathered:
    """What the next batch will hold. The messages from `whole` on are of a transaction that has not ended."""

    messages: list[Message] = field(default_factory=list)
    schemas: dict[str, Schema] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set)
    positions: dict[str, Position] = field(default_factory=dict)
    whole: int = 0
    size: int = 0
    ends: bool = False
    """Whether a transaction ends here of which the log has a part."""

    @property
    def full(self) -> bool:
        return self.size >= MOST_BYTES or len(self.messages) >= MOST_MESSAGES

    def add(self, messages: Sequence[Message]) -> None:
        self.messages += messages
        self.size += sum(len(message.data) for message in messages)


class Follower:
    """The followed namespaces of one source. `found` is told of tables that have to be copied; close it."""

    def __init__(
        self,
        server: Server,
        control: Session,
        identity: Identity,
        accept: Callable[[str], bool],
        found: Callable[[str], None],
    ) -> None:
        self.followed: dict[str, Followed] = {}
        self.place: Place | None = None
        self.behind = 0.0
        """Seconds between the last event and now; 0 when there is none left."""
        self._server, self._control, self._identity = server, control, identity
        self._accept, self._found = accept, found
        self._charsets = Charsets(control)
        self._folded = control.variable("lower_case_table_names") not in ("0", None)
        self._stream: Stream | None = None
        self._gathered = _Gathered()
        self._open: Transaction | None = None
        self._ts = 0
        self._seen: Counter[str] = Counter()
        self._looked: list[Followed] = []
        self._told = time.monotonic()

    def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def add(self, namespace: Followed) -> None:
        """Follow one more. If the stream is past it, the stream goes back, and the others wait for it."""
        namespace.order = namespace.order if namespace.stretches else None
        if self.place is not None and (namespace.ahead is None or not namespace.ahead.covers(self.place)):
            self._rewind()
        self.followed[namespace.ns] = namespace

    @property
    def inside(self) -> bool:
        """Whether the log has a part of a transaction and not its end, be it from an earlier run."""
        return any(one.part is not None for one in self.followed.values())

    def _rewind(self) -> None:
        """What was read of an open transaction is read again; `part` keeps what the log has of it."""
        self.close()
        for one in self.followed.values():
            one.ahead = one.ahead or self.place
        self.place, self._open, self._gathered = None, None, _Gathered()

    def poll(self, patience: float) -> Iterator[Batch]:
        """What has come; waits so many seconds for the first of it."""
        if self._stream is None:
            self._start()
        assert self._stream is not None
        item = self._stream.next(patience)
        turn = time.monotonic() + TURN
        while item is not None:
            if isinstance(item, Changes):
                yield from self._rows(item)
            elif isinstance(item, Begins):
                self._open, self._ts, self._seen = item.transaction, item.micros, Counter()
            elif isinstance(item, Ends):
                self._end(item)
                if self._gathered.full or self._gathered.ends or self._stream.idle:
                    yield from self._flush()
            elif isinstance(item, Says):
                self._says(item)
            elif isinstance(item, Prepares):
                self._refuse_prepared()
            # A statement may have a table copied anew: what it did comes first, with the end of its transaction.
            goes_on = isinstance(item, Says) or time.monotonic() < turn
            item = self._stream.next(0) if goes_on else None
        yield from self._flush()
        yield from self._tell()

    def _start(self) -> None:
        places = {one.ns: one.ahead for one in self.followed.values() if one.ahead is not None}
        self.place = meet(places)
        self._stream = Stream(self._server, self.place, self._identity, self._charsets)

    def _end(self, item: Ends) -> None:
        assert self.place is not None
        assert self._stream is not None
        if not item.committed:
            self._roll_back(item.transaction)
        self.place = self.place.past(item.transaction, item.end)
        if self.place.gtids is None:
            self.place = replace(self.place, begun=self._stream.begun)
        self._open = None
        self._gathered.whole = len(self._gathered.messages)
        for one in self.followed.values():
            if one.part is not None and one.part[0] == item.transaction.name:
                one.part = None
                self._gathered.ends = True
                self._gathered.touched.add(one.ns)
            if one.ahead is not None or one.stretches:
                one.passed(self.place)
        looked, self._looked = self._looked, []
        for one in looked:
            one.looked(self._look_up(one))
        self.behind = max(0.0, time.time() - self._stream.seconds)

    def _roll_back(self, transaction: Transaction) -> None:
        if any(one.part is not None and one.part[0] == transaction.name for one in self.followed.values()):
            raise UsageError(
                f"the transaction {transaction.name} was rolled back after parts of it were read"
            )
        del self._gathered.messages[self._gathered.whole :]

    def _rows(self, changes: Changes) -> Iterator[Batch]:
        one = self._namespace(changes.table.ns)
        if one is None or self._open is None or one.has(self._open):
            return
        shape = one.shape(changes.table, self._charsets)
        if shape is None:
            one.looked(self._look_up(one))
            shape = one.shape(changes.table, self._charsets)
        if shape is None:
            raise UsageError(
                f"namespace '{one.ns}' was changed more than once, and the binlog does not tell which columns its rows "
                "had in between",
                hint=("" if one.full else "SET GLOBAL binlog_row_metadata = FULL; then ")
                + f"copy it anew with `penstock backfill {one.ns}`",
            )
        schema = shape.structure.schema
        if one.told != schema:
            if one.ns in self._gathered.touched:
                yield from self._flush(more=len(self._gathered.messages) > self._gathered.whole)
            one.told = self._gathered.schemas[one.ns] = schema
        self._take(one, one.messages(changes, shape, self._open, self._ts, self._control))
        if self._gathered.full:
            yield from self._flush(more=True)

    def _take(self, one: Followed, messages: Sequence[Message]) -> None:
        """Of a transaction that the log has in part, what it does not have."""
        assert self._open is not None
        before = self._seen[one.ns]
        self._seen[one.ns] += len(messages)
        if one.part is not None and one.part[0] == self._open.name:
            messages = messages[max(0, one.part[1] - before) :]
        if messages:
            self._gathered.touched.add(one.ns)
            self._gathered.add(messages)

    def _flush(self, *, more: bool = False) -> Iterator[Batch]:
        """The batch so far. Without `more`, an open transaction stays for the next one."""
        gathered, place = self._gathered, self.place
        assert place is not None
        if more:
            self._note_parts()
        rest = [] if more else gathered.messages[gathered.whole :]
        messages = gathered.messages if more else gathered.messages[: gathered.whole]
        if not messages and not gathered.positions and not gathered.ends:
            return
        left = {message.ns for message in rest}
        positions = {ns: self.followed[ns].position(place) for ns in gathered.touched if ns in self.followed}
        if rest:
            told = {message.ns for message in messages}
            positions = {ns: position for ns, position in positions.items() if ns in told}
        self._gathered = _Gathered(rest, {}, left, {}, 0, sum(len(message.data) for message in rest))
        positions |= gathered.positions
        yield Batch(messages, positions, schemas=gathered.schemas, more=more or self.inside)

    def _note_parts(self) -> None:
        """Of the open transaction, the log will have so many messages of each namespace."""
        assert self._open is not None
        for ns, seen in self._seen.items():
            one = self.followed.get(ns)
            if one is not None:
                had = one.part[1] if one.part is not None and one.part[0] == self._open.name else 0
                one.part = (self._open.name, max(seen, had))

    def _tell(self) -> Iterator[Batch]:
        """Have the log know how far namespaces without changes are, so that binlogs may go that nobody needs."""
        now = time.monotonic()
        if self._open is not None or self.inside or self.place is None or now - self._told < TELL_EVERY:
            return
        self._told = now
        self.behind = 0.0 if self._stream is not None and self._stream.idle else self.behind
        yield Batch(positions={ns: one.position(self.place) for ns, one in self.followed.items()})

    def _namespace(self, ns: str) -> Followed | None:
        """The followed namespace; one that is wanted and not known yet is to be copied."""
        one = self.followed.get(self._spelled(ns))
        if one is None and self._accept(ns):
            self._found(ns)
        return one

    def _spelled(self, ns: str) -> str:
        if not self._folded or ns in self.followed:
            return ns
        return next((known for known in self.followed if known.lower() == ns.lower()), ns)

    def _says(self, item: Says) -> None:
        assert self._open is not None
        statement = item.query.statement
        if (
            statement.upper().startswith("ROLLBACK TO")
            and len(self._gathered.messages) > self._gathered.whole
        ):
            raise UsageError(
                f"the transaction {self._open.name} takes back a part of itself, which cannot be followed"
            )
        for effect in effects(item.query):
            if effect.does in (Does.ROWS, Does.UNCLEAR):
                self._refuse_statement(effect, statement, item.query.database)
            elif effect.table:
                self._apply(effect, effect.ns)
            else:
                prefix = f"{effect.database}.".lower()
                for ns in [ns for ns in self.followed if ns.lower().startswith(prefix)]:
                    self._apply(effect, ns)

    def _apply(self, effect: Effect, ns: str) -> None:
        one = (
            self._namespace(ns)
            if effect.does in (Does.MADE, Does.REPLACED)
            else self.followed.get(self._spelled(ns))
        )
        if one is None or self._open is None or one.has(self._open):
            return
        if effect.does in (Does.CHANGED, Does.MADE):
            one.changed()
            if one not in self._looked and (self._control.maria or not one.full):
                self._looked.append(one)
        elif effect.does in (Does.EMPTIED, Does.GONE) and not one.has_copied(self._open):
            self._take(one, [Message(one.ns, TRUNCATE, Op.COMMAND, self._ts, Mode.SYNC)])
        else:
            # Its rows are others now, and no event tells which: it is copied anew.
            self._take(one, [Message(one.ns, TRUNCATE, Op.COMMAND, self._ts, Mode.COPY)])
            del self.followed[one.ns]
            self._gathered.positions[one.ns] = {"copy": []}
            self._found(one.ns)

    def _refuse_statement(self, effect: Effect, statement: str, database: str) -> None:
        """Only if it can be about a table that is followed."""
        text = statement.lower()
        words = set(re.findall(r"[\w$]+", text))

        def mentions(name: str) -> bool:
            return name in words if re.fullmatch(r"[\w$]+", name) else name.replace("`", "``") in text

        for ns in self.followed:
            of, _, table = ns.lower().partition(".")
            if mentions(table) and (mentions(of) or of == database.lower()):
                shown = statement[:80]
                if effect.does is Does.UNCLEAR:
                    raise UsageError(
                        f"a statement about '{ns}' that cannot be followed: {shown}",
                        hint=f"copy it anew with `penstock backfill {ns}`",
                    )
                raise UsageError(
                    f"rows of '{ns}' were changed by a statement that is logged as text: {shown}",
                    hint=f"SET GLOBAL binlog_format = ROW; then `penstock backfill {ns}`",
                )

    def _refuse_prepared(self) -> None:
        if self._seen and self._open is not None:
            raise UsageError(
                f"the transaction {self._open.name} is prepared by XA, which cannot be followed",
                hint="leave the tables that XA transactions write to out with the source's namespace pattern",
            )

    def _look_up(self, one: Followed) -> Structure | None:
        """The columns that a table has at the stream's place, if nothing changes them between there and now."""
        assert self.place is not None
        database, _, name = one.ns.partition(".")
        found = tables_of(self._control, database, name)
        for table in found:
            check_table(table, tail=True)
        until = current_place(self._control)
        scout = identity_of(f"{self._identity.uuid} scout", None)
        for query in scan(self._server, self.place, until, scout, self._charsets):
            for effect in effects(query):
                same = effect.ns.lower() == one.ns.lower() or (
                    not effect.table and effect.database == database
                )
                if same and effect.does is not Does.EMPTIED:
                    return None
        return found[0].structure if found else None
