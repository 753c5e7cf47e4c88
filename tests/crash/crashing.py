"""A pipeline that is killed again and again, and what must hold afterwards.

`Loop` runs `penstock run` as a real process on one data directory, round after round. Each round ends by
SIGKILL, at a step by name or at a random moment, or runs to its end. From the trace of steps (`base.faults`)
it knows which steps were under way when the kill came. `verify` then looks at what the sinks hold.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psutil

from penstock.journal.embedded import connect
from penstock.log import deadletters, offsets

Victim = Literal["jvm", "worker"]

STEPS = ("append", "close", "plan", "stage", "publish", "offset commit")
"""Every step that a crash may interrupt."""

ONE_SINK = """
from penstock import Pipeline, adaptors as a, functions as f

crash = Pipeline("crash", segment_bytes=100_000, batch_messages=1_000, partitions=2)
source = crash.source("numbers", a.generate(count={count}, rate={rate}, namespaces=["a", "b", "c"]))
source.save("everything", a.file(uri="file://{directory}/everything.jsonl", envelope=True))
"""

TWO_SINKS = (
    ONE_SINK
    + """
(source.transform("slim", f.pick(fields=["seq"]))
       .transform("even", lambda df: df.where("data:seq::bigint % 2 = 0"))
       .transform("name", f.rename(field_map={{"seq": "number"}}))
       .save("even-ab", a.file(uri="file://{directory}/even_ab.jsonl"), ns="^(a|b)$"))
"""
)

TROUBLED = (
    TWO_SINKS.replace("partitions=2", "partitions=2, compaction_interval=0.3")
    + """
(source.transform("refuse", f.python(lambda message: message.data["seq"] % 97 != 13 or 1 / 0))
       .save("most", a.file(uri="file://{directory}/most.jsonl"), on_error="dead-letter"))
source.save("counted", a.discard())
"""
)
"""As before, while messages die and the log is compacted under way; and a sink that gets messages at least once."""

TROUBLED_STEPS = (*STEPS, "bury", "dead letter", "compact claim", "compact keep", "compact trim")


@dataclass
class Round:
    """How one run ended."""

    aim: str
    """The step it was to be killed at, or `random`, or `none`."""
    exit_code: int
    interrupted: Counter[str]
    """Steps entered and not left."""
    seconds: float

    @property
    def killed(self) -> bool:
        return self.exit_code == -signal.SIGKILL


@dataclass
class Loop:
    """Runs of one pipeline on one data directory."""

    directory: Path
    messages: int
    """So many are added for each round, so that every kill finds work, however fast the machine is."""
    rate: int
    command: tuple[str, ...] = (sys.executable, "-m", "penstock")
    pipeline: str = TWO_SINKS
    rounds: list[Round] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many messages the source has given out, or will by the end of this round."""
        return self.messages * max(len(self.rounds), 1)

    def kill_at(self, step: str, turn: int) -> Round:
        """Run until `step` is entered for the `turn`-th time."""
        return self._run(step, {"PENSTOCK_KILL_AT": f"{step}:{turn}"}, None)

    def kill_after(self, seconds: float) -> Round:
        """Run for a while after the first step was entered."""
        return self._run("random", {}, seconds)

    def kill_below(self, victim: Victim, seconds: float) -> Round:
        """Run to the end, and kill one of its processes on the way: the JVM of Spark, or one of its Python workers."""
        return self._run(victim, {}, seconds, victim)

    def finish(self) -> Round:
        """Run to the end."""
        return self._run("none", {}, None)

    def _run(
        self, aim: str, environment: dict[str, str], kill_after: float | None, victim: Victim | None = None
    ) -> Round:
        started = time.monotonic()
        count = self.messages * (len(self.rounds) + 1)
        text = self.pipeline.format(count=count, rate=self.rate, directory=self.directory)
        (self.directory / "pipeline.py").write_text(text)
        trace = self.directory / f"steps-{len(self.rounds)}"
        log = (self.directory / f"run-{len(self.rounds)}.log").open("wb")
        process = subprocess.Popen(
            [*self.command, "run", "pipeline.py", "--once", "--data-dir", "data"],
            cwd=self.directory,
            env={**os.environ, **environment, "PENSTOCK_TRACE_STEPS": str(trace)},
            stdout=log,
            stderr=log,
        )
        try:
            if kill_after is not None:
                self._kill_later(process, trace, kill_after, victim)
            _wait(process, trace)
        finally:
            process.kill()
            process.wait()
            log.close()
        round_ = Round(aim, process.returncode, interrupted(trace), time.monotonic() - started)
        self.rounds.append(round_)
        return round_

    @staticmethod
    def _kill_later(
        process: subprocess.Popen[bytes], trace: Path, seconds: float, victim: Victim | None
    ) -> None:
        """Count from the first batch, or Spark's start-up would take most of the kills."""
        while process.poll() is None:
            if trace.exists() and "+stage" in trace.read_text():
                break
            time.sleep(0.02)
        time.sleep(seconds)
        if victim is None:
            process.send_signal(signal.SIGKILL)
        elif process.poll() is None and (found := below(process.pid, victim)):
            random.choice(found).kill()

    def hit(self) -> Counter[str]:
        """How often each step was under way when a kill came."""
        total: Counter[str] = Counter()
        for round_ in self.rounds:
            if round_.killed:
                total.update(round_.interrupted)
        return total

    def log_of(self, number: int = -1) -> str:
        return (self.directory / f"run-{range(len(self.rounds))[number]}.log").read_text()[-3000:]


