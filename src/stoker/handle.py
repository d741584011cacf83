"""A handle: the caller's end of a job.

It holds an id, reads the job from the store and can cancel it. It holds no state of its own, so it can be made from
an id that was kept anywhere (`jobs.handle(id)`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from stoker import views
from stoker.chain_before import before, group_before, job_before, missing, not_called, not_found, successor_of
from stoker.codec.error_text import text_of
from stoker.codec.signature import Signature, display, encode_payload
from stoker.codec.to_json import encode_value
from stoker.context import in_group, waiting_for
from stoker.controls import holding
from stoker.joining import joined
from stoker.model import ids
from stoker.model import job as stored
from stoker.model.control import Queue
from stoker.model.errors import (
    GroupFailed,
    InvalidPayload,
    JobCanceled,
    JobFailed,
    NotFound,
    ResultUnavailable,
    StokerError,
)
from stoker.model.explain import explain, held_by
from stoker.model.groups import Group
from stoker.model.job import ACTIVE, LARGEST_BATCH, Status, Stored, path_to
from stoker.model.lifecycle import RESULT_WARNING
from stoker.model.query import LONGEST_REASON, Cancel, Fork, Selection
from stoker.model.seal import check_open
from stoker.model.steps import (
    ACCEPTED,
    LARGEST_VALUE,
    MOST_EARLY,
    Signal,
    Signaled,
    StepState,
    called_job,
    check_box,
    check_fork,
    misfit,
    shown,
    target,
)
from stoker.model.time import Seconds
from stoker.patience import Patience
from stoker.sync import in_sync
from stoker.views import Job, Step
from stoker.watching import News, in_turn, streamed, watch

if TYPE_CHECKING:
    from stoker.app import Stoker
    from stoker.engines.base import Engine

R_co = TypeVar("R_co", covariant=True)

ONE_LOOK = 1.0
STORED_WITHIN = 5.0
"""Seconds in which the job behind one that is done is stored, also where that is on another server."""

LOOKS = 3
"""How often a caller looks for the chain before a job until it is taken for unknown."""

LONGEST_WAIT = 3600.0
"""Seconds after which a caller without a timeout reads the record again."""


def _signaling(signal: Signal) -> Callable[[Engine, Any], Awaitable[list[Signaled]]]:
    return lambda engine, tx: engine.steps.signal([signal], tx=tx)


class JobHandle(Generic[R_co]):
    """One job, by id. `stored` is `existing` if the enqueue found a job with the same unique key."""

    __slots__ = ("_app", "_id", "_signature", "stored")

    def __init__(
        self, app: Stoker, job: ids.JobId, signature: Signature | None = None, stored: Stored = Stored.EXISTING
    ) -> None:
        self._app = app
        self._id = job
        self._signature = signature
        self.stored = stored

    @property
    def id(self) -> str:
        """The job's id as text."""
        return ids.text(self._id)

    def __repr__(self) -> str:
        return f"<JobHandle {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobHandle) and self._id == other._id

    def __hash__(self) -> int:
        return hash(self._id)

    async def refresh(self) -> Job:
        """The record as it is now. Raises `NotFound` when it is no longer kept, or not yet stored by its chain."""
        engine = await self._app.engine()
        [job] = await engine.operator.get([self._id])
        if job is None:
            raise await not_found(engine, self._id)
        return views.job(job)

    async def result(self, timeout: Seconds | None = None) -> R_co:
        """Wait for the job to end and return its result; before that, for its chain, or the group that calls it back.

        A job of the chain that fails raises as if it were this one, with its own id; a group raises `GroupFailed`.

        Raises `JobFailed` when it is dead, `JobCanceled`, `ResultUnavailable` when what the handler returned could not
        be stored, `NotFound` when the record is no longer kept, and `TimeoutError` when it has not ended in time; the
        job itself goes on.
        """
        with waiting_for(self._id):
            return await self._result(timeout)

    async def _result(self, timeout: Seconds | None) -> R_co:
        patience = Patience(self._app, timeout, LONGEST_WAIT)
        limit = patience.limit
        try:
            # With a timeout of zero the store still has time for one read.
            async with asyncio.timeout(None if limit is None else max(limit, ONE_LOOK)):
                return await self._ended(patience)
        except TimeoutError:
            if hint := await patience.hint():
                raise TimeoutError(f"job {self.id} has not ended: {hint}") from None
            why = await why_not_ended(self._app, self._id)
            raise TimeoutError(f"job {self.id} has not ended within {limit:g} s; it goes on{why}") from None

    async def _ended(self, patience: Patience) -> R_co:
        engine = await self._app.engine()
        awaited: stored.Job | None = None  # a job before this one in its chain
        while True:
            left = await patience.left()
            if left > 0:
                await engine.jobs.ended(self._id if awaited is None else awaited.id, left)
            [job] = await engine.operator.get([self._id])
            if job is None:
                awaited = await self._before(engine, awaited, patience)
                _check_failed(awaited)
            elif job.status is Status.DONE:
                return self._value(job)
            else:
                awaited = None
                _check_failed(job)
            if patience.over:
                raise TimeoutError

    async def _before(self, engine: Engine, awaited: stored.Job | None, patience: Patience) -> stored.Job:
        """The job of the chain that is stored now, while this one is not; `awaited` was the one before.

        It waits for the group that stores the chain. Raises `NotFound` if there is none, or if the chain has ended
        before this job.
        """
        if awaited is not None:
            [awaited] = await engine.operator.get([awaited.id])
        if awaited is not None:
            awaited = await successor_of(engine, awaited)
        if awaited is None or (awaited.status is Status.DONE and not path_to(awaited.options, self._id)):
            awaited = await self._look_before(engine, patience)
            if awaited.id == self._id:
                return awaited
        until = time.monotonic() + STORED_WITHIN
        while awaited.status is Status.DONE:
            path = path_to(awaited.options, self._id)
            found = [one for one in await engine.operator.get([draft.job_id for draft in path]) if one is not None]
            if found and found[-1].id == self._id:
                return found[-1]
            if found:
                awaited = found[-1]
            elif time.monotonic() < until:
                await asyncio.sleep(0.05)
            else:
                raise NotFound(
                    f"job {self.id} was not stored: its chain ended at job {ids.text(awaited.id)} ({awaited.kind}), "
                    f"which is done; the unique key of {path[0].kind} behind it was held, or that job is gone"
                )
        return awaited

    async def _look_before(self, engine: Engine, patience: Patience) -> stored.Job:
        """The job before this one, or this one if it is stored meanwhile.

        A look passes over a link that succeeds during it, and perhaps over the next one too: so it looks again.
        """
        for _ in range(LOOKS):
            found = await job_before(engine, self._id)
            if found is None:
                [found] = await engine.operator.get([self._id])
            if found is None:
                found = await self._called_back(engine, patience)
            if found is not None:
                return found
        raise NotFound.job(self.id)

    async def _called_back(self, engine: Engine, patience: Patience) -> stored.Job | None:
        """The job that a group stores on the way to this one, when it has closed; None: there is no such group.

        Raises `GroupFailed` if the group did not succeed and this is its `then`, or behind that.
        """
        calling = await group_before(engine, self._id)
        if calling is None:
            return None
        name, path = calling.leads_to(self._id) or ("", ())
        group = self._app.group_handle(calling.id)
        if in_group(calling.id):
            group.seen_by("member")
        try:
            await group.wait(None if patience.limit is None else await patience.left())
        except GroupFailed:
            if name == "then":
                raise
        [closed] = await engine.groups.get([calling.id])
        if closed is not None and (error := not_called(closed, self._id)) is not None:
            raise error
        until = time.monotonic() + STORED_WITHIN
        while True:
            stored = [job for job in await engine.operator.get([draft.job_id for draft in path]) if job is not None]
            if stored:
                return stored[-1]
            if time.monotonic() >= until:
                raise NotFound.job(self.id)
            await asyncio.sleep(0.05)

    def _value(self, job: stored.Job) -> R_co:
        if job.result is None and (why := job.metadata.get(RESULT_WARNING)) is not None:
            raise ResultUnavailable(self.id, job.kind, job.attempts, why)
        check_open(job.result, f"the result of job {self.id}")
        signature = self._signature or self._app.signature_of(job.kind)
        value: R_co = display(job.result) if signature is None else signature.decode_result(job.result)
        return value

    async def cancel(
        self, *, force: bool = False, reason: str = "canceled by its owner", children: bool = False
    ) -> bool:
        """Cancel a waiting job, ask a running one to stop. False when it had ended already.

        `children=True`: then the jobs that it called and that have not ended, and those that they called.
        A job that its chain or group has not stored yet cannot be canceled: `NotFound` says what stands before it.
        The reason becomes the job's last error; a running handler reads it as `current().cancel.reason`.

        `force=True` takes the claim away from a handler that ignores the request: the job is canceled now, and
        whatever the handler still does is refused by the store.
        """
        engine = await self._app.engine()
        reason = text_of(reason, LONGEST_REASON)
        change = Cancel(reason, force)
        tally = await engine.operator.alter(Selection((self._id,)), change)
        await self._app.emit_altered(change, tally)
        called = await called_by(engine, [self._id]) if children else []
        while called:
            batch, called = called[:LARGEST_BATCH], called[LARGEST_BATCH:]
            below = await engine.operator.alter(Selection(tuple(batch)), change)
            await self._app.emit_altered(change, below)
            called += await called_by(engine, batch)
        if tally.changed + tally.cancel_requested:
            return True
        [job] = await engine.operator.get([self._id])
        if job is None and (waits_for := await before(engine, self._id)) is not None:
            error = missing(self._id, waits_for)
            error.args = (f"{error}. Nothing was canceled{_cancel_instead(waits_for)}.",)
            raise error
        return False

    async def fork(self, after: str | None = None, payload: Any = None) -> JobHandle[R_co]:
        """Enqueue a copy of the job that runs from its beginning, or behind the finished step `after`.

        This job stays as it is and keeps its unique key. `payload` are other arguments for the copy: a list of
        positional ones or a mapping of named ones.
        """
        engine = await self._app.engine()
        [found] = await engine.operator.get([self._id])
        if found is None:
            raise NotFound.job(self.id)
        if after is not None:
            check_fork(after, (await engine.steps.get([self._id]))[0], self.id)
        data = None if payload is None else encode_payload(payload)
        if data is not None and (signature := self._app.signature_of(found.kind)) is not None:
            signature.check(data)
        change = Fork((self._app.mint(),), after, data)
        tally = await engine.operator.alter(Selection((self._id,)), change)
        if not tally.created:
            raise NotFound.job(self.id)
        await self._app.emit_altered(change, tally)
        return JobHandle(self._app, change.ids[0], self._signature, Stored.INSERTED)

    async def signal(self, name: str, value: Any = None, *, tx: Any = None, append: bool = False) -> bool:
        """Answer a wait of the job: `await current().wait(name)` returns the value, now or when the job gets there.

        False: that wait has its answer, or the job has ended. With `append` the n-th signal of a name goes to its n-th
        wait. With `tx`, or inside a block, it exists if and only if that transaction commits; `tx=False` sends it at
        once. Raises `NotFound` when there is no such job, `InvalidPayload` when the open wait asks for something else.
        """
        signal, place = signal_of(self._id, name, value, append=append), joined(self._app, tx)
        engine = await self._app.engine()
        if place is not None:
            told = await place.join(_signaling(signal))
            return place.deferred or await checked(engine, signal, told)
        return await checked(engine, signal, await engine.steps.signal([signal]))

    def signal_sync(self, name: str, value: Any = None, *, tx: Any = None, append: bool = False) -> bool:
        """`signal` for code without a loop; a synchronous `tx` of yours needs no loop at all."""
        place = joined(self._app, tx)
        if place is None:
            sent = self.signal(name, value, tx=False, append=append)
            return self._app.run(sent, instead=f"`await signal(...)` of {self!r}")
        signal = signal_of(self._id, name, value, append=append)
        told = place.join_sync(_signaling(signal))
        if Signaled.UNFIT in told:
            return self._app.run(self._unfit(signal))
        return place.deferred or accepted(self._id, told[0])

    async def _unfit(self, signal: Signal) -> bool:
        return await checked(await self._app.engine(), signal, [Signaled.UNFIT])

    async def steps(self) -> list[Step]:
        """What the job has stored by name and what it waits for, in the order of time."""
        engine = await self._app.engine()
        [found] = await engine.steps.get([self._id])
        return [views.step(one) for one in shown(found)]

    async def watch(self, after: int | str | None = None) -> AsyncGenerator[News, None]:
        """What is new of the job, as it happens, until it has ended: emitted values, progress, log lines, its status.

        `after` goes on behind an event: its `n`, or its `cursor`, which knows the log too. `Missed` comes first for
        values that the store no longer keeps. Raises `NotFound`, and `InvalidInput` for a number that was never told.
        """
        async with aclosing(watch(self._app, self._id, after)) as events:
            async for event in events:
                if event is not None:
                    yield event

    def watch_sync(self, after: int | str | None = None) -> Generator[News, None, None]:
        """`watch` for code without a loop: `for event in handle.watch_sync():`."""
        return in_turn(self._app, self.watch(after))

    async def sse(self, last_event_id: str | None = None) -> AsyncGenerator[str, None]:
        """`watch` as server-sent events, whose first one has come: `async for text in await handle.sse(...):`.

        For a web framework of your own; `job_stream` of `stoker.contrib.fastapi`, `.flask` and `.django` make a
        response of it. Raises what `watch` raises.
        """
        return await streamed(watch(self._app, self._id, last_event_id or None))

    def sse_sync(self, last_event_id: str | None = None) -> Generator[str, None, None]:
        """`sse` for code without a loop."""
        found = self._app.run(self.sse(last_event_id), instead=f"`await sse(...)` of {self!r}")
        return in_turn(self._app, found)

    fork_sync = in_sync(fork)
    steps_sync = in_sync(steps)
    result_sync = in_sync(result)
    refresh_sync = in_sync(refresh)
    cancel_sync = in_sync(cancel)


