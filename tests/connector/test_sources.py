"""The ready sources: files, directories, pipes, datagrams and posts; what is added, cut, rotated or late."""

from __future__ import annotations

import asyncio
import io
import os
import socket
import sqlite3
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from tests.connector.rig import COOKIE, Rig, eventually, rigged
from tests.connector.test_source import bodies, connector

from penstock.base.errors import PenstockError
from penstock.connector import sources
from penstock.connector.source import CannotSeekError, Record, Stream
from penstock.connector.sources import Datagrams, DirectoryLines, Lines, PipeLines, Posts
from penstock.connector.worker import Worker

ROOT = Path(__file__).parents[2]


def read(stream: Stream) -> list[Record] | None:
    records = stream.read()
    assert records is None or isinstance(records, Sequence)
    return None if records is None else [Record(*record) for record in records]


def read_all(stream: Stream, point: int | None = None) -> list[Record]:
    stream.seek(point)
    found: list[Record] = []
    while (records := read(stream)) is not None:
        found += records
    return found


def test_lines_of_a_file_have_the_byte_behind_them_as_id(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"one\ntwo\n\nlast")
    whole = read_all(Lines(file))
    assert [(record.id, record.body) for record in whole] == [
        (4, b"one"),
        (8, b"two"),
        (9, b""),
        (13, b"last"),
    ]
    assert read_all(Lines(file), 8) == whole[2:]
    refused = Lines(file)
    with pytest.raises(CannotSeekError, match="replaced or cut"):
        refused.seek(14)
    assert refused._file is None, "a file that is not read is not kept open"


def test_a_file_that_is_followed_gives_whole_lines_as_they_come(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"one\ntw")
    lines = Lines(file, follow=True)
    lines.seek(None)
    assert read(lines) == [Record(4, b"one")]
    assert read(lines) == []
    with file.open("ab") as more:
        more.write(b"o\n")
    assert read(lines) == [Record(8, b"two")]
    lines.close()


def test_files_of_a_directory_are_one_stream(tmp_path: Path) -> None:
    for name, content in (("a", b"1\n2\n"), ("b", b"3"), ("c", b"4\n")):
        (tmp_path / name).write_bytes(content)
    whole = read_all(DirectoryLines(tmp_path))
    assert [record.body for record in whole] == [b"1", b"2", b"3", b"4"]
    assert [record.id for record in whole] == sorted(record.id for record in whole)
    for cut in range(4):
        assert read_all(DirectoryLines(tmp_path), whole[cut].id) == whole[cut + 1 :]
    with pytest.raises(CannotSeekError):
        DirectoryLines(tmp_path).seek(9 << 40)


def test_a_pipe_run_again_sends_only_what_is_missing() -> None:
    assert [r.body for r in read_all(PipeLines(io.BytesIO(b"a\nb\nc\n"), name="p"))] == [b"a", b"b", b"c"]
    assert read_all(PipeLines(io.BytesIO(b"a\nb\nc\n"), name="p"), 2) == [Record(3, b"c")]


def test_a_pipe_that_does_not_block_has_not_ended_when_it_has_nothing() -> None:
    """As one is that another program has set so, which shares it."""
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    with io.FileIO(ours) as pipe, io.FileIO(theirs, "w") as writer:
        lines = PipeLines(pipe, name="p")
        lines.seek(None)
        assert lines.read() == []
        time.sleep(0.1)
        assert lines.read() == []
        writer.write(b"a\n")
        writer.close()
        assert [record.body for record in read_all(lines)] == [b"a"]


def test_what_cannot_be_read_twice_is_kept_until_it_is_durable() -> None:
    pipe = PipeLines(io.BytesIO(b"a\nb\nc\n"), name="p")
    assert len(read_all(pipe)) == 3
    pipe.ack(1)
    pipe.seek(1)
    assert [record[0] for record in read(pipe) or ()] == [2, 3]
    with pytest.raises(CannotSeekError):
        pipe.seek(0)


def test_what_another_sender_gave_is_not_taken_for_what_is_kept() -> None:
    """What is kept was thrown away as durable, and nobody heard of it."""
    posts = Posts("127.0.0.1", 0, name="hooks")
    posts.seek(7)
    assert [posts.put(b"a"), posts.put(b"b")] == [8, 9]
    posts.seek(8)
    with pytest.raises(CannotSeekError, match="up to message 10, and this sender gave none behind 9"):
        posts.seek(10)
    assert list(posts.kept) == [b"b"]


