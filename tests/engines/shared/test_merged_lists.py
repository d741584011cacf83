"""Several sorted lists, read as one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.engines.shared.merged_lists import AHEAD, MergedLists

IDS = st.lists(st.integers(1, 10_000), unique=True, max_size=60)


@pytest.mark.spec("FIND-27")
@given(st.lists(IDS, max_size=6), st.integers(1, 25), st.booleans())
def test_all_entries_come_once_and_in_order(lists: list[list[int]], n: int, descending: bool) -> None:
    """Whatever the lists hold and however many are asked for."""
    sources = [
        sorted(((one.to_bytes(2), number) for one in ids), reverse=descending) for number, ids in enumerate(lists)
    ]
    merged = MergedLists(len(sources), b"\xff" * 3 if descending else b"", descending=descending)
    found = []
    while True:
        while hungry := merged.hungry(n):
            for number, after, asked in hungry:
                rest = [entry for entry in sources[number] if (entry[0] < after if descending else entry[0] > after)]
                merged.feed(number, rest[:asked])
        some = merged.take(n)
        found += some
        if len(some) < n:
            break
    keys = [key for key, _ in found]
    assert keys == sorted(keys, reverse=descending)
    assert sorted(found) == sorted(entry for source in sources for entry in source)


@pytest.mark.spec("FIND-27")
def test_many_long_lists_are_read_only_a_little_ahead() -> None:
    """The first page of two hundred lists reads a few entries of each."""
    merged = MergedLists(200, b"", descending=False)
    read = 0
    while hungry := merged.hungry(26):
        for number, after, asked in hungry:
            start = int.from_bytes(after) // 200 + 1 if after else 0
            read += asked
            merged.feed(number, [((200 * place + number).to_bytes(4), None) for place in range(start, start + asked)])
    assert [int.from_bytes(key) for key, _ in merged.take(26)] == list(range(26))
    assert read == 200 * AHEAD
