"""The embedded broker and its directory: one owner, its socket, and what a kill leaves."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.base.disk import Disk
from penstock.base.errors import CorruptError, InUseError, PenstockError, UsageError
from penstock.journal import spoolfile
from penstock.journal.client import BrokerGoneError, Client
from penstock.journal.datadir import DataDir
from penstock.journal.embedded import EmbeddedBroker, connect
from penstock.log.commitlog import journal_spec

from .brokers import JOURNAL, everything


def test_the_socket_is_for_its_user_alone(broker: EmbeddedBroker) -> None:
    assert stat.S_IMODE(broker.directory.socket.stat().st_mode) == 0o600


def test_a_second_owner_gets_a_clear_message(broker: EmbeddedBroker) -> None:
    with pytest.raises(InUseError, match=f"in use by process {os.getpid()}") as error:
        EmbeddedBroker(broker.directory.path, patience=0.0)
    assert error.value.exit_code == 4
    assert "--data-dir" in (error.value.hint or "")


def test_commands_share_the_owners_broker_or_own_the_directory_for_a_moment(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no data directory"), connect(tmp_path / "none"):
        pass
    assert not (tmp_path / "none").exists()
    with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
        client.create(journal_spec(JOURNAL, 1 << 20, {}))
        with connect(tmp_path / "data") as other:
            other.append(JOURNAL, b"abc")
    with connect(tmp_path / "data") as client:
        assert everything(client) == b"abc"
        assert DataDir(tmp_path / "data").owner() is not None
    assert DataDir(tmp_path / "data").owner() is None


def test_a_directory_that_was_closed_is_read_without_going_through_its_spools(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    content = b"0123456789abcdef" * (spoolfile.WORTH_SETTLING // 16)
    hashed: list[int] = []
    monkeypatch.setattr(spoolfile, "_hash", _noting(spoolfile._hash, hashed))
    with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
        client.create(journal_spec(JOURNAL, 1 << 30, {}))
        client.append(JOURNAL, content)
    for _ in range(2):
        with connect(tmp_path / "data") as client:
            assert everything(client) == content
    assert not hashed
    with connect(tmp_path / "data") as client:
        assert client.append(JOURNAL, b"x").begin == len(content)
        client.append(JOURNAL, b"y")
    assert hashed == [len(content)]
    with connect(tmp_path / "data") as client:
        assert everything(client) == content + b"xy"
    assert hashed == [len(content)]


def _noting(hashing: Callable[..., object], hashed: list[int]) -> Callable[..., object]:
    def noting(file: object, begin: int, size: int) -> object:
        hashed.append(size)
        return hashing(file, begin, size)

    return noting


def test_a_settled_spool_that_was_changed_by_hand_takes_nothing_more(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
        client.create(journal_spec(JOURNAL, 1 << 30, {}))
        client.append(JOURNAL, bytes(spoolfile.WORTH_SETTLING))
    [path] = broker.directory.spools(JOURNAL).iterdir()
    with path.open("r+b") as file:
        file.seek(5)
        file.write(b"x")
    with connect(tmp_path / "data") as client:
        for _ in range(2):
            with pytest.raises(PenstockError, match="borne out"):
                client.append(JOURNAL, b"more")


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    EmbeddedBroker(tmp_path / "data").stop()
    (tmp_path / "data" / "VERSION").write_text('{"format": 3, "id": "' + "0" * 32 + '"}')
    with pytest.raises(CorruptError, match="format 3") as error:
        EmbeddedBroker(tmp_path / "data")
    assert "newer Penstock" in (error.value.hint or "")
    assert DataDir(tmp_path / "data").owner() is None


def test_a_directory_of_someone_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").touch()
    with pytest.raises(UsageError, match=r"not empty \(it holds cat\.png\)"):
        EmbeddedBroker(tmp_path / "photos")


def test_a_path_too_long_for_a_socket_still_works(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    with EmbeddedBroker(deep) as broker, Client(broker.address) as client:
        client.create(journal_spec(JOURNAL, 1 << 20, {}))
        assert client.append(JOURNAL, b"abc").end == 3
        assert stat.S_IMODE(broker.directory.socket.parent.stat().st_mode) == 0o700


def test_nobody_there_is_said_so(tmp_path: Path) -> None:
    with (
        Client(f"unix:{tmp_path}/none.sock") as client,
        pytest.raises(BrokerGoneError, match="does not answer"),
    ):
        client.list()


KILLED = """
import sys
from pathlib import Path
from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.journal.labels import label_set
from penstock.log.commitlog import journal_spec
from concurrent.futures import ThreadPoolExecutor
with EmbeddedBroker(Path(sys.argv[1])) as broker, Client(broker.address) as client:
    client.create(journal_spec("a/journal", 4096, {}))
    def work(worker):
        for i in range(100000):
            landed = client.append("a/journal", b"%02d%06d" % (worker, i) * 16)
            sys.stdout.write(f"{landed.begin} {worker} {i}\\n"); sys.stdout.flush()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
