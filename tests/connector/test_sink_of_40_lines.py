"""The sink of 40 lines in the documents, as it stands there: a program that is killed, and a storage without power."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from tests.connector.sinking import SinkProcess, Worker, cut_off, eventually
from tests.connector.targets import Target
from tests.connector.test_sink_rules import kill_loop

from penstock.connector.inner import Phase1, Phase2
from penstock.connector.sink import Disk, Storage, Workers
from penstock.connector.sink.keeper import Keeper
from penstock.testing.powerloss import Mark, RecordingDisk, every_sync_matters, marked

PAGE = Path(__file__).parents[2] / "docs" / "connector-sinks.md"
TEXT = PAGE.read_text(encoding="utf-8").partition("## Write a sink in 40 lines")[2]
CODE = TEXT.partition("```python\n")[2].partition("```")[0]
CLASS = CODE.partition("workers = ")[0]


def published(folder: Path) -> str:
    return "".join(path.read_text() for path in sorted(folder.glob("*.txt")))


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    def command(port: int, root: Path) -> list[str]:
        there = f"import os\nos.chdir({str(root)!r})\n"
        assert CODE.count("7200") == CODE.count('b"secret"') == 1
        return [sys.executable, "-c", there + CODE.replace("7200", str(port)).replace('b"secret"', 'b""')]

    process = SinkProcess(tmp_path, command)
    yield Target(process, lambda worker: published(tmp_path / "out" / worker).splitlines())
    process.kill()


def test_it_has_no_more_lines() -> None:
    assert len(CODE.splitlines()) == 40


def test_the_program_is_killed_at_a_few_frames_and_so_are_its_workers(target: Target) -> None:
    kill_loop(target, random.Random(40), rounds=2)


@pytest.mark.parametrize("step", ["sink phase1", "sink decide", "sink decided"])
def test_the_program_dies_between_the_steps_of_a_decision(target: Target, step: str) -> None:
    sink = target.process
    sink.start(f"{step}:2")
    worker = Worker(sink)

    def send(text: bytes) -> None:
        with worker.connect() as link:
            transaction, vote = worker.send(link, text)
            assert vote
            worker.record(transaction, worker.end + len(text))
            link.tell([(transaction, True)])

    send(b"one\n")
    cut_off(lambda: send(b"two\n"))
    sink.died()
    sink.start()
    if step == "sink phase1":
        assert worker.listed() == ()
        send(b"two\n")
    worker.connect().close()
    assert target.lines("w") == ["one", "two"]


def test_who_has_left_keeps_what_was_committed_and_comes_back_at_0(target: Target) -> None:
    sink, worker = target.process, Worker(target.process)
    sink.start("sink left:1")
    with worker.connect() as link:
        transaction, _ = worker.send(link, b"one\n")
        link.tell([(transaction, True)])
    other = Worker(sink, "other")
    link = other.connect()
    cut_off(lambda: link.leave(["w"]))
    sink.died()
    sink.start()
    assert eventually(lambda: Worker(sink).listed() == ())
    worker = Worker(sink)
    with worker.connect() as link:
        transaction, _ = worker.send(link, b"two\n")
        link.tell([(transaction, True)])
    assert sorted(target.lines("w")) == ["one", "two"]
    assert len(list(sink.root.glob("out/w/left-*.txt"))) == 1


class Promise(str):
    """These rows are published for good."""


def folders(disk: Disk, root: Path) -> Workers:
    names: dict[str, Callable[[Path, Disk], Storage]] = {}
    exec(compile(CLASS, "forty.py", "exec"), names)
    folder, logs = names["Folder"], root / "state" / "txns"
    return Workers(logs, lambda worker: folder(root / "lake" / worker, disk), disk=disk, clock=lambda: 7)


def one(keeper: Keeper, transaction: str, text: str, *, commit: bool) -> None:
    start = keeper.offset
    keeper.data(start, memoryview(text.encode()))
    assert keeper.phase1(Phase1(transaction, ((1, start, start + len(text)),)))
    keeper.phase2(Phase2(transaction, commit))


def recording(disk: RecordingDisk, root: Path) -> None:
    with closing(folders(disk, root)) as workers:
        keeper = workers.attach("w")
        for number, commit in enumerate((True, False, True)):
            one(keeper, f"t{number}", f"{number}\n", commit=commit)
            disk.mark(Promise("0" if number < 2 else "02"))
        workers.detach(keeper)
        workers.left("other", ["w"])
        keeper = workers.attach("w")
        one(keeper, "t3", "3\n", commit=True)
        disk.mark(Promise("023"))
        workers.detach(keeper)


def verify(root: Path, marks: Sequence[Mark]) -> None:
    promises = marked(marks, Promise)
    with closing(folders(Disk(), root)) as workers:
        keeper = workers.attach("w")
        for transaction in list(keeper.ledger.unresolved):
            keeper.phase2(Phase2(transaction, transaction != "t1"))
        one(keeper, "t9", "9\n", commit=True)  # which takes no other's place
        workers.detach(keeper)
    rows = "".join(sorted(published(root / "lake" / "w").splitlines()))
    assert rows in ("9", "09", "029", "0239"), "twice, or what was aborted"
    assert not promises or rows.startswith(promises[-1]), "what was committed is gone"


def test_no_sync_of_it_is_there_for_nothing() -> None:
    failures = every_sync_matters(
        recording, verify, seed=1, untracked=("state/txns/.lock",), exempt=("workers.py:*", "txnlog.py:*")
    )
    assert len(failures) >= 5