def _wait(process: subprocess.Popen[bytes], trace: Path) -> None:
    """Until it ends, however slow the machine is; a run that enters and leaves no step for five minutes hangs."""
    size, since = -1, time.monotonic()
    while process.poll() is None:
        now = trace.stat().st_size if trace.exists() else 0
        if now != size:
            size, since = now, time.monotonic()
        if time.monotonic() - since > 300:
            raise subprocess.TimeoutExpired(process.args, 300)
        time.sleep(0.05)


def below(pid: int, victim: Victim) -> list[psutil.Process]:
    """The processes of a kind that a run has started: the JVM, or those in which Spark runs Python."""
    found = psutil.Process(pid).children(recursive=True)
    jvm = [process for process in found if _named(process, "java")]
    return jvm if victim == "jvm" else [one for java in jvm for one in java.children(recursive=True)]


def _named(process: psutil.Process, name: str) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return name in process.name()
    return False


def interrupted(trace: Path) -> Counter[str]:
    """The steps that a trace shows as entered and not left."""
    open_steps: Counter[str] = Counter()
    if not trace.exists():
        return open_steps
    for line in trace.read_text().splitlines():
        mark, rest = line[0], line[1:]
        step = rest.rsplit(" ", 1)[0]
        if mark == "+":
            open_steps[step] += 1
        elif mark == "-":
            open_steps[step] -= 1
    return +open_steps


def verify(directory: Path, count: int, *, complete: bool, even: bool = True) -> None:
    """Each message once, in order for each namespace; all of them if `complete`, else a prefix. `even`: of both sinks.

    A file sink's promise is about the part of the file that its position covers: a crash may leave more.
    """
    everything = _published(directory / "everything.jsonl")
    for ns, rest in (("a", 0), ("b", 1), ("c", 2)):
        seen = [line["data"]["seq"] for line in everything if line["ns"] == ns]
        assert seen == list(range(rest, rest + 3 * len(seen), 3)), (
            f"namespace {ns}: lost, doubled or reordered"
        )
    assert not complete or len(everything) == count
    if even:
        numbers = [line["number"] for line in _published(directory / "even_ab.jsonl")]
        wanted = [n for n in range(count) if n % 2 == 0 and n % 3 != 2]
        assert numbers == wanted[: len(numbers)], "even_ab: lost, doubled or reordered"
        assert not complete or len(numbers) == len(wanted)


def _published(target: Path) -> list[dict[str, Any]]:
    position = target.with_name(f".{target.name}.penstock")
    if not position.exists():
        return []
    length = json.loads(position.read_text())["length"]
    content = target.read_bytes()
    assert len(content) >= length, f"{target.name} is shorter than its position says"
    return [json.loads(line) for line in content[:length].splitlines()]


def no_process_left(directory: Path) -> bool:
    """Whether everything a killed run had started has gone by itself."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        left = [
            p for p in psutil.process_iter(["cmdline"]) if str(directory) in " ".join(p.info["cmdline"] or [])
        ]
        if not left:
            return True
        time.sleep(0.2)
    return False


def verify_dead(directory: Path, count: int) -> None:
    """Of the troubled pipeline, complete: each message is with the sink, once, or a dead letter, once."""
    most = [line["seq"] for line in _published(directory / "most.jsonl")]
    assert most == [n for n in range(count) if n % 97 != 13], "most: lost, doubled or reordered"
    with connect(directory / "data") as client:
        letters = deadletters.load(client, "crash")
        counted = offsets.load(client, "crash", "counted").commit
    assert [letter.offset for letter in letters] == list(range(13, count, 97)), "dead letters"
    assert all(json.loads(letter.data)["seq"] == letter.offset for letter in letters)
    assert (counted.watermark, counted.delivered) == (count, count)


def rounds_of(seed: int, count: int, steps: Sequence[str] = STEPS) -> list[tuple[str, float]]:
    """A seeded order of kills: every step at least once, then random moments."""
    draw = random.Random(seed)
    aims = [(step, float(draw.randint(1, 3))) for step in steps]
    draw.shuffle(aims)
    while len(aims) < count:
        step = draw.choice([*steps, "random", "random"])
        aims.append((step, draw.uniform(0.0, 6.0) if step == "random" else float(draw.randint(1, 4))))
    return aims[:count]
