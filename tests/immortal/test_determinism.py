"""What would make a replay differ is caught, by name, when it happens."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import linecache
import os
import random
import re
import secrets
import time
import uuid
from collections.abc import Callable
from time import monotonic, monotonic_ns
from typing import BinaryIO

import pytest
from tests.immortal.world import World

from penstock.base.errors import UsageError
from penstock.immortal import DeterminismError, Immortal, field, impulse, rpc
from penstock.immortal.binding import guard
from penstock.immortal.binding.app import spec_of
from penstock.immortal.binding.leaks import LARGE, Leaks
from penstock.immortal.binding.machine import Machine
from penstock.immortal.binding.marks import EVERY
from penstock.immortal.wire import MessageType, Record, encode_message

LEAKED: list[list[int]] = []
CHANCE = random.Random(1)
DOES_ASK: list[bool] = []


def chance() -> float:
    return random.random()


def hidden() -> dt.datetime:
    return dt.datetime.now(tz=dt.UTC)


class Careless(Immortal):
    numbers: list[int] = field(list)
    count: int = 0
    table: dict[str, list[int]] = field(dict)

    @rpc
    def tell(self, number: float) -> None:
        self.count += 1

    @impulse
    def impulse_in_handler(self) -> None:
        self.outside.send()

    @impulse
    def outside(self) -> None:
        self.count += 1

    @impulse
    def chance_in_helper(self) -> None:
        self.tell.send(chance())

    @impulse
    def deep(self, what: str) -> None:
        DEEP[what]()

    @impulse
    def swallows(self) -> None:
        with contextlib.suppress(Exception):
            chance()
        self.count += 1

    @impulse
    async def swallows_in_turn(self) -> None:
        with contextlib.suppress(Exception):
            self.extra = 1

    @impulse
    def harmless(self) -> list[str]:
        seeded = random.Random(7)
        made = [time.strftime("%H", time.gmtime(0.0)), dt.datetime.fromtimestamp(0, tz=dt.UTC).isoformat()]
        return [*made, str(seeded.random()), str(uuid.UUID(int=7))]

    @impulse
    def undeclared(self) -> None:
        self.extra = 1

    @impulse
    def reads_undeclared(self) -> None:
        self.numbers.append(self.extra)

    @impulse
    async def sleeps(self) -> None:
        await asyncio.sleep(0)

    @impulse
    async def forgets_to_await(self) -> None:
        self.tell(1.0)

    @impulse
    async def asks_by_what_is_outside(self) -> None:
        if DOES_ASK:
            await self.tell(1.0)

    @impulse
    def leaks(self) -> None:
        LEAKED.append(self.numbers)

    @impulse
    def unguarded_chance(self) -> None:
        self.tell.send(CHANCE.random())


class Clock(Immortal):
    @impulse
    def tick(self) -> float:
        return time.time()


class ImportedClock(Immortal):
    @rpc
    def tick(self) -> float:
        return monotonic()


class DateClock(Immortal):
    @rpc
    async def tick(self) -> str:
        def inner() -> str:
            return dt.datetime.now().isoformat()

        return inner()


class Chance(Immortal):
    @rpc
    def draw(self) -> int:
        return random.randint(1, 6)


@pytest.fixture
def world() -> World:
    world = World()
    world.start(Careless, "c")
    return world


def careless(world: World) -> Careless:
    found = world.nodes["c"].machine.instance
    assert isinstance(found, Careless)
    return found


@pytest.mark.parametrize(
    ("cls", "what"),
    [
        (Clock, "time.time"),
        (ImportedClock, "time.monotonic"),
        (DateClock, "datetime.now"),
        (Chance, "random.randint"),
    ],
)
def test_a_class_whose_handlers_use_clocks_or_chance_is_refused(cls: type[Immortal], what: str) -> None:
    with pytest.raises(DeterminismError, match=rf"{what} was called in a handler .*") as refused:
        guard.check_class(spec_of(cls))
    [line] = re.findall(r"test_determinism\.py:(\d+)\)", str(refused.value))
    assert f"{what.rpartition('.')[2]}(" in linecache.getline(__file__, int(line))
    guard.check_class(spec_of(Careless))


def test_chance_below_a_handler_is_caught_when_it_is_called(world: World) -> None:
    with guard.guarding():
        assert 0 <= chance() < 1, "outside of handlers it is what it was"
        with pytest.raises(DeterminismError, match=r"input 1 .*random\.random was called in a handler"):
            world.ask("c", "chance_in_helper")
    assert not hasattr(random.random, "__wrapped__")


DEEP: dict[str, Callable[[], object]] = {
    "datetime.now": hidden,
    "datetime.utcnow": lambda: dt.datetime.utcnow(),
    "datetime.today": lambda: dt.datetime.today(),
    "date.today": lambda: dt.date.today(),
    "time.monotonic": lambda: time.monotonic(),
    "time.monotonic_ns": lambda: monotonic_ns(),
    "time.process_time": lambda: time.process_time(),
    "time.localtime": lambda: time.localtime(),
    "time.strftime": lambda: time.strftime("%H"),
    "time.sleep": lambda: time.sleep(0),
    "random.expovariate": lambda: random.expovariate(1.0),
    "Random.seed": lambda: random.Random(),
    "SystemRandom.random": lambda: random.SystemRandom().random(),
    "secrets.randbits": lambda: secrets.randbits(8),
    "uuid.uuid4": lambda: uuid.uuid4(),
    "os.urandom": lambda: os.urandom(1),
}


@pytest.mark.parametrize("what", DEEP)
def test_clocks_and_chance_are_caught_however_deep_they_are_called(world: World, what: str) -> None:
    with guard.guarding():
        DEEP[what]()  # outside of handlers each is what it was
        with pytest.raises(DeterminismError, match=rf"{what} was called in a handler .*\.py:\d+"):
            world.ask("c", "deep", what)
    DEEP[what]()


@pytest.mark.parametrize("method", ["swallows", "swallows_in_turn"])
def test_who_catches_what_is_refused_is_not_let_go_on(world: World, method: str) -> None:
    with guard.guarding(), pytest.raises(DeterminismError, match=r"input 1 .*in a handler|a handler sets it"):
        world.ask("c", method)


def test_what_looks_like_a_clock_or_chance_and_is_none_is_free(world: World) -> None:
    with guard.guarding():
        world.ask("c", "harmless")
    assert not world.nodes["c"].outcomes["r"].error


@pytest.mark.parametrize(
    ("method", "what"),
    [
        ("impulse_in_handler", r"an Impulse \(outside\) was to be sent in a handler"),
        ("undeclared", "Careless.extra is not declared, and a handler sets it"),
        ("sleeps", "sleeps awaits None: a handler can wait for calls of immortals alone"),
    ],
)
def test_a_handler_is_refused_what_replay_would_not_repeat(world: World, method: str, what: str) -> None:
    with pytest.raises(DeterminismError, match=rf"input 1 .*{what}"):
        world.ask("c", method)


def test_what_is_not_declared_is_not_for_handlers(world: World) -> None:
    careless(world).extra = 1
    with pytest.raises(DeterminismError, match="extra is not declared, and a handler reads it"):
        world.ask("c", "reads_undeclared")


def test_a_call_that_is_neither_awaited_nor_sent_is_an_error_of_its_handler(world: World) -> None:
    world.ask("c", "forgets_to_await")
    assert "neither awaited nor sent" in world.nodes["c"].outcomes["r"].error


def test_an_impulse_in_replay_is_refused(world: World) -> None:
    world.crash("c", end=None)
    with pytest.raises(DeterminismError, match=r"an Impulse \(outside\) was to be sent while recovering"):
        careless(world).outside.send()


def test_a_fork_from_outside_of_a_handler_is_refused(world: World) -> None:
    with pytest.raises(DeterminismError, match="no @impulse: a replay would not send it"):
        careless(world).tell.send(1.0)
    with pytest.raises(DeterminismError, match="outside of a handler"):
        Careless.at("other").tell.send(1.0)
    with pytest.raises(DeterminismError, match="cannot be read here"):
        _ = Careless.at("other").count


def test_declared_fields_are_for_reading_outside_of_handlers(world: World) -> None:
    it = careless(world)
    for change in (
        lambda: setattr(it, "count", 1),
        lambda: it.numbers.append(1),
        lambda: it.table.update(a=[]),
        it.table.clear,
        lambda: it.after(1.0, it.outside),
        lambda: it.emit("n", "insert", {}),
    ):
        with pytest.raises(DeterminismError, match=r"outside of a handler|only a handler may"):
            change()
    assert (it.count, list(it.numbers), dict(it.table)) == (0, [], {})


def test_state_that_leaked_and_changed_is_noticed_before_the_next_input(world: World) -> None:
    world.ask("c", "leaks")
    LEAKED.pop().append(1)
    with pytest.raises(DeterminismError, match="the state changed between the inputs 1 and 2"):
        world.ask("c", "outside")


def test_a_leak_is_noticed_while_an_instance_serves_and_looking_for_it_has_its_share_of_time() -> None:
    state: list[int | None] = [1]
    now, looks = 0.0, 0

    def look(limit: int | None) -> int | None:
        nonlocal now, looks
        assert limit == LARGE
        now += 0.01
        looks += 1
        return state[0]

    leaks = Leaks(look, lambda: now, always=False)
    leaks.left(100)
    state[0] = 2
    assert leaks.has_changed()
    looks = 0
    for _ in range(1000):
        now += 0.01
        leaks.left(100)
        assert not leaks.has_changed()
    assert 10 <= looks <= 40
    now += 10
    leaks.left(LARGE + 1)
    state[0] = 3
    assert not leaks.has_changed()
    state[0], looks = None, 0  # it has grown
    for _ in range(1000):
        now += 10
        leaks.left(100)
        assert not leaks.has_changed()
    assert looks == 1


def test_a_message_is_not_handled_during_a_checkpoint() -> None:
    class Saves(Immortal):
        def save(self, file: BinaryIO) -> None:
            machine: Machine = self._runtime()
            machine.receive(Record(0, -1, encode_message(MessageType.TAKE_CHECKPOINT)))

    with pytest.raises(DeterminismError, match="handled while a checkpoint is taken"):
        World().start(Saves, "s")


def test_output_that_differs_in_replay_is_named_with_its_input(world: World) -> None:
    world.ask("c", "outside")
    world.ask("c", "unguarded_chance")
    world.settle()
    node = world.nodes["c"]
    node.machine.services.mark(world.now, all=True)
    world.collect(node)
    with pytest.raises(DeterminismError, match="input 2 made its handler send something else in this replay"):
        world.crash("c")


def test_marks_come_by_themselves_and_keep_the_fingerprints_few(world: World) -> None:
    for _ in range(EVERY + 10):
        world.ask("c", "outside")
    runtime = world.nodes["c"].machine.runtime
    assert runtime.inputs == EVERY + 12, "one of them is a mark"
    assert len(runtime.crcs) < 20
    world.crash("c")


def test_a_replay_that_does_not_make_a_call_is_named_at_the_next_mark(world: World) -> None:
    DOES_ASK.append(True)
    world.ask("c", "asks_by_what_is_outside")
    DOES_ASK.clear()
    world.settle()
    node = world.nodes["c"]
    assert node.outcomes["r"].kind == ""
    node.machine.services.mark(world.now, all=True)
    world.collect(node)
    with pytest.raises(DeterminismError, match="input 1 made its handler send something else in this replay"):
        world.crash("c")


def test_hooks_that_would_not_run_are_refused() -> None:
    class Waits(Immortal):
        async def on_first_start(self) -> None:
            pass

    class Hurries(Immortal):
        def on_primary(self) -> None:  # type: ignore[override]
            pass

    with pytest.raises(UsageError, match=r"Waits\.on_first_start is `async def`"):
        spec_of(Waits)
    with pytest.raises(UsageError, match=r"Hurries\.on_primary is no `async def`"):
        spec_of(Hurries)


def test_sets_are_refused_in_state() -> None:
    class Sets(Immortal):
        names: dict[str, set[str]] = field(dict)

    with pytest.raises(UsageError, match=r"Sets.names is a set"):
        spec_of(Sets)
