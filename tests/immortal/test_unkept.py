"""What a checkpoint could not hold, or could not be read back from one: a handler that gives it to us fails, or, where
that cannot be known in time, the field is named."""

from __future__ import annotations

import datetime as dt
import enum
import zoneinfo
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.immortal.world import World

from penstock.immortal import Immortal, field, impulse, rpc, step
from penstock.immortal.binding.errors import UnkeptError
from penstock.immortal.binding.values import from_wire, to_wire


class Point(NamedTuple):
    x: int
    y: int


class Named(Point):
    """One that is made in its own way."""

    def __new__(cls, x: int) -> Named:
        return super().__new__(cls, x, -x)


class Rights(enum.IntFlag):
    READ = 1
    WRITE = 2


@dataclass(frozen=True)
class Counted:
    name: str
    length: int = dataclass_field(init=False, default=0)


class Word(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "another"


class WantsError(Exception):
    def __new__(cls, text: str, *, code: int) -> WantsError:
        return super().__new__(cls, text)

    def __init__(self, text: str, *, code: int) -> None:
        super().__init__(text)
        self.code = code


class _Inner:
    """What stands in a function is found by nobody; here it stands for that."""

    class Local(enum.Enum):
        ONE = 1

    Local.__qualname__ = "made.<locals>.Local"


GIVEN: dict[str, object] = {
    "flags": Rights.READ | Rights.WRITE,
    "no flags": Rights(0),
    "counted": Counted("x"),
    "named": Named(3),
    "word": Word("x"),
    "fold": dt.datetime(2026, 10, 25, 2, 30, fold=1),
    "zone": dt.datetime(2026, 7, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
    "pairs": (("a", Rights(3)), frozenset({1})),
    "large": 1 << 70,
    "no text": "\ud800",
    "local": _Inner.Local.ONE,
    "list": type("List", (list,), {})([1]),
}
THROWN: dict[str, Callable[[], Exception]] = {
    "wants": lambda: WantsError("x", code=1),
    "no text": lambda: ValueError("\ud800"),
    "word": lambda: KeyError(Word("x")),
    "group": lambda: ExceptionGroup("several", [ValueError(1)]),
    "local": lambda: type("LocalError", (Exception,), {})("x"),
}


class Careless(Immortal):
    """Keeps, and asks to be kept, whatever there is."""

    now_at: Point = Point(1, 2)
    points: dict[str, Point] = field(dict)
    places: dict[tuple[int, int], str] = field(dict)
    whatever: Any = None
    rings: int = 0

    @rpc
    def double(self, n: int) -> int:
        return 2 * n

    @impulse
    async def moves(self) -> list[int]:
        before, there = self.now_at, self.here(3)
        got = await Careless.at("b").double(before.x)
        assert isinstance(there, Point)
        return [got, there.y]

    @step
    def here(self, x: int) -> Point:
        self.points["here"] = Point(x, self.now_at.y)
        return self.points["here"]

    @impulse
    async def is_given(self, what: str) -> str:
        given = self.give(what)
        await Careless.at("b").double(1)
        return f"{type(given).__name__} {given!r}"

    @step
    def give(self, what: str) -> Any:
        return GIVEN[what]

    @impulse
    async def is_thrown_at(self, what: str) -> str:
        try:
            self.throw(what)
        except Exception as error:  # noqa: BLE001 - whatever it is
            caught = type(error).__name__
        await Careless.at("b").double(1)
        return caught

    @step
    def throw(self, what: str) -> None:
        raise THROWN[what]()

    @impulse
    async def looks_for(self, what: str) -> bool:
        found = self.points.get(GIVEN[what]) is not None  # type: ignore[call-overload]
        await Careless.at("b").double(1)
        return found

    @impulse
    def emits(self, ns: Any, data: Any) -> int:
        return self.emit(ns, "insert", object() if data == "no JSON" else data)

    @impulse
    def emits_no_text(self) -> int:
        return self.emit("\ud800", "insert", {})

    @impulse
    def declares(self, ns: Any) -> None:
        self.declare("good", ns)

    @impulse
    def rings_in(self, seconds: str) -> int:
        return self.after(Decimal(seconds), self.ring)  # type: ignore[arg-type]

    @impulse
    def puts(self) -> None:
        self.places[1, 2] = "x"

    @impulse
    def ring(self) -> None:
        self.rings += 1

    @impulse
    def keeps(self, what: str) -> None:
        self.whatever = {"large": 1 << 70, "no text": "\ud800", "no value": object()}[what]


@pytest.fixture
def world() -> World:
    made = World()
    made.start(Careless, "a")
    made.start(Careless, "b")
    return made


def ended(world: World, request: str = "r") -> Any:
    outcome = world.nodes["a"].outcomes[request]
    return outcome.kind or msgspec.msgpack.decode(outcome.result)


def comes_back(world: World) -> None:
    world.checkpoint("a")
    world.crash("a")


def test_a_handler_that_has_read_a_named_tuple_outlives_a_checkpoint(world: World) -> None:
    world.ask("a", "moves")
    comes_back(world)
    world.settle()
    assert ended(world) == [2, 2]


@pytest.mark.parametrize(
    ("method", "what"),
    [*(("is_given", what) for what in GIVEN), *(("is_thrown_at", what) for what in THROWN)],
)
def test_a_handler_has_the_same_whether_it_was_re_created_or_not(method: str, what: str) -> None:
    ends = []
    for between in (lambda _: None, comes_back):
        world = World()
        world.start(Careless, "a")
        world.start(Careless, "b")
        world.ask("a", method, what)
        between(world)
        world.settle()
        ends.append(ended(world))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("what", ["no text", "local"])
def test_a_key_that_no_checkpoint_can_keep_is_told_before_one_is_written(world: World, what: str) -> None:
    world.ask("a", "looks_for", what)
    with pytest.raises(UnkeptError, match=r"looks_for \(handler 1\) has used something, as a key say"):
        world.checkpoint("a")


def test_a_named_tuple_comes_back_as_one() -> None:
    assert from_wire(to_wire(("k", Point(1, 2)))) == ("k", Point(1, 2))
    assert type(from_wire(to_wire(Point(1, 2)))) is Point


@pytest.mark.parametrize(
    ("method", "arguments", "kind"),
    [
        ("emits", [5, {}], "UsageError"),
        ("emits", [None, {}], "UsageError"),
        ("emits", ["ns", "no JSON"], "TypeError"),
        ("emits_no_text", [], "UsageError"),
        ("declares", [5], "UsageError"),
        ("rings_in", ["nan"], "UsageError"),
        ("rings_in", ["inf"], "UsageError"),
    ],
)
def test_what_would_not_be_read_back_is_refused_where_it_is_given(
    world: World, method: str, arguments: list[object], kind: str
) -> None:
    world.ask("a", "emits", "ns", {"n": 1})
    world.ask("a", method, *arguments)
    assert ended(world) == kind
    comes_back(world)
    world.ask("a", "emits", "ns", {"n": 2})
    runtime = world.nodes["a"].machine.runtime
    assert ended(world) == runtime.emitted == 2, "who reads takes a gap for what another one took"
    assert [one.number for one in runtime.outbox] == [1, 2]
    assert list(runtime.namespaces) == ["ns"]


def test_a_timer_of_a_decimal_comes_back(world: World) -> None:
    world.ask("a", "rings_in", "2.5")
    comes_back(world)
    for _ in range(3):
        world.tick("a")
        world.now += 2
    comes_back(world)
    assert world.nodes["a"].machine.instance.__dict__["_values"]["rings"] == 1


def test_a_state_with_keys_that_json_has_not_is_kept_and_shown(world: World) -> None:
    world.ask("a", "puts")
    comes_back(world)
    shown = world.nodes["a"].machine.state()
    assert isinstance(shown, dict)
    assert shown["places"] == {"(1, 2)": "x"}


@pytest.mark.parametrize("what", ["large", "no text", "no value"])
def test_state_that_no_checkpoint_can_keep_is_named_and_a_mended_class_goes_on(what: str) -> None:
    class Mended(Careless):
        @impulse
        def keeps(self, what: str) -> None:
            self.whatever = what

    Mended.__name__ = "Careless"
    world = World()
    world.start(Careless, "a")
    with pytest.raises(
        UnkeptError, match=r"Careless\.whatever holds something that no checkpoint can keep"
    ) as no:
        world.ask("a", "keeps", what)
    assert "mend the class" in str(no.value.hint)
    world.crash("a", cls=Mended)
    comes_back(world)
    assert world.nodes["a"].machine.instance.__dict__["_values"]["whatever"] == what
