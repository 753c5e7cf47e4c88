"""A binding and the coordinator that it starts itself."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from typing import NoReturn

import pytest

from penstock.immortal import Immortal
from penstock.immortal.binding import pair
from penstock.immortal.binding.ingress import Ingress
from penstock.immortal.binding.machine import Machine
from penstock.immortal.binding.pair import Plan, free_ports, run_pair
from penstock.immortal.binding.shell import CoordinatorGoneError, Shell


def test_the_ports_of_a_coordinator_are_two_and_not_that_of_its_binding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = free_ports()[0]
    monkeypatch.setattr(pair, "_RANGE", range(first, first + 8))
    for _ in range(50):
        ports = free_ports([first])
        assert ports[0] != ports[1]
        assert first not in ports


def test_a_coordinator_that_lives_on_is_not_waited_for_without_a_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*of: object) -> NoReturn:
        raise CoordinatorGoneError("the connection to the coordinator broke")

    monkeypatch.setattr(pair, "_ENDING", 0.2)
    monkeypatch.setattr(pair, "run", broken)
    monkeypatch.setattr(
        pair, "coordinator_command", lambda *of: [sys.executable, "-c", "import time; time.sleep(60)"]
    )
    with pytest.raises(CoordinatorGoneError, match="the connection to the coordinator broke"):
        run_pair(Plan(Immortal, "a"), "nowhere", (), print)


def test_a_port_that_another_has_is_told_once_and_taken_when_it_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pair, "_PORT_POLL", 0.01)
    told: list[str] = []

    async def until(count: int) -> None:
        async with asyncio.timeout(10):
            while len(told) < count:  # noqa: ASYNC110 - told from a callback
                await asyncio.sleep(0.01)

    async def test() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            ingress = Ingress(Shell(Machine(Immortal, "bank", now=time.time)))
            serving = asyncio.create_task(pair.listening(ingress, "127.0.0.1", port, told.append))
            await until(1)
            await asyncio.sleep(0.1)
        await until(2)
        serving.cancel()
        await asyncio.wait({serving})
        assert told == [
            f"cannot listen on 127.0.0.1:{port}, trying again: Address already in use",
            f"HTTP on 127.0.0.1:{port}",
        ]

    asyncio.run(test())
