from __future__ import annotations

import pytest

from stoker.model.paging import PageOf


@pytest.mark.spec("SNAPSHOT-03")
def test_numbers_and_sizes_are_pulled_in() -> None:
    pulled = [PageOf(), PageOf(0, 0), PageOf(-3, 500), PageOf(3, 10)]
    assert [(one.page, one.size, one.start) for one in pulled] == [(1, 25, 0), (1, 1, 0), (1, 100, 0), (3, 10, 20)]


@pytest.mark.spec("SNAPSHOT-03")
@pytest.mark.parametrize("total, pages", [(0, 0), (1, 1), (25, 1), (26, 2)])
def test_the_number_of_pages_is_rounded_up(total: int, pages: int) -> None:
    assert PageOf().pages(total) == pages
