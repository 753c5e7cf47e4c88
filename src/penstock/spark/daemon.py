"""The process that Spark forks its Python workers from, with what our tasks need already loaded.

Spark's own daemon forks each worker bare, and every one of them then imports Arrow, gRPC and Penstock for itself:
a second of a core, paid again after each restart, for each core. Here it is paid once, before the forks, and the
workers share those pages. Nothing but modules is loaded: a fork takes no connection and no lock with it. They are
frozen, too: a worker collects its garbage after every task, and would look through all of them each time. Workers keep
the memory that they have used (`penstock.base.memory`): batch after batch passes through them.

The daemons that only plan or look up data sources live for one question; they load what they need.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys

from penstock.base.memory import keep_used

LOADED = (
    "pyarrow.acero",
    "pyarrow.compute",
    "pyspark.sql.pandas.serializers",
    "penstock.journal.client",
    "penstock.spark.source",
    "penstock.spark.tasks",
    "penstock.spark.transform",
)


def main() -> None:
    from pyspark.daemon import manager

    if sys.argv[1:2] == ["pyspark.worker"]:
        for module in LOADED:
            with contextlib.suppress(ImportError):  # to be told by a task that needs it, if there is one
                importlib.import_module(module)
        keep_used()
        gc.freeze()
    manager()


if __name__ == "__main__":
    main()
