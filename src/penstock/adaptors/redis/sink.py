"""The writing half of `redis`: rows and the sink's position in one script, which runs whole or not at all.

    mode      a message becomes
    stream    an entry of the stream that is named as its namespace, whatever its op
    hash      the hash `NAMESPACE:KEY`, a field of it for each field of the document; a delete removes it
    json      the text `NAMESPACE:KEY`, which is the document; a delete removes it

`KEY` is the value of the key's one field, or the JSON text of a key with several. The position is a text of its own,
`penstock:positions:PIPELINE.SINK`. A script goes on only from the position that its publisher has left: one that has
been replaced by another is fenced off. A batch of several megabytes is several scripts, each with its position.

Exactly once holds as far as the server keeps its data: with `appendonly yes` the publisher waits until what it wrote
is synced (`WAITAOF`, from Redis 7.2 on, or `appendfsync always`). A server without it may forget what it had.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.adaptors.base import (
    Finding,
    Guarantee,
    Order,
    Publisher,
    Refusal,
    RivalError,
    Sink,
    SinkPosition,
    Staged,
    Stager,
)
from penstock.adaptors.continuing import continued
from penstock.adaptors.parts import PartStager, Row, read_parts, rows_of
from penstock.adaptors.redis import Redis
from penstock.adaptors.redis.client import ask, asking, connected
from penstock.base.errors import AwayError, CorruptError, PenstockError, UsageError
from penstock.log.values import ValuesError, decode_document, encode

if TYPE_CHECKING:
    import pyarrow as pa
    import redis

FORMAT = 1
CHUNK = 4 * 1024 * 1024
MOST_WORDS = 100_000
"""Bytes of rows that one script writes, and words; a server does nothing else meanwhile."""

MOST_FIELDS = 3000
"""Of a hash, so many fields are written by one command: Lua passes no more."""

FENCED = "FENCED"

SCRIPT = """
local kept = redis.call('GET', KEYS[1])
if (kept or '') ~= ARGV[1] then
  return redis.error_reply('FENCED the position is ' .. (kept or 'gone'))
end
for i = 2, #KEYS do
  local kind = redis.call('TYPE', KEYS[i])['ok']
  if kind ~= 'none' and kind ~= 'stream' then
    return redis.error_reply('WRONGTYPE ' .. KEYS[i] .. ' is a ' .. kind)
  end
end
if ARGV[3] ~= '' then
  for i = 2, #KEYS do
    local last = redis.call('EXISTS', KEYS[i]) == 1 and redis.call('XREVRANGE', KEYS[i], '+', '-', 'COUNT', 1)[1]
    if last and tonumber(string.match(last[1], '^%d+')) >= tonumber(ARGV[3]) then
      return redis.error_reply('LARGER the stream ' .. KEYS[i] .. ' has an entry ' .. last[1])
    end
  end
end
local i = 4
while i <= #ARGV do
  local count = tonumber(ARGV[i + 1])
  redis.call(ARGV[i], unpack(ARGV, i + 2, i + 1 + count))
  i = i + 2 + count
