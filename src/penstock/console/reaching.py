"""How the console reaches the journals: one connection, kept as long as it is good, and never in anybody's way.

A broker that is named, or the owner of the data directory (a run, a broker), is asked through one client that stays.
A data directory that nobody owns is opened by this process for the moment: while it is open, what is asked for comes
from it; after a moment without questions, or after a few seconds in any case, it is let go, so that a pipeline can
start at any time. Nothing can change in it while nobody owns it, so what was read stays true until somebody does:
`changed` tells.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from penstock.base.errors import InUseError, PenstockError
from penstock.journal.client import BrokerGoneError, Client
from penstock.journal.datadir import DataDir, Owner
from penstock.journal.embedded import EmbeddedBroker, address
from penstock.pipeline.editing import Editor, open_editor
from penstock.pipeline.operations import Directory

LINGER = 0.4
"""So long a data directory of nobody stays open after the last question."""
LONGEST = 2.0
"""And no longer than this, however many questions come: whoever wants to run waits for up to five seconds."""
BREATH = 0.15
"""So long it is left alone then."""
_PATIENCE = 4.0
_POLL = 0.05


class Reaching(Protocol):
    """A way to the journals, for any thread."""

    def looking(self) -> AbstractContextManager[Directory]:
        """The journals, to look into them."""
        ...

    def editing(self, who: str) -> AbstractContextManager[Editor]:
        """The journals, to change something; refused as the commands refuse it."""
        ...

    def idle(self) -> None:
        """To be called often: lets go of what is not used any more."""
        ...

    def changed(self) -> object:
        """A value that stays the same as long as nothing can have changed; None if anything may at any time."""
        ...

    def close(self) -> None: ...

    @property
    def place(self) -> str:
        """Where this is, for a person."""
        ...

    @property
    def exists(self) -> bool:
        """False as long as nothing was ever there."""
        ...

    @property
    def options(self) -> str:
        """What a command needs to be told to look at the same place."""
        ...


class BrokerPlace:
    """The journals of a broker that was named. `runs` is the data directory of the run that this is beside."""

    def __init__(
        self,
        client: Callable[[], AbstractContextManager[Client]],
        address: str,
        runs: Path | None = None,
    ) -> None:
        self._stack = ExitStack()
        self._client = self._stack.enter_context(client())
        self._address = address
        self._runs = runs

    @contextmanager
    def looking(self) -> Iterator[Directory]:
        yield Directory(self._client, runs=self._runs)

    @contextmanager
    def editing(self, who: str) -> Iterator[Editor]:
        yield Editor(Directory(self._client), who)

    def idle(self) -> None:
        """A client costs nothing while it is not used."""

    def changed(self) -> object:
        return None

    def close(self) -> None:
        self._stack.close()

    @property
    def place(self) -> str:
        return self._address

    @property
    def exists(self) -> bool:
        return True

    @property
    def options(self) -> str:
        return f" --broker {self._address}"


class DirectoryPlace:
    """The journals of a data directory, whoever owns it now."""

    def __init__(self, path: Path, options: str = "") -> None:
        self._directory = DataDir(path)
        self._options = options
        self._lock = threading.RLock()
        self._owner: Owner | None = None
        self._client: Client | None = None
        """Of the owner, if it is another one."""
        self._broker: EmbeddedBroker | None = None
        self._mine: Client | None = None
        self._users = 0
        self._closed = False
        self._opened = self._used = self._left = 0.0
        self._epoch, self._after_mine = 0, -1

    @property
    def place(self) -> str:
        return str(self._directory.path)

    @property
    def options(self) -> str:
        return self._options

    @property
    def exists(self) -> bool:
        return self._directory.exists

    @contextmanager
    def looking(self) -> Iterator[Directory]:
        self._directory.version()
        client, owner = self._taken()
        try:
            yield Directory(client, self._directory, owner)
        except BrokerGoneError:
            self._forget(client)
            raise
        finally:
            with self._lock:
                self._users -= 1
                self._used = time.monotonic()

    @contextmanager
    def editing(self, who: str) -> Iterator[Editor]:
        self._directory.version()
        self._let_go(wait=True)
        with open_editor(self._directory.path, who) as editor:
            yield editor

    def idle(self) -> None:
        now = time.monotonic()
        with self._lock:
            held = self._broker is not None
            due = now - self._used > LINGER or now - self._opened > LONGEST
            if held and due and not self._users:
                self._let_go()

    def changed(self) -> object:
        """Taking and leaving the lock are seen at its file; while somebody else has it, anything may change."""
        with self._lock:
            if self._broker is None:
                if self._directory.owner() is not None:
                    return None
                self._notice()
            return self._epoch

    def _notice(self) -> None:
        """Count another epoch if somebody else has had the directory since we let go of it."""
        at = self._lock_time()
        if at != self._after_mine:
            self._epoch += 1
            self._after_mine = at

    def settle(self) -> None:
        """Let go of the directory now; what was read is what `changed` tells from here on."""
        with self._lock:
            if not self._users:
                self._let_go()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._let_go()
            self._drop_client()

    def _taken(self) -> tuple[Client, Owner | None]:
        """A client that answers, and who owns the directory if that is somebody else. Counts as used."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            with self._lock:
                found = self._now(last=time.monotonic() > deadline)
                if found is not None:
                    self._users += 1
                    return found
            time.sleep(_POLL)

    def _now(self, *, last: bool) -> tuple[Client, Owner | None] | None:
        """What can be used at this moment; None if it is to be tried again."""
        if self._closed:
            raise PenstockError("the console is ending")
        if self._broker is not None:
            assert self._mine is not None
            worn = time.monotonic() - self._opened > LONGEST
            if worn and not last:
                if not self._users:
                    self._let_go()
                return None
            return self._mine, None
        owner = self._directory.owner()
        if owner is None:
            if time.monotonic() - self._left < BREATH and not last:
                return None
            return self._open()
        starting = not self._directory.socket.exists()
        if (owner.passing or starting) and not last:
            return None
        return self._through(owner)

    def _open(self) -> tuple[Client, Owner | None] | None:
        self._notice()
        try:
            self._broker = EmbeddedBroker(self._directory.path, create=False, patience=0.0, passing=True)
        except InUseError:
            return None  # somebody was faster
        self._drop_client()
        self._mine = Client(self._broker.address)
        self._opened = time.monotonic()
        return self._mine, None

    def _through(self, owner: Owner) -> tuple[Client, Owner | None]:
        if self._client is None or owner != self._owner:
            if not self._directory.socket.exists():
                raise PenstockError(
                    f"process {owner.pid} owns {self._directory.path} and does not serve its journals",
                    hint="it is starting, or its journals are at a broker: name that with --broker",
                )
            self._drop_client()
            self._client, self._owner = Client(address(self._directory)), owner
        return self._client, owner

    def _forget(self, client: Client) -> None:
        with self._lock:
            if client is self._client:
                self._drop_client()

    def _drop_client(self) -> None:
        """Others may be in the middle of a call: the connection goes with the last of them."""
        self._client, self._owner = None, None

    def _let_go(self, *, wait: bool = False) -> None:
        deadline = time.monotonic() + _PATIENCE
        while True:
            with self._lock:
                if not self._users or not wait or time.monotonic() > deadline:
                    broker, self._broker = self._broker, None
                    mine, self._mine = self._mine, None
                    if mine is not None:
                        mine.close()
                    if broker is not None:
                        broker.stop()
                        self._left = time.monotonic()
                        self._after_mine = self._lock_time()
                    return
            time.sleep(_POLL)

    def _lock_time(self) -> int:
        try:
            return (self._directory.path / "LOCK").stat().st_mtime_ns
        except FileNotFoundError:
            return 0
