"""`Ambrosia` and `ImmortalCoordinator` as bindings start them, with the lines that bindings wait for."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.immortal.processes import REPOSITORY, broker, until
from tests.servers.ports import free_port

from penstock.base.errors import CorruptError, UsageError
from penstock.cli import ambrosia, cli
from penstock.cli import ambrosia_places as places
from penstock.cli.ambrosia_options import COORDINATOR, VERBS, parse, wants_help
from penstock.immortal import running
from penstock.immortal.about import Registration
from penstock.immortal.coordinator import Options
from penstock.immortal.place import opened
from penstock.immortal.sockets import BindingGoneError
from penstock.journal.client import Client


@pytest.mark.parametrize(
    "words",
    [
        ["-i=a", "-rp=1", "-sp=2", "-aa"],
        ["--instanceName=a", "--receivePort=1", "--sendPort=2", "--activeActive"],
        ["-instanceName:a", "-receivePort", "1", "-sp", "2", "--activeactive=true"],
        ["-i", "a", "--rp", "1", "--sp", "2", "--aa"],
        ["/i:a", "/RP=1", "/sendport", "2", "/aa", "--log="],
    ],
)
def test_options_in_every_spelling(words: list[str]) -> None:
    found = parse(words, VERBS["RegisterInstance"])
    assert found == {"instanceName": "a", "receivePort": "1", "sendPort": "2", "activeActive": "true"}


def test_places_keep_their_colons() -> None:
    assert parse(["--log=http://h:1/"], COORDINATOR) == {"log": "http://h:1/"}
    assert parse(["-l", "/var/logs/"], COORDINATOR) == {"log": "/var/logs/"}


@pytest.mark.parametrize("words", [["-i=a", "--help"], ["/?"], ["-h"]])
def test_help_is_asked_for_anywhere(words: list[str]) -> None:
    assert wants_help(words)
    assert not wants_help(["-i", "help"])


def test_a_registration_outlives_the_logs_and_a_folder_of_others_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "state" / "penstock" / "immortals").mkdir(parents=True)
    (tmp_path / "state" / "penstock" / "immortals" / "a").write_text("nonsense")
    with pytest.raises(CorruptError, match="does not say where an instance is"):
        places.log_of("a", None)
    logs = places.log_of("a", str(tmp_path / "logs"))
    for replica in (0, 1):
        places.remember("a", logs, Registration(replica, 1000 + replica, 2000, version=3))
    assert places.log_of("a", None) == logs
    known = places.registered("a", 1)
    assert known is not None
    assert (known.receive_port, known.version) == (1001, 3)
    assert places.registered("a", 2) is None
    assert places.registered("b", 0) is None
    assert places.place_of(logs) == logs
    (tmp_path / "logs" / "other_0").mkdir(parents=True)
    assert places.place_of(logs) == str(tmp_path / "logs" / "penstock")
    assert places.folder_of(logs) == tmp_path / "logs"
    assert places.folder_of("http://h:1") is None


@pytest.mark.parametrize(
    ("words", "why"), [(["--instancename"], "wants a value"), (["-x"], "unknown"), (["i=a"], "unknown")]
)
def test_options_that_are_refused(words: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse(words, COORDINATOR)


def script(function: str, *arguments: str) -> list[str]:
    code = f"import sys; from penstock.cli.ambrosia import {function}; {function}()"
    return [sys.executable, "-c", code, *arguments]


def test_register_start_and_what_bindings_read(tmp_path: Path) -> None:
    """As the C client's script has it: the logs are deleted when the instance has been registered."""
    receive, send, port, logs = free_port(), free_port(), free_port(), tmp_path / "logs"
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    words = ("RegisterInstance", "-i", "node", "--rp", str(receive), f"--sendPort={send}", "-l", f"{logs}/")
    subprocess.run(script("ambrosia", *words), cwd=REPOSITORY, env=env, check=True, timeout=120)
    shutil.rmtree(logs)
    out = tmp_path / "out"

    @contextmanager
    def started(way: str) -> Iterator[tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]]:
        """Both, from when calls to itself are taken."""
        with out.open("wb") as to:
            coordinator = subprocess.Popen(
                script("immortal_coordinator", "--instanceName=node", f"--port={port}"),
                cwd=REPOSITORY, env=env, stdout=to, stderr=to,
            )  # fmt: skip
        binding = None
        try:
            until(lambda: out.read_text().startswith("Ready"), "Ready")
            binding = subprocess.Popen(
                [sys.executable, "-m", "tests.immortal.lb", "echo", str(receive), str(send),
                 str(tmp_path / "report"), '{"peer": "nobody"}'],
                cwd=REPOSITORY,
            )  # fmt: skip
            until(lambda: out.read_text().count(f"{way} ") == 4, "connections to itself")
            yield coordinator, binding
        finally:
            for process in filter(None, (coordinator, binding)):
                process.kill()
                process.wait()

    with started("Adding") as (coordinator, binding):
        lines = out.read_text().splitlines()
        assert lines.count("Adding input:") == lines.count("Adding output:") == 2
        assert (logs / "node_0" / "serverchkpt1").exists()
        binding.kill()
        assert coordinator.wait(60) == 1
        assert "FATAL ERROR 4: " in out.read_text()
    with started("restoring") as (coordinator, binding):
        lines = out.read_text().splitlines()
        assert lines.count("restoring input:") == lines.count("restoring output:") == 2
        binding.kill()  # as the Node binding stops: its connections first, the coordinator right behind
        coordinator.terminate()
        assert coordinator.wait(60) == 0
        assert "FATAL ERROR" not in out.read_text()


