"""Whole frames, byte for byte, as other implementations of the protocol produce or read them."""

from __future__ import annotations

from penstock.connector.frames import (
    NOTHING_SEEN,
    Ack,
    EosMessage,
    Error,
    Frame,
    Hello,
    Message,
    Migrate,
    MigrationAck,
    Notify,
    NotifyAck,
    Ok,
    Restart,
)
from penstock.connector.inner import (
    Inner,
    ListUncommitted,
    Phase1,
    Phase2,
    Reply,
    ReplyUncommitted,
    WorkersLeft,
)

COOKIE = b"Dragons-Love-Tacos"
TXN = "app-w-initializer-id-1:c_id=3"
TXN_HEX = "001d6170702d772d696e697469616c697a65722d69642d313a635f69643d33"
STREAM_0 = "05" + "00" * 26

BOTH_WAYS: list[tuple[Frame, str]] = [
    (
        Hello("0.0.1", COOKIE, "celsius at least once", "instance"),
        "0000003d000005302e302e310012447261676f6e732d4c6f76652d5461636f73001563656c73697573206174206c65617374206f6e"
        "63650008696e7374616e6365",
    ),
    (
        Hello("v0.0.1", COOKIE, "app", "initializer"),
        "0000002f00000676302e302e310012447261676f6e732d4c6f76652d5461636f730003617070000b696e697469616c697a6572",
    ),
    (Hello("0.0.1", b"", "p", "i"), "00000010000005302e302e310000000170000169"),
    (
        Hello("0.0.1", b"", "p", "i", frozenset({"migrate"})),
        "00000019000005302e302e31000000017000016900076d696772617465",
    ),
    (Ok(500), "0000000501000001f4"),
    (Ok(0), "000000050100000000"),
    (Ok(500, frozenset({"offsets"})), "0000000e01000001f400076f666673657473"),
    (Error("Bad cookie"), "0000000d02000a42616420636f6f6b6965"),
    (Error(""), "00000003020000"),
    (Notify(7, "stream-7", 0), "0000001b030000000000000007000873747265616d2d370000000000000000"),
    (
        Notify(0x0123456789ABCDEF, "s", 0x1122334455667788),
        "00000014030123456789abcdef0001731122334455667788",
    ),
    (NotifyAck(True, 7, NOTHING_SEEN), "0000001204010000000000000007ffffffffffffffff"),
    (NotifyAck(True, 7, 400), "00000012040100000000000000070000000000000190"),
    (NotifyAck(False, 7, 0), "00000012040000000000000000070000000000000000"),
    (
        Message(7, 8, 0, b"k1", b"hello"),
        "000000220500000000000000070000000000000008000000000000000000026b3168656c6c6f",
    ),
    (
        Message(7, 9, 0, b"", b"hello"),
        "0000002005000000000000000700000000000000090000000000000000000068656c6c6f",
    ),
    (
        Message(7, 10, 0, b"k1"),
        "0000001d050000000000000007000000000000000a000000000000000000026b31",
    ),
    (Message(7, 11), "0000001b050000000000000007000000000000000b00000000000000000000"),
    (
        Message(7, 12, 1546300800000, b"", b"x"),
        "0000001c050000000000000007000000000000000c0000016806b5bc00000078",
    ),
    (
        Message(7, 13, -1, b"", b"x"),
        "0000001c050000000000000007000000000000000dffffffffffffffff000078",
    ),
    (
        Message(1, 0, 0, b"", b"line one\n"),
        "000000240500000000000000010000000000000000000000000000000000006c696e65206f6e650a",
    ),
    (
        Message(1, 9, 0, b"", b"line two\n"),
        "000000240500000000000000010000000000000009000000000000000000006c696e652074776f0a",
    ),
    (Ack(450), "0000000906000001c200000000"),
    (
        Ack(10, ((7, 400), (8, NOTHING_SEEN))),
        "00000029060000000a00000002000000000000000700000000000001900000000000000008ffffffffffffffff",
    ),
    (Ack(0, ((7, 400),)), "0000001906000000000000000100000000000000070000000000000190"),
    (Restart(), "000000050700000000"),
    (Restart("127.0.0.1:7110"), "00000013070000000e3132372e302e302e313a37313130"),
    (EosMessage(7), "00000009080000000000000007"),
    (Migrate("127.0.0.1", 7110), "000000100a000000093132372e302e302e311bc6"),
    (MigrationAck(), "000000010b"),
]

INNER: list[tuple[Inner, str]] = [
    (ListUncommitted(77778), f"00000024{STREAM_0}c90000000000012fd2"),
    (
        WorkersLeft(7, ("worker1", "worker2")),
        f"0000003a{STREAM_0}ce0000000000000007000000020007776f726b6572310007776f726b657232",
    ),
    (Reply(TXN, True), f"0000003c{STREAM_0}cc{TXN_HEX}01"),
    (Reply(TXN, False), f"0000003c{STREAM_0}cc{TXN_HEX}00"),
    (Phase2(TXN, True), f"0000003c{STREAM_0}cd{TXN_HEX}01"),
    (Phase2(TXN, False), f"0000003c{STREAM_0}cd{TXN_HEX}00"),
    (ReplyUncommitted(77778), f"00000028{STREAM_0}ca0000000000012fd200000000"),
    (ReplyUncommitted(77778, (TXN,)), f"00000047{STREAM_0}ca0000000000012fd200000001{TXN_HEX}"),
    (
        Phase1(TXN, ((1, 0, 18),)),
        f"00000057{STREAM_0}cb{TXN_HEX}00000001000000000000000100000000000000000000000000000012",
    ),
    (
        Phase1(TXN, ((1, 18, 18),)),
        f"00000057{STREAM_0}cb{TXN_HEX}00000001000000000000000100000000000000120000000000000012",
    ),
]

READ_ONLY: list[tuple[Frame, str]] = [
    (EosMessage(7), "000000110800000000000000070000000000000190"),
    (Restart(), "0000000107"),
    (Ok(500), "0000002801000001f40000000100000000000000010001700000000000000028000000010001730003613a31"),
    (Error(r"\xc3("), "00000005020002c328"),
    (Notify(7, r"\xff", 0), "000000140300000000000000070001ff0000000000000000"),
]
"""Frames that others send in a form of their own; we read them and never write them so."""

REFUSED = {
    "empty payload": "",
    "reserved tag": "09000000000000000700000000",
    "unknown tag": "0c",
    "last tag": "ff",
    "OK without credits": "01",
    "OK cut": "01000001",
    "ERROR cut in its text": "02000a426164",
    "NOTIFY without a point": "0300000000000000070001730000",
    "success that is neither 0 nor 1": "040200000000000000070000000000000190",
    "MESSAGE cut in its head": "05000000000000000700000000000000",
    "MESSAGE cut in its key": "05000000000000000700000000000000080000000000000000000500",
    "ACK of more streams than it has": "060000000affffffff0000000000000007",
    "an address that is no text": "0700000002c328",
    "RESTART cut in its address": "070000000e3132",
    "EOS cut": "08000000",
    "MIGRATE without a port": "0a000000093132372e302e302e31",
    "HELLO cut": "000005302e302e31",
}
REFUSED_INNER = {
    "empty body": "",
    "unknown": "c8",
    "commit that is neither 0 nor 1": f"cc{TXN_HEX}02",
    "a list longer than its frame": f"cb{TXN_HEX}ffffffff00000000",
    "names longer than their frame": "ce0000000000000007ffffffff",
    "cut": "c900000000",
}
