"""How often a consumer warns of turns that fail."""

from __future__ import annotations

import pytest

from stoker.outbox.failed_turns import FailedTurns


@pytest.mark.spec("RELAY-15")
def test_a_consumer_warns_at_once_and_then_every_ten_seconds() -> None:
    turns = FailedTurns()
    told = [(at, turns.failed(at)) for at in (100.0, 100.1, 103.0, 109.9, 110.0, 111.0, 120.5, 200.0)]
    assert [(at, n) for at, n in told if n is not None] == [(100.0, 0), (110.0, 3), (120.5, 1), (200.0, 0)]
