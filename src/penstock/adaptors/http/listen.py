"""The listening half of `http` as a source: documents that others post, answered once the log has them.

At least once: a sender that hears anything but 200, or nothing, sends again. With an id in the header of the setting
`delivery_id`, exactly once as long as the id is remembered: those of the newest posts of each namespace are in its
position, in the log with the messages, so a post that is sent again after a crash is told apart (`http.inbox`). The
documents of one post are logged together, or none of them.

What is posted has no end and no copy, so the source always follows. While the log is full, or a batch is being made
durable, posts wait, in memory that is limited; those that wait too long, or find no room, are to be sent again.
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from ssl import SSLContext
from typing import TYPE_CHECKING

from penstock.adaptors.away import os_error
from penstock.adaptors.base import Bad, Batch, Finding, Found, Inspection, Source, refuse_conditions
from penstock.adaptors.documents import key_of
from penstock.adaptors.eventloop import EventLoop
from penstock.adaptors.http import Http
from penstock.adaptors.http.bodies import pieces
from penstock.adaptors.http.inbox import Inbox, Post, seen
from penstock.adaptors.needs import need
from penstock.base.errors import AwayError
from penstock.base.webpages import is_loopback
from penstock.log.message import Message, Mode, Op, Resume

if TYPE_CHECKING:
    from penstock.adaptors.http.endpoint import Endpoint

MOST_BYTES = 1024 * 1024
MOST_MESSAGES = 10_000
"""What makes a batch; a post is never cut, so it may be larger."""

WAIT = 0.1
SETTLE = 0.5
"""Seconds that posts under way have to get into the log when the source is told to stop."""

STOP = 10.0
"""Seconds for the endpoint to stop; it takes less than one."""

_BACKLOG = 512
_KEPT = 1024 * 1024
_SHOWN = 100


class ListenSource(Source):
    """Takes posts at one address."""

    def __init__(self, settings: Http) -> None:
        self._settings = settings
        self._inbox: Inbox | None = None
        self._endpoint: Endpoint | None = None
        self._lock = threading.Lock()
        self._given: deque[tuple[Batch, Sequence[Post]]] = deque()
        """Batches that are not logged yet, with what is in them."""

    def namespaces(self) -> Sequence[str]:
        """Those that the settings name. Listens for a moment, to see that it can."""
        self._tls()
        self._listener().close()
        return self._named()

    def inspect(self, accept: Callable[[str], bool]) -> Inspection:
        """Where the address is in use, that may be by a run of this very pipeline."""
        findings = list(self._open_doors())
        try:
            self.namespaces()
        except AwayError as error:
            findings.append(Finding(f"{error.message}; so it is while this pipeline runs"))
        return Inspection([Found(ns, None, self._settings.key) for ns in self._named()], findings)

    def gauges(self) -> Mapping[str, float]:
        inbox, endpoint = self._inbox, self._endpoint
        if inbox is None or endpoint is None:
            return {}
        return {
            "waiting_posts": float(inbox.waiting),
            "waiting_bytes": float(endpoint.held),
            "connections": float(endpoint.connections),
        }

    def logged(self, batch: Batch) -> None:
        inbox = self._inbox
        with self._lock:
            if inbox is None or not any(one is batch for one, _ in self._given):
                return
            while True:
                one, posts = self._given.popleft()
                inbox.logged(posts)
                if one is batch:
                    return

    def read(
        self, accept: Callable[[str], bool], resume: Mapping[str, Resume], stop: threading.Event
    ) -> Iterator[Batch]:
        refuse_conditions("http", accept, resume)
        known = {ns: one for ns, one in resume.items() if accept(ns)}
        begun = {ns for ns, one in known.items() if one.mode is not Mode.COPY}
        inbox = Inbox(self._settings.remember, {ns: one.position or {} for ns, one in known.items()})
        with self._lock:
            self._inbox, self._given = inbox, deque()
        with self._serving(inbox, accept) as endpoint:
            new, posts = {*known, *filter(accept, self._named())} - begun, list[Post]()
            while True:
                if new:  # nothing is copied: whatever comes is behind the end of it
                    yield Batch(positions={ns: inbox.position(ns) for ns in new}, completed=sorted(new))
                    begun |= new
                if posts:
                    yield self._batch(inbox, posts)
                if stop.is_set():
                    return
                if endpoint.failure is not None:
                    raise AwayError(f"{self._settings.place} accepts no more: {endpoint.failure!r}")
                posts = inbox.take(MOST_BYTES, MOST_MESSAGES, WAIT)
                new = {post.ns for post in posts} - begun

    def _batch(self, inbox: Inbox, posts: Sequence[Post]) -> Batch:
        batch = Batch(
            [message for post in posts for message in post.messages],
            {ns: inbox.position(ns, posts) for ns in {post.ns for post in posts}},
            bad=[bad for post in posts for bad in post.bad],
        )
        with self._lock:
            self._given.append((batch, posts))
        return batch

    @contextmanager
    def _serving(self, inbox: Inbox, accept: Callable[[str], bool]) -> Iterator[Endpoint]:
        """Listen for the time of the block. At its end, what was given is waited for, the rest is to be sent again."""
        need("aiohttp", "http")
        from penstock.adaptors.http.endpoint import Endpoint

        tls = self._tls()
        endpoint = Endpoint(self._settings, self._listener(), tls, inbox, accept, self._post)
        loop = EventLoop("http listen")
        try:
            loop.run(endpoint.start(), self._settings.timeout)
            self._endpoint = endpoint
            yield endpoint
        finally:
            self._endpoint = None
            inbox.close(SETTLE)
            try:
                loop.run(endpoint.stop(), STOP)
            finally:
                loop.close()

    def _post(self, ns: str, id: str, lines: bool, body: bytes) -> Post:
        """A post from a body; one that is to be refused is."""
        from penstock.journal.gateway_http import HttpError

        settings, messages, bad = self._settings, list[Message](), list[Bad]()
        now, key = time.time_ns() // 1000, tuple(settings.key)
        name = id[:_SHOWN] or sha256(body).hexdigest()[:24]
        for piece in pieces(body, lines=lines, key=key):
            if piece.wrong is None:
                made = key_of(piece.text, key) if key else None
                messages.append(Message(ns, piece.text, Op.INSERT, now, Mode.SYNC, made))
            elif settings.bad_lines == "refuse":
                raise HttpError(400, f"{piece.place}: {piece.wrong}")
            else:
                place = f"post {name} to {ns}, {piece.place}"
                bad.append(Bad(ns, place, piece.wrong, piece.text[:_KEPT]))
        return Post(ns, messages, bad, len(body), seen(id, body) if id else None)

    def _named(self) -> Sequence[str]:
        return self._settings.namespaces if "{ns}" in self._settings.path else [self._settings.ns]

    def _listener(self) -> socket.socket:
        host, port = self._settings.address
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            return socket.create_server((host, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            what = f"cannot listen on {self._settings.listen}"
            if error.errno == errno.EADDRINUSE:  # by a run that is about to end, as a rule
                raise AwayError(f"{what}: {error.strerror}") from None
            raise os_error(what, error) from None

    def _tls(self) -> SSLContext | None:
        settings = self._settings
        if not settings.certificate:
            return None
        from penstock.journal.tls import ServerTls

        files = (Path(settings.certificate), Path(settings.private_key))
        return ServerTls(*files, Path(settings.ca) if settings.ca else None).ssl_context()

    def _open_doors(self) -> Iterator[Finding]:
        settings = self._settings
        if is_loopback(settings.address[0]):
            return
        if not (settings.token or settings.secret or settings.ca):
            yield Finding(
                f"whoever reaches {settings.listen} can post", "set 'token', or 'secret' for signed bodies"
            )
        elif not settings.certificate:
            yield Finding(
                f"what is posted to {settings.listen} is not encrypted, nor is the token",
                "set 'certificate' and 'private_key', or have a proxy in front speak https",
            )
