"""The writing half of `rabbitmq`: publishes persistent messages, and waits for the confirm of each.

At least once: a batch that was interrupted is published again from its beginning, and each message has the same
`message_id` then (log, generation, offset, row), by which a consumer can tell. A message that reaches no queue is
refused, where the settings say that it must; those before it in the bulk stay, and come again. A server that is short
of memory or disk blocks its publishers: that, and a queue that rejects what it has no room for, is `AwayError`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
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
from penstock.base.errors import AwayError, PenstockError, RefusedError

if TYPE_CHECKING:
    import pyarrow as pa
    from pika import BasicProperties, BlockingConnection
    from pika.adapters.blocking_connection import BlockingChannel

LONGEST_KEY = 255
"""Bytes of a routing key."""
SETTLING = 5.0
"""Seconds after connecting in which a queue that is not there may still come."""


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
    """Publishes what was staged, one message after the other."""

    def __init__(self, settings: RabbitMq) -> None:
        self._settings = settings
        self._connection: BlockingConnection | None = None
        self._channel: BlockingChannel | None = None
        self._settled = 0.0

    def open(self, start: SinkPosition) -> None:
        self.close()
        with asking(self._settings, "cannot connect"):
            self._connection = connected(self._settings)
            self._channel = self._connection.channel()
            self._channel.confirm_delivery()
        self._settled = time.monotonic() + SETTLING

    def publish(self, parts: Sequence[Staged], position: SinkPosition) -> None:
        at, number = -1, 0
        try:
            with asking(self._settings, "cannot publish"):
                for row in (row for batch in read_parts(parts) for row in rows_of(batch)):
                    number = number + 1 if row.offset == at else 0
                    at = row.offset
                    self._send(row, f"{position.log}/{position.generation}/{row.offset}/{number}")
                if self._connection is not None:
                    self._connection.process_data_events(0)
        except PenstockError:
            self.close()
            raise

    def close(self) -> None:
        if self._connection is not None:
            closed(self._connection)
        self._connection = self._channel = None

    def _send(self, row: Row, id: str) -> None:
        pika, channel = driver(), self._channel
        if channel is None:
            raise PenstockError(f"the sink at {self._settings.place} is not open")
        exchange = self._settings.exchange.replace("{ns}", row.ns)
        key = routing_key(self._settings, row)
        properties = pika.BasicProperties(
            content_type="application/json", delivery_mode=2, message_id=id, headers=self._headers(row),
            timestamp=row.ts // 1_000_000,
        )  # fmt: skip
        try:
            self._routed(exchange, key, row.data or b"{}", properties)
        except pika.exceptions.UnroutableError:
            raise RefusedError(
                f"the message at offset {row.offset} reaches no queue: exchange '{exchange}', routing key '{key}'",
                hint="bind a queue, or set mandatory=False to have such messages dropped by the server",
            ) from None
        except pika.exceptions.NackError:
            raise AwayError(
                f"the server at {self._settings.place} did not take a message for exchange '{exchange}'"
            ) from None

    def _routed(self, exchange: str, key: str, body: bytes, properties: BasicProperties) -> None:
        """Publish. A server that has just started may not have all of its queues yet: they are waited for."""
        pika, channel, connection = driver(), self._channel, self._connection
        assert channel is not None
        assert connection is not None
        while True:
            try:
                channel.basic_publish(exchange, key, body, properties, self._settings.mandatory)
            except pika.exceptions.UnroutableError:
                if time.monotonic() > self._settled:
                    raise
                connection.sleep(0.25)
            else:
                return

    def _headers(self, row: Row) -> dict[str, object] | None:
        if not self._settings.envelope:
            return None
        headers: dict[str, object] = {"op": row.op, "ns": row.ns, "offset": row.offset, "ts": row.ts}
        headers |= {} if row.key is None else {"key": row.key.decode()}
        return headers | ({} if row.old_key is None else {"old_key": row.old_key.decode()})
