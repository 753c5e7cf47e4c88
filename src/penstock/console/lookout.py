"""The lookout: one thread that looks at all pipelines, remembers what it saw, and tells who waits for news.

Twice a second the broker is asked, in one call, where all journals of all pipelines end. A pipeline that runs is looked
at each time, one that rests when one of its journals has grown, and every few seconds for what shows nowhere else. Of
a broker that cannot tell, those that rest are looked at as often as costs a small part of one processor. None is of a
data directory that nobody owns: nothing can change there until somebody takes it. Each look reads only what has grown.
What it saw is kept as JSON, ready to send; a subscriber is told which pipelines have news, never a queue of them, so a
page that is slow costs nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import msgspec

from penstock.base.errors import PenstockError
from penstock.base.secrets import mask
from penstock.console.history import History
from penstock.console.pace import Pace
from penstock.console.reaching import DirectoryPlace, Reaching
from penstock.console.views import Json, pipeline_view, told_nodes
from penstock.journal.client import BrokerGoneError, TimedOutError, UnauthenticatedError
from penstock.pipeline.clock import now_us
from penstock.pipeline.operations import Directory
from penstock.pipeline.progress import NodeProgress
from penstock.pipeline.records import PipelineStatus
from penstock.pipeline.watching import Journals, Watched, heads, listed

log = logging.getLogger(__name__)

TICK = 0.5
RESTING = 5.0
"""A pipeline that does not run is looked at at least as often as this, in seconds."""
LISTING = 2.0
"""And whether there are new ones."""
SHARE = 0.15
"""Of a processor: what looking more often than that may cost, where it is not known what has grown."""
AT_ONCE = 4
"""So many are looked at at the same time when everything is looked at for the first time."""
_RATE_WINDOW, _BEAT_WINDOW = 4.0, 12.0
"""Seconds that a rate is worked out over; the longer one for what is known from the beats of a run only."""
_SAMPLE = 1.0
_OF_THE_PLACE = (BrokerGoneError, TimedOutError, UnauthenticatedError)
"""What goes wrong with all pipelines at once; of anything else the others do not suffer."""


@dataclass
class _Kept:
    """What is known of one pipeline."""

    watched: Watched
    status: PipelineStatus | None = None
    view: Json = field(default_factory=dict)
    text: bytes = b"{}"
    looked: float = float("-inf")
    cost: float = 0.0
    """How long the last look took."""
    ends: tuple[int, ...] | None = None
    """Where its journals ended at the last look; None if that was not known of all."""
    failed: bool = False
    sampled: float = 0.0
    positions: Pace = field(default_factory=Pace)
    functions: Pace = field(default_factory=Pace)

    @property
    def rests(self) -> bool:
        return self.status is None or not self.status.running


class Subscriber:
    """Someone who waits for news. `wake` is called from the lookout's thread, at most once until `take`."""

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._dirty: set[str] = set()
        self._woken = False

    def tell(self, names: set[str]) -> None:
        with self._lock:
            self._dirty |= names
            woken, self._woken = self._woken, True
        if not woken:
            self._wake()

    def take(self) -> set[str]:
        """The names that have news since the last time; an empty one stands for the place itself."""
        with self._lock:
            taken, self._dirty, self._woken = self._dirty, set(), False
        return taken


