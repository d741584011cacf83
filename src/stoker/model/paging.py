"""Numbered pages over a list: page numbers, sizes, and how many pages there are."""

from __future__ import annotations

import msgspec

DEFAULT_SIZE = 25
LARGEST_SIZE = 100


class PageOf(msgspec.Struct, frozen=True):
    """Which part of a list is shown. Numbers begin at 1; a size is pulled between 1 and 100."""

    page: int = 1
    size: int = DEFAULT_SIZE

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "page", max(self.page, 1))
        msgspec.structs.force_setattr(self, "size", min(max(self.size, 1), LARGEST_SIZE))

    @property
    def start(self) -> int:
        """How many entries come before the page."""
        return (self.page - 1) * self.size

    def pages(self, total: int) -> int:
        """How many pages a list of this length has."""
        return -(-total // self.size)
