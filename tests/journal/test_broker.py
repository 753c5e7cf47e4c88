"""The embedded broker's calls as other processes and threads see them, over its socket."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from penstock.base.disk import Disk, DiskFile
from penstock.base.errors import PenstockError
from penstock.journal import labels
from penstock.journal.client import Client, JournalError, RegisterMismatchError
from penstock.journal.embedded import EmbeddedBroker, connect
from penstock.journal.protocol import AppendRequest, ApplyRequest, LabelSelector, Status
from penstock.log.commitlog import journal_spec

from .brokers import JOURNAL, everything


def test_appends_follow_each_other_and_read_back(client: Client) -> None:
    first = client.append(JOURNAL, b"foo")
    second = client.append(JOURNAL, [b"bar", b"baz"])
    assert (first.begin, first.end, second.begin, second.end) == (0, 3, 3, 9)
    assert everything(client) == b"foobarbaz"
    assert client.head(JOURNAL) == 9


def test_an_append_larger_than_a_message_is_streamed(client: Client) -> None:
    content = os.urandom(9 << 20)
    client.append(JOURNAL, content)
    assert everything(client) == content


def test_an_empty_append_is_a_barrier_that_tells_head_and_registers(client: Client) -> None:
    client.append(JOURNAL, b"abc", union=labels.label_set({"AA": "1"}))
    barrier = client.append(JOURNAL, ())
    assert (barrier.begin, barrier.end) == (3, 3)
    assert barrier.registers == labels.label_set({"AA": "1"})


def test_the_register_sequence_of_the_reference(client: Client) -> None:
    def step(check: str, subtract: dict[str, str], union: dict[str, str]) -> dict[str, str]:
        landed = client.append(
            JOURNAL,
            b"x",
            check=labels.parse_selector(check) if check else None,
            subtract=labels.label_set(subtract) if subtract else None,
            union=labels.label_set(union) if union else None,
        )
        return {label.name: label.value for label in landed.registers.labels}

    assert step("", {}, {"AA": "11", "BB": "22"}) == {"AA": "11", "BB": "22"}
    assert step("AA in (11), BB", {"AA": "11", "BB": "XYZ"}, {"CC": "33"}) == {"BB": "22", "CC": "33"}
    assert step("!AA, CC", {"CC": "33"}, {"AA": "44"}) == {"AA": "44", "BB": "22"}
    with pytest.raises(RegisterMismatchError) as mismatch:
        step("AA = 55", {}, {})
    assert {label.name: label.value for label in mismatch.value.registers.labels} == {"AA": "44", "BB": "22"}
    assert client.head(JOURNAL) == 3


def test_registers_cannot_change_without_content(client: Client) -> None:
    with pytest.raises(PenstockError, match="register modification requires non-empty Append"):
        client.append(JOURNAL, b"", union=labels.label_set({"AA": "1"}))


def test_many_threads_append_without_interleaving(client: Client) -> None:
    def work(worker: int) -> list[tuple[int, bytes]]:
        landed = []
        for i in range(20):
            content = b"<%02d:%02d>" % (worker, i) * (1 + (worker + i) % 50)
            landed.append((client.append(JOURNAL, content).begin, content))
        return landed

    with ThreadPoolExecutor(16) as pool:
        spans = sorted(span for landed in pool.map(work, range(16)) for span in landed)
    assert everything(client) == b"".join(content for _, content in spans)
    position = 0
    for begin, content in spans:
        assert begin == position
        position += len(content)


def test_one_sync_serves_all_appends_that_wait(tmp_path: Path) -> None:
    syncs: list[int] = []

    class SlowFile(DiskFile):
        def sync(self) -> None:
            time.sleep(0.02)
            syncs.append(1)
            super().sync()

    class SlowDisk(Disk):
        def open(self, path: Path, *, create: bool = False, mode: int = 0o640) -> DiskFile:
            file = super().open(path, create=create, mode=mode)
            return SlowFile(self, file.path, file._fd)

    with EmbeddedBroker(tmp_path / "data", disk=SlowDisk()) as broker, Client(broker.address) as client:
        client.create(journal_spec(JOURNAL, 1 << 20, {}))
        client.append(JOURNAL, b"first")
        before = len(syncs)
        with ThreadPoolExecutor(32) as pool:
            list(pool.map(lambda i: client.append(JOURNAL, b"%d" % i), range(200)))
        assert len(syncs) - before < 100


def test_a_client_that_hangs_up_leaves_nothing_behind(broker: EmbeddedBroker, client: Client) -> None:
    client.append(JOURNAL, b"before")
    started = threading.Event()

    def stream() -> Iterator[AppendRequest]:
        yield AppendRequest(journal=JOURNAL)
        yield AppendRequest(content=b"half of an append")
        started.set()
        threading.Event().wait(30)

    with grpc.insecure_channel(broker.address) as channel:
        call = channel.stream_unary(
            "/protocol.Journal/Append", AppendRequest.SerializeToString, AppendRequest.FromString
        ).future(stream())
        assert started.wait(10)
        time.sleep(0.1)
        call.cancel()
    assert client.append(JOURNAL, b"after").begin == len(b"before")
    assert everything(client) == b"beforeafter"


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([AppendRequest(content=b"x")], "append stream: unexpected EOF"),
        ([AppendRequest(), AppendRequest(content=b"x")], "expected EOF after empty Content chunk"),
        ([AppendRequest(), AppendRequest()], "expected EOF after empty Content chunk"),
        ([AppendRequest(journal="other/journal"), AppendRequest()], "expected Content chunk"),
        ([AppendRequest(content=b"x", offset=3), AppendRequest()], "expected Content chunk"),
    ],
)
def test_a_stream_that_breaks_the_contract_is_rolled_back(
    broker: EmbeddedBroker, client: Client, messages: list[AppendRequest], complaint: str
) -> None:
    with grpc.insecure_channel(broker.address) as channel:
        append = channel.stream_unary(
            "/protocol.Journal/Append", AppendRequest.SerializeToString, AppendRequest.FromString
        )
        with pytest.raises(grpc.RpcError) as error:
            append(iter([AppendRequest(journal=JOURNAL), *messages]))
    assert error.value.code() is grpc.StatusCode.UNKNOWN
    assert complaint in (error.value.details() or "")
    assert client.head(JOURNAL) == 0


def test_garbage_on_the_socket_hurts_nobody(broker: EmbeddedBroker, client: Client) -> None:
    import socket

    for garbage in (
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        os.urandom(4096),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(100),
    ):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(str(broker.directory.socket))
            raw.sendall(garbage)
    with grpc.insecure_channel(broker.address) as channel:
        call = channel.stream_unary("/protocol.Journal/Append", lambda raw: raw, lambda raw: raw)
        with pytest.raises(grpc.RpcError):
            call(iter([b"\xff\xff\xff"]))
    assert client.append(JOURNAL, b"fine").end == 4


def test_an_unknown_journal_is_not_found(client: Client) -> None:
    for call in (lambda: client.append("no/such", b"x"), lambda: client.head("no/such")):
        with pytest.raises(JournalError) as error:
            call()
        assert error.value.status == Status.JOURNAL_NOT_FOUND


def test_fragments_close_at_their_length_and_hold_whole_appends(
    broker: EmbeddedBroker, client: Client
) -> None:
    client.create(journal_spec("small/fragments", 1024, {}))
    for i in range(20):
        client.append("small/fragments", b"%02d" % i * 150)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        listed = list(client.fragments("small/fragments"))
        if sum(not fragment.spec.backing_store for fragment in listed) == 1:
            break
        time.sleep(0.02)
    assert len(listed) == 5
    assert [(f.spec.begin, f.spec.end) for f in listed] == [(i * 1200, (i + 1) * 1200) for i in range(5)]
    files = sorted(path.name for path in (broker.directory.fragments / "small/fragments").iterdir())
    assert [name[:33] for name in files] == [f"{i * 1200:016x}-{(i + 1) * 1200:016x}" for i in range(4)]
    assert everything(client, "small/fragments") == b"".join(b"%02d" % i * 150 for i in range(20))
    assert len(list(broker.directory.spools("small/fragments").iterdir())) == 1


def test_a_blocking_read_gets_what_is_committed_later(client: Client) -> None:
    client.append(JOURNAL, b"one")
    got = []

    def reader() -> None:
        for _, chunk in client.read(JOURNAL, 0, 9, block=True, timeout=20):
            got.append(chunk)

    thread = threading.Thread(target=reader)
    thread.start()
    for word in (b"two", b"six"):
        time.sleep(0.05)
        client.append(JOURNAL, word)
    thread.join(20)
    assert b"".join(got) == b"onetwosix"


def test_waiting_beyond_the_head_ends_with_the_next_commit_or_the_time(client: Client) -> None:
    client.append(JOURNAL, b"abc")
    assert client.wait(JOURNAL, 1, 5.0) == 3
    started = time.monotonic()
    assert client.wait(JOURNAL, 3, 0.2) == 3
    assert time.monotonic() - started >= 0.2
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.wait, JOURNAL, 3, 20.0)
        time.sleep(0.05)
        client.append(JOURNAL, b"d")
        assert waiting.result(10) == 4


def test_locate_names_files_that_hold_the_committed_bytes(client: Client) -> None:
    client.create(journal_spec("small/fragments", 1024, {}))
    content = b"".join(b"%04d" % i * 100 for i in range(12))
    for i in range(12):
        client.append("small/fragments", b"%04d" % i * 100)
    for begin, end in ((0, 4800), (100, 4700), (1999, 2001)):
        spans = client.locate("small/fragments", begin, end)
        found = b""
        for span in spans:
            found += span.path.read_bytes()[span.position :][: span.end - span.begin]
        assert found == content[begin:end]


def test_journals_are_listed_by_label(client: Client) -> None:
    client.create(journal_spec("b/other", 1 << 20, {"kind": "other"}))
    assert [journal.spec.name for journal in client.list()] == [JOURNAL, "b/other"]
    found = client.list(labels.parse_selector("kind=other"))
    assert [journal.spec.name for journal in found] == ["b/other"]
    assert found[0].mod_revision > 0
    assert found[0].route.primary == 0
    assert found[0].route.endpoints[0].startswith("unix://")


def test_a_journal_is_made_once(client: Client) -> None:
    assert not client.create(journal_spec(JOURNAL, 1 << 20, {}))
    with pytest.raises(PenstockError, match="cannot begin with '/'"):
        client.create(journal_spec("/rooted", 1 << 20, {}))
    with pytest.raises(PenstockError, match="cannot begin with"):
        client.create(journal_spec("../escape", 1 << 20, {}))


def test_a_deleted_journal_is_gone_and_its_data_stays(broker: EmbeddedBroker, client: Client) -> None:
    client.append(JOURNAL, b"abc")
    assert client.apply([ApplyRequest.Change(expect_mod_revision=-1, delete=JOURNAL)])
    assert client.list() == []
    assert list(broker.directory.spools(JOURNAL).iterdir())
    client.create(journal_spec(JOURNAL, 1 << 20, {}))
    assert everything(client) == b"abc"


def test_a_full_disk_refuses_the_append_and_recovers_without_restart(tmp_path: Path) -> None:
    full = threading.Event()

    class FullFile(DiskFile):
        def write_at(self, data: bytes | bytearray | memoryview, position: int) -> None:
            if full.is_set():
                super().write_at(memoryview(data)[: len(data) // 2], position)
                raise OSError(28, "No space left on device")
            super().write_at(data, position)

    class FullDisk(Disk):
        def open(self, path: Path, *, create: bool = False, mode: int = 0o640) -> DiskFile:
            file = super().open(path, create=create, mode=mode)
            return FullFile(self, file.path, file._fd)

    with EmbeddedBroker(tmp_path / "data", disk=FullDisk()) as broker, Client(broker.address) as client:
        client.create(journal_spec(JOURNAL, 1 << 20, {}))
        client.append(JOURNAL, b"before")
        full.set()
        with pytest.raises(PenstockError, match="No space left"):
            client.append(JOURNAL, b"does not fit")
        assert everything(client) == b"before"
        full.clear()
        assert client.append(JOURNAL, b"after").begin == 6
    with connect(tmp_path / "data") as client:
        assert everything(client) == b"beforeafter"


def test_after_a_failed_sync_nothing_more_is_acknowledged(tmp_path: Path) -> None:
    broken = threading.Event()

    class BrokenFile(DiskFile):
        def sync(self) -> None:
            if broken.is_set():
                raise OSError(5, "Input/output error")
            super().sync()

    class BrokenDisk(Disk):
        def open(self, path: Path, *, create: bool = False, mode: int = 0o640) -> DiskFile:
            file = super().open(path, create=create, mode=mode)
            return BrokenFile(self, file.path, file._fd)

    with EmbeddedBroker(tmp_path / "data", disk=BrokenDisk()) as broker, Client(broker.address) as client:
        client.create(journal_spec(JOURNAL, 1 << 20, {}))
        client.append(JOURNAL, b"before")
        broken.set()
        with pytest.raises(PenstockError, match="sync failed"):
            client.append(JOURNAL, b"in doubt")
        broken.clear()
        with pytest.raises(PenstockError, match=r"restart the broker|sync failed"):
            client.append(JOURNAL, b"refused")
        assert everything(client) == b"before"


def test_everything_comes_back_after_a_restart(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
        client.create(journal_spec(JOURNAL, 1024, {}))
        for i in range(30):
            client.append(JOURNAL, b"%03d" % i * 100, union=labels.label_set({"last": str(i)}))
    with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
        assert everything(client) == b"".join(b"%03d" % i * 100 for i in range(30))
        assert client.append(JOURNAL, ()).registers == labels.label_set({"last": "29"})
        assert client.append(JOURNAL, b"more").begin == 9000


def test_fencing_an_old_owner_cannot_append(client: Client) -> None:
    from penstock.log.ownership import FencedError, Ownership

    first = Ownership.claim(client, JOURNAL, b"claim-1 ")
    first.append(b"one ")
    second = Ownership.claim(client, JOURNAL, b"claim-2 ")
    assert (first.epoch, second.epoch) == (1, 2)
    with pytest.raises(FencedError, match="epoch 2, ours is 1"):
        first.append(b"late ")
    second.append(b"two")
    assert everything(client) == b"claim-1 one claim-2 two"


def test_a_journal_that_lost_its_registers_is_not_claimed(client: Client) -> None:
    from penstock.log.ownership import Ownership

    client.append(JOURNAL, b"content without an epoch")
    with pytest.raises(PenstockError, match="lost its registers"):
        Ownership.claim(client, JOURNAL, b"claim")


def test_empty_registers_match_any_check(client: Client) -> None:
    check = LabelSelector(include=labels.label_set({"epoch": "7"}))
    assert client.append(JOURNAL, b"x", check=check).end == 1
