"""What a binding gets at each kind of start, message for message, and what ends a coordinator."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.immortal.lb import App, Lb, _connect, fork
from tests.servers.ports import free_port

from penstock.base.errors import PenstockError
from penstock.immortal import about, checkpoints, journals, pace, turns, watching
from penstock.immortal.checkpoints import Entry, MissingCheckpointError
from penstock.immortal.coordinator import Asked, Coordinator, FatalError, Options, fatal
from penstock.immortal.logformat import CorruptLogError, Mark, Upgraded, encode_log_record
from penstock.immortal.place import Place, opened
from penstock.immortal.starting import Debug, serve
from penstock.immortal.streams import Hello, Welcome, connected, line, read_line
from penstock.immortal.wire import Call, CorruptWireError, MessageType, RpcType, encode_message
from penstock.journal import labels
from penstock.journal.client import AsyncClient, BrokerGoneError, FencedError, OffsetJumpError, TimedOutError
from penstock.journal.client.answers import Appended
from penstock.journal.embedded import EmbeddedBroker


class Counter(App):
    """Adds up; a large argument is only measured."""

    def __init__(self) -> None:
        super().__init__()
        self.state = {"sum": 0, "firsts": 0, "largest": 0, "version": 1}

    def first(self) -> None:
        self.state["firsts"] += 1

    def call(self, method: int, arguments: bytes) -> None:
        if method == 9:
            self.state["largest"] = max(self.state["largest"], len(arguments))
            return
        self.state["sum"] += json.loads(arguments)["n"]

    def upgraded(self) -> None:
        self.state["version"] = 2


class Running:
    """A coordinator and its binding in this event loop."""

    def __init__(self, options: Options, place: Place, debug: Debug | None = None) -> None:
        self.options = replace(options, receive_port=free_port(), send_port=free_port())
        self.app = Counter()
        self.lb = Lb(self.app)
        self.coordinator = asyncio.ensure_future(serve(self.options, place, lambda _: None, debug))
        self.binding = asyncio.ensure_future(self.lb.run(self.options.receive_port, self.options.send_port))

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not true():
                if self.coordinator.done():
                    self.coordinator.result()
                self.lb.changed.clear()
                waiting = asyncio.ensure_future(self.lb.changed.wait())
                await asyncio.wait(
                    (waiting, self.coordinator), timeout=1, return_when=asyncio.FIRST_COMPLETED
                )
                waiting.cancel()

    async def seen(self, *what: str) -> None:
        """Exactly this came, in this order."""
        await self.until(lambda: len(self.lb.seen) >= len(what))
        assert self.lb.seen == list(what)

    def add(self, n: int) -> None:
        self.lb.impulse("", Call(1, RpcType.IMPULSE, json.dumps({"n": n}).encode()))

    async def end(self) -> BaseException | None:
        """As a crash would."""
        self.coordinator.cancel()
        self.binding.cancel()
        await asyncio.wait((self.coordinator, self.binding))
        for task in (self.coordinator, self.binding):
            if not task.cancelled() and (error := task.exception()) is not None:
                return error
        return None


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("immortal") / "journals") as serving:
        yield serving.address


@asynccontextmanager
async def instance(place: Place, options: Options, debug: Debug | None = None) -> AsyncIterator[Running]:
    running = Running(options, place, debug)
    try:
        yield running
    finally:
        await running.end()


def scenario(broker: str, test: Callable[[Place, Options], Any], name: str) -> None:
    async def run() -> None:
        async with opened(broker) as place:
            await test(place, Options(name, 0, 0))

    asyncio.run(run())


async def eventually(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await true():  # noqa: ASYNC110 - what is waited for is told by nobody
            await asyncio.sleep(0.02)


async def has_checkpoints(place: Place, options: Options, number: int) -> None:
    """The last checkpoint has this number."""

    async def is_there() -> bool:
        last = (await checkpoints.catalogue(place.client, options.name)).last
        return last is not None and last.number >= number

    await eventually(is_there)


async def _is_trimmed(place: Place, journal: str) -> bool:
    return await place.client.begin(journal) > 0


def test_first_start_then_recoveries(broker: str) -> None:
    async def test(place: Place, options: Options) -> None:
        async with instance(place, options) as one:
            await one.seen("control 11", "record 0")
            one.add(5)
            await one.seen("control 11", "record 0", "record 1")
        async with instance(place, options) as two:
            await two.until(lambda: "control 11" in two.lb.seen)
            await two.seen("checkpoint", "record 0", "record 1", "control 11")
            assert (two.app.state["sum"], two.app.state["firsts"]) == (5, 1)
            two.add(6)
            await two.until(lambda: "record 2" in two.lb.seen)
        async with instance(place, options) as three:
            await three.seen("checkpoint", "record 2", "control 11")
            assert three.app.state["sum"] == 11

    scenario(broker, test, "first")


def test_a_crash_before_the_first_record_keeps_the_initial_message(
    broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(place: Place, options: Options) -> None:
        async def never(*_: object) -> None:
            await asyncio.Event().wait()

        with monkeypatch.context() as patch:
            patch.setattr(Coordinator, "commit_record", never)
            async with instance(place, options) as one:
                await one.seen("control 11")
                await has_checkpoints(place, options, 1)
            async with instance(place, options) as two:  # and again before its record, in its second life
                await two.seen("checkpoint", "control 11")
                await has_checkpoints(place, options, 2)
        async with instance(place, options) as three:
            await three.seen("checkpoint", "control 11", "record 0")
            assert three.app.state["firsts"] == 1

    scenario(broker, test, "initial")


def test_upgrade_and_the_versions_around_it(broker: str) -> None:
    async def test(place: Place, options: Options) -> None:
        async with instance(place, options) as old:
            await old.seen("control 11", "record 0")
        async with instance(place, replace(options, upgrade=1)) as new:
            await new.seen("checkpoint", "record 0", "control 10", "control 2")
            assert new.app.state["version"] == 2
            await has_checkpoints(place, options, 3)
        async with instance(place, options) as stale:
            with pytest.raises(FatalError, match="version mismatch"):
                await stale.until(lambda: False)
        async with instance(place, replace(options, version=1, upgrade=1)) as again:
            await again.seen("checkpoint", "control 11")
            assert again.app.state["version"] == 2

    scenario(broker, test, "upgrade")


def test_a_re_run_ends_where_another_version_took_over(broker: str) -> None:
    async def test(place: Place, options: Options) -> None:
        async with instance(place, options) as old:
            await old.seen("control 11", "record 0")
            old.add(1)
            await old.until(lambda: "record 1" in old.lb.seen)
        async with instance(place, replace(options, upgrade=1)) as new:
            await new.until(lambda: new.lb.is_primary)
            new.add(2)
            await new.until(lambda: "record 2" in new.lb.seen)
            async with (
                instance(place, options, Debug(1)) as before,
                instance(place, options, Debug(2)) as behind,
            ):
                await behind.until(lambda: "record 2" in behind.lb.seen)
                new.add(3)
                await behind.until(lambda: "record 3" in behind.lb.seen)
                await before.seen("checkpoint", "record 0", "record 1")

    scenario(broker, test, "outlived")


def test_repro_and_what_if_replay_and_follow(broker: str) -> None:
    async def test(place: Place, options: Options) -> None:
        async with instance(place, options) as live:
            await live.seen("control 11", "record 0")
            live.add(7)
            await live.until(lambda: "record 1" in live.lb.seen)
            async with (
                instance(place, options, Debug(1)) as repro,
                instance(place, options, Debug(1, upgrade=True)) as what_if,
            ):
                await repro.seen("checkpoint", "record 0", "record 1")
                await what_if.seen("checkpoint", "control 12", "record 0", "record 1")
                live.add(8)
                await repro.seen("checkpoint", "record 0", "record 1", "record 2")
                assert repro.app.state["sum"] == 15
                assert what_if.app.state["version"] == 2
            async with instance(place, options, Debug(9)) as missing:
                with pytest.raises(MissingCheckpointError, match="no checkpoint 9; there are: 1"):
                    await missing.until(lambda: False)
            async with instance(place, replace(options, name="nobody"), Debug(1)) as nobody:
                with pytest.raises(FatalError, match="no instance nobody to re-run"):
                    await nobody.until(lambda: False)
            assert "nobody" not in await journals.instances(place.client)
            live.add(1)
            await live.until(lambda: "record 3" in live.lb.seen)

    scenario(broker, test, "repro")


def test_a_checkpoint_on_request_rolls_the_log_and_old_ones_are_deleted(broker: str) -> None:
    async def test(place: Place, options: Options) -> None:
        async with instance(place, replace(options, keep=2)) as one:
            await one.seen("control 11", "record 0")
            for number in range(3):
                one.add(number)
                await one.until(lambda n=number: f"record {n + 1}" in one.lb.seen)  # type: ignore[misc]
                one.lb.writer.write(encode_message(MessageType.TAKE_CHECKPOINT))
                await one.until(lambda n=number: one.lb.seen.count("control 2") == n + 1)  # type: ignore[misc]
            await has_checkpoints(place, options, 4)
            log = journals.journal_name(options.name, "log")
            await eventually(lambda: _is_trimmed(place, log))
            there = await checkpoints.catalogue(place.client, options.name)
            assert [entry.number for entry in there.entries] == [3, 4]
            described = await about.describe(place.client, options.name)
            assert described.log_begin > 0
            assert described.checkpoints == there.entries
            async with instance(place, options, Debug(1)) as deleted:
                with pytest.raises(MissingCheckpointError, match="no checkpoint 1; there are: 3, 4"):
                    await deleted.until(lambda: False)
        async with instance(place, options) as two:
            await two.seen("checkpoint", "control 11")
            assert two.app.state["sum"] == 3

    scenario(broker, test, "rolling")


def test_a_log_that_grows_in_lives_that_are_short_is_rolled_all_the_same(broker: str) -> None:
    """Who is promoted takes no checkpoint: nobody did, and each start replayed more."""

    async def test(place: Place, options: Options) -> None:
        options = replace(options, active=True, trigger=6000)
        for life in range(4):
            async with instance(place, options) as one:
                await one.until(lambda: one.lb.is_primary)
                one.lb.impulse("", Call(9, RpcType.IMPULSE, bytes(4000)))
                await one.until(lambda: f"record {life + 1}" in one.lb.seen)  # noqa: B023
                if life == 1:
                    await one.until(lambda: "control 2" in one.lb.seen)
                    await has_checkpoints(place, options, 2)
        described = await about.describe(place.client, options.name)
        assert described.log_since_checkpoint < 2 * options.trigger

    scenario(broker, test, "short")


def test_a_checkpoint_that_is_asked_for_while_one_is_taken_is_the_next_one(broker: str) -> None:
    async def test(place: Place, options: Options) -> None:
        request = encode_message(MessageType.TAKE_CHECKPOINT)
        async with instance(place, options) as one:
            await one.seen("control 11", "record 0")
            blob = one.app.blob

            def blob_that_asks_for_another() -> bytes:
                one.app.blob = blob  # type: ignore[method-assign]
                one.lb.writer.write(request)
                return blob()

            one.app.blob = blob_that_asks_for_another  # type: ignore[method-assign]
            one.lb.writer.write(request)
            await one.seen("control 11", "record 0", "control 2", "control 2")
            await has_checkpoints(place, options, 3)

    scenario(broker, test, "impatient")


def test_a_primary_says_how_many_calls_it_takes(broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "EVERY", 0.05)

    async def taken(place: Place, name: str, calls: int, rate: float) -> bool:
        found = await about.describe(place.client, name)
        return (found.calls, found.calls_per_second) == (calls, rate)

    async def test(place: Place, options: Options) -> None:
        async with instance(place, options) as one:
            await one.seen("control 11", "record 0")
            for number in range(3):
                one.add(number)
            await one.until(lambda: one.app.state["sum"] == 3)
            await eventually(lambda: taken(place, options.name, 3, 0.0))
        async with instance(place, options) as two:
            await two.until(lambda: two.app.state["sum"] == 3)
            await eventually(lambda: taken(place, options.name, 0, 0.0))
            two.add(1)
            await eventually(lambda: taken(place, options.name, 1, 0.0))

    scenario(broker, test, "paced")


def test_messages_of_32_mib_pass(broker: str) -> None:
    async def test(place: Place, options: Options) -> None:
        async with instance(place, options) as one:
            await one.seen("control 11", "record 0")
            one.lb.impulse("", Call(9, RpcType.IMPULSE, bytes(32 << 20)))
            one.add(1)
            await one.until(lambda: one.app.state["sum"] == 1)
            assert one.app.state["largest"] == 32 << 20
        async with instance(place, options) as two:
            await two.until(lambda: "control 11" in two.lb.seen)
            assert two.app.state["largest"] == 32 << 20

    scenario(broker, test, "large")


def test_a_checkpoint_of_no_bytes_is_one(broker: str) -> None:
    async def test(place: Place, options: Options) -> None:
        loaded: list[bytes] = []
        async with instance(place, options) as one:
            one.app.blob = lambda: b""  # type: ignore[method-assign]
            await one.seen("control 11", "record 0")
        async with instance(place, options) as two:
            two.app.load = lambda blob: loaded.append(blob)  # type: ignore[method-assign]
            await two.seen("checkpoint", "record 0", "control 11")
        assert loaded == [b""]

    scenario(broker, test, "empty")


@pytest.mark.parametrize("sent", [b"\x02\x03", b"\x06\x0d\x02\x02", b"\x01", b"\x04\x08\x00", b"\x02\x0b"])
def test_what_no_binding_may_send_ends_the_coordinator(broker: str, sent: bytes) -> None:
    async def test(place: Place, options: Options) -> None:
        async with instance(place, options) as one:
            await one.until(lambda: "control 11" in one.lb.seen)
            await one.until(lambda: one.lb.seen[-1].startswith("record"))
            one.lb.writer.write(sent)
            with pytest.raises(Exception) as raised:
                await one.until(lambda: False)
            ended = fatal(raised.value)
            assert ended is not None
            assert ended.code == 4

    scenario(broker, test, f"nonsense-{sent.hex()}")


WHOLE = b"".join(encode_log_record(0, 1, b"x" * 100, {}, {}))


@pytest.mark.parametrize(
    ("tail", "why"),
    [
        (bytes(64), "a record of -1 bytes"),
        (WHOLE[:40], "a record that goes on beyond the end of the log"),
        (WHOLE[:50] + bytes(1) + WHOLE[51:], "record 1 whose check bytes do not match its body"),
    ],
    ids=["zeros", "torn", "changed"],
)
def test_a_damaged_log_is_refused_and_nothing_of_it_is_applied(broker: str, tail: bytes, why: str) -> None:
    async def test(place: Place, options: Options) -> None:
        async with instance(place, options) as one:
            await one.seen("control 11", "record 0")
        log = journals.journal_name(options.name, "log")
        await place.client.append(log, tail)
        async with instance(place, options) as two:
            with pytest.raises(CorruptLogError, match=rf"log {log}, byte \d+: {why}"):
                await two.until(lambda: False)
            assert [what for what in two.lb.seen if what.startswith("control")] == []

    scenario(broker, test, f"damaged-{len(tail)}")


def test_a_log_that_is_gone_behind_the_checkpoint_is_missing(broker: str) -> None:
    """All of it: the coordinator waited for what comes next, without end."""

    async def test(place: Place, options: Options) -> None:
        async with instance(place, options) as one:
            await one.seen("control 11", "record 0")
            one.add(1)
            await one.until(lambda: "record 1" in one.lb.seen)
        log = journals.journal_name(options.name, "log")
        await place.client.roll(log)
        await place.client.trim(log, await place.client.head(log))
        for debug in (None, Debug(1)):
            async with instance(place, options, debug) as two:
                with pytest.raises(OffsetJumpError) as ended:
                    await two.until(lambda: False)
                found = fatal(ended.value)
                assert found is not None
                assert found.code == 3
                assert [what for what in two.lb.seen if what.startswith("control")] == []

    scenario(broker, test, "gone")


@pytest.mark.parametrize("is_all", [True, False], ids=["all", "its beginning"])
def test_a_checkpoint_that_is_gone_is_missing(broker: str, is_all: bool) -> None:
    async def test(place: Place, options: Options) -> None:
        journal = journals.journal_name(options.name, "checkpoints")
        async with instance(place, options) as one:
            await one.seen("control 11", "record 0")
        last = (await checkpoints.catalogue(place.client, options.name)).last
        assert last is not None
        await place.client.roll(journal)
        begin = await place.client.head(journal)
        if not is_all:  # the catalogue is said once more, by who got no further
            content = await place.client.read_bytes(journal, last.end, begin)
            where = labels.label_set({checkpoints.CATALOGUE: f"{begin}-{begin + len(content)}"})
            await place.client.append(journal, content, union=where)
        await place.client.trim(journal, begin)
        async with instance(place, options) as two:
            with pytest.raises(MissingCheckpointError) as ended:
                await two.until(lambda: False)
            found = fatal(ended.value)
            assert found is not None
            assert found.code == 2

    scenario(broker, test, f"no-checkpoint-{is_all}")


def test_an_impulse_in_replay_ends_the_coordinator(broker: str) -> None:
    async def test(place: Place, options: Options) -> None:
        async with instance(place, replace(options, active=True)) as one:
            await one.seen("control 11", "record 0")
            async with instance(place, replace(options, active=True, replica=1)) as two:
                await two.seen("checkpoint", "record 0")
                two.lb.is_primary = True  # it believes so
                two.add(1)
                with pytest.raises(CorruptWireError, match="Impulse in replay"):
                    await two.until(lambda: False)
            one.add(2)
            await one.until(lambda: one.app.state["sum"] == 2)

    scenario(broker, test, "eager")


def test_two_primaries_never_both_commit(broker: str) -> None:
    async def test(place: Place, options: Options) -> None:
        async with instance(place, options) as one:
            await one.seen("control 11", "record 0")
            async with instance(place, options) as two:
                await two.until(lambda: "control 11" in two.lb.seen)
                with contextlib.suppress(AssertionError):
                    one.add(1000)
                with pytest.raises(Exception, match="claimed by another owner"):
                    await one.until(lambda: False)
                two.add(1)
                await two.until(lambda: two.app.state["sum"] == 1)

    scenario(broker, test, "rivals")


def test_a_replaced_primary_ends_also_while_nobody_answers_its_append(broker: str) -> None:
    class Unanswered(AsyncClient):
        is_cut = False

        async def append(self, journal: str, content: Any, **options: Any) -> Appended:
            if self.is_cut and content:
                await asyncio.Event().wait()
            return await super().append(journal, content, **options)

    async def test(place: Place, options: Options) -> None:
        client = Unanswered(broker)
        async with client, instance(Place(client, None), options) as one:
            await one.seen("control 11", "record 0")
            client.is_cut = True
            one.add(1000)
            async with instance(place, options) as two:
                with pytest.raises(FencedError, match="claimed by another owner"):
                    await one.until(lambda: False)
                await two.until(lambda: "control 11" in two.lb.seen)
                assert two.app.state["sum"] == 0

    scenario(broker, test, "unanswered")


class Doubtful(AsyncClient):
    """Hears nothing of its first claim of a log, which has landed; what is to happen `meanwhile` does."""

    meanwhile: Callable[[], Awaitable[None]] | None = None

    async def append(self, journal: str, content: Any, **options: Any) -> Appended:
        landed = await super().append(journal, content, **options)
        if self.meanwhile is not None and journal.endswith("/log") and options.get("union"):
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
            raise TimedOutError("the answer got lost")
        return landed


def is_primary(one: Running) -> bool:
    return "control 11" in one.lb.seen or "control 15" in one.lb.seen


@pytest.mark.parametrize("active", [False, True])
def test_what_another_took_behind_a_claim_of_ours_that_was_in_doubt_is_replayed(
    broker: str, monkeypatch: pytest.MonkeyPatch, active: bool
) -> None:
    monkeypatch.setattr(watching, "_ANNOUNCING", 0.2)

    async def test(place: Place, options: Options) -> None:
        options = replace(options, active=active, failover=0.2)

        async def rival() -> None:
            async with instance(place, replace(options, replica=2)) as other:
                await other.until(lambda: is_primary(other))
                other.add(5)
                await other.until(lambda: other.app.state["sum"] == 6)

        async with instance(place, options) as first:
            await first.until(lambda: "record 0" in first.lb.seen)
            first.add(1)
            await first.until(lambda: first.app.state["sum"] == 1)
        client = Doubtful(broker)
        client.meanwhile = rival
        async with client, instance(Place(client, None), replace(options, replica=1)) as one:
            await one.until(lambda: is_primary(one))
            one.add(10)
            await one.until(lambda: one.app.state["sum"] >= 11)
            assert one.app.state["sum"] == 16
        async with instance(place, options) as last:
            await last.until(lambda: last.app.state["sum"] == 16)

    scenario(broker, test, f"doubtful-{active}")


def test_a_first_start_that_another_was_faster_with_does_not_begin_anew(broker: str) -> None:
    async def test(place: Place, options: Options) -> None:
        async def rival() -> None:
            async with instance(place, options) as other:
                await other.until(lambda: "record 0" in other.lb.seen)
                other.add(5)
                await other.until(lambda: other.app.state["sum"] == 5)

        client = Doubtful(broker)
        client.meanwhile = rival
        async with client, instance(Place(client, None), options) as one:
            with pytest.raises(FatalError, match="was faster"):
                await one.until(lambda: is_primary(one))
        async with instance(place, options) as last:
            await last.until(lambda: is_primary(last))
            assert last.app.state == {"sum": 5, "firsts": 1, "largest": 0, "version": 1}

    scenario(broker, test, "overtaken")


def test_a_checkpoint_whose_last_append_was_in_doubt_is_found_after_a_crash_at_any_step(broker: str) -> None:
    class Doubting(AsyncClient):
        """The append that makes a checkpoint count gets lost; when it is made again, the process dies behind it."""

        tries = 0

        async def append(self, journal: str, content: Any, **options: Any) -> Appended:
            union = options.get("union")
            if union is None or not any(label.name == checkpoints.CATALOGUE for label in union.labels):
                return await super().append(journal, content, **options)
            self.tries += 1
            if self.tries == 1:
                raise TimedOutError("it got lost")
            await super().append(journal, content, **options)
            landed.set()
            await asyncio.Event().wait()
            raise AssertionError("never")

    landed = asyncio.Event()

    async def test(place: Place, options: Options) -> None:
        async with instance(place, options) as first:
            await first.until(lambda: "record 0" in first.lb.seen)
            first.add(3)
            await first.until(lambda: first.app.state["sum"] == 3)
        client = Doubting(broker)
        async with client, instance(Place(client, None), options):
            async with asyncio.timeout(60):
                await landed.wait()
        async with instance(place, options) as last:
            await last.until(lambda: is_primary(last))
            assert last.app.state["sum"] == 3

    scenario(broker, test, "doubting")


def test_a_primary_whose_port_another_has_now_is_gone(broker: str) -> None:
    """It is that one itself, started again on the port that it was told to have."""

    async def test(place: Place, options: Options) -> None:
        options = replace(options, active=True, failover=0.2, port=free_port())
        async with instance(place, options) as before:
            await before.until(lambda: is_primary(before))
        async with instance(place, options) as again:
            async with asyncio.timeout(20):
                await again.until(lambda: is_primary(again))
            again.add(1)
            await again.until(lambda: again.app.state["sum"] == 1)

    scenario(broker, test, "same-port")


def test_secondaries_follow_and_one_takes_over_without_a_checkpoint(broker: str) -> None:
    async def test(place: Place, options: Options) -> None:
        options = replace(options, active=True, trigger=1)
        async with instance(place, options) as primary:
            await primary.until(lambda: "record 0" in primary.lb.seen)
            async with instance(place, replace(options, replica=1)) as second:
                await second.until(lambda: "record 0" in second.lb.seen)
                # Each record rolls the log: as soon as the secondary listens it takes the checkpoints, not the primary.
                while "control 2" not in second.lb.seen:
                    primary.add(1)
                    await asyncio.sleep(0.05)
                asked, taken = primary.lb.seen.count("control 2"), second.lb.seen.count("control 2")
                primary.add(100)
                await second.until(lambda: second.lb.seen.count("control 2") > taken)
                assert primary.lb.seen.count("control 2") == asked
                await primary.end()
                await second.until(lambda: "control 15" in second.lb.seen)
                assert "control 11" not in second.lb.seen
                before = second.app.state["sum"]
                second.add(6)
                await second.until(lambda: second.app.state["sum"] == before + 6)

    scenario(broker, test, "replicas")


def test_a_secondary_that_takes_no_checkpoint_has_its_turn_no_more(
    broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frozen, or cut off in silence: its connection is there, and nobody behind it."""
    monkeypatch.setattr(turns, "PATIENCE", 0.2)

    async def test(place: Place, options: Options) -> None:
        async with instance(place, replace(options, active=True, trigger=1)) as primary:
            await primary.until(lambda: "record 0" in primary.lb.seen)
            serving = (await about.read(place.client, options.name)).serving
            assert serving is not None
            reader, writer = await connected(serving, 1 << 16)
            writer.write(line(Hello(options.name, serving.password, watcher="replica-7.frozen")))
            await read_line(reader, Welcome)
            taken = primary.lb.seen.count("control 2")
            async with asyncio.timeout(60):
                while primary.lb.seen.count("control 2") < taken + 3:  # one may have been under way
                    primary.add(1)
                    await asyncio.sleep(0.05)
            writer.close()

    scenario(broker, test, "frozen")