"""


@pytest.mark.parametrize("round_", range(3))
def test_acknowledged_appends_survive_kill_9(tmp_path: Path, round_: int) -> None:
    """A real process, killed in full flight; what it had printed as acknowledged must be there, in place."""
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "data")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    acknowledged = [process.stdout.readline() for _ in range(50 + 97 * round_)]
    os.kill(process.pid, signal.SIGKILL)
    acknowledged += process.stdout.readlines()
    process.wait()
    whole = [line.split() for line in acknowledged if line.endswith("\n")]
    assert len(whole) >= 50
    with connect(tmp_path / "data") as client:
        content = everything(client)
        assert len(content) % 128 == 0
        for begin, worker, i in whole:
            expected = b"%02d%06d" % (int(worker), int(i)) * 16
            assert content[int(begin) : int(begin) + 128] == expected
        units = [content[at : at + 128] for at in range(0, len(content), 128)]
        assert all(unit == unit[:8] * 16 for unit in units), "an append is visible in part"
        assert len(set(units)) == len(units), "an append is there twice"
        assert client.append(JOURNAL, b"x").begin == len(content)


LEFT = """
import sys
from pathlib import Path
from penstock.journal.embedded import EmbeddedBroker
from penstock.journal.spoolfile import WORTH_SETTLING
from penstock.log.commitlog import journal_spec
with EmbeddedBroker(Path(sys.argv[1])) as broker, broker.client() as client:
    client.create(journal_spec("a/journal", 1 << 30, {}))
    client.append("a/journal", b"x" * WORTH_SETTLING)
"""


@pytest.mark.parametrize(("kill", "code", "times"), [("leave:1", -signal.SIGKILL, 1), ("", 0, 0)])
def test_a_spool_that_a_killed_broker_left_is_gone_through_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kill: str, code: int, times: int
) -> None:
    """Killed right before it would leave it settled; who finds it like that leaves it so."""
    trace = {"PENSTOCK_TRACE_STEPS": str(tmp_path / "trace"), "PENSTOCK_KILL_AT": kill}
    command = [sys.executable, "-c", LEFT, str(tmp_path / "data")]
    assert subprocess.run(command, env={**os.environ, **trace}, check=False).returncode == code
    hashed: list[int] = []
    monkeypatch.setattr(spoolfile, "_hash", _noting(spoolfile._hash, hashed))
    for _ in range(3):
        with connect(tmp_path / "data") as client:
            assert everything(client) == b"x" * spoolfile.WORTH_SETTLING
    assert hashed == [spoolfile.WORTH_SETTLING] * times


def test_fragments_left_half_stored_are_stored_after_a_crash(tmp_path: Path) -> None:
    """Spool files that were closed but not yet in the store are found again."""
    stuck = threading.Event()
    stuck.set()

    class StuckDisk(Disk):
        def link(self, source: Path, target: Path) -> None:
            if stuck.is_set() and "fragments" in target.parts:
                raise OSError(5, "Input/output error")
            super().link(source, target)

    with EmbeddedBroker(tmp_path / "data", disk=StuckDisk()) as broker, Client(broker.address) as client:
        client.create(journal_spec(JOURNAL, 1024, {}))
        for i in range(12):
            client.append(JOURNAL, b"%04d" % i * 100)
        assert len(list(broker.directory.spools(JOURNAL).iterdir())) == 4
    with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and len(list(broker.directory.spools(JOURNAL).iterdir())) > 1:
            time.sleep(0.02)
        assert len(list((broker.directory.fragments / JOURNAL).iterdir())) == 3
        assert everything(client) == b"".join(b"%04d" % i * 100 for i in range(12))
