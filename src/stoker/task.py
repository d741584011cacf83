"""A task: a function that can also be run later, somewhere else.

It stays the function it was (`await resize(7)` just runs it); `enqueue` binds the same arguments, encodes them and puts
a job into the store. `using` gives a copy with other options, so the signature of `enqueue` is the handler's own and a
type checker sees every mistake in it.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar

import msgspec

from stoker import foreign
from stoker.codec.signature import Signature
from stoker.keys import KeyOf
from stoker.model.errors import InvalidInput
from stoker.model.job import PLAIN, Draft, Isolation, Options, check_name
from stoker.model.retry import Backoff, Errors
from stoker.model.time import Instant, Seconds, Span, instant, span
from stoker.model.unique import Unique
from stoker.settings import check_known

if TYPE_CHECKING:
    from stoker.app import Stoker
    from stoker.engines.base import Transaction
    from stoker.handle import JobHandle

P = ParamSpec("P")
R = TypeVar("R")
Q = ParamSpec("Q")
T = TypeVar("T")


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a job as far as somebody gave them; None leaves the word to the next in line."""

    queue: str | None = None
    priority: int | None = None
    delay: Span | None = None
    at: Instant | None = None
    attempts: int | None = None
    backoff: Backoff | None = None
    timeout: Span | None = None
    unique: Unique | Callable[..., str | Unique | None] | None = None
    tenant: str | None = None
    expires: Span | None = None
    keep: Span | None = None
    metadata: Mapping[str, str] | None = None
    isolation: Isolation | None = None


def wishes(
    *,
    queue: str | None = None,
    priority: int | None = None,
    delay: Seconds | None = None,
    at: datetime | None = None,
    attempts: int | None = None,
    backoff: Backoff | None = None,
    timeout: Seconds | None = None,
    unique: str | Unique | Callable[..., str | Unique | None] | None = None,
    tenant: str | None = None,
    expires: Seconds | None = None,
    keep: Seconds | None = None,
    metadata: Mapping[str, str] | None = None,
    isolation: Isolation | None = None,
) -> Wishes:
    """Read options as people write them. Raises `InvalidInput` naming the first that is wrong."""
    if queue is not None:
        check_name("queue", queue)
    if delay is not None and at is not None:
        raise InvalidInput("at", at, "cannot be combined with a delay")
    if isinstance(unique, str):
        unique = Unique(unique)
    if unique is not None and not isinstance(unique, Unique) and not callable(unique):
        raise InvalidInput("unique", unique, "must be a key, a Unique, or a function of the task's arguments")
    if backoff is not None and not isinstance(backoff, Backoff):
        raise InvalidInput("backoff", backoff, "must be Exponential, Linear, Fixed or Never")
    wish = Wishes(
        queue=queue,
        priority=priority,
        delay=None if delay is None else span(delay, "delay"),
        at=None if at is None else instant(at),
        attempts=attempts,
        backoff=backoff,
        timeout=None if timeout is None else span(timeout, "timeout"),
        unique=unique,
        tenant=tenant,
        expires=None if expires is None else span(expires, "expires"),
        keep=None if keep is None else span(keep, "keep"),
        metadata=metadata,
        isolation=isolation,
    )
    _check(wish)
    return wish


def _check(wish: Wishes) -> None:
    """A draft knows what it accepts: what no draft could carry is refused where it was written."""
    attempts = 1 if wish.attempts is None else wish.attempts
    Draft(bytes(16), "probe", priority=wish.priority or 0, attempts=attempts, tenant=wish.tenant, options=packed(wish))


def merged(first: Wishes, then: Wishes) -> Wishes:
    """`first` wins where it says anything, be it zero; metadata adds up; a delay and a moment replace each other."""
    given = {name: value for name in Wishes.__struct_fields__ if (value := getattr(first, name)) is not None}
    if first.delay is not None or first.at is not None:
        given |= {"delay": first.delay, "at": first.at}
    if first.metadata and then.metadata:
        given["metadata"] = {**then.metadata, **first.metadata}
    return msgspec.structs.replace(then, **given)


