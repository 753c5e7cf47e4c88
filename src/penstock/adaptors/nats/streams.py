"""What the writing half of `nats` knows of streams: asking for them, making them, and the position kept in them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping

import msgspec

from penstock.adaptors.nats.client import NO_MESSAGE, NO_STREAM, AnswerError, Client
from penstock.base.errors import CorruptError

FORMAT = 1


class Kept(msgspec.Struct, frozen=True):
    """How far the sink is: in the header of a message, and in the record beside the stream."""

    log: str
    generation: int
    watermark: int
    rows: int = 0
    """Rows of the message at the watermark that are there already."""
    stream: str = ""
    sequence: int = 0
    """Of the record: which stream it is about, and where that was."""
    format: int = FORMAT


class _State(msgspec.Struct):
    last_seq: int


class _Config(msgspec.Struct):
    subjects: list[str] = []
    max_msg_size: int = -1


class Told(msgspec.Struct):
    created: str
    config: _Config
    state: _State


class Stored(msgspec.Struct):
    seq: int
    hdrs: str = ""
    data: str = ""


class _Message(msgspec.Struct):
    message: Stored


def make(client: Client, name: str, config: Mapping[str, object]) -> None:
    """Make a stream, if there is none of that name."""
    if about_stream(client, name) is None:
        client.ask(
            f"STREAM.CREATE.{name}", {"name": name, "storage": "file", **config}, bytes,
            f"cannot make the stream '{name}'",
        )  # fmt: skip


def about_stream(client: Client, name: str) -> Told | None:
    """A stream; None if there is none of that name."""
    try:
        return client.ask(f"STREAM.INFO.{name}", None, _told, f"cannot ask for the stream '{name}'")
    except AnswerError as error:
        if error.number == NO_STREAM:
            return None
        raise


def stored(client: Client, stream: str, which: Mapping[str, object]) -> Stored | None:
    """A message of a stream; None if there is no such."""
    try:
        return client.ask(f"STREAM.MSG.GET.{stream}", which, _message, f"cannot read '{stream}'").message
    except AnswerError as error:
        if error.number == NO_MESSAGE:
            return None
        raise


def decoded(found: Stored | None, header: str | None) -> Kept | None:
    """The position in a message: in the header of that name, or what it holds; None if there is none."""
    if found is None:
        return None
    text = base64.b64decode(found.data)
    if header is not None:
        lines = base64.b64decode(found.hdrs).decode(errors="replace").splitlines()
        texts = [line.partition(":")[2].strip() for line in lines if line.startswith(f"{header}:")]
        if not texts:
            return None
        text = texts[0].encode()
    try:
        kept = msgspec.json.decode(text, type=Kept)
    except msgspec.DecodeError as error:
        raise CorruptError(
            f"not the position of a sink: {error}", where="a message of the target", position=found.seq,
            hint="something else writes there; write to a stream of its own",
        ) from None  # fmt: skip
    if kept.format > FORMAT:
        raise CorruptError(
            f"format {kept.format}, this version knows {FORMAT}", where="a message of the target",
            position=found.seq, hint="use the version of Penstock that wrote it, or a newer one",
        )  # fmt: skip
    return kept


def matches(pattern: str, subject: str) -> bool:
    """Whether a subject is one of a pattern: * is one word, > at the end one or more."""
    words, given = pattern.split("."), subject.split(".")
    if words[-1] == ">":
        words, given = words[:-1], given[: len(words) - 1] if len(given) >= len(words) else []
        if not given and words:
            return False
    return len(words) == len(given) and all(a in ("*", b) for a, b in zip(words, given, strict=True))


_told: Callable[[bytes], Told] = msgspec.json.Decoder(Told).decode
_message: Callable[[bytes], _Message] = msgspec.json.Decoder(_Message).decode
