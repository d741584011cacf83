"""Hands back the jobs of workers that will not finish them: a supervisor or an operator says which.

The claims pass to the caller first (`engine.reap`), so that whatever these workers still write is refused, and with
them the locks that the workers hold under their ids. Then the jobs wait again, due as before, without using an attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from stoker.model.events import transition_of
from stoker.model.job import Claim, Settlement, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outcome import HandedBack, Lost

if TYPE_CHECKING:
    from stoker.app import Stoker
    from stoker.engines.base import Engine

BATCH = 100
"""Jobs that pass on in one step."""

HandedOn: TypeAlias = tuple[list[Claim], list[Settlement], list[Verdict]]


async def hand_back(engine: Engine, by: str, workers: Sequence[str]) -> HandedOn:
    """Hand back up to `BATCH` jobs of `workers` once, and settle those of lapsed workers that come along."""
    claims = await engine.jobs.reap(by, BATCH, dead=workers)
    if not claims:
        return [], [], []
    settlements = [conclude(claim, HandedBack() if claim.former in workers else Lost()) for claim in claims]
    return claims, settlements, (await engine.jobs.settle(settlements)).verdicts


def publish(app: Stoker, handed_on: HandedOn) -> None:
    """Put what became of the jobs on the timeline and notify the app's listeners."""
    claims, settlements, verdicts = handed_on
    if claims and app.timeline is not None:
        app.timeline.settled(claims, settlements, verdicts)
    if app.listeners:
        for claim, settlement, verdict in zip(claims, settlements, verdicts, strict=True):
            if verdict is Verdict.APPLIED:
                app.listeners.emit(transition_of(claim, settlement))
