"""Ground under everything that is rendered: tables, names, sizes, times. Pure.

Text that comes from data is never taken for markup, and its control characters are spelled out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from penstock.base.texts import indented, one_line
from penstock.pipeline.operations import utc

NOTHING = "-"


def duration(seconds: float) -> str:
    """`3.2 s`, `4 min 05 s`, `2 h 10 min`, `3 d 4 h`."""
    seconds = max(seconds, 0.0)
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"


def byte_size(count: int) -> str:
    """`512 B`, `1.5 KiB`, `64.0 MiB` ..."""
    if count < 1024:
        return f"{count} B"
    size = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def timestamp(ts: int) -> str:
    """Microseconds since 1970 as a date in UTC; the bare number if no calendar reaches that far."""
    return utc(ts)


def ago(ts: int, now: int) -> str:
    """How long before `now` something was, both in microseconds."""
    return f"{duration((now - ts) / 1e6)} ago"


class Fitting(Table):
    """A table whose columns that can be spared are told in lines below it, the last first, where there is no room."""

    def __init__(self) -> None:
        super().__init__(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        self.spare: list[int] = []

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        out: list[int] = []
        shown = self._without(out)
        wide = options.update(max_width=_ANY_WIDTH)
        for number in reversed(self.spare):
            if Measurement.get(console, wide, shown).maximum <= options.max_width:
                break
            out.insert(0, number)
            shown = self._without(out)
        yield shown
        cells = [list(column.cells) for column in self.columns]
        for row in range(self.row_count if out else 0):
            told = (
                f"{self.columns[at].header} {_plain(cells[at][row])}"
                for at in out
                if _plain(cells[at][row]) != NOTHING
            )
            if line := ", ".join(told):
                yield Text(f"{_plain(cells[0][row])}: {line}", style="dim")

    def _without(self, out: Collection[int]) -> Table:
        shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        kept = [column for number, column in enumerate(self.columns) if number not in out]
        for column in kept:
            shown.add_column(column.header, justify=column.justify, no_wrap=column.no_wrap, overflow="fold")
        for row in zip(*(column.cells for column in kept), strict=True):
            shown.add_row(*row)
        return shown


_ANY_WIDTH = 100_000


def _plain(cell: RenderableType) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)


def table(*columns: str) -> Table:
    """A table without lines. A title ending in `>` heads a column of numbers, one beginning with `?` can be spared."""
    made = Fitting()
    for number, title in enumerate(columns):
        numbers = title.endswith(">")
        if title.startswith("?"):
            made.spare.append(number)
        made.add_column(
            title.removeprefix("?").rstrip(">"),
            justify="right" if numbers else "left",
            no_wrap=numbers,
            overflow="fold",
        )
    return made


def name(text: str) -> Text:
    return Text(one_line(text))


def error(node: str, text: str) -> Text:
    return Text.assemble((one_line(node), "bold red"), (f": {indented(text)}", "red"))


def labelled(lines: dict[str, str | None]) -> str:
    """Lines of `label     : text`, as the Transporter has them; those without text are left out."""
    width = max(10, *(len(label) + 1 for label in lines))
    return "\n".join(
        f"{label:<{width}}: {indented(text, ' ' * (width + 2))}"
        for label, text in lines.items()
        if text is not None
    )
