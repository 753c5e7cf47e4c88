"""`adaptors.connector` as a source: the log has each message once, whoever dies; a pipeline ends with its streams."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.journal.authority import Authority
from tests.servers.ports import free_port

from penstock import Pipeline
from penstock import adaptors as a
from penstock.adaptors.base import Batch
from penstock.base.errors import UsageError
from penstock.connector.frames import Hello, Notify, NotifyAck, Ok, encode
from penstock.connector.settings import CREDITS
from penstock.connector.source import Connector, IteratorStream, Record, Records, Stream, stream_id
from penstock.journal.tls import ClientTls
from penstock.log.message import Message, MessageOffset, Mode, Resume
from penstock.pipeline.runner import run


class Log:
    """A log that takes batches as ingest does, and may forget the last ones."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def messages(self, ns: str) -> list[Message]:
        return [message for batch in self.batches for message in batch.messages if message.ns == ns]

    def resume(self) -> dict[str, Resume]:
        known: dict[str, Resume] = {}
        for batch in self.batches:
            for ns, position in batch.positions.items():
                before = known.get(ns)
                mode = before.mode if before is not None else Mode.COPY
                known[ns] = Resume(Mode.SYNC if ns in batch.completed else mode, position, MessageOffset(-1))
        return known

    def read(self, port: int, *, at_most: int | None = None, **settings: object) -> None:
        """Until the source has run out, or after so many batches with the last of them lost."""
        source = a.connector(listen=f"127.0.0.1:{port}", instance="i", **settings).source()
        reading: Iterator[Batch] = iter(
            source.read(lambda ns: ns != "other", self.resume(), threading.Event())
        )
        for number, batch in enumerate(reading, 1):
            if number == at_most:
                reading.close()  # type: ignore[attr-defined]
                return
            self.batches.append(batch)
            source.logged(batch)


def documents(name: str, count: int) -> Stream:
    def records(point: int | None) -> Iterator[Record]:
        for number in range((point or 0) + 1, count + 1):
            yield Record(number, b'{"n":%d}' % number, b"k%d" % number)

    return IteratorStream(name, records, batch=7)


def sending(
    port: int, streams: Sequence[Stream], instance: str = "i", tls: ssl.SSLContext | None = None
) -> threading.Thread:
    def send() -> None:
        asyncio.run(Connector([f"127.0.0.1:{port}"], instance, streams, patience=60, tls=tls).serve())

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def test_streams_become_namespaces_and_their_ends_end_the_copy() -> None:
    port, log = free_port(), Log()
    streams = [documents("orders", 100), documents("items", 50), documents("other", 5)]
    thread = sending(port, streams)
    log.read(port)
    thread.join(60)
    assert not thread.is_alive()
    assert [json.loads(message.data)["n"] for message in log.messages("orders")] == list(range(1, 101))
    assert log.messages("items")[0].key == b'{"key":"k1"}'
    assert log.messages("other") == []
    assert sorted(ns for batch in log.batches for ns in batch.completed) == ["items", "orders"]
    assert {message.mode for message in log.messages("orders")} == {Mode.COPY}


class Pausing(Stream):
    """One message, and then nothing until it may end."""

    def __init__(self, name: str, may_end: threading.Event) -> None:
        self.name, self.may_end = name, may_end
        self.sent = False

    def seek(self, point: int | None) -> None:
        self.sent = point is not None

    async def read(self) -> Records:
        if not self.sent:
            self.sent = True
            return [Record(1, b"{}")]
        await asyncio.to_thread(self.may_end.wait, 60)
        return None


def test_who_is_connected_is_told_while_it_is() -> None:
    port, may_end = free_port(), threading.Event()
    source = a.connector(listen=f"127.0.0.1:{port}", instance="i").source()
    assert source.gauges() == {}
    thread = sending(port, [Pausing("orders", may_end), Pausing("items", may_end)])
    told: dict[str, float] = {}
    namespaces: set[str] = set()
    for batch in source.read(lambda ns: True, {}, threading.Event()):
        source.logged(batch)
        namespaces |= batch.positions.keys()
        if len(namespaces) == 2 and not told:
            told = dict(source.gauges())
            may_end.set()
    thread.join(60)
    assert 0 < told.pop("credits") <= CREDITS
    assert told == {"connections": 1, "streams": 2, "repeated": 0, "refused": 0, "faults": 0}


