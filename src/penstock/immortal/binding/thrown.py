"""Exceptions in the record of an open handler: what a step raised is raised again when the handler is re-created.

    ("!", a built-in class, its arguments) | ("x", `module:Class`, its arguments, its attributes)

Arguments and attributes are kept as far as checkpoints know their types; other arguments are kept as text.
"""

from __future__ import annotations

import builtins
from typing import NoReturn

from penstock.immortal.binding.values import class_name, find_class, from_wire, is_plain, to_wire

Outcome = tuple[object, ...]
"""One of these, or ("=", plain value) | ("w", a value's wire form) | ("~", class of a view)."""


def as_builtin(error: Exception) -> Outcome:
    """Of a look into the state: what Python itself raises there."""
    arguments = tuple(argument if is_plain(argument) else str(argument) for argument in error.args)
    name = type(error).__name__
    return ("!", name if hasattr(builtins, name) else "ValueError", arguments)


def thrown(error: Exception) -> Outcome:
    """Of whatever else a step does: its own class, which the handler may be waiting for."""
    kind = type(error)
    if getattr(builtins, kind.__name__, None) is kind:
        return as_builtin(error)
    arguments = [argument if _is_known(argument) else str(argument) for argument in error.args]
    attributes = {name: value for name, value in vars(error).items() if _is_known(value)}
    return ("x", class_name(kind), to_wire(arguments), to_wire(attributes))


def raise_again(outcome: Outcome) -> NoReturn:
    """From either form."""
    if outcome[0] == "!":
        raise getattr(builtins, str(outcome[1]))(*outcome[2])  # type: ignore[misc]
    kind = find_class(str(outcome[1]))
    arguments, attributes = from_wire(outcome[2]), from_wire(outcome[3])
    assert isinstance(arguments, list)
    assert isinstance(attributes, dict)
    error = kind.__new__(kind, *arguments)  # its __init__ may want others
    assert isinstance(error, Exception)
    vars(error).update(attributes)
    raise error


def _is_known(value: object) -> bool:
    try:
        to_wire(value)
    except TypeError:
        return False
    return True
