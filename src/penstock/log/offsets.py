"""The offset log: the truth about what a sink has (seed 004, "Message Guarantees"; DESIGN 3).

One journal a sink. Each commit is one append: a record for each namespace that changed, in the seed's layout
(key = namespace, data = the message offset, 8 bytes), and a closing control record with the sink's watermark,
generation and counts. Nothing below the watermark is unacknowledged: delivered, dropped by a filter or
function, or dead. An append is all or nothing, so replay applies whole commits only.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import partial
from typing import cast

import msgspec

from penstock.base import faults
from penstock.base.errors import CorruptError
from penstock.journal.client import Client
from penstock.log import record as rec
from penstock.log.commitlog import KIND_LABEL, PIPELINE_LABEL, SINK_LABEL, journal_labels, journal_spec
from penstock.log.message import Mode, Op
from penstock.log.ownership import InDoubtError, Ownership
from penstock.log.record import Record

_VALUE = struct.Struct(">Q")
_SEGMENT_BYTES = 16 << 20


class Commit(msgspec.Struct, frozen=True):
    """What a sink has, and how it came to it, since its first start in this generation."""

    watermark: int = 0
    generation: int = 0
    delivered: int = 0
    dropped: int = 0
    dead: int = 0
    rows: int = 0


class SinkOffsets(msgspec.Struct):
    """The offset log, replayed."""

    commit: Commit = Commit()
    namespaces: dict[str, int] = {}
    updated: int | None = None
    entries: int = 0


def offsets_journal(pipeline: str, sink: str) -> str:
    return f"pipelines/{pipeline}/offsets/{sink}"


def encode_commit(commit: Commit, namespaces: Mapping[str, int], entries: int, now: int) -> bytes:
    """The bytes of one commit; `entries` is how many namespace records the log holds already."""
    parts = [
        rec.encode(Record(entries + i, now, Mode.COPY, Op.INSERT, ns, _VALUE.pack(offset)))
        for i, (ns, offset) in enumerate(sorted(namespaces.items()))
    ]
    closing = Record(-1, now, Mode.COPY, Op.INSERT, "", msgspec.json.encode(commit), control=True)
    return b"".join([*parts, rec.encode(closing)])


def replay(content: bytes, journal: str) -> SinkOffsets:
    """The state after all commits in `content`."""
    state = SinkOffsets()
    for position, record in rec.decode_all(content, journal):
        if record.control:
            if record.data:
                state.commit = msgspec.json.decode(record.data, type=Commit)
                state.updated = record.ts
            continue
        if len(record.data) != _VALUE.size:
            raise CorruptError("an offset that is not 8 bytes", where=journal, position=position)
        state.namespaces[record.ns] = cast("int", _VALUE.unpack(record.data)[0])
        state.entries = record.offset + 1
    return state


def load(client: Client, pipeline: str, sink: str) -> SinkOffsets:
    """What the offset log of a sink says; an unknown sink has nothing, and none is made for it."""
    journal = offsets_journal(pipeline, sink)
    if journal_labels(client, journal) is None:
        return SinkOffsets()
    return replay(client.read_bytes(journal, 0, 0), journal)


class OffsetLog:
    """The one owner of a sink's offset log."""

    def __init__(self, client: Client, pipeline: str, sink: str, now: int) -> None:
        """Claim the log, making it if it is new; then replay it."""
        self.journal = offsets_journal(pipeline, sink)
        self._load = partial(load, client, pipeline, sink)
        if journal_labels(client, self.journal) is None:
            extra = {PIPELINE_LABEL: pipeline, KIND_LABEL: "offsets", SINK_LABEL: sink}
            client.create(journal_spec(self.journal, _SEGMENT_BYTES, extra))
        self._ownership = Ownership.claim(client, self.journal, _claim(now))
        self.state = self._load()

    def commit(self, commit: Commit, namespaces: Mapping[str, int], now: int) -> None:
        """Move the sink's offsets; durable on return.

        If an earlier commit is in doubt, it is settled first: should it prove to have landed, `state` says so
        from now on, and this commit, which was made without knowing that, is refused.
        """
        if self._ownership.in_doubt:
            self._settle(now)
        content = encode_commit(commit, namespaces, self.state.entries, now)
        with faults.step("offset commit"):
            self._ownership.append(content)
        self.state.commit = commit
        self.state.namespaces.update(namespaces)
        self.state.entries += len(namespaces)
        self.state.updated = now

    def _settle(self, now: int) -> None:
        """First a new claim, then the truth: after the claim nothing of the old one can land any more."""
        before = self.state.commit
        self._ownership = self._ownership.renewed(_claim(now))
        self.state = self._load()
        if self.state.commit != before:
            raise InDoubtError(
                f"journal {self.journal}: a commit in doubt has landed, up to message {self.state.commit.watermark}",
                hint="start the sink again from there",
            )


def _claim(now: int) -> bytes:
    return rec.encode(Record(-1, now, Mode.COPY, Op.NOOP, "", b"", control=True))