def test_a_batch_that_the_log_lost_is_sent_again_and_nothing_twice() -> None:
    port, log = free_port(), Log()
    thread = sending(port, [documents("orders", 200)])
    for at_most in (2, 4, 3):
        log.read(port, at_most=at_most, credits=10)
    log.read(port)
    thread.join(60)
    assert not thread.is_alive()
    assert [json.loads(message.data)["n"] for message in log.messages("orders")] == list(range(1, 201))


def test_what_is_no_document_is_kept_with_its_place_and_text_may_be_wrapped() -> None:
    lines = IteratorStream(
        "lines", lambda point: [Record(1, b"plain"), Record(2, b'{"a":1}'), Record(3, b"\xff")]
    )
    port, log = free_port(), Log()
    thread = sending(port, [lines])
    log.read(port)
    thread.join(60)
    bad = [each for batch in log.batches for each in batch.bad]
    assert [each.place for each in bad] == [
        f"stream lines ({stream_id('lines')}), message {n}" for n in (1, 3)
    ]
    assert [message.data for message in log.messages("lines")] == [b'{"a":1}']
    port, log = free_port(), Log()
    thread = sending(port, [lines])
    log.read(port, body="text", key=["text"])
    thread.join(60)
    assert log.messages("lines")[0].data == b'{"text":"plain"}'
    assert log.messages("lines")[0].key == b'{"text":"plain"}'


@pytest.mark.parametrize(
    ("body", "kind", "told"),
    [
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "json", "nested too deeply"),
        (b"\x01" * (4 << 20), "text", "longer than a message may be"),
    ],
    ids=["nested", "escaped"],
)
def test_what_the_log_cannot_take_is_kept_and_does_not_stop_its_stream(
    body: bytes, kind: str, told: str
) -> None:
    port, log = free_port(), Log()
    thread = sending(port, [IteratorStream("odd", lambda point: [Record(1, body), Record(2, b'{"a":1}')])])
    log.read(port, body=kind)
    thread.join(60)
    assert not thread.is_alive()
    [bad] = [each for batch in log.batches for each in batch.bad]
    assert told in bad.error
    assert len(log.messages("odd")) == 1


def test_a_time_that_no_calendar_has_is_that_of_coming() -> None:
    """A connector may count in nanoseconds; sinks that write the time as a date could not."""
    times = (1_700_000_000_000_000, 1_700_000_000_000_000_000, 2**63 - 1, 0, -(2**63))
    records = [Record(number, b'{"a":1}', time=at) for number, at in enumerate(times)]
    port, log, before = free_port(), Log(), time.time_ns() // 1000
    thread = sending(port, [IteratorStream("late", lambda point: records)])
    log.read(port)
    thread.join(60)
    told, *others = [message.ts for message in log.messages("late")]
    assert told == times[0]
    assert len(others) == 4
    assert all(before <= ts <= time.time_ns() // 1000 for ts in others)


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="needs 'listen'"):
        a.connector().source()
    with pytest.raises(UsageError, match="expected HOST:PORT"):
        a.connector(listen="here").source()
    with pytest.raises(UsageError, match="no instance can be called"):
        a.connector(listen="127.0.0.1:1", instance="../x").source()
    with pytest.raises(UsageError, match="expected both or none"):
        a.connector(listen="127.0.0.1:1", certificate="cert.pem")
    with pytest.raises(UsageError, match="'ca': expected 'certificate'"):
        a.connector(listen="127.0.0.1:1", ca="ca.pem")
    with pytest.raises(UsageError, match="connections to sinks have no TLS"):
        a.connector(sink="127.0.0.1:1", certificate="cert.pem", private_key="key.pem")
    with pytest.raises(UsageError, match=r"cannot read the TLS certificate file nowhere\.pem"):
        a.connector(listen="127.0.0.1:1", certificate="nowhere.pem", private_key="key.pem").source()


