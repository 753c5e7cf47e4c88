"""The settings of a whole pipeline: defaults of the design, sizes and durations as text, limits that hold."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Pipeline
from penstock.base.errors import UsageError

MIB = 1 << 20


def test_the_defaults_are_those_of_the_design() -> None:
    settings = Pipeline("p").settings
    assert settings.segment_bytes == 1 << 30
    assert (settings.batch_bytes, settings.batch_messages, settings.partitions) == (128 * MIB, 500_000, None)
    assert (settings.log_limit, settings.max_message_bytes) == (50 * 10**9, 16 * MIB)
    assert (settings.compaction_interval, settings.retain_bytes, settings.retain_age) == (3600.0, None, None)
    assert (settings.offset_interval, settings.stop_timeout, settings.strict) == (1.0, 30.0, False)


def test_sizes_and_durations_are_written_as_text_or_numbers() -> None:
    settings = Pipeline(
        "p",
        segment_bytes="256MiB",
        log_limit="20GB",
        compaction_interval="10m",
        retain_age="7d",
        retain_bytes=1000,
        offset_interval=0.5,
        stop_timeout="0",
        strict=True,
        max_message_bytes="1MiB",
    ).settings
    assert (settings.segment_bytes, settings.log_limit) == (256 * MIB, 20 * 10**9)
    assert (settings.compaction_interval, settings.retain_age) == (600.0, 604_800.0)
    assert (settings.retain_bytes, settings.offset_interval, settings.stop_timeout) == (1000, 0.5, 0.0)
    assert (settings.strict, settings.max_message_bytes) == (True, MIB)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"segment_byte": 1}, "unknown setting 'segment_byte'; did you mean 'segment_bytes'?"),
        ({"xlog_dir": "x"}, "unknown setting 'xlog_dir'"),
        ({"batch_bytes": 0}, "setting 'batch_bytes': expected a number above 0, got 0"),
        ({"batch_messages": "many"}, "setting 'batch_messages': expected int, got str"),
        ({"log_limit": "a lot"}, "setting 'log_limit': expected a size such as 64MB"),
        ({"compaction_interval": "60"}, "setting 'compaction_interval': expected a duration such as"),
        ({"compaction_interval": 0}, "setting 'compaction_interval': expected a number above 0"),
        ({"retain_age": -1.0}, "setting 'retain_age': expected a number above 0"),
        ({"stop_timeout": -1}, "setting 'stop_timeout': expected a number above 0"),
        ({"strict": "yes"}, "setting 'strict': expected bool, got str"),
        ({"max_message_bytes": "2GiB"}, "setting 'max_message_bytes': expected 1 byte to 16MiB, got 2GiB"),
        ({"segment_bytes": 1}, "setting 'segment_bytes': expected 1KiB or more, got 1"),
        ({"segment_bytes": "20GB"}, "setting 'segment_bytes': expected at most 16GiB, got 20GB"),
        ({"batch_bytes": 1 << 63}, "setting 'batch_bytes': expected at most 9223372036854775807B"),
        ({"batch_messages": 1 << 31}, "setting 'batch_messages': expected at most 2147483647"),
        ({"replication": 6}, "setting 'replication': expected at most 5, got 6"),
        ({"store": "nope"}, "setting 'store': not absolute (nope)"),
        ({"store": ""}, "setting 'store': not absolute ()"),
        ({"store": "ftp://x/"}, "setting 'store': invalid scheme (ftp; expected s3, gs, azure"),
        ({"stop_timeout": 1e308}, "setting 'stop_timeout': expected at most 36500 days, got"),
        (
            {"compaction_interval": "1000000d"},
            "'compaction_interval': expected at most 36500 days, got 1e+06 days",
        ),
        ({"log_limit": "500MB"}, "500MB is less than one segment (segment_bytes=1GiB)"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        Pipeline("p", **given)
    assert caught.value.message.startswith("pipeline 'p': ")
    assert words in caught.value.message


def test_not_a_number_is_no_duration() -> None:
    with pytest.raises(UsageError, match="expected a number above 0, got nan"):
        Pipeline("p", offset_interval=float("nan"))


def test_variables_stand_in_pipeline_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEGMENT", "128MB")
    assert (
        Pipeline("p", segment_bytes="${SEGMENT}", log_limit="${NONE:-1GB}").settings.segment_bytes
        == 128_000_000
    )
