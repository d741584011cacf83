"""Handlers in child processes: what they do to their interpreter they do to no other job, and they can be killed.

Children are fresh interpreters that have imported the app and wait for work; one runs one job at a time and is used
again. At a job's timeout the child is killed with everything it started. A child that dies under a job is a crash-end
of that job.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from stoker.app_path import address
from stoker.codec.error_text import safe
from stoker.context import Context
from stoker.durable.run import DurableRun
from stoker.engines.base import Feature
from stoker.executors import messages
from stoker.executors.outcomes import DecidedInChild, ProcessDied
from stoker.job_participant import relocate
from stoker.model import outcome as ends
from stoker.model.errors import StokerError
from stoker.model.failure_report import error_type
from stoker.model.ids import JobId
from stoker.model.lifecycle import kept_as_done
from stoker.model.outcome import Outcome
from stoker.stopping import CancelToken
from stoker.subprocesses import ChildProcess

if TYPE_CHECKING:
    from stoker.settings import WorkerSettings
    from stoker.task import Task

logger = logging.getLogger("stoker.worker")

CHILD = "stoker.executors.child"

MOST_CHILDREN = 5
"""Children that may die before they begin with a job, until that counts as the job's own crash-end."""

IDLE_FOR = 60.0
"""Seconds after which a child without work is let go."""

ANSWERS_WITHIN = 1.0
"""Seconds a child has to tell where its handler stands."""

STOP_GRACE = 5.0
"""Seconds a handler has to heed a request to stop before its process is killed."""


class Processes:
    """The warm pool of one worker."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._memory = settings.child_memory
        self._jobs = settings.child_jobs
        self._idle: list[_Child] = []
        self._alive: set[_Child] = set()
        self._warming: asyncio.Future[None] | None = None
        self._warned = False

    async def run(self, task: Task[..., Any], context: Context) -> Any:
        """Run one job in a child. Raises what the handler's outcome means, and `ProcessDied` when the child died."""
        hello = self._hello(task)
        self._warn_once(task)
        for _ in range(MOST_CHILDREN):
            if (ended := await self._attempt(hello, context)) is not None:
                context.metadata.update(ended.metadata or {})
                if ended.moved:
                    relocate(context).doubt = ended.doubt
                outcome = ended.read()
                if ended.steps or isinstance(outcome, ends.Suspended):
                    context.durable = DurableRun(context)
                    context.durable.ended_elsewhere(outcome, ended.steps)
                return _conclusion(outcome, task, context)
        raise ProcessDied(f"{MOST_CHILDREN} child processes died before they could begin")

    async def _attempt(self, hello: messages.Hello, context: Context) -> messages.Ended | None:
        """None when the child was gone before it began."""
        child = self._take() or await self._hire(hello)
        try:
            ended = await child.converse(context)
        except BaseException:
            relocate(context)  # the child may have opened a block
            self._alive.discard(child)
            self.warm(hello)
            await child.process.end()
            raise
        if ended is not None:
            self._return(child, ended)
        else:
            self._let_go(child)
        return ended

    def _hello(self, task: Task[..., Any]) -> messages.Hello:
        app, modules = address(task)
        return messages.Hello(app, modules, self._memory, _level())

    def warm_up(self, task: Task[..., Any]) -> None:
        """Start a child in the background, so that the first job does not wait for the import."""
        self.warm(self._hello(task))

    def warm(self, hello: messages.Hello) -> None:
        """The same, unless one is idle or on its way."""
        if not self._idle and (self._warming is None or self._warming.done()):
            self._warming = asyncio.ensure_future(self._hire_ahead(hello))

    async def _hire_ahead(self, hello: messages.Hello) -> None:
        try:
            child = await self._hire(hello)
        except (StokerError, OSError) as error:
            logger.warning("no child process can be started ahead: %s", error)
        else:
            self._keep(child)

    async def close(self) -> None:
        """Say good-bye to the children; those that do not listen are killed."""
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.gather(self._warming, return_exceptions=True)
        leaving, self._alive, self._idle = self._alive, set(), []
        for child in leaving:
            child.rest()
            child.process.send(messages.encode(messages.Leave()))
        await asyncio.gather(*(child.process.end(1.0) for child in leaving))

    def tell_stopping(self) -> None:
        """The worker begins to stop: handlers in children can see it."""
        for child in self._alive:
            child.process.send(messages.encode(messages.Stopping()))

    async def stacks(self) -> dict[JobId, tuple[str, str]]:
        """Where the handlers in children stand, by job; a child that does not answer in time is left out."""
        loop, asked = asyncio.get_running_loop(), dict[JobId, asyncio.Future[tuple[str, str]]]()
        for child in self._alive:
            if child.job is not None:
                asked[child.job] = child.stands = loop.create_future()
                child.process.send(messages.encode(messages.Where()))
        if asked:
            await asyncio.wait(asked.values(), timeout=ANSWERS_WITHIN)
        return {job: answer.result() for job, answer in asked.items() if answer.done()}

    def _take(self) -> _Child | None:
        while self._idle:
            child = self._idle.pop()
            child.rest()
            if not child.process.exited.done() and not child.process.reader.at_eof():
                return child
            self._let_go(child)
        return None

    async def _hire(self, hello: messages.Hello) -> _Child:
        child = _Child(await ChildProcess.spawn(CHILD))
        self._alive.add(child)
        try:
            child.process.send(messages.encode(hello))
            await child.settle_in(hello.app)
        except BaseException:
            self._alive.discard(child)
            await child.process.end()
            raise
        return child

    def _return(self, child: _Child, ended: messages.Ended) -> None:
        child.done += 1
        if ended.tired or child.done >= self._jobs:
            self._let_go(child)
        else:
            self._keep(child)

    def _keep(self, child: _Child) -> None:
        self._idle.append(child)
        child.timer = asyncio.get_running_loop().call_later(IDLE_FOR, self._let_go, child)

    def _let_go(self, child: _Child) -> None:
        if child in self._idle:
            self._idle.remove(child)
        child.rest()
        child.process.send(messages.encode(messages.Leave()))
        child.timer = asyncio.get_running_loop().call_later(1.0, child.process.kill)
        child.process.exited.add_done_callback(lambda _: self._forget(child))

    def _forget(self, child: _Child) -> None:
        self._alive.discard(child)
        child.rest()
        child.process.writer.close()

    def _warn_once(self, task: Task[..., Any]) -> None:
        if not self._warned and Feature.SHARED not in task.app.root().features:
            self._warned = True
            logger.warning(
                "task %s runs in a process of its own, and %s:// is not shared between processes: what it enqueues "
                "there is lost. Follow-ups (current().follow_up) arrive.",
                task.name,
                task.app.root().name,
            )


