"""A pattern that is taken means the same to the engine that Spark has: Java's."""

from __future__ import annotations

import itertools
import random

import pytest
from pyspark.sql import SparkSession

from penstock.base.errors import UsageError
from penstock.pipeline.namespace import Namespace

pytestmark = pytest.mark.spark

PARTS = (
    *"abA1_.-&~|#]}^$ ", r"\.", r"\w", r"\W", r"\d", r"\D", r"\s", r"\S", r"\A", r"\b", r"\v", r"\a", r"\t", r"\x41",
    r"\_", r"\-", r"\&", r"\é", "é", "[ab]", "[^ab]", "[a-c]", "[]a]", "[^]a]", r"[\b]", r"[\w.]", "[&&a]", "[^&&a]",
    "[a&&b]", "[a-]", "[-a]", "[a-c-e]", "[&a]", "[a|b]", "[~~]", "[||]", "[+--]", r"[^\W]", r"[\v]", "[[a]]",
    "(?i:a)", "(?s:.)", "(?m:^a$)", "(?i-s:a)", "(?:a|b)", "(a)", "()", "(|a)", "(?>a)", "(?=a)", "(?<!a)", r"(a)\1",
)  # fmt: skip
REPEATED = ("", "", "", "*", "+", "?", "{2}", "{1,}", "{,2}", "*?", "++")
NAMES = (
    "a",
    "ab",
    "aab",
    "AB",
    "a.b",
    "_",
    "public.orders",
    "a\tb",
    "1",
    "a1b",
    "&",
    "a&b",
    "]",
    "}",
    "~",
    "|",
    "a-",
    "aé",
)


def test_javas_engine_finds_what_ours_finds(spark: SparkSession) -> None:
    draw = random.Random(7)
    engine = spark._jvm.java.util.regex.Pattern  # type: ignore[union-attr]
    taken = 0
    singly = [part + often for part, often in itertools.product(PARTS, REPEATED)]
    pairs = [draw.choice(singly) + draw.choice(singly) for _ in range(200)]
    for text in dict.fromkeys([*(part for part in singly if len(part) > 1), *pairs]):
        try:
            ours = Namespace(text)
        except UsageError:
            continue
        taken += 1
        names = NAMES if r"\b" not in text else NAMES[:-1]  # Java's knows letters beyond ASCII
        found = engine.compile(ours.pattern).asPredicate()
        assert [ours.matches(name) for name in names] == [found.test(name) for name in names], text
    assert taken > 200
