"""The contract of a sink: tasks stage, the runner alone publishes. Who calls what is told in `base`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.adaptors.finding import Finding
from penstock.base.errors import PenstockError
from penstock.log.offsets import Lane
from penstock.log.schema import KnownSchemas, Schemas

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
class Stage:
    """What a task is told: where to stage, under which name, and the range it works on.

    `directory` is fresh for this batch of this run. `name` is unique to the task attempt. Messages with an
    offset below `skip_below` are already in the target: they count as delivered and are not staged. `plan` is what a
    `Voting` publisher wants its tasks to know; `lane` is which of its sink's lanes the rows belong to. `begin` is the
    first message of the batch. `shared` says that what a task leaves in `directory` is there for the publisher, too:
    both are on one machine.
    """

    directory: Path
    name: str
    skip_below: int
    plan: str = ""
    lane: int = 0
    begin: int = 0
    shared: bool = False


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

    def overlaps(self, parts: Sequence[Staged]) -> bool:
        """Whether tasks may stage the next batch while `publish` has these parts, in a thread of its own.

        Then `publish` must leave alone what has been staged with a later `Stage.begin`.
        """
        return False

    @abstractmethod
    def close(self) -> None:
        """Let go of connections and files. Never publishes."""


class RivalError(PenstockError):
    """The position in a target is not where this publisher left it: another one writes there. Nothing was published."""


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
    def name_of(self, plan: str) -> str:
        """What the transactions of a plan have in common in their names, for those who look."""

    @abstractmethod
    def votes(self, parts: Sequence[Staged]) -> Mapping[str, bool]:
        """How the target voted, by worker name, on what was sent under it; for those who look."""

    @abstractmethod
    def judge(self, parts: Sequence[Staged]) -> Mapping[str, Lane]:
        """Where the lanes of these parts end if they are committed; `AbortedError` if one of them may not be."""

    @abstractmethod
    def tell(self, lanes: Mapping[str, Lane]) -> None:
        """The decision is durable: have the target commit these. Carried out on return."""

    @abstractmethod
    def leave(self, workers: Sequence[str]) -> None:
        """Tell the target that these workers have left for good. May be told twice."""


class Sink(ABC):
    """Writes an outside system."""

    order: Order
    guarantee: Guarantee
    through_spark: bool = False
    """Whether its publisher works through the session of the run: then it never publishes in a task."""
    schemas: Schemas = KnownSchemas({})
    """What the source said about the fields of a namespace."""
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
