"""The page about writing adaptors: its example is whole, and goes through the conformance kit as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "writing-adaptors.md"


def test_the_example_goes_through_the_kit(tmp_path: Path) -> None:
    adaptor, tests = re.findall(
        r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    (tmp_path / "folder.py").write_text(adaptor)
    (tmp_path / "test_folder.py").write_text(tests)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            ".",
            "-rfE",
            "test_folder.py",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert re.search(r"[4-9]\d passed", done.stdout)
