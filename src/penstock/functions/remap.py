"""`remap`: move messages to another namespace (Transporter reference, section 5).

    ns_map={"orders": "sales"}: messages of `orders` go on as `sales`, those of `orders_old` stay

The name must match from end to end. The data is not looked at. Functions behind this one are asked by the new
name; a sink's own filter has been asked already, by the name in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from penstock.base.settings import setting
from penstock.functions.kinds import NamespaceFunction


@dataclass(frozen=True)
class Remap(NamespaceFunction):
    """Replaces the namespace where it equals one of the given names."""

    name: ClassVar[str] = "remap"
    description: ClassVar[str] = "move messages to another namespace"

    ns_map: Mapping[str, str] = setting("old namespace to new namespace", example={"orders": "sales"})

    def __post_init__(self) -> None:
        for old, new in self.ns_map.items():
            if not new:
                raise ValueError(f"setting 'ns_map': the new namespace for '{old}' is empty")

    def moved(self, ns: str) -> str:
        return self.ns_map.get(ns, ns)
