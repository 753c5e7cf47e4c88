"""Which texts a column has, where most batches have one alone: namespaces, and operations.

Arrow looks each row up in a table of texts. Whether all rows are like the first is a comparison of bytes, which takes a
tenth of that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def only(column: pa.Array) -> str | None:
    """The text that all rows of a column of strings have; None if there are several, or a null, or no row."""
    import numpy as np
    import pyarrow as pa

    rows = len(column)
    if not rows or column.null_count or not pa.types.is_string(column.type):
        return None
    _, bounds, content = column.buffers()
    ends = np.frombuffer(bounds, np.int32)[column.offset : column.offset + rows + 1]
    begin, size = int(ends[0]), int(ends[1] - ends[0])
    if int(ends[-1]) - begin != rows * size or (np.diff(ends) != size).any():
        return None
    if size:
        texts = np.frombuffer(content, np.uint8, rows * size, begin).reshape(rows, size)
        if (texts != texts[0]).any():
            return None
    text: str = column[0].as_py()
    return text
