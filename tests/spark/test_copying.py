"""Large copies: ranges in order, several at once, errors that keep their meaning, nothing left behind."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from pyspark import cloudpickle

from penstock.adaptors.base import CopyTask
from penstock.base import secrets
from penstock.base.errors import AwayError, PenstockError, UsageError
from penstock.log.packing import Packed, numbered, pack
from penstock.spark import copying
from penstock.spark.copying import WAITING, Done, ParallelCopier, RangeTask, Told
from penstock.spark.sealed import private_file, seal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PASSWORD = "hunter2-hunter2"


@dataclass(frozen=True)
class Range(CopyTask):
    """Rows that say which range they are of, and which process read them."""

    number: int
    seconds: float = 0.0
    fails: str = ""
    dies_unless: Path | None = None
    password: str = PASSWORD

    def read(self) -> Iterator[Packed]:
        time.sleep(self.seconds)
        if self.dies_unless is not None and not self.dies_unless.exists():
            self.dies_unless.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fails == "away":
            raise AwayError("it does not answer", hint="wait")
        if self.fails == "usage":
            raise UsageError("no right to read", hint="grant it")
        if self.fails == "full":
            raise OSError(errno.ENOSPC, "No space left on device")
        if self.fails == "other":
            raise RuntimeError("broken")
        for part in range(2):
            data = pa.array([f'{{"range":{self.number},"part":{part},"pid":{os.getpid()}}}'])
            yield pack("t", data, ts=1)


def texts(rows: Sequence[Packed]) -> list[bytes]:
    return [bytes(packed.content[int(start) :]) for packed in rows for start in packed.starts]


def numbers(found: Sequence[Sequence[Packed]]) -> list[int]:
    return [int(text.split(b'"range":')[1].split(b",")[0]) for rows in found for text in texts(rows)]


def test_the_rows_of_a_chunk_are_those_that_were_read_and_can_be_numbered_where_they_are(
    tmp_path: Path,
) -> None:
    copying.read_range(Range(3), tmp_path / "chunk").check()
    read, found = list(Range(3).read()), list(copying.read_chunk(tmp_path / "chunk"))
    assert texts(found) == texts(read)
    assert all(numbered(rows, 0, 1000).content is rows.content for rows in found)


class TestInThreads:
    @pytest.fixture
    def copier(self, tmp_path: Path) -> ParallelCopier:
        return ParallelCopier(tmp_path / "copy", 3)

    def test_rows_come_in_the_order_of_their_ranges(self, copier: ParallelCopier) -> None:
        ranges = [Range(i, seconds=0.05 * (i % 3)) for i in range(10)]
        found = list(copier.run(ranges, threading.Event()))
        assert numbers(found) == [i for i in range(10) for _ in range(2)]
        assert all(rows[0].starts.dtype == np.int64 for rows in found)

    def test_several_are_read_at_once(self, copier: ParallelCopier) -> None:
        began = time.monotonic()
        assert len(list(copier.run([Range(i, seconds=1.0) for i in range(6)], threading.Event()))) == 6
        assert time.monotonic() - began < 5.0

    def test_ranges_are_taken_only_as_there_is_room(self, copier: ParallelCopier) -> None:
        taken: list[int] = []

        def ranges() -> Iterator[Range]:
            for i in range(100):
                taken.append(i)
                yield Range(i)

        found = copier.run(ranges(), threading.Event())
        next(found)
        assert len(taken) == 3 + WAITING
        next(found)
        assert len(taken) == 3 + WAITING + 1
        found.close()  # type: ignore[attr-defined]

    @pytest.mark.parametrize(("fails", "kind"), [("away", AwayError), ("usage", UsageError)])
    def test_an_adaptors_error_keeps_its_meaning_behind_the_rows_before_it(
        self, copier: ParallelCopier, fails: str, kind: type[PenstockError]
    ) -> None:
        found = copier.run([Range(0), Range(1, fails=fails), Range(2)], threading.Event())
        assert numbers([next(found)]) == [0, 0]
        with pytest.raises(kind) as caught:
            next(found)
        assert caught.value.hint in ("wait", "grant it")

    def test_a_full_disk_is_a_reason_to_wait(self, copier: ParallelCopier) -> None:
        with pytest.raises(AwayError, match="No space left"):
            list(copier.run([Range(0, fails="full")], threading.Event()))

    def test_stop_ends_it_soon_and_nothing_is_left(self, copier: ParallelCopier, tmp_path: Path) -> None:
        stop = threading.Event()
        found = copier.run((Range(i, seconds=0.2) for i in range(1000)), stop)
        next(found)
        stop.set()
        began = time.monotonic()
        assert list(found) == []
        assert time.monotonic() - began < 30
        _emptied(tmp_path / "copy")

    def test_what_is_read_here_does_not_go_through_files(
        self, copier: ParallelCopier, tmp_path: Path
    ) -> None:
        for _ in copier.run([Range(i) for i in range(20)], threading.Event()):
            assert [path for path in (tmp_path / "copy").rglob("*") if path.is_file()] == []
        _emptied(tmp_path / "copy")

    def test_what_spark_gets_of_a_range_holds_no_setting(self, tmp_path: Path) -> None:
        assert PASSWORD.encode() in pickle.dumps(Range(1))
        assert PASSWORD.encode() not in pickle.dumps(RangeTask(tmp_path / "sealed", tmp_path / "chunk"))


@pytest.mark.spark
class TestInSpark:
    @pytest.fixture
    def copier(self, spark: SparkSession, tmp_path: Path) -> ParallelCopier:
        cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
        return ParallelCopier(tmp_path / "copy", 2, lambda: spark)

    def test_ranges_are_read_by_sparks_workers_in_order(self, copier: ParallelCopier) -> None:
        found = list(copier.run([Range(i) for i in range(5)], threading.Event()))
        assert numbers(found) == [i for i in range(5) for _ in range(2)]
        assert not any(f'"pid":{os.getpid()}'.encode() in text for rows in found for text in texts(rows))

    def test_chunks_are_removed_as_they_are_taken(self, copier: ParallelCopier, tmp_path: Path) -> None:
        for _ in copier.run([Range(i) for i in range(10)], threading.Event()):
            files = [path for path in (tmp_path / "copy").rglob("*") if path.is_file()]
            assert len(files) <= 3 * (2 + WAITING), (
                "of each range its task, its chunk, and one that is not whole"
            )
        _emptied(tmp_path / "copy")

    def test_a_worker_that_is_killed_has_its_range_read_again(
        self, copier: ParallelCopier, tmp_path: Path
    ) -> None:
        ranges = [Range(0), Range(1, dies_unless=tmp_path / "died"), Range(2)]
        assert numbers(list(copier.run(ranges, threading.Event()))) == [0, 0, 1, 1, 2, 2]
        assert (tmp_path / "died").exists()

    def test_an_adaptors_error_is_not_tried_again(self, copier: ParallelCopier, tmp_path: Path) -> None:
        with pytest.raises(AwayError, match="does not answer"):
            list(copier.run([Range(0, fails="away")], threading.Event()))

    def test_any_other_error_fails_the_copy(self, copier: ParallelCopier) -> None:
        with pytest.raises(PenstockError, match="could not be read"):
            list(copier.run([Range(0, fails="other")], threading.Event()))

    def test_stop_cancels_what_runs(
        self, copier: ParallelCopier, spark: SparkSession, tmp_path: Path
    ) -> None:
        stop = threading.Event()
        found = copier.run((Range(i, seconds=0.0 if not i else 30.0) for i in range(10)), stop)
        next(found)
        stop.set()
        began = time.monotonic()
        assert list(found) == []
        assert time.monotonic() - began < 20
        _emptied(tmp_path / "copy")


def test_ranges_are_read_here_until_spark_is_up(tmp_path: Path) -> None:
    wanted: list[bool] = []
    copier = ParallelCopier(tmp_path / "copy", 2, lambda: None, lambda: wanted.append(True))
    found = list(copier.run([Range(0)], threading.Event()))
    assert wanted == [True]
    assert f'"pid":{os.getpid()}'.encode() in texts(found[0])[0]


def _emptied(directory: Path) -> None:
    deadline = time.monotonic() + 60
    while directory.exists() and any(directory.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(directory.iterdir()) == []


def test_a_range_that_ends_just_when_it_was_waited_for_too_long_is_no_failure() -> None:
    """Waiting goes on in short spells; between the end of one and the next look the range may have been read."""

    read = Done(Told(), Path("chunk"))

    class Ending(Future[Done]):
        def result(self, timeout: float | None = None) -> Done:
            if not self.done():
                self.set_result(read)
                raise TimeoutError
            return super().result(timeout)

    assert copying._awaited(Ending(), threading.Event()) is read


def test_a_time_out_of_the_source_itself_is_its_failure() -> None:
    failed: Future[Done] = Future()
    failed.set_exception(TimeoutError("no answer"))
    with pytest.raises(TimeoutError, match="no answer"):
        copying._awaited(failed, threading.Event())


@dataclass(frozen=True)
class Talkative(CopyTask):
    password: str

    def read(self) -> Iterator[Packed]:
        try:
            raise ValueError(f"{self.password} was not taken")
        except ValueError as error:
            raise RuntimeError(f"no entry for 'penstock' with {self.password}") from error


def test_what_spark_hears_of_a_failure_says_no_secret(tmp_path: Path) -> None:
    """It logs the errors of tasks, and shows them; workers have never seen the settings file."""
    secrets.forget_all()
    secrets.register(PASSWORD)
    sealed = private_file(tmp_path / "task", seal(Talkative(PASSWORD)))
    secrets.forget_all()
    with pytest.raises(RuntimeError) as caught:
        list(RangeTask(sealed, tmp_path / "chunk")([]))
    text = "".join(traceback.format_exception(caught.value))
    assert PASSWORD not in text
    assert "no entry for 'penstock' with ***" in text
    assert "*** was not taken" in text
    secrets.forget_all()
