"""The writing half of `immortal`: each message is a call of one method, exactly once.

Messages go in pieces of a few megabytes. Each piece is one input of the immortal's log: the calls, and the position
behind them, which the instance keeps in its own state. A piece that is sent again, because its answer was lost, is
recognised by its offsets. An exception that a handler raises is the end of that call, as for any other: the message
has been delivered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

import msgspec

from penstock.adaptors.base import Finding, Guarantee, Order, Publisher, Sink, SinkPosition, Staged, Stager
from penstock.adaptors.continuing import continued
from penstock.adaptors.immortal import Immortal
from penstock.adaptors.parts import PartStager, Row, read_parts, rows_of
from penstock.base.errors import PenstockError
from penstock.immortal.binding.outside import Outside
from penstock.immortal.binding.services import Delivered
from penstock.immortal.binding.snapshot import SinkState

CHUNK = 4 << 20
MOST = 10_000


class ImmortalSink(Sink):
    """One method of one instance."""

    order = Order.TOTAL
    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(self, settings: Immortal) -> None:
        self._settings = settings

    def inspect(self, namespaces: Sequence[str] | None = None) -> Sequence[Finding]:
        outside = self._settings.connect()
        try:
            outside.ask("GET", f"/methods/{quote(self._settings.method)}")
        finally:
            outside.close()
        return ()

    def stager(self) -> Stager:
        return PartStager()

    def publisher(self) -> Publisher:
        return ImmortalPublisher(self._settings, self.name)

    def staging(self, scratch: Path) -> Path:
        return scratch


class ImmortalPublisher(Publisher):
    """Sends what was staged."""

    def __init__(self, settings: Immortal, name: str) -> None:
        self._settings = settings
        self._name = name
        self._outside: Outside | None = None

    def open(self, start: SinkPosition) -> SinkPosition:
        self.close()
        self._outside = outside = self._settings.connect()
        outside.ask("GET", f"/methods/{quote(self._settings.method)}")
        kept = msgspec.json.decode(outside.ask("GET", self._path()), type=SinkState | None)
        if kept is None:
            return start
        held = SinkPosition(kept.log, kept.generation, kept.watermark)
        return continued(held, start, f"the immortal at {outside.address}", "begin the instance anew")

    def publish(self, parts: Sequence[Staged], position: SinkPosition) -> None:
        if self._outside is None:
            raise PenstockError(f"the sink of {self._settings.uri} is not open")
        for messages, watermark in _pieces(parts, position.watermark):
            after = SinkState(position.log, position.generation, watermark)
            body = msgspec.msgpack.encode((after, self._settings.method, messages))
            self._outside.ask("POST", self._path(), body)

    def close(self) -> None:
        if self._outside is not None:
            self._outside.close()
            self._outside = None

    def _path(self) -> str:
        return f"/sinks/{quote(self._name, safe='')}"


def _pieces(parts: Sequence[Staged], end: int) -> Iterator[tuple[list[bytes], int]]:
    """Messages of a few megabytes, and the watermark behind each piece; never cut inside of a message."""
    messages: list[bytes] = []
    size, last = 0, -1
    for row in (row for batch in read_parts(parts) for row in rows_of(batch)):
        if (size >= CHUNK or len(messages) >= MOST) and row.offset != last:
            yield messages, row.offset
            messages, size = [], 0
        messages.append(msgspec.msgpack.encode(_delivered(row)))
        size += len(messages[-1])
        last = row.offset
    yield messages, end


def _delivered(row: Row) -> Delivered:
    def text(value: bytes | None) -> str | None:
        return None if value is None else value.decode()

    return Delivered(
        row.offset, row.ts, row.op, row.ns, text(row.key), text(row.old_key), text(row.data) or "{}"
    )
