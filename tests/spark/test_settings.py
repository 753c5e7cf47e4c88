"""The settings of a session, and the name of its master."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.base.errors import UsageError
from penstock.spark import session
from penstock.spark.settings import java_options, master_url, spark_settings


@pytest.mark.parametrize(
    ("master", "cores", "expected"),
    [
        (None, 3, "local[3,4]"),
        (None, None, f"local[{len(os.sched_getaffinity(0))},4]"),
        ("local", None, "local[1,4]"),
        ("local[2]", None, "local[2,4]"),
        ("local[2,1]", None, "local[2,1]"),
        ("local[2]", 6, "local[6,4]"),
        ("local[*]", None, f"local[{len(os.sched_getaffinity(0))},4]"),
        ("local[*, 2]", 5, "local[5,2]"),
        ("local-cluster[2,1,1024]", None, "local-cluster[2,1,1024]"),
        ("spark://host:7077", None, "spark://host:7077"),
        ("yarn", None, "yarn"),
    ],
)
def test_a_local_master_has_cores_and_retries(master: str | None, cores: int | None, expected: str) -> None:
    assert master_url(master, cores) == expected


@pytest.mark.parametrize(
    ("master", "cores"), [("spark://host:7077", 2), ("local-cluster[2,1,1024]", 2), (None, 0)]
)
def test_cores_that_cannot_be_are_refused(master: str | None, cores: int) -> None:
    with pytest.raises(UsageError, match="cores"):
        master_url(master, cores)


@pytest.mark.parametrize("master", ["spark://host:7077", "local-cluster[2,1,1024]", "yarn"])
def test_what_holds_on_this_machine_only_is_not_told_to_a_cluster(master: str, tmp_path: Path) -> None:
    places = session._prepare(tmp_path)
    local = spark_settings("app", "local[2,4]", "1g", places)
    cluster = spark_settings("app", master, "1g", places)
    sockets = {"spark.python.unix.domain.socket.dir", "spark.python.unix.domain.socket.enabled"}
    assert (set(local) - set(cluster)) | sockets == sockets | {
        "spark.default.parallelism",
        "spark.driver.bindAddress",
        "spark.driver.host",
        "spark.local.dir",
        "spark.sql.shuffle.partitions",
        "spark.sql.streaming.checkpointFileManagerClass",
    }
    on_one_machine = master.startswith("local-cluster")
    assert sockets & set(cluster) == (sockets if on_one_machine else set())
    assert cluster["spark.sql.session.timeZone"] == "UTC"
    session._discard(places)


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ("", ["-XX:+UseSerialGC"]),
        ("-Xss4m -XX:+UseParallelGC", []),
        ("-XX:+UseStringDeduplication", ["-XX:+UseSerialGC"]),
    ],
)
def test_a_jvm_is_told_of_one_collector(given: str, ours: list[str], tmp_path: Path) -> None:
    places = session._prepare(tmp_path)
    assert [option for option in java_options(places, True, given) if "GC" in option] == ours
    assert not [option for option in java_options(places, False, given) if "GC" in option]
