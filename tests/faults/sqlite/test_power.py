"""Power loss: every image of the disk that could be left holds what was acknowledged."""

from __future__ import annotations

import random
import secrets
from pathlib import Path

import pytest

from tests.faults.sqlite.audit import audit
from tests.faults.sqlite.images import ACKNOWLEDGED, Step, has_tables, have_strace, images, lay, lost, steps, traced

pytestmark = [pytest.mark.engine("sqlite"), pytest.mark.timeout(600)]


SYNCS = ("fsync", "fdatasync")


@pytest.fixture(scope="module", autouse=True)
def strace() -> None:
    if missing := have_strace():
        pytest.skip(f"durability across a power loss cannot be shown here: {missing}")


@pytest.mark.spec("FAULT-10", "FAULT-11")
@pytest.mark.parametrize(
    ("durability", "journal", "n"), [("power", "wal", 120), ("power", "delete", 60), ("process", "wal", 40)]
)
def test_what_a_power_loss_leaves(tmp_path: Path, campaign: bool, durability: str, journal: str, n: int) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    run_folder, image_folder = tmp_path / "run", tmp_path / "image"
    run_folder.mkdir()
    image_folder.mkdir()
    trace = tmp_path / "trace"
    traced(
        "tests.faults.sqlite.acknowledged_work", run_folder, 60 if campaign else 20, durability, journal, trace=trace
    )
    with trace.open() as lines:
        run = list(steps(lines, run_folder))
    promised = (run_folder / "acknowledged").read_bytes()
    assert b"error" not in promised
    inserts = ends = complaints = seen = 0
    for files, acknowledged in images(run, n * 10 if campaign else n, random.Random(seed)):
        seen += 1
        path = lay(image_folder, files)
        if not path.exists():
            assert not acknowledged
            continue
        gone = lost(path, acknowledged)
        inserts, ends = inserts + gone[0], ends + gone[1]
        if files["jobs.db"] and has_tables(path):
            complaints += bool(audit(path))
    print(
        f"{seen} images of {len(run)} steps, {promised.count(b'insert')} inserts acknowledged, lost {inserts} + {ends}"
    )
    assert seen == (n * 10 if campaign else n)
    assert complaints == 0
    if durability == "power":
        assert (inserts, ends) == (0, 0), f"seed {seed}"


@pytest.mark.spec("FAULT-26")
def test_what_a_failed_sync_forgot_costs_nothing_that_was_acknowledged_later(tmp_path: Path, campaign: bool) -> None:
    seed = secrets.randbits(32)
    chance = random.Random(seed)
    print(f"seed {seed}")
    _, calm = alone(tmp_path / "calm", None)
    first = next(place for place, step in enumerate(calm) if step.name == ACKNOWLEDGED and step.data)
    opening, writer = (sum(step.call in SYNCS for step in part) for part in (calm[:first], calm[first:]))
    # Counted in each thread by itself, and the one that opens must not be met.
    places = range(opening + 1, writer)
    for when in places if campaign else chance.sample(places, 3):
        lines, run = alone(tmp_path / str(when), str(when))
        assert [step.call for step in run].count("forget") == 1, when
        assert lines.count("error EngineUnavailable") == lines.count("error") == 1, lines
        image = tmp_path / f"{when} image"
        image.mkdir()
        for files, acknowledged in images(run, 40, chance):
            path = lay(image, files)
            assert lost(path, acknowledged) == (0, 0), (seed, when)
            assert not has_tables(path) or audit(path) == [], (seed, when)


def alone(folder: Path, failing: str | None) -> tuple[str, list[Step]]:
    """Run one engine for a short time; returns its lines and what it did to its files."""
    folder.mkdir()
    trace = folder.with_suffix(".trace")
    traced("tests.faults.sqlite.acknowledged_work", folder, 14, "power", "wal", "alone", trace=trace, failing=failing)
    with trace.open() as lines:
        return (folder / "acknowledged").read_text(), list(steps(lines, folder))
