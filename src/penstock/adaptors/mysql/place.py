"""A place in the binlog of a server: which transactions are before it.

Three ways to say it, the first one that the server has:

    MySQL's GTIDs       a set: for each origin the numbers of its transactions, `UUID:1-7:9,UUID:1-3`
    MariaDB's GTIDs     for each domain the last transaction, `0-1-100,4-2-7` (domain, server, number)
    file and position   `bin.000003`, 4711; and when the file was begun, since a server that was reset uses names again

The first two hold on every server of a replication group; file and position hold on the one that wrote the file. A
place is asked one thing above all: is this transaction before it? Two places have a meet: what is before both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock.base.errors import UsageError
from penstock.log.message import Position

Spans = tuple[tuple[int, int], ...]
"""Numbers of transactions: first and last of each run, ascending, never touching."""

_MARIA = re.compile(r"(\d+)-(\d+)-(\d+)")
_ORIGIN = re.compile(r"[0-9a-fA-F-]{36}")


@dataclass(frozen=True, slots=True)
class MySqlGtid:
    origin: str
    """The UUID of the server that ran it first."""
    number: int

    def __str__(self) -> str:
        return f"{self.origin}:{self.number}"


@dataclass(frozen=True, slots=True)
class MariaGtid:
    domain: int
    server: int
    number: int

    def __str__(self) -> str:
        return f"{self.domain}-{self.server}-{self.number}"


Gtid = MySqlGtid | MariaGtid


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transaction of the binlog: its GTID if the server gives any, and the place of its first event."""

    gtid: Gtid | None
    file: str
    begin: int

    @property
    def name(self) -> str:
        return str(self.gtid) if self.gtid is not None else f"{self.file}:{self.begin}"


@dataclass(frozen=True, slots=True)
class MySqlGtids:
    """Sets of transactions by their origin."""

    spans: Mapping[str, Spans]

    def has(self, gtid: Gtid) -> bool:
        return isinstance(gtid, MySqlGtid) and any(
            first <= gtid.number <= last for first, last in self.spans.get(gtid.origin, ())
        )

    def past(self, gtid: Gtid) -> MySqlGtids:
        if not isinstance(gtid, MySqlGtid):
            return self
        held = self.spans.get(gtid.origin, ())
        return MySqlGtids({**self.spans, gtid.origin: _joined([*held, (gtid.number, gtid.number)])})

    def meet(self, other: Gtids) -> MySqlGtids:
        if not isinstance(other, MySqlGtids):
            raise _mixed()
        met = {origin: _common(held, other.spans.get(origin, ())) for origin, held in self.spans.items()}
        return MySqlGtids({origin: spans for origin, spans in met.items() if spans})

    def __str__(self) -> str:
        return ",".join(
            f"{origin}:" + ":".join(f"{a}-{b}" if b > a else f"{a}" for a, b in spans)
            for origin, spans in sorted(self.spans.items())
        )


@dataclass(frozen=True, slots=True)
class MariaGtids:
    """The last transaction of each domain."""

    last: Mapping[int, MariaGtid]

    def has(self, gtid: Gtid) -> bool:
        if not isinstance(gtid, MariaGtid):
            return False
        held = self.last.get(gtid.domain)
        return held is not None and gtid.number <= held.number

    def past(self, gtid: Gtid) -> MariaGtids:
        return MariaGtids({**self.last, gtid.domain: gtid}) if isinstance(gtid, MariaGtid) else self

    def meet(self, other: Gtids) -> MariaGtids:
        if not isinstance(other, MariaGtids):
            raise _mixed()
        both = self.last.keys() & other.last.keys()
        return MariaGtids({d: min(self.last[d], other.last[d], key=lambda one: one.number) for d in both})

    def __str__(self) -> str:
        return ",".join(str(gtid) for _, gtid in sorted(self.last.items()))


Gtids = MySqlGtids | MariaGtids


