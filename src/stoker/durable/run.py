"""What a handler asks of its run: steps, sleeps, waits and calls, async or in a thread."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from random import random
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from stoker.codec.error_text import describe_error
from stoker.durable.step_participant import StepParticipant
from stoker.durable.stored_rows import StoredRows
from stoker.durable.suspension import Suspend, Suspension
from stoker.durable.values import (
    OF_SIGNAL,
    done,
    failed_call,
    failed_step,
    hint_of,
    schema_of,
    value_of,
)
from stoker.model import ids
from stoker.model import job as stored
from stoker.model.errors import InvalidInput, LostClaim, StokerError
from stoker.model.job import ACTIVE, LARGEST_ERROR, MOST_ATTEMPTS, Draft, Status
from stoker.model.outcome import Exit, Outcome, Suspended
from stoker.model.retry import FALLBACK_DELAY, Backoff, backoff_delay
from stoker.model.seal import check_open, why_closed
from stoker.model.steps import RowNames, Step, StepState, about, called_job, group_wait, told
from stoker.model.time import SECOND, Instant, Seconds, Span, span
from stoker.transaction_block import Block, Factory

if TYPE_CHECKING:
    from stoker.context import Context

T = TypeVar("T")

logger = logging.getLogger("stoker.job")

TRY_IN_THE_SLOT: Span = SECOND
"""The longest pause before the next try of a step in which the run keeps its slot."""

ASK_AGAIN: Span = 5 * SECOND
"""How often a run asks for a called job that was started anew."""

_stepping: ContextVar[str | None] = ContextVar("stoker.stepping", default=None)
"""The step whose function runs here."""


class Tries(NamedTuple):
    """How a step is tried: how often, how many seconds one try may take, in which transaction (True: the app's own)."""

    attempts: int = 1
    backoff: Backoff | None = None
    timeout: float | None = None
    tx: Factory[Any] | bool | None = None


def tries_of(
    fn: Any,
    attempts: int,
    backoff: Backoff | None,
    timeout: Seconds | None,
    tx: Factory[Any] | bool | None,
) -> Tries:
    """Check what the handler gave beside the name of a step."""
    if not callable(fn):
        raise InvalidInput("fn", fn, "must be a function")
    if isinstance(attempts, bool) or not isinstance(attempts, int) or not 1 <= attempts <= MOST_ATTEMPTS:
        raise InvalidInput("attempts", attempts, f"must be 1 to {MOST_ATTEMPTS:,}")
    if backoff is not None and not isinstance(backoff, Backoff):
        raise InvalidInput("backoff", backoff, "must be Fixed, Linear, Exponential, Delays or Never")
    limit = None if timeout is None else span(timeout, "timeout") / SECOND
    if limit == 0:
        raise InvalidInput("timeout", timeout, "must be more than 0 seconds")
    return Tries(attempts, backoff, limit, tx)


class DurableRun:
    """The durable side of one run: its stored rows, its open waits, the jobs that it calls."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._names = RowNames()
        self._rows = StoredRows(context)
        self._suspension = Suspension(context, self._rows)

    @property
    def suspended(self) -> Suspended | None:
        """What becomes of the run, if it is suspended."""
        return self._suspension.outcome

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
        self._suspension.asked()
        self._rows.caught()

    def _interruption(self) -> BaseException:
        return asyncio.CancelledError("the run is suspended") if _loop_here() is not None else Suspend()

    # --- asked by a plain handler, in its thread ----------------------------------------------------------------

    def step_sync(self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], key: str | None, tries: Tries) -> Any:
        """`step` for a plain handler: the function runs in its thread."""
        self._ask_in_thread(f"step {name}", "step")
        row = self._names.step(name, key)
        found = self._on_worker_loop(self._rows.read()).get(row)
        failed = 0
        while True:
            if found is not None and found.state is StepState.DONE:
                return value_of(row, found.value, hint_of(fn))
            if found is not None and found.state is StepState.FAILED:
                raise failed_step(found)
            if found is not None and found.state is StepState.WAITING:
                failed = about(found).tries
                self._suspension.open_sync(found)
            try:
                if tries.tx:
                    self._on_worker_loop(self._rows.save_rest())
                    part = StepParticipant(self._context, row)
                    with self._block(part, tries) as handle:
                        part.step = done(row, self._run_here(row, fn, (handle, *args)))
                    self._rows.by_name[row] = found = part.step
                    continue
                found = done(row, self._run_here(row, fn, args))
            except (Exit, LostClaim):
                raise
            except Exception as error:
                if self._context.commit is not None and self._context.commit.doubt is not None:
                    raise
                failed += 1
                found = self._on_worker_loop(self._failed(row, error, tries, failed))
                continue
            self._on_worker_loop(self._rows.finish(found))

    def sleep_sync(self, until: Instant | None, pause: Span, name: str) -> None:
        """`sleep` for a plain handler."""
        self._ask_in_thread(name, "sleep")
        row = self._names.step(name)
        found = self._on_worker_loop(self._rows.read()).get(row)
        if found is not None and found.state is not StepState.WAITING:
            return
        if found is None or found.until is None:
            found = Step(row, StepState.WAITING, None, self._suspension.now() + pause if until is None else until)
        self._suspension.open_sync(found, exact=until is not None)
        self._rows.unsaved[row] = Step(row, StepState.DONE, b"null")

    def wait_sync(self, name: str, kind: Any, timeout: Span | None, ask: str | None) -> Any:
        """`wait` for a plain handler."""
        self._ask_in_thread(f"wait {name}", "wait")
        row = self._names.step(name)
        found = self._on_worker_loop(self._rows.read(fresh_too=True)).get(row)
        if found is None or found.state is StepState.WAITING:
            self._suspension.open_sync(self._question(row, kind, timeout, ask, found))
            found = self._on_worker_loop(self._time_out(row))
        return self._answer(row, found, kind)

    def call_sync(self, draft: Draft, key: str | None) -> Any:
        """`call` for a plain handler."""
        _check_called(draft)
        self._ask_in_thread(f"call of {draft.kind}", "call")
        row = self._names.call(draft.kind, key)
        found = self._on_worker_loop(self._rows.read()).get(row)
        if found is None:
            self._suspension.call_sync(row, draft)
        while found.state is StepState.CALLED:
            step = self._on_worker_loop(self._ended(found, draft))
            if step is None:
                self._suspension.open_sync(self._end_of_group(found))
                continue
            self._on_worker_loop(self._rows.keep(step))
            found = step
        return self._result(found, draft)

    def _ask_in_thread(self, what: str, verb: str) -> None:
        if _loop_here() is self._context.runtime.loop:
            context = self._context
            raise StokerError(
                f"{what} of job {context.id} ({context.kind}): `{verb}_sync` would block the event loop of the worker. "
                f"Nothing was stored. Write `await current().{verb}(...)` in an async handler."
            )
        self._ask(what)

    def _on_worker_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._context.runtime.loop).result()

    # --- asked by the worker ------------------------------------------------------------------------------------

    def decided(self, outcome: Outcome, error: BaseException | None, *, interrupted: bool) -> Outcome:
        """The outcome of the run: what was decided when it was suspended, unless it was interrupted otherwise.

        `error` is what the handler raised.
        """
        if self.suspended is None or interrupted:
            return outcome
        if not isinstance(outcome, Suspended) and not isinstance(error, asyncio.CancelledError | Suspend):
            logger.warning(
                "job %s (%s) was suspended, and its handler went on: what it %s after that does not count. It runs "
                "again when a wait is over. Let CancelledError (in a plain handler: Suspend) pass through the handler",
                self._context.id,
                self._context.kind,
                "returned" if error is None else "raised",
                exc_info=error,
            )
        return self.suspended

    def left(self, error: BaseException | None) -> tuple[Step, ...]:
        """The rows that the end of the run has to store; not the failures that the handler let out as `error`."""
        return self._rows.left(error)

    def ended_elsewhere(self, outcome: Outcome, steps: tuple[Step, ...]) -> None:
        """Take over how the run ended in a child process, and the rows that its end has to store."""
        self._suspension.outcome = outcome if isinstance(outcome, Suspended) else None
        self._rows.unsaved = {step.name: step for step in steps}

    # --- steps --------------------------------------------------------------------------------------------------

    async def _step(self, row: str, fn: Callable[..., Any], args: tuple[Any, ...], tries: Tries) -> Any:
        with self._suspension.working():
            found = (await self._rows.read()).get(row)
        while True:
            if found is not None and found.state is StepState.DONE:
                return value_of(row, found.value, hint_of(fn))
            if found is not None and found.state is StepState.FAILED:
                raise failed_step(found)
            failed = 0
            if found is not None and found.state is StepState.WAITING:  # for its next try
                failed = about(found).tries
                answer = await self._suspension.open(found)
                if answer is not None:
                    found = answer
                    continue
            found = await self._try(row, fn, args, tries, failed)

    async def _try(self, row: str, fn: Callable[..., Any], args: tuple[Any, ...], tries: Tries, failed: int) -> Step:
        """Run the function once; returns the row that is stored then."""
        with self._suspension.working():
            try:
                if tries.tx:
                    return await self._in_transaction(row, fn, args, tries)
                step = done(row, await self._run(row, fn, args, tries.timeout))
            except (Exit, LostClaim):
                raise
            except Exception as error:
                if self._context.commit is not None and self._context.commit.doubt is not None:
                    raise
                return await self._failed(row, error, tries, failed + 1)
            await self._rows.finish(step)
            return step

    async def _in_transaction(self, row: str, fn: Callable[..., Any], args: tuple[Any, ...], tries: Tries) -> Step:
        """Run the function with a transaction: its writes and the row of the step exist together or not at all."""
        await self._rows.save_rest()
        part = StepParticipant(self._context, row)
        async with self._block(part, tries) as handle:
            part.step = done(row, await self._run(row, fn, (handle, *args), tries.timeout))
        self._rows.by_name[row] = part.step
        return part.step

    def _block(self, part: StepParticipant, tries: Tries) -> Block[Any, Any]:
        app, runtime = self._context.runtime.app, self._context.runtime
        factory = app.transaction if isinstance(tries.tx, bool) else tries.tx
        return Block(app, part, factory, loop=runtime.loop)

    async def _failed(self, row: str, error: Exception, tries: Tries, failed: int) -> Step:
        text = describe_error(error, LARGEST_ERROR)
        failure = told(kind=type(error).__name__, error=text, tries=failed)
        policy = tries.backoff or self._context.claim.options.backoff or self._context.runtime.app.backoff
        pause = FALLBACK_DELAY if policy is None else backoff_delay(policy, failed, random())
        if failed < tries.attempts and pause is not None:
            if pause < TRY_IN_THE_SLOT:
                await asyncio.sleep(pause / SECOND)
                return Step(row, StepState.WAITING, failure, self._suspension.now())
            return Step(row, StepState.WAITING, failure, self._suspension.now() + pause)
        step = Step(row, StepState.FAILED, failure)
        if tries.attempts > 1:
            await self._rows.finish(step)
        else:
            self._rows.failures[row] = step
        raise failed_step(step) from error

    @contextmanager
    def _inside(self, row: str) -> Iterator[None]:
        """Around the function of a step."""
        context = self._context
        tracing = context.runtime.app.tracing
        token = _stepping.set(row)
        try:
            with nullcontext() if tracing is None else tracing.step(context, row):
                yield
        finally:
            _stepping.reset(token)

    async def _run(self, row: str, fn: Callable[..., Any], args: tuple[Any, ...], timeout: float | None) -> Any:
        with self._inside(row):
            async with asyncio.timeout(timeout):
                value = fn(*args)
                return await value if inspect.isawaitable(value) else value

    def _run_here(self, row: str, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        with self._inside(row):
            return fn(*args)

    # --- sleeps and waits ---------------------------------------------------------------------------------------

    async def _sleep(self, row: str, until: Instant | None, pause: Span) -> None:
        with self._suspension.working():
            found = (await self._rows.read()).get(row)
        if found is not None and found.state is not StepState.WAITING:
            return  # a signal has ended it
        if found is None or found.until is None:
            found = Step(row, StepState.WAITING, None, self._suspension.now() + pause if until is None else until)
        if await self._suspension.open(found, exact=until is not None) is None:
            self._rows.unsaved[row] = Step(row, StepState.DONE, b"null")

    async def _wait(self, row: str, kind: Any, timeout: Span | None, ask: str | None) -> Any:
        with self._suspension.working():
            found = (await self._rows.read(fresh_too=True)).get(row)
        if found is None or found.state is StepState.WAITING:
            question = self._question(row, kind, timeout, ask, found)
            found = await self._suspension.open(question) or await self._time_out(row)
        return self._answer(row, found, kind)

    def _question(self, row: str, kind: Any, timeout: Span | None, ask: str | None, found: Step | None) -> Step:
        """The open row of a wait; one that was opened before keeps its deadline."""
        if ask is not None and not isinstance(ask, str):
            raise InvalidInput("ask", ask, "must be a text")
        until = found.until if found is not None else None if timeout is None else self._suspension.now() + timeout
        return Step(row, StepState.WAITING, told(ask=ask, schema=schema_of(kind)), until)

    def _answer(self, row: str, found: Step, kind: Any) -> Any:
        if found.state is StepState.FAILED:
            raise TimeoutError(f"{row}: {about(found).error}")
        if found.state is StepState.EARLY:
            self._rows.unsaved[row] = replace(found, state=StepState.DONE)
        return value_of(row, found.value, kind, OF_SIGNAL)

    async def _time_out(self, row: str) -> Step:
        """The row of a wait whose time is over: the answer, if it came meanwhile."""
        failure = told(kind="TimeoutError", error="no signal came in time")
        with self._suspension.working():
            await self._rows.save(Step(row, StepState.FAILED, failure))
        return self._rows.by_name[row]

    # --- called jobs --------------------------------------------------------------------------------------------

    async def _call(self, row: str, draft: Draft) -> Any:
        with self._suspension.working():
            found = (await self._rows.read()).get(row)
        if found is None:
            found = await self._suspension.call(row, draft)
        while found.state is StepState.CALLED:
            found = await self._end_of(found, draft)
        return self._result(found, draft)

    def _result(self, found: Step, draft: Draft) -> Any:
        if found.state is StepState.FAILED:
            raise failed_call(found)
        task = self._context.runtime.app.find_task(draft.kind)
        return (
            msgspec.json.decode(found.value or b"null") if task is None else task.signature.decode_result(found.value)
        )

    async def _end_of(self, called: Step, draft: Draft) -> Step:
        """The row of a called job, with its end as soon as it has one."""
        with self._suspension.working():
            step = await self._ended(called, draft)
            if step is not None:
                await self._rows.keep(step)
                return step
        await self._suspension.open(self._end_of_group(called))
        return self._rows.by_name[called.name]

    def _end_of_group(self, called: Step) -> Step:
        """The open row that waits for called jobs."""
        mark = group_wait(ids.parse(about(called).group or ""))
        answered = self._rows.by_name.get(mark)
        if answered is not None and answered.state is StepState.DONE:
            # The group has closed and a job of it runs again, as after a requeue: only time ends this wait.
            return Step(f"{mark}:again", StepState.WAITING, None, self._suspension.now() + ASK_AGAIN)
        return Step(mark, StepState.WAITING)

    def _compare(self, row: str, first: stored.Job, draft: Draft) -> None:
        """Warn if a job was called with other arguments than this run calls it with."""
        if first.payload == draft.payload or why_closed(first.payload) is not None:
            return
        logger.warning(
            "job %s (%s) calls %s with other arguments than job %s has, which an earlier run called by that name: its "
            "result counts, and nothing is called anew. Where the order of calls may differ between runs, give key=",
            self._context.id,
            self._context.kind,
            row,
            ids.text(first.id),
        )

    async def _ended(self, called: Step, draft: Draft) -> Step | None:
        """The row of a called job that has ended; None: it has not."""
        row, job = called.name, called_job(called)
        engine = await self._context.runtime.app.engine()
        seen: stored.Job | None = None
        while job is not None:
            [seen] = await self._rows.patiently(partial(engine.operator.get, [job]))
            if seen is None:
                why = "the called job is gone, or another one held its unique key"
                failure = told(kind="NotFound", error=why, job=ids.text(job))
                return Step(row, StepState.FAILED, failure)
            if seen.status in ACTIVE:
                return None
            if job == called_job(called):
                self._compare(row, seen, draft)
            if seen.status is not Status.RETRIED or seen.successor is None:
                break
            job = seen.successor
        assert seen is not None
        if seen.status is Status.DONE:
            check_open(seen.result, f"the result of job {ids.text(seen.id)}")
            return Step(row, StepState.DONE, seen.result or b"null")
        failure = told(
            kind=seen.kind,
            error=seen.last_error,
            job=ids.text(seen.id),
            status=seen.status.value,
            attempt=seen.attempts,
        )
        return Step(row, StepState.FAILED, failure)


def _check_called(draft: Draft) -> None:
    if not isinstance(draft, Draft):
        raise InvalidInput("draft", draft, "must be a draft: task.draft(...)")
    if draft.options.keep == 0:
        raise InvalidInput("keep", 0, f"must not be 0 for a job that is called: {draft.kind} would leave no result")


def _loop_here() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
