"""The broker's wire: the messages of `protocol.Journal`, as Gazette's clients speak it, and `penstock.Local`.

The messages are generated (`make proto`); what they mean is in `reference/gazette.md`, sections 2 to 5, and
what makes them legal in `penstock.journal.validation`. The names given here are the messages themselves, so
`journal.protocol.Fragment` is the wire's; the broker itself works with the value `journal.fragment.Fragment`.
"""

from penstock.journal.protocol import journal_pb2, penstock_pb2
from penstock.journal.protocol.journal_pb2 import (
    AppendRequest,
    AppendResponse,
    ApplyRequest,
    ApplyResponse,
    BrokerSpec,
    CompressionCodec,
    Fragment,
    FragmentsRequest,
    FragmentsResponse,
    FragmentStoreHealthRequest,
    FragmentStoreHealthResponse,
    Header,
    JournalSpec,
    Label,
    LabelSelector,
    LabelSet,
    ListRequest,
    ListResponse,
    ProcessSpec,
    ReadRequest,
    ReadResponse,
    ReplicateRequest,
    ReplicateResponse,
    Route,
    SHA1Sum,
    Status,
)
from penstock.journal.protocol.penstock_pb2 import (
    AppendBatch,
    AppendBatchResult,
    AppendResult,
    Head,
    HeadsRequest,
    HeadsResponse,
    LocateRequest,
    LocateResponse,
    RollRequest,
    RollResponse,
    Span,
    TrimRequest,
    TrimResponse,
)

JOURNAL_SERVICE = journal_pb2.DESCRIPTOR.services_by_name["Journal"].full_name
"""`protocol.Journal`: methods are reached as `/protocol.Journal/Append` and so on."""

LOCAL_SERVICE = penstock_pb2.DESCRIPTOR.services_by_name["Local"].full_name
"""`penstock.Local`."""

MAINTENANCE_SERVICE = penstock_pb2.DESCRIPTOR.services_by_name["Maintenance"].full_name
"""`penstock.Maintenance`."""

CHUNK_METADATA = "penstock-chunk"
"""Metadata by which a client of ours asks for messages of a read that have more content than the reference's."""

__all__ = [
    "CHUNK_METADATA",
    "JOURNAL_SERVICE",
    "LOCAL_SERVICE",
    "MAINTENANCE_SERVICE",
    "AppendBatch",
    "AppendBatchResult",
    "AppendRequest",
    "AppendResponse",
    "AppendResult",
    "ApplyRequest",
    "ApplyResponse",
    "BrokerSpec",
    "CompressionCodec",
    "Fragment",
    "FragmentStoreHealthRequest",
    "FragmentStoreHealthResponse",
    "FragmentsRequest",
    "FragmentsResponse",
    "Head",
    "Header",
    "HeadsRequest",
    "HeadsResponse",
    "JournalSpec",
    "Label",
    "LabelSelector",
    "LabelSet",
    "ListRequest",
    "ListResponse",
    "LocateRequest",
    "LocateResponse",
    "ProcessSpec",
    "ReadRequest",
    "ReadResponse",
    "ReplicateRequest",
    "ReplicateResponse",
    "RollRequest",
    "RollResponse",
    "Route",
    "SHA1Sum",
    "Span",
    "Status",
    "TrimRequest",
    "TrimResponse",
    "journal_pb2",
    "penstock_pb2",
]
