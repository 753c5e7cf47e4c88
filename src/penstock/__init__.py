"""Penstock moves data between systems through Apache Spark and loses nothing on the way.

    from penstock import Pipeline, adaptors as a, functions as f, retry

    shop = Pipeline("shop")
    orders = shop.source("db", a.sqlite(uri="sqlite://shop.db"), ns="orders|items")
    orders.save("audit", a.file(uri="file://audit.jsonl"), on_error=retry(5, backoff="2s"))

Importing this package does not import PySpark: commands that need no Spark must not pay for it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock import adaptors, functions
    from penstock.pipeline.definition import Pipeline
    from penstock.pipeline.saving import retry

__version__ = "0.1.0"

__all__ = ["Pipeline", "__version__", "adaptors", "functions", "retry"]

_HOMES = {"Pipeline": "penstock.pipeline.definition", "retry": "penstock.pipeline.saving"}


def __getattr__(name: str) -> object:
    """Load a name when it is first asked for: workers of Spark and most commands need none of them."""
    if name in ("adaptors", "functions"):
        return importlib.import_module(f"penstock.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'penstock' has no attribute '{name}'")
