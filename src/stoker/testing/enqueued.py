"""What a test asks about jobs: which ones were enqueued, and was this one among them?

`assert_enqueued` and `refute_enqueued` are plain calls in async tests too: a forgotten `await` would make a test that
always passes. They read through an engine and a loop of their own, in a thread, while the test's loop stands still.
With `tx` they read through that handle.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from stoker import views
from stoker.codec.signature import display
from stoker.engines.base import Engine, Feature
from stoker.engines.sql.user_handles import handles
from stoker.joining import Given
from stoker.model.errors import InvalidArgument, InvalidInput, InvalidPayload
from stoker.model.job import Status
from stoker.model.query import LARGEST_PAGE, Query
from stoker.model.time import moment
from stoker.model.unique import Unique
from stoker.options import OPTIONS, JobOptions, parse
from stoker.settings import check_known
from stoker.task import Task
from stoker.testing.stores import aside
from stoker.views import Job

if TYPE_CHECKING:
    from stoker.app import Stoker


STATUS = "status"
NOT_COMPARED = ("limit",)
"""Options that a stored job does not have as the caller wrote them."""


class EnqueuedJob(Job, frozen=True, kw_only=True):
    """The record of a job, with its `arguments` by name, decoded as its handler gets them, defaults included."""

    arguments: dict[str, Any] = {}


class Wanted:
    """What a job is compared with: arguments by name, options, and a status."""

    def __init__(self, task: Task[..., Any] | str, args: Mapping[str, Any] | None, given: Mapping[str, Any]) -> None:
        self._given = dict(given)
        status = self._given.pop(STATUS, None)
        self.status = None if status is None else _status(status)
        self._written = {name: self._given.pop(name) for name in OPTIONS if name in self._given}
        self._options = _options(self._written)
        self._arguments = {**self._given, **_named(args)}
        _check_parameters(task, self._arguments)

    def __str__(self) -> str:
        said = {**self._arguments, **self._written}
        if self.status is not None:
            said[STATUS] = self.status.value
        return ", ".join(f"{name}={value!r}" for name, value in said.items())

    def differences(self, job: EnqueuedJob) -> list[str]:
        """How a job differs, argument by argument; empty: it is the one."""
        found = []
        if self.status is not None and job.status is not self.status:
            found.append(f"status is {job.status.value!r}, not {self.status.value!r}")
        for name, value in self._arguments.items():
            if name not in job.arguments:
                found.append(f"{name} is missing, not {value!r}")
            elif job.arguments[name] != value:
                found.append(f"{name} is {job.arguments[name]!r}, not {value!r}")
        for name in self._written:
            is_, wanted = _of_job(job, name), _of_options(self._options, name)
            if name == "unique" and isinstance(self._written[name], str):
                is_, wanted = (None if one is None else one.key for one in (is_, wanted))
            if name == "metadata":
                is_ = {key: is_.get(key) for key in wanted}
            if is_ != wanted:
                found.append(f"{name} is {_shown(is_)}, not {_shown(wanted)}")
        return found


def find(app: Stoker, task: Task[..., Any] | str, tx: Any = None) -> list[EnqueuedJob]:
    """The jobs of a task in any status, in the order in which they were enqueued; with `tx` as that sees them."""
    kind = task if isinstance(task, str) else task.name

    async def read() -> list[Job]:
        engine = app.new_engine()
        await engine.open()
        try:
            return await stored(engine, kind)
        finally:
            await engine.close()

    if tx is None:
        found = aside(read)
    else:
        _check_handle(app, tx)
        found = Given(app, tx).join_sync(lambda engine, tx: stored(engine, kind, tx))
    known = task if isinstance(task, Task) else None
    return in_order(app, found, known)


def in_order(app: Stoker, jobs: Iterable[Job], task: Task[..., Any] | None = None) -> list[EnqueuedJob]:
    """Jobs in the order in which they were enqueued, with their arguments: as `task` reads them, else each its own."""
    ordered = sorted(jobs, key=lambda job: (job.created_at, job.id))
    return [_with_arguments(job, task or app.find_task(job.kind)) for job in ordered]


async def stored(engine: Engine, kind: str | None = None, tx: Any = None) -> list[Job]:
    """All jobs of the store, or those of one kind, as `tx` sees them."""
    found: list[Job] = []
    cursor: bytes | None = None
    kinds = frozenset(() if kind is None else (kind,))
    while True:
        query = Query(kinds=kinds, order="oldest", limit=LARGEST_PAGE, cursor=cursor)
        page = await engine.operator.find(query, tx=tx)
        found += [views.job(one) for one in page.jobs]
        cursor = page.cursor
        if cursor is None:
            return found


def _check_handle(app: Stoker, tx: Any) -> None:
    """Refuse a handle whose statements are awaited: this call does not wait, and its connection would be spoiled."""
    if Feature.USER_TRANSACTION not in app.root().features:
        return  # the kit in memory reads no handle, and a store without transactions refuses each
    known, name = handles.known(tx), handles.describe_handle(tx)
    if known is None:
        why = f"cannot be a {name}; give your session or connection, whose transaction is open"
        raise InvalidArgument("tx", tx, why)
    if known.suspends:
        instead = "give a synchronous handle, or read after the commit"
        if hasattr(tx, "run_sync"):
            instead = "write `await session.run_sync(lambda inside: kit.enqueued(task, tx=inside))`"
        raise InvalidArgument("tx", tx, f"is a {name}, which must be awaited, and this call is not; {instead}")


def assert_enqueued(
    task: Task[..., Any], /, *, args: Mapping[str, Any] | None = None, tx: Any = None, **expected: Any
) -> EnqueuedJob:
    """Raise `AssertionError` unless the task's app has a job with these arguments and options; returns the first.

    Keywords are parameters of the handler, options of the job (`queue`, `delay`, `priority`, `tenant`, …) or `status`.
    A key as `unique` is compared alone, a `Unique` with its scope, mode, hold and `for_` too, and None means no key.
    A parameter that is called like an option stands in `args`. What is not given may be anything, so without keywords
    any job of the task will do. The message shows what was enqueued and how it differs. With `tx` the jobs are read
    through that handle, so that those count which wait for its commit.
    """
    __tracebackhide__ = True
    wanted, jobs = _compared(task, args, tx, expected)
    for job in jobs:
        if not wanted.differences(job):
            return job
    raise AssertionError("\n".join(_missing(task, wanted, jobs)))


def refute_enqueued(
    task: Task[..., Any], /, *, args: Mapping[str, Any] | None = None, tx: Any = None, **expected: Any
) -> None:
    """Raise `AssertionError` if the task's app has a job with these arguments and options."""
    __tracebackhide__ = True
    wanted, jobs = _compared(task, args, tx, expected)
    found = [job for job in jobs if not wanted.differences(job)]
    if found:
        what = f" with {wanted}" if str(wanted) else ""
        lines = [f"task {task.name!r} was enqueued{what}, and should not have been:", *map(_line, found)]
        raise AssertionError("\n".join(lines))


