"""A walk through a Parquet file: row group by row group, a part of one at a time, with the schema that it has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from penstock.adaptors.columns.rowtext import row_texts, schema_of
from penstock.adaptors.formats import walks
from penstock.adaptors.formats.contents import Content, as_file
from penstock.adaptors.formats.walks import Taken, Walk
from penstock.base.errors import CorruptError, PenstockError

if TYPE_CHECKING:
    import pyarrow as pa


class ParquetWalk(Walk):
    """Places are `group`, how many row groups were read whole, and `row`, how many rows of the next one."""

    def __init__(self, content: Content, place: Mapping[str, int]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._content = content
        self._group, self._row = place.get("group", 0), place.get("row", 0)
        self._batches: Iterator[pa.RecordBatch] | None = None
        try:
            self._file = pq.ParquetFile(as_file(content))
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(error) from None
        self.schema = schema_of(self._file.schema_arrow)

    @property
    def place(self) -> Mapping[str, int]:
        return {"group": self._group, "row": self._row}

    def next(self) -> Taken | None:
        import pyarrow as pa

        while self._group < self._file.num_row_groups:
            if self._batches is None:
                self._batches = self._of_group()
            try:
                batch = next(self._batches, None)
            except (pa.ArrowException, OSError) as error:
                raise self._unreadable(error) from None
            if batch is not None:
                self._row += batch.num_rows
                return Taken(row_texts(batch))
            self._group, self._row, self._batches = self._group + 1, 0, None
        return None

    def _of_group(self) -> Iterator[pa.RecordBatch]:
        """The rows of a group that are still to be read, in batches of a fair size."""
        group = self._file.metadata.row_group(self._group)
        each = max(1, group.total_byte_size // max(1, group.num_rows))
        most = max(1, min(walks.MOST_LINES, walks.BLOCK // each))
        skip = self._row
        for batch in self._file.iter_batches(batch_size=most, row_groups=[self._group], use_threads=False):
            if skip >= batch.num_rows:
                skip -= batch.num_rows
                continue
            yield batch.slice(skip)
            skip = 0

    def _unreadable(self, error: Exception) -> PenstockError:
        if isinstance(error, OSError) and error.errno is not None:
            raise error
        return CorruptError(
            f"not a Parquet file, or cut off ({str(error).splitlines()[0]})", where=self._content.name,
            position=self._group, hint="bring the whole file",
        )  # fmt: skip
