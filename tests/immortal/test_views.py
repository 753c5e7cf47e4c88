"""What an async handler does to state through views: what a plain one does, also when it is re-created meanwhile."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from tests.immortal.world import World

from penstock.immortal import Immortal, impulse, rpc, step
from penstock.immortal import field as declared
from penstock.immortal.wire import MessageType


class Item(msgspec.Struct):
    name: str
    size: int = 0
    tags: list[str] = msgspec.field(default_factory=list)

    def grow(self, by: int = 1) -> int:
        self.size += by
        self.tags.append(f"+{by}")
        return self.size

    @property
    def half(self) -> float:
        return self.size / 2


@dataclass
class Shelf:
    label: str = ""
    items: list[Item] = field(default_factory=list)


class TooManyError(Exception):
    def __init__(self, count: int) -> None:
        super().__init__(f"{count} are too many")
        self.count = count


class Waiting(Immortal):
    @rpc
    def wait(self) -> None:
        pass


class Desk(Immortal):
    items: dict[str, Item] = declared(dict)
    row: list[Item] = declared(list)
    numbers: list[int] = declared(list)
    shelf: Shelf = declared(Shelf)
    noted: list[str] = declared(list)

    @impulse
    def fill(self) -> None:
        for at, name in enumerate("cab"):
            self.items[name] = Item(name, at)
            self.row.append(Item(name, at))
            self.numbers.append(at)
        self.shelf = Shelf("top", [Item("s", 9)])

    @impulse
    def plainly(self, what: str) -> str:
        return shown(WORK[what](self))

    @impulse
    async def with_a_wait(self, what: str) -> str:
        done = shown(WORK[what](self))
        await Waiting.at("waiting").wait()
        return done

    @impulse
    async def tidies_up(self) -> None:
        try:
            await Waiting.at("waiting").wait()
        finally:
            self.noted.append("tidied")

    @step
    def refuse(self, count: int, item: Item) -> int:
        self.noted.append(item.name)
        if count > 2:
            raise TooManyError(count)
        return count


class Desk2(Desk):
    version = 1


def shown(value: object) -> str:
    """The same for a view and for what it is a view of."""
    return msgspec.json.encode(copy.deepcopy(value), order="deterministic").decode()


def fails(work: Callable[[], object]) -> str:
    try:
        work()
    except Exception as error:  # noqa: BLE001 - its name is what is compared
        return type(error).__name__
    return ""


def swapped(it: Desk) -> None:
    first, second = copy.deepcopy(it.row[0]), copy.deepcopy(it.row[1])
    it.row[0], it.row[1] = second, first


def caught(it: Desk) -> list[object]:
    try:
        return [it.refuse(count=3, item=it.row[0])]
    except TooManyError as error:
        return [error.count, str(error), it.refuse(2, it.row[1])]


WORK: dict[str, Callable[[Any], object]] = {
    "get": lambda it: [it.items["a"].size, it.items.get("x"), it.items.get("b").name],
    "missing": lambda it: [fails(lambda: it.items["x"]), fails(lambda: it.row[7]), fails(lambda: it.shelf.x)],
    "set": lambda it: it.items.__setitem__("d", it.row[0]),
    "del": lambda it: it.items.__delitem__("a"),
    "keys": lambda it: [list(it.items), "a" in it.items, len(it.items), next(reversed(it.row)).name],
    "items": lambda it: [(name, item.size) for name, item in it.items.items()],
    "values": lambda it: sum(item.size for item in it.items.values()),
    "pop": lambda it: it.items.pop("a"),
    "pop default": lambda it: [it.items.pop("x", None), fails(lambda: it.items.pop("x"))],
    "popitem": lambda it: list(it.items.popitem()),
    "clear": lambda it: [it.items.clear(), it.row.clear(), fails(lambda: it.items.popitem())],
    "update": lambda it: it.items.update(a=Item("new"), z=Item("z")),
    "setdefault": lambda it: [it.items.setdefault("a", Item("no")).size, it.items.setdefault("y", Item("y"))],
    "dict copy": lambda it: [it.items.copy(), it.items.clear()],
    "dict eq": lambda it: [it.items == copy.deepcopy(it.items), it.items == {}],
    "append": lambda it: [it.numbers.append(5), it.row.append(it.items["a"])],
    "extend": lambda it: it.numbers.extend([7, 8]),
    "insert": lambda it: it.row.insert(1, Item("between")),
    "list pop": lambda it: [it.row.pop(0), it.row.pop(), it.numbers.pop(-2)],
    "list del": lambda it: [it.row.__delitem__(-1), it.numbers.__delitem__(slice(0, 2))],
    "slices": lambda it: [it.row[1:], it.numbers[-1], it.numbers.__setitem__(slice(0, 1), [9, 9])],
    "remove": lambda it: [it.numbers.remove(1), fails(lambda: it.numbers.remove(77))],
    "index": lambda it: [it.numbers.index(2), it.numbers.count(1), it.row.index(Item("a", 1)), 2 in it.numbers],
    "reverse": lambda it: [it.row.reverse(), it.numbers.reverse()],
    "sort": lambda it: [it.row.sort(key=operator.attrgetter("name")), it.numbers.sort(reverse=True)],
    "sort by state": lambda it: it.numbers.sort(key=lambda n: it.row[n].name),
    "list copy": lambda it: [it.row.copy(), it.row.clear()],
    "list eq": lambda it: [it.numbers == [0, 1, 2], it.numbers == [], it.row[0] == Item("c", 0)],
    "swap": swapped,
    "methods": lambda it: [it.items["a"].grow(3), it.row[2].grow(), it.row[2].half, it.items["a"].tags],
    "nested": lambda it: [it.shelf.items[0].grow(), it.shelf.__setattr__("label", "low"), it.shelf.label],
    "deepcopy": lambda it: [copy.deepcopy(it.items["a"]), it.items["a"].grow(), copy.copy(it.shelf)],
    "in place": lambda it: [it.items["a"].__setattr__("size", it.items["a"].size + 5), it.items["a"].size],
    "whole field": lambda it: [it.__setattr__("numbers", [1]), it.__setattr__("row", it.row[:1]), it.numbers],
    "a step that raises": caught,
}  # fmt: skip


def world() -> World:
    made = World()
    made.start(Desk, "desk")
    made.start(Waiting, "waiting")
    made.ask("desk", "fill")
    return made


def left(it: World) -> tuple[object, object]:
    """What was answered, and what the state is then."""
    outcome = it.nodes["desk"].outcomes["r"]
    assert not outcome.error, outcome
    return msgspec.msgpack.decode(outcome.result), it.nodes["desk"].machine.state()


@pytest.mark.parametrize("times", [0, 1, 2])
@pytest.mark.parametrize("what", WORK)
def test_a_handler_that_is_re_created_has_done_what_a_plain_one_does(what: str, times: int) -> None:
    plain, waits = world(), world()
    plain.ask("desk", "plainly", what)
    waits.ask("desk", "with_a_wait", what)
    for _ in range(times):
        waits.checkpoint("desk")
        for one in (plain, waits):
            one.ask("desk", "fill", request="another")  # the state goes on meanwhile
        waits.crash("desk")
    waits.settle()
    assert left(waits) == left(plain)


def test_a_handler_that_an_upgrade_re_creates_tidies_up_once() -> None:
    waits = world()
    waits.ask("desk", "tidies_up")
    waits.crash("desk", upgrade_to=Desk2, end=MessageType.UPGRADE_TAKE_CHECKPOINT)
    waits.settle()
    found = waits.nodes["desk"].machine.instance
    assert isinstance(found, Desk2)
    assert list(found.noted) == ["tidied"]