def test_a_secondary_that_comes_late_with_its_checkpoint_does_not_replace_a_later_one(
    broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log behind it may be deleted by then: nobody could recover from it."""
    monkeypatch.setattr(turns, "PATIENCE", 0.2)
    named, held, take = asyncio.Event(), asyncio.Event(), Coordinator.take_checkpoint
    late: list[Entry | None] = []

    async def take_late(self: Coordinator, asked: Asked) -> Entry | None:
        if self.options.replica != 1:
            return await take(self, asked)
        named.set()
        await held.wait()
        late.append(await take(self, asked))
        return late[-1]

    monkeypatch.setattr(Coordinator, "take_checkpoint", take_late)

    async def test(place: Place, options: Options) -> None:
        options = replace(options, active=True, trigger=1, keep=1)
        async with instance(place, options) as primary:
            await primary.until(lambda: "record 0" in primary.lb.seen)
            async with instance(place, replace(options, replica=1)) as second:
                await second.until(lambda: "record 0" in second.lb.seen)
                while not named.is_set():
                    primary.add(1)
                    await asyncio.sleep(0.05)
                last = (await checkpoints.catalogue(place.client, options.name)).last
                taken = primary.lb.seen.count("control 2")
                while primary.lb.seen.count("control 2") == taken:
                    primary.add(1)
                    await asyncio.sleep(0.05)
                await has_checkpoints(place, options, last.number + 1 if last else 1)
                held.set()
                await second.until(lambda: late)
                assert late[0] is None
        async with instance(place, options) as again:
            await again.until(lambda: "control 15" in again.lb.seen)
            assert again.app.state["sum"] >= primary.app.state["sum"]

    scenario(broker, test, "late")


def test_turns_go_to_who_takes_them() -> None:
    given = turns.Turns(10.0)
    assert given.next([], 1, 0.0) == ""
    assert given.next(["b", "a"], 1, 1.0) == "a"
    assert given.next(["b", "a"], 1, 11.0) == "a", "not late yet"
    assert given.next(["b", "a"], 1, 12.0) == "b"
    assert given.next(["b", "a"], 2, 13.0) == "b", "one that was late is not asked again"
    assert given.next(["b", "a"], 2, 24.0) == ""
    assert given.next(["c"], 2, 25.0) == "c"
    assert given.next(["b", "a"], 3, 112.0) == "a", "but for a while only"


def test_an_upgrading_secondary_takes_over_and_old_ones_end(broker: str) -> None:
    async def test(place: Place, options: Options) -> None:
        options = replace(options, active=True)
        async with instance(place, options) as old:
            await old.seen("control 11", "record 0")
            async with (
                instance(place, replace(options, replica=1)) as bystander,
                instance(place, replace(options, replica=2, upgrade=1)) as new,
            ):
                await bystander.seen("checkpoint", "record 0")
                await new.seen("checkpoint", "record 0", "control 10")
                with pytest.raises(FencedError):
                    await old.until(lambda: False)
                with pytest.raises(FatalError, match="upgraded to version 1"):
                    await bystander.until(lambda: False)
                new.add(3)
                await new.until(lambda: new.app.state["sum"] == 3)
                assert "control 2" not in new.lb.seen

    scenario(broker, test, "upgrading")


def test_a_broker_that_ends_right_after_it_answered_ends_no_start(
    broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a coordinator that was killed lives a moment longer; another one's takes its place."""
    listed = AsyncClient.list
    answers: list[bool] = []

    async def ends(self: AsyncClient, *arguments: Any, **named: Any) -> Any:
        answers.append(len(answers) != 1)
        if not answers[-1]:
            raise BrokerGoneError("the broker does not answer")
        return await listed(self, *arguments, **named)

    async def test(place: Place, options: Options) -> None:
        monkeypatch.setattr(AsyncClient, "list", ends)
        async with instance(place, options) as one:
            await one.until(lambda: "record 0" in one.lb.seen)
        answers.clear()
        async with instance(place, options, Debug(1)) as again:
            await again.until(lambda: "record 0" in again.lb.seen)
        assert answers.count(False) == 1

    scenario(broker, test, "ends-early")


def test_a_broker_that_is_away_for_a_moment_ends_no_replica_that_starts(
    broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was that of a primary that was killed. One waits for a first checkpoint then, or is about to replay."""
    head, catalogue = AsyncClient.head, checkpoints.catalogue
    asked = {"head": 0, "catalogue": 0}

    def once(what: str, number: int) -> None:
        asked[what] += 1
        if asked[what] == number:
            raise BrokerGoneError("the broker does not answer")

    async def flaky_head(self: AsyncClient, journal: str) -> int:
        if journal.endswith("/log"):
            once("head", 1)
        return await head(self, journal)

    async def flaky_catalogue(client: AsyncClient, name: str) -> checkpoints.Catalogue:
        once("catalogue", 3)
        return await catalogue(client, name)

    async def test(place: Place, options: Options) -> None:
        options = replace(options, active=True, failover=0.5)
        await journals.ensure(place.client, options.name)
        log = journals.journal_name(options.name, "log")
        await journals.claim(place.client, log, "killed", WHOLE)
        monkeypatch.setattr(AsyncClient, "head", flaky_head)
        monkeypatch.setattr(checkpoints, "catalogue", flaky_catalogue)
        async with instance(place, options) as one:
            await one.seen("control 11", "record 0")
        async with instance(place, options) as again:
            await again.seen("checkpoint", "record 0", "control 15")
        assert asked["catalogue"] >= 3

    scenario(broker, test, "away")


def test_a_log_that_cannot_be_written_ends_the_coordinator_and_the_next_start_goes_on(
    broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = AsyncClient.append

    async def full(self: AsyncClient, journal: str, content: Any, **more: Any) -> Appended:
        if journal.endswith("/log") and content:
            raise PenstockError("the broker refused: [Errno 28] No space left on device")
        return await append(self, journal, content, **more)

    async def test(place: Place, options: Options) -> None:
        async with instance(place, options) as one:
            one_call = 3
            await one.until(lambda: "record 0" in one.lb.seen)
            one.add(one_call)
            await one.until(lambda: one.app.state["sum"] == one_call)
            with monkeypatch.context() as patched:
                patched.setattr(AsyncClient, "append", full)
                one.add(5)
                with pytest.raises(PenstockError, match="No space left") as raised:
                    await one.until(lambda: False)
            ended = fatal(raised.value)
            assert ended is not None
            assert ended.code == 5
            assert one.app.state["sum"] == one_call
        async with instance(place, options) as one:
            await one.until(lambda: one.lb.is_primary)
            one.add(7)
            await one.until(lambda: one.app.state["sum"] == one_call + 7)

    scenario(broker, test, "full")


@pytest.mark.parametrize("is_gone_seen", [True, False])
def test_old_secondaries_end_also_where_the_upgrade_was_cut_off_behind_its_checkpoint(
    broker: str, monkeypatch: pytest.MonkeyPatch, is_gone_seen: bool
) -> None:
    """They would take over with the old code, or replace the new state by a checkpoint of the old."""
    append, until_gone = Coordinator.append, watching.until_gone

    async def cut_off(self: Coordinator, mark: Mark) -> int:
        if isinstance(mark, Upgraded):
            raise OSError("killed")
        return await append(self, mark)

    async def unseen(*_: object) -> str:
        await asyncio.Event().wait()
        return ""

    monkeypatch.setattr(Coordinator, "append", cut_off)
    monkeypatch.setattr(watching, "until_gone", until_gone if is_gone_seen else unseen)

    async def test(place: Place, options: Options) -> None:
        first = replace(options, create="Y")
        options = replace(options, active=True)
        async with instance(place, first) as old:
            await old.seen("control 11", "record 0")
            async with instance(place, replace(options, replica=1)) as bystander:
                await bystander.seen("checkpoint", "record 0")
                async with instance(place, replace(options, replica=2, upgrade=1)) as new:
                    with pytest.raises(OSError, match="killed"):
                        await new.until(lambda: False)
                if not is_gone_seen:
                    async with instance(place, replace(options, version=1, active=False, upgrade=1)) as again:
                        await again.until(lambda: again.lb.is_primary)
                        assert again.app.state["version"] == 2
                with pytest.raises(FatalError, match="is of version 1") as ended:
                    await bystander.until(lambda: bystander.lb.is_primary)
                assert ended.value.code == 1

    scenario(broker, test, f"cut-off-{is_gone_seen}")


def test_forks_to_oneself_under_either_name(broker: str) -> None:
    async def test(place: Place, options: Options) -> None:
        async with instance(place, options) as one:
            await one.until(lambda: "record 0" in one.lb.seen)
            for name in ("", options.name):
                one.lb.send(name, fork(1, n=1))
            one.lb.flush()
            await one.until(lambda: one.app.state["sum"] == 2)

    scenario(broker, test, "selfish")


def test_a_binding_that_listens_itself_and_announces_eight_bytes(broker: str) -> None:
    """The ways of the C client."""

    async def test(place: Place, options: Options) -> None:
        options = replace(options, receive_port=free_port(), send_port=free_port(), legacy=True)
        came: asyncio.Queue[bytes] = asyncio.Queue()

        async def take(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
            while data := await reader.read(1 << 16):
                came.put_nowait(data)

        server = await asyncio.start_server(take, "127.0.0.1", options.send_port)
        running = asyncio.ensure_future(serve(options, place, lambda _: None))
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(60):
                _, writer = await _connect(options.receive_port)
                assert (await came.get())[-2:] == b"\x02\x0b"
                writer.write(bytes.fromhex("12090e00004001050403"))
                writer.write(encode_message(MessageType.CHECKPOINT, (3).to_bytes(8, "little")) + b"abc")
                assert (await came.get())[24:] == bytes.fromhex("12090e00004001050403")
        finally:
            running.cancel()
            await asyncio.wait((running,))
            server.close()
            if writer is not None:
                writer.close()

    scenario(broker, test, "legacy")
