"""Clocks and chance are not for handlers: a call of one there is named at once.

While a machine serves, the functions of `time`, `random`, `secrets`, `uuid` and `os.urandom` are replaced by ones that
raise inside of a handler and are the real ones everywhere else. Types such as `datetime` cannot be changed: the code
of a class is searched for their clocks when the class is first served, and `watching` looks at every call that a
handler makes (slower; `penstock immortal debug` uses it). Logging in a handler is free to look at the clock.
"""

from __future__ import annotations

import datetime as dt
import dis
import os
import random
import secrets
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, ModuleType
from typing import Any

from penstock.immortal.binding.app import Immortal, Spec
from penstock.immortal.binding.errors import DeterminismError
from penstock.immortal.binding.methods import NOBODY, Method, current

_FUNCTIONS: dict[ModuleType, tuple[str, ...]] = {
    time: ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep"),
    random: (
        "random", "randint", "randrange", "choice", "choices", "sample", "shuffle", "uniform", "getrandbits", "gauss",
    ),
    secrets: ("token_bytes", "token_hex", "token_urlsafe", "randbelow", "choice"),
    uuid: ("uuid1", "uuid4"),
    os: ("urandom",),
}  # fmt: skip
_CLOCKS: dict[type, tuple[str, ...]] = {dt.datetime: ("now", "utcnow", "today"), dt.date: ("today",)}
_FREE = ("logging", "asyncio", "penstock.", "threading", "warnings", "traceback")
_HINTS = "clocks: self.now(), or pass the time in as an argument of an Impulse; chance: draw it outside, and pass it in"


def refusal(what: str, where: str) -> DeterminismError:
    return DeterminismError(
        f"{what} was called in a handler ({where}): a replay would get another value", hint=_HINTS
    )


def _guarded(real: Callable[..., Any], name: str) -> Callable[..., Any]:
    def guarded(*arguments: Any, **named: Any) -> Any:
        if current() is not NOBODY:
            frame = sys._getframe(1)
            if not str(frame.f_globals.get("__name__", "")).startswith(_FREE):
                raise refusal(name, f"{frame.f_code.co_filename}:{frame.f_lineno}")
        return real(*arguments, **named)

    guarded.__wrapped__ = real  # type: ignore[attr-defined]
    return guarded


@contextmanager
def guarding() -> Iterator[None]:
    """Replace the functions while a machine serves."""
    before = [(module, name, getattr(module, name)) for module, names in _FUNCTIONS.items() for name in names]
    for module, name, real in before:
        setattr(module, name, _guarded(real, f"{module.__name__}.{name}"))
    try:
        yield
    finally:
        for module, name, real in before:
            setattr(module, name, real)


def check_class(spec: Spec) -> None:
    """Refuse a class whose handlers use a clock or chance by their names."""
    for base in spec.cls.__mro__:
        if base in (Immortal, object):
            continue
        for name, member in base.__dict__.items():
            if isinstance(member, Method) or name == "on_first_start":
                function: Any = member.function if isinstance(member, Method) else member
                _check_code(function.__code__, function.__globals__)


def _check_code(code: CodeType, names: dict[str, Any]) -> None:
    found: object = None
    line = code.co_firstlineno
    for instruction in dis.get_instructions(code):
        line = instruction.starts_line or line
        if instruction.opname == "LOAD_GLOBAL":
            found = names.get(str(instruction.argval))
            _check_function(found, code, line)
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            attribute = str(instruction.argval)
            if isinstance(found, type) and attribute in _CLOCKS.get(found, ()):
                raise refusal(f"{found.__name__}.{attribute}", f"{code.co_filename}:{line}")
            found = getattr(found, attribute, None) if isinstance(found, ModuleType | type) else None
            _check_function(found, code, line)
        elif instruction.opname not in ("PUSH_NULL", "PRECALL", "CACHE", "EXTENDED_ARG"):
            found = None
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _check_code(constant, names)


def _check_function(found: object, code: CodeType, line: int) -> None:
    real = getattr(found, "__wrapped__", found)
    for module, attributes in _FUNCTIONS.items():
        for name in attributes:
            known = getattr(module, name)
            if real is not None and real is getattr(known, "__wrapped__", known):
                raise refusal(f"{module.__name__}.{name}", f"{code.co_filename}:{line}")


@contextmanager
def watching() -> Iterator[None]:
    """Look at every call of built-in code that a handler makes: finds clocks of types, too."""
    clocks = {(kind, name) for kind, names in _CLOCKS.items() for name in names}

    def look(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and current() is not NOBODY:
            owner = getattr(called, "__self__", None)
            if not isinstance(owner, type):
                return
            known = any(issubclass(owner, kind) and called.__name__ == name for kind, name in clocks)
            if known and not str(frame.f_globals.get("__name__", "")).startswith(_FREE):
                sys.setprofile(None)
                raise refusal(
                    f"{owner.__name__}.{called.__name__}", f"{frame.f_code.co_filename}:{frame.f_lineno}"
                )

    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)
