"""Settings of adaptors never travel in what Spark pickles, plans, logs or shows."""

from __future__ import annotations

import json
import os
import pickle
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.servers.ports import free_port
from tests.spark import sealed_driver
from tests.spark.sealed_driver import Guarded

from penstock.adaptors.base import Sink
from penstock.base.errors import PenstockError, UsageError
from penstock.log.schema import Field, Kind, KnownSchemas, Schema, Told
from penstock.spark.sealed import MOST, VARIABLE, Safe

PASSWORD = "hunter2-hunter2-hunter2"
SCHEMAS = KnownSchemas({"t": (Told(0, Schema((Field("id", Kind.INT),))),)})


def sink(password: str = PASSWORD) -> Sink:
    made = Guarded(password).sink()
    made.use(SCHEMAS, "shop.out")
    return made


def test_a_task_gets_a_place_and_finds_the_sink_there(tmp_path: Path) -> None:
    safe = Safe(tmp_path / "sealed")
    safe.put("out", sink())
    sealed = safe.sealed("out", 0)
    sent = pickle.dumps(sealed)
    assert PASSWORD.encode() not in sent
    opened = pickle.loads(sent).open()
    assert opened._settings.password == PASSWORD
    assert (opened.name, opened.schemas("t")) == ("shop.out", SCHEMAS("t"))
    assert safe.sealed("out", 0).place == sealed.place
    assert safe.variables() == {}


def test_what_a_sink_has_learnt_its_next_tasks_know(tmp_path: Path) -> None:
    safe = Safe(tmp_path / "sealed")
    taught = sink("before")
    safe.put("out", taught)
    first = safe.sealed("out", 0)
    assert safe.sealed("out", 0).place == first.place
    taught._settings = Guarded("after")  # type: ignore[attr-defined]
    taught.learnt += 1
    assert pickle.loads(pickle.dumps(safe.sealed("out", 0))).open()._settings.password == "after"


def test_the_place_is_for_this_user_alone(tmp_path: Path) -> None:
    safe = Safe(tmp_path / "sealed")
    safe.put("out", sink())
    place = safe.sealed("out", 0).place
    assert place is not None
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700


def test_a_task_whose_run_has_ended_says_so(tmp_path: Path) -> None:
    safe = Safe(tmp_path / "sealed")
    safe.put("out", sink())
    sealed = safe.sealed("out", 0)
    assert sealed.place is not None
    sealed.place.unlink()
    with pytest.raises(PenstockError, match="are gone"):
        sealed.open()


def test_executors_elsewhere_get_it_in_a_variable_that_spark_redacts(monkeypatch: pytest.MonkeyPatch) -> None:
    safe = Safe(None)
    safe.put("out", sink())
    sent = pickle.dumps(safe.sealed("out", 0))
    assert PASSWORD.encode() not in sent
    with pytest.raises(PenstockError, match="was not given"):
        pickle.loads(sent).open()
    monkeypatch.setenv(VARIABLE, safe.variables()[VARIABLE])
    assert pickle.loads(sent).open()._settings.password == PASSWORD
    assert "secret" in VARIABLE.lower()


def test_what_no_variable_can_hold_is_refused_before_spark_is_started() -> None:
    safe = Safe(None)
    safe.put("out", sink("x" * MOST))
    with pytest.raises(UsageError, match="the most that executors can be given"):
        safe.variables()


@pytest.mark.soak
@pytest.mark.spark
def test_spark_writes_and_shows_no_setting_of_a_sink(tmp_path: Path) -> None:
    port = free_port()
    root = Path(sealed_driver.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.sealed_driver", str(tmp_path), str(port)],
        input=PASSWORD + "\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["exit"], told["delivered"]) == (0, 50)
    assert set(told["pages"]) >= {"environment", "jobs"}
    assert PASSWORD not in done.stdout + done.stderr
    events = [path for path in (tmp_path / "events").rglob("*") if path.is_file()]
    assert any("SparkListenerJobStart" in path.read_text(errors="replace") for path in events)
    left = [path for path in tmp_path.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]
    assert left == [], "the safe is cleared at the end of a run"
