"""What users change about a consumer: OUTBOX-45 and -58."""

from __future__ import annotations

import msgspec
import pytest

from stoker.model.errors import InvalidInput
from stoker.model.outbox.consumers import Release, Seek, landing, sought
from stoker.model.outbox.cursor import Cursor, Start, Terms, leased
from stoker.model.time import SECOND

NOW = 1_750_000_000 * SECOND


@pytest.mark.spec("OUTBOX-45", "OUTBOX-58")
@pytest.mark.parametrize(
    "to, first, position",
    [
        ("beginning", None, 4),
        ("end", None, 9),
        (NOW, 7, 6),
        (NOW, 5, 4),
        (NOW, None, 9),
        ({0: 6}, None, 6),
        ({0: 1}, None, 4),
        ({0: 50}, None, 9),
        ({1: 6}, None, None),
    ],
)
def test_a_cursor_lands_between_what_is_deleted_and_what_is_there(
    to: Start | dict[int, int], first: int | None, position: int | None
) -> None:
    assert landing(to, 0, swept=4, last=9, first=first) == position


@pytest.mark.spec("OUTBOX-58")
def test_a_seek_takes_the_lease_and_the_past_away_but_not_the_token() -> None:
    held = leased(Cursor("orders", "publish", 0, 5, 3, "busy", due=9, size=2, failures=4, parked=1), "w", NOW, Terms())
    moved = sought(held, 2)
    assert (moved.position, moved.attempts, moved.last_error, moved.holder, moved.until) == (2, 0, None, None, None)
    assert (moved.due, moved.size, moved.failures) == (0, None, 0)
    assert msgspec.structs.replace(moved, position=5).token == held.token
    assert moved.parked == 1


@pytest.mark.spec("OUTBOX-58")
@pytest.mark.parametrize("wrong", ["middle", -1, {0: -1}, {-1: 0}, {"0": 1}, {0: True}, {0: 1.5}])
def test_a_seek_names_a_start_or_numbers(wrong: Start) -> None:
    with pytest.raises(InvalidInput):
        Seek(wrong)
    assert Seek({0: 5}).to == {0: 5}
    assert Seek("end").to == "end"


@pytest.mark.spec("OUTBOX-54")
def test_a_released_key_is_a_key() -> None:
    with pytest.raises(InvalidInput, match="key"):
        Release("")
