"""Where a run has its journals and its scratch."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.base.errors import PenstockError
from penstock.pipeline.place import empty_scratch, open_place


def test_a_scratch_that_cannot_be_made_is_told_by_its_option(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("a file")
    with open_place(tmp_path / "data", None) as place:
        with pytest.raises(PenstockError, match="Not a directory") as refused:
            empty_scratch(place, tmp_path / "mine" / "scratch", "shop")
        assert refused.value.hint == "name another place with --scratch"
