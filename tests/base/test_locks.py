from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.base.errors import InUseError
from penstock.base.locks import lock_directory


def test_a_directory_is_locked_until_its_descriptor_is_closed(tmp_path: Path) -> None:
    held = lock_directory(tmp_path, "taken", "wait")
    with pytest.raises(InUseError, match="taken"):
        lock_directory(tmp_path, "taken", "wait")
    os.close(held)
    os.close(lock_directory(tmp_path, "taken", "wait"))
