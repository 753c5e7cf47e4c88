"""The posts that wait for the log, between the endpoint that takes them in and the source that hands them on.

A post is *offered*, *taken* into a batch, and *logged*; whoever sent it hears of the last alone. Of posts with an id,
the newest of each namespace are remembered, which is what the position of a namespace is: `{"seen": [...]}`. One that
comes again is told apart by where the first one is: if it still waits, both wait for the same; if it is logged, there
is nothing to do. An id is kept as a digest, with one of the body: the same id with another body is no repetition.

Used from two threads, and knows of none of them.
"""

from __future__ import annotations

import base64
import hashlib
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import msgspec

from penstock.adaptors.base import Bad
from penstock.log.message import Message, Position

_ID, _BODY = 16, 8
"""Characters of the digests, each of six bits."""


class OtherBodyError(Exception):
    """The id is that of a post with another body."""


class ClosedError(Exception):
    """The inbox takes no more, or gave up what it had: nobody knows whether the log has it."""


@dataclass(frozen=True, slots=True, eq=False)
class Post:
    """One request. `done` has a result once the log has it."""

    ns: str
    messages: Sequence[Message]
    bad: Sequence[Bad]
    bytes: int
    seen: str | None
    """What is remembered of it, if it has an id."""
    done: Future[None] = field(default_factory=Future)


def seen(id: str, body: bytes) -> str:
    """What is remembered of a post."""
    return _digest(id.encode("utf-8", "surrogateescape"), _ID) + _digest(body, _BODY)


def _digest(content: bytes, size: int) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()[:size]


class Inbox:
    """One reading's posts."""

    def __init__(self, remember: int, positions: Mapping[str, Position]) -> None:
        self._remember = remember
        self._changed = threading.Condition()
        self._closed = False
        self._waiting: deque[Post] = deque()
        self._taken: set[Post] = set()
        self._under_way: dict[tuple[str, str], Post] = {}
        """Posts with an id that are not logged, by namespace and id."""
        self._seen: dict[str, OrderedDict[str, str]] = {}
        """Digests of bodies by those of ids, of posts that were taken: the newest of each namespace."""
        for ns, position in positions.items():
            known = msgspec.convert(position.get("seen", []), list[str])
            self._seen[ns] = OrderedDict((one[:_ID], one[_ID:]) for one in known[-remember:])

    @property
    def waiting(self) -> int:
        """Posts that are not logged."""
        return len(self._waiting) + len(self._taken)

    @property
    def closed(self) -> bool:
        return self._closed

    def namespaces(self) -> set[str]:
        """Those that something was posted to, and those that the log knew."""
        with self._changed:
            return set(self._seen) | {post.ns for post in self._waiting}

    def offer(self, post: Post) -> Post | None:
        """Have a post taken: tells which one to wait for, itself or an earlier one; None if the log has that."""
        with self._changed:
            if self._closed:
                raise ClosedError
            if post.seen is not None:
                id, body = post.seen[:_ID], post.seen[_ID:]
                before = self._under_way.get((post.ns, id))
                known = before.seen[_ID:] if before and before.seen else self._body_of(post.ns, id)
                if known is not None and known != body:
                    raise OtherBodyError
                if before is not None or known is not None:
                    return before
                self._under_way[post.ns, id] = post
            self._waiting.append(post)
            self._changed.notify_all()
            return post

    def withdraw(self, post: Post) -> None:
        """Nobody waits for the answer: forget the post, unless it was taken."""
        with self._changed:
            if post in self._waiting:
                self._waiting.remove(post)
                self._forget(post)
                post.done.set_exception(ClosedError())

    def take(self, bytes: int, messages: int, timeout: float) -> list[Post]:
        """Posts for one batch, about so large; none if none comes in time. A post is never cut."""
        taken: list[Post] = []
        with self._changed:
            if not self._waiting:
                self._changed.wait(timeout)
            while self._waiting and bytes > 0 and messages > 0:
                post = self._waiting.popleft()
                bytes, messages = bytes - post.bytes, messages - len(post.messages) - len(post.bad)
                taken.append(post)
            self._taken.update(taken)
        return taken

    def position(self, ns: str, posts: Sequence[Post] = ()) -> Position:
        """The position of a namespace, once these further posts are in the log."""
        with self._changed:
            known = self._seen.setdefault(ns, OrderedDict())
            for post in posts:
                if post.seen is not None and post.ns == ns:
                    known[post.seen[:_ID]] = post.seen[_ID:]
            while len(known) > self._remember:
                known.popitem(last=False)
            return {"seen": [id + body for id, body in known.items()]}

    def logged(self, posts: Sequence[Post]) -> None:
        with self._changed:
            for post in posts:
                self._taken.discard(post)
                self._forget(post)
                if not post.done.done():
                    post.done.set_result(None)
            self._changed.notify_all()

    def close(self, patience: float) -> None:
        """Take no more; wait for what was taken and is not logged; give up the rest."""
        deadline = time.monotonic() + patience
        with self._changed:
            self._closed = True
            self._give_up(self._waiting)
            self._waiting.clear()
            while self._taken and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            self._give_up(self._taken)

    def _body_of(self, ns: str, id: str) -> str | None:
        return self._seen[ns].get(id) if ns in self._seen else None

    def _give_up(self, posts: deque[Post] | set[Post]) -> None:
        for post in posts:
            self._forget(post)
            post.done.set_exception(ClosedError())

    def _forget(self, post: Post) -> None:
        if post.seen is not None:
            self._under_way.pop((post.ns, post.seen[:_ID]), None)
