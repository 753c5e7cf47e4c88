"""The kit's model of the log gives a source back what the real log would."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.adaptors.base import Batch
from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.log.commitlog import CommitLog
from penstock.log.message import Message, Mode, Op
from penstock.log.packing import pack
from penstock.log.schema import Field, Kind, Schema
from penstock.testing.adaptors.model import Log, TooLargeError

NOW = 1_750_000_000_000_000
SCHEMA = Schema((Field("id", Kind.INT),), ("id",))


@pytest.fixture
def real(tmp_path: Path) -> Iterator[CommitLog]:
    with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
        yield CommitLog(client, "p", tmp_path / "index", 1 << 20, NOW)


def message(ns: str, id: int, mode: Mode = Mode.COPY, op: Op = Op.INSERT, old: int | None = None) -> Message:
    old_key = None if old is None else b'{"id":%d}' % old
    return Message(ns, b'{"id":%d}' % id, op, NOW, mode, b'{"id":%d}' % id, old_key)


BATCHES = [
    Batch([message("a", 1), message("b", 1)], {"a": {"after": 1}}, schemas={"a": SCHEMA}),
    Batch([], {"b": {"after": [1, None, {"x": 1.5}]}}),
    Batch([message("c", 1)]),
    Batch(
        packed=[pack("a", pa.array(['{"id":2}', '{"id":3}']), ts=NOW, keys=pa.array(['{"id":2}', None]))],
        positions={"a": {"after": 3}},
    ),
    Batch([message("a", 4)], {"a": {"after": 4}}, completed=["a"], schemas={"a": SCHEMA}),
    Batch([message("a", 5, Mode.SYNC, Op.UPDATE, old=4)], {"a": {"next": 1}}, more=True),
    Batch([], {"a": {"next": 2}, "b": {}}, completed=["b"]),
]


def test_it_resumes_as_the_real_log_does_after_every_batch(real: CommitLog) -> None:
    model = Log()
    for batch in BATCHES:
        model.append(batch)
        real.append(
            batch.messages,
            batch.positions,
            batch.completed,
            NOW,
            batch.schemas,
            batch.packed,
            more=batch.more,
        )
        assert model.resume() == real.resume()
    assert len(model.messages) == real.point.offset
    assert [(offset, ns) for offset, ns, _ in model.schemas] == [(0, "a")]


def test_a_batch_with_a_message_that_is_too_large_is_not_taken_at_all() -> None:
    model = Log()
    huge = Message("a", b"x" * (16 * 1024 * 1024 + 1))
    with pytest.raises(TooLargeError, match="'a'"):
        model.append(Batch([message("a", 1), huge], {"a": {"after": 2}}))
    assert (model.messages, model.resume()) == ([], {})


def test_a_position_that_is_no_json_is_the_sources_error() -> None:
    with pytest.raises(TypeError):
        Log().append(Batch([], {"a": {"lock": object()}}))  # type: ignore[dict-item]
