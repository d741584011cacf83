"""Which partition may be leased, by which worker, and what the lease says: OUTBOX-09 to -11, -37, -38, -46 to -48."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model.errors import InvalidInput, InvalidName, InvalidOption
from stoker.model.outbox.cursor import (
    Consumer,
    Cursor,
    LeaseRequest,
    NothingDue,
    Terms,
    attempts_seen,
    choose,
    deadline,
    fitting,
    leased,
    may_lease,
    remaining,
    unregistered,
    wanted,
    within,
)
from stoker.model.outbox.stream import Message
from stoker.model.time import SECOND, Instant

replace = msgspec.structs.replace
NOW: Instant = 1_750_000_000 * SECOND
TERMS = Terms()
FREE = Cursor("orders", "publish", 3)


def alive(worker: str) -> bool:
    return worker != "dead"


@pytest.mark.spec("OUTBOX-09")
def test_a_lease_is_free_or_over_and_not_even_its_holder_gets_it_sooner() -> None:
    assert may_lease(FREE, NOW, alive=True)
    held = leased(FREE, "w1", NOW, TERMS)
    assert (held.holder, held.until, held.attempts, held.served) == ("w1", NOW + 30 * SECOND, 1, NOW)
    assert not may_lease(held, NOW + 30 * SECOND - 1, alive=True)
    assert may_lease(held, NOW + 30 * SECOND, alive=True)
    assert may_lease(replace(held, until=None), NOW, alive=True)


@pytest.mark.spec("OUTBOX-46", "OUTBOX-47")
def test_a_lease_of_a_dead_worker_is_free_and_due_and_paused_ones_wait() -> None:
    held = leased(FREE, "w1", NOW, TERMS)
    assert may_lease(held, NOW, alive=False)
    later = replace(FREE, due=NOW + 1)
    assert not may_lease(later, NOW, alive=False)
    assert may_lease(later, NOW + 1, alive=False)
    assert not may_lease(replace(held, due=NOW + 5), NOW, alive=False)
    assert not may_lease(replace(FREE, paused=True), NOW, alive=False)


@pytest.mark.spec("OUTBOX-10")
@given(st.lists(st.integers(-SECOND, SECOND), min_size=1))
def test_tokens_only_grow_whatever_the_clock_does(steps: list[int]) -> None:
    cursor, now = FREE, NOW
    for step in steps:
        now += step
        after = leased(cursor, "w1", now, TERMS)
        assert after.token > cursor.token
        cursor = after


@pytest.mark.spec("OUTBOX-11")
def test_a_slow_acquisition_costs_the_handler_not_the_margin() -> None:
    end = deadline(NOW, TERMS)
    assert end == NOW + 28 * SECOND
    granted_late = leased(FREE, "w1", NOW + 5 * SECOND, TERMS)
    assert granted_late.until is not None
    assert granted_late.until - end >= TERMS.headroom
    assert [remaining(end, NOW + n * SECOND) for n in (5, 28, 40)] == [23 * SECOND, 0, 0]


@pytest.mark.spec("OUTBOX-11")
@pytest.mark.parametrize("lease, headroom", [(0, 0), (-5, -9), (5, 5), (5, 6), (5, -1), (1 << 60, 0)])
def test_the_margin_is_smaller_than_the_lease(lease: int, headroom: int) -> None:
    with pytest.raises(InvalidOption):
        Terms(lease, headroom)
    assert Terms(5, 0).headroom == 0


@pytest.mark.spec("OUTBOX-37")
def test_the_handler_sees_earlier_deliveries_only() -> None:
    assert attempts_seen(leased(FREE, "w1", NOW, TERMS)) == 0
    assert attempts_seen(leased(replace(FREE, attempts=2), "w1", NOW, TERMS)) == 2
    assert attempts_seen(FREE) == 0


@pytest.mark.spec("OUTBOX-48")
def test_a_lease_has_a_token_that_only_grows() -> None:
    assert leased(FREE, "w1", NOW, TERMS).token == NOW
    assert leased(replace(FREE, token=NOW + 5), "w1", NOW, TERMS).token == NOW + 6, "the clock was set back"


@pytest.mark.spec("OUTBOX-48")
def test_the_least_recently_served_goes_first() -> None:
    ready = [replace(FREE, partition=n, served=NOW - served) for n, served in enumerate((1, 9, 9, 5))]
    chosen = choose(ready, NOW, alive)
    assert isinstance(chosen, Cursor)
    assert chosen.partition == 1


@pytest.mark.spec("OUTBOX-47")
def test_a_rest_ends_when_the_next_partition_is_free() -> None:
    assert choose([], NOW, alive) == NothingDue()
    held = leased(FREE, "w1", NOW, TERMS)
    assert choose([held], NOW, alive) == NothingDue(30 * SECOND)
    assert choose([held, replace(FREE, due=NOW + 7)], NOW, alive) == NothingDue(7)
    assert choose([replace(held, due=NOW + 31 * SECOND)], NOW, alive) == NothingDue(31 * SECOND)
    paused = replace(FREE, paused=True)
    assert choose([paused], NOW, alive) == NothingDue()
    assert choose([paused, replace(FREE, partition=1)], NOW, alive) == replace(FREE, partition=1)
    assert choose([paused, held], NOW, alive) == NothingDue(30 * SECOND)
    assert choose([replace(held, holder="dead")], NOW, alive) == replace(held, holder="dead")


@pytest.mark.spec("OUTBOX-48")
def test_a_lease_reads_as_many_as_wanted_the_shrunken_size_and_the_bytes_allow() -> None:
    request = LeaseRequest("orders", "publish", "w1", 100)
    assert wanted(FREE, request) == 100
    assert wanted(replace(FREE, size=4), request) == 4
    assert wanted(replace(FREE, size=400), request) == 100
    assert [fitting(sizes, 10) for sizes in ([], [99], [4, 6], [4, 7], [4, 6, 0, 1], [99, 1])] == [0, 1, 2, 1, 3, 1]
    payloads = (b"1234", None, b"567890", b"1")
    found = [Message(bytes(16), "k", 0, n, payload, "t", 0) for n, payload in enumerate(payloads)]
    assert [len(within(found, most)) for most in (0, 4, 10, 11)] == [1, 2, 3, 4]
    for wrong in (0, 10_001):
        with pytest.raises(InvalidInput, match="limit"):
            LeaseRequest("orders", "publish", "w1", wrong)
    assert "'publish' of stream 'orders' is not registered" in str(unregistered(request))


@pytest.mark.spec("OUTBOX-45")
@pytest.mark.parametrize("wrong", ["middle", -1, True, 1.5, None])
def test_a_consumer_starts_at_the_beginning_the_end_or_an_instant(wrong: int) -> None:
    assert [Consumer("publish", start).start for start in ("beginning", "end", NOW)] == ["beginning", "end", NOW]
    with pytest.raises(InvalidInput, match="start"):
        Consumer("publish", wrong)
    with pytest.raises(InvalidName, match="consumer"):
        Consumer("two words")
