"""Documents that come without a schema, from queues and services: their keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

_fields: Callable[[bytes], dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def key_of(data: bytes, key: Sequence[str]) -> bytes:
    """The text of the key that these fields of a document make; values as they stand there.

    Raises ValueError for a document without one of them.
    """
    fields = _fields(data)
    missing = [name for name in key if name not in fields]
    if missing:
        raise ValueError(f"there is no field '{missing[0]}', which is part of the key")
    return msgspec.json.encode({name: fields[name] for name in key})
