"""`current()`: what a handler can read and report about its own run.

The worker makes one `Context` per run and sets it in a contextvars context of the run's own, so two jobs never see
each other's. Progress, metadata and log lines are written under the run's fence: a run that lost its claim writes
nothing.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, TypeVar, TypeVarTuple, Unpack, overload

from stoker.codec.error_text import safe, text_of
from stoker.codec.signature import Call
from stoker.codec.to_json import encode_value
from stoker.durable.run import DurableRun, tries_of
from stoker.job_participant import Commit, JobParticipant
from stoker.model import ids
from stoker.model.budgets import Spend, asked_of
from stoker.model.emitted import LARGEST_EMITTED, Ring, What, entry
from stoker.model.errors import GroupClosed, InvalidInput, StokerError
from stoker.model.groups import GROUP, into_group
from stoker.model.ids import JobId
from stoker.model.job import (
    LONGEST_LOG,
    PARENT,
    Claim,
    Draft,
    Note,
    Settlement,
    Verdict,
    check_drafts,
    check_ids,
    check_markers,
    check_metadata,
)
from stoker.model.lifecycle import Rules
from stoker.model.origin import origin, trace_id
from stoker.model.retry import Backoff
from stoker.model.schedule import OCCURRENCE, SCHEDULE
from stoker.model.steps import Save, Step, StepState
from stoker.model.time import SECOND, Instant, Seconds, instant, moment, span
from stoker.reservation import Reservation, take
from stoker.run_metadata import NOTED, RunMetadata
from stoker.stopping import CancelToken, Stopping
from stoker.sync import in_sync
from stoker.transaction_block import Block, Factory

if TYPE_CHECKING:
    from stoker.app import Stoker
    from stoker.groups import GroupHandle

H = TypeVar("H")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")

logger = logging.getLogger("stoker.job")

LONGEST_LINE = 16 << 10
"""Bytes of one line on a job's record."""

METADATA_WARNING = f"{NOTED}metadata_warning"
"""Metadata key: why the metadata of a run was not stored."""


_making_ring = threading.Lock()
"""Two threads of a handler may emit its first value at once."""

_UNREAD = "\0"
"""No correlation can be this: it was not looked for yet."""


class Runtime(Protocol):
    """What a run needs of the worker it runs in."""

    app: Stoker
    states: dict[Any, Any]
    stopping: Stopping
    loop: asyncio.AbstractEventLoop
    """Where the engine lives that settles this run."""
    shares_store: bool
    """Is this the process that claimed the job?"""

    def rules_of(self, kind: str) -> Rules:
        """Return the rules by which jobs of this kind are settled."""
        ...

    def settled(self, claim: Claim, settlement: Settlement) -> None:
        """Note that a block has settled the run's job; may be called from any thread."""
        ...

    def note(self, claim: Claim, progress: float | None, lines: tuple[str, ...]) -> None:
        """Write to the job's record soon; may be called from any thread."""
        ...

    def emit(self, claim: Claim, ring: Ring, entry: bytes) -> None:
        """Store soon what the run has emitted: the entry is in the ring; may be called from any thread."""
        ...

    def withhold_notes(self, claim: Claim) -> None:
        """Leave to a block what the run notes and emits, until `release_notes`; may be called from any thread."""
        ...

    def take_note(self, claim: Claim) -> Note | None:
        """Return what the run has noted and is not written, and forget it; may be called from any thread."""
        ...

    def release_notes(self, claim: Claim) -> None:
        """Go on to write what the run notes and emits; may be called from any thread."""
        ...

    def waits(self, claim: Claim, job: JobId, *, over: bool) -> None:
        """Report that a run begins or ends waiting for another job; may be called from any thread."""
        ...

    def stepped(self, claim: Claim, state: StepState) -> None:
        """Count a step that the run has stored, as done or failed; may be called from any thread."""
        ...

    async def read_steps(self, job: JobId) -> list[Step]:
        """Return the rows of a job."""
        ...

    async def save_steps(self, save: Save) -> Verdict:
        """Store rows of a run under its claim."""
        ...

    def store_now(self, context: Context) -> Instant:
        """Return about the store's time; may be called from any thread."""
        ...

    def main_line(self, context: Context) -> tuple[asyncio.Task[Any], Any] | None:
        """Return the task that runs an async handler, and the handler's coroutine; None: it has ended."""
        ...

    def suspend(self, context: Context) -> None:
        """Interrupt a run that only waits: what becomes of it is decided."""
        ...


