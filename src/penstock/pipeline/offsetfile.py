"""The offsets of all sinks as a JSON file: `offset export` writes one, `offset import` takes it back.

Offsets mean something for one log only, so the file names the log; one of another log is refused.
"""

from __future__ import annotations

import msgspec

from penstock.base.errors import UNREADABLE, UsageError
from penstock.log.journals import NAME
from penstock.log.offsets import Commit, SinkOffsets
from penstock.pipeline.operations import Directory

FORMAT = 1

_GENERATIONS = 1 << 31
"""No sink has had so many. One beyond what a target can keep could never be taken back: they only grow."""


class ExportedSink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one sink has. `offset` is the last one acknowledged, -1 for none."""

    sink: str
    offset: int
    generation: int = 0
    namespaces: dict[str, int] = {}
    careful: int = 0
    acked: tuple[int, ...] = ()
    detached: bool = False

    def commit(self, generation: int) -> Commit:
        """As a commit in this generation of the sink's history."""
        return Commit(
            watermark=self.offset + 1,
            generation=generation,
            careful=self.careful,
            acked=tuple(sorted(self.acked)),
            detached=self.detached,
        )

    def same_as(self, held: SinkOffsets) -> bool:
        """Whether the sink has just this."""
        now = held.commit
        mine = self.commit(now.generation)
        told = (mine.watermark, mine.careful, mine.acked, mine.detached)
        return (
            told == (now.watermark, now.careful, now.acked, now.detached)
            and held.namespaces == self.namespaces
        )


class Exported(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All sinks of a pipeline at one moment (`time` in microseconds since 1970)."""

    pipeline: str
    log: str
    next: int
    time: int
    sinks: tuple[ExportedSink, ...]
    format: int = FORMAT

    def check(self, pipeline: str, log: str, end: int) -> None:
        """Refuse what does not belong to this log, or goes beyond its end."""
        if self.pipeline != pipeline:
            raise UsageError(f"these are offsets of pipeline '{self.pipeline}', not of '{pipeline}'")
        if self.log != log:
            raise UsageError(
                f"these are offsets of another log of '{pipeline}' ({self.log[:8]}, this one is {log[:8]})",
                hint="offsets of one log mean nothing in another; set each sink with `penstock offset mark`",
            )
        for sink in self.sinks:
            _check_sink(sink, end)


def _check_sink(sink: ExportedSink, end: int) -> None:
    if not NAME.fullmatch(sink.sink):
        raise UsageError(f"no sink can have the name {sink.sink[:80]!r}")
    if not -1 <= sink.offset < end:
        raise UsageError(
            f"sink '{sink.sink}': offset {sink.offset} is beyond the log, which ends with {end - 1}"
        )
    if not 0 <= sink.generation < _GENERATIONS:
        raise UsageError(f"sink '{sink.sink}': {sink.generation} is no generation")
    for ns, offset in sink.namespaces.items():
        if not 0 <= offset <= sink.offset:
            raise UsageError(f"sink '{sink.sink}': namespace '{ns}' at {offset}, the sink at {sink.offset}")
    if not 0 <= sink.careful <= end:
        raise UsageError(
            f"sink '{sink.sink}': it is to go carefully up to {sink.careful}, the log ends with {end - 1}"
        )
    for offset in sink.acked:
        if not sink.offset < offset < end:
            raise UsageError(f"sink '{sink.sink}': message {offset} cannot be acknowledged ahead of its turn")


def exported(directory: Directory, pipeline: str, now: int) -> Exported:
    """What all sinks of a pipeline have now."""
    end = directory.reader(pipeline).state().next
    sinks = [_sink(name, directory.loaded(pipeline, name)) for name in directory.sinks(pipeline)]
    return Exported(pipeline, directory.log_id(pipeline), end, now, tuple(sinks))


def _sink(name: str, held: SinkOffsets) -> ExportedSink:
    commit = held.commit
    return ExportedSink(
        sink=name,
        offset=commit.watermark - 1,
        generation=commit.generation,
        namespaces=dict(sorted(held.namespaces.items())),
        careful=commit.careful,
        acked=commit.acked,
        detached=commit.detached,
    )


def written(export: Exported) -> str:
    """The file's text."""
    return msgspec.json.format(msgspec.json.encode(export), indent=2).decode()


def read(text: bytes, where: str) -> Exported:
    """The export in a file; refuses what is none."""
    try:
        found = msgspec.json.decode(text, type=Exported)
    except UNREADABLE as error:
        raise UsageError(
            f"{where} is not an export of offsets: {error}", hint="`penstock offset export` writes one"
        ) from None
    if found.format > FORMAT:
        raise UsageError(f"{where} has format {found.format}, this version reads up to {FORMAT}")
    names = [sink.sink for sink in found.sinks]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{where} names sink '{twice}' twice")
    return found
