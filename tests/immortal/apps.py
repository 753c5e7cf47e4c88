"""Immortals that the tests run as processes."""

from __future__ import annotations

import asyncio
import os
from typing import BinaryIO

import msgspec

from penstock.immortal import Delivered, Immortal, field, impulse, rpc

TARGET = int(os.environ.get("ECHO_TARGET", "200"))
WINDOW = 8
PAGE = 1 << 20
PAGES = int(os.environ.get("ARCHIVE_PAGES", "48"))
PEERS = {"left": "right", "right": "left"}


class Echo(Immortal):
    """Two of these talk to each other: every poke makes one counted call that is answered, and one that is not."""

    poked: int = 0
    done: int = 0
    echoed: int = 0
    told: int = 0
    sum: int = 0
    wrong: list[str] = field(list)

    async def on_primary(self) -> None:
        while True:
            for _ in range(min(WINDOW - (self.poked - self.done), TARGET - self.poked)):
                self.poke.send()
            await asyncio.sleep(0.01)

    @impulse
    async def poke(self) -> None:
        if self.poked >= TARGET:
            return
        self.poked += 1
        number = self.poked
        peer = Echo.at(PEERS[self.name])
        peer.tell.send(number)
        answer = await peer.echo(number, f"{self.name} {number}")
        if answer != f"{self.name} {number} echoed":
            self.wrong.append(f"call {number} was answered {answer}")
        self.done += 1
        self.sum += number

    @rpc
    def tell(self, number: int) -> None:
        if number != self.told + 1:
            self.wrong.append(f"told {number} after {self.told}")
        self.told = number

    @rpc
    async def echo(self, number: int, text: str) -> str:
        if number != self.echoed + 1:
            self.wrong.append(f"asked {number} after {self.echoed}")
        self.echoed = number
        if number % 10 == 0:
            back = await Echo.at(PEERS[self.name]).plus_one(number)
            if back != number + 1:
                self.wrong.append(f"{number} plus one is {back}")
        return f"{text} echoed"

    @rpc
    def plus_one(self, number: int) -> int:
        return number + 1


class Echo2(Echo):
    """The same, upgraded; open handlers go on in it."""

    version = 1
    upgraded_at: int = -1

    def on_upgrade(self, old: Echo) -> None:
        self.upgraded_at = old.poked


class EchoChanged(Echo2):
    """It does something else behind the fiftieth call."""

    version = 2

    @rpc
    async def echo(self, number: int, text: str) -> str:
        self.echoed = number
        if number % 10 == 0:
            await Echo.at(PEERS[self.name]).plus_one(number)
        return f"{text} echoed" if number <= 50 else f"{text} changed"


class Kit(Immortal):
    """Takes and gives the rows of the conformance kit."""

    taken: dict[str, list[tuple[int, str, str, str | None, str | None]]] = field(dict)
    rows: dict[str, dict[int, str]] = field(dict)

    @impulse
    def on_message(self, message: Delivered) -> None:
        row = (message.offset, message.op, message.text, message.key_text, message.old_key_text)
        self.taken.setdefault(message.ns, []).append(row)

    @impulse
    def of(self, ns: str) -> list[tuple[int, str, str, str | None, str | None]]:
        return self.taken.get(ns, [])

    @impulse
    def write(self, ns: str, op: str, rows: list[tuple[int, str]]) -> None:
        mine = self.rows.setdefault(ns, {})
        for number, text in rows:
            if number not in mine:
                continue
            if op == "delete":
                del mine[number]
            else:
                mine[number] = text
            self.emit(ns, op, {"id": number, "text": text}, key={"id": number})

    @impulse
    def write_texts(self, ns: str, texts: list[str]) -> None:
        for text in texts:
            document = msgspec.json.decode(text)
            self.rows.setdefault(ns, {})[document["id"]] = document.get("text", "")
            self.emit(ns, "insert", msgspec.Raw(text.encode()), key={"id": document["id"]})

    @impulse
    def open(self, ns: str) -> None:
        self.declare(ns)

    @impulse
    def contents(self, ns: str) -> dict[str, str]:
        return {str(number): text for number, text in self.rows.get(ns, {}).items()}


def page(number: int) -> bytes:
    return number.to_bytes(8, "big") * (PAGE // 8)


class Vault(Immortal):
    """Its pages are declared, and all in memory."""

    pages: dict[int, bytes] = field(dict)

    def on_first_start(self) -> None:
        for number in range(PAGES):
            self.pages[number] = page(number)

    @impulse
    def whole(self) -> int:
        return sum(content == page(number) for number, content in self.pages.items())


class Archive(Immortal):
    """Its pages are never in memory together: its hooks write and read one after the other."""

    pages: int = PAGES
    read: int = 0

    def save(self, file: BinaryIO) -> None:
        for number in range(self.pages):
            file.write(page(number))

    def load(self, file: BinaryIO) -> None:
        self.read = 0
        for number in range(self.pages):
            assert file.read(PAGE) == page(number)
            self.read += 1
