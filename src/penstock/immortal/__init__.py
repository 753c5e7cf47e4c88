"""Immortals: services that survive any crash (seed 002, `reference` of AMBROSIA).

wire          what travels between a coordinator and a language binding, byte for byte
binding       the Python language binding: a class with state, and methods that others call

The names below are what a program needs that defines an immortal (`docs/writing-immortals.md`).
"""

from penstock.immortal.binding.app import Immortal, custom, field
from penstock.immortal.binding.errors import (
    DeterminismError,
    ImmortalError,
    OutboxFullError,
    RemoteError,
    UpgradeRefusedError,
)
from penstock.immortal.binding.methods import gather, impulse, rpc, step
from penstock.immortal.binding.services import Delivered

__all__ = [
    "Delivered",
    "DeterminismError",
    "Immortal",
    "ImmortalError",
    "OutboxFullError",
    "RemoteError",
    "UpgradeRefusedError",
    "custom",
    "field",
    "gather",
    "impulse",
    "rpc",
    "step",
]
