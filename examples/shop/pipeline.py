"""The sample shop: one database in, two files out.

    make run                              in the repository, or:
    python make_shop.py shop.db && penstock run pipeline.py --once

`audit` gets every row of orders and items as it was read, with op, time and namespace around it. `big-orders`
gets the orders above 300, slimmed by a function of Penstock and filtered by a function of Spark.
"""

from penstock import Pipeline
from penstock import adaptors as a
from penstock import functions as f

shop = Pipeline("shop")
db = shop.source("db", a.sqlite(uri="sqlite://shop.db"), ns="^(customers|orders|items)$")

db.save("audit", a.file(uri="file://audit.jsonl", envelope=True), ns="^(orders|items)$")

(
    db.transform("slim", f.pick(fields=["id", "customer", "total"]))
    .transform("rename", f.remap(ns_map={"orders": "big_orders"}))
    .transform("big", lambda df: df.where("try_variant_get(data, '$.total', 'double') > 300"))
    .save("big-orders", a.file(uri="file://big_orders.jsonl"), ns="^orders$")
)
