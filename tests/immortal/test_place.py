"""A data directory that several coordinators share, and whose broker comes and goes with them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import psutil
import pytest
from tests.immortal.test_startups import instance

from penstock.base.errors import UsageError
from penstock.immortal.coordinator import Options
from penstock.immortal.place import opened


def brokers(data: Path) -> list[psutil.Process]:
    """Those that this process has started for a directory."""
    return [one for one in psutil.Process().children() if str(data) in one.cmdline()]


def test_when_the_owner_of_the_directory_ends_the_others_go_on(tmp_path: Path) -> None:
    async def test() -> None:
        async with AsyncExitStack() as owner:
            await owner.enter_async_context(opened(str(tmp_path / "data")))
            async with (
                opened(str(tmp_path / "data")) as place,
                instance(place, Options("primary", 0, 0, active=True)) as one,
            ):
                await one.seen("control 11", "record 0")
                async with instance(place, Options("primary", 0, 0, active=True, replica=1)) as two:
                    await two.seen("checkpoint", "record 0")
                    await owner.aclose()
                    one.add(5)
                    await one.until(lambda: one.app.state["sum"] == 5)
                    await two.until(lambda: two.app.state["sum"] == 5)

    asyncio.run(test())


def test_one_broker_is_started_and_ends_with_who_started_it(tmp_path: Path) -> None:
    data = tmp_path / "data"

    async def test() -> None:
        async with opened(str(data)):
            [broker] = brokers(data)
            await asyncio.sleep(0.5)  # it is kept as well as waited for: both have had their turn
            assert brokers(data) == [broker]
        assert not brokers(data)

    asyncio.run(test())


def test_a_directory_that_no_broker_can_own_is_refused_before_one_is_started(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("a file")

    async def test() -> None:
        with pytest.raises(UsageError, match="cannot use"):
            async with opened(str(mine / "data")):
                pass
        with pytest.raises(UsageError, match="not a data directory and not empty"):
            async with opened(str(tmp_path)):
                pass

    asyncio.run(asyncio.wait_for(test(), 10))
    assert not brokers(mine / "data")
    assert not brokers(tmp_path)