class _Child:
    """One child of the pool."""

    def __init__(self, process: ChildProcess) -> None:
        self.process = process
        self.done = 0
        self.job: JobId | None = None
        self.stands: asyncio.Future[tuple[str, str]] | None = None
        self._about: dict[str, Any] = {}
        self.timer: asyncio.TimerHandle | None = None

    def rest(self) -> None:
        """Stop the clock that would let an idle child go."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    async def settle_in(self, app: str) -> None:
        """Wait until the child has imported the app."""
        while not isinstance(report := await self._report(), messages.Ready):
            if isinstance(report, messages.Broken):
                raise StokerError(f"a child process cannot run the task: {report.why}")
            if report is None:
                how = await self.process.cause_of_exit()
                raise StokerError(f"a child process died while it imported {app}: {how}")

    async def converse(self, context: Context) -> messages.Ended | None:
        """Hand over the job and pass on what the child says, until it says how the job ended.

        None when the child was gone before it began: one may die while it waits, and that is no job's fault.
        """
        began = False
        self._about = context.about
        self.job = context.claim.id
        token = context.cancel = _ChildToken(self.process, context.cancel)
        if context.stopping:
            self.process.send(messages.encode(messages.Stopping()))
        tracing = context.runtime.app.tracing
        trace = None if tracing is None else tracing.carrier()
        keep = kept_as_done(context.claim, context.runtime.rules_of(context.kind))
        run = messages.Run(msgspec.structs.replace(context.claim, ref=None), trace, keep)
        self.process.send(messages.encode(run))
        try:
            while not isinstance(report := await self._report(), messages.Ended):
                if isinstance(report, messages.Began):
                    began = True
                elif isinstance(report, messages.Said):
                    if report.metadata is None:
                        context.runtime.note(context.claim, report.progress, report.lines)
                    for key, value in (report.metadata or {}).items():
                        context.metadata.note(key, value)
                elif isinstance(report, messages.Emitted):
                    context.pass_on(bytes(report.entry))
                elif isinstance(report, messages.Withheld):
                    hold = context.runtime.release_notes if report.over else context.runtime.withhold_notes
                    hold(context.claim)
                elif isinstance(report, messages.Stepped):
                    context.runtime.stepped(context.claim, report.state)
                elif isinstance(report, messages.Waits):
                    context.runtime.waits(context.claim, report.job, over=report.over)
                elif isinstance(report, messages.Settled):
                    commit = relocate(context)
                    commit.committing, commit.settled = True, report.settlement
                    context.runtime.settled(context.claim, report.settlement)
                elif isinstance(report, messages.Stands):
                    if self.stands is not None and not self.stands.done():
                        self.stands.set_result((f"{report.place} of process {self.process.pid}", report.stack))
                elif isinstance(report, messages.Broken):
                    raise StokerError(f"a child process cannot run the task: {report.why}")
                elif report is None:
                    if not began and not self.process.killed:
                        return None
                    raise await self._mourn(token)
            return report
        finally:
            token.stop_timer()
            self.job = None
            context.runtime.release_notes(context.claim)

    async def _mourn(self, token: _ChildToken) -> BaseException:
        stopped = self.process.killed
        how = await self.process.cause_of_exit()
        return asyncio.CancelledError(token.reason) if stopped else ProcessDied(how)

    async def _report(self) -> messages.FromChild | None:
        """The next report; log records are passed on here. Nonsense means that a handler got hold of the socket."""
        while line := await self.process.receive():
            try:
                report: messages.FromChild = messages.read_report(line)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                return None
            if not isinstance(report, messages.Logged):
                return report
            speaker = logging.getLogger(report.name)
            if speaker.isEnabledFor(report.level):
                speaker.handle(_record(speaker, report, self._about))
        return None


def _record(speaker: logging.Logger, report: messages.Logged, about: Mapping[str, object]) -> logging.LogRecord:
    """A log record of a child process, as one of this process."""
    extra = {**about}
    if report.error:
        extra |= {"error": report.error, "error_type": error_type(report.error)}
    record = speaker.makeRecord(report.name, report.level, __file__, 0, "%s", (report.text,), None, None, extra)
    if report.error:  # formatters print it below the message
        record.exc_text = "\n".join(f"    {line}" for line in safe(report.error).splitlines())
    return record


class _ChildToken(CancelToken):
    """The worker's cancel token of a run in a child: setting a reason sends it and starts the grace."""

    __slots__ = ("_process", "_reason", "_timer")

    def __init__(self, process: ChildProcess, before: CancelToken) -> None:
        self._process = process
        self._reason: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.cause = before.cause
        self.reason = before.reason

    @property
    def reason(self) -> str | None:
        """Why the run should stop."""
        return self._reason

    @reason.setter
    def reason(self, reason: str | None) -> None:
        self._reason = reason
        if reason is not None:
            self._process.send(messages.encode(messages.Stop(reason)))
            self._timer = asyncio.get_running_loop().call_later(STOP_GRACE, self._process.kill)

    def stop_timer(self) -> None:
        """Do not kill the child: the run is over."""
        if self._timer is not None:
            self._timer.cancel()

    @property
    def requested(self) -> bool:
        """Should this run stop?"""
        return self._reason is not None

    def __bool__(self) -> bool:
        return self._reason is not None


