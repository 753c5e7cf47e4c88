"""A sink's target as this process has it: open or not, what it holds, and how much it can hold by our doing.

A target that has less than was acknowledged, or more than the log had messages when it was first opened, belongs to
another time of this pipeline: one of the two was brought back from a copy. One that has got more since than it was
given from here is written by another copy of the pipeline.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from penstock.adaptors.base import Publisher, RivalError, Sink, SinkPosition, Staged
from penstock.base import faults
from penstock.base.errors import CorruptError, UsageError
from penstock.base.secrets import mask
from penstock.log.offsets import Commit
from penstock.spark.single import refuse_older_target

log = logging.getLogger(__name__)


class OvertakenError(UsageError):
    """Another copy of the pipeline has written to the target since it was opened here."""


class Target:
    """What one sink writes to."""

    def __init__(self, sink_name: str, sink: Sink, log_id: str) -> None:
        self._name = sink_name
        self._sink = sink
        self._log_id = log_id
        self._publisher: Publisher | None = None
        self.watermark = 0
        """Below this are the messages that it said it has; 0 if it keeps no position."""
        self._met = False
        """Whether it has been opened since the offset log was claimed."""
        self._furthest: int | None = None
        """Below this are all messages that it can have, as far as we know."""

    @property
    def is_open(self) -> bool:
        return self._publisher is not None

    @property
    def publisher(self) -> Publisher:
        """Its adaptor's, while it is open."""
        assert self._publisher is not None
        return self._publisher

    def open(self, commit: Commit, log_end: int) -> None:
        """Learn what it has; before the first batch, and after any failure."""
        if self._furthest is None:
            self._furthest = log_end
        publisher = self._sink.publisher()
        held = publisher.open(SinkPosition(self._log_id, commit.generation, commit.watermark))
        self._publisher = publisher
        if held is not None:
            refuse_older_target(self._name, held.watermark, commit.in_target)
            self._refuse_newer(held.watermark, max(self._furthest, commit.watermark), commit.watermark)
        self.watermark = self._furthest = held.watermark if held is not None else 0
        self._met = True

    def _refuse_newer(self, held: int, furthest: int, acknowledged: int) -> None:
        if held <= furthest:
            return
        if self._met:
            raise OvertakenError(
                f"the target of sink '{self._name}' has the messages below {held}, and was given those below "
                f"{furthest} from here: another copy of this pipeline writes there",
                hint="run one of them alone, or give it another target; "
                f"this one, started again, goes on with message {acknowledged}, and shuts the other out",
            )
        raise CorruptError(
            f"the target of sink '{self._name}' has the messages below {held}, but the log ends at {furthest}",
            where=self._name,
            position=furthest,
            hint="the data directory is an older copy: bring the newer one back, or move the target away",
        )

    def publish(self, parts: Sequence[Staged], commit: Commit) -> None:
        """Make what is staged visible, and move the position inside the target to that of the commit."""
        position = SinkPosition(self._log_id, commit.generation, max(commit.watermark, self.watermark))
        before, self._furthest = self._furthest, position.watermark  # whatever happens, it may have them then
        try:
            with faults.step("publish"):
                self.publisher.publish([part for part in parts if part.part], position)
        except RivalError:  # it has none of it
            self._furthest = before
            raise
        self.watermark = position.watermark

    def lend(self, end: int) -> None:
        """Let a task have it, which may bring it as far as `end`; to be opened again."""
        publisher, self._publisher = self.publisher, None
        publisher.close()
        self._furthest = max(end, self.watermark)

    def close(self) -> None:
        """Let it go. A connection that is broken may fail once more at that, which is nobody's end."""
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            try:
                publisher.close()
            except Exception as error:  # noqa: BLE001 - an adaptor of any author
                log.warning("sink %s: its target was not let go: %s", self._name, mask(str(error)))

    def forget(self) -> None:
        """An operator may have delivered something to it meanwhile."""
        self._met, self._furthest = False, None
