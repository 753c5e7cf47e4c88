"""The binlog of a server as it is written: transactions, and the rows and statements in them.

A thread of its own takes what the server sends, up to a bound, so that whoever reads here can wait a little, look
for something else to do, and come back. Whatever the server says instead of events ends the stream: that it is away,
or, as a `UsageError`, that it no longer has what was asked for.
"""

from __future__ import annotations

import struct
import threading
import uuid
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.adaptors.mysql.binlog import (
    ROWS,
    Event,
    EventReader,
    Query,
    RowsHead,
    Type,
    read_gtid,
    read_payload,
    read_query,
    read_rotate,
    read_rows,
)
from penstock.adaptors.mysql.charsets import Charsets
from penstock.adaptors.mysql.connection import EXTRA, Server, Session, code_of
from penstock.adaptors.mysql.place import MariaGtids, MySqlGtids, Place, Transaction
from penstock.adaptors.mysql.tablemap import TableMap, read_table_map
from penstock.adaptors.needs import need
from penstock.base import secrets
from penstock.base.errors import AwayError, PenstockError, UsageError

READ_AHEAD = 8 * 1024 * 1024
"""Bytes that may have come and not been looked at."""

HEARTBEAT = 5.0
"""Seconds after which a server with nothing to say says so; without any word for six of these it is gone."""

_DUMP, _DUMP_GTID = 0x12, 0x1E
_LOST = (1236, 1945, 1947, 1950, 1951, 1952, 1955, 3684)


@dataclass(frozen=True, slots=True)
class Identity:
    """As whom to follow: a server id that nobody else has, and a UUID that comes with it."""

    server: int
    uuid: str


def identity_of(name: str, server: int | None) -> Identity:
    """Named after pipeline and source, so that it is the same at every start and another for each."""
    chosen = server if server is not None else 0x4000_0000 | zlib.crc32(name.encode()) & 0x3FFF_FFFF
    return Identity(chosen, str(uuid.uuid5(uuid.NAMESPACE_OID, f"penstock {name} {chosen}")))


