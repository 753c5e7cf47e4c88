"""What all states of an append share: their names, what they need of the broker, what they know of the append."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from enum import Enum, auto

import grpc

from penstock.base.disk import Buffer
from penstock.base.errors import PenstockError
from penstock.journal.chunks import Content
from penstock.journal.claims import Claims
from penstock.journal.flow import FlowLimits, MinimumRate
from penstock.journal.fragment import Codec, Fragment
from penstock.journal.inflow import Inflow
from penstock.journal.protocol import AppendRequest, AppendResponse, Header, JournalSpec, LabelSet, Status
from penstock.journal.replica import Replica
from penstock.journal.replication import Pipeline
from penstock.journal.resolver import Resolution, Resolver
from penstock.journal.rolling import proposal_to_extend
from penstock.journal.wholes import Pieces


class State(Enum):
    """The seed's states, and UPDATE_SUSPEND, which came after it."""

    __hash__ = object.__hash__  # members are unique, and a table of them is looked up at every step

    RESOLVE = auto()
    ACQUIRE_PIPELINE = auto()
    START_PIPELINE = auto()
    SEND_PIPELINE_SYNC = auto()
    RECV_PIPELINE_SYNC = auto()
    UPDATE_ASSIGNMENTS = auto()
    AWAIT_DESIRED_REPLICAS = auto()
    VALIDATE_PRECONDITIONS = auto()
    UPDATE_SUSPEND = auto()
    STREAM_CONTENT = auto()
    READ_ACKNOWLEDGEMENTS = auto()
    ERROR = auto()
    PROXY = auto()
    FINISHED = auto()


TERMINAL = frozenset((State.ERROR, State.PROXY, State.FINISHED))


class AppendStreamError(PenstockError):
    """The client's stream broke the contract of Append (reference 14)."""

    def __init__(self, complaint: str) -> None:
        super().__init__(f"append stream: {complaint}")


class StoppedServingError(PenstockError):
    """The journal resolves to this broker, which does not serve it any more, or not yet. Nothing was done."""

    def __init__(self, journal: str, why: str = "this broker has stopped serving the journal") -> None:
        super().__init__(f"{journal}: {why}", hint="try again: another broker serves it, or this one will")


class NotInChargeError(PenstockError):
    """Our lease may have ended, and somebody else may be the primary by now."""


class PassedOnError(PenstockError):
    """A call was passed on to another broker, which answered with an error, or not at all."""

    def __init__(self, what: str, code: grpc.StatusCode) -> None:
        super().__init__(what)
        self.code = code


def lone_pipeline(resolution: Resolution, replica: Replica) -> Pipeline:
    """The pipeline of a broker that is alone."""
    return Pipeline(resolution.header.route, replica.local, replica.spool_slot)


@dataclass(frozen=True, slots=True)
class Appending:
    """What the machines of one broker need of it."""

    resolver: Resolver
    update_assignments: Callable[[Resolution], Awaitable[int | None]]
    """Advertise that the replicas of this route agree: None if that stands already, else a revision to read through."""
    update_suspend: Callable[[Resolution, JournalSpec.Suspend], Awaitable[int]]
    """Write a journal's suspension, if nothing changed meanwhile; the revision to read through, won or lost."""
    flow: FlowLimits
    max_replication: int
    first_alone: bool
    """Whether a journal's first append gets a fragment of its own, so that its store soon tells that it is not new."""
    clock: Callable[[], float]
    """Seconds, for flow control only."""
    threads: Executor
    """For chunks of content that are worth it."""
    pipeline_of: Callable[[Resolution, Replica], Pipeline] = lone_pipeline
    """A new pipeline to the replicas of a route, of which ours is the primary and its spool is owned."""
    may_act: Callable[[], bool] | None = None
    """Whether we are certain to be who we were when we resolved; None: nobody can take our place."""
    pass_on: Callable[[Header, AppendRequest], Awaitable[AppendResponse]] | None = None
    """Have an append that came whole made by the primary that a header names; None: there are no others."""


