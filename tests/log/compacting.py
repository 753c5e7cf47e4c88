"""A log and an offset log whose content follows from the message offsets, so that anyone can tell what must be there.

`work` appends, closes segments, commits and compacts, and tells what was acknowledged; it is run in a process that is
killed, or on a disk whose power goes. `verify` opens what is left and holds it to that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.log import companion, offsets
from penstock.log.commitlog import CommitLog
from penstock.log.compaction import compact
from penstock.log.message import Message, MessageOffset, Position
from penstock.log.offsets import Commit, OffsetLog
from penstock.log.record import Record

NOW = 1_700_000_000_000_000
NAMES = [f"ns{number}" for number in range(9)]
BATCH = 12


class Acknowledged(NamedTuple):
    """A promise: the log has `end` messages, and the sink has all below `watermark`."""

    end: int
    watermark: int


def ns_of(offset: int) -> str:
    """Some namespaces come often, some hardly ever."""
    return NAMES[min(offset * 7 % 23, 8)] if offset >= len(NAMES) else NAMES[offset]


def message_of(offset: int) -> Message:
    return Message(ns_of(offset), b'{"n":%d}' % offset, ts=NOW)


def newest_below(end: int) -> dict[str, int]:
    """The newest message of each namespace below `end`."""
    return {ns_of(offset): offset for offset in range(end)}


def opened(client: Client, root: Path) -> CommitLog:
    return CommitLog(client, "shop", root / "index", 1 << 20, NOW)


def append(log: CommitLog) -> None:
    first = log.point.offset
    messages = [message_of(offset) for offset in range(first, first + BATCH)]
    positions = newest_below(first + BATCH)
    told: dict[str, Position] = {ns: {"n": offset} for ns, offset in positions.items() if offset >= first}
    log.append(messages, told, [], NOW)


@contextmanager
def small_parts() -> Iterator[None]:
    """A generation takes several appends, so that a crash may come between them."""
    usual, companion.PART_BYTES = companion.PART_BYTES, 200
    try:
        yield
    finally:
        companion.PART_BYTES = usual


def work(root: Path, rounds: int, tell: Callable[[Acknowledged], None], broker: EmbeddedBroker) -> None:
    """Some rounds of everything that a run does to the two logs."""
    with Client(broker.address) as client, small_parts():
        log, sink = opened(client, root), OffsetLog(client, "shop", "sink", NOW)
        for _ in range(rounds):
            append(log)
            tell(Acknowledged(log.point.offset, sink.state.commit.watermark))
            watermark = log.point.offset - 5
            sink.commit(Commit(watermark), newest_below(watermark), NOW)
            tell(Acknowledged(log.point.offset, watermark))
            client.roll(log.journal)
            compact(log, MessageOffset(watermark), now=NOW)
            sink.compact(NOW, least_bytes=0)


def verify(root: Path, told: Acknowledged | None, *, thorough: bool) -> None:
    """Nothing acknowledged is missing, of the newest of each namespace nothing at all; and compaction goes on."""
    with EmbeddedBroker(root / "data") as broker, Client(broker.address) as client:
        end = told.end if told is not None else 0
        held = offsets.load(client, "shop", "sink")
        assert held.commit.watermark >= (told.watermark if told is not None else 0)
        assert held.namespaces == newest_below(held.commit.watermark)
        log = opened(client, root)
        assert log.point.offset >= max(end, held.commit.watermark)
        _verify_log(log, held.commit.watermark)
        if not thorough:
            return
        append(log)
        client.roll(log.journal)
        append(log)
        end = log.point.offset
        assert compact(log, MessageOffset(end), now=NOW).first.offset == end - BATCH
        kept = sorted(newest_below(end - BATCH).values())
        assert [record.offset for record in log.reader.show(0, end)] == [*kept, *range(end - BATCH, end)]
        _verify_log(opened(client, root / "elsewhere"), end)


def _verify_log(log: CommitLog, watermark: int) -> None:
    end = log.point.offset
    shown = list(log.reader.show(0, max(end, 1)))
    assert [_content(record) for record in shown] == [_expected(record.offset) for record in shown]
    first = log.reader.first().offset
    assert first <= watermark, "a message that the sink has not acknowledged is gone"
    assert [record.offset for record in shown if record.offset >= first] == list(range(first, end))
    newest = newest_below(end)
    assert {record.ns for record in shown} == set(newest), "a namespace has no message any more"
    resumed = log.resume()
    assert {ns: resume.offset for ns, resume in resumed.items()} == newest
    assert {ns: resume.position for ns, resume in resumed.items()} == {
        ns: {"n": o} for ns, o in newest.items()
    }
    assert {ns: resume.message for ns, resume in resumed.items()} == {
        ns: message_of(o) for ns, o in newest.items()
    }


def _content(record: Record) -> tuple[str, bytes]:
    return record.ns, record.data


def _expected(offset: int) -> tuple[str, bytes]:
    return ns_of(offset), message_of(offset).data
