"""How much a consumer takes at once and how long it rests: OUTBOX-30 to OUTBOX-36."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model.errors import InvalidOption
from stoker.model.outbox.batch_size import (
    PARTITIONS_AT_ONCE,
    PROFILES,
    SEQUENCER_MAX,
    Ending,
    Pace,
    Size,
    pace,
    resized,
    rest,
    retry_delay,
    sequencer_wait,
)
from stoker.model.time import MILLISECOND, MINUTE, SECOND

RULES = Pace(batch=8, threshold=2)
FULL = Size(8)


@pytest.mark.spec("OUTBOX-30")
@pytest.mark.parametrize("processed, shrunk", [(None, 1), (0, 1), (-2, 1), (1, 1), (5, 5), (8, 8), (99, 8)])
def test_the_batch_shrinks_to_what_worked_after_failures_in_a_row(processed: int | None, shrunk: int) -> None:
    once = resized(FULL, Ending.RETRY, processed, 8, RULES)
    assert once == Size(8, 1)
    assert resized(once, Ending.RETRY, processed, 8, RULES) == Size(shrunk, 2)


@pytest.mark.spec("OUTBOX-30")
def test_a_success_ends_the_row_of_failures() -> None:
    once = resized(FULL, Ending.RETRY, 0, 8, RULES)
    again = resized(resized(once, Ending.DELIVERED, 8, 8, RULES), Ending.RETRY, 0, 8, RULES)
    assert again == Size(8, 1)


@pytest.mark.spec("OUTBOX-31")
@pytest.mark.parametrize("processed, shrunk", [(None, 1), (3, 3), (50, 8)])
def test_a_reject_shrinks_at_once_and_forgets_the_failures(processed: int | None, shrunk: int) -> None:
    assert resized(Size(8, 1), Ending.REJECTED, processed, 8, RULES) == Size(shrunk, 0)


@pytest.mark.spec("OUTBOX-32")
def test_each_success_doubles_until_normal() -> None:
    size, seen = Size(1, 5), []
    for _ in range(5):
        size = resized(size, Ending.DELIVERED, size.current, size.current, RULES)
        seen.append(size.current)
    assert seen == [2, 4, 8, 8, 8]
    assert size == FULL


@pytest.mark.spec("OUTBOX-30", "OUTBOX-31", "OUTBOX-32")
@given(
    turns=st.lists(st.tuples(st.sampled_from(Ending), st.one_of(st.none(), st.integers(-5, 500)))),
    batch=st.integers(1, 300),
    threshold=st.integers(1, 5),
)
def test_the_size_is_bounded_and_only_success_lets_it_grow(
    turns: list[tuple[Ending, int | None]], batch: int, threshold: int
) -> None:
    rules, size = Pace(batch=batch, threshold=threshold), Size(batch)
    for ending, processed in turns:
        after = resized(size, ending, processed, size.current, rules)
        assert 1 <= after.current <= batch
        assert after.current <= size.current or ending is Ending.DELIVERED
        size = after


@pytest.mark.spec("OUTBOX-33")
def test_the_retry_delay_doubles_up_to_its_end() -> None:
    assert [retry_delay(n, SECOND, MINUTE) // SECOND for n in (-1, 0, 1, 2, 3, 6, 7, 8)] == [
        1,
        1,
        1,
        2,
        4,
        32,
        60,
        60,
    ]


@pytest.mark.spec("OUTBOX-33")
@given(failures=st.integers(-5, 10**9), base=st.integers(1, 10**12), more=st.integers(0, 10**12))
def test_the_retry_delay_is_monotone_and_bounded(failures: int, base: int, more: int) -> None:
    delay = retry_delay(failures, base, base + more)
    assert base <= delay <= base + more
    assert delay <= retry_delay(failures + 1, base, base + more)


@pytest.mark.spec("OUTBOX-34")
def test_the_rest_follows_the_ending() -> None:
    rules = Pace(breath=5 * MILLISECOND)
    assert rest(Ending.DELIVERED, 0, rules) == rules.breath
    assert rest(Ending.REJECTED, 3, rules) == rules.breath
    assert rest(Ending.RETRY, 3, rules) == 4 * SECOND
    assert Pace().breath == 0


@pytest.mark.spec("OUTBOX-35")
@pytest.mark.parametrize(
    "wrong",
    [
        {"batch": 0},
        {"batch": 10_001},
        {"threshold": 0},
        {"idle": 0},
        {"breath": -1},
        {"breath": 2 * SECOND, "idle": SECOND},
        {"retry_base": 0},
        {"retry_max": 0},
        {"retry_base": 2 * MINUTE},
        {"retry_max": 1 << 60},
    ],
)
def test_a_pace_that_cannot_work_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidOption):
        Pace(**wrong)
    assert Pace(retry_base=MINUTE, retry_max=MINUTE).retry_base == MINUTE


@pytest.mark.spec("OUTBOX-35")
def test_profiles_differ_in_the_promised_direction() -> None:
    assert pace("default") == Pace()
    assert (pace("default").batch, pace("low_latency").batch) == (100, 10)
    assert pace("low_latency").idle < pace("default").idle < pace("relaxed").idle
    assert pace("high_throughput").batch > pace("default").batch > pace("low_latency").batch
    assert msgspec.structs.replace(PROFILES["relaxed"], batch=7).batch == 7
    with pytest.raises(InvalidOption, match="relaxed"):
        pace("furious")  # type: ignore[arg-type]
    assert PARTITIONS_AT_ONCE == 4


@pytest.mark.spec("OUTBOX-36")
def test_a_store_that_fails_is_left_alone_longer_each_time() -> None:
    waits = [sequencer_wait(n) // MILLISECOND for n in (-1, 0, 1, 2, 8, 9, 10**9)]
    assert waits == [100, 100, 200, 400, 25_600, 30_000, 30_000]
    assert SEQUENCER_MAX == 30 * SECOND
