"""The kit for sinks: serve the sink's side of the connector protocol, and write nothing but the storage.

    from penstock.connector.sink import SinkServer, Storage, Terms, Workers

    class Mine(Storage): ...                     # about six methods, see `storage.py`

    with SinkServer(("0.0.0.0", 7200), Workers(directory, lambda worker: Mine(worker)), Terms(cookie=b"...")) as server:
        server.wait()

What a worker's transactions are at any moment, `transactions(directory)` tells.
"""

from penstock.connector.sink.ledger import Decided, Voted
from penstock.connector.sink.server import Limits, SinkServer
from penstock.connector.sink.session import Terms
from penstock.connector.sink.storage import Storage, StorageOf, Transaction
from penstock.connector.sink.workers import Workers, WorkerView, transactions

__all__ = [
    "Decided",
    "Limits",
    "SinkServer",
    "Storage",
    "StorageOf",
    "Terms",
    "Transaction",
    "Voted",
    "WorkerView",
    "Workers",
    "transactions",
]
