"""The start-up archive as files: its name, its building aside, its limits. A stand-in plays Java."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.spark import archive as module
from penstock.spark.archive import Archive, archive_for

# Finds the option with the place to write to, as Java would.
WRITES = 'for one; do case $one in -XX:SharedArchiveFile=*) echo archive > "${one#*=}";; esac; done'
WORKED = (
    "java/lang/Object id: 1\norg/apache/spark/sql/execution/streaming/runtime/MicroBatchExecution id: 2\n"
)


@pytest.fixture
def spark_home(tmp_path: Path) -> Path:
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)
    for name in ("zz.jar", "aa.jar", "spark-core.jar", "slf4j-api-2.jar", "scala-library-2.jar"):
        (jars / name).write_text(name)
    return tmp_path / "spark"


@pytest.fixture
def class_list(tmp_path: Path) -> Path:
    path = tmp_path / "classes.list"
    path.write_text(WORKED)
    return path


def make(tmp_path: Path, spark_home: Path, script: str = WRITES, version: str = "17.0.15") -> Archive:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
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


def test_a_build_appears_whole(tmp_path: Path, spark_home: Path, class_list: Path) -> None:
    archive = make(tmp_path, spark_home, script=f"{WRITES}; sleep 0.3")
    assert archive.build(class_list)
    class_list.unlink()  # the session's directories do not wait for it
    assert not archive.usable()
    wait_for(archive.usable)
    wait_for(lambda: settled(archive))
    assert archive.path.read_text() == "archive\n"
    assert not archive.build(class_list), "there is one"


def test_one_build_at_a_time(tmp_path: Path, spark_home: Path, class_list: Path) -> None:
    first = make(tmp_path, spark_home, script=f"{WRITES}; sleep 0.5")
    second = make(tmp_path, spark_home, version="21.0.8", script=f"{WRITES}; sleep 0.5")
    assert first.build(class_list)
    assert not first.build(class_list)
    assert not second.build(class_list)
    wait_for(first.usable)
    wait_for(lambda: second.build(class_list))
    wait_for(second.usable)


def test_a_killed_build_leaves_nothing_that_is_used_and_the_next_one_clears_it(
    tmp_path: Path, spark_home: Path, class_list: Path
) -> None:
    # The build is a process group of its own: `kill 0` ends all of it, as the end of a container would.
    archive = make(tmp_path, spark_home, script=f"{WRITES}; kill -9 0")
    assert archive.build(class_list)
    part = archive.path.with_suffix(".jsa.part")
    wait_for(part.exists)
    archive = make(tmp_path, spark_home)
    wait_for(lambda: archive.build(class_list))
    wait_for(archive.usable)
    wait_for(lambda: settled(archive))


def test_after_three_failures_it_is_given_up(tmp_path: Path, spark_home: Path, class_list: Path) -> None:
    archive = make(tmp_path, spark_home, script="exit 1")
    for failures in range(1, 4):
        assert not archive.given_up()
        wait_for(lambda: archive.build(class_list))
        wait_for(lambda: module._size(archive.path.with_suffix(".strikes")) == failures)  # noqa: B023
    assert archive.given_up()
    assert not archive.build(class_list)


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


@pytest.mark.parametrize("content", ["java/lang/Object id: 1\n", None])
def test_a_session_that_did_nothing_is_no_model(
    tmp_path: Path, spark_home: Path, content: str | None
) -> None:
    class_list = tmp_path / "idle.list"
    if content is not None:
        class_list.write_text(content)
    assert not make(tmp_path, spark_home).build(class_list)


def test_nothing_is_built_where_there_is_no_room(
    tmp_path: Path, spark_home: Path, class_list: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("_ROOM_ON_DISK", "_ROOM_IN_MEMORY"):
        with monkeypatch.context() as patched:
            patched.setattr(module, limit, 1 << 60)
            assert not make(tmp_path, spark_home).build(class_list)


def test_only_the_newest_are_kept(tmp_path: Path, spark_home: Path, class_list: Path) -> None:
    archive = make(tmp_path, spark_home)
    for age in range(4):
        other = archive.path.with_name(f"java-{age}.jsa")
        other.write_text("")
        os.utime(other, (1000 - age, 1000 - age))
    assert archive.build(class_list)
    wait_for(archive.usable)
    assert sorted(path.name for path in archive.path.parent.glob("*.jsa")) == [
        "java-0.jsa",
        archive.path.name,
    ]
