"""The contracts between Penstock and an outside system.

An `Adaptor` is a frozen dataclass whose fields are its settings (`penstock.base.settings`). It can be a
source, a sink, or both; asking for the half it does not have is a `UsageError`.

**Who calls what**

    runner process     Adaptor.source() -> Source.inspect(...)          once, for `plan`
                       Source.use(...), Source.read(...)                once a start, in a thread of its own
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

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from penstock.base.errors import PenstockError, UsageError
from penstock.log.message import Message, Position, Resume
from penstock.log.offsets import Lane
from penstock.log.packing import Packed
from penstock.log.schema import Schema

if TYPE_CHECKING:
    import pyarrow as pa


class Order(Enum):
    """What order a sink needs inside one batch."""

    TOTAL = "total"
    PER_KEY = "per key"
    NONE = "none"


class Guarantee(Enum):
    """What the sink's target holds after any number of crashes."""

    EXACTLY_ONCE = "exactly once"
    AT_LEAST_ONCE = "at least once"


@dataclass(frozen=True, slots=True)
class Bad:
    """Something at the source that cannot be a message, such as a line that is no JSON.

    It is kept among the dead letters, under the name of the source. `place` says where it stands, in words that a
    person finds it by (`orders.jsonl, line 7, byte 512`), and the same thing always has the same `place`: what is
    read again after a crash is kept once. `content` is what was found, as far as it is worth keeping.
    """

    ns: str
    place: str
    error: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Batch:
    """What a source read in one go. The log takes it in one append: all of it, or none.

    `positions` says, for each namespace the batch moved, where to go on from once this batch is durable.
    `completed` names the namespaces whose copy ends with this batch. `schemas` gives, before the first row of a
    namespace and at every change, what its fields are (`penstock.log.schema`). A batch may have no messages.

    `packed` are further messages, behind those in `messages`, that come as columns and are laid out for the log
    already (`penstock.log.packing`): the way for sources that read much at once. `bad` goes to the dead letters,
    durably, before the log takes the rest.

    What is not copied but followed (its mode is not COPY) reaches a sink in one piece: a batch is never cut then, so it
    ends with a transaction of the source, or says `more`: the transaction goes on in the next batch, and a sink is
    given both in one, once the last of them is in the log. A crash may come between the two. So the positions of such
    a batch lead into the midst of the transaction (where it is, say, and how many of its changes were read), and
    reading goes on exactly there, before anything else is given: a batch that does not say `more` ends the transaction
    for all sinks, also one that holds rows of a copy. A source that cannot do that gives a transaction in one batch.
    """

    messages: Sequence[Message] = ()
    positions: Mapping[str, Position] = field(default_factory=dict)
    completed: Sequence[str] = ()
    schemas: Mapping[str, Schema] = field(default_factory=dict)
    packed: Sequence[Packed] = ()
    bad: Sequence[Bad] = ()
    more: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about the outside system that a person should know before a run.

    `fix` is the statement or command that mends it, word for word, where there is one. What is `fatal` keeps a run
    from working at all.
    """

    what: str
    fix: str | None = None
    fatal: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """A namespace of a source: about how many rows it has (None if nobody knows), and its key."""

    ns: str
    rows: int | None = None
    key: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Inspection:
    """What `plan` tells about a source: all its namespaces, accepted or not, and what is wrong with the accepted."""

    namespaces: Sequence[Found]
    findings: Sequence[Finding] = ()


@dataclass(frozen=True, slots=True)
class Copying:
    """How far the copy of a namespace is: rows read, of about how many; None if nobody knows."""

    ns: str
    rows: int
    of: int | None


class CopyTask(ABC):
    """One range of a copy, read wherever there is a free core; pickled, so it holds settings and nothing live."""

    @abstractmethod
    def read(self) -> Iterator[Packed]:
        """The rows of the range. May run several times, and in another process than the source.

        An error fails the copy, as one from `Source.read` would; `AwayError` and `UsageError` keep their meaning.
        """


class Copier(ABC):
    """Reads ranges in parallel for a source. The runner gives one that uses Spark's tasks."""

    @abstractmethod
    def run(self, tasks: Iterable[CopyTask], stop: threading.Event) -> Iterator[Sequence[Packed]]:
        """The rows of each task, in the order of the tasks, which are taken from the iterable as there is room.

        Several run at once; those that are done wait, in files, for those before them. Ends early when `stop` is
        set. Ranges of about 8 MiB are a good size: the rows of one go into the log in one append.
        """


