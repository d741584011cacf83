"""Power loss, for SQLite: every image of the disk that could be left holds what was acknowledged.

A run of one engine is traced; from its system calls come the images, as `tests/faults/sqlite/images.py` describes.
"""

from __future__ import annotations

import random
from pathlib import Path

from lab.judge import Verdict
from tests.faults.sqlite.audit import audit
from tests.faults.sqlite.images import has_tables, have_strace, images, lay, lost, steps, traced

ROUNDS = 20
IMAGES = 300
"""For each minute of a storm, and this many at most; a storm of a few seconds has none."""

FEWEST = 30


def fail_power(folder: Path, minutes: float, seed: int, verdict: Verdict) -> int:
    """Look into images of a run; returns how many, 0 where system calls cannot be traced."""
    wanted = min(round(IMAGES * minutes), IMAGES)
    if wanted < FEWEST or have_strace():
        return 0
    run_folder, image_folder, trace = folder / "run", folder / "image", folder / "trace"
    run_folder.mkdir()
    image_folder.mkdir()
    traced("tests.faults.sqlite.acknowledged_work", run_folder, ROUNDS, "power", "wal", trace=trace)
    with trace.open() as lines:
        run = list(steps(lines, run_folder))
    seen = 0
    for files, acknowledged in images(run, wanted, random.Random(seed)):
        seen += 1
        path = lay(image_folder, files)
        if not path.exists():
            verdict.complain("lost", *["power: the file"] * bool(acknowledged))
            continue
        inserts, ends = lost(path, acknowledged)
        verdict.complain("lost", *["power: an acknowledged insert"] * inserts, *["power: an acknowledged end"] * ends)
        if files["jobs.db"] and has_tables(path):
            verdict.complain("wrong", *(f"power: {text}" for text in audit(path)))
    return seen