@dataclass(frozen=True, slots=True)
class Place:
    """Behind some transactions of a server, and before the others."""

    gtids: Gtids | None
    file: str
    offset: int
    begun: int = 0
    """When the file was begun, in seconds since 1970; 0 if that is not known."""

    def has(self, transaction: Transaction) -> bool:
        if self.gtids is not None and transaction.gtid is not None:
            return self.gtids.has(transaction.gtid)
        return _order(transaction.file, transaction.begin) < _order(self.file, self.offset)

    def past(self, transaction: Transaction, end: int) -> Place:
        """Behind this transaction as well, which ends at byte `end` of its file."""
        gtids = self.gtids
        if gtids is not None and transaction.gtid is not None:
            gtids = gtids.past(transaction.gtid)
        begun = self.begun if transaction.file == self.file else 0
        return Place(gtids, transaction.file, end, begun)

    def meet(self, other: Place) -> Place:
        """Behind what both are behind."""
        first = min(self, other, key=lambda place: _order(place.file, place.offset))
        if self.gtids is None or other.gtids is None:
            return first if self.gtids is other.gtids is None else replace(first, gtids=None)
        return replace(first, gtids=self.gtids.meet(other.gtids))

    def covers(self, other: Place) -> bool:
        """Whether all that is before `other` is before this."""
        if self.gtids is not None and other.gtids is not None:
            return str(self.gtids.meet(other.gtids)) == str(other.gtids)
        return _order(self.file, self.offset) >= _order(other.file, other.offset)

    def tell(self) -> Position:
        """As a part of a position in the log."""
        told: Position = {"file": self.file, "offset": self.offset}
        if self.begun:
            told["begun"] = self.begun
        if self.gtids is not None:
            told["gtids"] = str(self.gtids)
            told["of"] = "mariadb" if isinstance(self.gtids, MariaGtids) else "mysql"
        return told

    def __str__(self) -> str:
        return f"GTID {self.gtids}" if self.gtids is not None else f"{self.file}:{self.offset}"


def heard(told: Mapping[str, object]) -> Place:
    """What `Place.tell` has told."""
    gtids = told.get("gtids")
    known = None if gtids is None else parse(str(gtids), maria=told.get("of") == "mariadb")
    return Place(known, str(told["file"]), int(str(told["offset"])), int(str(told.get("begun", 0))))


def parse(text: str, *, maria: bool) -> Gtids:
    """GTIDs as a server writes them."""
    parts = [part.strip() for part in text.replace("\n", "").split(",") if part.strip()]
    if maria:
        found = [MariaGtid(int(m[1]), int(m[2]), int(m[3])) for m in map(_MARIA.fullmatch, parts) if m]
        if len(found) != len(parts):
            raise UsageError(f"not a GTID position of MariaDB: {text!r}")
        return MariaGtids({gtid.domain: gtid for gtid in found})
    spans: dict[str, Spans] = {}
    for part in parts:
        uuid, *rest = part.split(":")
        if not _ORIGIN.fullmatch(uuid):
            raise UsageError(f"not a GTID set of MySQL: {text!r}")
        origin = uuid.lower()
        for word in rest:
            first, _, last = word.partition("-")
            if not first.isdigit():
                raise UsageError(
                    f"the server has GTIDs with a tag, '{word}', which cannot be followed",
                    hint="run transactions with gtid_next = 'AUTOMATIC', without a tag",
                )
            span = (int(first), int(last or first))
            spans[origin] = _joined([*spans.get(origin, ()), span])
    return MySqlGtids(spans)


def _joined(spans: list[tuple[int, int]]) -> Spans:
    found: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return tuple(found)


def _common(one: Spans, other: Spans) -> Spans:
    both = [(max(a, c), min(b, d)) for a, b in one for c, d in other]
    return tuple(sorted((first, last) for first, last in both if first <= last))


def _order(file: str, offset: int) -> tuple[int, int]:
    """Binlogs are numbered, with more digits when six are used up."""
    number = file.rpartition(".")[2]
    return (int(number) if number.isdigit() else 0, offset)


def _mixed() -> UsageError:
    return UsageError(
        "the position in the log is of MySQL and the server is MariaDB, or the other way round",
        hint="copy the namespaces anew with `penstock backfill NS`",
    )