def connected(port: int) -> socket.socket:
    deadline = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 60)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.parametrize("order", [("before", "now"), ("now", "before")])
def test_a_stream_that_has_changed_its_name_goes_on_behind_the_last_id_of_all(order: Sequence[str]) -> None:
    lasts = {"before": 5, "now": 9}
    resume = {
        ns: Resume(Mode.COPY, {"streams": {"7": lasts[ns]}, "ended": []}, MessageOffset(-1)) for ns in order
    }
    port, stop = free_port(), threading.Event()
    source = a.connector(listen=f"127.0.0.1:{port}", instance="i").source()
    reading = threading.Thread(target=lambda: list(source.read(lambda ns: True, resume, stop)), daemon=True)
    reading.start()
    with connected(port) as peer:
        peer.sendall(encode(Hello("0.0.1", b"", "p", "i")) + encode(Notify(7, "now", 0)))
        wanted, got = encode(Ok(CREDITS)) + encode(NotifyAck(True, 7, 9)), b""
        while len(got) < len(wanted):
            got += peer.recv(len(wanted) - len(got))
    stop.set()
    reading.join(60)
    assert got == wanted


def answer(port: int, tls: ssl.SSLContext | None) -> bytes:
    """What one gets who says HELLO, with a certificate or without TLS."""
    connection = connected(port)
    try:
        with tls.wrap_socket(connection, server_hostname="localhost") if tls else connection as wrapped:
            wrapped.sendall(encode(Hello("0.0.1", b"", "p", "i")))
            return wrapped.recv(1000)
    except OSError:  # of which the errors of TLS are some
        return b""


def test_over_tls_only_those_come_in_whom_the_authority_has_signed(tmp_path: Path) -> None:
    authority, strangers = Authority(tmp_path, "authority"), Authority(tmp_path, "strangers")
    ours, theirs, another = authority.pair("pipeline"), authority.pair("theirs"), strangers.pair("another")
    port, log = free_port(), Log()
    files = {
        "certificate": str(ours.cert_file),
        "private_key": str(ours.key_file),
        "ca": str(authority.ca_file),
    }
    reading = threading.Thread(target=partial(log.read, port, **files), daemon=True)  # type: ignore[arg-type]
    reading.start()
    greeted = encode(Ok(CREDITS))
    assert greeted not in answer(port, None)
    assert greeted not in answer(port, ClientTls(authority.ca_file).ssl_context())
    unknown = ClientTls(authority.ca_file, another.cert_file, another.key_file).ssl_context()
    assert greeted not in answer(port, unknown)
    trusted = ClientTls(authority.ca_file, theirs.cert_file, theirs.key_file).ssl_context()
    assert answer(port, trusted) == greeted
    sending(port, [documents("orders", 20)], tls=trusted).join(60)
    reading.join(60)
    assert [json.loads(message.data)["n"] for message in log.messages("orders")] == list(range(1, 21))


@pytest.mark.spark
def test_a_pipeline_fed_by_a_connector_ends_when_its_streams_have(
    tmp_path: Path, spark: SparkSession
) -> None:
    port = free_port()
    pipeline = Pipeline("fed")
    orders = pipeline.source("in", a.connector(listen=f"127.0.0.1:{port}", instance="i"), ns="orders|items")
    orders.save("out", a.file(uri=f"file://{tmp_path}/out.jsonl"))
    thread = sending(port, [documents("orders", 300), documents("items", 20)])
    summary = run(pipeline, data_dir=tmp_path / "data", once=True, spark=spark)
    thread.join(60)
    assert (summary.exit_code, summary.adds_up) == (0, True)
    numbers = [json.loads(line)["n"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert sorted(numbers) == sorted([*range(1, 301), *range(1, 21)])
