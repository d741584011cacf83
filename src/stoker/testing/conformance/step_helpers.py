"""What the cases about steps share."""

from __future__ import annotations

from typing import Any, NamedTuple

from stoker.model.groups import into_group
from stoker.model.ids import JobId
from stoker.model.job import Claim, Draft, Verdict
from stoker.model.outcome import Suspended
from stoker.model.steps import Save, Signal, Signaled, Step, StepState, Wakes, group_wait
from stoker.model.time import Instant, Span
from stoker.testing.conformance.harness import Store


def wait(name: str = "go", until: Instant | None = None, value: bytes | None = None) -> Step:
    """An open wait."""
    return Step(name, StepState.WAITING, value, until)


async def save(store: Store, claim: Claim, *steps: Step, **more: Any) -> Verdict:
    """Save rows of a running job."""
    [verdict] = await store.engine.steps.save([saved(claim, *steps, **more)])
    return verdict


def saved(claim: Claim, *steps: Step, **more: Any) -> Save:
    """Rows of a running job."""
    return Save(claim.id, claim.worker, claim.token, steps, ref=claim.ref, **more)


async def suspend(
    store: Store, claim: Claim, *steps: Step, after: Span | None = None, wakes: Wakes = Wakes.ANY, **more: Any
) -> Verdict:
    """Suspend a run on these waits."""
    return await store.finish(claim, Suspended(steps or (wait(),), after, wakes, **more))


async def signal(store: Store, job: JobId, name: str = "go", value: bytes = b"1", **more: Any) -> Signaled:
    """Send one signal."""
    [answer] = await store.engine.steps.signal([Signal(job, name, value, **more)])
    return answer


async def rows(store: Store, job: JobId) -> dict[str, Step]:
    """The rows of a job by name."""
    [found] = await store.engine.steps.get([job])
    return {row.name: row for row in found}


async def values(store: Store, job: JobId) -> dict[str, tuple[StepState, bytes | None]]:
    """What the rows of a job are, by name."""
    return {name: (row.state, row.value) for name, row in (await rows(store, job)).items()}


class Calls(NamedTuple):
    """Called jobs in a new group, and the wait for their end."""

    group: JobId
    drafts: tuple[Draft, ...]
    wait: Step


def calls(store: Store, *drafts: Draft) -> Calls:
    """Jobs to be called, as members of a new group."""
    group = store.mint()
    return Calls(group, tuple(into_group(group, drafts)), wait(group_wait(group)))
