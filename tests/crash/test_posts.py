"""`kill -9` of a `penstock run` that takes posts: whatever a sender was told is taken is at the sink, each once.

Senders post from several threads, each post with an id, and send again what was not answered with 2xx.
"""

from __future__ import annotations

import http.client
import json
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.adaptors.posting import send
from tests.servers.ports import free_port

pytestmark = pytest.mark.spark

PIPELINE = """
from penstock import Pipeline, adaptors as a

hooks = Pipeline("hooks")
source = hooks.source("posts", a.http(listen="127.0.0.1:{port}", token="{token}", timeout=3.0), ns="orders|items")
source.save("kept", a.file(uri="file://{directory}/kept.jsonl", envelope=True))
"""
TOKEN = "let-me-in"
PATIENCE = 120.0


class Senders:
    """Threads that post until they are told to end; `taken` has what was answered with 2xx."""

    def __init__(self, port: int, count: int) -> None:
        self._port = port
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,), daemon=True) for n in range(count)]
        self.taken: list[str] = []

    def has(self, enough: int) -> bool:
        return len(self.taken) > enough

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """End, each with its last post taken."""
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()

    def _run(self, number: int) -> None:
        turn = 0
        while not self._over.is_set():
            names = [f"{number}-{turn}-{i}" for i in range(5)]
            body = "\n".join(json.dumps({"name": name}) for name in names).encode()
            path, id = ("/orders", "/items")[turn % 2], uuid.uuid4().hex
            while not self._taken(path, body, id):
                time.sleep(0.02)
            self.taken += names
            turn += 1

    def _taken(self, path: str, body: bytes, id: str) -> bool:
        try:
            answer = send(
                self._port, path, body, content_type="application/x-ndjson", idempotency_key=id,
                authorization=f"Bearer {TOKEN}",
            )  # fmt: skip
        except (OSError, http.client.HTTPException):
            return False
        assert answer.status in (200, 503), answer
        return answer.status == 200


def start(directory: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "penstock", "run", "pipeline.py", "--follow", "--data-dir", "data"]
    with (directory / "run.log").open("ab") as log:
        return subprocess.Popen(command, cwd=directory, stdout=log, stderr=log)


def until(done: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.05)


def kept(directory: Path) -> list[str]:
    target = directory / "kept.jsonl"
    lines = target.read_bytes().split(b"\n")[:-1] if target.exists() else []
    return [json.loads(line)["data"]["name"] for line in lines]


def killed_again_and_again(directory: Path, seed: int, kills: int, longest: float) -> None:
    draw, port = random.Random(seed), free_port()
    (directory / "pipeline.py").write_text(PIPELINE.format(port=port, token=TOKEN, directory=directory))
    senders, log = Senders(port, 4), directory / "run.log"
    process = start(directory)
    try:
        senders.start()
        for _ in range(kills):
            enough = len(senders.taken) + draw.randint(100, 600)
            until(partial(senders.has, enough), process, log)
            time.sleep(draw.uniform(0.0, longest))
            process.kill()
            assert process.wait() == -signal.SIGKILL
            process = start(directory)
        enough = len(senders.taken) + 100
        until(partial(senders.has, enough), process, log)
        senders.end()
        taken = set(senders.taken)
        until(lambda: taken <= set(kept(directory)), process, log)
        process.terminate()
        assert process.wait(PATIENCE) == 0, log.read_text()[-3000:]
    finally:
        process.kill()
        process.wait()
    names = kept(directory)
    assert len(names) == len(set(names)), "a post that was sent again was logged twice"
    assert set(names) == taken


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_whatever_was_answered_with_200_is_at_the_sink_once(tmp_path: Path) -> None:
    killed_again_and_again(tmp_path, seed=7, kills=1, longest=0.2)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(2))
def test_soak_whatever_was_answered_with_200_is_at_the_sink_once(tmp_path: Path, seed: int) -> None:
    killed_again_and_again(tmp_path, seed, kills=8, longest=8.0)
