"""A child process that runs handlers for a worker, one at a time, in an interpreter of its own.

The arguments are decoded and the result encoded here, by the task's signature; whether an error is worth a retry is
judged here too, where its class exists. The worker learns the outcome as data.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from stoker.app_path import load
from stoker.codec.error_text import describe_error, text_of
from stoker.codec.signature import call_of_chunk
from stoker.context import Context, running
from stoker.engines.base import Engine, Feature
from stoker.executors import messages
from stoker.executors.outcomes import Cause, outcome_of_error, outcome_of_result
from stoker.executors.stacks import stack_of
from stoker.executors.threads import Threads, handler_of
from stoker.hooks import surround
from stoker.model import outcome as ends
from stoker.model.chunk import answers
from stoker.model.emitted import Ring
from stoker.model.errors import EngineRefused
from stoker.model.ids import JobId
from stoker.model.job import Claim, Note, Settlement, Verdict
from stoker.model.lifecycle import Rules
from stoker.model.outcome import Outcome, gravest
from stoker.model.steps import Save, Step, StepState
from stoker.model.time import SECOND, Instant, Span
from stoker.stopping import CancelToken, Stopping
from stoker.subprocesses import Parent, set_title

if TYPE_CHECKING:
    from stoker.app import Stoker
    from stoker.task import Task

MEBIBYTE = 1 << 20
LONGEST_LINE = 16 << 10


def _text(value: object) -> str:
    """What a handler said, as text that the worker takes."""
    return text_of(value, LONGEST_LINE)


class Child:
    """The host of one run after the other."""

    def __init__(self, parent: Parent) -> None:
        self._parent = parent
        self.states: dict[Any, Any] = {}
        self.stopping = Stopping()
        self.shares_store = False
        self.loop = self._loop = asyncio.new_event_loop()
        self._keep: Span | None = None
        self._orders: asyncio.Queue[messages.Run | messages.Leave] = asyncio.Queue()
        self._threads = Threads()
        self._home = _here()
        self._exhausted: str | None = None
        self._last_words = b""
        self._ready = False
        self._token = CancelToken()
        self._task: asyncio.Task[None] | None = None
        self._context: Context | None = None
        self._progress: float | None = None
        self.app: Stoker

    # --- life ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve the parent until it says good-bye or is gone."""
        hello = messages.read_order(self._parent.receive())
        assert isinstance(hello, messages.Hello)
        self._limit(hello.memory)
        logging.basicConfig(level=hello.level, handlers=[_Relay(self._parent)], format="%(message)s", force=True)
        try:
            self._name = hello.app
            self.app = load(hello.app)
            for module in hello.modules:
                importlib.import_module(module)
            _ = self.app.tasks
        except BaseException as error:  # noqa: BLE001 - also a SystemExit at import: the worker has to report why
            self._parent.send(
                messages.encode(messages.Broken(f"{hello.app} cannot be imported: {describe_error(error)}"))
            )
            return
        self._parent.listen(self._hear, _vanish)
        try:
            self._loop.run_until_complete(self._serve())
        except MemoryError:
            # Not even enough left to describe it: these words were prepared.
            self._parent.send(self._last_words)
        except BaseException as error:  # noqa: BLE001 - SystemExit of a Task that a handler left behind, for example
            if self._context is not None:
                self._end(ends.Panicked(describe_error(error)), tired=True)
            elif not self._ready:
                self._parent.send(
                    messages.encode(messages.Broken(f"a lifespan cannot be opened: {describe_error(error)}"))
                )

    def _limit(self, memory: int | None) -> None:
        # The signal reports a crash; a core file per crash would fill the disk.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        # A service manager signals whole groups, but only the worker decides about its children. Not ignored: that
        # would be inherited by programs that handlers start.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        if memory is not None:
            self._exhausted = f"out of memory: the limit is {memory} MiB"
            self._last_words = messages.ended(ends.Crashed(self._exhausted), None, tired=True)
            resource.setrlimit(resource.RLIMIT_AS, (memory * MEBIBYTE, memory * MEBIBYTE))

    async def _serve(self) -> None:
        async with AsyncExitStack() as stack:
            for lifespan in self.app.lifespans:
                self.states[lifespan] = await stack.enter_async_context(lifespan.open())
            self._ready = True
            self._parent.send(messages.encode(messages.Ready()))
            set_title(f"handlers of {self._name}, idle")
            while isinstance(order := await self._orders.get(), messages.Run):
                set_title(f"handlers of {self._name}, running {order.claim.kind}")
                self._keep = order.keep
                self._task = asyncio.create_task(self._one(order.claim, order.trace))
                await asyncio.wait({self._task})
                self._task.result()
                set_title(f"handlers of {self._name}, idle")

    def _hear(self, line: bytes) -> None:
        """In the listener's thread, so that a handler which blocks the loop can still read its token."""
        order = messages.read_order(line)
        if isinstance(order, messages.Stop):
            self._token.reason = order.reason
            self._loop.call_soon_threadsafe(self._interrupt)
        elif isinstance(order, messages.Stopping):
            self.stopping.set()
        elif isinstance(order, messages.Where):
            context, task = self._context, self._task
            if context is not None and task is not None:
                main = threading.main_thread().ident or 0
                place, stack = stack_of(context, task, task.get_coro(), self._loop, main, self._threads)
                self._parent.send(messages.encode(messages.Stands(place, stack)))
        elif isinstance(order, messages.Run | messages.Leave):
            if isinstance(order, messages.Run):
                self._token = CancelToken()
            self._loop.call_soon_threadsafe(self._orders.put_nowait, order)

    def _interrupt(self) -> None:
        context, task = self._context, self._task
        if context is None or task is None or not context.cancel:
            return
        known = self.app.find_task(context.kind)
        if known is not None and known.is_async:
            task.cancel()

    # --- one run ------------------------------------------------------------------------------------------------

    async def _one(self, claim: Claim, trace: dict[str, str] | None) -> None:
        task = self.app.find_task(claim.kind)
        if task is None:
            why = f"{self.app} has no task {claim.kind!r} when it is imported afresh; define it at the top of a module"
            self._parent.send(messages.encode(messages.Broken(why)))
            return
        self._parent.send(messages.encode(messages.Began()))
        outcome: Outcome
        raised: BaseException | None = None
        try:
            call = task.signature.decode(claim.payload)
            context = Context(claim, self, call if task.chunk is None else call_of_chunk([call]))
            context.cancel = self._token
            context.metadata.changed = self._noted
            self._context = context
            self._progress = None
            running.set(context)
            if trace is not None and self.app.tracing is not None:
                context.trace = self.app.tracing.enter(trace)
            value = await self.app.scoped(self._call_of(task))(context)
            if task.chunk is not None:
                [value] = answers(task.name, value, 1)
                if isinstance(value, BaseException):
                    raise value
            outcome = outcome_of_result(task, value, context)
        except BaseException as error:  # noqa: BLE001 - whatever a handler does, the worker gets its outcome
            outcome, raised = self._judge(error, task), error
        left: tuple[Step, ...] = ()
        if self._context is not None and self._context.durable is not None:
            outcome = self._context.durable.decided(outcome, raised, interrupted=bool(self._token))
            left = self._context.durable.left(raised)
        self._end(outcome, tired=isinstance(outcome, ends.Crashed) or _here() != self._home, left=left)

    def _call_of(self, task: Task[..., Any]) -> Callable[[Context], Awaitable[Any]]:
        plain = surround(self.app.plain_middleware, handler_of(task.fn))

        async def call(context: Context) -> Any:
            args, kwargs = context.arguments
            if task.is_async:
                return await task.fn(*args, **kwargs)
            return await self._threads.run(plain, (context,), {})

        return call

    def _judge(self, error: BaseException, task: Task[..., Any]) -> Outcome:
        error = gravest(error)
        if isinstance(error, MemoryError) and self._exhausted is not None:
            # The frames hold what filled the memory; nothing can be described before they let go of it.
            clear_frames(error.__traceback__)
            return ends.Crashed(f"{self._exhausted}\n{describe_error(error)}")
        if isinstance(error, KeyboardInterrupt):
            return ends.Panicked(describe_error(error))
        ran = 0 if self._context is None else round(self._context.elapsed * SECOND)
        return outcome_of_error(error, task, Cause.CANCEL if self._token else None, None, ran)

    def _end(self, outcome: Outcome, *, tired: bool, left: tuple[Step, ...] = ()) -> None:
        context, self._context = self._context, None
        metadata = None
        if context is not None:
            metadata = {_text(key): _text(value) for key, value in context.noted.copy().items()} or None
        commit = None if context is None else context.commit
        doubt = None if commit is None else commit.doubt
        moved = commit is not None
        self._parent.send(messages.ended(outcome, metadata, tired=tired, moved=moved, doubt=doubt, steps=left))

    def note(self, claim: Claim, progress: float | None, lines: tuple[str, ...]) -> None:  # noqa: ARG002
        """Pass on what the handler said; any thread."""
        if progress is not None:
            self._progress = progress
        said = messages.Said(progress, tuple(map(_text, lines)))
        self._parent.send(messages.encode(said))

    def _noted(self, key: str, value: str | None) -> None:
        """Pass on metadata that the handler wrote, as text, or removed; any thread."""
        noted = {_text(key): None if value is None else _text(value)}
        self._parent.send(messages.encode(messages.Said(None, (), noted)))

    def emit(self, claim: Claim, ring: Ring, entry: bytes) -> None:  # noqa: ARG002
        """Pass on a value; any thread."""
        self._parent.send(messages.encode(messages.Emitted(msgspec.Raw(entry))))

    def withhold_notes(self, claim: Claim) -> None:  # noqa: ARG002
        """Have the worker write nothing of the run: it would wait for the block."""
        self._parent.send(messages.encode(messages.Withheld(over=False)))

    def take_note(self, claim: Claim) -> Note | None:
        """Return the last progress: the worker may have stored it or not, and storing it twice does no harm."""
        if self._progress is None:
            return None
        return Note(claim.id, claim.worker, claim.token, self._progress, None, (), claim.ref)

    def release_notes(self, claim: Claim) -> None:  # noqa: ARG002
        """Have the worker go on."""
        self._parent.send(messages.encode(messages.Withheld(over=True)))

    def rules_of(self, kind: str) -> Rules:  # noqa: ARG002 - there is one run at a time
        """Return rules with what the worker knows of the job's retention."""
        return Rules(keep=self._keep)

    def settled(self, claim: Claim, settlement: Settlement) -> None:  # noqa: ARG002
        """Tell the worker at once that a block has settled the job; any thread."""
        self._parent.send(messages.encode(messages.Settled(msgspec.structs.replace(settlement, ref=None))))

    def stepped(self, claim: Claim, state: StepState) -> None:  # noqa: ARG002
        """Pass on that the run has stored a step; any thread."""
        self._parent.send(messages.encode(messages.Stepped(state)))

    async def read_steps(self, job: JobId) -> list[Step]:
        """Return the rows of a job."""
        [found] = await (await self._shared_engine()).steps.get([job])
        return found

    async def save_steps(self, save: Save) -> Verdict:
        """Store rows of the run under its claim."""
        [verdict] = await (await self._shared_engine()).steps.save([save])
        return verdict

    async def _shared_engine(self) -> Engine:
        engine = await self.app.engine()
        if Feature.SHARED not in engine.features:
            raise EngineRefused(
                f"this handler runs in a process of its own, which cannot see the {engine.name} store of its worker. "
                "Nothing was stored. Run it without isolation, or on a store that processes share."
            )
        return engine

    def store_now(self, context: Context) -> Instant:
        """Return the store's time, counted on from the claim."""
        return context.claim.claimed_at + round(context.elapsed * SECOND)

    def main_line(self, context: Context) -> tuple[asyncio.Task[Any], Any] | None:
        """Return the task of the run, and its coroutine."""
        return None if self._task is None or self._context is not context else (self._task, self._task.get_coro())

    def suspend(self, context: Context) -> None:
        """Interrupt a run that only waits."""
        if self._task is not None and self._context is context:
            self._task.cancel()

    def waits(self, claim: Claim, job: JobId, *, over: bool) -> None:  # noqa: ARG002
        """Pass on that the handler waits for another job; any thread."""
        self._parent.send(messages.encode(messages.Waits(job, over)))


class _Relay(logging.Handler):
    """Log records go to the worker, which knows where they belong."""

    def __init__(self, parent: Parent) -> None:
        super().__init__()
        self._parent = parent

    def emit(self, record: logging.LogRecord) -> None:
        try:
            raised = None if record.exc_info is None else record.exc_info[1]
            error = "" if raised is None else describe_error(raised)
            text = _text(self.format(record) if raised is None else record.getMessage())
            self._parent.send(messages.encode(messages.Logged(record.name, record.levelno, text, error)))
        except Exception:  # noqa: BLE001 - as every handler does
            self.handleError(record)


def _here() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109 - compared as text
    except OSError:
        return None


def _vanish() -> NoReturn:
    """The parent is gone: nothing this process still does can be settled."""
    try:
        os.killpg(0, signal.SIGKILL)
    finally:
        os._exit(1)


def main() -> None:
    """Entry of the child process."""
    Child(Parent(signal.SIGKILL)).run()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    # Threads that a handler left behind must not keep the process.
    os._exit(0)
