"""Tests of the tests: engines with a bug must be found, a correct one must not."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from stoker.engines.sqlite import SqliteEngine
from stoker.testing.history import report
from tests.faults.sqlite.broken import BROKEN, HandsOutTwice, traffic

pytestmark = pytest.mark.engine("sqlite")


@pytest.mark.spec("FAULT-70")
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_sound_engine_breaks_no_law(tmp_path: Path, seed: int) -> None:
    violations = await traffic(SqliteEngine, tmp_path, seed)
    assert not violations, report(violations)


@pytest.mark.spec("FAULT-70")
@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
async def test_a_broken_engine_is_found_out(tmp_path: Path, kind: type[SqliteEngine]) -> None:
    HandsOutTwice.last = []
    for seed in itertools.count(1):
        if violations := await traffic(kind, tmp_path, seed, steps=60):
            laws = sorted({violation.law for violation in violations})
            print(f"{kind.__name__} found out with seed {seed} by {', '.join(laws)}")
            return
        assert seed < 5, f"{kind.__name__} was not found out"
