"""Arrays of text, and what is done to them without a look at the single row.

A *text* here is an element of a `large_binary` array: a part of a JSON document, UTF-8. Rows are put together from
*pieces*, which are such arrays and constants, side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

Piece: TypeAlias = "pa.Array | bytes"

_HEX = "".join(f"{byte:02x}" for byte in range(256)).encode()


def text_type() -> pa.DataType:
    import pyarrow as pa

    return pa.large_binary()


def constant(text: bytes | None) -> pa.Scalar:
    import pyarrow as pa

    return pa.scalar(text, pa.large_binary())


def as_texts(array: pa.Array) -> pa.Array:
    """Numbers, strings or bytes as texts, without quotes."""
    import pyarrow as pa

    if array.type == pa.large_binary():
        return array
    return array.cast(pa.large_string()).cast(pa.large_binary())


def joined(pieces: Sequence[Piece], rows: int) -> pa.Array:
    """The pieces of each row side by side; null where one of them is."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if all(isinstance(piece, bytes) for piece in pieces):
        return pa.repeat(constant(b"".join(piece for piece in pieces if isinstance(piece, bytes))), rows)
    parts = [constant(piece) if isinstance(piece, bytes) else piece for piece in merged(pieces)]
    if len(parts) == 1:
        return parts[0]
    return pc.binary_join_element_wise(*parts, constant(b""))


def merged(pieces: Sequence[Piece]) -> list[Piece]:
    """Constants that stand side by side as one."""
    found: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, bytes) and found and isinstance(found[-1], bytes):
            found[-1] += piece
        elif not isinstance(piece, bytes) or piece:
            found.append(piece)
    return found


def where_valid(array: pa.Array, texts: pa.Array) -> pa.Array:
    """The texts, and null where `array` is null."""
    import pyarrow.compute as pc

    return pc.if_else(array.is_valid(), texts, constant(None)) if array.null_count else texts


def content_of(texts: pa.Array) -> npt.NDArray[np.uint8]:
    """The bytes of all texts, which lie one behind the other."""
    import numpy as np

    bounds, data = bounds_of(texts), texts.buffers()[2]
    if data is None:
        return np.empty(0, np.uint8)
    return np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]


def bounds_of(texts: pa.Array) -> npt.NDArray[np.int64]:
    """Where in its buffer each text begins, and where the last one ends."""
    import numpy as np

    if not len(texts):
        return np.zeros(1, np.int64)
    return np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]


def of_parts(content: npt.NDArray[np.uint8], bounds: npt.NDArray[np.int64]) -> pa.Array:
    """The texts that lie between `bounds` in `content`."""
    import pyarrow as pa

    return pa.Array.from_buffers(
        pa.large_binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(content)]
    )


def slices(
    content: npt.NDArray[np.uint8],
    at: npt.NDArray[np.int64],
    length: npt.NDArray[np.int64],
    *,
    as_strings: bool = False,
) -> pa.Array:
    """The texts of these lengths that begin at these places of `content`, as `binary`; a negative length is a null.

    Known to be UTF-8, they may as well be strings, `large_string`.
    """
    from penstock.log.slices import Texts

    texts = Texts(content.data)
    return texts.known_strings(at, length) if as_strings else texts.binaries(at, length)


def split(text: bytes, rows: int) -> pa.Array:
    """The texts between the commas of a JSON array whose items have no comma in them."""
    import numpy as np

    if not rows:
        return of_parts(np.empty(0, np.uint8), np.zeros(1, np.int64))
    content = np.frombuffer(text, np.uint8)[1:-1]
    commas = content == ord(",")
    ends = np.flatnonzero(commas) - np.arange(rows - 1)
    whole = content[~commas]
    return of_parts(whole, np.concatenate(([0], ends, [len(whole)])).astype(np.int64))


def chosen(texts: pa.Array, rows: npt.NDArray[np.int64], instead: Sequence[bytes]) -> pa.Array:
    """The texts, with others at these rows."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    mask = np.zeros(len(texts), bool)
    mask[rows] = True
    return pc.replace_with_mask(texts, pa.array(mask), pa.array(instead, pa.large_binary()))


def quoted(texts: pa.Array) -> list[Piece]:
    """JSON strings of texts that are UTF-8. Only rows that hold something to escape are looked at one by one."""
    import numpy as np

    content = content_of(texts)
    special = (content < 0x20) | (content == ord('"')) | (content == ord("\\"))
    if not special.any():
        return [b'"', texts, b'"']
    bounds = bounds_of(texts)
    places = np.flatnonzero(special) + bounds[0]
    rows = np.unique(np.searchsorted(bounds, places, side="right") - 1)
    encode = msgspec.json.encode
    escaped = [encode((text or b"").decode())[1:-1] for text in texts.take(rows).to_pylist()]
    return [b'"', chosen(texts, rows, escaped), b'"']


def hexadecimal(content: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Two digits for each byte, along the last axis."""
    import numpy as np

    digits = np.frombuffer(_HEX, np.uint8).reshape(256, 2)[content]
    return digits.reshape(*content.shape[:-1], 2 * content.shape[-1])


def uuids(content: npt.NDArray[np.uint8]) -> pa.Array:
    """The text of UUIDs, which come as rows of sixteen bytes."""
    import numpy as np

    digits = hexadecimal(content)
    text = np.full((len(digits), 36), ord("-"), np.uint8)
    for at, start, end in ((0, 0, 8), (9, 8, 12), (14, 12, 16), (19, 16, 20), (24, 20, 32)):
        text[:, at : at + end - start] = digits[:, start:end]
    return of_parts(text.reshape(-1), np.arange(len(digits) + 1, dtype=np.int64) * 36)


def padded(numbers: npt.NDArray[np.int64], digits: int) -> pa.Array:
    """Numbers from 0 on as texts of so many digits."""
    import numpy as np

    powers = 10 ** np.arange(digits - 1, -1, -1, dtype=np.int64)
    text = (numbers[:, None] // powers % 10 + ord("0")).astype(np.uint8)
    return of_parts(text.reshape(-1), np.arange(len(numbers) + 1, dtype=np.int64) * digits)
