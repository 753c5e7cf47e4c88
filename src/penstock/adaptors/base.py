"""The contracts between Penstock and an outside system.

An `Adaptor` is a frozen dataclass whose fields are its settings (`penstock.base.settings`). It can be a
source, a sink, or both; asking for the half it does not have is a `UsageError`. What each half promises is told where
it is defined, in `source` and `sink`; whoever writes or uses an adaptor takes all names from here.

**Who calls what**

    runner process     Adaptor.source() -> Source.inspect(...)          once, for `plan`
                       Source.use(...), Source.announce(...)            once a start
                       Source.read(...)                                 once a start, in a thread of its own
                       Source.logged(...)                               for each batch, once the log has it
                       Source.gauges(), Source.copying()                every few seconds
                       Source.release()                                 when an operator takes the source away
                       Adaptor.sink() -> Sink.use(...), Sink.inspect(...)  once, for `plan`
                       Sink.use(...), Sink.publisher()                  once a start
                       Publisher.open / publish / close                 see there
    executor process   CopyTask.read()                                  once a task attempt, if a source copies so
                       Stager.stage(...)                                once a task attempt

A sink is written in two steps because Spark's tasks may fail, run twice, or outlive the run that started
them. Tasks only *stage*, under names that no other attempt uses. The runner then *publishes* what the
successful attempts reported, and moves the sink's own position in the same act. Nothing that a task does may
be visible at the target.

**What an error says**

    AwayError      The system does not answer, or has no room; neither settings nor messages are wrong. The runner
                   waits, longer each time, and tries again: it asks `read` anew with what the log holds by then,
                   or calls `open` anew. So raise it early, with open connections closed, and do not retry for long.
    UsageError     A person has to change something first: a setting, a right, a target that others wrote. The run
                   ends with it.
    RefusedError   From `publish` alone: the target refused the whole bulk and does not say for which message. None
                   of it may be visible then. The sink stops; at the next start these messages go one at a time.
    a `Refusal`    Not an error but a result: this very message cannot be taken. What happens to it is the pipeline's
                   policy.
    any other      The work failed. A query of Spark is started again a few times, then the sink stops.

A stager that raises fails its task, which Spark runs again, and then its batch; the type of the error does not come
through. What a target may do to one bulk belongs to `publish`.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from typing import ClassVar

from penstock.adaptors.finding import Finding
from penstock.adaptors.sink import (
    AbortedError,
    Guarantee,
    Order,
    Publisher,
    Refusal,
    RivalError,
    Sink,
    SinkPosition,
    Stage,
    Staged,
    Stager,
    Voting,
)
from penstock.adaptors.source import (
    Bad,
    Batch,
    Copier,
    Copying,
    CopyTask,
    Found,
    Here,
    Inspection,
    Source,
    refuse_conditions,
)
from penstock.base.errors import UsageError
from penstock.log.schema import Schemas

__all__ = [
    "AbortedError",
    "Adaptor",
    "Bad",
    "Batch",
    "Copier",
    "CopyTask",
    "Copying",
    "Finding",
    "Found",
    "Guarantee",
    "Here",
    "Inspection",
    "Order",
    "Publisher",
    "Refusal",
    "RivalError",
    "Schemas",
    "Sink",
    "SinkPosition",
    "Source",
    "Stage",
    "Staged",
    "Stager",
    "Voting",
    "refuse_conditions",
]


class Adaptor(ABC):
    """A system that Penstock can read, write, or both."""

    name: ClassVar[str]
    description: ClassVar[str]
    reads: ClassVar[bool] = False
    writes: ClassVar[bool] = False
    extra: ClassVar[str] = ""
    """What has to be installed beside the core: `pip install 'penstock[EXTRA]'`."""
    aliases: ClassVar[Mapping[str, str]] = {}
    """Other words for its settings, for those that cannot be the name of a field."""
    experimental: ClassVar[str] = ""
    """Why nobody should rest on it yet, such as that it was never run against a real server; `plan` warns then."""

    def spark_settings(self) -> Mapping[str, str]:
        """Settings of Spark that it works with, such as the connector of a format; those of the run come on top."""
        return {}

    def source(self) -> Source:
        raise UsageError(f"adaptor '{self.name}' cannot be a source", hint="see `penstock about`")

    def sink(self) -> Sink:
        raise UsageError(f"adaptor '{self.name}' cannot be a sink", hint="see `penstock about`")
