"""Handlers that wait, with real coordinators: over checkpoints behind which the log is really deleted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.immortal.test_startups import eventually
from tests.servers.ports import free_port

from penstock.immortal import Immortal, checkpoints, field, impulse, journals, rpc
from penstock.immortal.binding.machine import Machine
from penstock.immortal.binding.shell import Shell
from penstock.immortal.coordinator import Options
from penstock.immortal.place import Place, opened
from penstock.immortal.starting import serve
from penstock.journal.embedded import EmbeddedBroker

pytestmark = pytest.mark.timeout(120)


class Clerk(Immortal):
    """It has begun what it cannot end alone."""

    begun: list[int] = field(list)
    done: list[int] = field(list)

    @impulse
    async def ask(self, number: int) -> None:
        self.begun.append(number)
        first = await Office.at("office").stamp(number)
        second = await Office.at("office").look_back(number)
        self.done.append(first + second)

    @rpc
    def how_many(self) -> int:
        return len(self.begun)


class Clerk2(Clerk):
    version = 1


class Office(Immortal):
    stamped: list[int] = field(list)

    @rpc
    def stamp(self, number: int) -> int:
        self.stamped.append(number)
        return number * 100

    @rpc
    async def look_back(self, number: int) -> int:
        """Asks the one who waits for it."""
        return await Clerk.at("clerk").how_many()


@asynccontextmanager
async def living(
    place: Place, cls: type[Immortal], name: str, upgrade_to: type[Immortal] | None = None
) -> AsyncIterator[Shell]:
    version = 0 if upgrade_to is not None else cls.version
    upgrade = version if upgrade_to is None else upgrade_to.version
    options = Options(name, free_port(), free_port(), keep=1, version=version, upgrade=upgrade)
    shell = Shell(Machine(cls, name, now=time.time, upgrade_to=upgrade_to))
    running = (
        asyncio.ensure_future(serve(options, place, lambda _: None)),
        asyncio.ensure_future(shell.serve(options.receive_port, options.send_port)),
    )
    try:
        yield shell
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)


async def until(shell: Shell, true: Callable[[], object]) -> None:
    async with asyncio.timeout(60), shell.moved:
        await shell.moved.wait_for(true)


async def only_checkpoint(place: Place, number: int) -> None:
    """All log before it is gone."""

    async def is_there() -> bool:
        there = await checkpoints.catalogue(place.client, "clerk")
        begin = await place.client.begin(journals.journal_name("clerk", "log"))
        return [entry.number for entry in there.entries] == [number] and begin > 0

    await eventually(is_there)


def clerk(shell: Shell) -> Clerk:
    assert isinstance(shell.machine.instance, Clerk)
    return shell.machine.instance


def test_an_answer_that_comes_when_the_log_of_its_question_is_gone(tmp_path: Path) -> None:
    """Asked in the first life; answered in the fourth, by one who did not run before, behind an upgrade."""

    async def lives(address: str) -> None:
        async with opened(address) as place:
            await journals.ensure(place.client, "clerk")
            async with living(place, Clerk, "clerk") as first:
                await until(first, lambda: first.machine.is_primary)
                for number in (1, 2, 3):
                    clerk(first).ask.send(number)
                first.wrote()
                await until(first, lambda: len(clerk(first).begun) == 3)
            for number in (2, 3):
                async with living(place, Clerk, "clerk") as again:
                    await until(again, lambda: again.machine.is_primary)
                    await only_checkpoint(place, number)
            async with (
                living(place, Clerk, "clerk", Clerk2) as last,
                living(place, Office, "office") as office,
            ):
                await until(last, lambda: len(clerk(last).done) == 3)
                assert last.machine.spec.cls is Clerk2
                assert list(clerk(last).begun) == [1, 2, 3]
                assert sorted(clerk(last).done) == [103, 203, 303]
                assert last.machine.open_handlers == 0
                assert isinstance(office.machine.instance, Office)
                assert sorted(office.machine.instance.stamped) == [1, 2, 3]

    with EmbeddedBroker(tmp_path / "journals") as broker:
        asyncio.run(lives(broker.address))
