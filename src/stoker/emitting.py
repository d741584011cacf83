"""What a run has emitted, as its worker or its block stores it."""

from __future__ import annotations

from stoker.engines.base import Engine
from stoker.model.emitted import Ring, base_of
from stoker.model.job import Claim
from stoker.model.steps import Save


async def save_of(engine: Engine, claim: Claim, ring: Ring, *, everything: bool = False) -> tuple[Save, frozenset[int]]:
    """The save of what a ring has to write, and what to put back if it fails.

    The first save of a later run reads where the run before it ended: only the holder of the claim writes.
    """
    if ring.base is None:
        ring.base = base_of(await engine.steps.emitted(claim.id), ring.token)
    rows, taken = ring.take(ring.base, everything=everything)
    return Save(claim.id, claim.worker, claim.token, rows, ref=claim.ref), taken
