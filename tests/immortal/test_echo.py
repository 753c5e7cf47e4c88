"""Two immortals exchange a counted, checked stream while everything is killed; then the log is run again."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.immortal.apps import PEERS, Echo, Echo2, EchoChanged
from tests.immortal.pairs import APPS, PATIENCE, REPOSITORY, Pair, broker, running, until

from penstock.immortal import wire
from penstock.immortal.binding.repro import Repro

TARGET = 200
KINDS = ("coordinator", "binding", "both")
STEPS = (
    "binding.handle:3",
    "binding.write:2",
    "binding.checkpoint:1",
    "binding.load:1",
    "binding.control.11:1",
)
pytestmark = pytest.mark.xdist_group("immortal")


def check_totals(*pairs: Pair) -> None:
    for pair in pairs:
        pair.wait_for("done", TARGET)
    for pair in pairs:
        pair.wait_for("told", TARGET)
        state = pair.state()
        assert state["wrong"] == []
        counted = {name: state[name] for name in ("poked", "done", "echoed", "told")}
        assert counted == dict.fromkeys(counted, TARGET)
        assert state["sum"] == TARGET * (TARGET + 1) // 2


def replayed(name: str, place: str) -> tuple[list[bytes], list[bytes]]:
    """The log run again from its first checkpoint: what went out to the other one, and what came in from it."""
    sent: list[bytes] = []
    got: list[bytes] = []

    def record(body: bytes) -> None:
        for message in wire.split_messages(body):
            if message.type == wire.MessageType.INITIAL_MESSAGE:
                continue
            for data in wire.rpcs_of(message.type, message.data):
                if wire.is_replayable(data):
                    got.append(data)

    def output(item: bytes) -> None:
        [message] = wire.split_messages(item)
        if message.type == wire.MessageType.RPC:
            destination, rpc = wire.decode_outgoing(message.data)
            assert destination == PEERS[name]
            [incoming] = wire.split_messages(wire.incoming(rpc))
            sent.append(incoming.data)

    machine = Repro(name, place, 1).replay(Echo, on_record=record, on_output=output)
    assert isinstance(machine.instance, Echo)
    assert machine.instance.done == TARGET
    assert machine.runtime.next_call == TARGET + TARGET // 10 + 1, "call numbers are consecutive"
    return sent, got


def check_logs(place: str) -> None:
    """Both logs, run again, make what the other one got: the same calls and answers, in the same order."""
    left_sent, left_got = replayed("left", place)
    right_sent, right_got = replayed("right", place)
    assert (left_sent, right_sent) == (right_got, left_got)


def kills(left: Pair, right: Pair, seed: int, deaths: list[tuple[str, str]]) -> None:
    """kill -9, each time a little later in the stream: of "left", "right" or "everything"; which part of it."""
    chance = random.Random(seed)
    pairs = {"left": [left], "right": [right], "everything": [left, right]}
    for at, (whom, what) in enumerate(deaths, 1):
        reached = chance.randrange(TARGET * at // (len(deaths) + 2))
        for pair in (left, right):
            pair.wait_for("poked", reached)
        for pair in pairs[whom]:
            pair.kill(what)
        for pair in pairs[whom]:
            pair.start()


def die_in_each_step(pair: Pair) -> None:
    """It dies in one step of its work after the other, and is started again each time.

    From its very first start: a stream that came to its end before would have no work left to die in.
    """
    for step in STEPS:
        pair.start(PENSTOCK_KILL_AT=step)
        pair.wait()
        assert f"!{step.partition(':')[0]} " in pair.trace.read_text(), f"it died in that step: {pair.said()}"
        pair.trace.unlink()
    pair.start()


@pytest.mark.soak
def test_a_counted_stream_outlives_kills_of_everything(tmp_path: Path) -> None:
    with broker(tmp_path) as place:
        left, right = (Pair(place, tmp_path, name, "Echo") for name in ("left", "right"))
        with running(right):
            try:
                die_in_each_step(left)
                kills(left, right, 1, [("right", "binding"), ("everything", "coordinator")])
                check_totals(left, right)
            finally:
                left.stop()
        check_logs(place)


def test_a_live_upgrade_a_trial_of_new_code_and_a_debugger(tmp_path: Path) -> None:
    with broker(tmp_path) as place:
        left, right = (Pair(place, tmp_path, name, "Echo") for name in ("left", "right"))
        new = Pair(place, tmp_path, "left", "Echo")
        with running(left, right):
            left.wait_for("poked", 40)
            try:
                new.start(upgrade_to="Echo2")
                left.wait()
                check_totals(new, right)
                assert 40 <= new.state()["upgraded_at"] <= TARGET
            finally:
                new.stop()
        difference, _ = Repro("right", place, 1).what_if(Echo, EchoChanged)
        assert difference is not None
        [old], [new_words] = difference.old, difference.new
        assert re.fullmatch(r"to left: answer to its call \d+: 'left 51 echoed'", old)
        assert new_words == old.replace("echoed", "changed")
        assert Repro("right", place, 1).what_if(Echo, Echo2)[0] is None
        debug(place, difference.input)


def debug(place: str, at: int) -> None:
    """The debugger stops at the input that the trial named, and the code runs on to the end of the log."""
    command = [
        "debug",
        "right",
        "--app",
        f"{APPS}:Echo",
        "--checkpoint",
        "1",
        "--at",
        str(at),
        "--log",
        place,
    ]
    ran = subprocess.run(
        [sys.executable, "-m", "penstock", "immortal", *command],
        input="c\np number\nclear\ny\nc\n",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=REPOSITORY,
    )
    assert f"input {at} (method" in ran.stdout, ran.stdout + ran.stderr
    assert "(Pdb) 51\n" in ran.stdout
    assert f'"told":{TARGET}' in ran.stdout


def test_a_replica_takes_over_with_open_awaits(tmp_path: Path) -> None:
    with broker(tmp_path) as place:
        left = Pair(place, tmp_path, "left", "Echo", "--active")
        other = Pair(place, tmp_path, "left", "Echo", "--replica", "1")
        right = Pair(place, tmp_path, "right", "Echo")
        with running(left, right):
            left.wait_for("poked", 1)
            with running(other):
                until(lambda: "as a secondary" in other.said(), "the replica follows")
                left.wait_for("poked", 50)
                left.kill("both")
                check_totals(other, right)


@pytest.mark.soak
def test_a_replica_follows_and_upgrades(tmp_path: Path) -> None:
    """An upgrading secondary: it follows the running instance with the old class, and relieves it with the new one."""
    with broker(tmp_path) as place:
        left = Pair(place, tmp_path, "left", "Echo", "--active")
        new = Pair(place, tmp_path, "left", "Echo", "--replica", "1")
        right = Pair(place, tmp_path, "right", "Echo")
        with running(left, right):
            left.wait_for("poked", 40)
            try:
                new.start(upgrade_to="Echo2")
                left.wait()
                check_totals(new, right)
                assert new.state()["upgraded_at"] >= 40
            finally:
                new.stop()


@pytest.mark.soak
@pytest.mark.parametrize("whom", ["left", "right", "everything"])
@pytest.mark.parametrize("what", KINDS)
def test_twenty_kills_of_each_kind(what: str, whom: str, tmp_path: Path) -> None:
    with broker(tmp_path) as place:
        left, right = (Pair(place, tmp_path, name, "Echo") for name in ("left", "right"))
        with running(left, right):
            kills(left, right, len(what + whom), [(whom, what)] * 20)
            check_totals(left, right)
        check_logs(place)