def _explained(method: Callable[Q, T]) -> Callable[Q, T]:
    """Let a method refuse an unknown keyword as every other place does: with the known ones and what was meant."""
    known = inspect.signature(method).parameters.keys() - {"self"}

    @functools.wraps(method)
    def explain(*args: Q.args, **kwargs: Q.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except TypeError:
            check_known(kwargs, known, "the job option")
            raise

    return explain


class Task(Generic[P, R]):
    """A registered handler and the options its jobs start with."""

    def __init__(
        self,
        app: Stoker,
        fn: Callable[..., Any],
        name: str,
        options: Wishes,
        *,
        retry_on: Errors | None = None,
        give_up_on: Errors | None = None,
        retry_if: Callable[[BaseException], bool] | None = None,
        crashes: int | None = 3,
        validate: bool = True,
        signature: Signature | None = None,
        tx: Transaction | None = None,
    ) -> None:
        check_name("task name", name)
        self.app = app
        self.fn = fn
        self.name = name
        self.options = options
        self.retry_on = retry_on
        self.give_up_on = give_up_on
        self.retry_if = retry_if
        self.crashes = crashes
        self.validate = validate
        self.is_async = is_async_function(fn)
        self.signature = signature or Signature(fn, name)
        self.tx = tx
        unique = options.unique
        self._key_of = None
        if unique is not None and not isinstance(unique, Unique):
            self._key_of = KeyOf(unique, self.signature.parameters, name)
        self._resolved: tuple[str, int, int, Options] | None = None
        self.__name__ = getattr(fn, "__name__", name)
        self.__qualname__ = getattr(fn, "__qualname__", name)
        self.__module__ = getattr(fn, "__module__", type(self).__module__)
        self.__doc__ = fn.__doc__
        self.__wrapped__ = fn

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    @property
    def path(self) -> str:
        """Where the function is: module and name, alike in every process that imports it."""
        module = self.__module__
        if module == "__main__":
            main = sys.modules["__main__"]
            spec = getattr(main, "__spec__", None)
            module = Path(getattr(main, "__file__", module)).stem if spec is None else spec.name
        return f"{module}.{self.__qualname__}"

    if not TYPE_CHECKING:  # a checker would take it for a promise that every attribute exists

        def __getattr__(self, name: str) -> Any:
            """Say what a method of another job system is called here."""
            hint = foreign.METHODS.get(name)
            more = f"; what you may know as {name}() is {hint}" if hint else ""
            raise AttributeError(f"task {vars(self).get('name', '?')!r} has no {name!r}{more}", name=name, obj=self)

    def draft(self, *args: P.args, **kwargs: P.kwargs) -> Draft:
        """A job that is not stored yet, for `jobs.enqueue_many` and for follow-ups."""
        if self.tx is not None:
            raise InvalidInput("tx", self.tx, "cannot travel with a draft; give tx= to whatever stores the draft")
        return self._draft(*args, **kwargs)

    def _draft(self, *args: P.args, **kwargs: P.kwargs) -> Draft:
        queue, priority, attempts, options = self._resolved or self._resolve()
        wish = self.options
        payload = self.signature.encode(args, kwargs)
        if self.validate:
            self.signature.check(payload)
        unique: Any = wish.unique
        if self._key_of is not None:
            unique = self._key_of(args, kwargs)
        tenant = self.app.current_tenant() if wish.tenant is None else wish.tenant
        delay = wish.delay or 0
        return Draft(
            self.app.mint(), self.name, payload, queue, priority, delay, wish.at, attempts, unique, tenant, options
        )

    def _resolve(self) -> tuple[str, int, int, Options]:
        self._resolved = self.app.resolve(self.name, self.options)
        return self._resolved

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Store a job that calls this task with these arguments; it exists when this returns."""
        return await self.app.enqueue_draft(self._draft(*args, **kwargs), self.signature, tx=self.tx)

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """`enqueue` for code without a loop: scripts, Flask, Django views."""
        return self.app.enqueue_draft_sync(self._draft(*args, **kwargs), self.signature, tx=self.tx)

    @_explained
    def using(
        self,
        *,
        queue: str | None = None,
        priority: int | None = None,
        delay: Seconds | None = None,
        at: datetime | None = None,
        attempts: int | None = None,
        backoff: Backoff | None = None,
        timeout: Seconds | None = None,
        unique: str | Unique | Callable[P, str | Unique | None] | None = None,
        tenant: str | None = None,
        expires: Seconds | None = None,
        keep: Seconds | None = None,
        metadata: Mapping[str, str] | None = None,
        isolation: Isolation | None = None,
        tx: Transaction | None = None,
    ) -> Self:
        """This task with other options for the jobs enqueued through the copy."""
        wish = wishes(
            queue=queue,
            priority=priority,
            delay=delay,
            at=at,
            attempts=attempts,
            backoff=backoff,
            timeout=timeout,
            unique=unique,
            tenant=tenant,
            expires=expires,
            keep=keep,
            metadata=metadata,
            isolation=isolation,
        )
        return type(self)(
            self.app,
            self.fn,
            self.name,
            merged(wish, self.options),
            retry_on=self.retry_on,
            give_up_on=self.give_up_on,
            retry_if=self.retry_if,
            crashes=self.crashes,
            validate=self.validate,
            signature=self.signature,
            tx=self.tx if tx is None else tx,
        )


class AsyncTask(Task[P, R]):
    """A task whose handler is a coroutine function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Just run the handler, here and now."""
        called: Coroutine[Any, Any, R] = self.fn(*args, **kwargs)
        return called


class SyncTask(Task[P, R]):
    """A task whose handler is a plain function; a worker runs it in a thread."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Just run the handler, here and now."""
        value: R = self.fn(*args, **kwargs)
        return value


def packed(wish: Wishes) -> Options:
    """The rare options as the job carries them; most jobs carry none."""
    options = Options(
        backoff=wish.backoff,
        timeout=wish.timeout,
        expires=wish.expires,
        keep=wish.keep,
        metadata=None if wish.metadata is None else dict(wish.metadata),
        isolation=wish.isolation,
    )
    return PLAIN if options == PLAIN else options


def is_async_function(fn: Callable[..., Any]) -> bool:
    """Does calling it give a coroutine? Looks through partials and callable objects."""
    target: Any = fn
    while isinstance(target, functools.partial):
        target = target.func
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(getattr(target, "__call__", None))  # noqa: B004
