"""The contract on a sealed store: an engine in memory whose values are encrypted."""

from __future__ import annotations

import pytest

from stoker.engines.base import Clock, Engine
from stoker.engines.memory import MemoryEngine
from stoker.engines.sealed.engine import sealed
from stoker.engines.sealed.seal import Seal
from stoker.testing.conformance import *  # noqa: F403
from stoker.testing.conformance import MakeEngine

pytestmark = pytest.mark.variant

LOOKS_INSIDE = (
    "test_expire_keeps_no_more_finished_jobs_than_the_history",  # sets the history of the engine inside
    "test_a_number_that_is_wrong_is_repaired_after_a_minute",  # as does the next one with its counters
    "test_a_recount_knows_the_slots_that_waiting_jobs_keep",
    "test_reseal_stores_every_value_in_another_form",  # a change of what the engine inside stores
    "test_reseal_leaves_what_was_written_since",
    "test_a_resealed_job_runs_and_ends_as_ever",
    "test_reseal_leaves_a_page_that_was_written_since",
    "test_callbacks_of_groups_are_kept_in_another_form",
    "test_the_last_error_of_a_kind_is_kept_in_another_form",
    "test_messages_are_kept_in_another_form_while_they_are_delivered",
    "test_letters_and_reasons_are_kept_in_another_form",
    "test_find_without_a_match_is_an_empty_page",
    "test_find_by_metadata_compares_one_entry_as_people_see_it",
    "test_find_text_looks_into_the_payload",
    "test_find_text_looks_into_the_last_error",
    "test_find_text_ignores_case_beyond_ascii",
    "test_find_text_takes_every_character_literally",
    "test_find_combines_filters",
    "test_find_by_error_payload_and_attempts",
    "test_find_pages_with_a_filter_tested_row_by_row",
    "test_find_says_how_many_records_it_looked_at",
    "test_find_gives_a_page_up_after_the_longest_walk",
    "test_find_passes_over_what_cannot_match_and_over_nothing_else",
    "test_success_clears_the_last_error",
    "test_find_jobs_with_the_same_error",  # fingerprints are those of the sealed text
    "test_failures_are_counted_by_kind_error_and_release",
    "test_the_roll_up_adds_the_failures_of_a_closed_minute_to_their_errors",
    "test_alter_restore_undoes_a_cancel_and_a_discard",
    "test_letters_are_claimed_resolved_and_given_back",  # by a filter that names no stream
    "test_the_largest_payload_fits",  # a sealed value is larger
    "test_the_largest_row_is_kept",
    "test_whatever_is_appended_comes_back_unchanged",
    "test_a_lease_is_bounded_by_number_and_by_bytes",
    "test_a_lease_of_small_and_large_messages_ends_where_they_do_not_fit",
)
"""Cases that read or search what a store keeps, or fill it to the last byte: a sealed one differs there on purpose."""

for _name in LOOKS_INSIDE:
    del globals()[_name]


@pytest.fixture
def make_engine() -> MakeEngine:
    made: list[MemoryEngine] = []

    def make(clock: Clock | None) -> Engine:
        made.append(made[0].for_loop() if made else MemoryEngine(clock))
        return sealed(made[-1], Seal(keys={"now": b"k" * 32, "before": bytes(32)}))

    return make
