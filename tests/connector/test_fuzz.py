"""Bytes that nobody meant: a corpus that grows, mutations of good sessions, and a worker that outlives all of them.

`corpus/` holds inputs in hex, one a file, each once found by mutation or by thinking. Each is fed to the codecs whole
and byte by byte, and to a worker over a socket; nothing but the errors of the protocol may come of it.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from tests.connector import vectors
from tests.connector.rig import COOKIE, Rig, feed, rigged

from penstock.connector import frames as fr
from penstock.connector import inner as tp
from penstock.connector.framing import Splitter
from penstock.connector.intake import Intake
from penstock.connector.records import CorruptJournalError, Walk
from penstock.connector.session import IllegalFrameError, Session, Side

CORPUS = {
    path.stem: bytes.fromhex(path.read_text())
    for path in sorted((Path(__file__).parent / "corpus").glob("*.hex"))
}
HELLO = fr.encode(fr.Hello("0.0.1", COOKIE, "p", "i"))
SESSION: list[fr.Frame] = [
    fr.Hello("0.0.1", COOKIE, "p", "i"),
    fr.Notify(7, "s", 0),
    *(fr.Message(7, number, number, b"k", b"body") for number in range(1, 6)),
    fr.EosMessage(7),
]
GOOD = b"".join(map(fr.encode, SESSION))


def decoded(raw: bytes) -> None:
    """Through everything that decodes; only its own errors come out."""
    splitter, session = Splitter(1 << 16), Session()
    for payload in splitter.feed(raw):
        try:
            frame = fr.frame_of(payload)
            session.frame(Side.CONNECTOR, frame)
            if isinstance(frame, fr.Message):
                tp.inner_of(frame.body)
        except (fr.FrameError, IllegalFrameError):
            continue
    for step in (len(raw) or 1, 1, 7):
        intake = Intake(1 << 16)
        intake.open(7, 2)
        try:
            for at in range(0, len(raw), step):
                feed(intake, raw[at : at + step])
                list(intake.items())
        except fr.FrameError:
            pass
        assert intake.pending <= len(raw)
    try:
        walk = Walk("j", 0)
        walk.feed(raw)
        walk.finish()
    except CorruptJournalError:
        pass


def mutated(rng: random.Random, raw: bytes) -> bytes:
    data = bytearray(raw)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del data[at : at + rng.randrange(1, 9)]
            case 2:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 3:
                data[at : at + 4] = rng.choice(
                    [b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\x01", b"\x7f\xff\xff\xff"]
                )
            case _:
                data += data[at : at + 40]
    return bytes(data)


@pytest.mark.parametrize("raw", CORPUS.values(), ids=CORPUS.keys())
def test_the_corpus_is_decoded_or_refused(raw: bytes) -> None:
    decoded(raw)


def test_mutations_of_good_frames_are_decoded_or_refused() -> None:
    rng = random.Random(47)
    seeds = [bytes.fromhex(text) for _, text in vectors.BOTH_WAYS] + [GOOD]
    seeds += [bytes.fromhex(text) for _, text in vectors.INNER]
    for _ in range(1500):
        decoded(mutated(rng, rng.choice(seeds)))


def test_a_worker_outlives_the_corpus_and_mutated_sessions(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker(hello_timeout=5, frame_timeout=5, max_frame=1 << 16)
        rng = random.Random(74)
        inputs = [*CORPUS.values(), *(HELLO + raw for raw in CORPUS.values())]
        inputs += [mutated(rng, GOOD) for _ in range(40)]
        inputs += [HELLO + mutated(rng, GOOD[len(HELLO) :]) for _ in range(40)]
        for raw in inputs:
            peer = await rig.peer(worker, hello=False)
            await peer.raw(raw)
            peer.writer.write_eof()
            while await peer.next() is not None:
                pass
            await peer.close()
        last = await rig.peer(worker, "sound")
        await last.ok()
        await last.open(1)
        await last.send(fr.Message(1, 1))
        await last.acked(1, 1)
        assert not [task for task in asyncio.all_tasks() if task.done() and task.exception()]
        walk = Walk("connectors/i", 0)
        head = await rig.client.head("connectors/i")
        walk.feed(await rig.client.read_bytes("connectors/i", 0, head))
        walk.finish()

    rigged(tmp_path / "d", test)
