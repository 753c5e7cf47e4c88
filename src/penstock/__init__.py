"""Penstock moves data between systems through Apache Spark and loses nothing on the way.

    from penstock import Pipeline, adaptors as a, functions as f

    shop = Pipeline("shop")
    orders = shop.source("db", a.sqlite(uri="sqlite://shop.db"), ns="orders|items")
    orders.save("audit", a.file(uri="file://audit.jsonl"))

Importing this package does not import PySpark: commands that need no Spark must not pay for it.
"""

from penstock import adaptors, functions
from penstock.pipeline.definition import Pipeline

__version__ = "0.1.0"

__all__ = ["Pipeline", "__version__", "adaptors", "functions"]
