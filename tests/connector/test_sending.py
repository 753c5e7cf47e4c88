"""What `connector send` knows of a stream that it is told to leave: whether all of it is durable."""

from __future__ import annotations

import asyncio
import os
from io import FileIO
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from penstock.cli.connector_sending import Watched, end_when_told, watched
from penstock.connector.source import Connector
from penstock.connector.sources import Datagrams, Lines, PipeLines, Posts


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
