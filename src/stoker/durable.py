"""Steps, sleeps, waits and calls of one run: what makes a job durable.

A handler runs again from its beginning after a wait, a failure or a death, and what it has stored by name is not done
again. A run that does nothing but wait is suspended: what becomes of it is decided here before the handler is
interrupted, so nothing that the handler does afterwards changes it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import time
import typing
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from random import random
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from stoker.codec.error_text import describe_error
from stoker.codec.to_json import encode_value, reason, revive
from stoker.engines.base import Engine, Transaction
from stoker.job_participant import hold_claim
from stoker.model import ids
from stoker.model import job as stored
from stoker.model.errors import (
    PASSING,
    EngineFull,
    EngineReadOnly,
    InvalidInput,
    JobCanceled,
    JobFailed,
    LostClaim,
    NotFound,
    StepFailed,
    StokerError,
)
from stoker.model.groups import into_group
from stoker.model.ids import JobId
from stoker.model.job import ACTIVE, LARGEST_ERROR, MOST_ATTEMPTS, Draft, Status, Verdict
from stoker.model.outcome import Exit, Outcome, Suspended, leaves
from stoker.model.retry import FALLBACK_DELAY, Backoff, backoff_delay
from stoker.model.steps import (
    LARGEST_VALUE,
    LARGEST_VALUES,
    MOST_CALLED,
    MOST_STEPS,
    RowNames,
    Save,
    Step,
    StepState,
    Wakes,
    group_wait,
)
from stoker.model.time import DAY, SECOND, Instant, Span, span
from stoker.only_waits import only_waits
from stoker.transaction_block import Block, Factory

if TYPE_CHECKING:
    from stoker.context import Context

T = TypeVar("T")

logger = logging.getLogger("stoker.job")

TURNS = 10
"""Turns of the loop after which what has ended has reached those who wait for it: a task, its gather, the handler."""

LOOK_AGAIN = 1.0
"""Seconds between two looks at a run that waits and does something else besides."""

IN_THE_SLOT = 0.1
"""Seconds up to which the rest of a sleep or wait is spent in the slot."""

TRY_IN_THE_SLOT: Span = SECOND
"""Up to which pause before the next try of a step the run keeps its slot."""

ASK_AGAIN: Span = 5 * SECOND
"""How often a run asks for a called job that was started anew."""

_AWAY = (*PASSING, EngineFull, EngineReadOnly)
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds between two tries to reach a store that is away."""

SMALL_RESULT = 1 << 10
"""Bytes of a called job's result up to which its row waits for the next write of the run."""

KEEP_CALLED: Span = 7 * DAY
"""How long a called job is kept at least: the job that called it may read its end much later."""

_stepping: ContextVar[str | None] = ContextVar("stoker.stepping", default=None)
"""The step whose function runs here."""


class Suspend(BaseException):
    """Ends the run of a plain handler that waits. What becomes of the job is decided already."""


class Tries(NamedTuple):
    """How a step is tried: how often, how long one try may take, and in which transaction (True: the app's own)."""

    attempts: int = 1
    backoff: Backoff | None = None
    timeout: float | None = None
    tx: Factory[Any] | bool | None = None


def tries_of(
    fn: Any,
    attempts: int,
    backoff: Backoff | None,
    timeout: float | None,
    tx: Factory[Any] | bool | None,
) -> Tries:
    """Check what the handler gave beside the name of a step."""
    if not callable(fn):
        raise InvalidInput("fn", fn, "must be a function")
    if isinstance(attempts, bool) or not isinstance(attempts, int) or not 1 <= attempts <= MOST_ATTEMPTS:
        raise InvalidInput("attempts", attempts, f"must be 1 to {MOST_ATTEMPTS:,}")
    if backoff is not None and not isinstance(backoff, Backoff):
        raise InvalidInput("backoff", backoff, "must be Fixed, Linear, Exponential, Delays or Never")
    if timeout is not None and span(timeout, "timeout") == 0:
        raise InvalidInput("timeout", timeout, "must be more than 0 seconds")
    return Tries(attempts, backoff, timeout, tx)


class _Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """A failed step as its row keeps it; `job` and `status` of a called one, `tries` of one that is tried again."""

    kind: str
    error: str
    job: str | None = None
    status: str | None = None
    attempt: int = 0
    tries: int = 0