def _compared(
    task: Any, args: Mapping[str, Any] | None, tx: Any, expected: Mapping[str, Any]
) -> tuple[Wanted, list[EnqueuedJob]]:
    if not isinstance(task, Task):
        why = "must be a task, whose app says where to look; for a kind without one use kit.enqueued(name)"
        raise InvalidArgument("task", task, why)
    return Wanted(task, args, expected), find(task.app, task, tx)


def _missing(task: Task[..., Any], wanted: Wanted, jobs: list[EnqueuedJob]) -> Iterator[str]:
    what = f" with {wanted}" if str(wanted) else ""
    if not jobs:
        yield f"task {task.name!r} was not enqueued{what}: the store has no job of it."
        return
    yield f"task {task.name!r} was not enqueued{what}. Its jobs are:"
    for job in jobs:
        yield _line(job)
        yield from (f"    {difference}" for difference in wanted.differences(job))


def written(job: EnqueuedJob) -> str:
    """A job as its call is written."""
    called = ", ".join(f"{name}={value!r}" for name, value in job.arguments.items())
    return f"{job.kind}({called})"


def _line(job: EnqueuedJob) -> str:
    return f"  {written(job)}, {job.status.value} in queue {job.queue!r}, job {job.id}"


def _with_arguments(job: Job, task: Task[..., Any] | None) -> EnqueuedJob:
    fields = {name: getattr(job, name) for name in Job.__struct_fields__}
    return EnqueuedJob(**fields, arguments=_arguments(job, task))


