"""The other scopes: a plain handler, which has the state itself; everybody outside of handlers, who may look; and
`save`, which sees what it has to write as it is."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

from penstock.immortal.binding.errors import DeterminismError
from penstock.immortal.binding.journal import Key
from penstock.immortal.binding.values import is_plain
from penstock.immortal.binding.views import CHANGES, Place, apply, kind_of, make_view, resolve, told


class Direct:
    """A plain handler, a step, a hook that runs as a handler: fields are given as they are."""

    __slots__ = ()

    def effect(self, key: Key, live: Callable[[], object]) -> object:
        return live()


DIRECT = Direct()


class Outside:
    """Nobody's turn: timers, ingress, other threads. Reading is free, changing is refused."""

    __slots__ = ("_owner", "_values")

    def __init__(self, owner: str, values: Mapping[str, object]) -> None:
        self._owner = owner
        self._values = values

    def look(self, place: Place) -> object:
        found = resolve(self._values, place)
        if is_plain(found):
            return found
        kind = kind_of(found)
        return found if kind is None else make_view(self, place, kind)

    def operate(self, place: Place, name: str, arguments: tuple[object, ...]) -> object:
        if name in CHANGES:
            raise self.refusal(f"the declared field {told(place)} was to be changed outside of a handler")
        return apply(resolve(self._values, place), name, arguments)

    def effect(self, key: Key, live: Callable[[], object]) -> object:
        raise self.refusal(f"{' '.join(map(str, key))}: only a handler may do that")

    def raw(self, place: Place) -> object:
        return resolve(self._values, place)

    def copied(self, place: Place) -> object:
        return copy.deepcopy(self.raw(place))

    def refusal(self, what: str) -> DeterminismError:
        """What to raise."""
        return DeterminismError(
            f"{self._owner}: {what}",
            hint="outside of handlers, send an Impulse to a method marked @impulse; its handler may change state "
            "and call others",
        )


class Saving(Outside):
    """A checkpoint is taken: fields are given as they are, to be written down, and not to be changed."""

    __slots__ = ()

    def look(self, place: Place) -> object:
        return self.raw(place)
