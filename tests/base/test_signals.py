"""Signals that another thread than the main one was given: the handler runs all the same, and soon."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Queue
from types import FrameType

import pytest

from penstock.base.signals import Flag, next_of

NUMBER = signal.SIGUSR1


class Handled(Exception):  # noqa: N818 - it is no error
    """What the handler raises, as the one of SIGINT does."""


@contextmanager
def taken_elsewhere(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """The block gets the signal, but by way of a thread that does nothing else."""
    over = threading.Event()
    other = threading.Thread(target=over.wait, args=(60,), daemon=True)
    other.start()
    before = signal.signal(NUMBER, handler)
    assert other.ident is not None
    telling = threading.Timer(0.05, signal.pthread_kill, (other.ident, NUMBER))
    telling.start()
    try:
        yield
    finally:
        telling.join()
        over.set()
        other.join()
        signal.signal(NUMBER, before)


def raising(number: int, frame: FrameType | None) -> None:
    raise Handled


def test_who_waits_for_a_queue_is_interrupted() -> None:
    items: Queue[int] = Queue()
    with taken_elsewhere(raising), pytest.raises(Handled):
        next_of(items)


def test_what_the_queue_holds_comes_at_once_or_when_it_is_there() -> None:
    items: Queue[int] = Queue()
    items.put(1)
    assert next_of(items) == 1
    threading.Timer(0.05, items.put, (2,)).start()
    assert next_of(items) == 2


@pytest.mark.parametrize("seconds", [None, 60.0])
def test_a_flag_that_a_handler_sets_ends_a_wait(seconds: float | None) -> None:
    flag = Flag()
    with taken_elsewhere(lambda *_: flag.set()):
        assert flag.wait(seconds)
    assert flag.is_set()


def test_a_handler_may_set_the_flag_at_any_moment_of_a_wait() -> None:
    main = threading.main_thread().ident
    assert main is not None
    flags: list[Flag] = []
    before = signal.signal(NUMBER, lambda *_: flags[-1].set())
    try:
        for _ in range(300):
            flags.append(Flag())
            telling = threading.Timer(0.0005, signal.pthread_kill, (main, NUMBER))
            telling.start()
            while not flags[-1].wait(0.0001):
                pass
            telling.join()
    finally:
        signal.signal(NUMBER, before)


def test_a_nudge_ends_a_wait_and_sets_nothing() -> None:
    flag = Flag()
    flag.nudge()
    assert not flag.wait()
    threading.Timer(0.05, flag.nudge).start()
    assert not flag.wait()


def test_a_wait_has_an_end() -> None:
    began = time.monotonic()
    assert not Flag().wait(0.7)
    assert time.monotonic() - began >= 0.7
    assert not Flag().wait(0.0)


def test_every_thread_that_waits_sees_it_set() -> None:
    flag = Flag()
    seen: Queue[bool] = Queue()
    threads = [threading.Thread(target=lambda: seen.put(flag.wait(60))) for _ in range(3)]
    for thread in threads:
        thread.start()
    flag.set()
    assert [seen.get(timeout=30) for _ in threads] == [True] * 3
    for thread in threads:
        thread.join()
