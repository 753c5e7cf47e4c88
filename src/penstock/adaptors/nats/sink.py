"""The writing half of `nats`: one stream, a message for each row, in the order of the log.

A row is published to the subject `PREFIX` + namespace and acknowledged by the stream. Its header `Penstock-Position`
says how far the sink is with it, so rows and position are one: the last message of the stream tells what the target
has. Each is published with the sequence number that the stream must be at (`Nats-Expected-Last-Sequence`), so of two
publishers one is refused before it writes anything. That is exactly once, as long as nobody else writes the stream and
the server keeps what it acknowledged.

Where a batch has no rows, and where limits or readers have removed the last message, a record of the position helps,
the message `penstock.positions.NAME` of the stream `PENSTOCK_POSITIONS`, which also has the sequence number it is for.
If the last message is gone and the record is older, messages behind the record are sent again: the stream then drops
those that it knows by `Nats-Msg-Id` (log, generation, offset, row), within its window for duplicates.

With `shared` others may write the stream: then there is no position, and only `Nats-Msg-Id` against doubles.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

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
from penstock.adaptors.nats import Nats
from penstock.adaptors.nats.client import (
    WRONG_SEQUENCE,
    WRONG_STREAM,
    Client,
    Out,
    Taken,
)
from penstock.adaptors.nats.streams import Kept, Told, about_stream, decoded, make, matches, stored
from penstock.adaptors.parts import PartStager, Row, read_parts, rows_of
from penstock.base.errors import PenstockError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

POSITIONS = "PENSTOCK_POSITIONS"
HEADER = "Penstock-Position"
CHUNK = 1024 * 1024
MOST_MESSAGES = 500
"""What is sent before its acknowledgements are waited for."""

HEADERS = 1024
"""Bytes that are left for headers beside the key."""

_SUBJECT = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*")


class Sent(NamedTuple):
    """A row to publish, and where the sink is with it."""

    subject: str
    row: Row
    number: int
    kept: Kept


class NatsSink(Sink):
    """One stream."""

    order = Order.TOTAL

    def __init__(self, settings: Nats) -> None:
        self._settings = settings
        self.guarantee = Guarantee.AT_LEAST_ONCE if settings.shared else Guarantee.EXACTLY_ONCE
        self._limits: dict[str, int] = {}
        if not settings.stream:
            raise UsageError(
                "adaptor 'nats' as a sink needs the setting 'stream'", hint="name the stream to write"
            )

    def inspect(self, namespaces: Sequence[str] | None = None) -> Sequence[Finding]:
        client = Client(self._settings)
        try:
            if about_stream(client, self._settings.stream) is None and not self._settings.create:
                return [
                    Finding(f"there is no stream '{self._settings.stream}'", "set create=True", fatal=True)
                ]
        finally:
            client.close()
        return ()

    def stager(self) -> Stager:
        return PartStager(Check(self._settings.prefix, self._limits))

    def publisher(self) -> Publisher:
        return NatsPublisher(self._settings, self.name, self._limits)

    def staging(self, scratch: Path) -> Path:
        return scratch


class Check:
    """Tells which messages the stream can never take: too large, or in a namespace that is no subject."""

    def __init__(self, prefix: str, limits: dict[str, int]) -> None:
        self._prefix, self._limits = prefix, limits

    def __call__(self, batch: pa.RecordBatch) -> Sequence[Refusal]:
        largest, refused = self._limits.get("bytes"), dict[int, Refusal]()
        for row, origin in zip(rows_of(batch), batch.column("origin").to_pylist(), strict=True):
            subject = self._prefix + row.ns
            size = len(row.data or b"") + 2 * len(row.key or b"") + 2 * len(subject) + HEADERS
            wrong = None
            if not _SUBJECT.fullmatch(subject):
                wrong = f"'{subject}' cannot be the subject of a message"
            elif largest is not None and size > largest:
                wrong = f"the message has {size} bytes with its headers; the server takes {largest}"
            if wrong is not None:
                refused.setdefault(row.offset, Refusal(row.offset, origin, wrong, ""))
        return list(refused.values())


class NatsPublisher(Publisher):
    """Publishes what was staged, some hundred messages at a time."""

    def __init__(self, settings: Nats, name: str, limits: dict[str, int]) -> None:
        self._settings = settings
        self._record = "penstock.positions." + re.sub(
            r"[^\w-]", lambda found: f"_{ord(found[0]):x}_", name or "sink"
        )
        self._limits = limits
        self._client: Client | None = None
        self._about: Told | None = None
        self._last = 0
        self._kept: Kept | None = None
        self._careful = False

    def open(self, start: SinkPosition) -> SinkPosition | None:
        self.close()
        self._client = client = Client(self._settings)
        try:
            self._about = about = self._stream(client)
            largest = about.config.max_msg_size
            self._limits["bytes"] = min(client.max_payload, largest) if largest > 0 else client.max_payload
            if self._settings.shared:
                return None
            make(client, POSITIONS, {"subjects": ["penstock.positions.*"], "max_msgs_per_subject": 1})
            self._last = about.state.last_seq
            kept = self._found(client, about)
            if kept is None:
                self._kept = Kept(start.log, start.generation, start.watermark)
                self._note(client, start)
                return start
            return self._continued(kept, start)
        except PenstockError:
            self.close()
            raise

    def publish(self, parts: Sequence[Staged], position: SinkPosition) -> None:
        client = self._client
        if client is None:
            raise PenstockError(f"the sink of stream '{self._settings.stream}' is not open")
        try:
            self._check_subjects(parts)
            for chunk in self._chunks(parts, position):
                self._send(client, chunk, position)
            if not self._settings.shared:
                self._note(client, position)
        except PenstockError:
            self.close()  # what came through is found out when it is opened again
            raise

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        self._careful = False

    def _stream(self, client: Client) -> Told:
        name = self._settings.stream
        if self._settings.create:
            make(client, name, {"subjects": [f"{self._settings.prefix.rstrip('.')}.>"]})
        about = about_stream(client, name)
        if about is None:
            raise UsageError(
                f"there is no stream '{name}' at {self._settings.place}", hint="make it, or set create=True"
            )
        return about

    def _found(self, client: Client, about: Told) -> Kept | None:
        """What the target has; None if nobody has written it."""
        record = decoded(stored(client, POSITIONS, {"last_by_subj": self._record}), None)
        if record is not None and record.stream != about.created:
            record = None  # of a stream by the same name that is no more
        if record is not None and record.sequence == self._last:
            return record
        if not self._last:
            return None
        last = stored(client, self._settings.stream, {"seq": self._last})
        if last is None and record is not None:
            self._careful = True
            return record
        header = decoded(last, HEADER) if last is not None else None
        if header is None:
            raise UsageError(
                f"the stream '{self._settings.stream}' holds messages that this sink did not write",
                hint="write to a stream of its own; or set shared=True, which is at least once",
            )
        return header

    def _continued(self, kept: Kept, start: SinkPosition) -> SinkPosition:
        held = SinkPosition(kept.log, kept.generation, kept.watermark)
        goes_on = continued(held, start, f"the stream '{self._settings.stream}'", "delete the stream")
        self._kept = kept if goes_on == held else Kept(start.log, start.generation, start.watermark)
        return goes_on

    def _check_subjects(self, parts: Sequence[Staged]) -> None:
        """All namespaces have a place in the stream, or nothing is sent."""
        subjects = self._about.config.subjects if self._about is not None else []
        for batch in read_parts(parts, ["ns"]):
            for ns in batch.column("ns").unique().to_pylist():
                subject = f"{self._settings.prefix}{ns}"
                if not any(matches(pattern, subject) for pattern in subjects):
                    raise UsageError(
                        f"the stream '{self._settings.stream}' does not take the subject '{subject}', "
                        f"only {', '.join(subjects)}",
                        hint="add it to the subjects of the stream, or see the setting 'prefix'",
                    )

    def _sent(self, parts: Sequence[Staged], position: SinkPosition) -> Iterator[Sent]:
        """The rows that the target does not have, numbered within their message."""
        here = self._kept or Kept(position.log, position.generation, 0)
        held: Sent | None = None
        for row in (row for batch in read_parts(parts) for row in rows_of(batch)):
            number = held.number + 1 if held is not None and held.row.offset == row.offset else 0
            if held is not None:
                yield held if number else self._whole(held, held.row.offset + 1)
            kept = Kept(position.log, position.generation, row.offset, number + 1)
            held = Sent(f"{self._settings.prefix}{row.ns}", row, number, kept)
            if row.offset == here.watermark and number < here.rows:
                held = held._replace(subject="")  # there already
        if held is not None:
            yield self._whole(held, position.watermark)

    def _whole(self, sent: Sent, watermark: int) -> Sent:
        """The last row of a message."""
        return sent._replace(kept=Kept(sent.kept.log, sent.kept.generation, watermark))

    def _chunks(self, parts: Sequence[Staged], position: SinkPosition) -> Iterator[list[Sent]]:
        chunk: list[Sent] = []
        size = 0
        for sent in self._sent(parts, position):
            if not sent.subject:
                continue
            chunk.append(sent)
            size += len(sent.row.data or b"") + HEADERS
            if self._careful or size > CHUNK or len(chunk) >= MOST_MESSAGES:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk

    def _send(self, client: Client, chunk: Sequence[Sent], position: SinkPosition) -> None:
        messages = [
            Out(sent.subject, sent.row.data or b"{}", self._headers(sent, position, self._last + i))
            for i, sent in enumerate(chunk)
        ]
        for taken, out in zip(client.publish(messages), messages, strict=True):
            if taken.error is not None:
                raise self._refused(client, taken, out)
            if not taken.duplicate:
                self._last, self._careful = taken.seq, False
        self._kept = chunk[-1].kept

    def _headers(self, sent: Sent, position: SinkPosition, expected: int) -> Mapping[str, str]:
        row = sent.row
        headers = {
            "Nats-Expected-Stream": self._settings.stream,
            "Nats-Msg-Id": f"{position.log}/{position.generation}/{row.offset}/{sent.number}",
        }
        if not self._settings.shared:
            headers["Nats-Expected-Last-Sequence"] = str(expected)
            headers[HEADER] = msgspec.json.encode(sent.kept).decode()
        if self._settings.envelope:
            headers |= {"Penstock-Op": row.op, "Penstock-Ns": row.ns, "Penstock-Ts": str(row.ts)}
            headers |= {"Penstock-Offset": str(row.offset)}
            headers |= {} if row.key is None else {"Penstock-Key": _line(row.key)}
            headers |= {} if row.old_key is None else {"Penstock-Old-Key": _line(row.old_key)}
        return headers

    def _refused(self, client: Client, taken: Taken, out: Out) -> PenstockError:
        assert taken.error is not None
        stream = self._settings.stream
        if taken.error.err_code == WRONG_SEQUENCE:
            return PenstockError(
                f"another process writes the stream '{stream}' and has fenced this one off: "
                f"{taken.error.description}",
                hint="give each pipeline a stream of its own, or set shared=True, which is at least once",
            )
        if taken.error.err_code in (503, WRONG_STREAM):
            return UsageError(
                f"the stream '{stream}' does not take the subject '{out.subject}': {taken.error.description}",
                hint="add it to the subjects of the stream, or see the setting 'prefix'",
            )
        return client.error(f"the stream '{stream}' refused a message", taken.error)

    def _note(self, client: Client, position: SinkPosition) -> None:
        """Leave the record of a position that holds for the stream as it is now."""
        about = self._about
        record = Kept(
            position.log, position.generation, position.watermark,
            stream=about.created if about is not None else "", sequence=self._last,
        )  # fmt: skip
        headers = {"Nats-Expected-Stream": POSITIONS}
        (taken,) = client.publish([Out(self._record, msgspec.json.encode(record), headers)])
        if taken.error is not None:
            raise client.error("cannot keep the position", taken.error)
        self._kept = Kept(position.log, position.generation, position.watermark)


def _line(text: bytes) -> str:
    """A JSON text in one line: in its strings there are no line ends, and elsewhere they mean nothing."""
    return text.decode().replace("\r", " ").replace("\n", " ")
