"""An instance is run again from each of its checkpoints, to the end of its log."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.immortal.test_startups import has_checkpoints
from tests.servers.ports import free_port

from penstock.immortal import Immortal, impulse, journals
from penstock.immortal.binding.machine import Machine
from penstock.immortal.binding.repro import Repro
from penstock.immortal.binding.shell import Shell
from penstock.immortal.coordinator import Options
from penstock.immortal.place import Place, opened
from penstock.immortal.starting import serve
from penstock.journal.embedded import EmbeddedBroker


class Quiet(Immortal):
    starts: int = 0
    calls: int = 0

    def on_first_start(self) -> None:
        self.starts += 1

    @impulse
    def call(self) -> None:
        self.calls += 1


class Quiet2(Quiet):
    version = 1


async def life(place: Place, checkpoints: int) -> None:
    """It runs until it has so many checkpoints."""
    options = Options("quiet", free_port(), free_port())
    shell = Shell(Machine(Quiet, "quiet", now=time.time))
    running = (
        asyncio.ensure_future(serve(options, place, lambda _: None)),
        asyncio.ensure_future(shell.serve(options.receive_port, options.send_port)),
    )
    try:
        await has_checkpoints(place, options, checkpoints)
        async with asyncio.timeout(60), shell.moved:
            await shell.moved.wait_for(lambda: shell.machine.runtime.inputs == 1)
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)


@pytest.mark.timeout(120)
def test_a_checkpoint_with_nothing_behind_it_is_run_to_its_end(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "journals") as broker:

        async def lives() -> None:
            async with opened(broker.address) as place:
                await journals.ensure(place.client, "quiet")
                await life(place, 1)
                await life(place, 2)
                await life(place, 3)

        asyncio.run(lives())
        for checkpoint in (1, 2, 3):
            again = Repro("quiet", broker.address, checkpoint).replay(Quiet).instance
            assert isinstance(again, Quiet)
            assert again.starts == 1
        assert Repro("quiet", broker.address, 3).what_if(Quiet, Quiet2) == (None, 0)
