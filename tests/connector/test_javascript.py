"""A connector in another language: `examples/connector/source.js` against a worker, killed and started again."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from tests.connector.rig import COOKIE, Rig, eventually, ids_of, rigged
from tests.servers.cache import missing

from penstock.connector import frames as fr
from penstock.connector.source import stream_id

SOURCE = Path(__file__).parents[2] / "examples" / "connector" / "source.js"


@pytest.fixture
def node() -> str:
    found = shutil.which("node")
    if found is None:
        missing("Node", FileNotFoundError("no `node` in PATH"))
    return found


def test_a_connector_in_javascript_goes_on_where_the_journal_ends(tmp_path: Path, node: str) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker(credits=16)
        command = [node, str(SOURCE), worker.me.address, "i", "numbers", "3000", COOKIE.decode()]
        first = await asyncio.create_subprocess_exec(*command)
        await eventually(lambda: worker.counters.messages > 200)
        first.kill()
        await first.wait()
        second = await asyncio.create_subprocess_exec(*command)
        async with asyncio.timeout(60):
            assert await second.wait() == 0
        assert ids_of(await rig.frames()) == {stream_id("numbers"): list(range(1, 3001))}
        assert (await rig.frames())[-1] == fr.EosMessage(stream_id("numbers"))

    rigged(tmp_path / "d", test)


def test_a_connector_in_javascript_goes_to_the_worker_that_it_is_sent_to(tmp_path: Path, node: str) -> None:
    async def test(rig: Rig) -> None:
        owner, other = await rig.worker("owner"), await rig.worker("other")
        await (await rig.peer(owner)).ok()
        command = [node, str(SOURCE), other.me.address, "i", "numbers", "300", COOKIE.decode()]
        running = await asyncio.create_subprocess_exec(*command)
        async with asyncio.timeout(60):
            assert await running.wait() == 0
        assert ids_of(await rig.frames()) == {stream_id("numbers"): list(range(1, 301))}
        assert owner.counters.messages == 300

    rigged(tmp_path / "d", test)
