"""The rules of a vote, what went wrong in the original, and crashes in a row, with a sink that is a real process.

After every loss the committed output is exactly that of the committed transactions, and the same bytes go through once
more. The crash table itself, row by row, is in `test_sink_crash.py`.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest
from tests.connector import working
from tests.connector.proxying import Proxy
from tests.connector.sinking import (
    FIRST,
    PATIENCE,
    SECOND,
    SinkProcess,
    Worker,
    committed_first,
    cut_off,
    goes_on,
)
from tests.connector.targets import Target, files, rows, watched

from penstock.base.errors import AwayError
from penstock.connector.sinklink import SinkLink
from penstock.connector.twopc import SinkError, Who, decided

# The six vote rules: abort or commit, and where the connection is cut

RULES = [
    ("abort", "not at all", FIRST),
    ("abort", "before the reply", FIRST),
    ("abort", "after the reply", FIRST),
    ("commit", "not at all", FIRST + SECOND),
    ("commit", "before the reply", FIRST),
    ("commit", "after the reply", FIRST + SECOND),
]
"""How the sink votes, when it closes, and what is committed. Without a vote there is no commit; a vote that was heard
counts, whatever becomes of the connection."""


@pytest.mark.parametrize(
    ("rule", "close", "expected"), RULES, ids=[f"{rule}, closed {close}" for rule, close, _ in RULES]
)
@pytest.mark.parametrize("how", ["the sink dies", "only the connection breaks"])
def test_the_six_vote_rules(
    sink: SinkProcess, worker: Worker, how: str, rule: str, close: str, expected: bytes
) -> None:
    dies = how == "the sink dies"
    at = {"before the reply": "sink reply:9", "after the reply": "sink replied:9"}.get(close, "")
    committed_first(sink, worker, at if dies else "")
    ask = worker.send if rule == "commit" else worker.send_bad
    with Proxy(
        sink.address, "Reply" if close == "before the reply" and not dies else "", lambda: None
    ) as proxy:
        link = worker.connect(sink.address if dies else proxy.address)
        if close == "before the reply":
            cut_off(lambda: ask(link, SECOND))
        else:
            transaction, vote = ask(link, SECOND)
            assert vote is (rule == "commit")
            if vote:
                worker.record(transaction, len(FIRST + SECOND))
            if close == "not at all":
                link.tell([(transaction, vote)])
    link.close()
    if dies and close != "not at all":
        sink.died()
        sink.start()
    assert len(worker.listed()) == (close != "not at all"), (
        "listed until it is decided, whichever way it was voted"
    )
    goes_on(sink, worker, expected)


# What went wrong in the original


def test_a_worker_that_starts_before_the_sink_listens_waits_for_it(sink: SinkProcess, worker: Worker) -> None:
    with pytest.raises(AwayError, match="does not answer"):
        SinkLink(sink.address, Who("w"), 0, 5.0)
    later = threading.Timer(0.2, sink.start)
    later.start()
    with worker.connect() as link:
        transaction, _ = worker.send(link, FIRST)
        worker.record(transaction, len(FIRST))
        link.tell([(transaction, True)])
    later.join()
    goes_on(sink, worker, FIRST)


def test_after_a_restart_of_the_sink_data_does_not_begin_at_0_again(
    sink: SinkProcess, worker: Worker
) -> None:
    committed_first(sink, worker)
    sink.kill()
    sink.start()
    with worker.connect() as link:
        assert link.listed.offset == link.machine.offset == len(FIRST)
    with SinkLink(sink.address, Who("w"), 0, PATIENCE) as link:
        link.write(FIRST)
        with pytest.raises(SinkError, match="message id 0 was seen before"):
            link.vote("again")
    goes_on(sink, worker, FIRST)


def test_two_who_decide_about_one_transaction_cannot_differ(sink: SinkProcess, worker: Worker) -> None:
    """Both go by the record: the one that comes second finds nothing to decide, and a stale decision is nobody's."""
    committed_first(sink, worker)
    with worker.connect() as link:
        transaction, _ = worker.send(link, SECOND)
    worker.record(transaction, len(FIRST + SECOND))
    for _ in range(2):
        with SinkLink(sink.address, Who("w"), 0, PATIENCE) as link:
            link.tell(decided(link.listed.transactions, worker.committed))
    with SinkLink(sink.address, Who("w"), 0, PATIENCE) as link:
        link.tell([(transaction, False)])  # of one who knows nothing, much too late
    goes_on(sink, worker, FIRST + SECOND)


# Loops


STEPS = (
    "sink data",
    "sink phase1",
    "sink reply",
    "sink replied",
    "sink phase2",
    "sink decide",
    "sink decided",
)


