"""What a class can do: calls, answers, awaits that outlive anything, timers, calls from outside, upgrades."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.immortal.world import World

from penstock.base.errors import UsageError
from penstock.immortal import (
    DeterminismError,
    Immortal,
    RemoteError,
    UpgradeRefusedError,
    field,
    gather,
    impulse,
    rpc,
    step,
)
from penstock.immortal.binding.machine import Phase
from penstock.immortal.wire import MessageType


class Account(msgspec.Struct):
    balance: int = 0
    moves: list[int] = msgspec.field(default_factory=list)

    def add(self, amount: int) -> int:
        self.balance += amount
        self.moves.append(amount)
        return self.balance


class Ledger(Immortal):
    """The other side: it holds sums."""

    sums: dict[str, int] = field(dict)
    calls: int = 0

    @rpc
    def add(self, name: str, amount: int) -> int:
        self.calls += 1
        if amount < 0:
            raise ValueError("no negative amounts")
        self.sums[name] = self.sums.get(name, 0) + amount
        return self.sums[name]

    @rpc
    async def ask_back(self, bank: str, name: str) -> int:
        self.calls += 1
        return await Bank.at(bank).balance(name) + 1


class Bank(Immortal):
    accounts: dict[str, Account] = field(dict)
    started: int = 0
    log: list[str] = field(list)
    fired: int = 0

    def on_first_start(self) -> None:
        self.started += 1

    @rpc
    def balance(self, name: str) -> int:
        return self.accounts[name].balance

    @impulse
    async def deposit(self, name: str, amount: int) -> int:
        account = self.accounts.setdefault(name, Account())
        account.add(amount)
        self.log.append(f"before {name}")
        total = await Ledger.at("ledger").add(name, amount)
        self.log.append(f"after {name} {total}")
        assert account.balance >= amount
        return total

    @impulse
    async def round_trip(self, name: str) -> int:
        return await Ledger.at("ledger").ask_back(self.name, name)

    @impulse
    async def spread(self, names: list[str]) -> list[int]:
        return await gather(*(Ledger.at("ledger").add(name, 1) for name in names))

    @impulse
    async def fails(self) -> str:
        try:
            await Ledger.at("ledger").add("x", -1)
        except RemoteError as error:
            return f"{error.kind}, {error.text}"
        return ""

    @impulse
    async def stepped(self, name: str) -> int:
        before = self.count(name)
        await Ledger.at("ledger").add(name, 1)
        return before + self.count(name)

    @step
    def count(self, name: str) -> int:
        self.accounts.setdefault(name, Account()).balance += 1
        return self.accounts[name].balance

    @impulse
    async def twice(self) -> int:
        call = Ledger.at("ledger").add("a", 1)
        return await call + await call

    @impulse
    async def twice_at_once(self) -> list[int]:
        call = Ledger.at("ledger").add("a", 1)
        return await gather(call, call)

    @impulse
    def later(self, seconds: float) -> int:
        return self.after(seconds, self.bell)

    @impulse
    def bell(self) -> None:
        self.fired += 1


class Bank2(Immortal):
    """The bank, with one field more, and another name for one."""

    version = 1
    accounts: dict[str, Account] = field(dict)
    log: list[str] = field(list)
    rings: int = 0
    owners: dict[str, Account] = field(dict)

    def on_upgrade(self, old: Bank) -> None:
        self.rings = old.fired + 100
        self.owners = old.accounts

    balance = Bank.balance
    deposit = Bank.deposit


class Bank3(Bank2):
    """What it does before its await is something else."""

    version = 3

    @impulse
    async def deposit(self, name: str, amount: int) -> int:
        self.log.append("something else")
        return await Ledger.at("ledger").add(name, amount)


@pytest.fixture
def world() -> World:
    world = World()
    world.start(Bank, "bank")
    world.start(Ledger, "ledger")
    return world


def bank(world: World) -> Bank:
    found = world.nodes["bank"].machine.instance
    assert isinstance(found, Bank)
    return found


def result(world: World, request: str = "r") -> object:
    outcome = world.nodes["bank"].outcomes[request]
    assert not outcome.error, outcome
    return msgspec.msgpack.decode(outcome.result)


def test_the_first_start_runs_its_hook_once(world: World) -> None:
    assert bank(world).started == 1
    world.crash("bank")
    assert bank(world).started == 1


def test_a_call_from_outside_awaits_another_immortal(world: World) -> None:
    world.ask("bank", "deposit", "a", 5)
    world.settle()
    assert result(world) == 5
    assert list(bank(world).log) == ["before a", "after a 5"]


def test_an_exception_is_the_answer_to_a_call(world: World) -> None:
    world.ask("bank", "fails")
    world.settle()
    assert result(world) == "ValueError, no negative amounts"


def test_calls_at_once_are_answered_in_their_order(world: World) -> None:
    world.ask("bank", "spread", ["a", "b", "a"])
    world.settle()
    assert result(world) == [1, 1, 2]


def test_a_awaits_b_awaits_a(world: World) -> None:
    world.ask("bank", "deposit", "a", 5)
    world.settle()
    world.ask("bank", "round_trip", "a", request="second")
    world.settle()
    assert result(world, "second") == 6


@pytest.mark.parametrize("forget", [True, False])
@pytest.mark.parametrize("crashes", [1, 3])
def test_an_open_handler_goes_on_after_recovery_though_the_older_log_is_gone(
    world: World, forget: bool, crashes: int
) -> None:
    world.ask("bank", "deposit", "a", 5)
    world.checkpoint("bank", forget=forget)
    for _ in range(crashes):
        world.crash("bank")
        assert world.nodes["bank"].machine.open_handlers == 1
        assert bank(world).accounts["a"].balance == 5, "what it did before its await is done once"
    world.settle()
    world.checkpoint("bank")
    world.crash("bank")
    assert list(bank(world).log) == ["before a", "after a 5"]
    assert bank(world).accounts["a"].moves == [5]
    ledger = world.nodes["ledger"].machine.instance
    assert isinstance(ledger, Ledger)
    assert (ledger.calls, dict(ledger.sums)) == (1, {"a": 5})


def test_an_open_handler_goes_on_after_a_promotion(world: World) -> None:
    world.ask("bank", "deposit", "a", 5)
    world.crash("bank", end=MessageType.BECOMING_PRIMARY)
    world.settle()
    assert result(world) == 5
    assert bank(world).accounts["a"].balance == 5


def test_state_that_changed_meanwhile_does_not_lead_a_handler_astray(world: World) -> None:
    """What it read before its await is what the record says, not what the state has become."""
    world.ask("bank", "stepped", "a")
    world.ask("bank", "stepped", "a", request="other")
    world.checkpoint("bank")
    world.crash("bank")
    assert bank(world).accounts["a"].balance == 2
    world.settle()
    assert (result(world), result(world, "other")) == (1 + 3, 2 + 4)


@given(st.lists(st.sampled_from(["ask", "deliver", "crash", "roll", "peer crash", "peer roll"]), max_size=25))
def test_any_order_of_crashes_and_checkpoints_leaves_exact_totals(events: list[str]) -> None:
    world = World()
    world.start(Bank, "bank")
    world.start(Ledger, "ledger")
    asked = 0
    for event in events:
        if event == "ask":
            asked += 1
            world.ask("bank", "deposit" if asked % 3 else "stepped", *(["a", 1] if asked % 3 else ["a"]))
        elif event == "deliver":
            world.deliver()
        elif event.endswith("crash"):
            world.crash("ledger" if "peer" in event else "bank")
        else:
            world.checkpoint("ledger" if "peer" in event else "bank")
    world.settle()
    world.crash("bank")
    world.crash("ledger")
    ledger = world.nodes["ledger"].machine.instance
    assert isinstance(ledger, Ledger)
    assert (ledger.calls, ledger.sums.get("a", 0)) == (asked, asked)
    assert world.nodes["bank"].machine.runtime.next_call == asked + 1
    if asked:
        assert bank(world).accounts["a"].balance == asked + asked // 3
    assert world.nodes["bank"].machine.open_handlers == 0


def test_a_key_makes_a_call_from_outside_happen_once(world: World) -> None:
    world.ask("bank", "deposit", "a", 5, key="k")
    world.ask("bank", "deposit", "a", 5, key="k", request="again")
    world.crash("bank")
    world.settle()
    world.ask("bank", "deposit", "a", 5, key="k", request="late")
    assert (result(world, "late"), bank(world).accounts["a"].balance) == (5, 5)


def test_old_keys_are_forgotten_and_open_ones_are_not(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bank, "dedupe_keep", 2)
    world.ask("bank", "deposit", "a", 1, key="open")
    for number in range(4):
        world.ask("bank", "later", 1.0, key=f"k{number}")
    keys = world.nodes["bank"].machine.runtime.keys
    assert list(keys) == ["open", "k0", "k1", "k2", "k3"]
    world.settle()
    assert list(keys) == ["k2", "k3"]


@pytest.mark.parametrize("method", ["twice", "twice_at_once"])
def test_a_call_that_is_awaited_twice_is_a_mistake_that_is_told(world: World, method: str) -> None:
    """Its answer comes once: the handler waited for ever."""
    world.ask("bank", method)
    world.checkpoint("bank")
    world.crash("bank")
    world.settle()
    assert "awaited twice" in world.nodes["bank"].outcomes["r"].error
    assert world.nodes["bank"].machine.open_handlers == 0
    world.crash("bank")


def test_a_bad_call_from_outside_never_reaches_the_log(world: World) -> None:
    length = len(world.nodes["bank"].log)
    with pytest.raises(UsageError, match="no @impulse method 'depost'; did you mean 'deposit'"):
        world.ask("bank", "depost", "a", 5)
    with pytest.raises(UsageError, match="Expected `int`"):
        world.ask("bank", "deposit", "a", "five")
    with pytest.raises(UsageError, match="missing a required argument"):
        world.ask("bank", "deposit")
    with pytest.raises(UsageError, match="deposit: can't serialize ints"):
        world.ask("bank", "deposit", "a", 1 << 64)
    assert len(world.nodes["bank"].log) == length


def test_a_timer_outlives_crashes_and_fires_once(world: World) -> None:
    world.ask("bank", "later", 10.0)
    world.tick("bank")
    world.crash("bank")
    world.checkpoint("bank")
    world.now += 9
    world.tick("bank")
    assert bank(world).fired == 0
    world.crash("bank")
    world.now += 1
    world.tick("bank")
    world.tick("bank")
    assert bank(world).fired == 1
    world.crash("bank")
    world.tick("bank")
    assert bank(world).fired == 1


def test_an_upgrade_converts_state_and_open_handlers(world: World) -> None:
    world.ask("bank", "deposit", "a", 5)
    world.crash("bank", upgrade_to=Bank2, end=MessageType.UPGRADE_TAKE_CHECKPOINT)
    node = world.nodes["bank"]
    new = node.machine.instance
    assert isinstance(new, Bank2)
    assert new.rings == 100
    assert new.owners["a"].balance == 5
    world.crash("bank", Bank2)
    world.settle()
    assert list(node.machine.instance.log) == ["before a", "after a 5"]
    world.crash("bank", Bank, upgrade_to=Bank2)
    assert node.machine.spec.cls is Bank2, "the checkpoint says that the upgrade is done"


def test_an_upgrade_that_cannot_go_on_with_an_open_handler_is_refused(world: World) -> None:
    world.ask("bank", "deposit", "a", 5)
    with pytest.raises(UpgradeRefusedError, match="step 1 was: read accounts; now it is: read log"):
        world.crash("bank", upgrade_to=Bank3, end=MessageType.UPGRADE_TAKE_CHECKPOINT)
    world.crash("bank")
    world.settle()
    assert result(world) == 5


def test_another_class_does_not_take_a_checkpoint_by_accident(world: World) -> None:
    with pytest.raises(UsageError, match="written by Bank/0, this is Bank2/1"):
        world.crash("bank", Bank2)


def test_a_secondary_takes_checkpoints_and_is_not_primary(world: World) -> None:
    world.ask("bank", "deposit", "a", 5)
    world.crash("bank", end=MessageType.TAKE_CHECKPOINT)
    assert world.nodes["bank"].machine.phase is Phase.RECOVERING
    with pytest.raises(DeterminismError, match="while recovering"):
        bank(world).bell.send()
