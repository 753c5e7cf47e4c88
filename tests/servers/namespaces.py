"""Machines of their own, as far as the network goes: namespaces that two networks join, one of which can be cut.

    with namespaces("ab") as spaces:
        Popen([*spaces["a"].enter, "server"])       it listens on 0.0.0.0
        connect(spaces["a"].address)                the test, and whoever the test lets in, is always heard
        connect(spaces["a"].among_others)           the machines reach each other here ...
        spaces["a"].cut(); spaces["a"].heal()       ... unless one is cut off: nothing gets in or out, in silence

This takes root, and the program `ip`; where they are not to be had, the test is skipped, or in CI fails. Nothing of it
is left at the end, whatever went wrong.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress

from tests.servers.cache import missing

_GATE = 1
"""The last number of the test's own address in each network."""


class Namespace:
    """One machine. Its two interfaces end at bridges that the test is part of."""

    def __init__(self, tag: str, name: str, number: int, nets: tuple[str, str]) -> None:
        self._name = f"{tag}{name}"
        self._control, self._cable = f"{tag}c{name}", f"{tag}p{name}"
        """Our ends of the connections to the test, and to the others."""
        self.enter = ["ip", "netns", "exec", self._name]
        self.address, self.among_others = (f"{net}.{number}" for net in nets)
        self.gate, self.gate_among_others = (f"{net}.{_GATE}" for net in nets)
        """Where the test can be reached: always, and unless this machine is cut off."""
        self._bridges = f"{tag}c", f"{tag}p"

    def make(self) -> None:
        _ip("netns", "add", self._name)
        _ip("-n", self._name, "link", "set", "lo", "up")
        ends = (self._control, self.address), (self._cable, self.among_others)
        for at, (bridge, (cable, address)) in enumerate(zip(self._bridges, ends, strict=True)):
            inside = f"eth{at}"
            _ip("link", "add", cable, "type", "veth", "peer", "name", inside, "netns", self._name)
            _ip("link", "set", cable, "master", bridge, "up")
            _ip("-n", self._name, "address", "add", f"{address}/24", "dev", inside)
            _ip("-n", self._name, "link", "set", inside, "up")

    def cut(self) -> None:
        _ip("link", "set", self._cable, "down")

    def heal(self) -> None:
        _ip("link", "set", self._cable, "up")

    def remove(self) -> None:
        """All of it that there is: making it may have ended half-way.

        The cables first: a connection that could not be closed keeps the rest of the namespace for minutes.
        """
        for kind, name in (("link", self._control), ("link", self._cable), ("netns", self._name)):
            with suppress(subprocess.CalledProcessError):
                _ip(kind, "delete", name)


@contextmanager
def namespaces(names: str) -> Iterator[Mapping[str, Namespace]]:
    """One for each letter. What runs in them must have ended at the end."""
    if os.geteuid() or shutil.which("ip") is None:
        missing("network namespace", PermissionError("it takes root and the program ip"))
    tag, number = f"pn{random.randrange(1 << 16):04x}", _unused()
    nets = f"198.18.{number}", f"198.19.{number}"  # which no machine is really in: they are for tests
    with ExitStack() as ends:
        spaces = {name: Namespace(tag, name, 10 + at, nets) for at, name in enumerate(names)}
        try:
            for kind, net in zip("cp", nets, strict=True):
                bridge = f"{tag}{kind}"
                _ip("link", "add", bridge, "type", "bridge")
                ends.callback(_ip, "link", "delete", bridge)
                _ip("address", "add", f"{net}.{_GATE}/24", "dev", bridge)
                _ip("link", "set", bridge, "up")
            for space in spaces.values():
                ends.callback(space.remove)
                space.make()
        except subprocess.CalledProcessError as error:
            missing("network namespace", OSError(error.stderr.strip()))
        yield spaces


def _unused() -> int:
    """The number of networks that no other test on this machine has."""
    there = _ip("-4", "-oneline", "address")
    return random.choice([number for number in range(1, 255) if f" 198.18.{number}." not in there])


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=30).stdout
