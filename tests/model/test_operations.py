"""The one moment of a bulk action, and which records of actions are old."""

from __future__ import annotations

import msgspec
import pytest

from stoker.model.errors import InvalidInput
from stoker.model.operations import CLOCKS_APART, Operation, bound_of, written_before

NOW = 1_800_000_000_000_000


@pytest.mark.spec("ADMIN-08")
def test_the_moment_of_an_action_is_that_of_its_preview_else_of_its_start() -> None:
    assert bound_of(None, NOW) == NOW
    assert bound_of(NOW - 5, NOW) == NOW - 5
    assert bound_of(NOW + CLOCKS_APART, NOW) == NOW, "a server whose clock is ahead has counted"
    for wrong in (NOW + CLOCKS_APART + 1, -1, -(1 << 60), 1 << 62):
        with pytest.raises(InvalidInput, match="must be the moment of a preview, since 1970 and not later than now"):
            bound_of(wrong, NOW)


@pytest.mark.spec("OPERATION-04")
def test_an_operation_is_old_when_no_call_has_written_it_since() -> None:
    def stored(name: str, seen: int) -> bytes:
        return msgspec.json.encode(Operation(id=name, who="", action="", filter="", bound=0, started=0, seen=seen))

    assert written_before([stored("a", NOW - 1), stored("b", NOW)], NOW) == [("a", stored("a", NOW - 1))]
