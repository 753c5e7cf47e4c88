"""Clocks and chance are not for handlers: a call of one there is named at once.

While a machine serves, or a log is run again, the functions of `time`, `random`, `secrets`, `uuid` and `os.urandom`,
and the clocks of `datetime`, are replaced by ones that raise inside of a handler, however deep, and are the real ones
everywhere else. A class whose handlers name one of them is refused before it handles anything. Logging in a handler is
free to look at the clock. A generator of random numbers that somebody else made and seeded is not seen here; what
comes of it is, when the output of a replay differs.
"""

from __future__ import annotations

import ctypes
import datetime as dt
import dis
import gc
import os
import random
import secrets
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from penstock.immortal.binding.app import Immortal, Spec
from penstock.immortal.binding.errors import DeterminismError
from penstock.immortal.binding.methods import NOBODY, Method, current

_FUNCTIONS: Mapping[ModuleType, tuple[str, ...]] = {
    time: (
        "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time",
        "process_time_ns", "thread_time", "thread_time_ns", "clock_gettime", "clock_gettime_ns", "sleep",
    ),
    random: tuple(name for name in random.__all__ if not name.endswith("Random")),
    secrets: ("token_bytes", "token_hex", "token_urlsafe", "randbelow", "randbits", "choice"),
    uuid: tuple(name for name in ("uuid1", "uuid4", "uuid6", "uuid7") if hasattr(uuid, name)),
    os: ("urandom", "getrandom"),
}  # fmt: skip
_IF_NOT_GIVEN: Mapping[Any, Mapping[str, int]] = {
    time: {"localtime": 0, "gmtime": 0, "ctime": 0, "asctime": 0, "strftime": 1},
    random.Random: {"seed": 1},
}
"""What looks at the clock, or at chance, unless it is given this argument."""
_METHODS: Mapping[type, tuple[str, ...]] = {random.SystemRandom: ("random", "getrandbits", "randbytes")}
_CLOCKS: Mapping[type, tuple[str, ...]] = {dt.datetime: ("now", "utcnow"), dt.date: ("today",)}
_FREE = ("logging", "asyncio", "penstock.", "threading", "warnings", "traceback")
_LIBRARY = str(Path(os.__file__).parent)
_THEMSELVES = tuple(module.__name__ for module in _FUNCTIONS)
_HINTS = "clocks: self.now(), or pass the time in as an argument of an Impulse; chance: draw it outside, and pass it in"


def refusal(what: str, where: str) -> DeterminismError:
    return DeterminismError(
        f"{what} was called in a handler ({where}): a replay would get another value", hint=_HINTS
    )


def _refuse_in_handlers(name: str) -> None:
    """To be called by what stands in for a clock: raises if a handler has called that."""
    if current() is not NOBODY:
        frame = sys._getframe(2)
        while frame.f_globals.get("__name__") in _THEMSELVES and frame.f_back is not None:
            frame = frame.f_back
        if str(frame.f_globals.get("__name__", "")).startswith(_FREE):
            return
        error = refusal(name, f"{frame.f_code.co_filename}:{frame.f_lineno}")
        if _is_of_others(frame.f_code.co_filename):
            DeterminismError.seen.error = None  # who catches it has perhaps nothing to do with the handler
        raise error


def _is_of_others(file: str) -> bool:
    """Code that came with Python, or was installed: it may run at any moment, to collect garbage for one."""
    return "-packages" in file or file.startswith(_LIBRARY)


def _guarded(real: Callable[..., Any], name: str, unless: int | None = None) -> Callable[..., Any]:
    def guarded(*arguments: Any, **named: Any) -> Any:
        if unless is None or len(arguments) <= unless or arguments[unless] is None:
            _refuse_in_handlers(name)
        return real(*arguments, **named)

    guarded.__wrapped__ = real  # type: ignore[attr-defined]
    return guarded


def _guarded_clock(real: Any, name: str) -> Any:
    def guarded(cls: type, *arguments: Any, **named: Any) -> Any:
        _refuse_in_handlers(f"{cls.__name__}.{name}")
        return real.__get__(None, cls)(*arguments, **named)

    return classmethod(guarded)


def _set_in_type(kind: type, name: str, value: object) -> None:
    """For types made in C, on which no attribute can be set: their dictionary takes one."""
    [inside] = gc.get_referents(kind.__dict__)
    inside[name] = value
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


@contextmanager
def _replaced(
    owner: Any, name: str, guarded: Any, put: Callable[[Any, str, Any], None] = setattr
) -> Iterator[None]:
    before = vars(owner)[name]
    put(owner, name, guarded)
    try:
        yield
    finally:
        put(owner, name, before)


def _stand_ins() -> Iterator[tuple[Any, str, Any]]:
    """Who has it, its name, and what stands in for it."""
    always: Mapping[Any, tuple[str, ...]] = {**_FUNCTIONS, **_METHODS}
    for owner, names in always.items():
        for name in names:
            yield owner, name, _guarded(getattr(owner, name), f"{owner.__name__}.{name}")
    for owner, given in _IF_NOT_GIVEN.items():
        for name, unless in given.items():
            yield owner, name, _guarded(getattr(owner, name), f"{owner.__name__}.{name}", unless)


def _imported_by_name(stand_ins: Mapping[int, Any]) -> Iterator[tuple[ModuleType, str, Any]]:
    """The same for the user's modules that have said `from time import time`; by what stands for what (its id)."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(module, ModuleType) or file is None or _is_of_others(file):
            continue
        if module.__name__.startswith(_FREE):
            continue
        for name, value in list(vars(module).items()):
            if id(value) in stand_ins:
                yield module, name, stand_ins[id(value)]


@contextmanager
def guarding() -> Iterator[None]:
    """Replace all of them for as long as handlers may run."""
    found = list(_stand_ins())
    by_id = {id(vars(owner)[name]): made for owner, name, made in found if isinstance(owner, ModuleType)}
    with ExitStack() as stack:
        for owner, name, made in (*found, *_imported_by_name(by_id)):
            stack.enter_context(_replaced(owner, name, made))
        for kind, names in _CLOCKS.items():
            for name in names:
                clock = _guarded_clock(vars(kind)[name], name)
                stack.enter_context(_replaced(kind, name, clock, _set_in_type))
        yield


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
    lines = dict(dis.findlinestarts(code))
    line = code.co_firstlineno
    for instruction in dis.get_instructions(code):
        line = lines.get(instruction.offset) or line
        if instruction.opname == "LOAD_GLOBAL":
            found = names.get(str(instruction.argval))
            _check_function(found, code, line)
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            attribute = str(instruction.argval)
            if isinstance(found, type) and _is_clock(found, attribute):
                raise refusal(f"{found.__name__}.{attribute}", f"{code.co_filename}:{line}")
            found = getattr(found, attribute, None) if isinstance(found, ModuleType | type) else None
            _check_function(found, code, line)
        elif instruction.opname not in ("PUSH_NULL", "PRECALL", "CACHE", "EXTENDED_ARG"):
            found = None
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _check_code(constant, names)


def _is_clock(kind: type, attribute: str) -> bool:
    return any(issubclass(kind, clock) and attribute in names for clock, names in _CLOCKS.items())


def _check_function(found: object, code: CodeType, line: int) -> None:
    real = getattr(found, "__wrapped__", found)
    for module, attributes in _FUNCTIONS.items():
        for name in attributes:
            known = getattr(module, name)
            if real is not None and real is getattr(known, "__wrapped__", known):
                raise refusal(f"{module.__name__}.{name}", f"{code.co_filename}:{line}")