@dataclass(frozen=True, slots=True)
class Begins:
    """A transaction; what follows belongs to it until it ends."""

    transaction: Transaction
    micros: int


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows of a table: one event, not taken apart yet."""

    table: TableMap
    event: Event
    head: RowsHead


@dataclass(frozen=True, slots=True)
class Says:
    """A statement that was logged as text."""

    query: Query


@dataclass(frozen=True, slots=True)
class Prepares:
    """The transaction is prepared for XA and not decided."""


@dataclass(frozen=True, slots=True)
class Ends:
    transaction: Transaction
    end: int
    committed: bool


Item = Begins | Changes | Says | Prepares | Ends


class Stream:
    """Follows a server from a place on. Close it."""

    def __init__(self, server: Server, place: Place, identity: Identity, charsets: Charsets) -> None:
        self.begun = 0
        """When the file that is read was begun."""
        self.seconds = 0.0
        """When the last event was written."""
        self.offset = place.offset
        self._place = place
        self._charsets = charsets
        self._reader = EventReader()
        self.file = place.file
        self._tables: dict[int, TableMap] = {}
        self._open: Transaction | None = None
        self._explicit = False
        self._waiting: deque[Item] = deque()
        self._payload: Iterator[Event] = iter(())
        self._session = server.connect(read_timeout=6 * HEARTBEAT)
        try:
            _ask(self._session, place, identity)
        except BaseException:
            self._session.close()
            raise
        self._pump = _Pump(self._session)

    def next(self, patience: float) -> Item | None:
        """What comes next; None if nothing does for so many seconds."""
        while not self._waiting:
            inside = next(self._payload, None)
            if inside is not None:
                self._take(inside)
                continue
            data = self._pump.take(patience)
            if data is None:
                return None
            self._take(self._reader.event(data))
        return self._waiting.popleft()

    @property
    def idle(self) -> bool:
        """Whether all that has come was looked at."""
        return not self._waiting and self._pump.empty

    def close(self) -> None:
        self._pump.close()

    def _take(self, event: Event) -> None:
        self.seconds = event.seconds or self.seconds
        self.offset = event.end or self.offset
        kind = event.type
        if kind == Type.TABLE_MAP:
            table = read_table_map(event)
            self._tables[table.id] = table
        elif kind in ROWS:
            self._rows(event)
        elif kind in (Type.QUERY, Type.QUERY_COMPRESSED):
            self._query(event, read_query(event, self._charsets.statement))
        elif kind == Type.XID:
            self._end(event.end)
        elif kind in (Type.GTID, Type.ANONYMOUS_GTID, Type.MARIA_GTID):
            self._begin(event, explicit=kind == Type.MARIA_GTID and not event.body[12] & 1)
        elif kind == Type.ROTATE:
            # Numbers of tables are those of a running server, which begins a new file when it starts.
            rotate = read_rotate(event)
            self.file, self.offset = rotate.file, rotate.offset
            self._tables.clear()
        elif kind == Type.FORMAT:
            self._format(event)
        elif kind == Type.PAYLOAD:
            self._payload = self._unpacked(event)
        elif kind == Type.XA_PREPARE:
            if not event.body[0]:  # one phase is a commit
                self._waiting.append(Prepares())
            self._end(event.end)
        else:
            self._refuse(event)

    def _unpacked(self, event: Event) -> Iterator[Event]:
        """The events of a compressed transaction, which are all where it is."""
        for inside in read_payload(event):
            found = self._reader.event(inside, checked=False)
            yield Event(found.type, found.seconds, found.server, event.end, event.size, 0, found.body)

    def _rows(self, event: Event) -> None:
        head = read_rows(event)
        table = self._tables.get(head.table)
        if table is not None and self._open is None:
            raise UsageError(f"{self.file}, byte {event.end}: rows of {table.ns} outside of a transaction")
        if table is not None:
            self._waiting.append(Changes(table, event, head))
        elif head.table != 0xFFFFFF:  # which marks the end of a statement that changed nothing
            raise UsageError(
                f"{self.file}, byte {event.end}: rows of a table {head.table} that nothing describes"
            )

    def _begin(self, event: Event, *, explicit: bool) -> None:
        begin = event.end - event.size
        self._open = Transaction(read_gtid(event), self.file, begin)
        self._explicit = explicit
        self._waiting.append(Begins(self._open, event.seconds * 1_000_000))

    def _query(self, event: Event, query: Query) -> None:
        word = query.statement.strip().rstrip(";").upper()
        if self._open is None:
            self._begin(event, explicit=False)
        if word in ("BEGIN", "START TRANSACTION") or word.startswith(("XA START", "XA BEGIN")):
            self._explicit = True
        elif word == "COMMIT" or word.startswith(("XA COMMIT", "XA ROLLBACK")):
            self._end(event.end)
        elif word == "ROLLBACK":
            self._end(event.end, committed=False)
        else:
            self._waiting.append(Says(query))
            if not self._explicit:
                self._end(event.end)

    def _end(self, end: int, *, committed: bool = True) -> None:
        transaction, self._open, self._explicit = self._open, None, False
        if transaction is not None:
            self._waiting.append(Ends(transaction, end, committed))

    def _format(self, event: Event) -> None:
        wanted = self._place
        self.begun = event.seconds
        if (
            wanted.gtids is None
            and wanted.begun
            and self.file == wanted.file
            and event.seconds != wanted.begun
        ):
            raise _lost(f"the file {wanted.file} of the binlog is another one than when it was read last")

    def _refuse(self, event: Event) -> None:
        where = f"{self.file}, byte {event.end}"
        if event.type == Type.INCIDENT:
            raise UsageError(
                f"{where}: the server says that changes are missing in its binlog",
                hint="copy the namespaces anew with `penstock backfill NS`",
            )
        if event.type == Type.PARTIAL_UPDATE:
            raise UsageError(
                f"{where}: an update that has only parts of JSON documents",
                hint="SET GLOBAL binlog_row_value_options = ''; then `penstock backfill NS`",
            )
        if event.type == Type.GTID_TAGGED:
            raise UsageError(
                f"{where}: a transaction with a tag in its GTID, which cannot be followed",
                hint="run transactions with gtid_next = 'AUTOMATIC', without a tag",
            )
        if event.type == Type.START_ENCRYPTION or not event.known:
            raise UsageError(f"{where}: an event of the type {event.type}, which this version does not read")


class _Pump:
    """Takes packets off the connection, in a thread, while there is room."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._changed = threading.Condition()
        self._packets: deque[bytes] = deque()
        self._bytes = 0
        self._error: Exception | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="mysql binlog", daemon=True)
        self._thread.start()

    @property
    def empty(self) -> bool:
        return not self._packets and self._error is None

    def take(self, patience: float) -> bytes | None:
        with self._changed:
            if not self._packets and self._error is None:
                self._changed.wait(patience)
            if self._packets:
                data = self._packets.popleft()
                self._bytes -= len(data)
                self._changed.notify_all()
                return data
            if self._error is not None:
                raise self._error
            return None

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        _shut(self._session)
        self._thread.join(10)
        self._session.close()

    def _run(self) -> None:
        pymysql = need("pymysql", EXTRA)
        error: Exception
        try:
            while self._put(self._packet()):
                pass
            return
        except pymysql.MySQLError as found:
            error = _stream_error(self._session.server, found)
        except (OSError, EOFError, ValueError, AttributeError, struct.error) as found:
            # The driver trips over its own connection when that is closed under it.
            error = AwayError(secrets.mask(f"cannot follow the binlog: {self._session.server}: {found}"))
        except PenstockError as found:
            error = found
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _packet(self) -> bytes:
        data: bytes = self._session.connection._read_packet().get_all_data()  # type: ignore[no-untyped-call]
        if data[:1] != b"\0":
            raise AwayError(f"the server at {self._session.server} has ended the binlog")
        return data[1:]

    def _put(self, data: bytes) -> bool:
        with self._changed:
            while self._bytes >= READ_AHEAD and not self._closed:
                self._changed.wait()
            if self._closed:
                return False
            self._packets.append(data)
            self._bytes += len(data)
            self._changed.notify_all()
            return True


