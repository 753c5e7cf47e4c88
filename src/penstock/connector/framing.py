"""Frames out of a stream of bytes, however it is cut into pieces.

Payloads are views into the pieces that came; only a frame that lies across pieces is put together, and grows as its
bytes come, so that an announced length costs nothing before it is sent. A length of zero or above the limit is a
fault: the frames before it still count, nothing behind it does.
"""

from __future__ import annotations

from typing import Final

from penstock.connector.frames import MAX_FRAME, FrameError

LENGTH_BYTES: Final = 4


class Splitter:
    """Cuts payloads (tag and body) out of what is fed to it."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self.fault: FrameError | None = None
        """Why nothing more is read; frames before the fault have been handed out."""
        self._part = bytearray()

    @property
    def pending(self) -> int:
        """Bytes of a frame that is not complete."""
        return len(self._part)

    def feed(self, data: bytes) -> list[memoryview]:
        """The payloads that are complete now. `data` must not change afterwards, since views point into it."""
        payloads: list[memoryview] = []
        if self.fault is not None:
            return payloads
        at = self._completed(data, payloads) if self._part else 0
        view, end, limit = memoryview(data), len(data), self.limit
        while self.fault is None and end - at >= LENGTH_BYTES:
            length = int.from_bytes(view[at : at + LENGTH_BYTES], "big")
            if not 0 < length <= limit:
                self.fault = self._bad_length(length)
                return payloads
            behind = at + LENGTH_BYTES + length
            if behind > end:
                break
            payloads.append(view[at + LENGTH_BYTES : behind])
            at = behind
        if self.fault is None and at < end:
            self._part += view[at:]
        return payloads

    def _completed(self, data: bytes, payloads: list[memoryview]) -> int:
        """Complete the frame that was begun, as far as `data` does; how much of it that took."""
        part, view, at = self._part, memoryview(data), 0
        if len(part) < LENGTH_BYTES:
            at = LENGTH_BYTES - len(part)
            part += view[:at]
            if len(part) < LENGTH_BYTES:
                return len(data)
        length = int.from_bytes(part[:LENGTH_BYTES], "big")
        if not 0 < length <= self.limit:
            self.fault = self._bad_length(length)
            return len(data)
        missing = LENGTH_BYTES + length - len(part)
        part += view[at : at + missing]
        if len(part) < LENGTH_BYTES + length:
            return len(data)
        payloads.append(memoryview(bytes(part))[LENGTH_BYTES:])
        self._part = bytearray()
        return at + missing

    def _bad_length(self, length: int) -> FrameError:
        if length == 0:
            return FrameError("a frame of length 0")
        return FrameError(f"a frame of {length:,} bytes, the limit is {self.limit:,}")