def test_a_binding_that_goes_as_its_coordinator_is_told_to_is_no_fatal_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def serving(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise BindingGoneError("the binding closed its connection") from None

    monkeypatch.setattr(running, "_serving", serving)
    assert running.run(Options("a", 0, 0), "nowhere") == running.STOPPED
    assert capsys.readouterr().out == ""


def test_one_who_stops_a_coordinator_does_not_wait_for_what_it_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The Node binding takes a coordinator that has not ended in half a second for one that failed."""

    async def serving(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(60)  # for a broker to end

    monkeypatch.setattr(running, "_serving", serving)
    begin = time.monotonic()
    assert running.run(Options("a", 0, 0), "nowhere") == running.STOPPED
    assert time.monotonic() - begin < 30


@pytest.mark.parametrize(
    ("words", "is_active"),
    [((), False), (("--activeActive",), True), (("-aa", "-r=1"), True), (("--replicaNum=0",), True)],
)
def test_who_is_not_registered_says_itself_whether_it_has_replicas(
    words: tuple[str, ...], is_active: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided: list[Options] = []

    async def serving(options: running.Decide, *_: object) -> None:
        with broker(tmp_path) as place:
            async with opened(place) as there:
                decided.append(await options(there.client))

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(running, "_serving", serving)
    found = parse(["-i=a", "-p=1", "-rp=2", "-sp=3", f"-l={tmp_path / 'logs'}/", *words], COORDINATOR)
    assert ambrosia.coordinate(found) == running.STOPPED
    [options] = decided
    assert (options.active, options.receive_port, options.send_port) == (is_active, 2, 3)


def test_an_upgrade_to_an_earlier_version_is_not_registered() -> None:
    found = parse(["-i=a", "-rp=1", "-sp=2", "-cv=3", "-uv=2"], VERBS["RegisterInstance"])
    with pytest.raises(UsageError, match="--upgradeVersion 2 is below --currentVersion 3"):
        ambrosia.register("RegisterInstance", found)


def test_the_commands_register_and_show(tmp_path: Path) -> None:
    with broker(tmp_path) as place:

        def run(*words: str) -> str:
            result = CliRunner().invoke(cli, ["immortal", *words, "--log", place])
            assert result.exit_code == 0, result.output
            return result.output

        (tmp_path / "journals" / "fragments" / "banks").mkdir(parents=True, exist_ok=True)
        journals = ("--store", "file:///banks/", "--replication", "1")
        run("register", "bank", "--receive-port", "2000", "--send-port", "2001", *journals)
        run("add-replica", "bank", "--replica", "1", "--receive-port", "2002", "--send-port", "2003")
        assert "bank" in run("list")
        assert "1 (ports 2002, 2003)" in run("inspect", "bank")
        [one] = json.loads(run("list", "--json"))
        assert [known["replica"] for known in one["registrations"]] == [0, 1]
        assert one["checkpoints"] == []
        assert (one["calls"], one["calls_per_second"]) == (0, None)
        with Client(place) as client:
            assert {(*made.spec.fragment.stores,) for made in client.list()} == {("file:///banks/",)}
        refused = CliRunner().invoke(cli, ["immortal", "inspect", "bonk", "--log", place])
        assert refused.exit_code == 2
        assert "did you mean 'bank'?" in refused.output
