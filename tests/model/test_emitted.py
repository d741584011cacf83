"""Values that runs emit: pages in a ring, where a run begins, and how far a reader is."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from stoker.model.emitted import (
    LARGEST_EMITTED,
    PAGE_BYTES,
    PAGES,
    SLOTS,
    Base,
    Entry,
    Place,
    Ring,
    What,
    base_of,
    entries_of,
    entry,
    lines_behind,
)
from stoker.model.errors import InvalidInput
from stoker.model.steps import Step, StepState, is_page, kept_by_copy


class Rows:
    """The pages of a job as a store has them: the newer row of a name counts."""

    def __init__(self) -> None:
        self.named: dict[str, Step] = {}

    def write(self, ring: Ring, *, everything: bool = False) -> None:
        if ring.base is None:
            ring.base = base_of(self.pages, ring.token)
        rows, _ = ring.take(ring.base, everything=everything)
        self.named |= {row.name: replace(row, token=ring.token) for row in rows}

    @property
    def pages(self) -> list[Step]:
        return [row for row in self.named.values() if row.until]

    def numbers(self, after: int = 0) -> list[int]:
        return [one.n for one in entries_of(self.pages, after)]

    @property
    def size(self) -> int:
        return sum(len(row.value or b"") for row in self.named.values())


def ring_of(token: int = 1, *, fresh: bool = True, attempt: int = 1) -> Ring:
    return Ring(token, attempt, fresh=fresh)


def value(n: int, size: int = 1) -> bytes:
    return entry(n, What.VALUE, b'"' + b"x" * size + b'"')


@pytest.mark.spec("EMIT-01")
def test_entries_come_back_with_number_attempt_and_time() -> None:
    rows, ring = Rows(), ring_of(attempt=3)
    assert not ring
    ring.add(entry(7, What.VALUE, b'{"a":1}'))
    ring.add(entry(8, What.PROGRESS, b'[0.5,"half",null]'))
    assert ring
    rows.write(ring)
    assert not ring
    assert entries_of(rows.pages, 0) == [
        Entry(1, What.VALUE, b'{"a":1}', 3, 7),
        Entry(2, What.PROGRESS, b'[0.5,"half",null]', 3, 8),
    ]
    assert entries_of(rows.pages, 1) == [Entry(2, What.PROGRESS, b'[0.5,"half",null]', 3, 8)]
    assert [row.name for row in rows.pages] == [SLOTS[0]]
    assert is_page(SLOTS[0])


@pytest.mark.spec("EMIT-02")
def test_a_ring_keeps_the_last_thousand_and_no_more_rows() -> None:
    rows, ring = Rows(), ring_of()
    for n in range(1, 3_001):
        ring.add(value(n))
        if n % 7 == 0:
            rows.write(ring)
    rows.write(ring)
    numbers = rows.numbers()
    assert numbers == list(range(numbers[0], 3_001))
    assert 1_000 <= len(numbers) <= 1_100
    assert len(rows.named) == PAGES


@pytest.mark.spec("EMIT-02")
@pytest.mark.parametrize("seed", range(20))
def test_a_ring_is_bounded_in_bytes_too(seed: int) -> None:
    """Values of any size, runs that follow each other, writes now and then: always the newest, without a hole."""
    chance, rows, told = random.Random(seed), Rows(), 0
    for token in range(1, 6):
        ring = ring_of(token, fresh=token == 1)
        for _ in range(chance.randrange(400)):
            ring.add(value(told, chance.choice([1, 50, 3_000, PAGE_BYTES, LARGEST_EMITTED - 2])))
            told += 1
            if chance.random() < 0.3:
                rows.write(ring)
        rows.write(ring)
        assert rows.size <= PAGES * PAGE_BYTES + PAGES * 100
        numbers = rows.numbers()
        assert numbers == list(range(told - len(numbers) + 1, told + 1))
        assert len(rows.named) <= PAGES
        if told:
            assert numbers, "the last value is always there"


@pytest.mark.spec("EMIT-03")
def test_numbers_grow_over_attempts() -> None:
    rows, first = Rows(), ring_of(1)
    for n in range(40):
        first.add(value(n))
    rows.write(first)
    second = ring_of(2, fresh=False, attempt=2)
    second.add(value(0))
    rows.write(second)
    found = entries_of(rows.pages, 39)
    assert [(one.n, one.attempt) for one in found] == [(40, 1), (41, 2)]
    assert base_of([], 1) == Base(0, 0)


@pytest.mark.spec("EMIT-04")
def test_a_run_finds_its_own_pages_again() -> None:
    """A child process and its worker write the same rows: by what is stored, each knows where the run began."""
    rows, earlier, worker, child = Rows(), ring_of(1), ring_of(2, fresh=False), ring_of(2, fresh=False)
    for n in range(100):
        earlier.add(value(n))
    rows.write(earlier)
    for n in range(2_000):
        worker.add(value(n))
        child.add(value(n))
    rows.write(worker)
    before = dict(rows.named)
    rows.write(child, everything=True)
    assert rows.named == before
    child.add(value(2_000))
    rows.write(child)
    assert rows.numbers()[-1] == 2_101


@pytest.mark.spec("EMIT-05")
def test_what_was_not_written_is_written_later_as_it_is_then() -> None:
    rows, ring = Rows(), ring_of()
    ring.add(value(1))
    assert ring.base is not None
    _, taken = ring.take(ring.base)
    ring.put_back(taken)
    rows.write(ring)
    assert rows.numbers() == [1], "what was not written is written by the next call"
    ring.add(value(2))
    rows.write(ring)
    assert rows.numbers() == [1, 2]
    for n in range(5_000):  # the store is away for long
        ring.add(value(n))
    rows.write(ring)
    assert rows.numbers()[-1] == 5_002


@pytest.mark.spec("EMIT-06")
def test_a_page_that_cannot_be_read_is_left_out() -> None:
    good = ring_of()
    good.add(value(1))
    assert good.base is not None
    [row], _ = good.take(good.base)
    bad = Step(SLOTS[5], value=b"[1", until=40)
    assert [one.n for one in entries_of([bad, row], 0)] == [1]
    assert base_of([row, bad], 9) == Base(40, 6)


@pytest.mark.spec("EMIT-07")
def test_a_copy_of_a_job_has_emitted_nothing() -> None:
    rows = {"a": Step("a", StepState.DONE, b"1", at=1), SLOTS[3]: Step(SLOTS[3], StepState.DONE, b"[]", 1, at=1)}
    assert kept_by_copy(rows, None) == {"a": rows["a"]}
    assert kept_by_copy(rows, "a") == {"a": rows["a"]}


@pytest.mark.spec("EMIT-08")
def test_places_are_read_back() -> None:
    log = ("one", "two")
    for place in (
        Place(),
        Place(57),
        Place(57).logged(log),
        Place(60, *Place().logged(log)[1:3], ended=True),
        Place(1, ended=True),
    ):
        assert Place.read(place.text) == place
    assert Place.read(None) == Place()
    assert Place.read(12) == Place(12)
    assert Place(3).text == "3"
    for bad in ("", "x", "-1", "1-2", True, 1.5, "1" * 16, "1-end-end", -1):
        with pytest.raises(InvalidInput, match="must be the number or the cursor of an event"):
            Place.read(bad)  # type: ignore[arg-type]


@pytest.mark.spec("EMIT-08")
def test_lines_of_the_log_behind_a_place() -> None:
    place = Place().logged(("a", "b"))
    assert place.lines_behind(("a", "b", "c")) == ("c",)
    assert place.lines_behind(("a", "b")) == ()
    assert place.lines_behind(("b", "c")) == ("b", "c")
    assert Place().lines_behind(("a",)) == ("a",)
    assert lines_behind((), ("a",)) == ("a",)
    assert lines_behind(("t",), ("t", "t")) == ("t",)
    assert lines_behind(("a", "b", "c"), ("b", "c", "d")) == ("d",)
    assert lines_behind(("a", "b"), ("x",)) == ("x",)


@pytest.mark.spec("EMIT-01")
def test_a_page_that_cannot_be_read_hides_no_other() -> None:
    rows, ring = Rows(), ring_of()
    ring.add(value(1))
    rows.write(ring)
    whole = entries_of(rows.pages, 0)
    broken = replace(rows.pages[0], name=SLOTS[1], value=b"\xff", until=0)
    assert [one.n for one in whole] == [1]
    assert entries_of([broken, *rows.pages], 0) == whole
