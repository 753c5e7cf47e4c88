"""The command `penstock`, which `python -m penstock` is as well."""

from __future__ import annotations

import sys
from typing import NoReturn

_INTERRUPTED = 130


def main() -> NoReturn:
    """Load the commands, and run what was typed. Who interrupts it meanwhile sees no more than who does so later."""
    try:
        from penstock.cli import main as run
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    run()


if __name__ == "__main__":
    main()
