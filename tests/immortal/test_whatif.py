"""Each way in which new code can differ from the code that made the log: found, and told, at its first input."""

from __future__ import annotations

import io

import pytest
from tests.immortal.world import COMMITTER, World

from penstock.immortal import Immortal, field, impulse, rpc
from penstock.immortal.binding.whatif import Difference, WhatIf
from penstock.immortal.wire import MessageType, Record, encode_message


class Shop(Immortal):
    stock: dict[str, int] = field(dict)
    sold: int = 0

    @impulse
    async def sell(self, name: str, count: int) -> int:
        if count > 10:
            raise ValueError("too many")
        self.stock[name] = self.stock.get(name, 0) - count
        self.emit("sales", "insert", {"name": name, "count": count}, key={"name": name})
        self.sold += await self.weigh(count)
        return self.sold

    @rpc
    def weigh(self, count: int) -> int:
        return count * 2

    @impulse
    def note(self, name: str) -> None:
        self.stock.setdefault(name, 0)


class Same(Shop):
    version = 1
    extra: int = 5


class Sends(Same):
    @impulse
    async def sell(self, name: str, count: int) -> int:
        self.stock[name] = self.stock.get(name, 0) - count
        self.emit("sales", "insert", {"name": name, "count": count}, key={"name": name})
        self.sold += await self.weigh(count + (count == 3))
        return self.sold


class Answers(Same):
    @rpc
    def weigh(self, count: int) -> int:
        return count * 2 + (count == 3)


class Emits(Same):
    @impulse
    async def sell(self, name: str, count: int) -> int:
        self.stock[name] = self.stock.get(name, 0) - count
        self.emit("sales", "insert", {"name": name, "count": -count}, key={"name": name})
        self.sold += await self.weigh(count)
        return self.sold


class Tells(Same):
    @impulse
    async def sell(self, name: str, count: int) -> int:
        if count > 10:
            raise ValueError("far too many")
        self.stock[name] = self.stock.get(name, 0) - count
        self.emit("sales", "insert", {"name": name, "count": count}, key={"name": name})
        self.sold += await self.weigh(count)
        return self.sold


class Fails(Same):
    @impulse
    def note(self, name: str) -> None:
        raise ValueError(name)


class Keeps(Same):
    @impulse
    def note(self, name: str) -> None:
        self.stock.setdefault(name, 1)


@pytest.fixture(scope="module")
def world() -> World:
    made = World()
    made.start(Shop, "shop")
    made.ask("shop", "sell", "a", 2)
    made.settle()
    made.checkpoint("shop", forget=False)
    made.ask("shop", "sell", "a", 3)
    made.settle()
    made.ask("shop", "sell", "a", 99)
    instance = made.nodes["shop"].machine.instance
    assert isinstance(instance, Shop)
    instance.note.send("b")
    made.collect(made.nodes["shop"])
    return made


def tried(world: World, new: type[Immortal]) -> tuple[Difference | None, int]:
    node = world.nodes["shop"]
    assert node.saved is not None
    both = WhatIf(Shop, new, "shop")
    both.load(io.BytesIO(node.saved.blob))
    both.receive(Record(COMMITTER, -1, encode_message(MessageType.UPGRADE_SERVICE)))
    for at, body in enumerate(node.log):
        if at >= node.saved.at and (found := both.receive(Record(COMMITTER, at, body))) is not None:
            return found, both.inputs
    return None, both.inputs


def test_code_that_does_the_same_has_no_difference(world: World) -> None:
    assert tried(world, Same) == (None, 5)


@pytest.mark.parametrize(
    ("new", "old_words", "new_words"),
    [
        (Sends, "to itself: call 2, weigh, arguments [3]", "to itself: call 2, weigh, arguments [4]"),
        (Answers, "to itself: answer to its call 2: 6", "to itself: answer to its call 2: 7"),
        (
            Emits,
            'emits to sales: insert {"name":"a","count":3}, key {"name":"a"}',
            'emits to sales: insert {"name":"a","count":-3}, key {"name":"a"}',
        ),
        (
            Tells,
            "to its caller outside: raises ValueError: too many",
            "to its caller outside: raises ValueError: far too many",
        ),
        (Fails, None, "its handler fails"),
        (Keeps, "leaves stock = {'a': -5, 'b': 0}", "leaves stock = {'a': -5, 'b': 1}"),
    ],
)
def test_what_new_code_does_otherwise_is_told(
    world: World, new: type[Immortal], old_words: str | None, new_words: str
) -> None:
    difference, _ = tried(world, new)
    assert difference is not None
    assert new_words in difference.new
    assert new_words not in difference.old
    if old_words is not None:
        assert old_words in difference.old
    assert f"the new code does:\n    {difference.new[0]}" in str(difference)
