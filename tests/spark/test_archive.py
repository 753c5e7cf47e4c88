"""The start-up archive as files: its name, its making aside, its limits. A stand-in plays the training."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.spark import archive as module
from penstock.spark.archive import SPARK_SUBMIT, Archive, archive_for

# As the training does: writes in the first place, and renames to the second.
WRITES = 'echo archive > "$1/part"; mv "$1/part" "$2"; rm -r "$1"'


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Has another script play the training; `WRITES` if nobody asks."""

    def play(script: str) -> None:
        monkeypatch.setattr(module, "_TRAINING", ("/bin/sh", "-c", script, "training"))

    play(WRITES)
    return play


@pytest.fixture
def spark_home(tmp_path: Path) -> Path:
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)
    for name in ("zz.jar", "aa.jar", "spark-core.jar", "slf4j-api-2.jar", "scala-library-2.jar"):
        (jars / name).write_text(name)
    return tmp_path / "spark"


def make(tmp_path: Path, spark_home: Path, version: str = "17.0.15") -> Archive:
    cache = tmp_path / "cache"
    cache.mkdir(exist_ok=True)
    archive = archive_for(cache, tmp_path / "jdk", version, spark_home)
    assert archive is not None
    return archive


def wait_for(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def settled(archive: Archive) -> bool:
    return not list(archive.path.parent.glob("*.part"))


def test_the_name_changes_with_java_and_with_every_jar(tmp_path: Path, spark_home: Path) -> None:
    first = make(tmp_path, spark_home)
    assert make(tmp_path, spark_home) == first
    names = {first.path, make(tmp_path, spark_home, version="21.0.8").path}
    os.utime(spark_home / "jars" / "aa.jar", (1, 1))
    names.add(make(tmp_path, spark_home).path)
    (spark_home / "jars" / "new.jar").write_text("new")
    names.add(make(tmp_path, spark_home).path)
    assert len(names) == 4


def test_the_class_path_is_in_an_order_of_its_own(tmp_path: Path, spark_home: Path) -> None:
    names = [Path(jar).name for jar in make(tmp_path, spark_home).class_path.split(":")]
    assert names == ["slf4j-api-2.jar", "scala-library-2.jar", "spark-core.jar", "aa.jar", "zz.jar"]


def test_without_a_cache_or_with_a_path_that_cannot_be_told_there_is_none(
    tmp_path: Path, spark_home: Path
) -> None:
    assert archive_for(None, tmp_path, "17", spark_home) is None
    (tmp_path / "a:b").mkdir()
    assert archive_for(tmp_path / "a:b", tmp_path, "17", spark_home) is None
    assert archive_for(tmp_path, tmp_path, "17", tmp_path / "no spark") is None


def test_an_archive_is_an_aot_cache_from_java_25_on(tmp_path: Path, spark_home: Path) -> None:
    place = tmp_path / "place"
    old, new = make(tmp_path, spark_home), make(tmp_path, spark_home, version="25.0.2")
    assert f"-XX:SharedArchiveFile={old.path}" in old.options_to_use()
    assert f"-XX:AOTCache={new.path}" in new.options_to_use()
    assert old.options_to_record(place / "list", place / "part") == [f"-XX:DumpLoadedClassList={place}/list"]
    assert new.options_to_record(place / "list", place / "part") == [f"-XX:AOTCacheOutput={place}/part"]
    assert "-Xshare:dump" in old.command_to_assemble(place / "list", place / "part")
    assert new.command_to_assemble(place / "list", place / "part") == []


def test_it_appears_whole(tmp_path: Path, spark_home: Path, stand_in: Callable[[str], None]) -> None:
    stand_in(f"sleep 0.3; {WRITES}")
    archive = make(tmp_path, spark_home)
    assert archive.build({})
    assert not archive.usable()
    wait_for(archive.usable)
    wait_for(lambda: settled(archive))
    assert archive.path.read_text() == "archive\n"
    assert not archive.build({}), "there is one"


def test_a_training_is_told_of_its_java_and_of_no_options_of_the_user(
    tmp_path: Path, spark_home: Path, stand_in: Callable[[str], None]
) -> None:
    stand_in(f"env > {tmp_path}/told.aside; mv {tmp_path}/told.aside {tmp_path}/told")
    archive = make(tmp_path, spark_home)
    ours = {"PATH": os.environ["PATH"], "JAVA_HOME": "/other", "MINE": "kept"}
    theirs = dict.fromkeys(("JAVA_TOOL_OPTIONS", "SPARK_HOME", "PYSPARK_SUBMIT_ARGS", "HADOOP_CONF_DIR"), "x")
    assert archive.build(ours | theirs)
    wait_for((tmp_path / "told").exists)
    told = dict(line.split("=", 1) for line in (tmp_path / "told").read_text().splitlines())
    assert not theirs.keys() & told.keys()
    assert (told["JAVA_HOME"], told["MINE"]) == (str(tmp_path / "jdk"), "kept")


def test_one_training_at_a_time(tmp_path: Path, spark_home: Path, stand_in: Callable[[str], None]) -> None:
    stand_in(f"sleep 0.3; {WRITES}")
    first = make(tmp_path, spark_home)
    second = make(tmp_path, spark_home, version="21.0.8")
    assert first.build({})
    assert not first.build({})
    assert not second.build({})
    wait_for(first.usable)
    wait_for(lambda: second.build({}))
    wait_for(second.usable)


def test_a_killed_training_leaves_nothing_that_is_used_and_the_next_one_clears_it(
    tmp_path: Path, spark_home: Path, stand_in: Callable[[str], None]
) -> None:
    # It is a process group of its own: `kill 0` ends all of it, as the end of a container would.
    stand_in('echo half > "$1/part"; kill -9 0')
    archive = make(tmp_path, spark_home)
    assert archive.build({})
    left = archive.path.with_suffix(".part") / "part"
    wait_for(left.exists)
    stand_in(WRITES)
    wait_for(lambda: archive.build({}))
    wait_for(archive.usable)
    wait_for(lambda: settled(archive))
    assert not archive.path.with_suffix(".strikes").exists()


def test_after_three_failures_it_is_given_up(
    tmp_path: Path, spark_home: Path, stand_in: Callable[[str], None]
) -> None:
    stand_in("exit 1")
    archive = make(tmp_path, spark_home)
    for failures in range(1, 4):
        assert not archive.given_up()
        wait_for(lambda: archive.build({}))
        wait_for(lambda: module._size(archive.path.with_suffix(".strikes")) == failures)  # noqa: B023
    assert archive.given_up()
    assert not archive.build({})


def test_a_refusal_removes_it_and_success_forgets_failures(tmp_path: Path, spark_home: Path) -> None:
    archive = make(tmp_path, spark_home)
    archive.path.write_text("damaged")
    archive.refused()
    assert not archive.usable()
    archive.refused()
    archive.path.write_text("sound")
    archive.accepted()
    archive.refused()
    assert not archive.given_up()


def test_what_the_launcher_adds_is_known_once_it_was_seen_whole(tmp_path: Path, spark_home: Path) -> None:
    archive = make(tmp_path, spark_home)
    assert archive.added_by_launcher() is None
    archive.note_added(["java", "-Xmx1g", SPARK_SUBMIT])
    assert archive.added_by_launcher() is None, "of another make: it adds nothing that we know"
    added = ["-XX:+IgnoreUnrecognizedVMOptions", "--add-opens=java.base/java.lang=ALL-UNNAMED"]
    archive.note_added(["java", "-Xmx1g", *added, SPARK_SUBMIT, "pyspark-shell"])
    assert archive.added_by_launcher() == added
    (kept,) = archive.path.parent.glob("*.launcher")
    kept.write_text(kept.read_text()[:-20])
    assert archive.added_by_launcher() is None, "torn"


def test_none_is_made_where_there_is_no_room(
    tmp_path: Path, spark_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("_ROOM_ON_DISK", "_ROOM_IN_MEMORY"):
        with monkeypatch.context() as patched:
            patched.setattr(module, limit, 1 << 60)
            assert not make(tmp_path, spark_home).build({})


def test_only_the_newest_are_kept(tmp_path: Path, spark_home: Path) -> None:
    archive = make(tmp_path, spark_home)
    for age, suffix in enumerate((".jsa", ".aot", ".jsa", ".aot")):
        other = archive.path.with_name(f"java-{age}{suffix}")
        other.write_text("")
        os.utime(other, (1000 - age, 1000 - age))
    assert archive.build({})
    wait_for(archive.usable)
    kept = {path.name for path in archive.path.parent.iterdir() if path.suffix in (".jsa", ".aot")}
    assert kept == {"java-0.jsa", archive.path.name}
