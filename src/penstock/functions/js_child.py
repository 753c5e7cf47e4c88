"""The process in which V8 runs a person's script: started by `js_engine`, reads batches, writes answers.

A process of its own, since V8 can be stopped in the middle of some native calls, and after some failures of memory, by
nothing less than ending its process; and since its threads do not survive the fork by which Spark makes workers.
There is no file, network or process for the script to reach: V8 has none to give. Memory is limited twice: by V8,
for its heap, and by the kernel (RLIMIT_DATA), for what lies outside it.

Run as a file, without the rest of Penstock. Frames on both pipes: length (8 bytes), kind (1 byte), content.

    in    S script and settings (JSON)      B a batch (js_harness.js) behind 8 bytes of budget in milliseconds
    out   R an answer    E an error of the script, with its line (JSON)    M out of memory; the process ends
"""

from __future__ import annotations

import json
import os
import re
import resource
import struct
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO

FRAME = struct.Struct(">Qc")
BUDGET = struct.Struct(">Q")
PARENT_POLL = 1.0
MARGIN = 64 << 20
"""What V8 and Python need themselves beyond the limit that a person sets."""


class ScriptError(Exception):
    """The script cannot be used: why, and the line."""

    def __init__(self, message: str, line: int | None) -> None:
        super().__init__(message)
        self.line = line


def main() -> None:
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever else writes to the standard output does not break a frame
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    try:
        _serve(requests, answers)
    finally:
        os._exit(0)  # V8 may be busy for ever, and would be waited for


def _end_with(parent: int) -> None:
    """End when the parent does, also while a script is running."""
    while os.getppid() == parent:
        time.sleep(PARENT_POLL)
    os._exit(0)


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    from py_mini_racer import JSOOMException

    run: Any = None
    while (frame := _received(requests)) is not None:
        kind, content = frame
        try:
            if kind == b"S":
                run = _loaded(**json.loads(content))
                _send(answers, b"R", b"")
            else:
                assert run is not None
                (budget,) = BUDGET.unpack_from(content)
                answer = str(run(content[BUDGET.size :].decode(), budget)).encode()
                run.engine.eval(
                    ""
                )  # V8 comes to it when nothing is left that the script has put off with a promise
                _send(answers, b"R", answer)
        except ScriptError as error:
            _send(answers, b"E", json.dumps([str(error), error.line]).encode())
        except JSOOMException:
            _send(answers, b"M", b"")
            return


def _loaded(harness: str, script: str, url: str, shown: str, otto: bool, memory: int) -> Any:
    """Evaluate the script; what comes back runs batches."""
    from py_mini_racer import JSEvalException, JSOOMException, MiniRacer

    engine = MiniRacer()
    prepare: Any = engine.eval(harness)
    engine.set_hard_memory_limit(memory)
    _limit_data(2 * memory + MARGIN)
    found = "module.exports" if otto else "typeof transform === 'undefined' ? undefined : transform"
    wanted = "assign a function to module.exports" if otto else "define a function transform(msg)"
    try:
        engine.eval(f"{script}\n//# sourceURL={url}")
        transform = engine.eval(f"(typeof ({found}) === 'function') ? ({found}) : undefined")
    except JSOOMException:
        raise ScriptError("the script takes more memory than memory_mb while it is loaded", None) from None
    except JSEvalException as error:
        raise ScriptError(*_complaint(str(error))) from None
    if not callable(transform):
        raise ScriptError(f"the script does not {wanted}", None)
    run: Any = prepare(transform, url, shown, otto)
    # The engine lives as long as what it made.
    run.engine = engine
    return run


def _complaint(text: str) -> tuple[str, int | None]:
    """Message and line of V8's `name:line: Error: message` and what follows it."""
    first = text.partition("\n")[0]
    found = re.match(r".*?:(\d+): (.*)", first)
    return (found[2], int(found[1])) if found else (first, None)


def _limit_data(more: int) -> None:
    """Let the process have this much more memory, wherever it is taken."""
    status = Path("/proc/self/status").read_text("ascii").splitlines()
    now = next(int(line.split()[1]) for line in status if line.startswith("VmData:")) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (now + more, now + more))


def _received(pipe: BinaryIO) -> tuple[bytes, bytes] | None:
    head = pipe.read(FRAME.size)
    if len(head) < FRAME.size:
        return None
    length, kind = FRAME.unpack(head)
    content = pipe.read(length)
    return (kind, content) if len(content) == length else None


def _send(pipe: BinaryIO, kind: bytes, content: bytes) -> None:
    rest = memoryview(FRAME.pack(len(content), kind) + content)
    while rest:
        rest = rest[pipe.write(rest) :]


if __name__ == "__main__":
    main()
