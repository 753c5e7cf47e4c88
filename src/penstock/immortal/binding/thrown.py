"""Exceptions in the record of an open handler: what a step raised is raised again when the handler is re-created.

    ("!", a built-in class, its arguments) | ("x", `module:Class`, its arguments, its attributes)

Arguments and attributes are kept as far as checkpoints know their types; other arguments are kept as text. One that
could not be raised again is an `ImmortalError` from the beginning, so that the handler is told the same each time.
"""

from __future__ import annotations

import builtins
from typing import NoReturn

from penstock.immortal.binding.errors import ImmortalError
from penstock.immortal.binding.values import class_name, find_class, from_wire, is_plain, to_wire

Outcome = tuple[object, ...]
"""One of these, or ("=", plain value) | ("w", a value's wire form) | ("~", class of a view)."""


def as_builtin(error: Exception) -> Outcome:
    """Of a look into the state: what Python itself raises there."""
    arguments = tuple(
        argument if is_plain(argument) and _is_known(argument) else text_of(argument)
        for argument in error.args
    )
    name = type(error).__name__
    return ("!", name if hasattr(builtins, name) else "ValueError", arguments)


def thrown(error: Exception) -> Outcome:
    """Of whatever else a step does: its own class, which the handler may be waiting for."""
    kind = type(error)
    if getattr(builtins, kind.__name__, None) is kind:
        return as_builtin(error)
    arguments = [argument if _is_known(argument) else text_of(argument) for argument in error.args]
    attributes = {name: value for name, value in vars(error).items() if _is_known(value)}
    return ("x", class_name(kind), to_wire(arguments), to_wire(attributes))


def repeatable(error: Exception) -> Exception:
    """The error, if its record gives it back; else one that says what it was."""
    kind = type(error)
    try:
        comes_back = type(_again(thrown(error))) is kind
    except Exception:  # noqa: BLE001 - classes may refuse to be made in their own way
        comes_back = False
    if comes_back:
        return error
    return ImmortalError(f"{class_name(kind)}, which no checkpoint can keep, was raised: {text_of(error)}")


def raise_again(outcome: Outcome) -> NoReturn:
    """From either form."""
    raise _again(outcome)


def _again(outcome: Outcome) -> Exception:
    if outcome[0] == "!":
        return getattr(builtins, str(outcome[1]))(*outcome[2])  # type: ignore[misc, no-any-return]
    kind = find_class(str(outcome[1]))
    arguments, attributes = from_wire(outcome[2]), from_wire(outcome[3])
    assert isinstance(arguments, list)
    assert isinstance(attributes, dict)
    error = kind.__new__(kind, *arguments)  # its __init__ may want others
    assert isinstance(error, Exception)
    vars(error).update(attributes)
    return error


def text_of(value: object) -> str:
    """What an error, or one of its arguments, says, as text that can be written: into answers and checkpoints."""
    try:
        return str(value).encode(errors="backslashreplace").decode()
    except Exception as wordless:  # noqa: BLE001 - an error may fail to say anything
        return f"({type(wordless).__name__} when it was asked what it is)"


def _is_known(value: object) -> bool:
    try:
        from_wire(to_wire(value))
    except Exception:  # noqa: BLE001 - classes may refuse to be made in their own way
        return False
    return True
