"""Slots: one owner at a time, in the order of asking, whatever is cancelled, woken or closed meanwhile."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.journal.slots import Slot, SlotClosedError

from .brokers import in_loop


async def waiters(slot: Slot, count: int) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(slot.acquire()) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


def test_who_asks_first_is_served_first() -> None:
    async def test() -> None:
        slot = Slot()
        await slot.acquire()
        tasks = await waiters(slot, 3)
        for task in tasks:
            assert not task.done()
            slot.release()
            await task
            assert slot.owned
        slot.release()
        assert not slot.owned

    in_loop(test)


def test_a_slot_is_handed_over_and_never_free_in_between() -> None:
    async def test() -> None:
        slot = Slot()
        await slot.acquire()
        (waiting,) = await waiters(slot, 1)
        slot.release()
        late = asyncio.create_task(slot.acquire())
        await waiting
        await asyncio.sleep(0)
        assert not late.done(), "who comes later cannot overtake"
        slot.release()
        await late

    in_loop(test)


def test_a_cancelled_waiter_is_passed_over() -> None:
    async def test() -> None:
        slot = Slot()
        await slot.acquire()
        first, second = await waiters(slot, 2)
        first.cancel()
        await asyncio.sleep(0)
        slot.release()
        await second
        assert first.cancelled()

    in_loop(test)


def test_a_waiter_cancelled_as_its_turn_comes_hands_it_on() -> None:
    async def test() -> None:
        slot = Slot()
        await slot.acquire()
        first, second = await waiters(slot, 2)
        slot.release()
        first.cancel()
        await second
        assert first.cancelled()
        slot.release()
        assert not slot.owned

    in_loop(test)


def test_the_last_waiter_cancelled_as_its_turn_comes_leaves_the_slot_free() -> None:
    async def test() -> None:
        slot = Slot()
        await slot.acquire()
        (only,) = await waiters(slot, 1)
        slot.release()
        only.cancel()
        await asyncio.wait((only,))
        assert not slot.owned
        await slot.acquire()

    in_loop(test)


def test_waking_turns_away_who_waits_but_not_who_comes() -> None:
    async def test() -> None:
        slot = Slot()
        await slot.acquire()
        tasks = await waiters(slot, 2)
        slot.wake()
        for task in tasks:
            with pytest.raises(SlotClosedError):
                await task
        again = asyncio.create_task(slot.acquire())
        await asyncio.sleep(0)
        slot.release()
        await again

    in_loop(test)


def test_a_waiter_woken_and_cancelled_at_once_takes_nothing() -> None:
    async def test() -> None:
        slot = Slot()
        await slot.acquire()
        (only,) = await waiters(slot, 1)
        slot.wake()
        only.cancel()
        await asyncio.wait((only,))
        slot.release()
        assert not slot.owned

    in_loop(test)


def test_a_closed_slot_turns_all_away_and_goes_to_who_drains_it() -> None:
    async def test() -> None:
        slot = Slot()
        await slot.acquire()
        (waiting,) = await waiters(slot, 1)
        slot.close()
        with pytest.raises(SlotClosedError):
            await waiting
        with pytest.raises(SlotClosedError):
            await slot.acquire()
        draining = asyncio.create_task(slot.drained())
        await asyncio.sleep(0)
        assert not draining.done(), "the owner keeps what it has"
        slot.release()
        await draining
        assert slot.owned

    in_loop(test)


def test_a_closed_slot_that_nobody_has_is_drained_at_once() -> None:
    async def test() -> None:
        slot = Slot()
        slot.close()
        await slot.drained()
        assert slot.owned

    in_loop(test)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["ask", "release", "cancel", "wake", "turn"]), max_size=60))
def test_there_is_never_more_than_one_owner_and_never_a_slot_lost(steps: list[str]) -> None:
    async def test() -> None:
        slot = Slot()
        owners = 0
        asking: list[asyncio.Task[None]] = []

        async def ask() -> None:
            nonlocal owners
            await slot.acquire()
            owners += 1
            assert owners == 1

        def release() -> None:
            nonlocal owners
            if owners:
                owners -= 1
                slot.release()

        for step in steps:
            if step == "ask":
                asking.append(asyncio.create_task(ask()))
            elif step == "release":
                release()
            elif step == "cancel" and asking:
                asking.pop(len(asking) // 2).cancel()
            elif step == "wake":
                slot.wake()
            await asyncio.sleep(0)
        for _ in range(len(steps) + 2):
            release()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await asyncio.gather(*asking, return_exceptions=True)
        release()
        assert not slot.owned

    asyncio.run(test())
