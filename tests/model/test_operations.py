"""The one moment of a bulk action, and which records of actions are old."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stoker.model.errors import InvalidInput
from stoker.model.job import Status
from stoker.model.operations import CLOCKS_APART, Operation, bound_of, written_before
from stoker.model.time import SECOND

NOW = 1_800_000_000_000_000


@pytest.mark.spec("ADMIN-08")
def test_the_moment_of_an_action_is_that_of_its_preview_else_of_its_start() -> None:
    assert bound_of(None, NOW) == NOW
    assert [bound_of(at, NOW) for at in (0, NOW - 5)] == [0, NOW - 5]
    assert bound_of(NOW + CLOCKS_APART, NOW) == NOW, "a server whose clock is ahead has counted"
    for wrong in (NOW + CLOCKS_APART + 1, -1, -(1 << 60), 1 << 62):
        with pytest.raises(InvalidInput, match="must be the moment of a preview, since 1970 and not later than now"):
            bound_of(wrong, NOW)


@pytest.mark.spec("OPERATION-04")
def test_an_operation_is_old_when_no_call_has_written_it_since() -> None:
    def stored(name: str, seen: int) -> bytes:
        return msgspec.json.encode(Operation(id=name, who="", action="", filter="", bound=0, started=0, seen=seen))

    assert written_before([stored("a", NOW - 1), stored("b", NOW)], NOW) == [("a", stored("a", NOW - 1))]


def operation(**given: Any) -> Operation:
    return Operation(**{"id": "a", "who": "", "action": "cancel", "filter": "", "bound": 0, "started": NOW, **given})


@pytest.mark.spec("OPERATION-05")
def test_an_operation_knows_its_rate_and_how_long_it_lasts() -> None:
    begun = operation(total=1_000, seen=NOW)
    assert (begun.looked_at, begun.rate, begun.lasts) == (0, None, None)
    under_way = operation(total=1_000, seen=NOW + 4 * SECOND, changed=300, refused={Status.DONE: 100})
    assert (under_way.looked_at, under_way.rate, under_way.lasts) == (400, 100.0, 6 * SECOND)
    resumed = msgspec.structs.replace(under_way, begun=NOW + 100 * SECOND, before=400, seen=NOW + 102 * SECOND)
    assert resumed.rate is None
    resumed = msgspec.structs.replace(resumed, changed=400)
    assert (resumed.rate, resumed.lasts) == (50.0, 10 * SECOND), "the time between is not counted"
    assert msgspec.structs.replace(under_way, total=None).lasts is None
    assert msgspec.structs.replace(under_way, state="stopped").lasts is None


@pytest.mark.spec("OPERATION-06")
def test_an_operation_tells_what_became_of_each_class() -> None:
    assert operation().fates == {"changed": 0}
    ended = operation(
        total=20, state="done", changed=5, cancel_requested=1, blocked=2, missing=3, refused={Status.DONE: 4}, later=6
    )
    assert ended.fates == {
        "changed": 5,
        "asked to stop": 1,
        "key taken": 2,
        "no longer there": 3,
        "left: done": 4,
        "changed before their turn": 5,
        "came later": 6,
    }
    assert "changed before their turn" not in msgspec.structs.replace(ended, state="running").fates
    assert "changed before their turn" not in msgspec.structs.replace(ended, total=15).fates