def test_no_line_of_a_pipe_is_left_out_when_more_come_at_once_than_there_is_room_for() -> None:
    pipe = PipeLines(io.BytesIO(b"\n" * 100_000), name="p")
    pipe.limit = 1000
    pipe.seek(None)
    found: list[int] = []
    while (records := read(pipe)) is not None:
        found += [record.id for record in records]
        if found:
            pipe.ack(found[-1])
            assert pipe.size == 0
    assert found == list(range(1, 100_001))


class Endless:
    """A pipe that always has another line."""

    def __init__(self) -> None:
        self.given = 0

    def read(self, size: int, /) -> bytes:
        self.given += 1
        return b"%d\n" % self.given


def test_a_busy_pipe_that_is_stopped_gives_what_was_read_ahead_and_takes_no_more() -> None:
    """Nothing of it was sent, and the thread went on taking from the pipe."""

    async def test() -> None:
        busy = Endless()
        pipe = PipeLines(busy, name="p")
        pipe.seek(None)
        found = read(pipe) or []
        await eventually(lambda: len(pipe._chunks) == sources._CHUNKS)
        pipe.stop()
        await eventually(lambda: pipe._reader is not None and not pipe._reader.is_alive())
        assert busy.given == len(found) + sources._CHUNKS
        assert pipe.unsettled
        while records := read(pipe):
            found += records
        assert [int(record.body) for record in found] == list(range(1, busy.given + 1))
        assert records == [], "that is not its end"
        pipe.ack(busy.given)
        assert not pipe.unsettled

    asyncio.run(test())


def test_a_pipe_that_is_stopped_before_it_was_read_is_not_begun() -> None:
    busy = Endless()
    pipe = PipeLines(busy, name="p")
    pipe.stop()
    pipe.seek(None)
    assert (read(pipe), busy.given) == ([], 0)


@pytest.mark.parametrize("last", [b"", b"two"])
def test_the_end_of_a_pipe_is_no_data_but_makes_its_last_line_whole(last: bytes) -> None:
    pipe = PipeLines(io.BytesIO(b"one\n" + last), name="p")
    pipe.seek(None)
    while not read(pipe):
        pass
    assert pipe._reader is not None
    pipe._reader.join()
    assert len(pipe._chunks) == 1
    pipe.ack(1)
    assert pipe.unsettled is bool(last)
    pipe.stop()
    assert [record.body for record in read(pipe) or ()] == [last] * bool(last)
    assert read(pipe) is None


