"""The conformance kit itself: each fault that is planted in an adaptor is caught, by the test that is named here."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from pathlib import Path

import pytest
from tests.testing.toysink import Fault, ToySinkSubject
from tests.testing.toysource import Bug, ToySubject

from penstock.base.errors import PenstockError
from penstock.testing.adaptors import SinkConformance, SourceConformance, model
from penstock.testing.adaptors.bench import Bench
from penstock.testing.adaptors.sink_once import Target

SOURCES = {
    Bug.LOSES_A_ROW_ON_RESUME: "a_copy_goes_on_after_a_crash_at_any_batch",
    Bug.REPEATS_A_BATCH_ON_RESUME: "a_copy_goes_on_after_a_crash_at_every_batch",
    Bug.BEGINS_ANEW: "a_copy_goes_on_after_a_crash_at_any_batch",
    Bug.POSITION_IN_MEMORY: "a_copy_goes_on_after_a_crash_at_any_batch",
    Bug.ACKNOWLEDGES_EARLY: "nothing_is_acknowledged_before_it_is_logged",
    Bug.NEVER_ACKNOWLEDGES: "what_is_logged_is_acknowledged_soon",
    Bug.GAP_BEHIND_THE_COPY: "changes_during_the_copy_are_neither_lost_nor_doubled",
    Bug.OVERLAP_BEHIND_THE_COPY: "changes_during_the_copy_are_neither_lost_nor_doubled",
    Bug.DEAF_TO_STOP: "tailing_stops_quickly_while_nothing_happens",
    Bug.READS_AHEAD: "a_copy_is_not_read_far_ahead_of_the_log",
    Bug.WAITS_FOR_THE_SERVER: "tailing_goes_on_when_the_server_is_back",
    Bug.SHOWS_THE_PASSWORD: "settings_that_are_wrong_are_told_apart_from_a_server_that_is_away",
    Bug.PARTIAL_UPDATES: "updates_come_as_whole_rows_in_their_order",
    Bug.DELETE_WITHOUT_KEY: "a_delete_comes_with_its_key",
    Bug.TWO_MESSAGES_FOR_A_KEY: "a_change_of_the_key_is_one_update_with_the_key_before",
    Bug.NO_TRUNCATE: "emptying_a_namespace_is_one_command",
    Bug.OLD_SCHEMA: "a_field_that_is_added_is_in_the_rows_behind_it",
    Bug.NO_END_OF_THE_COPY: "an_empty_namespace_is_complete_without_a_message",
    Bug.NUMBERS_AS_TEXT: "types_are_kept_by_the_copy",
    Bug.READS_WHAT_IS_NOT_WANTED: "a_namespace_that_is_not_wanted_is_not_read",
    Bug.FORGETS_NEW_NAMESPACES: "a_namespace_that_is_made_while_tailing_is_followed",
    Bug.LEAVES_ITS_SLOT: "release_takes_away_what_was_set_up_and_may_be_repeated",
    Bug.SECONDS: "every_row_is_copied_once",
    Bug.CUTS_LONG_TEXTS: "a_megabyte_and_nothing_are_texts_like_any_other",
    Bug.HIDES_KEYS: "inspect_finds_namespaces_and_keys",
    Bug.COPIES_INSIDE_A_TRANSACTION: "a_transaction_stays_whole_though_a_crash_cuts_it_and_a_copy_is_due",
    Bug.PASSES_OVER_A_GAP: "behind_a_release_nothing_is_passed_over_in_silence",
    Bug.CUTS_TRANSACTIONS: "a_transaction_stays_whole_while_nothing_crashes",
}

SINKS = {
    Fault.SWALLOWS_A_REFUSAL: "a_row_that_the_target_cannot_take_is_reported_and_none_is_lost",
    Fault.LOSES_A_ROW: "rows_arrive",
    Fault.KEEPS_NO_POSITION: "a_crash_before_the_offset_log_moves_repeats_the_batch_without_harm",
    Fault.POSITION_BEFORE_ROWS: "a_crash_before_the_offset_log_moves_repeats_the_batch_without_harm",
    Fault.SHOWS_WHAT_IS_STAGED: "nothing_is_visible_before_it_is_published",
    Fault.PUBLISHES_ALL_ATTEMPTS: "two_attempts_of_each_task_count_once",
    Fault.IGNORES_WHAT_TO_SKIP: "other_boundaries_after_a_crash_do_no_harm",
    Fault.IGNORES_A_REWIND: "an_older_range_comes_again_after_a_rewind",
    Fault.TAKES_A_FOREIGN_TARGET: "a_target_that_another_log_wrote_is_refused",
    Fault.LEAVES_ITS_STAGING: "staging_that_was_abandoned_is_cleaned_up_by_open",
    Fault.OLDEST_WINS: "updates_of_a_row_leave_the_last_one",
    Fault.UPDATES_ONLY_WHAT_IS_THERE: "an_update_of_a_row_that_is_not_there_is_taken",
    Fault.LEAVES_THE_OLD_KEY: "a_change_of_the_key_leaves_nothing_under_the_old_one",
    Fault.IGNORES_DELETES: "deletes_leave_nothing_of_a_row",
    Fault.TRUNCATES_EVERYTHING: "a_truncate_empties_its_namespace_and_no_other",
    Fault.EMPTY_IS_NULL: "a_megabyte_and_nothing_are_texts_like_any_other",
    Fault.NUMBERS_AS_FLOATS: "types_arrive_as_they_are",
    Fault.IGNORES_NEW_FIELDS: "a_field_that_is_added_in_mid_stream_arrives",
    Fault.OTHER_ERROR_WHEN_AWAY: "a_server_that_goes_away_is_waited_for",
    Fault.SHOWS_THE_PASSWORD: "settings_that_are_wrong_are_told_apart_from_a_server_that_is_away",
    Fault.MIXES_NAMESPACES: "each_namespace_has_its_own_rows",
    Fault.PROMISES_LESS: "what_the_sink_says_of_itself_is_what_the_subject_says",
    Fault.COUNTS_WRONG: "a_report_counts_what_was_staged",
}


def run(test: Callable[..., None], **given: object) -> None:
    wanted = signature(test).parameters
    test(**{name: value for name, value in given.items() if name in wanted})


@pytest.mark.parametrize("bug", Bug, ids=lambda bug: bug.name.lower())
def test_a_fault_of_a_source_is_caught(
    bug: Bug, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "QUICK", 1.0)
    subject = ToySubject(bug)
    subject.patience = 1.0
    bench = Bench(subject)
    test = getattr(SourceConformance(), f"test_{SOURCES[bug]}")
    try:
        with pytest.raises((AssertionError, ValueError, PenstockError)):
            run(test, bench=bench, crashing=False, caplog=caplog)
    finally:
        subject.start_server()
        subject.close()


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name.lower())
def test_a_fault_of_a_sink_is_caught(fault: Fault, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    subject = ToySinkSubject(fault)
    test = getattr(SinkConformance(), f"test_{SINKS[fault]}")
    with pytest.raises((AssertionError, KeyError, PenstockError, pytest.fail.Exception)):
        run(test, target=Target(subject, tmp_path), caplog=caplog)
    subject.close()


def test_every_fault_has_its_test() -> None:
    assert set(SOURCES) == set(Bug)
    assert set(SINKS) == set(Fault)


class TestToy(SourceConformance):
    """The one source that can do everything; its faults are those above."""

    @pytest.fixture
    def subject(self) -> ToySubject:
        return ToySubject()


class TestToySink(SinkConformance):
    @pytest.fixture
    def subject(self) -> ToySinkSubject:
        return ToySinkSubject()
