"""The server of a sink against peers that are broken or mean harm, and the command that serves it."""

from __future__ import annotations

import errno
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow.parquet import read_table
from tests.connector.storing import Shelf
from tests.connector.test_twopc import frames

from penstock.base.disk import Buffer, Disk, DiskFile
from penstock.base.errors import AwayError, InUseError, PenstockError
from penstock.connector.frames import Error, Hello, Message, Notify, NotifyAck, Ok, encode
from penstock.connector.inner import (
    InnerTag,
    ListUncommitted,
    Phase1,
    Phase2,
    Reply,
    ReplyUncommitted,
    encode_inner,
    inner_of,
)
from penstock.connector.sink import Limits, SinkServer, Terms, Workers
from penstock.connector.sink.files import FileStorage, committed_bytes, file_of
from penstock.connector.sink.sqlite import rows_of
from penstock.connector.sinklink import SinkLink
from penstock.connector.twopc import SinkError, Who, decided

PATIENCE = 30.0


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def server(tmp_path: Path, shelf: Shelf) -> Iterator[SinkServer]:
    """Patient with names that are on their way out, and with slow machines."""
    limits = Limits(connections=8, frame=1 << 20, patience=PATIENCE)
    workers = shelf.workers(tmp_path / "log", patience=PATIENCE)
    with SinkServer(("127.0.0.1", 0), workers, Terms(b"tacos"), limits) as made:
        yield made


@pytest.fixture
def hasty(tmp_path: Path, shelf: Shelf) -> Iterator[SinkServer]:
    """Waits for nobody."""
    workers = shelf.workers(tmp_path / "hasty")
    with SinkServer(("127.0.0.1", 0), workers, Terms(b"tacos"), Limits(patience=1.0)) as made:
        yield made


def who(name: str = "w", cookie: bytes = b"tacos") -> Who:
    return Who(name, "app", cookie)


def said(server: SinkServer, data: bytes) -> list[object]:
    """What the server says to these bytes until it closes the connection."""
    with socket.create_connection(server.address, PATIENCE) as peer:
        peer.sendall(data)
        peer.shutdown(socket.SHUT_WR)
        heard = b""
        while chunk := peer.recv(65536):
            heard += chunk
    return list(frames(heard))


def serves(server: SinkServer) -> None:
    with SinkLink(server.address, who("somebody"), 0, PATIENCE) as link:
        assert link.listed.transactions == ()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x00\x00\x00\x00", "length 0"),
        (b"\xff\xff\xff\xff", "4,294,967,295 bytes"),
        (b"GET / HTTP/1.1\r\n\r\n", "bytes, the limit is"),
        (encode(Notify(1, "", 0)), "Bad protocol FSM state"),
        (encode(Hello("v0.0.1", b"wrong", "", "w")), "Bad cookie"),
    ],
)
def test_bytes_that_are_no_greeting_are_told_so_and_the_server_goes_on(
    server: SinkServer, data: bytes, why: str
) -> None:
    (answer,) = said(server, data)
    assert isinstance(answer, Error)
    assert why in answer.reason
    serves(server)


def test_a_fault_behind_good_frames_comes_after_their_answers(server: SinkServer) -> None:
    first, second = said(server, encode(Hello("v0.0.1", b"tacos", "", "w")) + b"\x00\x00\x00\x00")
    assert first == Ok(500)
    assert isinstance(second, Error)
    serves(server)


GREETING = encode(Hello("v0.0.1", b"tacos", "", "w")) + encode(Notify(1, "", 0))
DATA, PHASE1 = encode(Message(1, 0, 0, b"", b"12345")), encode_inner(Phase1("t", ((1, 0, 5),)))
VOTED = DATA + PHASE1
LIST = encode_inner(ListUncommitted(9))
LIE = encode(Message(0, 0, 0, b"", bytes((InnerTag.PHASE1,)) + b"\x00\x01t" + b"\xff" * 4))