def crash_loop(sink: SinkProcess, seed: int, rounds: int) -> None:
    """The sink dies at random steps and moments, the worker at random, too; readers always see a prefix."""
    dice = random.Random(seed)
    stream = b"".join(b"line %d of the stream\n" % number for number in range(rounds * 40))
    worker = Worker(sink)
    hit: set[str] = set()

    def look() -> int:
        committed = sink.committed("w")
        assert stream.startswith(committed)
        return len(committed)

    with watched(look):
        for number in range(rounds):
            aim = STEPS[number % len(STEPS)] if number < 2 * len(STEPS) else ""
            until_it_dies(sink, worker, stream[: len(stream) * (number + 1) // rounds], dice, aim)
            trace = sink.trace.read_text() if sink.trace.exists() else ""
            hit |= {line[1:].rpartition(" ")[0] for line in trace.splitlines() if line.startswith("!")}
        sink.start()
        while worker.end < len(stream):
            one_round(sink, worker, stream, dice)
        worker.connect().close()
    assert sink.committed("w") == sink.held("w") == stream
    assert hit, "no kill met a step"


def until_it_dies(sink: SinkProcess, worker: Worker, stream: bytes, dice: random.Random, aim: str) -> None:
    """A sink that is killed at a step, or at any moment; or when it has everything."""
    sink.start(f"{aim}:{dice.randint(1, 12)}" if aim else "")
    assert sink.process is not None
    timer = threading.Timer(dice.uniform(0.02, 0.5), sink.process.send_signal, [signal.SIGKILL])
    if not aim:
        timer.start()
    while worker.end < len(stream) and sink.process.poll() is None:
        with contextlib.suppress(AwayError, SinkError):
            one_round(sink, worker, stream, dice)
    timer.cancel()
    sink.kill()


def one_round(sink: SinkProcess, worker: Worker, stream: bytes, dice: random.Random) -> None:
    """Settle, send some, vote, decide; the worker may die in between."""
    with SinkLink(sink.address, Who(worker.name), worker.end, PATIENCE) as link:
        link.tell(decided(link.listed.transactions, worker.committed))
        size = dice.randint(1, 400)
        for at in range(worker.end, min(worker.end + size, len(stream)), 37):
            link.write(stream[at : min(at + 37, worker.end + size, len(stream))])
        if dice.random() < 0.1:
            return
        end = link.machine.offset
        transaction = worker.transaction()
        if not link.vote(transaction) or dice.random() < 0.1:
            return
        worker.record(transaction, end)
        if dice.random() < 0.9:
            link.tell([(transaction, True)])


def test_a_few_crashes_in_a_row(sink: SinkProcess) -> None:
    crash_loop(sink, seed=8, rounds=7)


FRAMES = {"Message": 1, "Phase1": 1, "Reply": 1, "Phase2": 1, "ReplyUncommitted": 4}
"""Where one of the two is killed: the frame that does not get through, and the time that it comes for."""


def killed_over_it(sink: SinkProcess, record: Path, at: str, victim: str) -> None:
    """A worker that is a process, too, is to deliver thirty messages, and one of the two is killed over it."""
    running: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()

    def kill() -> None:
        (sink if victim == "sink" else running.get()).kill()

    with Proxy(sink.address, at, kill, turn=FRAMES[at]) as proxy:
        begin = working.messages_of(record)
        worker = working.started(proxy.address, record, begin, begin + 30, {})
        running.put(worker)
        assert worker.wait(PATIENCE) != 0
        assert proxy.met.wait(PATIENCE), proxy.seen
    if victim == "sink":
        sink.start()


def kill_loop(target: Target, dice: random.Random, rounds: int) -> None:
    """At every moment readers see a prefix of what is decided, and all of it at the end."""

    def numbers() -> list[int]:
        return [json.loads(line)["n"] for line in target.lines(working.WORKER)]

    def look() -> int:
        found = numbers()
        assert found == list(range(len(found)))
        assert len(found) <= working.messages_of(record)
        return len(found)

    sink, record = target.process, target.process.root / "record"
    sink.start()
    with watched(look):
        for _ in range(rounds):
            killed_over_it(sink, record, dice.choice(list(FRAMES)), dice.choice(["sink", "worker"]))
        begin = working.messages_of(record)
        working.deliver("{}:{}".format(*sink.address), record, begin, begin + 30)
    assert numbers() == list(range(begin + 30))
    target.check()


@pytest.fixture(params=["files", pytest.param("postgres", marks=pytest.mark.xdist_group("postgres"))])
def target(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Target]:
    made = (
        files(tmp_path)
        if request.param == "files"
        else rows(tmp_path, request.getfixturevalue("postgres_server"))
    )
    yield made
    made.process.kill()


def test_a_sink_and_a_worker_are_killed_at_a_few_frames(target: Target) -> None:
    kill_loop(target, random.Random(1766), rounds=4)


@pytest.mark.soak
def test_a_sink_and_a_worker_are_killed_at_many_frames(target: Target) -> None:
    kill_loop(target, random.Random(1), rounds=30)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_many_crashes_in_a_row(sink: SinkProcess, seed: int) -> None:
    crash_loop(sink, seed, rounds=30)