class Context:
    """One run of one job, seen from inside its handler."""

    __slots__ = (
        *(
            "_correlation",
            "_metadata",
            "awaited",
            "arguments",
            "began",
            "cancel",
            "claim",
            "commit",
            "durable",
            "followups",
            "limit",
            "main",
        ),
        *("result_warning", "ring", "runtime", "trace"),
    )

    def __init__(self, claim: Claim, runtime: Runtime, arguments: Call = ((), {}), limit: float | None = None) -> None:
        self.claim = claim
        self.runtime = runtime
        self.arguments = arguments
        self.limit = limit
        self.began = time.monotonic()
        self.cancel = CancelToken()
        self.followups: list[Draft] = []
        self.result_warning: str | None = None
        self.awaited: tuple[JobId, ...] = ()
        self.trace: Any = None
        self.commit: Commit | None = None
        self.durable: DurableRun | None = None
        self.main: Any = None
        self.ring: Ring | None = None
        self._metadata: RunMetadata | None = None
        self._correlation: str | None = _UNREAD

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.kind}>"

    @property
    def id(self) -> str:
        """The job's id."""
        return ids.text(self.claim.id)

    @property
    def kind(self) -> str:
        """The task's name."""
        return self.claim.kind

    @property
    def queue(self) -> str:
        """The queue the job came from."""
        return self.claim.queue

    @property
    def tenant(self) -> str | None:
        """The tenant the job belongs to."""
        return self.claim.tenant

    @property
    def parent(self) -> str | None:
        """The id of the job before this one in its chain; None for the first, and outside a chain."""
        return (self.claim.options.metadata or {}).get(PARENT)

    @property
    def group(self) -> GroupHandle | None:
        """The group this job is a member of, or whose end stored it; None outside a group.

        A callback reads what became of the members: `await current().group.results()` and `.failed()`.
        """
        options = self.claim.options
        if options.group is not None:
            return self.runtime.app.group_handle(options.group).seen_by("member")
        of = (options.metadata or {}).get(GROUP)
        return None if of is None else self.runtime.app.group_handle(of).seen_by("callback")

    @property
    def schedule(self) -> str | None:
        """The name of the schedule that made this job; None if a caller enqueued it."""
        return (self.claim.options.metadata or {}).get(SCHEDULE)

    @property
    def occurrence(self) -> datetime | None:
        """The instant the schedule made this job for, in UTC; None for a job beside the timetable."""
        at = (self.claim.options.metadata or {}).get(OCCURRENCE)
        return None if at is None else datetime.fromisoformat(at)

    @property
    def attempt(self) -> int:
        """Which start of the job this is; 1 on the first run."""
        return self.claim.attempt

    @property
    def is_retry(self) -> bool:
        """Has an earlier run of this job failed?"""
        return self.claim.last_error is not None

    @property
    def token(self) -> int:
        """The fence of this run: it only grows, so sinks of your own can refuse an older run's writes."""
        return self.claim.token

    @property
    def previous_error(self) -> str | None:
        """The error of the previous run; None on the first."""
        return self.claim.last_error

    @property
    def worker(self) -> str:
        """The id of the worker that holds the claim."""
        return self.claim.worker

    @property
    def items(self) -> tuple[Context, ...]:
        """The jobs of this run: those of a chunk in the order of the handler's list, else this one alone."""
        return (self,)

    @property
    def canceled(self) -> bool:
        """Was this job canceled, or its claim lost? A chunk need not work for it any more."""
        return self.cancel.requested

    @property
    def stopping(self) -> Stopping:
        """Is the worker stopping? True from the beginning of the grace; it can be awaited too."""
        return self.runtime.stopping

    @property
    def host(self) -> str:
        """The name of the machine this run is on."""
        return socket.gethostname()

    @property
    def started_at(self) -> datetime:
        """When this run was claimed, by the store's clock, in UTC."""
        return moment(self.claim.claimed_at)

    @property
    def elapsed(self) -> float:
        """Seconds since this run started."""
        return time.monotonic() - self.began

    @property
    def remaining(self) -> float | None:
        """Seconds until the timeout, never below zero; None without one."""
        own = self.claim.options.timeout
        limit = own / SECOND if self.limit is None and own is not None else self.limit
        return None if limit is None else max(0.0, limit - self.elapsed)

    @property
    def state(self) -> Any:
        """What the app's lifespan opened for this worker process; the first one's, when there are several."""
        return next(iter(self.runtime.states.values()), None)

    @property
    def metadata(self) -> RunMetadata:
        """Text by key: from the enqueue, from earlier attempts, and what this run writes.

        What this run writes is stored within about a second and at its end, under keys prefixed `exec_`; the next
        attempt reads it under the same key as here. A key that was stored can be overwritten, not removed.
        """
        if self._metadata is None:
            self._metadata = RunMetadata(self.claim)
        return self._metadata

    @property
    def noted(self) -> dict[str, str]:
        """The metadata that this run wrote."""
        return {} if self._metadata is None else self._metadata.own

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that adds the job to each record."""
        return logging.LoggerAdapter(logger, self.about)

    @property
    def about(self) -> dict[str, object]:
        """What log records say about this run."""
        claim = self.claim
        about: dict[str, object] = {"job": ids.text(claim.id), "kind": claim.kind, "queue": claim.queue}
        about["attempt"] = claim.attempt
        if claim.tenant is not None:
            about["tenant"] = claim.tenant
        if (found := self.correlation) is not None:
            about["correlation"] = found
        return self._in_trace(about)

    def _in_trace(self, about: dict[str, object]) -> dict[str, object]:
        if (trace_id := self.trace_id) is not None:
            about["trace_id"] = trace_id
        about["worker"] = self.worker
        return about

    @property
    def trace_id(self) -> str | None:
        """The trace of this run where the app traces, else that of its caller; None: there is none."""
        tracing = self.runtime.app.tracing
        if tracing is not None and self.trace is not None:
            return tracing.trace_id(self.trace)
        return trace_id(self.claim.options.metadata)

    @property
    def correlation(self) -> str | None:
        """What the job belongs to: `correlation_id`, else `request_id`, of its metadata, else of its arguments."""
        if self._correlation is _UNREAD:
            self._correlation = origin(self.claim.payload, self.claim.options.metadata).correlation
        return self._correlation

    def progress(self, fraction: float, text: str | None = None, data: Any = None) -> None:
        """Report progress between 0 and 1. `text` and `data`, which is JSON, go to those who watch the job."""
        if not 0 <= fraction <= 1:
            raise InvalidInput("progress", fraction, "must be between 0 and 1")
        told = b""
        if text is not None or data is not None:
            shown = None if text is None else text_of(text, LONGEST_LINE)
            told = encode_value([fraction, shown, data], (data,), f"progress of {self.kind}", LARGEST_EMITTED)
        if told:
            self._emit(What.PROGRESS, told)
        self.runtime.note(self.claim, float(fraction), ())  # last: what is written with it has been emitted

    def emit(self, value: Any) -> None:
        """Send a value to those who watch the job: `async for event in handle.watch()`. Works in threads and processes.

        The value is JSON of at most 64 KiB. Values are stored within about 40 ms and before the end of the run; the
        store keeps the last 1,000 of a job, up to 256 KiB. It never waits for the store. A block stores what was
        emitted in it when it commits.
        """
        self._emit(What.VALUE, encode_value(value, (value,), f"emit of {self.kind}", LARGEST_EMITTED))

    def _emit(self, what: What, body: bytes) -> None:
        self.pass_on(entry(self.runtime.store_now(self), what, body))

    def pass_on(self, one: bytes) -> None:
        """Send an entry as it is stored."""
        claim = self.claim
        with _making_ring:
            if self.ring is None:
                self.ring = Ring(claim.token, claim.attempt, fresh=claim.fresh)
        self.ring.add(one)
        self.runtime.emit(claim, self.ring, one)

    def log(self, *lines: str) -> None:
        """Append lines to the log on the job's record, and log them as `stoker.job`."""
        kept = self._note(lines)
        self._say(kept)

    def _note(self, lines: tuple[str, ...]) -> tuple[str, ...]:
        kept = tuple(text_of(line, LONGEST_LINE) for line in lines[-LONGEST_LOG:])
        self.runtime.note(self.claim, None, kept)
        return kept

    def _say(self, lines: tuple[str, ...]) -> None:
        if logger.isEnabledFor(logging.INFO):
            for line in lines:
                logger.info("%s", safe(line).replace("\n", "\n    "), extra=self.about)

    def follow_up(self, *drafts: Draft | Iterable[Draft]) -> None:
        """Enqueue jobs together with this one's success: stored in the same write, or not at all."""
        for draft in drafts:
            self._follow([draft] if isinstance(draft, Draft) else list(draft))

    def join(self, *drafts: Draft | Iterable[Draft]) -> None:
        """Add jobs to this job's group together with its success, so that the group waits for them too."""
        group = self.claim.options.group
        if group is None:
            if self.group is not None:
                raise GroupClosed(ids.parse(self.group.id))
            raise StokerError(f"job {self.id} is a member of no group; nothing was added. Use follow_up(...) instead.")
        awaited = self.claim.options.awaited
        for draft in drafts:
            self._follow(into_group(group, [draft] if isinstance(draft, Draft) else draft, awaited=awaited))

    def _follow(self, drafts: list[Draft]) -> None:
        check_drafts("drafts", drafts)
        for draft in drafts:
            check_ids(draft)
            check_markers(draft)
        self.followups.extend(drafts)

    @overload
    def transaction(self, factory: Factory[H]) -> Block[H, H]: ...

    @overload
    def transaction(self, factory: None = None) -> Block[Any, Any]: ...  # the app's factory decides

    def transaction(self, factory: Factory[Any] | None = None) -> Block[Any, Any]:
        """A block whose writes are committed together with this job's success, or not at all.

        `async with current().transaction(Session.begin) as session:`, or `with` in a plain handler. `factory` opens
        the transaction: a callable that returns a context manager which yields a handle that `tx=` accepts and commits
        at its end. Without one it is the app's (`Stoker(transaction=...)`), else the engine's own, with
        `tx.execute(sql, *values)`. Jobs enqueued and messages appended in it join it; `result(value)` of the block
        sets the job's result. When the block ends well the job is done: what the handler does afterwards changes
        nothing, and a second block is refused. `LostClaim`: the job is no longer this run's, nothing was stored.
        """
        app, runtime = self.runtime.app, self.runtime
        self.commit = commit = self.commit or Commit()
        commit.check(f"job {self.id} ({self.kind})")
        commit.block = Block(app, JobParticipant(self, commit), factory or app.transaction, loop=runtime.loop)
        return commit.block

    # --- durable ------------------------------------------------------------------------------------------------

    @property
    def _run(self) -> DurableRun:
        if self.durable is None:
            self.durable = DurableRun(self)
        return self.durable

    @overload
    def step(
        self,
        name: str,
        fn: Callable[[H, Unpack[Ts]], Awaitable[R]],
        *args: *Ts,
        key: str | None = None,
        attempts: int = 1,
        backoff: Backoff | None = None,
        timeout: Seconds | None = None,
        tx: Factory[H] | Literal[True],
    ) -> Awaitable[R]: ...

    @overload
    def step(
        self,
        name: str,
        fn: Callable[[H, Unpack[Ts]], R],
        *args: *Ts,
        key: str | None = None,
        attempts: int = 1,
        backoff: Backoff | None = None,
        timeout: Seconds | None = None,
        tx: Factory[H] | Literal[True],
    ) -> Awaitable[R]: ...

    @overload
    def step(
        self,
        name: str,
        fn: Callable[[Unpack[Ts]], Awaitable[R]],
        *args: *Ts,
        key: str | None = None,
        attempts: int = 1,
        backoff: Backoff | None = None,
        timeout: Seconds | None = None,
    ) -> Awaitable[R]: ...

    @overload
    def step(
        self,
        name: str,
        fn: Callable[[Unpack[Ts]], R],
        *args: *Ts,
        key: str | None = None,
        attempts: int = 1,
        backoff: Backoff | None = None,
        timeout: Seconds | None = None,
    ) -> Awaitable[R]: ...

    def step(  # type: ignore[misc]  # mypy does not see that Any takes a TypeVarTuple
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        key: str | None = None,
        attempts: int = 1,
        backoff: Backoff | None = None,
        timeout: Seconds | None = None,
        tx: Factory[Any] | Literal[True] | None = None,
    ) -> Awaitable[Any]:
        """Run `fn(*args)` once in the life of this job and return what it returned, also in later runs.

        The value is stored when the function returns. `StepFailed`: it raised. The n-th use of a name in a run is
        `name#n`; with `key` it is found by that instead, whatever the order. `attempts` are tries of the step's own,
        `backoff` apart; without them the job's policy decides. With `tx` the function gets the handle of a transaction
        first, and its writes and the stored value exist together or not at all. Give keywords of the function with
        `functools.partial`.
        """
        return self._run.step(name, fn, args, key, tries_of(fn, attempts, backoff, timeout, tx))

    def sleep(self, seconds: Seconds, name: str = "sleep") -> Awaitable[None]:
        """Go on after this time, by the store's clock; the run needs no slot and no process meanwhile."""
        return self._run.sleep(span(seconds, "seconds"), name)

    def sleep_until(self, when: datetime, name: str = "sleep") -> Awaitable[None]:
        """Go on at this time, by the store's clock; the run needs no slot and no process meanwhile."""
        return self._run.sleep_until(instant(when, "when"), name)

    @overload
    def wait(
        self, name: str, type: type[R], *, timeout: Seconds | None = None, ask: str | None = None
    ) -> Awaitable[R]: ...

    @overload
    def wait(
        self, name: str, type: Any = ..., *, timeout: Seconds | None = None, ask: str | None = None
    ) -> Awaitable[Any]: ...

    def wait(
        self,
        name: str,
        type: Any = Any,  # noqa: A002 - the word for it
        *,
        timeout: Seconds | None = None,
        ask: str | None = None,
    ) -> Awaitable[Any]:
        """Go on with the value of a signal: `jobs.handle(id).signal(name, value)`. `ask` is the question people see.

        The run needs no slot and no process meanwhile. `TimeoutError`: none came within `timeout`.
        """
        return self._run.wait(name, type, None if timeout is None else span(timeout, "timeout"), ask)

    def call(self, draft: Draft[R], key: str | None = None) -> Awaitable[R]:
        """Enqueue a job and go on with its result; the run needs no slot and no process meanwhile.

        `JobFailed`, `JobCanceled`: it ended otherwise.
        """
        return self._run.call(draft, key)

    @overload
    def step_sync(
        self,
        name: str,
        fn: Callable[[H, Unpack[Ts]], R],
        *args: *Ts,
        key: str | None = None,
        attempts: int = 1,
        backoff: Backoff | None = None,
        tx: Factory[H] | Literal[True],
    ) -> R: ...

    @overload
    def step_sync(
        self,
        name: str,
        fn: Callable[[Unpack[Ts]], R],
        *args: *Ts,
        key: str | None = None,
        attempts: int = 1,
        backoff: Backoff | None = None,
    ) -> R: ...

    def step_sync(  # type: ignore[misc]  # as above
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        key: str | None = None,
        attempts: int = 1,
        backoff: Backoff | None = None,
        timeout: Seconds | None = None,
        tx: Factory[Any] | Literal[True] | None = None,
    ) -> Any:
        """`step` for a plain handler, without `timeout`: nothing can interrupt its thread."""
        if timeout is not None:
            raise InvalidInput("timeout", timeout, "must not be given in step_sync: nothing can interrupt a thread")
        return self._run.step_sync(name, fn, args, key, tries_of(fn, attempts, backoff, None, tx))

    def sleep_sync(self, seconds: Seconds, name: str = "sleep") -> None:
        """`sleep` for a plain handler."""
        self._run.sleep_sync(None, span(seconds, "seconds"), name)

    def sleep_until_sync(self, when: datetime, name: str = "sleep") -> None:
        """`sleep_until` for a plain handler."""
        self._run.sleep_sync(instant(when, "when"), 0, name)

    def wait_sync(
        self,
        name: str,
        type: Any = Any,  # noqa: A002 - the word for it
        *,
        timeout: Seconds | None = None,
        ask: str | None = None,
    ) -> Any:
        """`wait` for a plain handler."""
        return self._run.wait_sync(name, type, None if timeout is None else span(timeout, "timeout"), ask)

    def call_sync(self, draft: Draft[R], key: str | None = None) -> R:
        """`call` for a plain handler."""
        result: R = self._run.call_sync(draft, key)
        return result

    async def spend(self, /, budget: str, n: int | None = None, *, key: str | None = None, **measures: int) -> None:
        """Take tokens of a budget, or end this run: the job runs again later, without using an attempt.

        It takes `n` tokens, one unless given, or those of every measure that is named, or none. A refusal raises
        `Snooze` with the time after which there may be tokens; the queue goes on meanwhile. A budget that is neither
        declared nor stored, or is declared to hold fewer tokens, raises `InvalidInput`. `key`: whose tokens, where each
        key has its own.
        """
        await take(self.runtime.app.budget(budget), Spend(asked_of(n, measures), key))

    def reserve(self, budget: str, n: int | None = None, *, key: str | None = None, **measures: int) -> Reservation:
        """Take tokens as `spend` does for a block, which says at its end how many it has used.

        `async with run.reserve("llm", requests=1, tokens=estimate) as r:` and in it `r.used(tokens=actual)`; a plain
        handler writes `with`.
        """
        return Reservation(self.runtime.app, budget, Spend(asked_of(n, measures), key))

    async def drain(self, budget: str, *, key: str | None = None) -> bool:
        """Empty a budget, or one key of it, because the real limiter refused. False when there is no such bucket."""
        return await self.runtime.app.budget(budget).drain(key=key)

    spend_sync = in_sync(spend)
    drain_sync = in_sync(drain)

    def executed(self) -> dict[str, str] | None:
        """The run's metadata as it is stored: values as text; a warning instead if it is too large."""
        if not self.noted:
            return None
        given: list[tuple[object, object]] = list(self.noted.copy().items())  # its handler may write in a thread
        kept = {f"{NOTED}{text_of(key, LONGEST_LINE)}": text_of(value, LONGEST_LINE) for key, value in given}
        try:
            check_metadata(kept)
        except InvalidInput as error:
            return {METADATA_WARNING: f"the metadata of the run was left out: {error.why}"}
        return kept