@pytest.mark.parametrize(
    ("sent", "answers"),
    [
        (encode_inner(Phase1("t", ((1, 0, 0),) * 40_000)), [Reply("t", False)]),
        (encode_inner(Phase1("t", ((1, 0, 0),) * 50_000)), ["1,200,0"]),
        (LIE, ["Unable to decode message"]),
        (encode_inner(Phase2("of nobody", True)) + LIST, [ReplyUncommitted(9)]),
        (VOTED + PHASE1, [Reply("t", True)] * 2),
        (VOTED + encode_inner(Phase2("t", False)) * 2 + LIST, [Reply("t", True), ReplyUncommitted(9)]),
        (VOTED + encode(Message(1, 5, 0, b"", b"6")), [Reply("t", True), "between PHASE1 and PHASE2"]),
        (VOTED + encode_inner(Phase1("u", ((1, 0, 5),))), [Reply("t", True), "t is not decided yet"]),
        (encode(Message(1, 5, 0, b"", b"6")) + encode_inner(Phase1("t", ((1, 0, 6),))), [Reply("t", False)]),
        (DATA + encode(Message(1, 0, 0, b"", b"x")), ["seen before"]),
    ],
    ids=[
        "a long list", "a list too long", "a list that lies", "an unknown decision", "a vote asked for again",
        "a repeated decision", "data between the phases", "two transactions", "a gap", "a repeat",
    ],
)  # fmt: skip
def test_bad_peers_are_answered_by_the_rules_and_the_server_goes_on(
    server: SinkServer, sent: bytes, answers: list[object]
) -> None:
    ok, opened, *heard = said(server, GREETING + sent)
    assert (ok, opened) == (Ok(500), NotifyAck(True, 1, 0))
    assert len(heard) == len(answers)
    for frame, wanted in zip(heard, answers, strict=True):
        if isinstance(wanted, str):
            assert isinstance(frame, Error)
            assert wanted in frame.reason
        else:
            assert isinstance(frame, Message)
            assert inner_of(memoryview(frame.body)) == wanted
    serves(server)
    with SinkLink(server.address, who(), 0, PATIENCE) as link:
        link.tell(decided(link.listed.transactions, ()))
        link.write(b"all is well")
        assert link.vote("next")


def test_who_says_nothing_is_let_go(hasty: SinkServer) -> None:
    with socket.create_connection(hasty.address, PATIENCE) as peer:
        assert peer.recv(10) == b""


def test_more_connections_than_there_may_be_are_closed(server: SinkServer) -> None:
    links = [SinkLink(server.address, who(str(number)), 0, PATIENCE) for number in range(8)]
    with pytest.raises(AwayError):
        SinkLink(server.address, who("one too many"), 0, PATIENCE)
    for link in links:
        link.close()
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            return serves(server)
        except AwayError:
            time.sleep(0.02)
    raise AssertionError("places are not free again")


def test_a_second_connection_of_a_name_is_refused_and_the_first_goes_on(tmp_path: Path, shelf: Shelf) -> None:
    workers = shelf.workers(tmp_path / "log")
    with (
        SinkServer(("127.0.0.1", 0), workers, Terms(b"tacos")) as server,
        SinkLink(server.address, who(), 0, PATIENCE) as first,
    ):
        with pytest.raises(SinkError, match="worker w is already active"):
            SinkLink(server.address, who(), 0, PATIENCE)
        first.write(b"data")
        assert first.vote("t1")


def test_a_name_is_free_as_soon_as_its_connection_has_ended(server: SinkServer) -> None:
    for number in range(20):
        with SinkLink(server.address, who(), 0, PATIENCE) as link:
            link.write(b"x" * number)
    serves(server)


class SmallDisk(Disk):
    """A disk that is full for the files of one kind, as long as `full` says which."""

    full = ""

    def open(self, path: Path, *, create: bool = False, mode: int = 0o640) -> DiskFile:
        return SmallFile(self, path, super().open(path, create=create, mode=mode)._fd)


class SmallFile(DiskFile):
    def write_at(self, data: Buffer, position: int) -> None:
        self._room()
        super().write_at(data, position)

    def sync(self) -> None:
        self._room()
        super().sync()

    def _room(self) -> None:
        assert isinstance(self.disk, SmallDisk)
        if self.disk.full and self.path.name.endswith(self.disk.full):
            raise OSError(errno.ENOSPC, "No space left on device", str(self.path))


@pytest.fixture
def small(tmp_path: Path) -> Iterator[tuple[SmallDisk, SinkServer]]:
    """A file sink on a small disk."""
    disk = SmallDisk()
    workers = Workers(
        tmp_path / "log", lambda worker: FileStorage(file_of(tmp_path / "out", worker), disk), disk=disk
    )
    with SinkServer(("127.0.0.1", 0), workers, Terms(cookie=b"tacos")) as made:
        yield disk, made


@pytest.mark.parametrize(
    ("when", "full"),
    [("it connects", ".txnlog"), ("data", "out.w"), ("data", ".txnlog"), ("decision", ".txnlog")],
)
def test_a_full_disk_has_the_worker_come_later_and_nothing_is_lost(
    small: tuple[SmallDisk, SinkServer], tmp_path: Path, when: str, full: str
) -> None:
    """Nobody votes to abort for want of room: the pipeline waits, and no message dies of it."""
    disk, server = small
    committed: set[str] = set()

    def send(number: int, full_at: str = "") -> None:
        name, line = f"t{number}", b"line %d\n" % number
        disk.full = full if full_at == "it connects" else ""
        with SinkLink(server.address, who(), number * len(line), PATIENCE) as link:
            link.tell(decided(link.listed.transactions, committed))
            if name in committed:
                return
            disk.full = full if full_at == "data" else ""
            link.write(line)
            assert link.vote(name)
            committed.add(name)
            disk.full = full if full_at == "decision" else ""
            link.tell([(name, True)])

    send(0)
    for _ in range(2):
        with pytest.raises(AwayError, match=r"the sink cannot go on now: .*No space left on device"):
            send(1, "it connects" if when == "decision" and "t1" in committed else when)
    assert committed_bytes(file_of(tmp_path / "out", "w")) == b"line 0\n"
    send(1)
    send(2)
    assert committed_bytes(file_of(tmp_path / "out", "w")) == b"line 0\nline 1\nline 2\n"
    serves(server)


