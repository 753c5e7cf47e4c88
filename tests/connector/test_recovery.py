"""A journal that was trimmed up to its head, points of reference and all: refused by workers, told anew by a person."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.connector.rig import Rig, ids_of, rigged

from penstock.base.errors import UsageError
from penstock.cli import cli
from penstock.connector import frames as fr
from penstock.connector.frames import NOTHING_SEEN
from penstock.connector.instancelog import PointsLostError, points_of
from penstock.connector.records import Point, claim
from penstock.connector.recovery import recover
from penstock.connector.source import stream_id
from penstock.journal.client import AsyncClient


async def trimmed(client: AsyncClient, journal: str = "connectors/i") -> None:
    """Nothing is left of the journal but where it ends."""
    await client.trim(journal, (await client.roll(journal)).offset)


async def lost(rig: Rig, partitions: int = 1) -> None:
    """An instance that had streams, and no longer tells how far they were."""
    worker = await rig.worker(partitions=partitions)
    peer = await rig.peer(worker)
    await peer.ok()
    for stream in (6, stream_id("seven")):
        await peer.open(stream)
        await peer.send(fr.Message(stream, 1), fr.Message(stream, 2))
        await peer.acked(stream, 2)
    await worker.stop()
    await trimmed(rig.client)


def test_a_journal_that_lost_its_points_is_refused_until_it_is_told_them(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        await lost(rig)
        worker = await rig.worker("second")
        for _ in range(2):
            refused = await rig.peer(worker)
            assert "penstock connector recover" in await refused.error()
        known = {stream_id("seven"): Point(2, name="seven")}
        assert await recover(rig.client, "connectors/i", known) == ["connectors/i"]
        peer = await rig.peer(worker)
        await peer.ok()
        assert await peer.open(stream_id("seven")) == fr.NotifyAck(True, stream_id("seven"), 2)
        assert await peer.open(6) == fr.NotifyAck(True, 6, NOTHING_SEEN)
        await peer.send(*(fr.Message(stream_id("seven"), number) for number in (1, 2, 3)))
        await peer.acked(stream_id("seven"), 3)
        begin = (await rig.client.trim("connectors/i", 0)).begin
        assert ids_of(await rig.frames(begin=begin)) == {stream_id("seven"): [3]}
        with pytest.raises(UsageError, match="nothing to recover"):
            await recover(rig.client, "connectors/i", {})
        with pytest.raises(UsageError, match="there is no journal"):
            await recover(rig.client, "connectors/other", {})

    rigged(tmp_path / "d", test)


def test_of_several_partitions_those_that_lost_their_points_are_recovered(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        await lost(rig, partitions=3)
        assert await recover(rig.client, "connectors/i", {}) == ["connectors/i"]
        await trimmed(rig.client, "connectors/i+1")
        assert await recover(rig.client, "connectors/i", {}) == ["connectors/i+1"]
        peer = await rig.peer(await rig.worker("second", partitions=3))
        await peer.ok()

    rigged(tmp_path / "d", test)


def commanded(data: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["connector", "recover", *arguments, "--data-dir", str(data)])


def test_the_command_says_what_it_did_and_what_to_do(tmp_path: Path) -> None:
    data = tmp_path / "d"
    rigged(data, lost)
    nobody = commanded(data, "i")
    assert (nobody.exit_code, "--stream NAME=ID" in nobody.output) == (2, True)
    wrong = commanded(data, "i", "--stream", "seven")
    assert (wrong.exit_code, "expected NAME=ID" in wrong.output) == (2, True)
    none = commanded(tmp_path / "none", "i", "--forget")
    assert (none.exit_code, "no data directory" in none.output, (tmp_path / "none").exists()) == (
        2,
        True,
        False,
    )
    done = commanded(data, "i", "--stream", "seven=2", "--stream-id", "6=2")
    assert (done.exit_code, done.output) == (0, "connectors/i can be opened again\n")
    again = commanded(data, "i", "--forget")
    assert (again.exit_code, "nothing to recover" in again.output) == (2, True)

    async def told(rig: Rig) -> None:
        peer = await rig.peer(await rig.worker())
        await peer.ok()
        assert (await peer.open(6)).point == (await peer.open(stream_id("seven"))).point == 2

    rigged(data, told)


def test_a_journal_that_is_trimmed_while_it_is_looked_into_is_not_taken_for_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that its connectors still have would come into it again."""

    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        peer = await rig.streaming(worker, 7)
        await peer.send(fr.Message(7, 1), fr.Message(7, 2))
        await peer.acked(7, 2)
        await worker.stop()
        claimed = await rig.client.append("connectors/i", claim("somebody"))
        fragments = rig.client.fragments

        async def listed(journal: str) -> AsyncIterator[object]:
            """And then trimmed, before any of it is read."""
            found = [fragment async for fragment in fragments(journal)]
            monkeypatch.undo()
            await trimmed(rig.client, journal)
            for fragment in found:
                yield fragment

        monkeypatch.setattr(rig.client, "fragments", listed)
        with pytest.raises(PointsLostError):
            await points_of(rig.client, "connectors/i", claimed.begin)

    rigged(tmp_path / "d", test)
