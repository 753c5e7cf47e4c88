"""A broker process that is killed again and again while clients use it, and what must hold afterwards.

`Loop` serves one data directory, round after round, with `penstock broker serve` as a real process. In each round
clients append, read, roll, trim, suspend and apply until SIGKILL comes: at a step by name (`base.faults`) or at a
random moment. The `Ledger` remembers what they were told and what they saw; the broker of the next round is held to it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.crash.crashing import interrupted

from penstock.journal.client import (
    Appended,
    AppenderFailedError,
    BrokerGoneError,
    Client,
    JournalError,
    SyncAppender,
    TimedOutError,
)
from penstock.journal.fragment import Codec
from penstock.journal.labels import label_set
from penstock.journal.protocol import AppendRequest, ApplyRequest, Status
from penstock.journal.spoollayout import FIRST_ROOM
from penstock.log.commitlog import journal_spec

STEPS = {
    "recover": 4,
    "commit": 60,
    "move": 2,
    "roll": 40,
    "close": 40,
    "whole": 8,
    "adopt": 8,
    "transact": 40,
    "trim": 15,
}
"""Every step of a broker that a crash may interrupt, and at which time that it is entered, at the latest."""

STREAMED, WHOLE, BATCHED, SUSPENDED = "kill/streamed", "kill/whole", "kill/batched", "kill/suspended"
CODECS = {STREAMED: Codec.ZSTANDARD, WHOLE: Codec.NONE, BATCHED: Codec.GZIP, SUSPENDED: Codec.SNAPPY}
MADE = "made/"

_HEAD = struct.Struct(">4sIIII")
_MAGIC = b"rec\n"


class Id(NamedTuple):
    """Which record: whose, and the how manieth."""

    writer: int
    number: int


def record(who: Id, size: int) -> bytes:
    """A record that says how long it is and what it must hold."""
    body = random.Random(hash(who)).randbytes(size)
    return _HEAD.pack(_MAGIC, *who, size, zlib.crc32(body)) + body


def records(content: bytes, begin: int) -> Iterator[tuple[int, int, Id]]:
    """The records that make up `content`: begin, end and id of each. An error if it is not made up of whole ones."""
    position = 0
    while position < len(content):
        magic, writer, number, size, crc = _HEAD.unpack_from(content, position)
        assert magic == _MAGIC, f"no record at {begin + position}"
        end = position + _HEAD.size + size
        assert zlib.crc32(content[end - size : end]) == crc, f"a damaged record at {begin + position}"
        assert end <= len(content), f"a record in part at {begin + position}"
        yield begin + position, begin + end, Id(writer, number)
        position = end


@dataclass
class Ledger:
    """What clients attempted, were told, and saw."""

    attempted: dict[str, set[Id]] = field(default_factory=lambda: defaultdict(set))
    acknowledged: dict[str, dict[Id, tuple[int, int]]] = field(default_factory=lambda: defaultdict(dict))
    registers: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Values that the register may have: the last one acknowledged, and those attempted since."""
    seen: dict[str, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    """Bytes that readers got, by offset."""
    trims: dict[str, int] = field(default_factory=dict)
    """The highest offset that a trim was asked for."""
    trimmed: dict[str, int] = field(default_factory=dict)
    """The lowest offset that may be there, by the answers to trims."""
    made: list[int] = field(default_factory=lambda: [-1])
    """Numbers of the journal that may be there: the last one acknowledged, and one attempted since."""

    def acknowledge(self, journal: str, who: Id, landed: Appended) -> None:
        self.acknowledged[journal][who] = (landed.begin, landed.end)

    def verify(self, client: Client) -> None:
        for journal in CODECS:
            self._verify_journal(client, journal)
        there = [found.spec.name for found in client.list() if found.spec.name.startswith(MADE)]
        assert there in [[f"{MADE}{number}"] if number >= 0 else [] for number in self.made], there
        self.made = [int(there[0].removeprefix(MADE)) if there else -1]

    def _verify_journal(self, client: Client, journal: str) -> None:
        barrier = client.append(journal, b"")  # which also resumes it
        chunks = list(client.read(journal, 0))
        content = b"".join(chunk for _, chunk in chunks)
        begin = barrier.end - len(content)
        assert begin == (chunks[0][0] if chunks else barrier.end), f"{journal}: a gap"
        assert self.trimmed.get(journal, 0) <= begin <= self.trims.get(journal, 0), (
            f"{journal} begins at {begin}"
        )
        there = {who: (start, end) for start, end, who in records(content, begin)}
        assert len(there) == len(list(records(content, begin))), f"{journal}: a record is there twice"
        assert set(there) <= self.attempted[journal], f"{journal}: records that nobody wrote"
        for who, landed in self.acknowledged[journal].items():
            if landed[0] >= begin:
                assert there.get(who) == landed, f"{journal}: {who}, acknowledged at {landed}, is not there"
        self._verify_seen(journal, content, begin)
        self._verify_registers(journal, barrier, [who for who in there if is_register_writer(who)])

    def _verify_seen(self, journal: str, content: bytes, begin: int) -> None:
        """A byte once read at an offset never changes."""
        for offset, chunk in self.seen[journal].items():
            visible = chunk[max(0, begin - offset) :]
            start = max(offset - begin, 0)
            assert content[start : start + len(visible)] == visible, f"{journal}: other bytes at {offset}"
        self.seen[journal] = {begin: content}

    def _verify_registers(self, journal: str, barrier: Appended, writers: list[Id]) -> None:
        """As acknowledged, or as an append in doubt left them; and as the last append that is there says."""
        value = next((label.value for label in barrier.registers.labels if label.name == "last"), "")
        assert value in (self.registers[journal] or [""]), f"{journal}: register {value}"
        if writers:
            assert value == f"{writers[-1].writer}-{writers[-1].number}", f"{journal}: {value}, {writers[-1]}"
        self.registers[journal] = [value]


def is_register_writer(who: Id) -> bool:
    return who.writer % 10 == 0


@dataclass
class Round:
    """How one broker ended."""

    aim: str
    exit_code: int
    interrupted: Counter[str]
    acknowledged: int
    """Appends in this round."""
    seconds: float


class Loop:
    """Brokers on one data directory, one after another."""

    def __init__(
        self, directory: Path, seed: int, command: tuple[str, ...] = (sys.executable, "-m", "penstock")
    ) -> None:
        self.directory = directory
        self.ledger = Ledger()
        self.rounds: list[Round] = []
        self._draw = random.Random(seed)
        self._command = command
        with self._broker({}) as (_, address), Client(address) as client:
            create_journals(client)

    def kill_at(self, step: str, turn: int) -> Round:
        """Serve until `step` is entered for the `turn`-th time."""
        return self._round(step, {"PENSTOCK_KILL_AT": f"{step}:{turn}"}, None)

    def kill_after(self, seconds: float) -> Round:
        """Serve for so long after the clients have started."""
        return self._round("random", {"PENSTOCK_KILL_AT": "none"}, seconds)

    def verify(self) -> None:
        """Hold a last broker to everything."""
        with self._broker({}) as (process, address), Client(address) as client:
            self.ledger.verify(client)
            self._verify_stored(client)
            self.ledger.verify(client)
            process.terminate()
            assert process.wait(30) == 0

    def _verify_stored(self, client: Client) -> None:
        """Fragments whose storing was interrupted are found again and stored; what was left half-stored is gone."""
        for journal in CODECS:
            client.roll(journal)
        deadline = time.monotonic() + 60
        while left := self._left():
            assert time.monotonic() < deadline, f"left over: {left}"
            time.sleep(0.02)

    def _left(self) -> list[Path]:
        """Spools but for the one that each journal needs, and files half-stored."""
        folders: defaultdict[Path, list[Path]] = defaultdict(list)
        for spool in (self.directory / "data" / "spools").rglob("*.spool"):
            folders[spool.parent].append(spool)
        spools = [path for paths in folders.values() for path in sorted(paths)[:-1]]
        return [*spools, *(self.directory / "data" / "fragments").rglob(".partial-*")]

    def hit(self) -> Counter[str]:
        """How often each step was under way when a kill came."""
        return sum((round_.interrupted for round_ in self.rounds), Counter())

    def _round(self, aim: str, environment: dict[str, str], kill_after: float | None) -> Round:
        started = time.monotonic()
        before = self._count()
        with self._broker(environment) as (process, address):
            if address and self._stands(address):
                self._use(process, address, kill_after)
            code = process.wait(30)
        done = Round(
            aim, code, interrupted(self._trace()), self._count() - before, time.monotonic() - started
        )
        self.rounds.append(done)
        return done

    def _stands(self, address: str) -> bool:
        """Verify; False if the broker was killed meanwhile."""
        try:
            with Client(address) as client:
                self.ledger.verify(client)
        except BrokerGoneError:
            return False
        return True

    def _use(self, process: subprocess.Popen[str], address: str, kill_after: float | None) -> None:
        """Clients at work until the broker is gone."""
        over = threading.Event()
        clients = Clients(address, self.ledger, len(self.rounds), over)
        threads = [threading.Thread(target=work, daemon=True) for work in clients.works(self._draw)]
        for thread in threads:
            thread.start()
        try:
            if kill_after is not None:
                time.sleep(kill_after)
                process.send_signal(signal.SIGKILL)
            deadline = time.monotonic() + 60
            while process.poll() is None and not clients.surprises:
                assert time.monotonic() < deadline, "the step to be killed at never came"
                time.sleep(0.01)
        finally:
            over.set()
            for thread in threads:
                thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert not clients.surprises, clients.surprises

    def _count(self) -> int:
        return sum(map(len, self.ledger.acknowledged.values()))

    def _trace(self) -> Path:
        return self.directory / f"steps-{len(self.rounds)}"  # of a round that is under way

    @contextmanager
    def _broker(self, environment: dict[str, str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
        """A process and its address; "" if it died before it had one."""
        process = subprocess.Popen(
            [*self._command, "broker", "serve", "--data-dir", "data", "--listen", "127.0.0.1:0", "--http", "off",
             "--json"],
            cwd=self.directory,
            env={**os.environ, **(environment and {**environment, "PENSTOCK_TRACE_STEPS": str(self._trace())})},
            stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            yield process, f"http://{json.loads(line)['grpc']}" if line else ""
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def create_journals(client: Client) -> None:
    """Small fragments, so that they close often, in every codec; those of one journal outgrow their first room."""
    for name, codec in CODECS.items():
        spec = journal_spec(name, 2 * FIRST_ROOM if name == STREAMED else 30_000, {})
        spec.fragment.compression_codec = codec.to_proto()
        client.create(spec)


class Clients:
    """What the clients of one round do, each in a thread of its own, until the broker is gone."""

    def __init__(self, address: str, ledger: Ledger, number: int, over: threading.Event) -> None:
        self.surprises: list[BaseException] = []
        self._address = address
        self._ledger = ledger
        self._round = number
        self._over = over

    def works(self, draw: random.Random) -> list[Callable[[], None]]:
        """One function for each thread."""
        jobs: list[Callable[[Client, random.Random], None]] = [
            self._appends(STREAMED, 0, 60_000),
            self._appends(STREAMED, 1, 3_000),
            self._appends(WHOLE, 10, 500),
            self._appends(WHOLE, 11, 5_000),
            self._batches,
            self._suspends,
            self._trims,
            self._applies,
            *(self._reads(journal) for journal in CODECS),
        ]
        return [self._until_gone(job, random.Random(draw.random())) for job in jobs]

    def _until_gone(
        self, job: Callable[[Client, random.Random], None], draw: random.Random
    ) -> Callable[[], None]:
        def work() -> None:
            with Client(self._address) as client:
                while not self._over.is_set():
                    try:
                        job(client, draw)
                    except (BrokerGoneError, AppenderFailedError, TimedOutError):
                        self._over.wait(0.02)  # whatever was under way is in doubt
                    except JournalError as error:
                        if error.status != Status.SUSPENDED:
                            self.surprises.append(error)
                    except BaseException as error:  # noqa: BLE001 - raised by the test
                        self.surprises.append(error)

        return work

    def _next(self, journal: str, writer: int) -> Id:
        """The next record of a writer, attempted from now on."""
        writer += 100 * self._round
        attempted = self._ledger.attempted[journal]
        # Of a copy, made in one go: others add to it meanwhile.
        who = Id(writer, sum(other.writer == writer for other in list(attempted)))
        attempted.add(who)
        return who

    def _append(self, client: Client, journal: str, writer: int, size: int) -> None:
        """One append. The first writer of a journal also sets its register."""
        who = self._next(journal, writer)
        union = None
        if is_register_writer(who):
            value = f"{who.writer}-{who.number}"
            union = label_set({"last": value})
            self._ledger.registers[journal].append(value)
        subtract = label_set({"last": ""}) if union else None
        landed = client.append(journal, record(who, size), union=union, subtract=subtract)
        self._ledger.acknowledge(journal, who, landed)
        if union:
            self._ledger.registers[journal] = [value]

    def _appends(self, journal: str, writer: int, most: int) -> Callable[[Client, random.Random], None]:
        return lambda client, draw: self._append(client, journal, writer, draw.randrange(most))

    def _batches(self, client: Client, draw: random.Random) -> None:
        """Through the batching appender, which tells of each record when it has landed."""
        with SyncAppender(client, BATCHED, outage_limit=0.1) as appender:
            while not self._over.is_set():
                for _ in range(20):
                    who = self._next(BATCHED, 21)
                    acknowledge = lambda landed, who=who: self._ledger.acknowledge(BATCHED, who, landed)  # noqa: E731
                    appender.add(record(who, draw.randrange(400)), acknowledge)
                appender.flush()

    def _suspends(self, client: Client, draw: random.Random) -> None:
        """Append, and have the journal suspended; the next append resumes it."""
        self._append(client, SUSPENDED, 30, draw.randrange(20_000))
        client.append(SUSPENDED, b"", suspend=AppendRequest.SUSPEND_NOW)

    def _trims(self, client: Client, draw: random.Random) -> None:
        """Close a fragment, then delete some of the front."""
        journal = draw.choice([STREAMED, WHOLE, SUSPENDED])
        head = client.roll(journal).offset
        offset = draw.randint(self._ledger.trims.get(journal, 0), head)
        self._ledger.trims[journal] = offset
        self._ledger.trimmed[journal] = client.trim(journal, offset).begin

    def _applies(self, client: Client, draw: random.Random) -> None:
        """One journal comes as another goes, in one transaction."""
        number = self._ledger.made[-1] + 1
        change = ApplyRequest.Change
        changes = [change(expect_mod_revision=0, upsert=journal_spec(f"{MADE}{number}", 1024, {}))]
        if number:
            changes.append(change(expect_mod_revision=-1, delete=f"{MADE}{number - 1}"))
        self._ledger.made.append(number)
        assert client.apply(changes)
        self._ledger.made = [number]

    def _reads(self, journal: str) -> Callable[[Client, random.Random], None]:
        def follow(client: Client, draw: random.Random) -> None:
            for offset, chunk in client.read(journal, -1, block=True, timeout=20):
                self._ledger.seen[journal][offset] = chunk

        return follow


def rounds_of(seed: int, count: int) -> list[tuple[str, float]]:
    """A seeded order of kills: every step at least once, then random moments."""
    draw = random.Random(seed)
    aims = [(step, float(draw.randint(1, most // 4 + 1))) for step, most in STEPS.items()]
    draw.shuffle(aims)
    aims.append(("random", draw.uniform(0.1, 0.5)))
    while len(aims) < count:
        step = draw.choice([*STEPS, "random", "random", "random"])
        aims.append(
            (step, draw.uniform(0.0, 1.5) if step == "random" else float(draw.randint(1, STEPS[step])))
        )
    return aims[:count]
