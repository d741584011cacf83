"""Takes over from workers that died or froze: what lapsed is claimed, concluded as lost, and settled.

Any worker may reap; a reaper that dies is reaped in turn, so nobody has to be elected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import random

import msgspec

from stoker.engines.base import Engine
from stoker.model.job import Claim, Settlement, Verdict
from stoker.model.lifecycle import Rules, conclude
from stoker.model.outcome import Crashed, Lost, Outcome

RulesOf = Callable[[str], Rules]


async def reap(
    engine: Engine,
    by: str,
    rules_of: RulesOf,
    *,
    limit: int,
    dead: Sequence[str] = (),
    crash: str | None = None,
) -> tuple[list[Claim], list[Settlement], list[Verdict]]:
    """One pass. `dead` are workers whose death was witnessed; `crash` says how they died."""
    claims = await engine.reap(by, limit, dead=dead)
    if not claims:
        return [], [], []
    settlements = [_settlement(claim, rules_of(claim.kind), dead, crash) for claim in claims]
    return claims, settlements, (await engine.settle(settlements)).verdicts


def _settlement(claim: Claim, rules: Rules, dead: Sequence[str], crash: str | None) -> Settlement:
    witnessed = crash is not None and claim.former in dead
    outcome: Outcome = Crashed(f"{crash} (worker {claim.former})") if witnessed else Lost()
    return conclude(claim, outcome, msgspec.structs.replace(rules, roll=random()))
