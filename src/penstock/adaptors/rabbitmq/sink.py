"""The writing half of `rabbitmq`: publishes persistent messages, many at a time, and waits for the confirm of each.

At least once: a batch that was interrupted is published again from its beginning, and each message has the same
`message_id` then (log, generation, offset, row), by which a consumer can tell. A message that reaches no queue is
refused, where the settings say that it must; those around it in the bulk stay, and come again. A server that is short
of memory or disk blocks its publishers: that, and a queue that rejects what it has no room for, is `AwayError`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

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
from penstock.adaptors.parts import PartStager, Row, read_parts, rows_of
from penstock.adaptors.rabbitmq import RabbitMq
from penstock.adaptors.rabbitmq.client import asking, closed, connected, driver
from penstock.adaptors.rabbitmq.publishing import NackedError, Outgoing, Publishing, UnroutedError
from penstock.base.errors import AwayError, PenstockError, RefusedError

if TYPE_CHECKING:
    import pyarrow as pa

LONGEST_KEY = 255
"""Bytes of a routing key."""
SETTLING = 5.0
"""Seconds after connecting in which a queue that is not there may still come."""
LOOK_AGAIN = 0.25
BULK_MESSAGES, BULK_BYTES = 500, 4 << 20
"""So much is on its way at a time."""


class RabbitMqSink(Sink):
    """Exchanges of one virtual host."""

    order = Order.TOTAL
    guarantee = Guarantee.AT_LEAST_ONCE

    def __init__(self, settings: RabbitMq) -> None:
        self._settings = settings

    def inspect(self, namespaces: Sequence[str] | None = None) -> Sequence[Finding]:
        with asking(self._settings, "cannot connect"):
            closed(connected(self._settings))
        return ()

    def stager(self) -> Stager:
        return PartStager(Check(self._settings))

    def publisher(self) -> Publisher:
        return RabbitMqPublisher(self._settings)

    def staging(self, scratch: Path) -> Path:
        return scratch


class Check:
    """Tells which messages have no routing key."""

    def __init__(self, settings: RabbitMq) -> None:
        self._settings = settings

    def __call__(self, batch: pa.RecordBatch) -> Sequence[Refusal]:
        refused = dict[int, Refusal]()
        for row, origin in zip(rows_of(batch), batch.column("origin").to_pylist(), strict=True):
            try:
                routing_key(self._settings, row)
            except ValueError as error:
                refused.setdefault(row.offset, Refusal(row.offset, origin, str(error), ""))
        return list(refused.values())


def routing_key(settings: RabbitMq, row: Row) -> str:
    """Where a message goes. Raises ValueError if it does not say."""
    found = settings.routing_key.replace("{ns}", row.ns)
    if settings.key_field and row.op != "command":
        fields = msgspec.json.decode(row.data or b"{}", type=dict[str, msgspec.Raw])
        if settings.key_field not in fields:
            raise ValueError(f"there is no field '{settings.key_field}', which is to hold the routing key")
        try:
            found = msgspec.json.decode(fields[settings.key_field], type=str)
        except msgspec.ValidationError:
            raise ValueError(f"the field '{settings.key_field}', the routing key, is no text") from None
    if len(found.encode()) > LONGEST_KEY:
        raise ValueError(f"the routing key has more than {LONGEST_KEY} bytes")
    return found


class RabbitMqPublisher(Publisher):
    """Publishes what was staged, in its order, many messages at a time."""

    def __init__(self, settings: RabbitMq) -> None:
        self._settings = settings
        self._publishing: Publishing | None = None
        self._settled = 0.0
        self._routed: set[tuple[str, str]] = set()
        """Exchanges and routing keys that have led somewhere since the connection was made."""

    def open(self, start: SinkPosition) -> None:
        self.close()
        with asking(self._settings, "cannot connect"):
            self._publishing = Publishing(self._settings)
        self._settled = time.monotonic() + SETTLING

    def publish(self, parts: Sequence[Staged], position: SinkPosition) -> None:
        try:
            with asking(self._settings, "cannot publish"):
                if self._publishing is None:
                    raise PenstockError(f"the sink at {self._settings.place} is not open")
                for bulk in self._bulks(self._outgoing(parts, position)):
                    self._send(bulk)
                self._publishing.check()
        except PenstockError:
            self.close()
            raise

    def close(self) -> None:
        if self._publishing is not None:
            self._publishing.close()
        self._publishing = None
        self._routed.clear()

    def _outgoing(self, parts: Sequence[Staged], position: SinkPosition) -> Iterator[Outgoing]:
        pika = driver()
        at, number = -1, 0
        for row in (row for batch in read_parts(parts) for row in rows_of(batch)):
            number = number + 1 if row.offset == at else 0
            at = row.offset
            properties = pika.BasicProperties(
                content_type="application/json", delivery_mode=2, headers=self._headers(row),
                message_id=f"{position.log}/{position.generation}/{row.offset}/{number}",
                timestamp=row.ts // 1_000_000,
            )  # fmt: skip
            exchange = self._settings.exchange.replace("{ns}", row.ns)
            yield Outgoing(
                exchange, routing_key(self._settings, row), row.data or b"{}", properties, row.offset
            )

    def _bulks(self, messages: Iterable[Outgoing]) -> Iterator[list[Outgoing]]:
        """Those that go together; the first one on a way that nothing has taken yet goes by itself."""
        bulk: list[Outgoing] = []
        size = 0
        for one in messages:
            if (one.exchange, one.key) not in self._routed:
                if bulk:
                    yield bulk
                yield [one]
                self._routed.add((one.exchange, one.key))
                bulk, size = [], 0
                continue
            bulk.append(one)
            size += len(one.body)
            if len(bulk) >= BULK_MESSAGES or size >= BULK_BYTES:
                yield bulk
                bulk, size = [], 0
        if bulk:
            yield bulk

    def _send(self, bulk: Sequence[Outgoing]) -> None:
        try:
            self._patiently(bulk)
        except UnroutedError as error:
            one = error.message
            raise RefusedError(
                f"the message at offset {one.offset} reaches no queue: exchange '{one.exchange}', "
                f"routing key '{one.key}'",
                hint="bind a queue, or set mandatory=False to have such messages dropped by the server",
            ) from None
        except NackedError as error:
            raise AwayError(
                f"the server at {self._settings.place} did not take a message for exchange "
                f"'{error.message.exchange}'"
            ) from None

    def _patiently(self, bulk: Sequence[Outgoing]) -> None:
        """Publish. A server that has just started may not have all of its queues yet: they are waited for."""
        assert self._publishing is not None
        while True:
            try:
                self._publishing.publish(bulk)
            except UnroutedError:
                if len(bulk) > 1 or time.monotonic() > self._settled:
                    raise
                time.sleep(LOOK_AGAIN)
            else:
                return

    def _headers(self, row: Row) -> dict[str, object] | None:
        if not self._settings.envelope:
            return None
        headers: dict[str, object] = {"op": row.op, "ns": row.ns, "offset": row.offset, "ts": row.ts}
        headers |= {} if row.key is None else {"key": row.key.decode()}
        return headers | ({} if row.old_key is None else {"old_key": row.old_key.decode()})