def _cancel_instead(waits_for: stored.Job | Group) -> str:
    """What to cancel so that a job which is not stored yet never is."""
    if isinstance(waits_for, Group):
        return "" if waits_for.closed_at else ": cancel it when it is stored, or now the members of the group"
    if waits_for.status in ACTIVE:
        return f": cancel job {ids.text(waits_for.id)}, and the chain ends there"
    return ", and nothing is stored unless that job runs again"


def _check_failed(job: stored.Job) -> None:
    """Raise if a job ended without success."""
    if job.status is Status.CANCELED:
        raise JobCanceled(ids.text(job.id), job.kind, job.attempts, job.last_error)
    if job.status in (Status.DEAD, Status.DISCARDED, Status.RETRIED):
        raise JobFailed(ids.text(job.id), job.kind, job.status, job.attempts, job.last_error)


async def why_not_ended(app: Stoker, job: ids.JobId) -> str:
    """Return the reason the store knows for a job that has not ended, as ": no worker serves …"; empty without one."""
    try:
        async with asyncio.timeout(ONE_LOOK):
            engine = await app.engine()
            [found] = await engine.operator.get([job])
            if found is None:
                return f": {await not_found(engine, job)}"
            census, presences = await engine.operator.census(), await engine.control.workers()
            queues = {queue.name: queue for queue in await engine.control.queues()}
            held = held_by(found, census.at)
            buckets = {} if held is None else await holding(engine, held[0])
    except (StokerError, TimeoutError):
        return ""
    queue = queues.get(found.queue, Queue(name=found.queue))
    return f": {explain(found, queue, presences, census, buckets=buckets).detail}"