def test_a_storage_that_fails_ends_the_connection_and_not_the_server(
    server: SinkServer, shelf: Shelf
) -> None:
    def broken(offset: int, data: memoryview) -> None:
        raise PenstockError("it is broken")

    shelf("w").write = broken  # type: ignore[method-assign]
    with SinkLink(server.address, who(), 0, PATIENCE) as link:
        link.write(b"data")
        with pytest.raises(SinkError, match="it is broken"):
            link.vote("t1")
    serves(server)


def test_a_sink_that_does_not_keep_up_holds_the_worker_back(server: SinkServer, shelf: Shelf) -> None:
    """What the sink does not take waits at the worker: neither side keeps it in memory."""
    gate = threading.Event()

    def slow(offset: int, data: memoryview) -> None:
        gate.wait(PATIENCE)

    shelf("w").write = slow  # type: ignore[method-assign]
    with SinkLink(server.address, who(), 0, PATIENCE) as link:
        link._socket.settimeout(0.5)
        with pytest.raises(AwayError, match="does not answer"):  # noqa: PT012 - one of them is too much
            for _ in range(200):
                link.write(b"x" * 500_000)
        sent = link.machine.offset
    gate.set()
    assert sent < 60_000_000, "a hundred megabytes went nowhere"


def test_one_directory_has_one_server(server: SinkServer, shelf: Shelf, tmp_path: Path) -> None:
    with pytest.raises(InUseError, match="another sink has the directory"):
        shelf.workers(tmp_path / "log")


def test_the_command_serves_sqlite_and_lists_transactions(tmp_path: Path) -> None:
    (tmp_path / "cookie").write_text("not-to-be-shown\n")
    command = [
        sys.executable, "-m", "penstock", "connector", "sink", "sqlite", "--database", str(tmp_path / "out.db"),
        "--listen", "127.0.0.1:0", "--cookie", f"@{tmp_path / 'cookie'}", "--json",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        host, _, port = told["listening"].rpartition(":")
        name = Who("w", "app", b"not-to-be-shown")
        with SinkLink((host, int(port)), name, 0, PATIENCE) as link:
            link.write(b'{"a":1}\n{"b"')
            assert not link.vote("cut"), "a transaction ends with a line"
            link.tell([("cut", False)])
            link.write(b'{"a":1}\n{"b":2}\n')
            assert link.vote("t1")
        listing = [*command[:5], "list", told["txns"], "--json"]
        listed = json.loads(subprocess.run(listing, capture_output=True, check=True).stdout)
        assert [(one["worker"], one["committed"]) for one in listed] == [("w", 0)]
        assert [(one["transaction"], one["vote"]) for one in listed[0]["in_flight"]] == [("t1", "commit")]
        assert rows_of(tmp_path / "out.db", "output") == []
        with SinkLink((host, int(port)), name, 0, PATIENCE) as link:
            link.tell([("t1", True)])
        assert rows_of(tmp_path / "out.db", "output") == [("w", 0, '{"a":1}'), ("w", 8, '{"b":2}')]
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize(("kind", "option"), [("file", "--out"), ("parquet", "--directory")])
def test_the_commands_serve_files_and_parquet(tmp_path: Path, kind: str, option: str) -> None:
    command = [
        sys.executable, "-m", "penstock", "connector", "sink", kind, option, str(tmp_path / "out"), "--listen",
        "127.0.0.1:0", "--json",
    ]  # fmt: skip

    def seen() -> list[bytes]:
        if kind == "file":
            return committed_bytes(file_of(tmp_path / "out", "w")).splitlines()
        tables = [read_table(path) for path in (tmp_path / "out").glob("*.parquet")]
        return [row["data"].encode() for table in tables for row in table.to_pylist()]

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        host, _, port = json.loads(process.stdout.readline())["listening"].rpartition(":")
        with SinkLink((host, int(port)), Who("w"), 0, PATIENCE) as link:
            link.write(b'{"a":1}\n{"b":2}\n')
            assert link.vote("t1")
            assert seen() == []
            link.tell([("t1", True)])
        assert seen() == [b'{"a":1}', b'{"b":2}']
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
