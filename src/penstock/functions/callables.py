"""A person's own function as a setting: checked when the pipeline file is read, named when it fails."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from pathlib import Path

from penstock.base.errors import UsageError


class Code:
    """An example that is Python text rather than a value: printed as it is."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def checked(what: str, function: object, argument: str, example: str) -> None:
    """Refuse what cannot be called with one argument, or would not answer at once."""
    hint = f"for example: {example}"
    if not callable(function):
        raise UsageError(f"{what}: expected a Python function, got {_shown(function)}", hint=hint)
    if isinstance(function, type) or getattr(function, "__module__", None) == "penstock.functions":
        raise UsageError(f"{what}: '{name_of(function)}' is not a function of {argument}", hint=hint)
    called = function if inspect.isroutine(function) else type(function).__call__
    if any(map(_answers_later, (function, called))):
        raise UsageError(f"{what}: '{name_of(function)}' is a coroutine or a generator", hint=hint)
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        raise UsageError(
            f"{what}: '{name_of(function)}' cannot be called with one argument, {argument}", hint=hint
        ) from None
    except ValueError:
        return  # a callable written in C tells nothing about itself


def name_of(function: object) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def told(error: BaseException, function: Callable[..., object]) -> str:
    """The error in one line, with the place in the person's file: `KeyError: 'total' (shop.py:12)`."""
    text = f"{type(error).__name__}: {said}" if (said := _said(error)) else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    file = getattr(getattr(inspect.unwrap(function), "__code__", None), "co_filename", None)
    own = [frame for frame in frames if frame.filename == file] or frames[1:] or frames
    return f"{text} ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else text


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a person's exception may be unable to tell itself
        return ""


def _answers_later(function: object) -> bool:
    return (
        inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    )


def _shown(value: object) -> str:
    simple = value is None or isinstance(value, (str, int, float))
    return repr(value) if simple else f"a {type(value).__name__}"