class ChunkContext(Context):
    """One call of a handler for many jobs. What belongs to one job is on its item, not here.

    `claim` is the first job's: kind, queue, worker and the moment of the claim are the same for all.
    """

    __slots__ = ("_items",)

    def __init__(self, items: tuple[Context, ...], arguments: Call, limit: float | None) -> None:
        super().__init__(items[0].claim, items[0].runtime, arguments, limit)
        self._items = items

    @property
    def items(self) -> tuple[Context, ...]:
        """The jobs, in the order of the handler's list."""
        return self._items

    @property
    def about(self) -> dict[str, object]:
        """What log records say about this call: kind, queue and how many jobs."""
        return self._in_trace({"kind": self.kind, "queue": self.queue, "jobs": len(self._items)})

    @property
    def trace_id(self) -> str | None:
        """The trace of this call where the app traces; the jobs came from callers of their own."""
        tracing = self.runtime.app.tracing
        return None if tracing is None or self.trace is None else tracing.trace_id(self.trace)

    def progress(self, fraction: float, text: str | None = None, data: Any = None) -> None:
        """Report progress between 0 and 1, for each of the jobs."""
        for item in self._items:
            item.progress(fraction, text, data)

    def log(self, *lines: str) -> None:
        """Append lines to the log on the record of each of the jobs, and log them once as `stoker.job`."""
        kept: tuple[str, ...] = ()
        for item in self._items:
            kept = item._note(lines)  # noqa: SLF001 - of the same class
        self._say(kept)

    def _of_one_job(self, name: str) -> StokerError:
        return StokerError(
            f"current().{name} is one job's, and this call of {self.kind} is for {len(self._items)} jobs. "
            f"Use item.{name} of each: for item in current().items"
        )