def is_in_child(context: Context) -> bool:
    """Does a handler run in a child?"""
    return isinstance(context.cancel, _ChildToken)


def _conclusion(outcome: Outcome, task: Task[..., Any], context: Context) -> Any:
    """Return or raise what makes the worker reach the child's outcome again."""
    match outcome:
        case ends.Done():
            context.followups.extend(outcome.followups)
            context.result_warning = outcome.warning
            return _value(outcome.result, task)
        case ends.Crashed(detail=detail):
            raise ProcessDied(detail)
        case ends.HandedBack() | ends.Canceled() | ends.TimedOut():
            raise asyncio.CancelledError(context.cancel.reason)
        case _:
            raise DecidedInChild(outcome, _words(outcome))


def _words(outcome: Outcome) -> str:
    """Describe the outcome for middleware that catches it."""
    return str(getattr(outcome, "error", None) or getattr(outcome, "why", None) or type(outcome).__name__.lower())


def _value(result: bytes | None, task: Task[..., Any]) -> Any:
    """Decode the result for middleware; a result that does not fit its type hint stays JSON."""
    try:
        return task.signature.decode_result(result)
    except StokerError:
        return msgspec.Raw(result or b"null")


def _level() -> int:
    """Return the level from which a child's records may matter: its own loggers' or Stoker's, whichever is lower."""
    return min(logging.getLogger(name).getEffectiveLevel() for name in (None, "stoker"))
