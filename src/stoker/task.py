"""A task: a function that can also run later, in a worker.

It can still be called (`await resize(7)` just runs it); `enqueue` binds the same arguments, encodes them and puts
a job into the store. `using` gives a copy with other options, so the signature of `enqueue` is the handler's own and a
type checker sees every mistake in it.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Never, ParamSpec, Self, TypeVar, Unpack

from msgspec.structs import asdict, replace

from stoker import other_systems
from stoker.codec.signature import Signature
from stoker.key_function import KeyOf
from stoker.labels import LabelOf
from stoker.limits import LimitOf
from stoker.marked import marks_of_call
from stoker.model.chunk import Chunk
from stoker.model.errors import InvalidInput, InvalidPayload
from stoker.model.job import Draft, Options, check_name
from stoker.model.retry import Errors, Policy
from stoker.model.unique import Unique, not_hidden
from stoker.options import CallOptions, JobOptions, parse

if TYPE_CHECKING:
    from stoker.app import Stoker
    from stoker.engines.base import Transaction
    from stoker.handle import JobHandle

P = ParamSpec("P")
R = TypeVar("R")
ItemT = TypeVar("ItemT")
CallT = TypeVar("CallT")


class Task(Generic[P, R]):
    """A registered handler and the options its jobs start with."""

    def __init__(
        self,
        app: Stoker,
        fn: Callable[..., Any],
        name: str,
        options: JobOptions,
        *,
        retry_on: Errors | None = None,
        give_up_on: Errors | None = None,
        retry_if: Callable[[BaseException], bool] | None = None,
        crashes: int | None = 3,
        validate: bool = True,
        chunk: Chunk | None = None,
        signature: Signature | None = None,
        tx: Transaction | None = None,
    ) -> None:
        name = check_name("task name", name)
        check_chunk(chunk, options)
        self.app = app
        self.fn = fn
        self.name = name
        self.options = options
        self.policy = Policy(retry_on, give_up_on, retry_if)
        self.crashes = crashes
        self.validate = validate
        self.chunk = chunk
        self.is_async = is_async_function(fn)
        self.signature = signature or Signature(fn, name, chunk=chunk is not None)
        self.tx = tx
        unique = options.unique or None
        self._unique = unique if isinstance(unique, Unique) else None
        self._key_of = None
        if unique is not None and (self._unique is None or self._unique.is_of_arguments):
            self._key_of = KeyOf(unique, self.signature, name)
        self._limit_of = LimitOf(options.limit, name, self.signature) if options.limit else None
        self._label_of = LabelOf(options.label, name, self.signature) if options.label else None
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
        """Module and name of the function, the same in every process that imports it."""
        module = self.__module__
        if module == "__main__":
            main = sys.modules["__main__"]
            spec = getattr(main, "__spec__", None)
            module = Path(getattr(main, "__file__", module)).stem if spec is None else spec.name
        return f"{module}.{self.__qualname__}"

    if not TYPE_CHECKING:  # a checker would take it for a promise that every attribute exists

        def __getattr__(self, name: str) -> Any:
            """Raise, naming the method here for one of another job system."""
            hint = other_systems.METHODS.get(name)
            more = f"; what you may know as {name}() is {hint}" if hint else ""
            raise AttributeError(f"task {vars(self).get('name', '?')!r} has no {name!r}{more}", name=name, obj=self)

    def __or__(self, other: Never) -> Never:
        """Raise, naming what other job systems mean by it; no type is accepted, so checkers refuse it too."""
        why = "is no operator here; write chain(first.draft(...), second.draft(PREVIOUS))"
        raise InvalidInput("task | task", self, why)

    def draft(self, *args: P.args, **kwargs: P.kwargs) -> Draft[R]:
        """A job that is not stored yet, for `jobs.enqueue_many` and for follow-ups."""
        if self.tx is not None:
            raise InvalidInput("tx", self.tx, "cannot be part of a draft; give tx= to the call that stores the draft")
        return self._draft(*args, **kwargs)

    def _draft(self, *args: P.args, **kwargs: P.kwargs) -> Draft[R]:
        queue, priority, attempts, options = self._resolved or self._resolve()
        given = self.options
        marks = None
        try:
            payload = self.signature.encode(args, kwargs)
        except InvalidPayload:
            marks = marks_of_call(self.signature, args, kwargs)
            if marks is None:
                raise
            marks.check_keys(self.name, given)
            payload = marks.payload
        if self.validate:
            self.signature.check(payload, marked=marks is not None)
        unique = self._unique
        if self._key_of is not None:
            unique = self._key_of(args, kwargs, payload)
        if unique is not None and unique.digest and self.app.seal is None:
            raise not_hidden(self.name)
        tenant = self.app.current_tenant() if given.tenant is None else given.tenant
        if self._limit_of is not None:
            options = replace(options, limit=self._limit_of.of_call(args, kwargs, payload, tenant))
        if self._label_of is not None:
            options = replace(options, label=self._label_of(payload))
        draft = Draft(
            self.app.mint(),
            self.name,
            payload,
            queue=queue,
            priority=priority,
            delay=given.delay or 0,
            at=given.at,
            attempts=attempts,
            unique=unique,
            tenant=tenant,
            options=options,
        )
        return draft if marks is None else marks.put_on(self.app, draft)

    def _resolve(self) -> tuple[str, int, int, Options]:
        self._resolved = self.app.resolve(self.name, self.options)
        return self._resolved

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Store a job that calls this task with these arguments; it exists when this returns."""
        return await self.app.enqueue_draft(self._draft(*args, **kwargs), self.signature, tx=self.tx)

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """`enqueue` for code without a loop: scripts, Flask, Django views."""
        return self.app.enqueue_draft_sync(self._draft(*args, **kwargs), self.signature, tx=self.tx)

    def using(
        self, *, tx: Transaction | None = None, **options: Unpack[CallOptions[Callable[P, str | Unique | None]]]
    ) -> Self:
        """This task with other options for the jobs enqueued through the copy."""
        return type(self)(
            self.app,
            self.fn,
            self.name,
            parse(options, ("tx",)).over(self.options),
            **asdict(self.policy),
            crashes=self.crashes,
            validate=self.validate,
            chunk=self.chunk,
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


class ChunkTask(Task[[ItemT], R], Generic[ItemT, R, CallT]):
    """A task whose handler takes the arguments of many jobs at once; each of them is enqueued with one item."""

    def __call__(self, items: list[ItemT], /) -> CallT:
        """Just run the handler, here and now."""
        value: CallT = self.fn(items)
        return value


def check_chunk(chunk: Chunk | None, options: JobOptions) -> None:
    """Raise for what cannot be a chunk, and for options that no job of a chunk can have."""
    if chunk is None:
        return
    if not isinstance(chunk, Chunk):
        raise InvalidInput("chunk", chunk, "must be a Chunk, such as Chunk(100, within=1.0)")
    if options.isolation is not None:
        why = "cannot be combined with chunk=: jobs that share a call share its process"
        raise InvalidInput("isolation", options.isolation, why)


def is_async_function(fn: Callable[..., Any]) -> bool:
    """Does calling it return a coroutine? Also for partials and callable objects."""
    target: Any = fn
    while isinstance(target, functools.partial):
        target = target.func
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(getattr(target, "__call__", None))  # noqa: B004