class Here(Copier):
    """Reads one range after the other, in this process."""

    def run(self, tasks: Iterable[CopyTask], stop: threading.Event) -> Iterator[Sequence[Packed]]:
        for task in tasks:
            if stop.is_set():
                return
            yield list(task.read())


class Source(ABC):
    """Reads an outside system: first what is there (copy), then, if asked to tail, what changes."""

    copier: Copier = Here()
    """What reads the ranges of a large copy."""
    name: str = ""
    """Of the pipeline and the source in it, `shop.db`: what a source sets up at the system can be named after it."""

    def use(self, copier: Copier, name: str) -> None:
        """Called once, before `read`."""
        self.copier, self.name = copier, name

    def inspect(self, accept: Callable[[str], bool]) -> Inspection:
        """What there is, and what stands in the way of reading it; connects, changes nothing, reads no rows."""
        return Inspection([Found(ns) for ns in self.namespaces()])

    def logged(self, batch: Batch) -> None:  # noqa: B027 - a source may have nothing to acknowledge
        """The log has `batch`, durably; and all batches before it. Now it may be acknowledged to the outside.

        Called in the order of the batches, in another thread than `read`, maybe while that waits for more: take a
        note, and have `read` do the rest within a second or so.
        """

    def gauges(self) -> Mapping[str, float]:
        """Numbers about the outside for `/metrics` and `status`, such as `held_back_bytes`; as last seen, at once."""
        return {}

    def copying(self) -> Sequence[Copying]:
        """The copies under way; at once."""
        return ()

    def release(self) -> Sequence[str]:
        """Take away what `read` has set up at the system (a slot, a publication); tells what that was."""
        return ()

    @abstractmethod
    def namespaces(self) -> Sequence[str]:
        """The namespaces there are now; connects, reads no rows. Raises `UsageError` or `AwayError` if it cannot."""

    @abstractmethod
    def read(
        self,
        accept: Callable[[str], bool],
        resume: Mapping[str, Resume],
        stop: threading.Event,
    ) -> Iterator[Batch]:
        """Yield batches of the namespaces that `accept` lets through, each after the position in `resume`.

        The runner asks for the next batch while the last one is being made durable: only what `logged` was told of
        may be acknowledged to the outside. A source may be slow to be
        asked, and must be quick to end when `stop` is set: it checks between batches and never sleeps
        longer than a fraction of a second without waiting on `stop`. Returning means the source has run
        out; a source that tails returns only on `stop`. Batches of about a megabyte or 10,000 messages
        are a good size; messages above the size limit are refused by the log, by name.

        Resuming must be exact: a message that the log holds is not yielded again, one that it does not
        hold is. A crash loses every batch that the log has not taken, and positions of them as well.

        Each namespace is by itself: one that `resume` has in mode COPY goes on with its copy, and says `completed`
        when that ends; one that is past it is followed, and does not wait for the copy of another; one that is not
        there, or whose position is empty, is copied from its beginning. The text of data and keys is that of
        `penstock.log.values`.

        A `Resume.where` limits the copy to the rows that meet it; what follows the copy is not limited and begins
        after `Resume.before`. The condition is the operator's text: a source that cannot keep it calls
        `refuse_conditions`, one that can raises `UsageError` for what is no condition, before it reads, and runs it
        so that it cannot write.
        """


