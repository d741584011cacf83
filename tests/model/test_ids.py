from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model.errors import InvalidInput
from stoker.model.ids import (
    SHORT,
    Mint,
    compose,
    derived,
    floor,
    is_derived,
    link,
    minted_at,
    occurrence,
    parse,
    short,
    shortened,
    text,
)
from stoker.model.time import LATEST, MILLISECOND, SECOND

NOW = 1_800_000_000_000_000
TAILS = st.integers(0, (1 << 74) - 1)
MILLIS = st.integers(0, LATEST // MILLISECOND)


def constant(byte: int) -> Callable[[int], bytes]:
    return lambda n: bytes([byte]) * n


@pytest.mark.spec("ID-01")
def test_a_thousand_ids_of_one_millisecond_sort_in_minting_order() -> None:
    mint = Mint(lambda: NOW, constant(0xFF))
    ids = [mint() for _ in range(1_000)]
    assert ids == sorted(set(ids))
    assert {minted_at(job) for job in ids} == {NOW}


@pytest.mark.spec("ID-01")
@given(st.lists(st.integers(0, 10 * SECOND), min_size=2, max_size=50), st.binary(min_size=10, max_size=10))
def test_ids_rise_whatever_the_clock_does(offsets: list[int], entropy: bytes) -> None:
    ticks = iter(offsets)
    mint = Mint(lambda: NOW + next(ticks), lambda n: entropy[:n])
    ids = [mint() for _ in offsets]
    assert ids == sorted(set(ids))


@pytest.mark.spec("ID-01")
def test_a_mint_that_runs_out_borrows_the_next_millisecond() -> None:
    mint = Mint(lambda: NOW, constant(0))
    mint()
    mint._last = (NOW // MILLISECOND, (1 << 74) - 2)
    last, borrowed, after = mint(), mint(), mint()
    assert last < borrowed < after
    assert (minted_at(last), minted_at(borrowed), minted_at(after)) == (NOW, NOW + MILLISECOND, NOW + MILLISECOND)


@pytest.mark.spec("ID-01")
def test_a_new_millisecond_starts_from_fresh_entropy_with_room_to_count() -> None:
    clock = itertools.count(NOW, MILLISECOND)
    mint = Mint(lambda: next(clock), constant(0xFF))
    one, two = uuid.UUID(bytes=mint()), uuid.UUID(bytes=mint())
    assert one.int & ((1 << 62) - 1) == two.int & ((1 << 62) - 1) == (1 << 62) - 1
    assert one.int >> 75 & 1 == 0


@pytest.mark.spec("ID-02")
@given(MILLIS, TAILS)
def test_every_id_is_a_version_seven_uuid(milli: int, tail: int) -> None:
    made = uuid.UUID(bytes=compose(milli, tail))
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert made.int >> 80 == milli


@pytest.mark.spec("ID-02")
@given(MILLIS, TAILS, MILLIS, TAILS)
def test_ids_sort_by_time_and_then_by_their_tail(milli: int, tail: int, other: int, end: int) -> None:
    assert (compose(milli, tail) < compose(other, end)) == ((milli, tail) < (other, end))


@pytest.mark.spec("ID-03")
@given(st.integers(0, LATEST), TAILS)
def test_a_time_window_over_ids(at: int, tail: int) -> None:
    job = compose(at // MILLISECOND, tail)
    assert minted_at(job) == at // MILLISECOND * MILLISECOND
    assert floor(at) <= job < floor(at + MILLISECOND)
    assert minted_at(floor(at)) <= at


@pytest.mark.spec("ID-03")
def test_before_the_beginning_there_is_no_smaller_id() -> None:
    assert floor(-1) == floor(0) == bytes(16)


@pytest.mark.spec("ID-04")
@given(st.binary(min_size=16, max_size=16))
def test_an_id_survives_being_shown_and_pasted(job: bytes) -> None:
    shown = text(job)
    assert parse(shown) == job
    assert parse(shown.upper()) == job
    assert parse(shown.replace("-", "")) == job
    assert parse("{" + shown + "}") == job


@pytest.mark.spec("ID-04", "INPUT-03")
@pytest.mark.parametrize("value", ["", "7", "x" * 36, "0" * 33, None, 7, b"0" * 16], ids=repr)
def test_what_is_no_id_is_refused_with_the_culprit(value: Any) -> None:
    with pytest.raises(InvalidInput, match="must be a UUID") as refused:
        parse(value)
    assert refused.value.field == "job id"
    assert refused.value.value is value


@pytest.mark.spec("SCHED-06")
@given(st.integers(0, LATEST), st.sampled_from(["digest", "digest2", "a.b:c-d"]))
def test_the_id_of_an_occurrence_is_a_uuid_of_name_and_instant(at: int, name: str) -> None:
    job = occurrence(name, at)
    assert job == occurrence(name, at)
    assert minted_at(job) == at // MILLISECOND * MILLISECOND
    assert (uuid.UUID(bytes=job).version, uuid.UUID(bytes=job).variant) == (8, uuid.RFC_4122)
    assert job not in (occurrence(name, at + 1), occurrence(f"{name}x", at))


@pytest.mark.spec("SCHED-06")
def test_the_id_of_an_occurrence_never_changes() -> None:
    """Stored ids must be found again by every later version."""
    assert text(occurrence("digest", NOW)) == "01a3185c-5000-8632-a706-b9c4bf5880cb"


@pytest.mark.spec("ID-05")
@given(st.integers(0, LATEST - SECOND), TAILS, st.integers(0, 50))
def test_derived_ids_are_of_a_version_of_their_own_in_the_same_layout(at: int, tail: int, n: int) -> None:
    """They keep their order among minted ids: a window of time holds both."""
    minted = compose(at // MILLISECOND, tail)
    for made in (derived(minted, "called"), link(minted, n), occurrence("digest", at)):
        assert (uuid.UUID(bytes=made).version, uuid.UUID(bytes=made).variant) == (8, uuid.RFC_4122)
        assert minted_at(made) == minted_at(minted)
        assert floor(at) <= made < floor(at + MILLISECOND)
        assert is_derived(made)
    assert link(minted, n) not in (link(minted, n + 1), minted)
    assert not is_derived(minted)


@pytest.mark.spec("ID-06")
@pytest.mark.parametrize(
    "written, head, tail",
    [
        ("0190f3c2", "0190f3c2", ""),
        ("0190F3C2-1", "0190f3c21", ""),
        ("0190f3c2…9f1a", "0190f3c2", "9f1a"),
        ("0190f3c2-...-9F1A", "0190f3c2", "9f1a"),
        ("0190f3c2…", "0190f3c2", ""),
    ],
)
def test_an_id_that_was_cut_keeps_its_ends(written: str, head: str, tail: str) -> None:
    cut = shortened(written)
    assert cut == (head, tail)
    assert cut is not None
    assert cut.fits(bytes.fromhex(head.ljust(32 - len(tail), "7") + tail))
    assert not cut.fits(bytes.fromhex(head.ljust(32, "7"))) or not tail
    assert not cut.begins(bytes(16))
    assert cut.begins(cut.first)
    assert not cut.begins((int.from_bytes(cut.first) - 1).to_bytes(16)), "it is the first"


@pytest.mark.spec("ID-06")
@pytest.mark.parametrize(
    "written", ["0190f3c", "0190f3c…9f1a", "send", "", "0190f3c2…x", "0190f3c2-1111-7111-8111-111111111111", "…9f1a"]
)
def test_what_is_no_id_that_was_cut_is_none(written: str) -> None:
    assert shortened(written) is None


@pytest.mark.spec("CLI-69")
def test_a_short_id_is_one_that_can_be_typed() -> None:
    whole = "0193b0f0-0000-7000-8000-00000000abcd"
    assert short(whole) == "0193b0f0…abcd"
    assert len(short(whole)) == SHORT
    cut = shortened(short(whole))
    assert cut is not None
    assert cut.fits(parse(whole))
