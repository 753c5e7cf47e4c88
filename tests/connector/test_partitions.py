"""An instance of several journals: each stream in exactly one, however many partitions there are meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.connector.rig import Numbers, Rig, eventually, ids_of, rigged
from tests.connector.test_source import connector

from penstock.base.errors import PenstockError, UsageError
from penstock.connector import frames as fr
from penstock.connector import records, status
from penstock.connector.frames import NOTHING_SEEN
from penstock.connector.instancelog import JournalLog, OnFailure, open_journal
from penstock.connector.partitions import partition_journal, partition_of_journal, placed
from penstock.connector.records import Point
from penstock.connector.registry import Owner
from penstock.connector.settings import WorkerSettings
from penstock.journal.client import AsyncClient, claim
from penstock.journal.protocol import JournalSpec

IDS = st.sampled_from([0, 1, 2, 3])
POINTS = st.dictionaries(IDS, st.builds(Point, st.sampled_from([NOTHING_SEEN, 5])))


@given(st.dictionaries(st.integers(0, 3), POINTS))
def test_a_stream_is_where_its_messages_are(points: dict[int, dict[int, Point]]) -> None:
    place = placed(points)
    assert place.keys() == {stream for known in points.values() for stream in known}
    for stream, number in place.items():
        with_messages = [n for n in points if points[n].get(stream, Point()).last != NOTHING_SEEN]
        assert number in with_messages if with_messages else stream in points[number]


def test_journals_of_partitions_are_told_from_others() -> None:
    names = [partition_journal("c/web", number) for number in (0, 1, 12)]
    assert names == ["c/web", "c/web+1", "c/web+12"]
    assert [partition_of_journal("c/web", name) for name in names] == [0, 1, 12]
    for other in ("c/web2", "c/web2+1", "c/web+x", "c/web+01", "c/web+", "c/web/1"):
        assert partition_of_journal("c/web", other) is None


@pytest.mark.parametrize("partitions", [0, 257])
def test_a_senseless_number_of_partitions_is_refused(partitions: int) -> None:
    with pytest.raises(UsageError, match="cannot have"):
        WorkerSettings(partitions=partitions)


async def streams_in(rig: Rig, partitions: int) -> list[dict[int, list[int]]]:
    """The ids of each stream, a journal at a time."""
    return [ids_of(await rig.frames(partition_journal("i", number))) for number in range(partitions)]


def test_streams_are_spread_and_each_is_in_one_journal(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker(partitions=3)
        streams = [Numbers(f"s{n}", 500, batch=37) for n in range(12)]
        await connector([worker.me.address], list(streams)).serve()
        found = await streams_in(rig, 3)
        assert all(found)
        merged = {stream: ids for part in found for stream, ids in part.items()}
        assert sum(map(len, found)) == len(merged) == 12
        assert all(ids == list(range(1, 501)) for ids in merged.values())
        for number, part in enumerate(found):
            assert {stream % 3 for stream in part} == {number}
        shown = {each.id: each.partition for each in status.snapshot(worker).streams}
        assert shown == {stream: stream % 3 for stream in merged}

    rigged(tmp_path / "d", test)


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (2, 3)])
def test_another_number_of_partitions_moves_no_stream_that_there_is(
    tmp_path: Path, before: int, after: int
) -> None:
    async def test(rig: Rig) -> None:
        first = await rig.worker("first", partitions=before)
        peer = await rig.peer(first)
        await peer.ok()
        for stream in range(8):
            await peer.open(stream)
            await peer.send(fr.Message(stream, 1))
            await peer.acked(stream, 1)
        await first.stop()
        second = await rig.worker("second", partitions=after)
        again = await rig.peer(second)
        await again.ok()
        for stream in range(16):
            known = stream < 8
            assert await again.open(stream) == fr.NotifyAck(True, stream, 1 if known else NOTHING_SEEN)
            await again.send(fr.Message(stream, 1), fr.Message(stream, 2))
            await again.acked(stream, 2)
        found = await streams_in(rig, max(before, after))
        places = {stream: number for number, part in enumerate(found) for stream in part}
        assert sum(map(len, found)) == 16
        assert places == {stream: stream % (before if stream < 8 else after) for stream in range(16)}
        assert all(ids == [1, 2] for part in found for ids in part.values())

    rigged(tmp_path / "d", test)


def test_a_partition_that_is_taken_away_has_everybody_start_again(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker(partitions=2)
        peer = await rig.peer(worker)
        await peer.ok()
        await peer.open(2)
        await peer.open(3)
        await peer.send(fr.Message(2, 1), fr.Message(3, 1))
        await peer.acked(3, 1)
        await claim(rig.client, "connectors/i+1", "nobody", records.claim("nobody"))
        await peer.send(fr.Message(2, 2), fr.Message(3, 2))
        restart = await peer.until(lambda frame: isinstance(frame, fr.Restart))
        assert restart == fr.Restart(worker.me.address)
        again = await rig.peer(worker)
        await again.ok()
        assert await again.open(3) == fr.NotifyAck(True, 3, 1)
        assert worker.counters.rollbacks == 1

    rigged(tmp_path / "d", test)


def test_a_partition_that_is_lost_while_the_others_are_opened_leaves_no_instance_that_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opens = open_journal
    opened: list[JournalLog] = []
    lost: list[PenstockError] = []

    async def losing(
        client: AsyncClient, spec: JournalSpec, me: Owner, fails: OnFailure, limit: float
    ) -> JournalLog:
        """Before the second is opened somebody else claims the first, and that is noticed."""

        def failed(error: PenstockError) -> None:
            fails(error)
            lost.append(error)

        if spec.name == "connectors/i+1" and not lost:
            await claim(client, "connectors/i", "nobody", records.claim("nobody"))
            opened[0].opened(5, "s")
            await eventually(lambda: bool(lost))
        opened.append(await opens(client, spec, me, failed, limit))
        return opened[-1]

    async def test(rig: Rig) -> None:
        monkeypatch.setattr("penstock.connector.partitions.open_journal", losing)
        worker = await rig.worker(partitions=2)
        assert "claimed by another owner" in await (await rig.peer(worker)).error()
        again = await rig.peer(worker)
        await again.ok()
        for stream in (2, 3):
            await again.open(stream)
            await again.send(fr.Message(stream, 1))
            await again.acked(stream, 1)

    rigged(tmp_path / "d", test)
