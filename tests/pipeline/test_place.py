"""Where a run has its journals and its scratch."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import Pipeline
from penstock import adaptors as a
from penstock.base.errors import PenstockError
from penstock.journal.datadir import DisplacedError
from penstock.pipeline.place import empty_scratch, open_place
from penstock.pipeline.progress import Progress, Summary
from penstock.pipeline.runner import run


def test_a_scratch_that_cannot_be_made_is_told_by_its_option(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("a file")
    with open_place(tmp_path / "data", None) as place:
        with pytest.raises(PenstockError, match="Not a directory") as refused:
            empty_scratch(place, tmp_path / "mine" / "scratch", "shop")
        assert refused.value.hint == "name another place with --scratch"


@pytest.mark.parametrize("moment", ["at once", "later"])
def test_a_run_whose_directory_is_moved_away_says_so_and_leaves_nothing_in_its_place(
    tmp_path: Path, moment: str
) -> None:
    """Whatever fails first for lack of it. What was made anew would stand in the way of what is brought back."""
    (tmp_path / "in.jsonl").touch()
    pipeline = Pipeline("p")
    source = pipeline.source("in", a.file(uri=f"file://{tmp_path}/in.jsonl", tail=True))
    source.save("out", a.discard())
    data, seen = tmp_path / "data", 0

    def report(progress: Progress) -> None:
        nonlocal seen
        seen += progress.phase == "running"
        if seen == (1 if moment == "at once" else 5) and data.exists():
            data.rename(tmp_path / "elsewhere")

    told: list[Summary] = []
    with pytest.raises(DisplacedError, match="was moved, removed or replaced"):
        run(pipeline, data_dir=data, once=False, report=report, failed=told.append)
    assert [summary.exit_code for summary in told] == [5]
    assert not data.exists()