def _no_schema(ns: str) -> Schema | None:
    return None


def refuse_conditions(adaptor: str, accept: Callable[[str], bool], resume: Mapping[str, Resume]) -> None:
    """For sources that read all or nothing: refuse a backfill that wants some rows only."""
    for ns, known in resume.items():
        if known.where is not None and accept(ns):
            raise UsageError(
                f"adaptor '{adaptor}' cannot choose rows: namespace '{ns}' was to be copied anew "
                f"where {known.where!r}",
                hint=f"ask for all of it: `penstock backfill {ns}` without --where takes the place of this one",
            )


@dataclass(frozen=True, slots=True)
class Stage:
    """What a task is told: where to stage, under which name, and the range it works on.

    `directory` is fresh for this batch of this run. `name` is unique to the task attempt. Messages with an
    offset below `skip_below` are already in the target: they count as delivered and are not staged. `plan` is what a
    `Voting` publisher wants its tasks to know; `lane` is which of its sink's lanes the rows belong to.
    """

    directory: Path
    name: str
    skip_below: int
    plan: str = ""
    lane: int = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """A message that a function or the sink's stager could not take, with the reason.

    A stager leaves `node` empty: the runner knows its name.
    """

    offset: int
    ns: str
    error: str
    node: str


@dataclass(frozen=True, slots=True)
class Staged:
    """What one task attempt reports; small, and free of message bodies.

    `part` is what the publisher needs to find the staged rows (a file name, a table name), empty if the
    task staged nothing. `rows` and `bytes` count what was staged, `messages` also those that were skipped because
    the target has them. `first`/`last` are the lowest and highest offset staged, -1 if none; `ordered` whether
    the rows were staged in the order of their offsets.
    """

    part: str
    rows: int
    messages: int
    bytes: int
    first: int
    last: int
    ordered: bool
    namespaces: Mapping[str, int]
    """The highest offset staged or skipped for each namespace, as the log names it (before `remap`)."""
    refused: Sequence[Refusal] = ()


@dataclass(frozen=True, slots=True)
class SinkPosition:
    """What a sink has: every message below `watermark`, in this `generation` of its history.

    `log` identifies the commit log; a target written from another log is never continued by accident.
    """

    log: str
    generation: int
    watermark: int


class Stager(ABC):
    """The half of a sink that runs in executors; pickled, so it holds settings and nothing live."""

    @abstractmethod
    def stage(self, stage: Stage, rows: Iterator[pa.RecordBatch]) -> Staged:
        """Stage `rows` (columns `offset, ts, mode, op, ns, key, old_key, data` and `origin`, the namespace as logged).

        `key` and `old_key` are the JSON text of the row's key, null where there is none; the second one is there if
        the row had another key before. A `command` with the data `{"command": "truncate"}` empties its namespace.

        Rows of one message share its offset and follow each other. Called for every partition, also for
        empty ones. A row that the target can never take is reported in `refused`, not raised: a raised
        error is retried by Spark and then fails the batch. Every message given is in one of the two, staged or
        refused: what is in neither counts as dropped by a function.
        """


class Publisher(ABC):
    """The half of a sink that runs in the runner and alone makes rows visible."""

    @abstractmethod
    def open(self, start: SinkPosition) -> SinkPosition | None:
        """Connect, clean up what a crash left, and tell the position kept inside the target.

        `start` is what the offset log says. None means that the target keeps no position (at least once). A
        position of an older generation counts for nothing: the operator rewound, and the answer is `start`.
        What is answered must be durable by then, also if the process that wrote it died before its sync.
        Raises `UsageError` if the target holds something that this pipeline did not write, `AwayError` if it
        does not answer.
        """

    @abstractmethod
    def publish(self, parts: Sequence[Staged], position: SinkPosition) -> None:
        """Make these parts visible and move the target's position, both or neither; durable on return.

        `parts` come in the order of their offsets. There may be none: then only the position moves. After
        an exception the state is unknown; the runner calls `open` again before anything else. Success for a
        part of a bulk is no success: what the target did not take is a `RefusedError`, or an `AwayError`.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of connections and files. Never publishes."""


