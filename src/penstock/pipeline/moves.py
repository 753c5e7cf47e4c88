"""The rules by which an operator's edit moves a sink's offsets. Pure, but for looking messages up in the log.

Setting a sink back opens a new generation: targets take what they had in the old one for a repetition, so they must
be told that this is none. Counts begin anew with it, and so does everything else that was known about messages to
come: which of them were acknowledged ahead of their turn, and which are to be delivered one at a time.

Setting it forward, or acknowledging, stays in the generation. What is passed over without being sent counts as
dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.base.errors import UsageError
from penstock.base.units import counted
from penstock.log.offsets import Commit, SinkOffsets
from penstock.log.positions import LogState
from penstock.log.reader import LogReader
from penstock.pipeline.records import Move


def planned(sink: str, held: SinkOffsets, offset: int, reader: LogReader) -> Move:
    """What setting the sink's offset would come to; refuses one that the log does not have."""
    commit, log = held.commit, reader.state()
    end = log.next
    refuse_unended(log, offset)
    if not -1 <= offset < end:
        last = f"the last message of the log is {end - 1}" if end else "the log is empty"
        raise UsageError(
            f"sink '{sink}': offset {offset} is out of range, {last}",
            hint="-1 means everything again",
        )
    target = offset + 1
    back = target < commit.watermark
    gone = _removed(reader, target, commit.watermark) if back else 0
    return Move(
        sink=sink,
        before=commit.watermark - 1,
        after=offset,
        generation=commit.generation + back,
        again=commit.watermark - target - gone if back else 0,
        gone=gone,
        skipped=0 if back else target - commit.watermark - sum(o < target for o in commit.acked),
        was_detached=commit.detached,
    )


def moved(held: SinkOffsets, offset: int, reader: LogReader) -> tuple[Commit, dict[str, int]]:
    """The commit that sets the sink's offset, and the offsets of its namespaces with it."""
    commit, target = held.commit, offset + 1
    if target < commit.watermark:
        clamped = {ns: min(last, offset) for ns, last in held.namespaces.items()} if offset >= 0 else {}
        return Commit(watermark=target, generation=commit.generation + 1), clamped
    passed = {**held.namespaces, **_last_of_each(reader, commit.watermark, offset)}
    return folded(_at(msgspec.structs.replace(commit, detached=False), target)), passed


def acknowledged(
    held: SinkOffsets, wanted: Sequence[int], reader: LogReader
) -> tuple[Commit, dict[str, int]]:
    """The commit that acknowledges these messages without sending them."""
    commit, log = held.commit, reader.state()
    end = log.next
    for offset in wanted:
        refuse_unended(log, offset)
        if offset < commit.watermark:
            raise UsageError(
                f"message {offset} is acknowledged already: the sink's offset is {commit.watermark - 1}",
                hint="to send messages again, set it back with `penstock offset mark`",
            )
        if offset >= end:
            raise UsageError(f"message {offset} is not in the log, which ends with {end - 1}")
    ahead = tuple(sorted({*commit.acked, *wanted}))
    after = folded(msgspec.structs.replace(commit, acked=ahead))
    namespaces = dict(held.namespaces)
    if after.watermark > commit.watermark:
        namespaces.update(_last_of_each(reader, commit.watermark, after.watermark - 1))
    return after, namespaces


def refuse_unended(log: LogState, offset: int) -> None:
    """Refuse to lead a sink into a transaction whose end is not in the log: it would be given the rest by halves."""
    if log.closed.offset <= offset < log.next:
        raise UsageError(
            f"message {offset} is of a transaction of the source that has no end in the log yet",
            hint=f"run the pipeline until it has; the last message before it is {log.closed.offset - 1}",
        )


def in_words(move: Move) -> str:
    """What a move means, as a sentence or two."""
    if move.after > move.before:
        return f"{counted(move.skipped, 'message')} will count as acknowledged without being sent to {move.sink}."
    if move.after == move.before:
        return f"{move.sink} stays at {move.after} and is no longer detached."
    words = f"{counted(move.again, 'message')} will be sent to {move.sink} again."
    if move.gone:
        words += f" {counted(move.gone, 'message')} before them cannot be: compaction has removed them."
    return words


def folded(commit: Commit) -> Commit:
    """The commit with what was acknowledged ahead of its turn folded in, as far as its turn has come."""
    ahead, watermark = set(commit.acked), commit.watermark
    while watermark in ahead:
        watermark += 1
    return _at(commit, watermark) if watermark > commit.watermark else commit


def _at(commit: Commit, watermark: int) -> Commit:
    """The commit with everything below `watermark` acknowledged, and counted as dropped."""
    return msgspec.structs.replace(
        commit,
        watermark=watermark,
        dropped=commit.dropped + watermark - commit.watermark,
        careful=commit.careful if commit.careful > watermark else 0,
        acked=tuple(offset for offset in commit.acked if offset >= watermark),
    )


def _removed(reader: LogReader, first: int, end: int) -> int:
    """How many messages of [first, end) compaction has removed."""
    cut = min(reader.first().offset, end)
    if cut <= first:
        return 0
    return cut - first - sum(1 for _ in reader.compacted(first, cut - 1))


def _last_of_each(reader: LogReader, first: int, last: int) -> dict[str, int]:
    """The last message of each namespace in [first, last]."""
    if last < first:
        return {}
    state = reader.state()
    if last == state.next - 1:
        return {ns: known.offset for ns, known in state.namespaces.items() if known.offset >= first}
    return {record.ns: record.offset for record in reader.show(first, last)}