end
redis.call('SET', KEYS[1], ARGV[2])
return 'OK'
"""
"""Arguments: the position as it must be, the position as it will be, what the first id will be, if that is not up to
the server; then commands: name, count, words. All that can fail is looked at first, since nothing is undone."""

Word = str | bytes | int


class RedisSink(Sink):
    """Keys of one server."""

    guarantee = Guarantee.EXACTLY_ONCE
    order = Order.TOTAL

    def __init__(self, settings: Redis) -> None:
        self._settings = settings

    def inspect(self, namespaces: Sequence[str] | None = None) -> Sequence[Finding]:
        client = connected(self._settings)
        try:
            with asking(self._settings, "cannot ask the server"):
                keeps = bool(client.info("persistence").get("aof_enabled"))
        finally:
            client.close()
        if keeps:
            return ()
        return [
            Finding(
                "the server may forget what it was given when it ends: it has no append-only file",
                "CONFIG SET appendonly yes",
            )
        ]

    def stager(self) -> Stager:
        return PartStager(Check(self._settings))

    def publisher(self) -> Publisher:
        return RedisPublisher(self._settings, self.name)

    def staging(self, scratch: Path) -> Path:
        return scratch


class Check:
    """Tells which messages have no place in the target: rows without a key, where rows are kept by it."""

    def __init__(self, settings: Redis) -> None:
        self._settings = settings

    def __call__(self, batch: pa.RecordBatch) -> Sequence[Refusal]:
        if self._settings.mode == "stream":
            return ()
        writer, refused = Writer(self._settings), dict[int, Refusal]()
        for row, origin in zip(rows_of(batch), batch.column("origin").to_pylist(), strict=True):
            try:
                for _ in writer.commands(row, 0):
                    pass
            except (ValueError, ValuesError, RecursionError) as error:
                refused.setdefault(row.offset, Refusal(row.offset, origin, str(error), ""))
        return list(refused.values())


class Writer:
    """Makes commands of rows, by the settings of a sink. Raises ValueError for a row that has no place."""

    def __init__(self, settings: Redis) -> None:
        self._settings = settings
        self._number: tuple[int, int] = (-1, 0)

    def stream(self, ns: str) -> str:
        return f"{self._settings.prefix}{ns}"

    def commands(self, row: Row, generation: int) -> Iterator[Sequence[Word]]:
        if self._settings.mode == "stream":
            yield self._entry(row, generation)
            return
        if row.op == "command":
            raise ValueError("the keys of a namespace cannot be emptied by a command; only streams take it")
        if row.op in ("noop", "skip"):
            return
        if row.old_key is not None:
            yield "DEL", self._name(row, row.old_key)
        name = self._name(row, row.key)
        if row.op == "delete":
            yield "DEL", name
        elif self._settings.mode == "json":
            yield "SET", name, row.data or b"{}"
        else:
            yield "DEL", name
            yield from _hashed(name, row.data or b"{}")

    def _entry(self, row: Row, generation: int) -> Sequence[Word]:
        settings = self._settings
        trim: list[Word] = [] if settings.maxlen is None else ["MAXLEN", "~", settings.maxlen]
        fields: list[Word] = []
        if settings.envelope:
            fields += ["op", row.op, "ns", row.ns, "offset", row.offset, "ts", row.ts]
            fields += [] if row.key is None else ["key", row.key]
            fields += [] if row.old_key is None else ["old_key", row.old_key]
        return (
            "XADD",
            self.stream(row.ns),
            *trim,
            self._id(row, generation),
            *fields,
            "data",
            row.data or b"{}",
        )

    def _id(self, row: Row, generation: int) -> str:
        if self._settings.ids == "time":
            return "*"
        number = self._number[1] + 1 if self._number[0] == row.offset else 0
        self._number = (row.offset, number)
        return f"{self.number(row, generation)}-{number + 1}"  # there is no entry 0-0

    def number(self, row: Row, generation: int) -> int:
        """What an entry is called by, where that is not up to the server: larger in each generation."""
        return (generation << 40) + row.offset

    def _name(self, row: Row, key: bytes | None) -> bytes:
        if key is None:
            raise ValueError("the message has no key")
        values = list(decode_document(key).values())
        only = values[0] if len(values) == 1 else None
        if isinstance(only, bytes):
            text = only
        elif isinstance(only, str):
            text = only.encode()
        else:
            text = key if len(values) != 1 else encode(only)
        return f"{self._settings.prefix}{row.ns}:".encode() + text


def _hashed(name: bytes, data: bytes) -> Iterator[Sequence[Word]]:
    """Texts as they are, all else as JSON; a field that is null is not there."""
    words: list[Word] = []
    for field_name, raw in msgspec.json.decode(data, type=dict[str, msgspec.Raw]).items():
        text = bytes(raw)
        if text != b"null":
            words += [field_name, msgspec.json.decode(text, type=str) if text.startswith(b'"') else text]
    for i in range(0, len(words), 2 * MOST_FIELDS):
        yield "HSET", name, *words[i : i + 2 * MOST_FIELDS]


class Kept(msgspec.Struct, frozen=True):
    """The content of the position."""

    log: str
    generation: int
    watermark: int
    format: int = FORMAT


@dataclass
class _Chunk:
    """What one script does."""

    words: list[Word] = field(default_factory=list)
    streams: set[str] = field(default_factory=set)
    size: int = 0
    watermark: int = 0
    first: str = ""
    """The first part of the first id."""

    @property
    def is_full(self) -> bool:
        return self.size > CHUNK or len(self.words) > MOST_WORDS

    def add(self, command: Sequence[Word]) -> None:
        name, *rest = command
        self.words += [name, len(rest), *rest]
        self.size += sum(len(word) if isinstance(word, bytes | str) else 8 for word in rest)


class RedisPublisher(Publisher):
    """Sends what was staged, a script at a time."""

    def __init__(self, settings: Redis, name: str) -> None:
        self._settings = settings
        self._key = f"{settings.positions}:{name or 'sink'}"
        self._client: redis.Redis | None = None
        self._script = ""
        self._held = b""
        self._synced = False

    def open(self, start: SinkPosition) -> SinkPosition:
        self.close()
        client = connected(self._settings)
        try:
            with self._asking("cannot open the target"):
                self._script = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()
                client.script_load(SCRIPT)
                self._synced = bool(client.info("persistence").get("aof_enabled"))
                held = ask(client, "GET", self._key)
            self._client = client
            if held is None:
                self._move(_Chunk(watermark=start.watermark), start)
            else:
                assert isinstance(held, bytes)
                self._held = held
                start = self._continued(_decoded(self._held, self._key), start)
            self._sync()
        except PenstockError:
            client.close()
            self._client = None
            raise
        return start

    def publish(self, parts: Sequence[Staged], position: SinkPosition) -> None:
        for chunk in self._chunks(parts, position):
            self._move(chunk, position)
        self._sync()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        self._held = b""

    def _chunks(self, parts: Sequence[Staged], position: SinkPosition) -> Iterator[_Chunk]:
        """What is to be done, cut between messages; the last one moves to the new position itself."""
        writer, chunk, at = Writer(self._settings), _Chunk(), -1
        for batch in read_parts(parts):
            for row in rows_of(batch):
                if row.offset != at and chunk.is_full:
                    chunk.watermark = row.offset
                    yield chunk
                    chunk = _Chunk()
                at = row.offset
                if not chunk.words and self._settings.ids == "offset":
                    chunk.first = str(writer.number(row, position.generation))
                for command in writer.commands(row, position.generation):
                    chunk.add(command)
                if self._settings.mode == "stream":
                    chunk.streams.add(writer.stream(row.ns))
        chunk.watermark = position.watermark
        yield chunk

    def _move(self, chunk: _Chunk, position: SinkPosition) -> None:
        """Run one script. Nothing is visible of one that fails."""
        client = self._client
        if client is None:
            raise PenstockError(f"the sink of '{self._key}' is not open")
        after = msgspec.json.encode(Kept(position.log, position.generation, chunk.watermark))
        keys = [self._key, *sorted(chunk.streams)]
        try:
            with self._asking("cannot write"):
                ask(
                    client,
                    "EVALSHA",
                    self._script,
                    len(keys),
                    *keys,
                    self._held,
                    after,
                    chunk.first,
                    *chunk.words,
                )
        except AwayError:
            self.close()  # whether it came through is found out when it is opened again
            raise
        except PenstockError as error:
            self.close()
            if FENCED in error.message:
                raise RivalError(
                    f"another process writes as '{self._key}' and has fenced this one off",
                    hint="two pipelines of the same name write to this server: give one of them another name",
                ) from None
            if "LARGER" in error.message:
                raise UsageError(
                    f"{error.message}: somebody else writes to it",
                    hint="set ids='time', or write to a stream of its own with the setting 'prefix'",
                ) from None
            raise
        self._held = after

    def _sync(self) -> None:
        """Wait until what was written is on the server's disk, where it has one to keep it on."""
        if not self._synced or self._client is None:
            return
        timeout = int(self._settings.timeout * 1000)
        try:
            with self._asking("cannot wait for the server's disk"):
                answer = ask(self._client, "WAITAOF", 1, 0, timeout)
        except AwayError:
            self.close()
            raise
        except PenstockError as error:
            if "unknown command" not in error.message:
                raise
            self._synced = False  # an older server: `appendfsync` decides
            return
        if isinstance(answer, list) and answer[0] != 1:
            self.close()
            raise AwayError(f"the disk of the server of '{self._key}' did not keep up for {timeout} ms")

    def _continued(self, kept: Kept, start: SinkPosition) -> SinkPosition:
        held = SinkPosition(kept.log, kept.generation, kept.watermark)
        return continued(held, start, f"the target of key '{self._key}'", f"delete the key '{self._key}'")

    def _asking(self, what: str) -> AbstractContextManager[None]:
        return asking(self._settings, what)


def _decoded(text: bytes, key: str) -> Kept:
    try:
        kept = msgspec.json.decode(text, type=Kept)
    except msgspec.DecodeError as error:
        raise CorruptError(
            f"not the position of a sink: {error}", where=f"key {key}", position=0,
            hint="something else writes to this key; give the setting 'positions' another name",
        ) from None  # fmt: skip
    if kept.format > FORMAT:
        raise CorruptError(
            f"format {kept.format}, this version knows {FORMAT}", where=f"key {key}", position=0,
            hint="use the version of Penstock that wrote it, or a newer one",
        )  # fmt: skip
    return kept
