"""A sink as somebody else has written it: what it tells in NOTIFY_ACK is what its process remembers.

It keeps the rules that Wallaroo's own test sink keeps, and dies of what that one dies of: a repeated offset, a
transaction that is committed at another offset than the data's, an ERROR. `memory` survives connections and is lost in
`restart`; a cut does not change it. Votes and bytes are in `stored`, which survives everything.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from penstock.connector import inner
from penstock.connector.frames import Frame, Hello, Message, Notify, NotifyAck, Ok, encode, frame_of
from penstock.connector.framing import Splitter


@dataclass
class Stored:
    """What is on the foreign sink's disk, of one worker."""

    content: bytes = b""
    committed: int = 0
    votes: dict[str, tuple[bool, int, int]] = field(default_factory=dict)


class ForeignSink:
    def __init__(self) -> None:
        self.stored = Stored()
        self.memory = 0
        self.died: list[str] = []
        self.hellos: list[Hello] = []
        self.cut_before_reply = self.cut_after_reply = False
        self.moods: list[bool] = []
        """Votes that it gives before it goes by what it holds."""
        self.server = socket.create_server(("127.0.0.1", 0))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.getsockname()[1]}"

    @contextmanager
    def serving(self) -> Iterator[ForeignSink]:
        """One connection after the other, as a single-threaded program does."""
        thread = threading.Thread(target=self._serve, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.server.shutdown(socket.SHUT_RDWR)
            self.server.close()
            thread.join(60)

    def restart(self) -> None:
        """Its process is another one: what was in memory is gone."""
        self.memory = 0

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self.server.accept()
            except OSError:
                return
            with peer:
                try:
                    self._session(peer)
                except (ConnectionError, AssertionError) as error:
                    if isinstance(error, AssertionError):
                        self.died.append(str(error))

    def _session(self, peer: socket.socket) -> None:
        splitter = Splitter()
        while data := peer.recv(1 << 16):
            for payload in splitter.feed(data):
                answer, goes_on = self._answer(frame_of(bytes(payload)))
                peer.sendall(answer)
                if not goes_on:
                    return

    def _answer(self, frame: Frame) -> tuple[bytes, bool]:
        match frame:
            case Hello():
                self.hellos.append(frame)
                kept = [end for commit, _, end in self.stored.votes.values() if commit]
                self.stored.content = self.stored.content[: max([self.stored.committed, *kept])]
                return encode(Ok(500)), True
            case Notify(stream=1):
                return encode(NotifyAck(True, 1, self.memory)), True
            case Message(stream=0):
                return self._controlled(inner.inner_of(memoryview(frame.body)))
            case Message(stream=1):
                assert frame.id == len(self.stored.content), (
                    f"byte {frame.id}, not {len(self.stored.content)}"
                )
                self.stored.content += bytes(frame.body)
                self.memory = len(self.stored.content)
                return b"", True
        raise AssertionError(f"{frame}")

    def _controlled(self, asked: inner.Inner) -> tuple[bytes, bool]:
        stored = self.stored
        match asked:
            case inner.ListUncommitted(rtag):
                return inner.encode_inner(inner.ReplyUncommitted(rtag, tuple(stored.votes))), True
            case inner.Phase1(transaction, ((1, start, end),)):
                held = start == stored.committed and end == len(stored.content)
                known = stored.votes.get(transaction, (held and (not self.moods or self.moods.pop(0)),))
                commit = known[0]
                stored.votes[transaction] = (commit, start, end)
                before, self.cut_before_reply = self.cut_before_reply, False
                after, self.cut_after_reply = self.cut_after_reply, False
                reply = inner.encode_inner(inner.Reply(transaction, commit))
                return b"" if before else reply, not (before or after)
            case inner.Phase2(transaction, commit) if transaction in stored.votes:
                voted, start, end = stored.votes.pop(transaction)
                if commit:
                    assert voted, "a commit against the vote"
                    assert end == len(stored.content), "a commit at another offset than the data's"
                    stored.committed = end
                else:
                    stored.content = stored.content[:start]
                    self.memory = start
                return b"", True
        raise AssertionError(f"{asked}")
