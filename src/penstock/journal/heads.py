"""Where many journals end, in one answer (`penstock.Local/Heads`): for whoever watches them and reads only what grows.

The write head of a journal is its primary's to tell. This broker tells those of its own from memory, and has the
other primaries tell theirs, if they do so soon. What is not known at the moment is left out.

Which journals match, and whose they are, is worked out once a revision of the key space, and of journals that have not
changed since it is remembered: to ask again and again costs a look at each head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from penstock.journal import labels, listing
from penstock.journal.claims import Claims
from penstock.journal.protocol import Head, HeadsRequest, HeadsResponse, JournalSpec, LabelSelector, Route
from penstock.journal.replica import Replica
from penstock.journal.resolver import KeySpace, Resolver

CHUNK = 1000
"""Heads in one message."""
_REMEMBERED = 8
"""Questions of which it is remembered what they match."""


@dataclass(frozen=True, slots=True)
class Matching:
    """What a caller may know of the journals that it asks for, at one revision."""

    ours: tuple[str, ...]
    """Those that we are the primary of, by name."""
    theirs: Mapping[str, frozenset[str]]
    """The others, by the endpoint of their primary."""


class Heads:
    """Of one broker. `replica_of` has a journal's replica, if it is there."""

    def __init__(
        self, keyspace: KeySpace, resolver: Resolver, replica_of: Callable[[str], Replica | None]
    ) -> None:
        self._keyspace = keyspace
        self._resolver = resolver
        self._replica_of = replica_of
        self._questions: dict[tuple[bytes, bytes], _Question] = {}

    def matching(self, request: HeadsRequest, claims: Claims) -> Matching:
        key = (request.selector.SerializeToString(), claims.selector.SerializeToString())
        question = self._questions.pop(key, None) or _Question(request.selector, claims.selector)
        self._questions[key] = question  # the last of all: whoever asks no more is the first to be forgotten
        while len(self._questions) > _REMEMBERED:
            del self._questions[next(iter(self._questions))]
        if question.revision != self._keyspace.revision:
            question.matching = self._divided(question.matched(self._keyspace))
            question.revision = self._keyspace.revision
        return question.matching

    def _divided(self, journals: Iterable[str]) -> Matching:
        ours: list[str] = []
        theirs: dict[str, set[str]] = {}
        for journal in journals:
            route = self._resolver.route(journal)
            if route.primary < 0:
                continue
            if self._leads(route):
                ours.append(journal)
            elif endpoint := route.endpoints[route.primary]:
                theirs.setdefault(endpoint, set()).add(journal)
        return Matching(tuple(ours), {endpoint: frozenset(names) for endpoint, names in theirs.items()})

    def _leads(self, route: Route) -> bool:
        primary = route.members[route.primary]
        return (primary.zone, primary.suffix) == self._resolver.identity.member

    def known(self, journals: Iterable[str]) -> Iterator[Head]:
        """The heads of journals of ours, as far as we know them."""
        for journal in journals:
            replica = self._replica_of(journal)
            if replica is not None and _knows_its_end(replica):
                yield Head(journal=journal, write_head=replica.write_head)


def _knows_its_end(replica: Replica) -> bool:
    """Not before its stores have been listed, and all replicas have agreed; and what nobody may read has none."""
    return replica.listed and replica.local.in_sync and not replica.closed and not replica.is_write_only


class _Question:
    """What was asked before, by callers who may know as much."""

    def __init__(self, selector: LabelSelector, allowed: LabelSelector) -> None:
        self._selector, self._allowed = labels.for_list(selector), labels.for_list(allowed)
        self._decided: dict[str, tuple[int, bool]] = {}
        """Of each journal, which revision of its spec was looked at, and whether it matches."""
        self.matching = Matching((), {})
        self.revision = -1
        """At which it was so."""

    def matched(self, keyspace: KeySpace) -> list[str]:
        """The journals that match now, by name."""
        before, self._decided = self._decided, {}
        for journal, entry in listing.candidates(self._selector, keyspace):
            known = before.get(journal)
            if known is None or known[0] != entry.mod_revision:
                known = (entry.mod_revision, self._matches(JournalSpec.FromString(entry.value)))
            self._decided[journal] = known
        return [journal for journal, (_, matches) in self._decided.items() if matches]

    def _matches(self, spec: JournalSpec) -> bool:
        named = labels.with_name(spec.labels, spec.name)
        return labels.match(self._selector, named) and labels.match(self._allowed, named)


def messages(heads: Iterable[Head]) -> Iterator[HeadsResponse]:
    """As many as it takes; none for nothing."""
    response = HeadsResponse()
    for head in heads:
        response.heads.append(head)
        if len(response.heads) == CHUNK:
            yield response
            response = HeadsResponse()
    if response.heads:
        yield response
