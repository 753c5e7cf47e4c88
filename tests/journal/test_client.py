"""The client: which call it makes of an append, and what it makes of the answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.base.disk import Buffer
from penstock.base.errors import PenstockError
from penstock.journal.client import (
    APPEND_CHUNK,
    BrokerGoneError,
    BytesGoneError,
    Client,
    Halt,
    JournalError,
)
from penstock.journal.embedded import EmbeddedBroker
from penstock.journal.protocol import AppendRequest, AppendResponse
from penstock.log.commitlog import journal_spec

from .brokers import JOURNAL, everything


class Calls:
    """Notes which kind of append a client uses."""

    def __init__(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[str] = []
        for name in ("append", "append_whole"):
            monkeypatch.setattr(client._calls, name, self._noting(name, getattr(client._calls, name)))

    def _noting(self, name: str, call: Callable[..., AppendResponse]) -> Callable[..., AppendResponse]:
        def noting(*args: object, timeout: float) -> AppendResponse:
            self.made.append(name)
            return call(*args, timeout=timeout)

        return noting


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "append_whole"),
        (b"small", "append_whole"),
        ([b"several ", bytearray(b"kinds of "), memoryview(b"piece")], "append_whole"),
        (memoryview(b"more than bytes:").cast("H"), "append_whole"),
        (bytes(APPEND_CHUNK), "append_whole"),
        (bytes(APPEND_CHUNK + 1), "append"),
        ([bytes(APPEND_CHUNK // 2)] * 3, "append"),
    ],
)
def test_what_fits_is_appended_in_one_message_and_the_rest_is_streamed(
    client: Client, monkeypatch: pytest.MonkeyPatch, content: Buffer | list[Buffer], expected: str
) -> None:
    calls = Calls(client, monkeypatch)
    landed = client.append(JOURNAL, content, timeout=30)
    whole = b"".join(content) if isinstance(content, list) else bytes(content)
    assert calls.made == [expected]
    assert (landed.begin, landed.end) == (0, len(whole))
    assert everything(client) == whole


def test_a_broker_that_knows_only_streams_gets_streams(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = client._homes.current.channel.unary_unary(
        "/penstock.Local/Unknown", AppendRequest.SerializeToString, AppendResponse.FromString
    )
    monkeypatch.setattr(client._calls, "append_whole", foreign)
    calls = Calls(client, monkeypatch)
    for i in range(3):
        client.append(JOURNAL, b"%d" % i)
    assert calls.made == ["append_whole", "append", "append", "append"]
    assert everything(client) == b"012"


def test_what_the_broker_cannot_read_is_told_with_its_file(broker: EmbeddedBroker, client: Client) -> None:
    client.create(journal_spec("small/fragments", 1024, {}))
    for _ in range(3):
        client.append("small/fragments", b"x" * 1200)
    stored = broker.directory.fragments / "small/fragments"
    # Until its spool has gone, a fragment may still be read from there.
    while len(list(broker.directory.spools("small/fragments").iterdir())) > 1:
        time.sleep(0.005)
    damaged = min(stored.glob("*.raw"))
    damaged.write_bytes(b"x" * 100)
    with pytest.raises(PenstockError, match=f"the broker refused: .*{damaged.name}, byte 100: .* ends here"):
        everything(client, "small/fragments")


def test_the_begin_is_that_of_the_first_fragment_there_is(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
        client.create(journal_spec(JOURNAL, 1024, {}))
        assert client.begin(JOURNAL) == 0
        for _ in range(3):
            client.append(JOURNAL, b"x" * 1200)
        assert client.begin(JOURNAL) == 0
        stored = broker.directory.fragments / JOURNAL
        # A fragment is in the store for good once its spool has gone; until then it is found again as a local one.
        while len(list(broker.directory.spools(JOURNAL).iterdir())) > 1:
            time.sleep(0.005)
        assert len(list(stored.glob("*.raw"))) == 2
    min(stored.glob("*.raw")).unlink()
    with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
        assert client.begin(JOURNAL) == 1200
        with pytest.raises(BytesGoneError, match="bytes 0 to 1200 are gone"):
            client.read_bytes(JOURNAL, 0, 0)
        assert client.read_bytes(JOURNAL, 1200, 0) == b"x" * 2400


def test_the_begin_of_a_journal_of_which_nothing_is_left_is_where_it_goes_on(client: Client) -> None:
    client.append(JOURNAL, b"a" * 100)
    client.roll(JOURNAL)
    deadline = time.monotonic() + 60
    while client.trim(JOURNAL, 100).begin < 100 or client.begin(JOURNAL) == 0:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert list(client.fragments(JOURNAL)) == []
    assert client.begin(JOURNAL) == client.head(JOURNAL) == 100
    client.append(JOURNAL, b"b")
    assert client.begin(JOURNAL) == 100


def test_a_broker_that_goes_away_in_the_middle_is_said_to_be_gone(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path / "data")
    with Client(broker.address) as client:
        client.create(journal_spec(JOURNAL, 1024, {}))
        broker.stop()
        for call in (lambda: client.append(JOURNAL, b"x"), lambda: client.head(JOURNAL), client.list):
            with pytest.raises(BrokerGoneError):
                call()


def test_a_journal_is_rolled_trimmed_and_read_across_what_is_gone(client: Client) -> None:
    client.append(JOURNAL, b"a" * 100)
    assert client.roll(JOURNAL).offset == 100
    client.append(JOURNAL, b"b" * 100)
    deadline = time.monotonic() + 60
    while (
        trimmed := client.trim(JOURNAL, 150)
    ).begin < 100:  # what is on its way to the store is not trimmed yet
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert trimmed.begin == 100
    assert client.begin(JOURNAL) == 100
    assert list(client.read(JOURNAL, 0)) == [(100, b"b" * 100)]
    with pytest.raises(BytesGoneError, match="bytes 0 to 100 are gone"):
        client.read_bytes(JOURNAL, 0, 0)


def test_a_store_is_healthy_or_the_broker_says_why_not(client: Client) -> None:
    (journal,) = client.list()
    assert client.store_health(journal.spec.fragment.stores[0]) == ""
    assert client.store_health("file:///no/such/directory/") != ""


def test_an_explicit_offset_must_be_the_write_head(client: Client) -> None:
    client.append(JOURNAL, b"abc")
    assert client.append(JOURNAL, b"def", offset=3).begin == 3
    with pytest.raises(JournalError, match="WRONG_APPEND_OFFSET"):
        client.append(JOURNAL, b"ghi", offset=3)
    assert client.metadata(JOURNAL, 0).write_head == 6
    assert client.metadata(JOURNAL, 0).fragment.end == 6


def test_a_watch_tells_of_new_journals(client: Client) -> None:
    watching = client.watch(timeout=10)
    assert len(next(watching)) == 1
    client.create(journal_spec("another/journal", 1024, {}))
    assert [journal.spec.name for journal in next(watching)] == [JOURNAL, "another/journal"]
    watching.close()  # type: ignore[attr-defined]


def test_a_wait_for_more_is_ended_by_another_thread(client: Client) -> None:
    head = client.append(JOURNAL, b"some").end
    halt = Halt()
    heads: list[int] = []
    waiting = threading.Thread(target=lambda: heads.append(client.wait(JOURNAL, head, 600.0, halt)))
    waiting.start()
    while halt._call is None:
        time.sleep(0.001)
    halt.ask()
    waiting.join(60)
    assert heads == [head]
    assert client.wait(JOURNAL, head, 600.0, halt) == head, "nor does anyone wait who comes later"
    halt.clear()
    client.append(JOURNAL, b"more")
    assert client.wait(JOURNAL, head, 600.0, halt) == head + 4


def test_a_broker_that_goes_while_one_waits_is_told_as_such(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker:
        client = Client(broker.address)
        client.create(journal_spec(JOURNAL, 1 << 20, {}))
        told: list[BaseException] = []
        halt = Halt()

        def wait() -> None:
            try:
                client.wait(JOURNAL, 0, 600.0, halt)
            except BrokerGoneError as error:
                told.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        while halt._call is None:
            time.sleep(0.001)
    waiting.join(60)
    assert len(told) == 1
    client.close()