def _arguments(job: Job, task: Task[..., Any] | None) -> dict[str, Any]:
    """The arguments by name; those of an unknown kind, or that do not fit their task, as the JSON says them."""
    if task is not None:
        try:
            args, kwargs = task.signature.decode(job.payload)
            bound = task.signature.parameters.bind(*args, **kwargs)
        except (InvalidPayload, TypeError):
            pass
        else:
            bound.apply_defaults()
            rest = next((one.name for one in _parameters(task) if one.kind is one.VAR_KEYWORD), None)
            found = dict(bound.arguments)
            return {**found, **found.pop(rest)} if rest is not None else found
    shown = display(job.payload)
    return shown if isinstance(shown, dict) else {}


def _parameters(task: Task[..., Any]) -> list[inspect.Parameter]:
    return list(task.signature.parameters.parameters.values())


def _check_parameters(task: Task[..., Any] | str, arguments: Mapping[str, Any]) -> None:
    """Refuse a name that is neither a parameter of the handler nor an option: the comparison would never hold."""
    if isinstance(task, str) or any(one.kind is one.VAR_KEYWORD for one in _parameters(task)):
        return
    known = [one.name for one in _parameters(task)]
    for name, value in arguments.items():
        if name not in known:
            has = f"its parameters are {', '.join(known)}" if known else "it has no parameters"
            why = f"is no parameter of task {task.name!r} and no option of a job; {has}, options are {_OPTIONS}"
            raise InvalidArgument(name, value, why)


_OPTIONS = ", ".join(sorted((*OPTIONS, STATUS)))


def _named(args: object) -> Mapping[str, Any]:
    if args is None:
        return {}
    if not isinstance(args, Mapping):
        raise InvalidArgument("args", args, "must map names of parameters to values, as in args={'queue': 'mail'}")
    return args


def _status(given: Any) -> Status:
    try:
        return Status(given)
    except ValueError:
        raise InvalidArgument(STATUS, given, f"must be one of {', '.join(Status)}") from None


def _options(written: Mapping[str, Any]) -> JobOptions:
    for name in NOT_COMPARED:
        if name in written:
            raise InvalidArgument(name, written[name], "cannot be compared: a job is stored with the slot it takes")
    check_known(written, OPTIONS, "the job option")
    try:
        options = parse(written)
    except InvalidInput as wrong:
        raise InvalidArgument(wrong.field, wrong.value, wrong.why) from None
    unique = options.unique
    if callable(unique) or (unique and unique.is_of_arguments):
        why = "must be a key here, a Unique with its key, or None for no key: what the job has"
        raise InvalidArgument("unique", written["unique"], why)
    return options


def _of_options(options: JobOptions, name: str) -> Any:
    value = getattr(options, name)
    if isinstance(value, Unique):
        return value.stored
    if value is False:
        return None  # no key
    if value is None or name in ("queue", "priority", "attempts", "tenant", "metadata", "backoff", "isolation"):
        return value
    return moment(value) if name == "at" else timedelta(microseconds=value)


def _of_job(job: Job, name: str) -> Any:
    """What a job has for an option. `delay` and `at` go by the time at which it is due, or was due last."""
    if name == "delay":
        return job.scheduled_at - job.created_at
    if name == "at":
        return job.scheduled_at
    if name == "attempts":
        return job.budget
    return getattr(job, name)


def _shown(value: Any) -> str:
    return f"{value.total_seconds():g} s" if isinstance(value, timedelta) else repr(value)