def test_posts_and_datagrams_arrive(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        posts, datagrams = Posts("127.0.0.1", 0, name="posts"), Datagrams("127.0.0.1", 0, name="udp")
        post_port, udp_port = await posts.open(), await datagrams.open()
        running = connector([worker.me.address], [posts, datagrams])
        serving = asyncio.create_task(running.serve())
        await eventually(lambda: posts._next is not None and datagrams._next is not None)
        reader, writer = await asyncio.open_connection("127.0.0.1", post_port)
        writer.write(b"POST /hook HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
        assert bodies(await rig.frames()) == [b"hello"]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"datagram", ("127.0.0.1", udp_port))
        await eventually(lambda: running.acked.get("udp") == 1)
        assert sorted(bodies(await rig.frames())) == [b"datagram", b"hello"]
        running.stop()
        await serving
        posts.close()
        datagrams.close()

    rigged(tmp_path / "d", test)


@pytest.mark.parametrize(
    ("head", "taken"),
    [
        (b"X-Decoded-Content-Length: 2\r\nContent-Length: 5", b"hello"),
        (b"Content-Length : 5", b"hello"),
        (b"Content-Length: 5\r\nTransfer-Encoding: chunked", None),
        (b"Content-Length: 5\r\nContent-Length: 2", None),
        (b"Content-Length: 0_5", None),
        (b"Content-Length: -5", None),
    ],
)
def test_a_post_is_as_long_as_its_own_header_says_or_is_not_taken(head: bytes, taken: bytes | None) -> None:
    async def test() -> None:
        posts = Posts("127.0.0.1", 0, name="posts")
        port = await posts.open()
        posts.seek(None)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /hook HTTP/1.1\r\n" + head + b"\r\n\r\nhello")
        if taken is None:
            assert (await reader.readline()).startswith(b"HTTP/1.1 400")
        else:
            await eventually(lambda: list(posts.kept) == [taken])
        writer.close()
        posts.close()

    asyncio.run(test())


def test_bodies_that_are_not_whole_yet_count_for_what_may_be_kept() -> None:
    """A hundred senders that went on for ever took a hundred times 16 MiB, and nothing was kept."""

    async def test() -> None:
        posts = Posts("127.0.0.1", 0, name="posts")
        posts.limit = 1 << 20
        port = await posts.open()
        posts.seek(None)
        begun = b"POST / HTTP/1.1\r\nContent-Length: 400000\r\n\r\n" + bytes(399_999)
        links = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for _, writer in links:
            writer.write(begun)
        answers = [asyncio.create_task(reader.readline()) for reader, _ in links]
        done, waiting = await asyncio.wait(answers, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        assert [one.result() for one in done] == [b"HTTP/1.1 503 Service Unavailable\r\n"]
        for (_, writer), answer in zip(links, answers, strict=True):
            if answer in waiting:
                writer.write(b"!")
        await eventually(lambda: [len(body) for body in posts.kept] == [400_000, 400_000])
        posts.ack(2)
        await asyncio.wait(waiting)
        assert {one.result() for one in waiting} == {b"HTTP/1.1 200 OK\r\n"}
        for _, writer in links:
            writer.close()
        posts.close()

    asyncio.run(test())


def test_a_client_that_says_nothing_leaves_no_traceback_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        posts = Posts("127.0.0.1", 0, name="posts")
        port = await posts.open()
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HT")
        await eventually(lambda: len(asyncio.all_tasks()) > 1)
        posts.close()

    asyncio.run(test())
    assert not caplog.records


def appended(file: Path, content: bytes) -> None:
    with file.open("ab") as more:
        more.write(content)


def test_a_line_that_is_being_written_to_a_followed_directory_waits_for_its_end(tmp_path: Path) -> None:
    appended(tmp_path / "a", b"1\n2")
    followed = DirectoryLines(tmp_path, follow=True)
    followed.seek(None)
    assert [read(followed), read(followed), read(followed)] == [[Record(2, b"1")], [], []]
    appended(tmp_path / "a", b"2\n3")
    assert read(followed) == [Record(5, b"22")]
    assert read(followed) == []
    appended(tmp_path / "b", b"4\n")
    assert read(followed) == [Record(6, b"3")], "with another file behind it the first one is whole"
    assert [read(followed), read(followed)] == [[], [Record((1 << 40) + 2, b"4")]]
    again = DirectoryLines(tmp_path, follow=True)
    again.seek(5)
    assert [read(again), read(again), read(again)] == [[], [Record(6, b"3")], []]


@pytest.mark.parametrize("change", ["gone", "between"])
def test_a_followed_directory_whose_files_change_places_is_told(tmp_path: Path, change: str) -> None:
    for name in ("b", "d"):
        appended(tmp_path / name, b"1\n")
    followed = DirectoryLines(tmp_path, follow=True)
    followed.seek((1 << 40) + 2)
    assert read(followed) == []
    if change == "gone":
        (tmp_path / "b").unlink()
    else:
        appended(tmp_path / "c", b"2\n")
    with pytest.raises(CannotSeekError, match="has other files before"):
        read(followed)


def both_read(file: Path) -> Lines:
    """A file of two lines that is followed, and was read to its end."""
    appended(file, b"one\ntwo\n")
    lines = Lines(file, follow=True)
    lines.seek(None)
    assert len(read(lines) or ()) == 2
    return lines


@pytest.mark.parametrize(
    ("change", "told"), [("cut", "has 2 bytes now"), ("replaced", "is another file now")]
)
def test_a_followed_file_that_is_cut_or_replaced_is_told_and_not_waited_for(
    tmp_path: Path, change: str, told: str
) -> None:
    file = tmp_path / "f"
    lines = both_read(file)
    assert read(lines) == []
    if change == "cut":
        os.truncate(file, 2)
    else:
        file.rename(tmp_path / "f.1")
        assert read(lines) == [], "the next one is not there yet"
        appended(file, b"a longer line than all of those before\n")
    with pytest.raises(CannotSeekError, match=told):
        read(lines)


@pytest.mark.parametrize("same_process", [True, False])
def test_a_file_that_was_replaced_while_no_worker_was_there_is_told(
    tmp_path: Path, same_process: bool
) -> None:
    """What was read in this process is known; else a new file shows by having no line's end at the point."""
    file = tmp_path / "f"
    lines = both_read(file)
    file.rename(tmp_path / "f.1")
    if same_process:
        appended(file, b"another\nand more\n")
    else:
        lines = Lines(file, follow=True)
        appended(file, b"the first line of the next file\nand more\n")
    with pytest.raises(CannotSeekError, match="it was replaced or cut"):
        lines.seek(8)


@pytest.mark.parametrize("begun", [b"", b"begu"])
def test_a_followed_file_that_was_cut_and_has_grown_beyond_that_since_is_told(
    tmp_path: Path, begun: bytes
) -> None:
    """As logs are that are copied and emptied, while nobody asks for more of them."""
    file = tmp_path / "f"
    appended(file, b"one\ntwo\n" + begun)
    lines = Lines(file, follow=True)
    lines.seek(None)
    assert len(read(lines) or ()) == 2
    os.truncate(file, 0)
    appended(file, b"what came after that, and a second\nline\n")
    with pytest.raises(CannotSeekError, match="has other lines now"):
        read(lines)


def test_a_file_goes_on_behind_a_last_line_that_had_no_end(tmp_path: Path) -> None:
    file = tmp_path / "f"
    appended(file, b"one\ntwo")
    assert [record.id for record in read_all(Lines(file))] == [4, 7]
    assert read_all(Lines(file), 7) == []
    appended(file, b"\nthree\n")
    assert read_all(Lines(file), 7)[-1] == Record(14, b"three")
    file.write_bytes(b"one\ntwo more\nthree\n")
    with pytest.raises(CannotSeekError, match="ends no line there"):
        Lines(file).seek(7)


def test_a_line_that_fits_no_frame_is_told_before_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "MAX_FRAME", 1000)
    (tmp_path / "f").write_bytes(bytes(2000))
    with pytest.raises(PenstockError, match="a line of more than 1,000 bytes"):
        read_all(Lines(tmp_path / "f"))


async def reconnected(worker: Worker) -> None:
    """Cut all connections, and wait for streams that are held by others."""
    registry, cut = worker.instances["i"].registry, {peer.number for peer in worker.peers}
    for peer in list(worker.peers):
        assert peer.wire.transport is not None
        peer.wire.transport.abort()
    await eventually(lambda: any(held.session not in cut for held in registry.held.values()))


def test_lines_of_a_pipe_go_out_as_they_come_and_outlive_a_lost_connection(tmp_path: Path) -> None:
    """The pipe says nothing while the connection is lost; what it says next belongs to the next connection."""

    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        theirs, ours = os.pipe()
        with io.FileIO(theirs) as out, os.fdopen(ours, "wb", buffering=0) as pipe:
            lines = PipeLines(out, name="p")
            running = connector([worker.me.address], [lines])
            serving = asyncio.create_task(running.serve())
            for turn in range(1, 4):
                pipe.write(b"line %d\nhalf" % turn)
                await eventually(lambda turn=turn: running.acked.get("p") == turn)  # type: ignore[misc]
                await reconnected(worker)
            running.stop()
            async with asyncio.timeout(20):
                await serving  # though the pipe is open, and silent
            assert bodies(await rig.frames()) == [b"line 1", b"halfline 2", b"halfline 3"]

    rigged(tmp_path / "d", test)


def test_the_source_of_twenty_lines_in_the_documents_works(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "writing-connectors.md").read_text()
    code = page.partition("```python\n")[2].partition("```")[0]
    assert len([line for line in code.splitlines() if line]) <= 20

    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        with closing(sqlite3.connect(tmp_path / "readings.db")) as db:
            db.execute("CREATE TABLE readings (id INTEGER PRIMARY KEY, body TEXT)")
            db.executemany("INSERT INTO readings (body) VALUES (?)", [(f"reading {n}",) for n in range(1500)])
            db.commit()
            told = code.replace("127.0.0.1:7110", worker.me.address).replace('b"secret"', repr(COOKIE))
            for wanted in (1500, 1501):
                running = await asyncio.create_subprocess_exec(sys.executable, "-c", told, cwd=tmp_path)
                await eventually(lambda wanted=wanted: worker.counters.messages == wanted)  # type: ignore[misc]
                running.kill()
                await running.wait()
                db.execute("INSERT INTO readings (body) VALUES ('one more')")
                db.commit()
        await worker.instances["sensors"].flush()
        found = bodies(await rig.frames("sensors"))
        assert found == [*(b"reading %d" % n for n in range(1500)), b"one more"]

    rigged(tmp_path / "d", test)
