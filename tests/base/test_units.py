"""Sizes and durations: what is read as what, and that what is printed is read back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.units import Unit, duration_text, parse_duration, parse_size, rough_size, size_text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("17", 17),
        ("1_000", 1000),
        ("17B", 17),
        ("1kB", 1000),
        ("64MB", 64_000_000),
        ("1GB", 10**9),
        ("1 GB", 10**9),
        ("2tb", 2 * 10**12),
        ("1KiB", 1024),
        ("64MiB", 64 << 20),
        ("1GiB", 1 << 30),
        ("1gib", 1 << 30),
        ("1.5GiB", 3 << 29),
        ("0.1GB", 100_000_000),
        (" 5MB ", 5_000_000),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "GB", "-1GB", "1G", "1 g b", "1GBs", "1,5GB", "ten", ".5GB", "1e9", "1  GB"]
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="expected a size such as 64MB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("30s", 30.0),
        ("500ms", 0.5),
        ("1.5h", 5400.0),
        ("1h30m", 5400.0),
        ("7d", 604_800.0),
        ("1d12h", 129_600.0),
        ("2us", 2e-6),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "s", "-1s", "1 h", "1w", "1H", "soon", "1h30"])
def test_what_is_no_duration(text: str) -> None:
    """A number without a unit is refused: `30` means seconds to one reader and minutes to the next."""
    with pytest.raises(ValueError, match=r"expected a duration such as 500ms, 30s, 1h30m or 7d, got"):
        parse_duration(text)


@settings(max_examples=200)
@given(st.integers(0, 1 << 50))
def test_what_is_printed_is_read_back(number: int) -> None:
    assert parse_size(size_text(number)) == number
    assert parse_duration(duration_text(number / 1000)) == pytest.approx(number / 1000, rel=1e-12)


@pytest.mark.parametrize(
    ("size", "text"), [(1 << 30, "1GiB"), (10**9, "1GB"), (1536, "1536B"), (5 * 2**20, "5MiB"), (0, "0B")]
)
def test_sizes_are_printed_in_the_unit_that_divides_them(size: int, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(3600.0, "1h"), (86400.0, "1d"), (90.0, "90s"), (0.25, "250ms"), (0.0, "0s")]
)
def test_durations_are_printed_in_the_unit_that_divides_them(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_a_unit_knows_how_its_text_is_read() -> None:
    assert Unit.BYTES.parse("1kB") == 1000
    assert Unit.SECONDS.parse("1m") == 60.0


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (4_100_629, "4.1 MB"),
        (2_000_000, "2.0 MB"),
        (50 * 10**9, "50.0 GB"),
        (123_400, "123 kB"),
    ],
)
def test_a_size_for_a_person_is_rough(count: int, text: str) -> None:
    assert rough_size(count) == text
