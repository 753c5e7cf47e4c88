"""Runs several queries as fast as they go, each on its own checkpoint, until it is killed.

Arguments: scratch directory, checkpoint directory, number of queries. Prints the pid of the JVM.
"""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.spark import session as engine


def main(scratch: Path, checkpoints: Path, queries: int) -> None:
    spark = engine.session(app="checkpoints", cores=2, short_lived=True, scratch=scratch)
    running = engine._running
    assert running is not None
    assert running.jvm.process is not None
    sys.stdout.write(f"{running.jvm.process.pid}\n")
    sys.stdout.flush()
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    for number in range(queries):
        stream = source.writeStream.format("noop").option(
            "checkpointLocation", str(checkpoints / str(number))
        )
        stream.start()
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
