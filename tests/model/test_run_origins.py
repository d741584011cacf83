"""Where runs were."""

from __future__ import annotations

import pytest

from stoker.model.run_origins import MOST, RunOrigin, by_number, number, outdated, ran_on


@pytest.mark.spec("RUN-ORIGIN-01")
def test_a_number_fits_into_four_bytes_and_stays() -> None:
    found = [number(f"w{n}") for n in range(1_000)]
    assert len(set(found)) == 1_000
    assert all(0 <= one < 1 << 31 for one in found)
    assert number("w1") == 690467940, "stored jobs refer to it, and a script of Redis computes the same"


@pytest.mark.spec("RUN-ORIGIN-02")
def test_those_that_were_seen_last_are_remembered() -> None:
    known = [RunOrigin(n, f"w{n}", seen=n) for n in range(MOST + 2)]
    assert [one.number for one in outdated(known)] == [1, 0]
    assert outdated(known[2:]) == []


@pytest.mark.spec("RUN-ORIGIN-02")
def test_a_number_of_two_workers_tells_nothing() -> None:
    assert by_number([RunOrigin(1, "a"), RunOrigin(2)]) == {1: RunOrigin(1, "a")}


@pytest.mark.spec("RUN-ORIGIN-03")
def test_a_place_in_words() -> None:
    assert ran_on("web-3", 11, "") == "on web-3 / 11"
    assert ran_on("web-3", 11, "r42") == "on web-3 / 11, release r42"
