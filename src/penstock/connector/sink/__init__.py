"""The kit for sinks: serve the sink's side of the connector protocol, and write nothing but the storage.

    from penstock.connector.sink import SinkServer, Storage, Terms, Workers

    class Mine(Storage): ...                     # about six methods, see `storage.py`

    with SinkServer(("0.0.0.0", 7200), Workers(directory, lambda worker: Mine(worker)), Terms(cookie=b"...")) as server:
        server.wait()

What a worker's transactions are at any moment, `transactions(directory)` tells. `Disk` has what storages need to keep
their word about power loss, and `file_name` makes a worker's name, which comes from the network, part of a file's.
"""

from penstock.base.disk import Disk
from penstock.connector.sink.ledger import Decided, Voted
from penstock.connector.sink.server import Limits, SinkServer
from penstock.connector.sink.session import Terms
from penstock.connector.sink.storage import Storage, StorageOf, Transaction
from penstock.connector.sink.workers import Workers, WorkerView, file_name, transactions

__all__ = [
    "Decided",
    "Disk",
    "Limits",
    "SinkServer",
    "Storage",
    "StorageOf",
    "Terms",
    "Transaction",
    "Voted",
    "WorkerView",
    "Workers",
    "file_name",
    "transactions",
]
