"""Runs the sweeps of one `expire`, each as a step of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from stoker.model.query import Expired, Retention, Sweep


async def in_steps(retention: Retention, step: Callable[[Sweep], Awaitable[Expired]]) -> Expired:
    """Run the sweeps that a retention names, in order. An error ends the call; sweeps before it stay done."""
    expired = Expired()
    for sweep in Sweep:
        if sweep in retention.sweeps:
            expired += await step(sweep)
    return expired