class AbortedError(PenstockError):
    """A target voted to abort: nothing of the batch is visible anywhere, and the same messages are sent again."""

    sink = ""
    """Whose target it was, once the votes of all were looked at."""


class Voting(Publisher):
    """A publisher whose target votes: tasks prepare, the offset log decides, and only then the target is told.

    The order of a batch, in place of `publish`:

        begin     in the runner   nothing is open any more from before; what tasks must know
        stage     in tasks        send, ask for the vote, report it: `Staged.part`
        judge     in the runner   `AbortedError` unless all voted to commit; where each lane ends then
        decide    in the runner   the offset log takes the lanes together with the watermark: this is the decision
        tell      in the runner   the target is told. If that fails, `settle` does it after the next `open`

    `decided` are the lanes as the offset log has them: of each worker name the end of its bytes, and the transaction
    that brought it there. A transaction that is open at the target is committed if it is among these, or else aborted;
    before an abort `confirm` is called, which raises if another process has taken the offset log.
    """

    workers: Sequence[str]
    """The names of its lanes."""

    @abstractmethod
    def settle(self, decided: Mapping[str, Lane], confirm: Callable[[], None]) -> None:
        """Decide whatever is open at the target, under any name of its lanes and of `decided`."""

    @abstractmethod
    def begin(
        self,
        decided: Mapping[str, Lane],
        confirm: Callable[[], None],
        span: tuple[int, int],
        generation: int,
    ) -> str:
        """For each job that stages the messages of `span`: settle what is not, and give the plan for its tasks."""

    @abstractmethod
    def judge(self, parts: Sequence[Staged]) -> Mapping[str, Lane]:
        """Where the lanes of these parts end if they are committed; `AbortedError` if one of them may not be."""

    @abstractmethod
    def tell(self, lanes: Mapping[str, Lane]) -> None:
        """The decision is durable: have the target commit these. Carried out on return."""

    @abstractmethod
    def leave(self, workers: Sequence[str]) -> None:
        """Tell the target that these workers have left for good. May be told twice."""


Schemas = Callable[[str], "Schema | None"]
"""The schema that the log last heard of a namespace, by its name in the log (`origin`)."""


class Sink(ABC):
    """Writes an outside system."""

    order: Order
    guarantee: Guarantee
    through_spark: bool = False
    """Whether its publisher works through the session of the run: then it never publishes in a task."""
    schemas: Schemas = staticmethod(_no_schema)
    """For the publisher: what the source said about the fields of a namespace."""
    name: str = ""
    """Of the pipeline and the sink in it, `shop.search`: what a sink sets up at the system can be named after it."""
    lanes: int = 0
    """Into how many lanes rows are dealt by their key, a task each; 0 if they come as Spark has them."""
    learnt: int = 0
    """Counted up by a publisher that has told its sink what tasks should know: those of the next batch will."""

    def use(self, schemas: Schemas, name: str) -> None:
        """Called once, before `publisher`, in the process that publishes."""
        self.schemas, self.name = schemas, name

    def inspect(self, namespaces: Sequence[str] | None = None) -> Sequence[Finding]:
        """What stands in the way of writing, for `plan`; connects, changes nothing. Raises as `Publisher.open`.

        `namespaces` are those that the source has now and the sink will get, by the names that they arrive with; None
        if nobody knows them, as behind a function that may give any name. More may come in a run.
        """
        return ()

    @abstractmethod
    def stager(self) -> Stager:
        """The half for executors."""

    @abstractmethod
    def publisher(self) -> Publisher:
        """The half for the runner."""

    @abstractmethod
    def staging(self, scratch: Path) -> Path:
        """Where tasks stage: `scratch`, which the runner owns and clears, or a place nearer to the target."""


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
