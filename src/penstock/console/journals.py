"""Journals, brokers and stores for the page: what is listed, what it weighs, who has it, and what can be done to it.

Names, routes and replicas of all journals cost one call. Sizes and rates cost two calls a journal, so they are asked
for those that a page shows only; a rate is what a journal has grown since the page asked before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from itertools import islice

import msgspec

from penstock.base.errors import PenstockError, UsageError
from penstock.base.secrets import mask
from penstock.console.actions import Outcome, Plan, Wish
from penstock.console.answers import masked
from penstock.console.cluster import Cluster
from penstock.console.reaching import Reaching
from penstock.console.remembered import Remembered
from penstock.console.views import Json
from penstock.journal import check, upkeep
from penstock.journal.client import Client
from penstock.journal.fragment import Fragment
from penstock.journal.labels import values_of
from penstock.journal.protocol import ListResponse, ProcessSpec
from penstock.journal.specs_fields import plain
from penstock.log import audit
from penstock.log import upkeep as kept
from penstock.log.journals import KIND_LABEL, PIPELINE_LABEL
from penstock.pipeline.clock import now_us
from penstock.pipeline.operations import Directory

PAGE = 50
_MOST_FRAGMENTS = 500
_COUNTED = 1000
"""Of its fragments, for a list: as many as come with one answer of a broker."""
_MOST_STORES = 20
_HEALTHY_SECONDS = 30.0
_REMEMBERED = 5000
_MOST_DEEDS = 20
_NO_LIST: Json = {"rows": [], "found": 0, "total": 0, "from": 0, "page": PAGE, "most_fragments": _COUNTED}
_NO_HEALTH: Json = {
    "cluster": None,
    "brokers": [],
    "journals": 0,
    "short": [],
    "stores": [],
    "more_stores": 0,
    "keyspace": None,
}
_NOT_SUSPENDED = "Not suspended: content is not in a store yet, or in use."


class JournalQuestions:
    """May be used by several threads."""

    def __init__(self, reaching: Reaching, cluster: Cluster | None = None) -> None:
        self._reaching = reaching
        self._cluster = cluster
        self._heads: dict[str, tuple[float, int]] = {}
        self._stores: dict[str, tuple[float, str]] = {}
        self._healthy, self._listed = Remembered(reaching, _NO_HEALTH), Remembered(reaching, _NO_LIST)
        self._lock = threading.Lock()

    def list(self, asked: Mapping[str, str]) -> Json:
        """A page of the journals whose names hold `find`, from number `from` on."""
        find, start = asked.get("find", "").casefold(), int(asked.get("from") or 0)
        return self._listed.get(lambda directory: self._list(directory, find, start), (find, start))

    def _list(self, directory: Directory, find: str, start: int) -> Json:
        everything = directory.client.list()
        found = [one for one in everything if find in one.spec.name.casefold()]
        brokers = _brokers(everything)
        return {
            "rows": [self._row(directory.client, one, len(brokers)) for one in found[start : start + PAGE]],
            "found": len(found),
            "total": len(everything),
            "from": start,
            "page": PAGE,
            "most_fragments": _COUNTED,
        }

    def detail(self, journal: str) -> Json:
        """One journal: its spec, who has it, its fragments and what is wrong with them."""
        with self._reaching.looking() as directory:
            client, found = directory.client, upkeep.named(directory.client, journal)
            if found is None:
                raise UsageError(f"there is no journal '{journal}'")
            history = audit.told(client, _MOST_DEEDS, journal)
            row = self._row(client, found, len(_brokers(client.list())))
            status = self._cluster.journal(journal) if self._cluster else None
            fragments: list[Fragment] = []
            problem = None
            head = 0
            try:
                if not upkeep.without_brokers(found):
                    client.begin(journal)
                    answer = client.metadata(journal)
                    head = answer.write_head
                    fragments = [Fragment.from_proto(one.spec) for one in client.fragments(journal)]
            except PenstockError as error:
                problem = mask(error.message)
        faults = check.layout(fragments, head) if fragments else []
        return {
            **row,
            "state": status.state if status else None,
            "replicas": msgspec.to_builtins(status.replicas) if status else [],
            "spec": masked(plain(found.spec)),
            "history": masked(msgspec.to_builtins(history)),
            "head": head,
            "problem": problem,
            "fragment_count": len(fragments),
            "fragments": [
                {
                    "begin": one.begin,
                    "end": one.end,
                    "store": mask(one.backing_store) or None,
                    "codec": one.codec.name,
                    "stored": one.mod_time or None,
                    "sha1": one.sum.hex(),
                }
                for one in fragments[-_MOST_FRAGMENTS:]
            ],
            "faults": [
                {"fault": str(one.fault), "begin": one.begin, "end": one.end, "text": one.text}
                for one in faults
            ],
        }

    def health(self) -> Json:
        """The brokers, the key space and the stores."""
        return self._healthy.get(self._ask_health)

    def _ask_health(self, directory: Directory) -> Json:
        client, everything = directory.client, directory.client.list()
        stores = sorted({url for one in everything for url in one.spec.fragment.stores})
        served = next((one for one in everything if not upkeep.without_brokers(one)), None)
        header = client.metadata(served.spec.name).header if served else None
        health = [{"store": mask(url), "problem": self._health(client, url)} for url in stores[:_MOST_STORES]]
        brokers = _brokers(everything)
        return {
            "cluster": self._cluster.told() if self._cluster else None,
            "brokers": brokers,
            "journals": len(everything),
            "short": [one.spec.name for one in everything if not _whole(one, len(brokers))][:20],
            "stores": health,
            "more_stores": max(0, len(stores) - _MOST_STORES),
            "keyspace": {
                "answered_by": _process(header.process_id),
                "revision": header.etcd.revision,
                "cluster": f"{header.etcd.cluster_id:x}",
                "term": header.etcd.raft_term,
            }
            if header is not None
            else None,
        }

    def plan(self, wish: Wish) -> Plan:
        """What suspending a journal, or resetting its write head, would do."""
        with self._reaching.looking() as directory:
            journal = upkeep.named(directory.client, wish.sink)
            if journal is None:
                raise UsageError(f"there is no journal '{wish.sink}'")
            extent = None if upkeep.without_brokers(journal) else _extent(directory.client, wish.sink)
        options = self._reaching.options
        if wish.action == "suspend":
            return _plan_suspend(wish.sink, journal, options)
        if wish.action == "reset-head":
            return _plan_reset(wish.sink, extent, options)
        raise UsageError(f"there is no action '{wish.action}' on a journal")

    def carry_out(self, wish: Wish, who: str) -> Outcome:
        with self._reaching.looking() as directory:
            client = directory.client
            journal = upkeep.named(client, wish.sink)
            if journal is None:
                raise UsageError(f"there is no journal '{wish.sink}'")
            if wish.action == "suspend":
                level, unrecorded = kept.suspend(client, journal, who, now_us(), force=False)
                done = level != "NONE"
                told = f"{wish.sink} is suspended ({level})." if done else _NOT_SUSPENDED
            elif wish.action == "reset-head":
                reset, unrecorded = kept.reset_head(client, journal, who, now_us())
                done, told = reset.outcome == "reset", f"{wish.sink}: {reset.words}"
            else:
                raise UsageError(f"there is no action '{wish.action}' on a journal")
        self._healthy.forget()
        self._listed.forget()
        return Outcome(done, [line for line in (told, unrecorded) if line])

    def _row(self, client: Client, journal: ListResponse.Journal, brokers: int) -> Json:
        name, route = journal.spec.name, journal.route
        members = [_process(member) for member in route.members]
        row: Json = {
            "name": name,
            "kind": " ".join(values_of(journal.spec.labels, KIND_LABEL)) or None,
            "pipeline": " ".join(values_of(journal.spec.labels, PIPELINE_LABEL)) or None,
            "replication": journal.spec.replication,
            "primary": members[route.primary] if 0 <= route.primary < len(members) else None,
            "members": members,
            "consistent": _whole(journal, brokers),
            "suspended": upkeep.level(journal),
            "stores": [mask(url) for url in journal.spec.fragment.stores],
            "bytes": None,
            "head": None,
            "fragments": None,
            "rate": None,
            "problem": None,
        }
        if upkeep.without_brokers(journal):
            return {**row, "bytes": 0, "fragments": 0}
        try:
            begin, head, fragments = _extent(client, name)
        except PenstockError as error:
            return {**row, "problem": mask(error.message)}
        size = {"bytes": head - begin, "head": head, "fragments": fragments}
        return {**row, **size, "rate": self._rate(name, head)}

    def _rate(self, journal: str, head: int) -> float | None:
        now = time.monotonic()
        with self._lock:
            before = self._heads.get(journal)
            if before is None or now - before[0] > 1.0:
                self._heads.pop(journal, None)
                self._heads[journal] = (now, head)
            while len(self._heads) > _REMEMBERED:
                del self._heads[next(iter(self._heads))]
        return (head - before[1]) / (now - before[0]) if before is not None and now > before[0] else None

    def _health(self, client: Client, store: str) -> str | None:
        now = time.monotonic()
        with self._lock:
            known = self._stores.get(store)
        if known is None or now - known[0] > _HEALTHY_SECONDS:
            try:
                known = (now, client.store_health(store))
            except PenstockError as error:
                known = (now, error.message)
            with self._lock:
                self._stores[store] = known
        return mask(known[1]) or None


def _extent(client: Client, journal: str) -> tuple[int, int, int]:
    """Where it begins, where it ends, and how many fragments it has; of many, those that one answer holds."""
    head = client.head(journal)
    fragments = list(islice(client.fragments(journal), _COUNTED))
    return (fragments[0].spec.begin if fragments else head), head, len(fragments)


def _whole(journal: ListResponse.Journal, brokers: int) -> bool:
    """Whether as many brokers have it as its spec wants and there are, and one of them takes appends."""
    if journal.spec.suspend.level:
        return True
    return journal.route.primary >= 0 and len(journal.route.members) >= min(journal.spec.replication, brokers)


def _brokers(journals: list[ListResponse.Journal]) -> list[Json]:
    found: dict[str, dict[str, int]] = {}
    endpoints: dict[str, str] = {}
    for journal in journals:
        for at, member in enumerate(journal.route.members):
            counts = found.setdefault(_process(member), {"primary": 0, "replica": 0})
            counts["primary" if at == journal.route.primary else "replica"] += 1
            if at < len(journal.route.endpoints):
                endpoints[_process(member)] = journal.route.endpoints[at]
    return [
        {"name": name, **counts, "endpoint": endpoints.get(name)} for name, counts in sorted(found.items())
    ]


def _process(process: ProcessSpec.ID) -> str:
    return f"{process.zone}/{process.suffix}"


def _plan_suspend(name: str, journal: ListResponse.Journal, options: str) -> Plan:
    level = upkeep.level(journal)
    return Plan(
        f"Suspend {name}",
        "Suspend",
        [
            "Brokers put the journal aside: if all of its content is in a store, one replica stays; "
            "if it is empty, none.",
            "Nothing is lost, and reading goes on. The next append brings it back by itself.",
            "If some of its content is not in a store yet, nothing changes.",
        ],
        f"penstock journals suspend -l name={name}{options}",
        reason=None if level == "NONE" else f"It is suspended already ({level}).",
    )


def _plan_reset(name: str, extent: tuple[int, int, int] | None, options: str) -> Plan:
    where = f" Its write head is {extent[1]} now." if extent else ""
    return Plan(
        f"Reset the write head of {name}",
        "Reset the head",
        [
            "For disasters only: all replicas of the journal were lost, and appends fail, since nobody can tell "
            f"whether the store has everything. This says that it has.{where}",
            "What was acknowledged but had not reached the store is gone for good.",
            "Registers come back empty, so owners of the journal (a run, say) stop and tell.",
            "If appends work, there is nothing to reset.",
        ],
        f"penstock journals reset-head -l name={name}{options}",
        danger=True,
        reason="It is suspended and holds nothing." if extent is None else None,
    )
