"""One job, run once for each point at which its worker can die: the runs, and what came of each."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from stoker.engines.base import Engine, outbox_of
from stoker.hooks import FailedRun
from stoker.model.errors import EngineRefused, StokerError
from stoker.model.humanize import count
from stoker.model.job import FINISHED, Draft, Status
from stoker.model.steps import NEVER
from stoker.model.time import DAY
from stoker.testing.clock import VirtualClock
from stoker.testing.enqueued import EnqueuedJob, in_order, stored, written
from stoker.testing.handler_faults import Death, Faults

if TYPE_CHECKING:
    from stoker.app import Stoker
    from stoker.handle import JobHandle
    from stoker.task import Task


class CrashRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a job under a worker that died at `point`, and under another one that went on.

    `point` is None in the first run, in which no worker dies. `attempts` counts the starts, `result` is what the
    handler returned in the end, `exception` what it raised last and `error` the text of the job's last error.
    `enqueued` are the other jobs that there are now, `appended` counts messages by stream.
    """

    job: EnqueuedJob
    point: str | None
    status: Status
    attempts: int
    result: Any
    exception: BaseException | None
    error: str | None
    enqueued: list[EnqueuedJob]
    appended: dict[str, int]

    def __str__(self) -> str:
        died = "no worker died" if self.point is None else f"the worker died {self.point}"
        lines = [f"{died}; {written(self.job)} is {self.status.value} after {count(self.attempts, 'attempt')}"]
        if self.enqueued:
            lines.append(f"  enqueued: {', '.join(map(written, self.enqueued))}")
        if self.appended:
            lines.append(f"  appended: {', '.join(f'{n} to {stream}' for stream, n in self.appended.items())}")
        if self.status is not Status.DONE and self.error is not None:
            lines.append(f"  error: {self.error.strip().splitlines()[-1]}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<CrashRun: {self}>"


class Crashes:
    """The runs of one job. The first is without a death and finds the points; `run` is called on an empty store."""

    def __init__(
        self,
        app: Stoker,
        clock: VirtualClock,
        faults: Faults,
        drain: Callable[[Engine], Awaitable[object]],
        call: tuple[Task[..., Any], tuple[Any, ...], Mapping[str, Any]],
        answer: Callable[[JobHandle[Any]], object] | None,
    ) -> None:
        self._app = app
        self._clock = clock
        self._faults = faults
        self._drain = drain
        self._call = call
        self._answer = answer
        self._points: list[str | None] = [None]
        self._next = 0
        self._began = clock.now()
        self._draft()  # refuses arguments before anything runs

    @property
    def left(self) -> bool:
        """Is there a point at which no worker has died yet?"""
        return self._next < len(self._points)

    def rewind(self) -> None:
        """Begin another run at the time of the first."""
        self._clock.set(self._began)

    def _draft(self) -> Draft:
        task, args, kwargs = self._call
        draft = task.draft(*args, **kwargs)
        if draft.options.keep == 0:  # the record is read when the job is done
            draft = msgspec.structs.replace(draft, options=msgspec.structs.replace(draft.options, keep=DAY))
        return draft

    async def run(self) -> CrashRun:
        """Run the job to its end, with a death at the next point."""
        app, task = self._app, self._call[0]
        engine = await app.engine()
        before, messages = {job.id for job in await stored(engine)}, await _messages(engine)
        draft, planned = self._draft(), self._points[self._next]
        death = self._faults.death = Death(draft.job_id, self._next - 1 if self._next else None)
        raised: list[BaseException] = []
        listener = app.on_error(lambda failed: _keep(raised, draft, failed))
        try:
            handle = await app.enqueue_draft(draft, task.signature)
            await self._until_it_rests(engine, draft, handle)
        finally:
            self._faults.death = None
            app.errors.remove(listener)
        if death.point != planned:
            raise StokerError(
                f"{task.name} did not come to the same point again: {planned}. A worker can die at each point only if "
                "every run does the same as the first. Put back what the handler found outside of the store with "
                "reset=, and keep what is random out of it."
            )
        self._next += 1
        if planned is None:
            self._points += death.points
        jobs = in_order(app, [one for one in await stored(engine) if one.id not in before])
        [job] = [one for one in jobs if one.id == handle.id]
        return CrashRun(
            job=job,
            point=planned,
            status=job.status,
            attempts=job.attempts,
            result=await handle.result() if job.status is Status.DONE else None,
            exception=raised[-1] if raised else None,
            error=job.last_error,
            enqueued=[one for one in jobs if one is not job],
            appended=dict(await _messages(engine) - messages),
        )

    async def _until_it_rests(self, engine: Engine, draft: Draft, handle: JobHandle[Any]) -> None:
        """Drain until the job has ended, or waits for something that neither time nor the test brings."""
        answered = 0
        while True:
            await self._drain(engine)
            [job] = await engine.operator.get([draft.job_id])
            assert job is not None
            if job.status in FINISHED:
                return
            if self._answer is not None and job.suspended and answered != job.token:
                answered = job.token  # once for each run
                given = self._answer(handle)
                if inspect.isawaitable(given):
                    await given
            elif self._clock.now() < job.scheduled_at < NEVER:
                self._clock.set(job.scheduled_at)
            else:
                return


def _keep(raised: list[BaseException], draft: Draft, failed: FailedRun) -> None:
    if failed.job == draft.id and failed.exception is not None:
        raised.append(failed.exception)


async def _messages(engine: Engine) -> Counter[str]:
    """How many messages were appended to each stream."""
    try:
        streams = await outbox_of(engine).streams()
    except EngineRefused:  # this store has none
        return Counter()
    return Counter({state.stream.name: sum(state.last) for state in streams})
