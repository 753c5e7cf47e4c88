"""The files of a journal's spool, and who may see what is in them.

A broker that is alone shows what is durable. One among others shows what is certain to stay: while replicas find out
on what they agree (`withhold`), and what they do not all have yet, is kept from readers and from the stores. So is
what a crash left, until it has been compared with what others have (DESIGN, 10).
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from pathlib import Path
from typing import Protocol

from penstock.base.disk import Disk
from penstock.journal.fragment import Fragment
from penstock.journal.spoolfile import SpoolFile


class Observer(Protocol):
    """Who is told of a spool's progress."""

    def committed(self, fragment: Fragment, file: SpoolFile) -> None:
        """This much of the file is durable."""

    def completed(self, file: SpoolFile, *, by_synchronising: bool = False) -> None:
        """The file will grow no more; it holds a fragment that is not empty.

        If replicas closed it to agree with one that cannot continue it, that one waits for it to be in the store, and
        may be the primary.
        """

    def agreed(self) -> None:
        """All replicas agree on what there is."""


class SpoolFiles:
    """The file under construction, and complete ones that are held back."""

    __slots__ = (
        "_durables",
        "_file",
        "_held",
        "_observer",
        "_published",
        "gated",
        "holding",
        "quarantined",
        "told",
    )

    def __init__(self, observer: Observer) -> None:
        self.gated = False
        """Whether commits become visible by `publish` alone: others have to have them, too."""
        self.holding = False
        """Whether files that are complete stay with us: it is not known yet that nobody went another way."""
        self.told = False
        """Whether the primary, elsewhere, tells what every replica has (`confirm`)."""
        self.quarantined = False
        """Whether there is content that a crash left, which nobody has compared with that of others."""
        self._observer = observer
        self._file: SpoolFile | None = None
        self._held: list[SpoolFile] = []
        self._published = 0
        self._durables: deque[tuple[Fragment, SpoolFile]] = deque()
        """What we have on our disk, and are not yet told that every replica has."""

    @property
    @abstractmethod
    def end(self) -> int:
        """One past the last byte that was adopted."""

    @property
    def files(self) -> list[SpoolFile]:
        """All that are ours still, in order."""
        return [*self._held, self._file] if self._file is not None else list(self._held)

    @property
    def file(self) -> SpoolFile | None:
        """The one under construction, if there is one."""
        return self._file

    @property
    def path(self) -> Path | None:
        """Where that is."""
        return self._file.path if self._file is not None else None

    @property
    def unconfirmed(self) -> bool:
        """Whether something is kept from readers or stores."""
        return self.gated or bool(self._held)

    def withhold(self) -> None:
        """A synchronisation begins: until it has come to its end, nothing is certain to stay."""
        self.gated = self.holding = True

    def publish(self, fragment: Fragment, file: SpoolFile) -> None:
        """Let readers see this much, which every replica has."""
        if file is self._file:
            self._published = max(self._published, fragment.end)
            self._observer.committed(fragment, file)

    def confirm(self, offset: int) -> None:
        """Every replica has all below an offset on its disk: let readers see as much."""
        if self.holding and offset >= self.end:
            self.release(gated=True)
        last: tuple[Fragment, SpoolFile] | None = None
        while self._durables and self._durables[0][0].end <= offset:
            last = self._durables.popleft()
        if last is not None:
            self.publish(*last)

    def _made_durable(self, fragment: Fragment, file: SpoolFile) -> None:
        if not self.gated:
            self._observer.committed(fragment, file)
        elif self.told:
            self._durables.append((fragment, file))

    def release(self, *, gated: bool = False) -> None:
        """All agree on what we have: let it be read and stored. If `gated`, what is committed next is not so yet."""
        held, self._held = self._held, []
        self._durables.clear()
        for file in held:
            self._observer.committed(file.fragment, file)
        if self._file is not None:
            self._published = self._file.fragment.end
            if self._file.fragment.length:
                self._observer.committed(self._file.fragment, self._file)
        for file in held:
            self._observer.completed(file, by_synchronising=True)
        self.gated, self.holding, self.quarantined = gated, False, False

    def _hand_on(self, file: SpoolFile, disk: Disk) -> None:
        """Another file has taken its place."""
        file.park()
        if not file.fragment.length:
            disk.remove(file.path)
        elif self.holding:
            self._held.append(file)
        else:
            self._observer.completed(file)
