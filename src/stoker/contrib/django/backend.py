"""`StokerBackend`: Django's tasks as jobs of Stoker, for `TASKS = {"default": {"BACKEND": …}}`.

Every function that Django's `@task` decorates is a task of Stoker's, too: its kind is the path of the function, its
arguments are the function's, without `context`. `OPTIONS` of the backend, options in the decorator and `using(...)` are
those of Stoker's tasks: `@task(attempts=3, unique=True)`. What Django calls a priority counts the other way.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from importlib import import_module
from typing import Any, Final

from django.conf import settings
from django.core import checks
from django.db import connections
from django.utils import timezone
from django.utils.module_loading import import_string

from stoker import views
from stoker.codec.signature import display
from stoker.context import Context, current
from stoker.contrib.django.app import the_app
from stoker.contrib.django.task_api import (
    BaseTaskBackend,
    InvalidTask,
    InvalidTaskBackend,
    Task,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    signals,
    task_backends,
)
from stoker.hooks import FailedRun
from stoker.model import ids
from stoker.model.errors import InvalidInput, NotFound, StokerError
from stoker.model.job import Status, Stored, check_name
from stoker.model.markers import REST
from stoker.model.time import moment
from stoker.options import parse
from stoker.origins import origins_of
from stoker.settings import check_known
from stoker.task import Task as StokerTask
from stoker.views import Job

PER_JOB: Final = (
    *("attempts", "backoff", "timeout", "unique", "expires", "keep", "metadata", "isolation", "limit", "label"),
    *("delay", "tenant", "tx"),
)
PER_TASK: Final = ("retry_on", "give_up_on", "retry_if", "crashes")
"""Options that belong to the function and not to one of its jobs."""

POSITIONALS: Final = "django.positionals"
"""Metadata key: how many arguments were given by position."""

STATUSES: Final = {
    Status.PENDING: TaskResultStatus.READY,
    Status.RETRYING: TaskResultStatus.READY,
    Status.RUNNING: TaskResultStatus.RUNNING,
    Status.DONE: TaskResultStatus.SUCCESSFUL,
}
"""Every other status is a failure."""

UNKNOWN_WORKER: Final = "unknown"
"""Stands for the worker of an attempt that the store does not name: it was forgotten, or the attempt left no error."""

_tasks: dict[str, DjangoTask] = {}
_receivers = ThreadPoolExecutor(1, "stoker-signals")


@dataclass(frozen=True, slots=True, kw_only=True)
class DjangoTask(Task):
    """A task of Django's with Stoker's options; None leaves one to the backend, the queue or the app."""

    attempts: int | None = None
    backoff: Any = None
    timeout: Any = None
    unique: Any = None
    expires: Any = None
    keep: Any = None
    metadata: Mapping[str, str] | None = None
    isolation: Any = None
    limit: Any = None
    label: Any = None
    delay: Any = None
    tenant: str | None = None
    tx: Any = None
    retry_on: Any = None
    give_up_on: Any = None
    retry_if: Any = None
    crashes: int | None = None

    def using(self, **changes: Any) -> DjangoTask:
        """This task with other options for the jobs enqueued through the copy."""
        known = ("priority", "queue_name", "run_after", "backend", *PER_JOB)
        for name in PER_TASK:
            if name in changes:
                raise InvalidTask(f"{name} belongs to the task: give it to the decorator, @task({name}=...).")
        try:
            check_known(changes, known, "the option of using()")
        except InvalidInput as error:
            raise TypeError(str(error)) from None
        return replace(self, **{name: value for name, value in changes.items() if value is not None})

    def given(self, *names: str) -> dict[str, Any]:
        """Those of these options that are set."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class StokerBackend(BaseTaskBackend):
    """Stores Django's tasks as jobs of the app that `settings.STOKER` describes."""

    task_class = DjangoTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        where = f"TASKS[{alias!r}]"
        try:
            check_known(self.options, PER_JOB, f"{where} OPTIONS: the option")
            parse({name: value for name, value in self.options.items() if name != "tx"})
            for queue in self.queues:
                check_name(f"{where} QUEUES: the queue", queue)
        except StokerError as error:
            raise InvalidTaskBackend(str(error)) from None
        the_app().backend_queues |= self.queues

    # --- declaring ----------------------------------------------------------------------------------------------

    def validate_task(self, task: Any) -> None:
        """Refuse what cannot be run, and make a task of Stoker's of what can."""
        super().validate_task(task)
        _check_importable(task)
        path = task.module_path
        known = _tasks.get(path)
        if known is None or known.func is not task.func:
            try:
                _register(task, self)
            except StokerError as error:
                raise InvalidTask(f"{path}: {error}") from error
        elif isinstance(task, DjangoTask):
            try:
                parse({**self.options, **task.given(*PER_JOB[:-1])})
                check_name("queue", task.queue_name)
            except StokerError as error:
                raise InvalidTask(f"{path}: {error}") from error

    def check(self, **_: Any) -> list[checks.CheckMessage]:
        """Report functions whose path leads to something else: no other process finds those."""
        found: list[checks.CheckMessage] = []
        for path, task in _tasks.items():
            if task.backend == self.alias and not _leads_to_task(path):
                text = f"{path} is not the name under which its task is kept, so no other process can import it."
                hint = "Decorate the function with @task, and keep the task under the function's own name."
                found.append(checks.Error(text, hint=hint, id="stoker.E003"))
        return found

    # --- enqueueing ---------------------------------------------------------------------------------------------

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Store a job, in the transaction that this thread is in."""
        draft, args, kwargs = self._prepared(task, args, kwargs)
        handle = draft.enqueue_sync(*args, **kwargs)
        if handle.stored is Stored.EXISTING:
            return self.get_result(handle.id)
        return self._enqueued(task, handle.id, args, kwargs)

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Store a job at once: a coroutine joins no transaction of Django's."""
        draft, args, kwargs = self._prepared(task, args, kwargs)
        handle = await draft.enqueue(*args, **kwargs)
        if handle.stored is Stored.EXISTING:
            return await self.aget_result(handle.id)
        return self._enqueued(task, handle.id, args, kwargs)

    def _prepared(self, task: Any, args: Any, kwargs: Any) -> tuple[StokerTask[..., Any], list[Any], dict[str, Any]]:
        self.validate_task(task)
        args, kwargs = normalize_json(list(args)), normalize_json(dict(kwargs))
        own = task.given(*PER_JOB) if isinstance(task, DjangoTask) else {}
        given = {**self.options, **own}
        if args:
            given["metadata"] = {**(given.get("metadata") or {}), POSITIONALS: str(len(args))}
        if task.run_after is not None:
            given.pop("delay", None)
            given["at"] = task.run_after if timezone.is_aware(task.run_after) else timezone.make_aware(task.run_after)
        found = the_app().tasks[task.module_path]
        return found.using(queue=task.queue_name, priority=-task.priority, **given), args, kwargs

    def _enqueued(self, task: Any, id_: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        result = _result(task, id_, TaskResultStatus.READY, args, kwargs, enqueued_at=timezone.now())
        signals.task_enqueued.send(type(self), task_result=result)
        return result

    # --- results ------------------------------------------------------------------------------------------------

    def get_result(self, result_id: Any) -> Any:
        """The result as the store has it now."""
        with _missing(result_id):
            return self._of_record(the_app().run(_record(str(result_id))))

    async def aget_result(self, result_id: Any) -> Any:
        """The result as the store has it now."""
        with _missing(result_id):
            return self._of_record(await _record(str(result_id)))

    def _of_record(self, job: Job) -> Any:
        task = _task_of(job.kind)
        if task is None:
            raise TaskResultDoesNotExist(job.id)
        args, kwargs = _arguments(job.kind, job.payload, job.metadata)
        task = _as_enqueued(task, job.queue, -job.priority)
        result = _result(
            task,
            job.id,
            STATUSES.get(job.status, TaskResultStatus.FAILED),
            args,
            kwargs,
            enqueued_at=_local(job.created_at),
            started_at=_local(job.started_at),
            last_attempted_at=_local(job.started_at),
            finished_at=_local(job.finished_at),
            errors=[_error(run.error) for run in job.history],
            worker_ids=_workers(job.attempts, job.worker, job),
        )
        if job.status is Status.DONE:
            object.__setattr__(result, "_return_value", display(job.result))  # as Django's own backends do
        return result


@contextmanager
def _missing(result_id: Any) -> Iterator[None]:
    """Turn what a store says about a job that it does not have into Django's words."""
    try:
        yield
    except (NotFound, InvalidInput):
        raise TaskResultDoesNotExist(result_id) from None


async def _record(id_: str) -> Job:
    """A job as the store has it, with the workers of its attempts. Raises `NotFound`."""
    app = the_app()
    [found] = await (await app.engine()).operator.get([ids.parse(id_)])
    if found is None:
        raise NotFound.job(id_)
    return views.job(found, await origins_of(app, found))


# --- functions as tasks -------------------------------------------------------------------------------------------


def _check_importable(task: Any) -> None:
    """Refuse a function that another process cannot import by its path."""
    name, module = task.func.__qualname__, task.func.__module__
    if not name.isidentifier():
        what = "has no name that can be imported" if "<" in name else "is a method, and a worker has no object for it"
        raise InvalidTask(f"Task function {module}.{name} {what}: define a function at the top of a module.")
    if module == "__main__":
        raise InvalidTask(f"Task function {name} is defined in the script itself: move it into a module of an app.")


def _register(task: Any, backend: StokerBackend) -> None:
    app = the_app()
    if not _tasks:
        app.on_error(_died)
    own = task.given(*PER_JOB[:-1], *PER_TASK) if isinstance(task, DjangoTask) else {}
    given = {name: value for name, value in {**backend.options, **own}.items() if name not in ("delay", "tenant", "tx")}
    asked = given.pop("give_up_on", ())
    gives_up_on = (*(asked if isinstance(asked, tuple) else (asked,)), NotJson)
    declared = app.task(name=task.module_path, queue=task.queue_name, replace=True, give_up_on=gives_up_on, **given)
    declared(_handler(task))
    _tasks[task.module_path] = task


def _handler(task: Any) -> Callable[..., Any]:
    """The function as a handler of Stoker's: with its parameters, without their types, and without `context`."""

    def run(*args: Any, **kwargs: Any) -> Any:
        run = _Run(task, args, the_app().run(_before(current().id)) if asks_for_more() else None)
        return run.returned(task.func(*run.args, **kwargs))

    async def run_async(*args: Any, **kwargs: Any) -> Any:
        run = _Run(task, args, await _before(current().id) if asks_for_more() else None)
        return run.returned(await task.func(*run.args, **kwargs))

    def asks_for_more() -> bool:
        """Does it take the context, of which earlier attempts are a part?"""
        return task.takes_context and current().attempt > 1

    found: Any = run_async if inspect.iscoroutinefunction(task.func) else run
    functools.update_wrapper(found, task.func)
    del found.__wrapped__
    found.__annotations__ = {}
    plain = [one.replace(annotation=one.empty) for one in inspect.signature(task.func).parameters.values()]
    found.__signature__ = inspect.Signature(plain[1:] if task.takes_context else plain)
    handler: Callable[..., Any] = found
    return handler


class NotJson(TypeError):
    """A task returned what JSON cannot carry. It is not retried: it would return the same."""


class _Run:
    """One run of a task: its result in progress, and Django's signals around it."""

    def __init__(self, task: Any, args: tuple[Any, ...], before: Job | None) -> None:
        self._result = _running(task, current(), before)
        self.args = (TaskContext(task_result=self._result), *args) if task.takes_context else args
        signals.task_started.send(StokerBackend, task_result=self._result)

    def returned(self, value: Any) -> Any:
        """What the task returned as JSON; the task is finished."""
        try:
            value = normalize_json(value)
        except (TypeError, ValueError) as error:
            raise NotJson(f"{error}: what a task returns must be JSON") from error
        object.__setattr__(self._result, "status", TaskResultStatus.SUCCESSFUL)
        object.__setattr__(self._result, "finished_at", timezone.now())
        object.__setattr__(self._result, "_return_value", value)
        signals.task_finished.send(StokerBackend, task_result=self._result)
        return value


async def _before(id_: str) -> Job | None:
    """The record of a running job, for its earlier attempts; None: the store cannot be read, and the task runs."""
    try:
        return await _record(id_)
    except StokerError:
        return None


def _running(task: Any, context: Context, before: Job | None) -> Any:
    claim, began = context.claim, _local(context.started_at)
    args, kwargs = _arguments(claim.kind, claim.payload, claim.options.metadata or {})
    return _result(
        _as_enqueued(task, claim.queue, -claim.priority),
        context.id,
        TaskResultStatus.RUNNING,
        args,
        kwargs,
        enqueued_at=_local(moment(claim.created_at)),
        started_at=began,
        last_attempted_at=began,
        errors=_errors(claim.last_error) if before is None else [_error(run.error) for run in before.history],
        worker_ids=_workers(claim.attempt, claim.worker, before),
    )


def _died(failed: FailedRun) -> None:
    """Send Django's signal for a task that has no attempt left, in a thread in which receivers may use the database."""
    task = _task_of(failed.kind) if failed.dead else None
    if task is not None:
        _receivers.submit(_send_failed, task, failed)


def _send_failed(task: Any, failed: FailedRun) -> None:
    errors, workers = _errors(failed.error), _workers(failed.attempt, None)
    now = timezone.now()
    result = _result(
        task, failed.job, TaskResultStatus.FAILED, [], {}, finished_at=now, errors=errors, worker_ids=workers
    )
    try:
        try:
            raise failed.exception or RuntimeError(failed.error.partition("\n")[0])
        except BaseException:  # noqa: BLE001 - so that receivers find it where Django promises it
            signals.task_finished.send(StokerBackend, task_result=result)
    finally:
        connections.close_all()


def _leads_to_task(path: str) -> bool:
    try:
        return isinstance(import_string(path), Task)
    except ImportError:
        return False


def _task_of(kind: str) -> Any | None:
    return _tasks.get(kind) if the_app().find_task(kind) is not None else None


def prepare() -> None:
    """Make the backends of `settings.TASKS` that are Stoker's, so that a worker knows their queues."""
    for alias, given in getattr(settings, "TASKS", {}).items():
        try:
            kind = import_string(given["BACKEND"])
        except (ImportError, KeyError):
            continue  # Django says so when it is used
        if issubclass(kind, StokerBackend):
            _ = task_backends[alias]


# --- records as results -------------------------------------------------------------------------------------------


def _result(task: Any, id_: str, status: Any, args: list[Any], kwargs: dict[str, Any], **known: Any) -> Any:
    times = dict.fromkeys(("enqueued_at", "started_at", "finished_at", "last_attempted_at"))
    lists: dict[str, Any] = {"errors": [], "worker_ids": []}
    given = {**times, **lists, **known}
    return TaskResult(task=task, id=id_, status=status, args=args, kwargs=kwargs, backend=task.backend, **given)


def _as_enqueued(task: Any, queue: str, priority: int) -> Any:
    """The task with the queue and the priority of a job; where the backend allows these no more, the task itself."""
    if (task.queue_name, task.priority) == (queue, priority):
        return task
    try:
        return replace(task, queue_name=queue, priority=priority)
    except InvalidTask:
        return task


def _arguments(kind: str, payload: bytes, metadata: Mapping[str, str]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call as it was made: so many by position, the rest by name."""
    signature = the_app().signature_of(kind)
    assert signature is not None, "a kind of a task that is known"
    by_name: dict[str, Any] = display(payload)
    rest = by_name.pop(REST, [])
    named = int(metadata.get(POSITIONALS, "0")) - len(rest)
    by_place = [by_name.pop(name) for name in list(signature.parameters.parameters)[:named]]
    return [*by_place, *rest], by_name


def _workers(attempts: int, worker: str | None, job: Job | None = None) -> list[str]:
    """The workers of all attempts: `worker` runs the job now, and the record names those of failures and of the end."""
    named = {run.attempt: run.origin.worker for run in (() if job is None else job.history) if run.origin is not None}
    if job is not None and job.origin is not None:
        named[attempts] = job.origin.worker
    if worker is not None:
        named[attempts] = worker
    return [named.get(attempt, UNKNOWN_WORKER) for attempt in range(1, attempts + 1)]


def _errors(text: str | None) -> list[Any]:
    return [] if text is None else [_error(text)]


def _error(text: str) -> Any:
    """An error of a record as Django shows one: the class by its path, and a traceback that ends with the message."""
    head, mark, rest = text.removeprefix("panic: ").partition("\nTraceback (most recent call last):\n")
    trace = f"{mark.lstrip()}{rest}\n{head}\n" if mark else f"{head}\n"
    return TaskError(exception_class_path=_class_path(head.partition("\n")[0].partition(":")[0]), traceback=trace)


def _class_path(name: str) -> str:
    """The path of an exception's class, which a record names without a module where that says little."""
    if not all(part.isidentifier() for part in name.split(".")):
        return "stoker.JobFailed"  # none was raised: a time limit, a process that died
    if name.startswith("stoker."):
        own = name.removeprefix("stoker.")
        homes = ("stoker", "stoker.errors", __name__)
        return f"{next((home for home in homes if hasattr(import_module(home), own)), 'stoker')}.{own}"
    return name if "." in name else f"builtins.{name}"


def _local(at: datetime | None) -> datetime | None:
    """An instant as the settings want it."""
    return at if at is None or settings.USE_TZ else timezone.make_naive(at)
