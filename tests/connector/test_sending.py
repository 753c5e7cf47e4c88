"""What `connector send` knows of a stream that it is told to leave: whether all of it is durable."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from io import BytesIO, FileIO
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from penstock.cli.connector_sending import Watched, end_when_told, watched
from penstock.connector.source import Connector
from penstock.connector.sources import Datagrams, Lines, PipeLines, Posts
from penstock.connector.stream import Record

WAIT = 60.0


def lines(path: Path, *, follow: bool = False) -> Watched:
    file = path / "lines"
    file.write_bytes(b"one\ntwo\n")
    (stream,) = watched([Lines(file, follow=follow)], asyncio.Event(), follow=follow)
    return stream


@pytest.mark.parametrize("follow", [False, True])
def test_a_file_is_behind_until_all_that_was_read_is_acknowledged(tmp_path: Path, follow: bool) -> None:
    stream = lines(tmp_path, follow=follow)
    assert stream.behind, "nobody has taken it"
    stream.seek(None)
    assert stream.behind is not follow, "what has an end is whole only there"
    stream.read()
    stream.ack(4)
    assert (stream.behind, stream.durable) == (True, 4)
    stream.ack(8)
    assert stream.behind is not follow
    stream.read()
    assert (stream.behind, stream.unsettled, stream.durable) == (False, False, 8)


def test_what_a_journal_has_already_need_not_be_acknowledged_again(tmp_path: Path) -> None:
    stream = lines(tmp_path)
    stream.seek(8)
    assert stream.read() is None
    assert (stream.behind, stream.durable) == (False, 8)
    stream.seek(4)
    assert stream.behind, "a worker that has less is given more"


def test_what_is_read_ahead_of_a_pipe_counts_as_read() -> None:
    ours, theirs = os.pipe()
    (stream,) = watched([PipeLines(FileIO(ours), name="p")], asyncio.Event(), follow=False)
    assert stream.behind
    stream.seek(None)
    assert not stream.behind
    os.write(theirs, b"one\ntwo\nthr")
    while not stream.read():
        pass
    assert stream.behind
    stream.ack(2)
    assert not stream.behind, "a line that has begun is none yet"
    os.close(theirs)


def test_what_a_pipe_says_behind_the_signal_is_not_taken() -> None:
    ours, theirs = os.pipe()
    lines = PipeLines(FileIO(ours), name="p")
    (stream,) = watched([lines], asyncio.Event(), follow=False)
    stream.seek(None)
    os.write(theirs, b"one\n")
    while not stream.read():
        pass
    stream.stop()
    os.write(theirs, b"two\n")
    os.close(theirs)
    assert lines._reader is not None
    lines._reader.join(WAIT)
    assert stream.read() == []
    assert stream.behind
    stream.ack(1)
    assert not stream.behind


def test_a_connection_that_is_lost_behind_the_signal_takes_nothing_back_of_what_was_read(
    tmp_path: Path,
) -> None:
    """What a new one lacks is given again, up to there, or is missed: it was taken for durable."""
    stream = lines(tmp_path, follow=True)
    stream.seek(None)
    stream.read()
    stream.stop()
    with (tmp_path / "lines").open("ab") as more:
        more.write(b"three\n")
    assert stream.read() == []
    stream.seek(None)
    assert stream.behind
    again = stream.read()
    assert again is not None
    assert [Record(*record).body for record in again] == [b"one", b"two"]
    assert stream.read() == []
    stream.ack(4)
    assert stream.behind
    stream.seek(4)
    again = stream.read()
    assert again is not None
    assert [record[0] for record in again] == [8]
    stream.ack(8)
    assert not stream.behind


def test_a_file_whose_end_was_read_before_the_signal_is_given_to_its_end_again(tmp_path: Path) -> None:
    stream = lines(tmp_path)
    stream.seek(None)
    assert stream.read()
    assert stream.read() is None
    stream.stop()
    stream.seek(4)
    assert stream.behind
    assert len(stream.read() or ()) == 1
    assert stream.read() is None
    stream.ack(8)
    assert not stream.behind


@pytest.mark.parametrize("kind", [Datagrams, Posts])
def test_what_came_to_a_port_counts_before_it_is_read(kind: type[Datagrams | Posts]) -> None:
    port = kind("127.0.0.1", 0, name="port")
    (stream,) = watched([port], asyncio.Event(), follow=False)
    stream.seek(None)
    assert not stream.behind
    port.put(b"x")
    assert stream.behind
    stream.stop()
    assert stream.read(), "what had come before it was closed is sent"
    stream.ack(1)
    assert not stream.behind


@pytest.mark.parametrize("comes", [True, False])
def test_a_signal_waits_a_moment_for_the_acks_of_what_was_read(
    tmp_path: Path, comes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cli.connector_sending._LAST_ACKS", 0.2)

    async def test() -> None:
        acked, told, stopped = asyncio.Event(), asyncio.Event(), asyncio.Event()
        running = cast("Connector", SimpleNamespace(link=object(), stop=stopped.set))
        stream = Watched(Lines(tmp_path / "lines", follow=True), acked, ends=False)
        stream.seek(None)
        stream.read()
        told.set()
        ending = asyncio.create_task(end_when_told(told, running, [stream], acked))
        await asyncio.sleep(0.05)
        assert not stopped.is_set()
        assert stream.read() == [], "nothing more is read"
        if comes:
            stream.ack(8)
        await ending
        assert stopped.is_set()
        assert stream.behind is not comes

    (tmp_path / "lines").write_bytes(b"one\ntwo\n")
    asyncio.run(test())


def read(stream: Watched) -> None:
    assert stream.read() == []


def ended(stream: Watched, acked: asyncio.Event, meanwhile: Callable[[], None]) -> None:
    """Told to end while there is no connection; not before what happens then, and long before the limit."""

    async def test() -> None:
        told, stopped = asyncio.Event(), asyncio.Event()
        told.set()
        running = cast("Connector", SimpleNamespace(link=None, stop=stopped.set))
        ending = asyncio.create_task(end_when_told(told, running, [stream], acked))
        for _ in range(10):
            await asyncio.sleep(0)
        assert stopped.is_set() is not stream.unsettled
        meanwhile()
        async with asyncio.timeout(WAIT):
            await ending
        assert stopped.is_set()

    asyncio.run(test())


def test_a_signal_while_the_connection_is_made_again_waits_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cli.connector_sending._LAST_ACKS", 2 * WAIT)
    (tmp_path / "lines").write_bytes(b"one\ntwo\n")
    acked = asyncio.Event()
    stream = Watched(Lines(tmp_path / "lines", follow=True), acked, ends=False)
    stream.seek(None)
    stream.read()
    ended(stream, acked, lambda: stream.seek(8))
    assert not stream.behind


def test_a_signal_before_a_worker_took_anything_waits_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cli.connector_sending._LAST_ACKS", 2 * WAIT)
    stream = lines(tmp_path)
    ended(stream, asyncio.Event(), lambda: None)
    assert stream.behind


def test_what_was_read_ahead_and_is_durable_already_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.cli.connector_sending._LAST_ACKS", 2 * WAIT)
    pipe, acked = PipeLines(BytesIO(), name="p"), asyncio.Event()
    (stream,) = watched([pipe], acked, follow=False)
    stream.seek(2)
    pipe._chunks.append(b"one\ntwo\n")
    ended(stream, acked, lambda: read(stream))
    assert not stream.behind
