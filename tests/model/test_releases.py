"""Releases of an app."""

from __future__ import annotations

import pytest

from stoker.model.releases import MOST, Release, in_words, new_in, outdated
from stoker.model.time import MINUTE


@pytest.mark.spec("RELEASE-02")
def test_the_latest_releases_are_remembered() -> None:
    known = [Release(f"r{n}", n) for n in range(MOST + 3)]
    assert [one.name for one in outdated(known)] == ["r2", "r1", "r0"]
    assert outdated(known[:MOST]) == []


@pytest.mark.spec("RELEASE-03")
def test_what_was_seen_first_since_the_latest_release_is_new() -> None:
    known = [Release("b", 20), Release("a", 10)]
    assert [new_in(known, first) for first in (9, 10, 19, 20, 30)] == ["", "", "", "b", "b"]
    assert new_in(known[:1], 30) == new_in([], 30) == "", "nothing was before it"


@pytest.mark.spec("RELEASE-03")
def test_what_was_seen_first_in_another_release_is_not_new() -> None:
    known = [Release("b", 20 * MINUTE), Release("a", 10 * MINUTE)]
    assert new_in(known, 30 * MINUTE, ["b"]) == new_in(known, 30 * MINUTE, ["b", "a"]) == "b"
    assert new_in(known, 30 * MINUTE, ["a", "b"]) == "", "workers of the old release are still there"
    assert new_in(known, 19 * MINUTE + 1, ["b"]) == "b", "a record knows the minute only"
    assert new_in(known, 19 * MINUTE, ["b"]) == "", "it was seen before releases were noted"


@pytest.mark.spec("RELEASE-05")
def test_many_releases_in_words() -> None:
    assert [in_words(["a", "b", "c", "d"][:n]) for n in range(5)] == ["", "a", "a, b", "a, b, c", "a … d"]
