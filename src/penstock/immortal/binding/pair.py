"""A binding and the coordinator it starts for itself: they begin together and end together."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from penstock.immortal.binding.app import Immortal
from penstock.immortal.binding.ingress import Ingress
from penstock.immortal.binding.machine import Machine
from penstock.immortal.binding.shell import HOST, CoordinatorGoneError, Shell

_RANGE = range(12_000, 32_000)
"""Below the ports that systems give out by themselves: nobody gets one of these between a look and its use."""
_PORT_POLL = 0.5  # seconds
_ENDING = 10.0  # seconds


@dataclass(frozen=True)
class Plan:
    """How to run an immortal."""

    cls: type[Immortal]
    name: str
    upgrade_to: type[Immortal] | None = None
    http: tuple[str, int] | None = None
    token: str = ""


def free_ports(besides: Collection[int] = ()) -> tuple[int, int]:
    """Two ports of this machine at which nobody listens, nor is to: `besides` are wanted for something else."""
    found: list[int] = []
    while len(found) < 2:
        port = random.SystemRandom().choice(_RANGE)
        if port in besides or port in found:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            found.append(port)
    return found[0], found[1]


def coordinator_command(name: str, ports: tuple[int, int], place: str, more: Sequence[str]) -> list[str]:
    receive, send = (str(port) for port in ports)
    return [
        sys.executable, "-m", "penstock", "immortal", "serve", "--name", name, "--receive-port", receive,
        "--send-port", send, "--log", place, *more,
    ]  # fmt: skip


async def listening(ingress: Ingress, host: str, port: int, tell: Callable[[str], None]) -> None:
    """Take calls from outside until cancelled. A port that another one has is told once, and waited for.

    The primary before this one may have it for a moment, so it is no reason to end.
    """
    told = False
    shown = f"[{host}]" if ":" in host else host
    while True:
        try:
            await ingress.serve(host, port, lambda at: tell(f"HTTP on {shown}:{at}"))
        except OSError as error:
            if not told:
                why = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
                tell(f"cannot listen on {shown}:{port}, trying again: {why}")
            told = True
        await asyncio.sleep(_PORT_POLL)


def run(
    plan: Plan,
    ports: tuple[int, int],
    tell: Callable[[str], None],
    is_there: Callable[[], bool] = lambda: True,
) -> None:
    """Serve with the coordinator at these ports; always ends by raising."""
    machine = Machine(plan.cls, plan.name, now=time.time, upgrade_to=plan.upgrade_to)

    def primary(shell: Shell) -> asyncio.Task[None] | None:
        tell(f"{plan.name} is primary")
        if plan.http is None:
            return None
        ingress = Ingress(shell, token=plan.token)
        host, port = plan.http
        return asyncio.create_task(listening(ingress, host, port, tell), name="ingress")

    async def main() -> None:
        shell = Shell(machine, on_primary=primary)
        serving = asyncio.current_task()
        assert serving is not None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, serving.cancel)
        await shell.serve(*ports, is_there)

    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(main())


def run_pair(plan: Plan, place: str, more: Sequence[str], tell: Callable[[str], None]) -> None:
    """Start a coordinator, serve with it, and take it along at the end."""
    ports = free_ports([plan.http[1]] if plan.http is not None else [])
    coordinator = subprocess.Popen(
        coordinator_command(plan.name, ports, place, more), stdin=subprocess.DEVNULL
    )
    watch = os.getpid()
    try:
        run(plan, ports, tell, lambda: coordinator.poll() is None)
    except CoordinatorGoneError as gone:
        try:
            code = coordinator.wait(_ENDING)
        except subprocess.TimeoutExpired:
            raise gone from None  # it lives, and only our connection to it does not
        raise CoordinatorGoneError(
            f"the coordinator of '{plan.name}' ended with code {code}",
            hint="start the pair again; it recovers",
        ) from None
    finally:
        if os.getpid() == watch and coordinator.poll() is None:
            coordinator.terminate()
            try:
                coordinator.wait(_ENDING)
            except subprocess.TimeoutExpired:
                coordinator.kill()
                coordinator.wait()


def with_fixed_hashes(arguments: Sequence[str]) -> None:
    """Begin anew with the hashes of strings fixed, so that the order of a handler's own sets is the same in replay."""
    if "PYTHONHASHSEED" not in os.environ:
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        os.execve(sys.executable, [sys.executable, "-m", "penstock", *arguments], environment)
