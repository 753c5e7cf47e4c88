"""Texts that others gave, made fit for a terminal and a log: they steer nothing, and no line of theirs passes for ours.

visible(text)      control characters are spelled out; lines and tabs stay, which errors of databases have
indented(text)     the same, and further lines do not begin where ours do
one_line(text)     lines and tabs are spelled out as well: for a cell, a name, a reason that a peer gave
"""

from __future__ import annotations


def visible(text: str) -> str:
    """The text with control characters spelled out: what comes out of data must not steer a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char in "\n\t" else _spelled(char) for char in text)


def indented(text: str, by: str = "  ") -> str:
    """As `visible`, each line behind the first moved to the right."""
    return visible(text).replace("\n", f"\n{by}")


def one_line(text: str, most: int | None = None) -> str:
    """The text in one line, cut to `most` characters if it has more."""
    if most is not None and len(text) > most:
        return f"{one_line(text[:most])}..."
    return text if text.isprintable() else "".join(map(_spelled, text))


def _spelled(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode()
