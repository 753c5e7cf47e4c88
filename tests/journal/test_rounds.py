"""Rounds: who is visited when, and never twice at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from penstock.journal.rounds import Rounds


def during(rounds: Rounds, work: Callable[[], Awaitable[None]]) -> None:
    async def test() -> None:
        running = asyncio.create_task(rounds.run())
        try:
            async with asyncio.timeout(10):
                await work()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(test())


def test_a_journal_is_not_visited_twice_at_once_and_again_afterwards() -> None:
    inside, most, visits = Counter[str](), Counter[str](), Counter[str]()

    async def visit(name: str) -> float | None:
        inside[name] += 1
        visits[name] += 1
        most[name] = max(most[name], inside[name])
        await asyncio.sleep(0.02)
        inside[name] -= 1
        return None

    rounds = Rounds(visit, 4)

    async def work() -> None:
        rounds.add("a", 0.0)
        await asyncio.sleep(0.01)
        rounds.add("a", 0.0)
        rounds.add("b", 0.0)
        rounds.add("a", 0.0)
        while visits != {"a": 2, "b": 1}:  # noqa: ASYNC110 - the rounds bring it about
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)  # and no third time
        assert most == {"a": 1, "b": 1}
        assert visits == {"a": 2, "b": 1}

    during(rounds, work)


def test_a_visit_that_fails_is_not_the_last(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.journal import rounds as module

    monkeypatch.setattr(module, "_AFTER_A_FAILURE", 0.01)
    visits = 0

    async def visit(name: str) -> float | None:
        nonlocal visits
        visits += 1
        raise RuntimeError("a surprise")

    rounds = Rounds(visit, 1)

    async def work() -> None:
        rounds.add("a", 0.0)
        while visits < 3:  # noqa: ASYNC110 - the rounds bring it about
            await asyncio.sleep(0.005)

    during(rounds, work)
    assert "a surprise" in caplog.text


def test_a_journal_that_was_removed_is_not_visited_again() -> None:
    visits = 0

    async def visit(name: str) -> float | None:
        nonlocal visits
        visits += 1
        return 0.0

    rounds = Rounds(visit, 1)

    async def work() -> None:
        rounds.add("a", 0.0)
        while visits < 3:  # noqa: ASYNC110 - the rounds bring it about
            await asyncio.sleep(0)
        rounds.remove("a")
        seen = visits
        await asyncio.sleep(0.02)
        assert visits <= seen + 1

    during(rounds, work)
