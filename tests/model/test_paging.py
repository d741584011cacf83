from __future__ import annotations

import pytest

from stoker.model.paging import PageOf


@pytest.mark.spec("SNAPSHOT-03")
def test_numbers_and_sizes_are_pulled_in() -> None:
    assert PageOf() == PageOf(1, 25)
    assert PageOf(0, 0) == PageOf(1, 1)
    assert PageOf(-3, 500) == PageOf(1, 100)
    assert PageOf(3, 10).start == 20


@pytest.mark.spec("SNAPSHOT-03")
@pytest.mark.parametrize("total, pages", [(0, 0), (1, 1), (25, 1), (26, 2)])
def test_the_number_of_pages_is_rounded_up(total: int, pages: int) -> None:
    assert PageOf().pages(total) == pages