class Lookout:
    """What the console knows. `start` and `stop` once; everything else from any thread."""

    def __init__(self, reaching: Reaching, clock: Callable[[], float] = time.monotonic) -> None:
        self.reaching = reaching
        self.history = History()
        self.problem: str | None = None
        """Why nothing can be seen at the moment."""
        self._clock = clock
        self._kept: dict[str, _Kept] = {}
        self._journals: dict[str, Journals] = {}
        self._listed, self._listing_cost = float("-inf"), 0.0
        self._heads: Mapping[str, int] = {}
        self._seen: object = None
        self._subscribers: set[Subscriber] = set()
        self._lock = threading.Lock()
        self._nudged = threading.Event()
        self._stopping = threading.Event()
        self._round: tuple[int, int] | None = (0, 0)
        """While everything is looked at for the first time: how many pipelines are done, of how many."""
        self._thread = threading.Thread(target=self._run, name="lookout", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._nudged.set()
        self._thread.join()
        self.reaching.close()

    def nudge(self) -> None:
        """Look again now: something was changed."""
        self._seen = None
        self._listed = float("-inf")
        for kept in list(self._kept.values()):
            kept.looked = float("-inf")
        self._nudged.set()

    def names(self) -> list[str]:
        with self._lock:
            return list(self._kept)

    def text(self, name: str) -> bytes | None:
        """What the page is told of a pipeline, as JSON; None if there is none."""
        with self._lock:
            kept = self._kept.get(name)
        return kept.text if kept else None

    def view(self, name: str) -> Json | None:
        with self._lock:
            kept = self._kept.get(name)
        return kept.view if kept else None

    def watched(self, name: str) -> Watched | None:
        with self._lock:
            kept = self._kept.get(name)
        return kept.watched if kept else None

    def place_text(self) -> bytes:
        """What the page is told of the place."""
        told: Json = {"place": self.reaching.place, "problem": self.problem, "looking": self._round}
        return msgspec.json.encode(told)

    def subscribe(self, subscriber: Subscriber) -> None:
        with self._lock:
            self._subscribers.add(subscriber)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        with self._lock:
            self._subscribers.discard(subscriber)

    def histories(self) -> dict[str, dict[str, list[float | None]]]:
        now = time.time()
        with self._lock:
            return {name: self.history.of(name, now) for name in self._kept}

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._nudged.clear()
            try:
                self.look()
                self._set_problem(None)
            except PenstockError as error:
                self._set_problem(mask(f"{error.message}" + (f" ({error.hint})" if error.hint else "")))
            except Exception as error:
                log.exception("looking at %s failed", self.reaching.place)
                self._set_problem(mask(f"unexpected {type(error).__name__}: {error}"))
            self._set_round(None)
            self.reaching.idle()
            self._nudged.wait(TICK)

    def look(self) -> None:
        """Look once, at what it is time for. The thread does so again and again."""
        seen = self.reaching.changed()
        if seen is not None and seen == self._seen:
            self._sample_all()
            return
        if not self.reaching.exists:
            self._forget_others(set())
            return
        with self.reaching.looking() as directory:
            before, self._heads = self._heads, heads(directory)
            now = self._clock()
            wait = LISTING if self._heads else self._patience(self._listing_cost, LISTING)
            if now - self._listed >= wait or before.keys() != self._heads.keys() or seen is not None:
                self._journals = listed(directory)
                self._listed, self._listing_cost = now, self._clock() - now
                self._forget_others(set(self._journals))
            self._look_at_all(directory, self._due(now, everything=seen is not None))
            if self._stopping.is_set():
                return
        if isinstance(self.reaching, DirectoryPlace) and seen is not None:
            self.reaching.settle()
            self._seen = self.reaching.changed()
        self._sample_all()

    def _due(self, now: float, *, everything: bool) -> Sequence[str]:
        """The pipelines that are to be looked at now."""
        unknown = sum(kept.cost for kept in self._kept.values() if kept.rests and kept.ends is None)
        patience = self._patience(unknown, RESTING)
        return [
            name
            for name in self._journals
            if everything
            or (kept := self._kept.get(name)) is None
            or now - kept.looked >= self._wait(name, kept, patience)
        ]

    def _wait(self, name: str, kept: _Kept, patience: float) -> float:
        """How long after its last look a pipeline is due again; `patience` if it is not known whether it has grown."""
        if kept.failed:
            return RESTING
        if not kept.rests:
            return 0.0
        ends = self._ends(name)
        if ends is None:
            return patience
        return RESTING if ends == kept.ends else 0.0

    def _ends(self, name: str) -> tuple[int, ...] | None:
        """Where the journals of a pipeline end; None if that is not known of all of them."""
        ends = tuple(self._heads.get(journal, -1) for journal in self._journals[name].names(name))
        return None if -1 in ends else ends

    def _look_at_all(self, directory: Directory, names: Sequence[str]) -> None:
        """One after the other; the first time several at once, since each has much to read and waits for the broker."""
        first = self._round is not None
        threads = ThreadPoolExecutor(AT_ONCE if first else 1, thread_name_prefix="look")
        try:
            for done, _ in enumerate(threads.map(partial(self._look_at, directory), names), start=1):
                if self._stopping.is_set():
                    return
                if first:
                    self._set_round((done, len(names)))
        finally:
            threads.shutdown(cancel_futures=True)

    def _patience(self, cost: float, most: float) -> float:
        """How long to wait between two looks that take `cost` seconds: not long, if somebody waits for news."""
        return min(most, cost / SHARE) if self._subscribers else most

    def _look_at(self, directory: Directory, name: str) -> None:
        kept = self._kept.get(name) or _Kept(Watched(name))
        began = kept.looked = self._clock()
        kept.ends = self._ends(name)
        try:
            status = kept.watched.look(directory, now_us(), self._journals[name], self._heads)
        except _OF_THE_PLACE:
            raise
        except PenstockError as error:
            kept.failed = True
            kept.view = {**kept.view, "name": name, "unreadable": mask(error.message)}
            self._publish(name, kept)
            return
        kept.status, kept.cost, kept.failed = status, self._clock() - began, False
        file, control = directory.run_file(name), kept.watched.control
        told = told_nodes(control, file)
        rates = self._rates(kept, status, told, _RATE_WINDOW if file else _BEAT_WINDOW)
        kept.view = pipeline_view(status, control, file, told, rates)
        self._publish(name, kept)

    def _publish(self, name: str, kept: _Kept) -> None:
        text = msgspec.json.encode(kept.view)
        news = text != kept.text
        with self._lock:
            kept.text = text
            self._kept[name] = kept
        if news:
            self._tell({name})

    def _rates(
        self, kept: _Kept, status: PipelineStatus, told: Sequence[NodeProgress], window: float
    ) -> dict[str, float]:
        """Messages a second of the source (under the empty name), of each function and of each sink."""
        now = self._clock()
        positions = {"": status.next, **{sink.sink: sink.watermark for sink in status.sinks}}
        functions = {node.node: node.delivered for node in told if node.kind == "function"}
        rates = kept.functions.rates(now, functions, window)
        rates |= kept.positions.rates(now, positions, _RATE_WINDOW)
        return rates if status.running else {}

    def _sample_all(self) -> None:
        """Note the numbers of this second for the charts."""
        now = self._clock()
        with self._lock:
            for name, kept in self._kept.items():
                if kept.status is None or now - kept.sampled < _SAMPLE:
                    continue
                kept.sampled = now
                rate = kept.view.get("rate", 0.0)
                values = {"read": rate if isinstance(rate, float) else 0.0}
                nodes = kept.view.get("nodes")
                for node in nodes if isinstance(nodes, list) else ():
                    if node["kind"] == "sink":
                        values[f"rate {node['name']}"] = float(node["rate"])
                        values[f"lag {node['name']}"] = float(node["lag"])
                self.history.add(name, time.time(), values)

    def _forget_others(self, names: set[str]) -> None:
        with self._lock:
            gone = [name for name in self._kept if name not in names]
            for name in gone:
                del self._kept[name]
            self.history.forget_others(names)
        if gone:
            self._tell(set(gone))

    def _set_problem(self, problem: str | None) -> None:
        if problem != self.problem:
            self.problem = problem
            self._tell({""})

    def _set_round(self, at: tuple[int, int] | None) -> None:
        if at != self._round:
            self._round = at
            self._tell({""})

    def _tell(self, names: set[str]) -> None:
        with self._lock:
            subscribers = list(self._subscribers)
        for subscriber in subscribers:
            subscriber.tell(names)
