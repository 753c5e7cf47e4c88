"""A data directory with a log, sinks and dead letters, made by the code that makes them; and what is typed there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from penstock.cli import cli
from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.log.commitlog import CommitLog
from penstock.log.control import Control, ControlEntry
from penstock.log.deadletters import DeadLetters, Death
from penstock.log.message import Message, Mode
from penstock.log.offsets import Commit, OffsetLog, SinkOffsets, load

NOW = 1_700_000_000_000_000
SEGMENT = 1 << 20

SHOP = """\
from penstock import Pipeline, adaptors as a, functions as f

shop = Pipeline("shop")
orders = shop.source("db", a.file(uri="file://in.jsonl"), ns="orders|items")
orders.save("audit", a.file(uri="file://audit.jsonl"))
big = orders.transform("big", f.skip(field="id", operator=">", match=1))
big.transform("slim", f.pick(fields=["id"])).save("ids", a.file(uri="file://ids.jsonl"), ns="^orders$")
"""


def message(ns: str, text: str, n: int = 0) -> Message:
    return Message(ns, text.encode(), ts=NOW + n, mode=Mode.SYNC)


def orders(count: int, ns: str = "orders") -> list[Message]:
    return [message(ns, f'{{"id":{n},"total":{n * 10}}}', n) for n in range(count)]


class Shop:
    """The pipeline `shop` in `.penstock` of the current directory."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("BROKER", "AUTH_KEYS", "AUTH_TOKEN", "DEBUG", "DATA_DIR", "SETTINGS", "SECRETS"):
            monkeypatch.delenv(f"PENSTOCK_{name}", raising=False)
        monkeypatch.chdir(path)
        self.path = path
        self.data = path / ".penstock"
        (path / "shop.py").write_text(SHOP)

    @contextmanager
    def client(self) -> Iterator[Client]:
        with EmbeddedBroker(self.data) as broker, Client(broker.address) as client:
            yield client

    def log(self, messages: Sequence[Message], pipeline: str = "shop") -> None:
        """Append messages to the log, making it if need be."""
        with self.client() as client:
            log = CommitLog(client, pipeline, self.data / "index", SEGMENT, NOW)
            log.append(messages, {m.ns: {"at": 1} for m in messages}, (), NOW)
            log.close()

    def sink(self, name: str, commit: Commit, namespaces: dict[str, int] | None = None) -> None:
        """Give a sink these offsets."""
        with self.client() as client:
            OffsetLog(client, "shop", name, NOW).replace(commit, namespaces or {}, NOW)

    def bury(self, sink: str, *deaths: Death) -> None:
        """Make dead letters of messages in the log."""
        from penstock.log.journals import log_journal
        from penstock.log.reader import LogReader

        with self.client() as client:
            reader = LogReader(client, log_journal("shop"), None)
            DeadLetters(client, "shop", NOW).add(sink, 0, deaths, reader, NOW)

    def audit(self) -> list[ControlEntry]:
        with self.client() as client:
            return Control(client, "shop").entries()

    def held(self, sink: str) -> SinkOffsets:
        """What a sink's offset log says."""
        with self.client() as client:
            return load(client, "shop", sink)

    def run(self, *arguments: str, input: str | None = None) -> Result:
        return CliRunner().invoke(cli, list(arguments), prog_name="penstock", input=input)

    def ok(self, *arguments: str, input: str | None = None) -> str:
        """The output of a command that does not fail."""
        result = self.run(*arguments, input=input)
        assert result.exit_code == 0, result.output
        return result.stdout

    def fails(self, code: int, *arguments: str, input: str | None = None) -> str:
        """What a command that fails says on stderr."""
        result = self.run(*arguments, input=input)
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.stderr
        return result.stderr

    def lines(self, *arguments: str) -> list[Any]:
        """The objects that a command prints with --json."""
        return [json.loads(line) for line in self.ok(*arguments, "--json").splitlines()]

    def offset(self, sink: str) -> int:
        [found] = [line for line in self.lines("offset", "list") if line["sink"] == sink]
        offset: int = found["offset"]
        return offset