async def called_by(engine: Engine, jobs: Sequence[ids.JobId]) -> list[ids.JobId]:
    """The jobs that these have called and whose ends they have not stored."""
    rows = [row for found in await engine.steps.get(jobs) for row in found if row.state is StepState.CALLED]
    return [called for row in rows if (called := called_job(row)) is not None]


def signal_of(job: ids.JobId, name: str, value: Any, *, append: bool = False, again: bool = False) -> Signal:
    """A signal as stores take it."""
    data = encode_value(value, (value,), f"signal {name}", LARGEST_VALUE)
    return Signal(job, check_box(name), data, append, again)


async def checked(engine: Engine, signal: Signal, answers: Sequence[Signaled]) -> bool:
    """`accepted`; raises, and says why, if the value is not what the open wait asks for."""
    if Signaled.UNFIT not in answers:
        return accepted(signal.id, answers[0])
    [rows] = await engine.steps.get([signal.id])
    named = {row.name: row for row in rows}
    why = misfit(named.get(target(named, signal) or ""), signal.value) or "must be what the wait asks for"
    raise InvalidPayload(f"signal {signal.name}", msgspec.json.decode(signal.value), why)


def accepted(job: ids.JobId, told: Signaled) -> bool:
    """Whether a signal was stored; raises if there is no such job, or no room in it."""
    if told is Signaled.MISSING:
        raise NotFound.job(ids.text(job))
    if told is Signaled.FULL:
        why = f"has {MOST_EARLY} signals that it did not wait for yet. This one was not stored."
        raise StokerError(f"job {ids.text(job)} {why}")
    return told in ACCEPTED
