"""The last hour in numbers, in bounded memory: one value for each twenty seconds, the newest last. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

STEP = 20
"""Seconds that one value stands for."""
KEPT = 180
"""Values that are kept: an hour."""


@dataclass
class Series:
    """Values of one measure; None where nothing was seen. The last one still grows."""

    values: list[float | None] = field(default_factory=list)
    slot: int = -1

    def add(self, now: float, value: float) -> None:
        """Take a value at `now` (seconds). A slot keeps the largest: what is short is still seen."""
        slot = int(now) // STEP
        if self.slot < 0 or slot - self.slot >= KEPT:
            self.values = []
        else:
            self.values += [None] * (slot - self.slot)
        if slot != self.slot or not self.values:
            self.slot = slot
            if self.values:
                self.values[-1] = value
            else:
                self.values = [value]
        else:
            held = self.values[-1]
            self.values[-1] = value if held is None else max(held, value)
        del self.values[:-KEPT]

    def until(self, now: float) -> list[float | None]:
        """The values of the hour before `now`, padded at its end."""
        missing = int(now) // STEP - self.slot
        return [*self.values, *[None] * missing][-KEPT:] if self.slot >= 0 else []


class History:
    """Named series of many pipelines."""

    def __init__(self) -> None:
        self._series: dict[str, dict[str, Series]] = {}

    def add(self, pipeline: str, now: float, values: Mapping[str, float]) -> None:
        series = self._series.setdefault(pipeline, {})
        for name in [name for name in series if name not in values and _old(series[name], now)]:
            del series[name]
        for name, value in values.items():
            series.setdefault(name, Series()).add(now, value)

    def forget_others(self, pipelines: set[str]) -> None:
        for name in [name for name in self._series if name not in pipelines]:
            del self._series[name]

    def of(self, pipeline: str, now: float) -> dict[str, list[float | None]]:
        return {name: series.until(now) for name, series in self._series.get(pipeline, {}).items()}


def _old(series: Series, now: float) -> bool:
    return int(now) // STEP - series.slot >= KEPT
