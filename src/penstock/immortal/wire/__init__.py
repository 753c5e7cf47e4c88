"""The bytes between an immortal coordinator and a language binding (seed 002, "Message Formats").

    zigzag        integers of variable length
    decoding      a stream that is cut anywhere, and the blobs of checkpoints in it
    messages      `size | type | data`, and the decoder of a bare stream of them (binding to coordinator)
    rpc           calls and answers, outgoing and incoming; batches, with and without a replayable count
    pings         calls that coordinators write times into
    between       what coordinators tell each other about a stream: ReplayFrom, TrimTo, Commit
    records       24-byte headers with check bytes, and the decoder of a stream of them (coordinator to binding)

No sockets and no clocks: bytes in, values out. Decoders take whatever a socket gives, however it is cut, hand blobs
of checkpoints on in pieces without gathering them, and refuse what cannot be with `CorruptWireError`.
"""

from penstock.immortal.wire.between import Commit, ReplayFrom, TrimTo
from penstock.immortal.wire.decoding import Blob
from penstock.immortal.wire.messages import (
    MAX_MESSAGE,
    CheckpointStart,
    Message,
    MessageDecoder,
    MessageType,
    checkpoint_message,
    encode_message,
    initial_message,
    split_messages,
)
from penstock.immortal.wire.records import (
    CHECKPOINT_ID,
    CONTROL_ID,
    HEADER_BYTES,
    CheckpointRecord,
    Record,
    RecordDecoder,
    check_bytes,
    checkpoint_record,
    control_record,
    encode_record,
    record_header,
)
from penstock.immortal.wire.rpc import (
    Call,
    Reply,
    ReplyKind,
    RpcType,
    batch,
    counted_batch,
    decode_incoming,
    decode_outgoing,
    incoming,
    is_replayable,
    outgoing,
    rpcs_of,
)
from penstock.immortal.wire.zigzag import CorruptWireError, decode_int, decode_long, encode_int, encode_long

__all__ = [
    "CHECKPOINT_ID",
    "CONTROL_ID",
    "HEADER_BYTES",
    "MAX_MESSAGE",
    "Blob",
    "Call",
    "CheckpointRecord",
    "CheckpointStart",
    "Commit",
    "CorruptWireError",
    "Message",
    "MessageDecoder",
    "MessageType",
    "Record",
    "RecordDecoder",
    "ReplayFrom",
    "Reply",
    "ReplyKind",
    "RpcType",
    "TrimTo",
    "batch",
    "check_bytes",
    "checkpoint_message",
    "checkpoint_record",
    "control_record",
    "counted_batch",
    "decode_incoming",
    "decode_int",
    "decode_long",
    "decode_outgoing",
    "encode_int",
    "encode_long",
    "encode_message",
    "encode_record",
    "incoming",
    "initial_message",
    "is_replayable",
    "outgoing",
    "record_header",
    "rpcs_of",
    "split_messages",
]