class AppendBase:
    """What is known of one append, and what every state may do."""

    __slots__ = (
        "_began",
        "_changing",
        "_claims",
        "_committing",
        "_first",
        "_health_turns",
        "_inflow",
        "_invalidations",
        "_live",
        "_minimum",
        "_next_suspend",
        "_pipeline",
        "_read_through",
        "_replica",
        "_requests",
        "_resolution",
        "_roll_to",
        "_rolling",
        "_rounds",
        "_spec",
        "_summed",
        "_summer",
        "_sync_registers",
        "_ticket",
        "_with",
        "begin",
        "commits",
        "delayed_chunks",
        "era",
        "header",
        "registers",
        "state",
        "status",
        "store_health_error",
        "taken",
        "total_chunks",
    )

    def __init__(
        self,
        first: AppendRequest,
        requests: AsyncIterator[AppendRequest | Content] | tuple[Buffer | Pieces, ...],
        surroundings: Appending,
        claims: Claims,
        *,
        rolling: bool = False,
        summed: bool = True,
        era: int | None = None,
    ) -> None:
        """`requests` are what the client sends after the first; or the whole contents of a run of appends, of which
        all but the first are not empty. As many as go together are `taken`, at least one.

        `rolling` closes the fragment first. Unless `summed`, nobody wants to know the sum of this append. With an
        `era` (`LocalSpool.era`) it is refused if commits were given up since.
        """
        self.state = State.RESOLVE
        self.status: int = Status.OK
        self.header = Header()
        self.commits: list[Fragment] = []
        """Where the append landed, or each append of the run."""
        self.taken = 1
        self.registers = LabelSet()
        self.begin = -1
        self.total_chunks = 0
        self.delayed_chunks = 0
        self.store_health_error = ""
        self._first = first
        self._requests = requests
        self._with = surroundings
        self._claims = claims
        self._read_through = first.min_etcd_revision
        self._resolution: Resolution | None = None
        self._replica: Replica | None = None
        self._spec: JournalSpec | None = None
        self._pipeline: Pipeline | None = None
        self._live = False
        """Whether we own the replica's pipeline slot."""
        self._rolling = rolling
        self._roll_to: int | None = None
        self._sync_registers: LabelSet | None = None
        """Those of a replica that is ahead of us."""
        self._rounds = 0
        """Proposals that the replicas did not agree on."""
        self._next_suspend: JournalSpec.Suspend | None = None
        self._health_turns = 0
        self._changing = first.HasField("union_registers") or first.HasField("subtract_registers")
        self._committing = False
        self._minimum: MinimumRate | None = None
        self._summer: hashlib._Hash | None = None
        self._summed = summed
        self.era = era
        self._inflow: Inflow | None = None
        """Large chunks on their way into the file, while the next one is received."""
        self._began = False
        self._invalidations = 0
        """Those of the replica when content began."""
        self._ticket = 0

    @property
    def surroundings(self) -> Appending:
        return self._with

    def _proposal(self) -> Fragment:
        local, spec = self._held().local, self._spec
        assert spec is not None
        return proposal_to_extend(
            local.fragment,
            codec=Codec(spec.fragment.compression_codec),
            length=spec.fragment.length,
            flush_seconds=spec.fragment.flush_interval.ToSeconds(),
            first_append=local.first_append // 1_000_000,
            now=self._owned().now_seconds(),
            roll_to=self._roll_to,
        )

    def _owned(self) -> Replica:
        assert self._live
        assert self._replica is not None
        return self._replica

    def _held(self) -> Pipeline:
        assert self._pipeline is not None
        return self._pipeline

    def _fail(self, status: int) -> None:
        self.status = status
        self.state = State.ERROR

    def _fail_gone(self) -> None:
        """Our replica was closed under us: the journal is gone, or somebody else's now."""
        there = self._with.resolver.spec(self._owned().spec.name) is not None
        self._fail(Status.NO_JOURNAL_PRIMARY_BROKER if there else Status.JOURNAL_NOT_FOUND)

    def _require_in_charge(self) -> None:
        may_act = self._with.may_act
        if may_act is not None and not may_act():
            raise NotInChargeError(
                f"{self._first.journal}: this broker's lease has run out",
                hint="another broker is or will be the primary; whether the append is in the journal is not known",
            )

    def _tear_down(self) -> None:
        """The pipeline is of no more use: the next append builds another."""
        replica, pipeline = self._owned(), self._held()
        pipeline.close()
        replica.pipeline = self._pipeline = None

    def release(self) -> None:
        """Give the pipeline back, if we have it; what was not committed is rolled back."""
        if self._live:
            assert self._replica is not None
            if self._pipeline is not None:
                self._pipeline.roll_back()
            self._live = False
            self._replica.pipeline_slot.release()
