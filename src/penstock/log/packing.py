"""Messages that come as columns, laid out for the log without an object for each of them.

A `Packed` holds finished records (`record.py`) whose offsets are blank: the owner of the log writes those in with one
stroke of numpy and appends the bytes as they are. Whoever reads a lot at once (a file, a table, an object) packs a few
thousand rows at a time, in any process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Records of one namespace. `starts` are the places in `content` at which they begin."""

    ns: str
    content: bytes
    starts: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)
