"""The contract of a source: what it reads, how it goes on, what it is told. Who calls what is told in `base`."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.adaptors.finding import Finding
from penstock.base.errors import UsageError
from penstock.log.message import Message, Position, Resume
from penstock.log.packing import Packed
from penstock.log.schema import Schema

if TYPE_CHECKING:
    from penstock.journal.client import Client  # slow to import, and most sources need none


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

    def announce(self, client: Client, pipeline: str) -> None:  # noqa: B027 - most sources are found by nobody
        """The broker that has the pipeline's journals: for a source that others are to find there while it is read.

        Called once, between `use` and `read`, of a run; `client` may be used by any thread until `read` ends.
        """

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


def refuse_conditions(adaptor: str, accept: Callable[[str], bool], resume: Mapping[str, Resume]) -> None:
    """For sources that read all or nothing: refuse a backfill that wants some rows only."""
    for ns, known in resume.items():
        if known.where is not None and accept(ns):
            raise UsageError(
                f"adaptor '{adaptor}' cannot choose rows: namespace '{ns}' was to be copied anew "
                f"where {known.where!r}",
                hint=f"ask for all of it: `penstock backfill {ns}` without --where takes the place of this one",
            )