def _refused(name: str) -> property:
    def refuse(context: ChunkContext) -> NoReturn:
        raise context._of_one_job(name)  # noqa: SLF001 - a property of that class

    return property(refuse, doc=f"Raise: `{name}` is one job's.")


OF_ONE_JOB = (
    *("id", "tenant", "correlation", "attempt", "is_retry", "token", "previous_error", "metadata"),
    *("parent", "group", "schedule", "occurrence", "follow_up", "join", "transaction", "emit"),
    *("step", "sleep", "sleep_until", "wait", "call"),
    *("step_sync", "sleep_sync", "sleep_until_sync", "wait_sync", "call_sync"),
)
for _name in OF_ONE_JOB:
    setattr(ChunkContext, _name, _refused(_name))


running: ContextVar[Context] = ContextVar("stoker.running")


def current() -> Context:
    """The run this code is part of. Raises outside a handler."""
    try:
        return running.get()
    except LookupError:
        raise StokerError("current() is only meaningful inside a handler that a worker runs") from None


class JobLogFilter(logging.Filter):
    """Adds what is known of the job to log records made inside a handler, as `current().about` has it; drops none.

    A worker puts it on the handlers of the root logger when it starts, so records of any logger have these attributes,
    also those of handlers in threads. Give it to other handlers yourself: `handler.addFilter(JobLogFilter())`.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep the record and its own attributes."""
        context = running.get(None)
        if context is not None:
            for name, value in context.about.items():
                record.__dict__.setdefault(name, value)
        return True


_job_log_filter = JobLogFilter()


def name_jobs_in_logs() -> None:
    """Put the filter on every handler of the root logger; twice is harmless."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(_job_log_filter)


def in_group(group: JobId) -> bool:
    """Is this code the handler of a member of a group?"""
    run = running.get(None)
    return run is not None and run.claim.options.group == group


@contextmanager
def waiting_for(job: JobId) -> Iterator[None]:
    """Report to the worker while a handler waits for another job; does nothing outside a handler."""
    run = running.get(None)
    if run is None:
        yield
        return
    run.runtime.waits(run.claim, job, over=False)
    try:
        yield
    finally:
        run.runtime.waits(run.claim, job, over=True)
