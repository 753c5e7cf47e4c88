"""Fragments: a span [begin, end) of a journal and the SHA1 of its bytes (reference, 19).

In a store a fragment is a file whose name says all of it, `{begin}-{end}-{sha1}{suffix}`: both offsets as 16
hexadecimal digits, the sum as 40, and a suffix for the codec. Its content path is
`{journal}/{postfix}/{name}`, without the middle part when the postfix is empty. An empty fragment has the sum
of all zeros, not the SHA1 of no bytes.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import cast

from penstock.journal import protocol
from penstock.journal.tokens import ValidationError, check_path, field

ZERO_SUM = bytes(20)
MAX_OFFSET = (1 << 63) - 1
POSTFIX_LENGTH = (0, 512)


class Codec(IntEnum):
    """How a stored fragment is compressed. The numbers are the wire's."""

    INVALID = 0
    NONE = 1
    GZIP = 2
    ZSTANDARD = 3
    SNAPPY = 4
    GZIP_OFFLOAD_DECOMPRESSION = 5

    @property
    def suffix(self) -> str:
        """What a file of this codec is written with."""
        return _SUFFIXES[self][0]

    @classmethod
    def of_suffix(cls, suffix: str) -> Codec:
        """The codec of a listed file, whose suffix may be an older spelling, in any case."""
        wanted = suffix.lower()
        for codec, suffixes in _SUFFIXES.items():
            if wanted in suffixes:
                return codec
        raise ValidationError(f"unknown compression suffix ({suffix})")

    def to_proto(self) -> protocol.CompressionCodec:
        # At run time the wire's enum values are plain numbers; only its type stub has a class for them.
        return cast("protocol.CompressionCodec", int(self))


_SUFFIXES: dict[Codec, tuple[str, ...]] = {
    Codec.NONE: (".raw",),
    Codec.GZIP: (".gz", ".gzip"),
    Codec.ZSTANDARD: (".zst", ".zstandard"),
    Codec.SNAPPY: (".sz", ".snappy"),
    Codec.GZIP_OFFLOAD_DECOMPRESSION: ("", ".gzod"),
}

_SUM = struct.Struct(">QQI")
_OFFSET = re.compile("[0-9a-fA-F]{1,16}")
_SUM_AND_SUFFIX = re.compile(r"([0-9a-fA-F]{40})(\.[^.]*)?")


@dataclass(frozen=True, slots=True)
class Fragment:
    """One fragment. `backing_store` is empty, and `mod_time` (unix seconds) 0, while it is only local."""

    journal: str
    begin: int
    end: int
    sum: bytes = ZERO_SUM
    codec: Codec = Codec.NONE
    backing_store: str = ""
    mod_time: int = 0
    path_postfix: str = ""

    @property
    def length(self) -> int:
        return self.end - self.begin

    @property
    def is_local(self) -> bool:
        """Whether it is in no store yet."""
        return not self.backing_store

    @property
    def content_name(self) -> str:
        """The file's name in a store."""
        return f"{self.begin:016x}-{self.end:016x}-{self.sum.hex()}{self.codec.suffix}"

    @property
    def content_path(self) -> str:
        """The file's path below a store's root."""
        if self.path_postfix:
            return f"{self.journal}/{self.path_postfix}/{self.content_name}"
        return f"{self.journal}/{self.content_name}"

    def contains(self, offset: int) -> bool:
        return self.begin <= offset < self.end

    def covers(self, other: Fragment) -> bool:
        """Whether every byte of `other` is in this one; an equal span covers."""
        return self.begin <= other.begin and other.end <= self.end

    def to_proto(self) -> protocol.Fragment:
        return protocol.Fragment(
            journal=self.journal,
            begin=self.begin,
            end=self.end,
            sum=sum_to_proto(self.sum),
            compression_codec=self.codec.to_proto(),
            backing_store=self.backing_store,
            mod_time=self.mod_time,
            path_postfix=self.path_postfix,
        )

    @classmethod
    def from_proto(cls, message: protocol.Fragment) -> Fragment:
        """The value of a message that passed validation."""
        return cls(
            journal=message.journal,
            begin=message.begin,
            end=message.end,
            sum=sum_from_proto(message.sum),
            codec=Codec(message.compression_codec),
            backing_store=message.backing_store,
            mod_time=message.mod_time,
            path_postfix=message.path_postfix,
        )


def parse_name(journal: str, name: str) -> Fragment:
    """The fragment a file of this name holds; ValidationError if it is not a fragment's name."""
    fields = name.split("-")
    if len(fields) != 3:
        raise ValidationError(f"not a fragment: expected 3 fields separated by '-' ({name})")
    with field(f"fragment {name}"):
        begin, end = (_parse_offset(text) for text in fields[:2])
        if end < begin:
            raise ValidationError(f"expected Begin <= End ({begin}; {end})")
        tail = _SUM_AND_SUFFIX.fullmatch(fields[2])
        if tail is None:
            raise ValidationError(f"expected a SHA1 sum of 40 hexadecimal digits and a suffix ({fields[2]})")
        codec = Codec.of_suffix(tail[2] or "")
    return Fragment(journal, begin, end, bytes.fromhex(tail[1]), codec)


def parse_path(journal: str, path: str, *, backing_store: str = "", mod_time: int = 0) -> Fragment:
    """The fragment of a file listed at `path` below `{journal}/`.

    The last segment is its name, the rest its postfix. A journal whose name continues another's (`a/b/c` and
    `a/b/c/d`) is therefore listed with it, as if `d` were a postfix: the caller must know which is which.
    """
    postfix, _, name = path.rpartition("/")
    with field(f"postfix of {path}"):
        check_path(postfix, *POSTFIX_LENGTH)
    named = parse_name(journal, name)
    return Fragment(
        journal, named.begin, named.end, named.sum, named.codec, backing_store, mod_time, path_postfix=postfix
    )


def _parse_offset(text: str) -> int:
    if _OFFSET.fullmatch(text) is None:
        raise ValidationError(f"expected an offset of up to 16 hexadecimal digits ({text})")
    offset = int(text, 16)
    if offset > MAX_OFFSET:
        raise ValidationError(f"offset does not fit a signed 64-bit number ({text})")
    return offset


def sum_parts(digest: bytes) -> tuple[int, int, int]:
    """The three numbers by which the wire carries a SHA1 digest."""
    part1, part2, part3 = _SUM.unpack(digest)
    return part1, part2, part3


def sum_to_proto(digest: bytes) -> protocol.SHA1Sum:
    part1, part2, part3 = sum_parts(digest)
    return protocol.SHA1Sum(part1=part1, part2=part2, part3=part3)


def sum_from_proto(message: protocol.SHA1Sum) -> bytes:
    return _SUM.pack(message.part1, message.part2, message.part3)
