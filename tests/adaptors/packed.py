"""What is packed in a batch, message by message."""

from __future__ import annotations

from penstock.adaptors.base import Batch
from penstock.log import record as rec


def messages_of(batch: Batch) -> list[rec.Record]:
    return [rec.decode(packed.content, int(at), packed.ns) for packed in batch.packed for at in packed.starts]
