"""One run of one handler, without a store: with middleware, lifespans and a real `current()`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from stoker.codec.signature import call_of_chunk
from stoker.context import ChunkContext, Context, running
from stoker.executors import Executors
from stoker.executors.choose import HandlerCall
from stoker.executors.threads import handler_of
from stoker.hooks import compose, surround
from stoker.model.emitted import Ring
from stoker.model.errors import InvalidArgument, StokerError
from stoker.model.ids import JobId
from stoker.model.job import Claim, Draft, Note, Settlement, Verdict, check_markers
from stoker.model.lifecycle import Rules
from stoker.model.retry import Backoff, Fixed, Never
from stoker.model.steps import Save, Step, StepState
from stoker.model.time import SECOND, Instant
from stoker.stopping import Stopping

if TYPE_CHECKING:
    from stoker.app import Stoker
    from stoker.task import Task

WORKER = "test-kit"


class InThisProcess(Executors):
    """Runs every handler here, also one that wants a process of its own: that one would have the app's real store."""

    def check(self, tasks: Any) -> None:
        """Take every task."""

    def warm_up(self, tasks: Any) -> None:
        """Start no process."""

    def _in_process(self, task: Task[..., Any]) -> HandlerCall:
        if task.is_async:
            return _on_loop(task)
        run = surround(task.app.plain_middleware, handler_of(task.fn))

        async def here(context: Context) -> Any:
            return await self.threads.run(run, (context,), {})

        return here


class OneRun:
    """What a run needs of a worker. Progress and lines are kept nowhere."""

    shares_store = True

    def __init__(self, app: Stoker) -> None:
        self.app = app
        self.states: dict[Any, Any] = {}
        self.stopping = Stopping()
        self.loop = asyncio.get_running_loop()

    def rules_of(self, kind: str) -> Rules:
        return Rules(default=self.app.backoff)

    def settled(self, claim: Claim, settlement: Settlement) -> None: ...

    def note(self, claim: Claim, progress: float | None, lines: tuple[str, ...]) -> None: ...

    def emit(self, claim: Claim, ring: Ring, entry: bytes) -> None: ...

    def withhold_notes(self, claim: Claim) -> None: ...

    def take_note(self, claim: Claim) -> Note | None:
        return None

    def release_notes(self, claim: Claim) -> None: ...

    def waits(self, claim: Claim, job: JobId, *, over: bool) -> None: ...

    def stepped(self, claim: Claim, state: StepState) -> None: ...

    async def read_steps(self, job: JobId) -> list[Step]:
        return []

    async def save_steps(self, save: Save) -> Verdict:
        return Verdict.APPLIED

    def store_now(self, context: Context) -> Instant:
        return context.claim.claimed_at

    def main_line(self, context: Context) -> None: ...

    def suspend(self, context: Context) -> None: ...


class _Context(Context):
    """A run whose job is in no store."""

    __slots__ = ()

    def transaction(self, factory: Any = None) -> NoReturn:
        raise StokerError(
            f"current().transaction() ends a job of the store, and kit.run({self.kind}) has none. "
            f"Enqueue the job and call kit.drain() instead."
        )

    def step(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]  # takes what each overload takes
        return super().step(*args, **self._without_pauses(options))

    def step_sync(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]  # as above
        return super().step_sync(*args, **self._without_pauses(options))

    def _without_pauses(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options of a step, tried as often and without a pause: nothing moves the clock of this run."""
        policy = options.get("backoff")
        if policy is None:
            policy = self.claim.options.backoff or self.runtime.app.backoff
        if isinstance(policy, Backoff) and not isinstance(policy, Never):
            policy = Fixed(0, limit=policy.limit)
        return {**options, "backoff": policy}

    def _refuse(self, *args: Any, **options: Any) -> NoReturn:
        raise StokerError(
            f"current() cannot wait in kit.run({self.kind}): its job is in no store. Enqueue the job and call "
            f"kit.drain() and kit.advance() instead."
        )

    sleep = sleep_until = wait = call = _refuse
    sleep_sync = sleep_until_sync = wait_sync = call_sync = _refuse


async def run(
    app: Stoker,
    task: Task[..., Any],
    draft: Draft,
    now: Instant,
    executors: Executors,
    *,
    attempt: int,
    metadata: Mapping[str, str] | None,
) -> Any:
    """Run the handler for a draft as a worker would, and return what it returns; follow-ups are stored afterwards."""
    check_markers(draft)
    claim = _claim(draft, now, attempt, metadata)
    runtime = OneRun(app)
    span = app.defaults.timeout if draft.options.timeout is None else draft.options.timeout
    limit = None if span is None else span / SECOND
    item = _Context(claim, runtime, task.signature.decode(claim.payload), limit)
    context = item if task.chunk is None else ChunkContext((item,), call_of_chunk([item.arguments]), limit)
    try:
        async with AsyncExitStack() as opened:
            for lifespan in app.lifespans:
                runtime.states[lifespan] = await opened.enter_async_context(lifespan.open())
            value = await asyncio.create_task(_called(app, task, executors, context))  # with variables of its own
    finally:
        await executors.close()
    if item.followups:
        await app.enqueue_many(item.followups)
    return value


async def _called(app: Stoker, task: Task[..., Any], executors: Executors, context: Context) -> Any:
    on_loop = task.is_async and task.options.isolation is None
    innermost = _on_loop(task) if on_loop else executors.call_of(task, app.plain_middleware)
    running.set(context)
    return await compose(app.async_middleware, app.scoped(innermost))(context)


def _on_loop(task: Task[..., Any]) -> HandlerCall:
    async def call(context: Context) -> Any:
        args, kwargs = context.arguments
        return await task.fn(*args, **kwargs)

    return call


def _claim(draft: Draft, now: Instant, attempt: int, metadata: Mapping[str, str] | None) -> Claim:
    if isinstance(attempt, bool) or not isinstance(attempt, int) or attempt < 1:
        raise InvalidArgument("attempt", attempt, "must be a whole number of at least 1")
    options = draft.options
    if metadata is not None:
        options = msgspec.structs.replace(options, metadata={**(options.metadata or {}), **metadata})
    return Claim(
        id=draft.job_id,
        kind=draft.kind,
        queue=draft.queue,
        payload=draft.payload,
        attempt=attempt,
        base=0,
        budget=max(draft.attempts, attempt),
        worker=WORKER,
        token=attempt,
        claimed_at=now,
        created_at=now,
        scheduled_at=now,
        priority=draft.priority,
        options=options,
        unique=draft.unique,
        tenant=draft.tenant,
        last_error=f"attempt {attempt - 1} failed, says kit.run(attempt={attempt})" if attempt > 1 else None,
        fresh=attempt == 1,
    )
