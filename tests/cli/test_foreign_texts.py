"""What people read: no text of a peer or of data makes a line, a row or a field that passes for ours."""

from __future__ import annotations

from rich.console import Console, RenderableType

from penstock.cli import journals_render, render, render_state, tables
from penstock.journal.check import Fault, Finding
from penstock.log.transaction import ABORTED, Transaction
from penstock.pipeline.records import Passing


def printed(shown: RenderableType) -> list[str]:
    console = Console(width=200, markup=False, highlight=False, emoji=False)
    with console.capture() as captured:
        console.print(shown)
    return [line.rstrip() for line in captured.get().splitlines()]


def test_a_cell_is_one_line() -> None:
    rows = tables.table("worker")
    rows.add_row(tables.name("a\nb  committed\x1b[31m"))
    assert printed(rows) == ["worker", r"a\nb  committed\x1b[31m"]
    (_, row) = printed(journals_render.findings([("j\nk", Finding(Fault.MISSING, 0, 1, "bad\nj  no fault"))]))
    assert r"j\nk" in row
    assert r"bad\nj  no fault" in row


def test_further_lines_of_an_error_and_of_a_field_stand_to_the_right() -> None:
    assert printed(tables.error("sink", "refused:\nother: well")) == ["sink: refused:", "  other: well"]
    assert tables.labelled({"error": "refused\nstate     : replayed"}).splitlines() == [
        "error     : refused",
        "            state     : replayed",
    ]


def test_a_message_is_one_line_but_for_its_document() -> None:
    row = Passing(7, 0, "sync", "insert", "a\n8 b", "k\t\n", '{\n"id": 1}')
    assert render_state.message(row) == '7 a\\n8 b insert key k\\t\\n {\n  "id": 1}'


def test_a_transaction_is_one_line() -> None:
    told = Transaction("t\nother  committed", 0, 1, ABORTED, 0, 0)
    assert len(printed(render.transaction_line("sink", told))) == 1
