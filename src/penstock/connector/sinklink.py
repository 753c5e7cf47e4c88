"""A connection to a sink: the coordinator's machine (`twopc.py`) and a socket, blocking, with a limit on every wait.

Whatever the network does is an `AwayError`, so that callers try again later; what the sink says against us is a
`SinkError`. A link is used by one thread and ends with the first error.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Final

from penstock.base.errors import AwayError
from penstock.base.texts import one_line
from penstock.connector.framing import Splitter
from penstock.connector.twopc import Coordinator, Event, Listed, Redirected, SinkError, Step, Vote, Who

ANSWER_LIMIT: Final = 16 << 20
"""Bytes that one frame of a sink may have."""
_JOIN: Final = 64 << 10


class SinkLink:
    """Connected and greeted once it is made; `listed` is what the sink told then."""

    def __init__(self, address: tuple[str, int], who: Who, offset: int, timeout: float) -> None:
        self.machine = Coordinator(who, offset)
        self._place = f"the sink at {address[0]}:{address[1]}"
        self._splitter = Splitter(ANSWER_LIMIT)
        self._waiting: list[memoryview] = []
        try:
            self._socket = socket.create_connection(address, timeout)
        except OSError as error:
            raise AwayError(f"{self._place} does not answer: {error.strerror or error}") from None
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._send(self.machine.greeting())
            self.listed = self._wait_for_list()
        except BaseException:
            self.close()
            raise

    def write(self, body: bytes | memoryview) -> None:
        """Send data. Blocks while the sink does not keep up."""
        head = self.machine.head(len(body))
        if len(body) < _JOIN:
            self._send(head + body)
        else:
            self._send(head)
            self._send(body)

    def vote(self, transaction: str, where: tuple[int, int] | None = None) -> bool:
        """Ask for the vote and wait for it."""
        self._send(self.machine.phase1(transaction, where))
        event = self._wait()
        assert isinstance(event, Vote)
        return event.commit

    def tell(self, decisions: Iterable[tuple[str, bool]]) -> None:
        """Tell decisions, and wait until the sink has carried them out: it lists them no more then."""
        told = list(decisions)
        for transaction, commit in told:
            self._send(self.machine.phase2(transaction, commit))
        if told:
            self._send(self.machine.list_again())
            self.listed = self._wait_for_list()
            if left := {transaction for transaction, _ in told} & set(self.listed.transactions):
                raise SinkError(
                    f"{self._place} does not carry out the decision on {one_line(min(left), 200)}"
                )

    def leave(self, workers: Sequence[str]) -> None:
        """Tell who has left, and wait until that was heard."""
        self._send(self.machine.workers_left(workers))
        self._send(self.machine.list_again())
        self.listed = self._wait_for_list()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()

    def __enter__(self) -> SinkLink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wait_for_list(self) -> Listed:
        event = self._wait()
        assert isinstance(event, Listed)
        return event

    def _send(self, data: bytes | memoryview) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            self._told_before()  # an ERROR that came first says more than a broken pipe
            raise self._away(error) from None

    def _told_before(self) -> None:
        self._socket.settimeout(1.0)
        try:
            while True:
                self._wait()
        except AwayError:
            if self.machine.step is Step.ENDED:  # the sink's own words, not the network's
                raise

    def _wait(self) -> Event:
        while True:
            while self._waiting:
                event = self.machine.receive(self._waiting.pop(0))
                if isinstance(event, Redirected):
                    raise AwayError(f"{self._place} asks to be connected to again")
                if event is not None:
                    return event
            try:
                data = self._socket.recv(64 << 10)
            except OSError as error:
                raise self._away(error) from None
            if not data:
                raise AwayError(f"{self._place} has closed the connection")
            self._waiting += self._splitter.feed(data)
            if self._splitter.fault is not None and not self._waiting:
                raise SinkError(f"{self._place} sent {self._splitter.fault.what}")

    def _away(self, error: OSError) -> AwayError:
        return AwayError(f"{self._place} does not answer: {error.strerror or error}")