class _Called(msgspec.Struct, frozen=True):
    """A called job as its row keeps it."""

    job: JobId
    group: JobId


_encode = msgspec.json.Encoder().encode
_read_failure = msgspec.json.Decoder(_Failure).decode
_read_called = msgspec.json.Decoder(_Called).decode


class _Wait(NamedTuple):
    """A wait that is open in this run. Calls of one group wait for the same row, each with a future of its own."""

    step: Step
    answers: set[asyncio.Future[Step | None]]


class DurableRun:
    """What one run has stored, has open and calls."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._names = RowNames()
        self._rows: dict[str, Step] = {}
        self._size = 0
        self._reading: asyncio.Future[None] | None = None
        self._at_work = 0
        self._asked = 0
        self._waits: dict[str, _Wait] = {}
        self._calls: dict[str, tuple[Draft, asyncio.Future[Step | None]]] = {}
        self._failures: dict[str, Step] = {}
        self._unsaved: dict[str, Step] = {}
        self._looking = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.suspended: Suspended | None = None

    # --- asked by the handler -----------------------------------------------------------------------------------

    def step(
        self,
        name: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        key: str | None,
        tries: Tries,
    ) -> Awaitable[Any]:
        """Run a function once in the life of the job."""
        self._ask(f"step {name}")
        return self._step(self._names.step(name, key), fn, args, tries)

    def sleep(self, seconds: Span, name: str) -> Awaitable[None]:
        """Go on when so much time has passed since this was first called."""
        self._ask(name)
        return self._sleep(self._names.step(name), None, seconds)

    def sleep_until(self, when: Instant, name: str) -> Awaitable[None]:
        """Go on at this instant."""
        self._ask(name)
        return self._sleep(self._names.step(name), when, 0)

    def wait(self, name: str, kind: Any, timeout: Span | None, ask: str | None) -> Awaitable[Any]:
        """Go on with the value of a signal."""
        self._ask(f"wait {name}")
        return self._wait(self._names.step(name), kind, timeout, ask)

    def call(self, draft: Draft, key: str | None) -> Awaitable[Any]:
        """Go on with the result of another job."""
        _check_called(draft)
        self._ask(f"call of {draft.kind}")
        return self._call(self._names.call(draft.kind, key), draft)

    def _ask(self, what: str) -> None:
        """Refuse what cannot be asked here; note that the handler goes on."""
        context = self._context
        inside = _stepping.get()
        if inside is not None:
            raise StokerError(
                f"{what} of job {context.id} ({context.kind}) stands inside step {inside}, which is run as a whole. "
                "Nothing was stored. Put one after the other."
            )
        if self.suspended is not None:
            raise self._interruption()
        if context.commit is not None and context.commit.committing:
            raise StokerError(
                f"{what} of job {context.id} ({context.kind}) comes after the block that has settled the job. "
                "Nothing was stored. Put it before the block."
            )
        self._asked += 1
        self._unsaved.update(self._failures)  # the handler has caught them and goes on
        self._failures.clear()

    def _interruption(self) -> BaseException:
        return asyncio.CancelledError("the run is suspended") if _on_loop() else Suspend()

    # --- asked by a plain handler, in its thread ----------------------------------------------------------------

    def step_sync(self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], key: str | None, tries: Tries) -> Any:
        """`step` for a plain handler: the function runs in its thread."""
        self._ask(f"step {name}")
        row = self._names.step(name, key)
        found = self._on_worker_loop(self._read()).get(row)
        failed = 0
        while True:
            if found is not None and found.state is StepState.DONE:
                return _value(row, found.value, _hint(fn))
            if found is not None and found.state is StepState.FAILED:
                raise _failed_step(row, _read_failure(found.value or b""))
            if found is not None and found.state is StepState.WAITING:
                failed = _read_failure(found.value or b"").tries
                self._wait_here(found)
            try:
                if tries.tx:
                    self._on_worker_loop(self._save_rest())
                    part = StepParticipant(self._context, row)
                    with self._block(part, tries) as handle:
                        part.step = _done(row, _called_here(row, fn, (handle, *args)))
                    self._rows[row] = found = part.step
                    continue
                found = _done(row, _called_here(row, fn, args))
            except (Exit, LostClaim):
                raise
            except Exception as error:
                if self._context.commit is not None and self._context.commit.doubt is not None:
                    raise
                failed += 1
                found = self._on_worker_loop(self._failed(row, error, tries, failed))
                continue
            self._on_worker_loop(self._save(found))

    def sleep_sync(self, until: Instant | None, pause: Span, name: str) -> None:
        """`sleep` for a plain handler."""
        self._ask(name)
        row = self._names.step(name)
        found = self._on_worker_loop(self._read()).get(row)
        if found is not None and found.state is not StepState.WAITING:
            return
        if found is None or found.until is None:
            found = Step(row, StepState.WAITING, None, self._now() + pause if until is None else until)
        self._wait_here(found)
        self._unsaved[row] = Step(row, StepState.DONE, b"null")

    def wait_sync(self, name: str, kind: Any, timeout: Span | None, ask: str | None) -> Any:
        """`wait` for a plain handler."""
        self._ask(f"wait {name}")
        row = self._names.step(name)
        found = self._on_worker_loop(self._read(fresh_too=True)).get(row)
        if found is None or found.state is StepState.WAITING:
            self._wait_here(self._question(row, kind, timeout, ask, found))
            found = self._on_worker_loop(self._time_out(row))
        return self._answer(row, found, kind)

    def call_sync(self, draft: Draft, key: str | None) -> Any:
        """`call` for a plain handler."""
        _check_called(draft)
        self._ask(f"call of {draft.kind}")
        row = self._names.call(draft.kind, key)
        found = self._on_worker_loop(self._read()).get(row)
        if found is None:
            self._calls[row] = draft, _no_future()
            self._suspend(Wakes.ALL)
            raise Suspend
        while found.state is StepState.CALLED:
            called = _read_called(found.value or b"")
            step = self._on_worker_loop(self._ended(row, called.job))
            if step is None:
                self._wait_here(self._end_of_group(called))
                continue
            self._on_worker_loop(self._keep(step))
            found = step
        return self._result(found, draft)

    def _on_worker_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._context.runtime.loop).result()

    def _wait_here(self, step: Step) -> None:
        """Suspend the run of a plain handler, unless the time of its wait is over."""
        if (left := self._short(step)) is not None:
            time.sleep(left)
            return
        self._waits[step.name] = _Wait(step, set())
        self._suspend(Wakes.ANY)
        raise Suspend

    # --- asked by the worker ------------------------------------------------------------------------------------

    def decided(self, outcome: Outcome, *, interrupted: bool) -> Outcome:
        """The outcome of the run: what was decided when it was suspended, unless it was interrupted otherwise."""
        if self.suspended is None or interrupted:
            return outcome
        return self.suspended

    def left(self, error: BaseException | None) -> tuple[Step, ...]:
        """The rows that the end of the run has to store; not the failures that the handler let out as `error`."""
        out = set() if error is None else _let_out(error)
        failures = [step for step in self._failures.values() if step.name not in out]
        return (*self._unsaved.values(), *failures)

    def ended_elsewhere(self, outcome: Outcome, steps: tuple[Step, ...]) -> None:
        """Take over how the run ended in a child process, and the rows that its end has to store."""
        self.suspended = outcome if isinstance(outcome, Suspended) else None
        self._unsaved = {step.name: step for step in steps}

    # --- rows ---------------------------------------------------------------------------------------------------

    async def _read(self, *, fresh_too: bool = False) -> dict[str, Step]:
        """The rows of the job, read once. A job that no worker ever had can only have early signals."""
        if self._reading is None:
            if self._context.claim.fresh and not fresh_too:
                return self._rows
            self._reading = asyncio.get_running_loop().create_future()
            try:
                await self._read_again()
            except BaseException:
                self._reading.cancel()
                self._reading = None
                raise
            self._reading.set_result(None)
        await self._reading
        return self._rows

    async def _read_again(self) -> None:
        found = await self._patiently(lambda: self._context.runtime.read_steps(self._context.claim.id))
        self._rows = {**self._rows, **{step.name: step for step in found}}
        self._size = sum(len(step.value or b"") for step in self._rows.values())

    async def _save(self, *steps: Step, drafts: tuple[Draft, ...] = (), groups: tuple[JobId, ...] = ()) -> bool:
        """Store rows; False: one that ends a wait as failed has its answer, which is read now."""
        steps = (*self._unsaved.values(), *steps)
        self._check_room(steps)
        self._unsaved.clear()
        answered: set[str] = set()
        while steps := tuple(step for step in steps if step.name not in answered):
            verdict = await self._patiently(lambda: self._save_once(steps, drafts, groups))
            if verdict is Verdict.APPLIED:
                self._rows.update((step.name, step) for step in steps)
                break
            if verdict is not Verdict.ANSWERED:
                raise LostClaim(f"job {self._context.id} ({self._context.kind})")
            await self._read_again()
            failed = {step.name for step in steps if step.state is StepState.FAILED}
            answered = {name for name in failed if self._rows[name].state in (StepState.DONE, StepState.EARLY)}
        return not answered

    async def _save_once(
        self, steps: tuple[Step, ...], drafts: tuple[Draft, ...], groups: tuple[JobId, ...]
    ) -> Verdict | None:
        """Store rows; None: an open transaction signals the job."""
        claim = self._context.claim
        save = Save(claim.id, claim.worker, claim.token, steps, drafts, groups, claim.ref)
        verdict = await self._context.runtime.save_steps(save)
        return None if verdict is Verdict.HELD else verdict

    async def _patiently(self, call: Callable[[], Awaitable[T | None]]) -> T:
        """Call until the store answers: the run keeps its slot meanwhile, and its lease decides whether it goes on."""
        pause = FIRST_PAUSE
        while True:
            try:
                if (found := await call()) is not None:
                    return found
            except _AWAY as error:
                logger.debug("job %s (%s) waits for the store: %s", self._context.id, self._context.kind, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _save_rest(self) -> None:
        """Store what a transaction may build on, before it."""
        if self._unsaved:
            await self._save()

    def _check_room(self, steps: tuple[Step, ...]) -> None:
        names = {step.name for step in steps if step.name not in self._rows}
        size = self._size + sum(len(step.value or b"") for step in steps)
        if len(self._rows) + len(names) <= MOST_STEPS and size <= LARGEST_VALUES:
            self._size = size
        else:
            raise StepFailed(
                steps[-1].name,
                "StokerError",
                f"a job has room for {MOST_STEPS} steps and {LARGEST_VALUES >> 20} MiB of their values. Nothing was "
                "stored. End this job and go on in a follow-up.",
            )

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Around what the run does itself: it is not suspended meanwhile."""
        self._at_work += 1
        try:
            yield
        finally:
            self._at_work -= 1
            self._look()

    def _now(self) -> Instant:
        """The store's time, counted on from the claim."""
        return self._context.claim.claimed_at + round(self._context.elapsed * SECOND)

    # --- steps --------------------------------------------------------------------------------------------------

    async def _step(self, row: str, fn: Callable[..., Any], args: tuple[Any, ...], tries: Tries) -> Any:
        with self._working():
            found = (await self._read()).get(row)
        while True:
            if found is not None and found.state is StepState.DONE:
                return _value(row, found.value, _hint(fn))
            if found is not None and found.state is StepState.FAILED:
                raise _failed_step(row, _read_failure(found.value or b""))
            failed = 0
            if found is not None and found.state is StepState.WAITING:  # for its next try
                failed = _read_failure(found.value or b"").tries
                answer = await self._open(found)
                if answer is not None:
                    found = answer
                    continue
            found = await self._try(row, fn, args, tries, failed)

    async def _try(self, row: str, fn: Callable[..., Any], args: tuple[Any, ...], tries: Tries, failed: int) -> Step:
        """Run the function once; returns the row that is stored then."""
        with self._working():
            try:
                if tries.tx:
                    return await self._in_transaction(row, fn, args, tries)
                step = _done(row, await _called(row, fn, args, tries.timeout))
            except (Exit, LostClaim):
                raise
            except Exception as error:
                if self._context.commit is not None and self._context.commit.doubt is not None:
                    raise
                return await self._failed(row, error, tries, failed + 1)
            await self._save(step)
            return step

    async def _in_transaction(self, row: str, fn: Callable[..., Any], args: tuple[Any, ...], tries: Tries) -> Step:
        """Run the function with a transaction: its writes and the row of the step exist together or not at all."""
        await self._save_rest()
        part = StepParticipant(self._context, row)
        async with self._block(part, tries) as handle:
            part.step = _done(row, await _called(row, fn, (handle, *args), tries.timeout))
        self._rows[row] = part.step
        return part.step

    def _block(self, part: StepParticipant, tries: Tries) -> Block[Any, Any]:
        app, runtime = self._context.runtime.app, self._context.runtime
        factory = app.transaction if isinstance(tries.tx, bool) else tries.tx
        return Block(app, part, factory, loop=runtime.loop)

    async def _failed(self, row: str, error: Exception, tries: Tries, failed: int) -> Step:
        text = describe_error(error, LARGEST_ERROR)
        failure = _Failure(type(error).__name__, text, tries=failed)
        policy = tries.backoff or self._context.claim.options.backoff or self._context.runtime.app.backoff
        pause = FALLBACK_DELAY if policy is None else backoff_delay(policy, failed, random())
        if failed < tries.attempts and pause is not None:
            if pause < TRY_IN_THE_SLOT:
                await asyncio.sleep(pause / SECOND)
                return Step(row, StepState.WAITING, _encode(failure), self._now())
            return Step(row, StepState.WAITING, _encode(failure), self._now() + pause)
        step = Step(row, StepState.FAILED, _encode(failure))
        if tries.attempts > 1:
            await self._save(step)
        else:
            self._failures[row] = step
        raise _failed_step(row, failure) from error

    # --- sleeps and waits ---------------------------------------------------------------------------------------

    async def _sleep(self, row: str, until: Instant | None, pause: Span) -> None:
        with self._working():
            found = (await self._read()).get(row)
        if found is not None and found.state is not StepState.WAITING:
            return  # a signal has ended it
        if found is None or found.until is None:
            found = Step(row, StepState.WAITING, None, self._now() + pause if until is None else until)
        if await self._open(found) is None:
            self._unsaved[row] = Step(row, StepState.DONE, b"null")

    async def _wait(self, row: str, kind: Any, timeout: Span | None, ask: str | None) -> Any:
        with self._working():
            found = (await self._read(fresh_too=True)).get(row)
        if found is None or found.state is StepState.WAITING:
            question = self._question(row, kind, timeout, ask, found)
            found = await self._open(question) or await self._time_out(row)
        return self._answer(row, found, kind)

    def _question(self, row: str, kind: Any, timeout: Span | None, ask: str | None, found: Step | None) -> Step:
        """The open row of a wait; one that was opened before keeps its deadline."""
        if ask is not None and not isinstance(ask, str):
            raise InvalidInput("ask", ask, "must be a text")
        until = found.until if found is not None else None if timeout is None else self._now() + timeout
        return Step(row, StepState.WAITING, _encode({"ask": ask, "schema": _schema(kind)}), until)

    def _answer(self, row: str, found: Step, kind: Any) -> Any:
        if found.state is StepState.FAILED:
            raise TimeoutError(f"{row}: {_read_failure(found.value or b'').error}")
        if found.state is StepState.EARLY:
            self._unsaved[row] = replace(found, state=StepState.DONE)
        return _value(row, found.value, kind)

    async def _time_out(self, row: str) -> Step:
        """The row of a wait whose time is over: the answer, if it came meanwhile."""
        failure = _Failure("TimeoutError", "no signal came in time")
        with self._working():
            await self._save(Step(row, StepState.FAILED, _encode(failure)))
        return self._rows[row]

    async def _open(self, step: Step) -> Step | None:
        """Wait here or, suspended, in a later run; returns the answered row, None when the time is over."""
        if (left := self._short(step)) is not None:
            with self._working():
                await asyncio.sleep(left)
            return None
        answer: asyncio.Future[Step | None] = asyncio.get_running_loop().create_future()
        answers = self._waits.setdefault(step.name, _Wait(step, set())).answers
        answers.add(answer)
        self._look()
        try:
            return await answer
        finally:
            answers.discard(answer)
            if not answers:
                self._waits.pop(step.name, None)

    def _short(self, step: Step) -> float | None:
        """The seconds that are left of a wait, if they are few enough to keep the slot; None: they are more."""
        left = None if step.until is None else max(0.0, (step.until - self._now()) / SECOND)
        return left if left is not None and left <= IN_THE_SLOT else None

    # --- called jobs --------------------------------------------------------------------------------------------

    async def _call(self, row: str, draft: Draft) -> Any:
        with self._working():
            found = (await self._read()).get(row)
        if found is None:
            answer: asyncio.Future[Step | None] = asyncio.get_running_loop().create_future()
            self._calls[row] = draft, answer
            self._look()
            try:
                found = await answer
            finally:
                self._calls.pop(row, None)
        assert found is not None
        while found.state is StepState.CALLED:
            found = await self._end_of(row, _read_called(found.value or b""))
        return self._result(found, draft)

    def _result(self, found: Step, draft: Draft) -> Any:
        if found.state is StepState.FAILED:
            raise _failed_call(_read_failure(found.value or b""))
        task = self._context.runtime.app.find_task(draft.kind)
        return (
            msgspec.json.decode(found.value or b"null") if task is None else task.signature.decode_result(found.value)
        )

    async def _end_of(self, row: str, called: _Called) -> Step:
        """The row of a called job, with its end as soon as it has one."""
        with self._working():
            step = await self._ended(row, called.job)
            if step is not None:
                await self._keep(step)
                return step
        await self._open(self._end_of_group(called))
        return self._rows[row]

    async def _keep(self, step: Step) -> None:
        """Store the end of a called job; a small one with what the run stores next: until then it can be read again."""
        if len(step.value or b"") <= SMALL_RESULT:
            self._unsaved[step.name] = step
        else:
            await self._save(step)

    def _end_of_group(self, called: _Called) -> Step:
        """The open row that waits for called jobs."""
        mark = group_wait(called.group)
        answered = self._rows.get(mark)
        if answered is not None and answered.state is StepState.DONE:
            # The group has closed and a job of it runs again, as after a requeue: only time ends this wait.
            return Step(f"{mark}:again", StepState.WAITING, None, self._now() + ASK_AGAIN)
        return Step(mark, StepState.WAITING)

    async def _ended(self, row: str, job: JobId) -> Step | None:
        engine = await self._context.runtime.app.engine()
        seen: stored.Job | None = None
        while job is not None:
            [seen] = await self._patiently(partial(engine.operator.get, [job]))
            if seen is None:
                why = "the called job is gone, or another one held its unique key"
                failure = _Failure("NotFound", why, ids.text(job))
                return Step(row, StepState.FAILED, _encode(failure))
            if seen.status in ACTIVE:
                return None
            if seen.status is not Status.RETRIED or seen.successor is None:
                break
            job = seen.successor
        assert seen is not None
        if seen.status is Status.DONE:
            return Step(row, StepState.DONE, seen.result or b"null")
        failure = _Failure(seen.kind, seen.last_error or "", ids.text(seen.id), seen.status.value, seen.attempts)
        return Step(row, StepState.FAILED, _encode(failure))

    def _children(self) -> tuple[list[Step], list[Step], list[Draft], list[JobId]]:
        """The rows, waits, drafts and groups of the calls that are not stored yet; one group for each queue."""
        parent = self._context.claim.id
        rows, waits, drafts = [], [], list[Draft]()
        groups: dict[str, JobId] = {}
        for row, (draft, _) in [*self._calls.items()][:MOST_CALLED]:
            if draft.queue not in groups:
                groups[draft.queue] = ids.derived(parent, f"calls {row}")
                waits.append(Step(group_wait(groups[draft.queue]), StepState.WAITING))
            child = ids.derived(parent, row)
            keep = draft.options.keep
            options = (
                draft.options if keep is not None and keep >= KEEP_CALLED else replace(draft.options, keep=KEEP_CALLED)
            )
            drafts += into_group(groups[draft.queue], [replace(draft, job_id=child, options=options)])
            rows.append(Step(row, StepState.CALLED, _encode(_Called(child, groups[draft.queue]))))
        return rows, waits, drafts, [*groups.values()]

    async def _store_calls(self) -> None:
        """Start called jobs beside what the run does."""
        calls = {row: answer for row, (_, answer) in self._calls.items()}
        with self._working():
            rows, waits, drafts, groups = self._children()
            try:
                await self._save(*rows, *waits, drafts=tuple(drafts), groups=tuple(groups))
            except BaseException as error:  # noqa: BLE001 - raised where the jobs were called
                for answer in calls.values():
                    if not answer.done():
                        answer.set_exception(error)
                return
        for step in rows:
            if not (answer := calls[step.name]).done():
                answer.set_result(step)

    # --- suspending ---------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Suspend the run soon if nothing of it goes on."""
        if not self._looking and self.suspended is None and (self._waits or self._calls):
            self._looking = True
            asyncio.get_running_loop().call_soon(self._turn, TURNS, self._asked)

    def _turn(self, left: int, asked: int) -> None:
        """Let what has ended reach those who wait for it: it takes some turns of the loop without a durable call."""
        if self.suspended is not None or not (self._waits or self._calls):
            self._looking = False
        elif left:
            left = left - 1 if asked == self._asked else TURNS
            asyncio.get_running_loop().call_soon(self._turn, left, self._asked)
        else:
            self._decide()

    def _decide(self) -> None:
        """Suspend the run, or keep its slot and look again. There is no await in it: nothing can come between."""
        loop = asyncio.get_running_loop()
        self._looking = False
        found = None if self._at_work else self._context.runtime.main_line(self._context)
        if found is not None:
            futures = {answer for wait in self._waits.values() for answer in wait.answers}
            shape = only_waits(*found, futures | {answer for _, answer in self._calls.values()})
            if shape is not None and len(self._calls) <= MOST_CALLED:
                self._suspend(shape)
                self._context.runtime.suspend(self._context)
                return
            logger.debug(
                "job %s (%s) waits and keeps its slot: other things go on", self._context.id, self._context.kind
            )
        if self._calls:
            self._background(self._store_calls())
        elif self._waits:
            self._looking = True
            first = min((wait.step.until or self._now() + DAY for wait in self._waits.values()), default=0)
            pause = min(LOOK_AGAIN, max(0.001, (first - self._now()) / SECOND))
            loop.call_later(pause, lambda: self._background(self._poll()))

    def _background(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _poll(self) -> None:
        """Answer the waits of a run that keeps its slot."""
        broken: Exception | None = None
        try:
            await self._read_again()
        except Exception as error:  # noqa: BLE001 - raised where the handler waits
            broken = error
        finally:
            self._looking = False
        for row, wait in [*self._waits.items()]:
            found = self._rows.get(row)
            over = wait.step.until is not None and wait.step.until <= self._now()
            for answer in [one for one in wait.answers if not one.done()]:
                if broken is not None:
                    answer.set_exception(broken)
                elif found is not None and found.state in (StepState.DONE, StepState.EARLY, StepState.FAILED):
                    answer.set_result(found)
                elif over:
                    answer.set_result(None)
        self._look()

    def _suspend(self, shape: Wakes) -> None:
        """Decide what becomes of a run that only waits."""
        rows, waits, drafts, groups = self._children()
        waits = [*(wait.step for wait in self._waits.values()), *waits]
        ends = [step.until for step in waits if step.until is not None]
        all_called = all(step.name.startswith("calls:") for step in waits) and not ends
        self.suspended = Suspended(
            (*self._unsaved.values(), *self._failures.values(), *rows, *waits),
            max(1, min(ends) - self._now()) if ends else None,
            shape if all_called else Wakes.ANY,
            tuple(drafts),
            tuple(groups),
        )
        self._unsaved.clear()
        self._failures.clear()


class StepParticipant:
    """Holds the run's claim first and saves a step last: its row and the user's writes are one commit."""

    def __init__(self, context: Context, row: str) -> None:
        self._context = context
        self._row = row
        self.step = Step(row)

    @property
    def name(self) -> str:
        """The step and its job."""
        return f"step {self._row} of job {self._context.id} ({self._context.kind})"

    async def begin(self, engine: Engine, tx: Transaction) -> bool:
        """Hold the claim; from here on the run goes by the claim that `hold` returns."""
        return await hold_claim(self._context, engine, tx, self.name)

    async def end(self, engine: Engine, tx: Transaction) -> bool:
        """Save the step."""
        claim = self._context.claim
        save = Save(claim.id, claim.worker, claim.token, (self.step,), ref=claim.ref)
        [verdict] = await engine.steps.save([save], tx=tx)
        return verdict is Verdict.APPLIED

    def committing(self) -> None:
        """Do nothing: the job goes on."""

    def committed(self) -> None:
        """Do nothing: the job goes on."""

    def rolled_back(self) -> None:
        """Do nothing: the step is tried again."""

    def in_doubt(self, why: str) -> None:
        """Note that this run must end as failed: the next one reads whether the step is stored."""
        assert self._context.commit is not None
        self._context.commit.doubt = why

    async def is_stored(self, engine: Engine) -> bool:
        """Return whether the step has its row."""
        [rows] = await engine.steps.get([self._context.claim.id])
        return any(row.name == self._row and row.state is StepState.DONE for row in rows)


# --- functions of steps -----------------------------------------------------------------------------------------


async def _called(row: str, fn: Callable[..., Any], args: tuple[Any, ...], timeout: float | None) -> Any:
    token = _stepping.set(row)
    try:
        async with asyncio.timeout(timeout):
            value = fn(*args)
            return await value if inspect.isawaitable(value) else value
    finally:
        _stepping.reset(token)


def _called_here(row: str, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    token = _stepping.set(row)
    try:
        return fn(*args)
    finally:
        _stepping.reset(token)


def _done(row: str, value: Any) -> Step:
    return Step(row, StepState.DONE, encode_value(value, (value,), f"step {row}", LARGEST_VALUE))


_hints: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def _hint(fn: Any) -> Any:
    """The type of what a step's function returns, awaited; Any where none can be read. A class returns its own."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if isinstance(fn, type) or typing.get_origin(fn) is not None:
        return _awaited(fn)
    fn = inspect.unwrap(getattr(fn, "__func__", fn))
    if not inspect.isroutine(fn):  # an instance that can be called
        fn = inspect.unwrap(type(fn).__call__)
    try:
        return _hints[fn]
    except (KeyError, TypeError):
        pass
    try:
        found = _awaited(typing.get_type_hints(fn, include_extras=True).get("return", Any))
    except Exception:  # noqa: BLE001 - a name that is not there, and whatever users' classes raise
        found = Any
    with suppress(TypeError):  # no weak reference to it can be made: it is read again each time
        _hints[fn] = found
    return found


def _awaited(hint: Any) -> Any:
    """The type of what an awaitable gives: the last of its parameters; every other type as it is."""
    kind = typing.get_origin(hint) or hint
    if not isinstance(kind, type) or not issubclass(kind, Awaitable):
        return hint
    return (typing.get_args(hint) or (Any,))[-1]


def _value(row: str, value: bytes | None, hint: Any) -> Any:
    """A stored value as its type wants it, on the first run too."""
    try:
        return msgspec.json.decode(value or b"null", type=hint, dec_hook=revive)
    except Exception as error:  # noqa: BLE001 - what users' types raise; a cause would show the value
        raise StepFailed(
            row,
            type(error).__name__,
            f"its stored value does not fit {hint}: {reason(error)}. Accept both forms, give the step another name, or "
            "fork the job.",
        ) from None


def _schema(kind: Any) -> Any:
    """The JSON Schema of what a wait expects; None where there is none, or only a large one."""
    try:
        found = msgspec.json.schema(kind)
    except Exception:  # noqa: BLE001 - a type that msgspec does not know
        return None
    return found if found and len(_encode(found)) <= LARGEST_SCHEMA else None


LARGEST_SCHEMA = 16 << 10


# --- failures ---------------------------------------------------------------------------------------------------


def _failed_step(row: str, failure: _Failure) -> StepFailed:
    return StepFailed(row, failure.kind, failure.error)


def _failed_call(failure: _Failure) -> StokerError:
    job = failure.job or ""
    if failure.status is None:
        return NotFound.job(job)
    if failure.status == Status.CANCELED.value:
        return JobCanceled(job, failure.kind, failure.attempt, failure.error)
    return JobFailed(job, failure.kind, failure.status, failure.attempt, failure.error)


def _check_called(draft: Draft) -> None:
    if not isinstance(draft, Draft):
        raise InvalidInput("draft", draft, "must be a draft: task.draft(...)")
    if draft.options.keep == 0:
        raise InvalidInput("keep", 0, f"must not be 0 for a job that is called: {draft.kind} would leave no result")


def _no_future() -> Any:
    """What a plain handler waits with: it never waits, its run ends."""
    return None


def _let_out(error: BaseException) -> set[str]:
    """The steps whose failure is what ends the run, as it is or as the reason of another error."""
    found: set[str] = set()
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        waiting += [*leaves(one), *(more for more in (one.__cause__, one.__context__) if more is not None)]
        if isinstance(one, StepFailed):
            found.add(one.step)
    return found


def _on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
