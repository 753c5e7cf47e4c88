"""The crash table of the protocol, row by row, with a sink that is a real process and really dies.

Each row is tried twice: the sink (or the worker) dies at a fault point inside the step, and by a SIGKILL from outside
while the worker waits. After every row the committed output is exactly that of the committed transactions, and the same
bytes go through once more.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.connector.sinking import PATIENCE, SinkProcess, Worker, steps_of

from penstock.base.errors import AwayError
from penstock.connector.sinklink import SinkLink
from penstock.connector.twopc import SinkError, Who, decided

FIRST, SECOND = b"one\ntwo\n", b"three\n"


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[SinkProcess]:
    made = SinkProcess(tmp_path)
    yield made
    made.kill()


@pytest.fixture
def worker(sink: SinkProcess) -> Worker:
    return Worker(sink)


def committed_first(sink: SinkProcess, worker: Worker, kill_at: str = "") -> None:
    """A sink with one committed transaction, which will die at a step."""
    sink.start(kill_at)
    with worker.connect() as link:
        transaction, vote = worker.send(link, FIRST)
        assert vote
        worker.record(transaction, len(FIRST))
        link.tell([(transaction, True)])


def cut_off(work: Callable[[], object]) -> None:
    """The sink dies under this."""
    with pytest.raises(AwayError):
        work()


def goes_on(sink: SinkProcess, worker: Worker, expected: bytes) -> None:
    """What is committed is as expected, nothing is open, and the next transaction goes through."""
    with worker.connect() as link:
        assert link.listed.transactions == ()
        assert sink.committed(worker.name) == sink.held(worker.name) == expected
    with worker.connect() as link:
        assert link.listed.offset == len(expected) == worker.end
        transaction, vote = worker.send(link, b"last\n")
        assert vote
        worker.record(transaction, len(expected) + 5)
        link.tell([(transaction, True)])
    assert sink.committed(worker.name) == expected + b"last\n"


def outside(sink: SinkProcess) -> None:
    sink.kill()


# The steps of one connection that reply: greeting 3 times (OK, NOTIFY_ACK, list), a vote, a list after the decision.
# The first transaction has used: reply 5, phase1 1, phase2 1, decide 1, decided 1, data 1.


@pytest.mark.parametrize("how", ["fault", "kill"])
def test_row_1_the_sink_dies_with_data_and_no_phase1(sink: SinkProcess, worker: Worker, how: str) -> None:
    committed_first(sink, worker, "sink data:3" if how == "fault" else "")
    link = worker.connect()
    link.write(SECOND[:3])
    if how == "fault":
        link.write(SECOND[3:])
        sink.died()
    else:
        while sink.held("w") != FIRST + SECOND[:3]:
            time.sleep(0.01)
        outside(sink)
    cut_off(lambda: link.vote("t"))
    sink.start()
    assert worker.listed() == ()
    goes_on(sink, worker, FIRST)


def test_row_2_the_sink_dies_with_a_vote_that_is_not_on_disk(sink: SinkProcess, worker: Worker) -> None:
    committed_first(sink, worker, "sink phase1:2")
    link = worker.connect()
    cut_off(lambda: worker.send(link, SECOND))
    sink.died()
    sink.start()
    assert worker.listed() == ()
    goes_on(sink, worker, FIRST)


def test_row_2_killed_from_outside_before_phase1_is_whole(sink: SinkProcess, worker: Worker) -> None:
    committed_first(sink, worker)
    link = worker.connect()
    link.write(SECOND)
    whole = link.machine.phase1("half")
    link._send(whole[:-1])
    outside(sink)
    cut_off(link._wait)
    sink.start()
    assert worker.listed() == ()
    goes_on(sink, worker, FIRST)


@pytest.mark.parametrize("decision", [False, True])
def test_row_3_a_vote_to_commit_that_nobody_heard(sink: SinkProcess, worker: Worker, decision: bool) -> None:
    """Row 3, and row 6 seen from a coordinator that had other reasons to commit: the record decides."""
    committed_first(sink, worker, "sink reply:9")
    link = worker.connect()
    cut_off(lambda: worker.send(link, SECOND))
    sink.died()
    sink.start()
    (listed,) = worker.listed()
    if decision:
        worker.record(listed, len(FIRST + SECOND))
    goes_on(sink, worker, FIRST + SECOND if decision else FIRST)


def abort_voted(worker: Worker, link: SinkLink) -> tuple[str, bool]:
    """A range that the sink must refuse: it ends beyond the data."""
    link.write(SECOND)
    transaction = worker.transaction()
    return transaction, link.vote(transaction, (link.machine.start, link.machine.offset + 1))


def test_row_4_a_vote_to_abort_that_nobody_heard(sink: SinkProcess, worker: Worker) -> None:
    committed_first(sink, worker, "sink reply:9")
    link = worker.connect()
    cut_off(lambda: abort_voted(worker, link))
    sink.died()
    sink.start()
    assert len(worker.listed()) == 1
    goes_on(sink, worker, FIRST)


@pytest.mark.parametrize("how", ["fault", "kill", "cut"])
def test_row_5_a_vote_to_abort_that_was_heard(sink: SinkProcess, worker: Worker, how: str) -> None:
    committed_first(sink, worker, "sink replied:9" if how == "fault" else "")
    with worker.connect() as link:
        transaction, vote = abort_voted(worker, link)
        assert not vote
        if how == "fault":
            sink.died()
    if how == "kill":
        outside(sink)
    if how != "cut":
        sink.start()
    assert worker.listed() == (transaction,)
    goes_on(sink, worker, FIRST)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("how", ["fault", "kill", "cut"])
def test_rows_6_and_7_the_sink_dies_after_its_vote_was_heard(
    sink: SinkProcess, worker: Worker, how: str, commit: bool
) -> None:
    committed_first(sink, worker, "sink replied:9" if how == "fault" else "")
    with worker.connect() as link:
        transaction, vote = worker.send(link, SECOND)
        assert vote
        if how == "fault":
            sink.died()
    if how == "kill":
        outside(sink)
    if commit:
        worker.record(transaction, len(FIRST + SECOND))
    if how != "cut":
        sink.start()
    assert worker.listed() == (transaction,)
    goes_on(sink, worker, FIRST + SECOND if commit else FIRST)


@pytest.mark.parametrize("step", ["sink phase2:2", "sink decide:2"])
@pytest.mark.parametrize("commit", [True, False])
def test_rows_8_and_10_the_sink_dies_with_a_decision_that_is_not_on_disk(
    sink: SinkProcess, worker: Worker, step: str, commit: bool
) -> None:
    """Before it is carried out, and after that but before it is on record."""
    committed_first(sink, worker, step)
    link = worker.connect()
    transaction, vote = worker.send(link, SECOND)
    assert vote
    if commit:
        worker.record(transaction, len(FIRST + SECOND))
    cut_off(lambda: link.tell([(transaction, commit)]))
    sink.died()
    sink.start()
    assert worker.listed() == (transaction,)
    goes_on(sink, worker, FIRST + SECOND if commit else FIRST)


def test_row_9_the_sink_dies_when_the_decision_is_on_disk(sink: SinkProcess, worker: Worker) -> None:
    committed_first(sink, worker, "sink decided:2")
    link = worker.connect()
    transaction, _ = worker.send(link, SECOND)
    worker.record(transaction, len(FIRST + SECOND))
    cut_off(lambda: link.tell([(transaction, True)]))
    sink.died()
    sink.start()
    assert worker.listed() == ()
    goes_on(sink, worker, FIRST + SECOND)


@pytest.mark.parametrize("how", ["kill", "cut"])
def test_rows_9_and_14_everybody_dies_after_the_decision_was_carried_out(
    sink: SinkProcess, worker: Worker, how: str
) -> None:
    committed_first(sink, worker)
    if how == "kill":
        outside(sink)
        sink.start()
    assert worker.listed() == ()
    goes_on(sink, worker, FIRST)


@pytest.mark.parametrize("row", ["11 before PHASE1", "12 before the decision", "13 before PHASE2"])
def test_rows_11_to_13_the_worker_dies(sink: SinkProcess, worker: Worker, row: str) -> None:
    """A worker that dies leaves a connection that ends; the next one of its name knows what is on record."""
    committed_first(sink, worker)
    with worker.connect() as link:
        if row.startswith("11"):
            link.write(SECOND)
            transaction = ""
        else:
            transaction, _ = worker.send(link, SECOND)
        if row.startswith("13"):
            worker.record(transaction, len(FIRST + SECOND))
    reborn = Worker(sink)
    reborn.committed, reborn.number = dict(worker.committed), 100
    assert reborn.listed() == ((transaction,) if transaction else ())
    goes_on(sink, reborn, FIRST + SECOND if row.startswith("13") else FIRST)


def test_row_16_a_worker_that_never_noticed_is_voted_down(sink: SinkProcess, worker: Worker) -> None:
    """Bytes are lost between two connections: the sink notices the gap, and votes to abort once."""
    committed_first(sink, worker)
    with worker.connect() as link:
        link.write(SECOND)
    with SinkLink(sink.address, Who("w"), len(FIRST + SECOND), PATIENCE) as link:
        link.write(b"more\n")
        transaction = worker.transaction()
        assert not link.vote(transaction, (len(FIRST), len(FIRST + SECOND) + 5))
    assert worker.listed() == (transaction,)
    goes_on(sink, worker, FIRST)


@pytest.mark.parametrize("kill_at", ["", "sink left:1"])
def test_row_17_a_name_that_left_and_came_back_begins_at_0(
    sink: SinkProcess, worker: Worker, kill_at: str
) -> None:
    committed_first(sink, worker, kill_at)
    other = Worker(sink, "other")
    if kill_at:
        link = other.connect()
        cut_off(lambda: link.leave(["w"]))
        sink.died()
        sink.start()
    with other.connect() as link:
        link.leave(["w"])
        link.leave(["w"])
    (aside,) = sink.root.glob("out.w.left-*[0-9]")
    assert aside.read_bytes() == FIRST
    goes_on(sink, Worker(sink), b"")


# The six vote rules: abort or commit, and where the connection is cut


@pytest.mark.parametrize("rule", ["abort", "commit"])
@pytest.mark.parametrize("close", ["not at all", "before the reply", "after the reply"])
def test_the_six_vote_rules(sink: SinkProcess, worker: Worker, rule: str, close: str) -> None:
    """Without a vote there is no commit; a vote that was heard counts, whatever becomes of the connection."""
    at = {"before the reply": "sink reply:9", "after the reply": "sink replied:9"}.get(close, "")
    committed_first(sink, worker, at)
    ask = worker.send if rule == "commit" else lambda link, _: abort_voted(worker, link)
    link = worker.connect()
    if close == "before the reply":
        cut_off(lambda: ask(link, SECOND))
        sink.died()
        sink.start()
        expected = FIRST
    else:
        transaction, vote = ask(link, SECOND)
        assert vote is (rule == "commit")
        if vote:
            worker.record(transaction, len(FIRST + SECOND))
        expected = FIRST + SECOND if vote else FIRST
        if close == "after the reply":
            sink.died()
            sink.start()
        else:
            link.tell([(transaction, vote)])
    link.close()
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
    outside(sink)
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


def crash_loop(sink: SinkProcess, seed: int, rounds: int) -> None:
    """The sink dies at random steps and moments, the worker at random, too; the output is always a prefix."""
    dice = random.Random(seed)
    lines = [b"line %d of the stream\n" % number for number in range(rounds * 40)]
    stream = b"".join(lines)
    worker = Worker(sink)
    steps = [
        "sink data",
        "sink phase1",
        "sink reply",
        "sink replied",
        "sink phase2",
        "sink decide",
        "sink decided",
    ]
    hit: set[str] = set()
    for number in range(rounds):
        aim = steps[number % len(steps)] if number < 2 * len(steps) else ""
        sink.start(f"{aim}:{dice.randint(1, 12)}" if aim else "")
        assert sink.process is not None
        timer = threading.Timer(dice.uniform(0.02, 0.5), sink.process.send_signal, [signal.SIGKILL])
        if not aim:
            timer.start()
        target = len(stream) * (number + 1) // rounds
        while worker.end < target and sink.process.poll() is None:
            with contextlib.suppress(AwayError, SinkError):
                one_round(sink, worker, stream, dice)
        assert stream.startswith(sink.committed("w"))
        timer.cancel()
        trace = sink.trace.read_text() if sink.trace.exists() else ""
        hit |= {line[1:].rpartition(" ")[0] for line in trace.splitlines() if line.startswith("!")}
        sink.kill()
    sink.start()
    while worker.end < len(stream):
        one_round(sink, worker, stream, dice)
    worker.connect().close()
    assert sink.committed("w") == sink.held("w") == stream
    assert hit, "no kill met a step"


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


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_many_crashes_in_a_row(sink: SinkProcess, seed: int) -> None:
    crash_loop(sink, seed, rounds=30)


def test_the_steps_are_where_the_table_has_them(sink: SinkProcess, worker: Worker) -> None:
    committed_first(sink, worker)
    expected = {
        "sink reply": 5, "sink replied": 5, "sink data": 1, "sink phase1": 1, "sink phase2": 1, "sink decide": 1,
        "sink decided": 1,
    }  # fmt: skip
    deadline = time.monotonic() + PATIENCE  # a reply may be here before the sink has noted that it was sent
    while steps_of(sink.trace) != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    sink.kill()
    assert steps_of(sink.trace) == expected