def _shut(session: Session) -> None:
    """Wake a thread that waits for the server."""
    import socket

    connected = session.connection._sock  # type: ignore[attr-defined]
    if connected is not None:
        try:
            connected.shutdown(socket.SHUT_RDWR)
        except OSError:
            return


def _ask(session: Session, place: Place, identity: Identity) -> None:
    """Ask for the binlog behind `place`."""
    beat = int(HEARTBEAT * 1e9)
    session.run(
        f"SET @master_binlog_checksum = @@global.binlog_checksum, @source_binlog_checksum = @@global.binlog_checksum, "
        f"@master_heartbeat_period = {beat}, @source_heartbeat_period = {beat}"
    )
    session.run("SET @slave_uuid = %s, @replica_uuid = %s", [identity.uuid, identity.uuid])
    if session.maria:
        session.run("SET @mariadb_slave_capability = 4")
    command, payload = _DUMP, struct.pack("<IHI", 4, 0, identity.server)
    if isinstance(place.gtids, MariaGtids):
        session.run(
            "SET @slave_connect_state = %s, @slave_gtid_strict_mode = 1, @slave_gtid_ignore_duplicates = 0",
            [str(place.gtids)],
        )
    elif isinstance(place.gtids, MySqlGtids):
        gtids = _encoded(place.gtids)
        command = _DUMP_GTID
        payload = struct.pack("<HIIQI", 4, identity.server, 0, 4, len(gtids)) + gtids
    else:
        payload = struct.pack("<IHI", place.offset, 0, identity.server) + place.file.encode()
    with session.server.telling("cannot follow the binlog"):
        session.connection._execute_command(command, payload)  # type: ignore[attr-defined]


def _encoded(gtids: MySqlGtids) -> bytes:
    """A set for the wire: origins, and of each its runs with the number behind their last."""
    parts = [struct.pack("<Q", len(gtids.spans))]
    for origin, spans in gtids.spans.items():
        parts.append(bytes.fromhex(origin.replace("-", "")) + struct.pack("<Q", len(spans)))
        parts += [struct.pack("<QQ", first, last + 1) for first, last in spans]
    return b"".join(parts)


def _stream_error(server: Server, error: Exception) -> PenstockError:
    code, text = code_of(error), str(error.args[-1]) if error.args else ""
    if code not in _LOST:
        return server.error("cannot follow the binlog", error)
    if "same server_uuid/server_id" in text:
        return UsageError(
            secrets.mask(f"{server}: somebody else follows the binlog under the same server id: {text}"),
            hint="set `server_id` to a number that no replica and no other pipeline uses",
        )
    return _lost(secrets.mask(f"the server {server} no longer has the binlog that comes next: {text}"))


def _lost(what: str) -> UsageError:
    return UsageError(
        what,
        hint="changes may be missing: copy the namespaces anew with `penstock backfill NS`; and keep binlogs longer "
        "(binlog_expire_logs_seconds)",
    )


def scan(
    server: Server, place: Place, until: Place, identity: Identity, charsets: Charsets
) -> Iterator[Query]:
    """The statements that the binlog has between two places."""
    stream = Stream(server, place, identity, charsets)
    try:
        reached = place
        while not reached.covers(until):
            item = stream.next(HEARTBEAT)
            if item is None and stream.idle:
                return  # the server has no more
            if isinstance(item, Says):
                yield item.query
            elif isinstance(item, Ends):
                reached = reached.past(item.transaction, item.end)
    finally:
        stream.close()
