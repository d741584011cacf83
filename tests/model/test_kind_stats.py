"""What jobs of a kind did lately."""

from __future__ import annotations

import pytest

from stoker.model.events import Point
from stoker.model.kind_stats import BARS, KindStats, Ranks, kind_stats
from stoker.model.time import MINUTE

START = 30_000_000 * MINUTE


@pytest.mark.spec("STATS-13")
def test_the_hour_of_a_kind_from_its_minutes() -> None:
    points = [
        Point("send", "kind_completed", START, 6),
        Point("send", "kind_completed", START + 59 * MINUTE, 2),
        Point("send", "kind_failed", START + MINUTE, 1),
        Point("send", "kind_retried", START + 2 * MINUTE, 1),
        Point("send", "kind_processing", START, 6, 60, 10, 20, 30, 40),
        Point("sort", "kind_enqueued", START, 5),
    ]
    found = kind_stats(points, START, 60)
    send = found["send"]
    assert (send.completed, send.failed, send.retried, send.runs, send.failure_ratio) == (8, 1, 1, 10, 0.2)
    assert (send.run, send.wait) == (Ranks(10, 20, 30), None)
    assert (send.bars[0], send.bars[1], send.bars[-1], len(send.bars)) == (7, 1, 2, BARS)
    assert found["sort"] == KindStats()
    assert found["sort"].failure_ratio is None
