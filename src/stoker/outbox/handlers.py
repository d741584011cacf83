"""Handlers: what the messages of a stream are delivered to, and under which options.

A handler takes one `Message[T]`, a `Batch[T]`, or a `list[Message[T]]`; its first annotation says which, and by which
type bodies are decoded. Everything is checked where the handler is declared.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict, get_args, get_origin

import msgspec

from stoker.model.errors import InvalidInput, InvalidOption
from stoker.model.job import check_name
from stoker.model.outbox import batch_size
from stoker.model.outbox.batch_size import PARTITIONS_AT_ONCE, Profile
from stoker.model.outbox.cursor import LARGEST_BATCH, Consumer, Start, Terms
from stoker.model.outbox.delivery import Mode, Rules, Then
from stoker.model.time import Seconds, instant, span
from stoker.outbox.batch import Batch
from stoker.outbox.entries import reader
from stoker.outbox.message import Message, Reader
from stoker.outbox.relays.base import Relay
from stoker.settings import check_known
from stoker.task import is_async_function

MOST_LANES = 256

Form: TypeAlias = Literal["message", "batch", "list"]


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How much a consumer takes at once, and how long it rests. Durations are seconds or `timedelta`.

    `batch`: messages in a normal turn · `breath`: least rest between two turns of a partition · `idle`: how long to
    wait for a wake-up before looking again · `retry_base`, `retry_max`: rest after the first and after many failures
    in a row · `threshold`: failures in a row before batches shrink.
    """

    batch: int = 100
    breath: Seconds = 0
    idle: Seconds = 1
    retry_base: Seconds = 1
    retry_max: Seconds = 60
    threshold: int = 2

    def __post_init__(self) -> None:
        self.stored()

    def stored(self) -> batch_size.Pace:
        """The pace as the rules use it; raises for values that make no sense."""
        return batch_size.Pace(
            self.batch,
            span(self.breath, "breath"),
            span(self.idle, "idle"),
            span(self.retry_base, "retry_base"),
            span(self.retry_max, "retry_max"),
            self.threshold,
        )


class RelayOptions(TypedDict, total=False):
    """The options of `outbox.relay`, as a caller writes them; `@outbox.deliver` takes them too.

    `batch`: messages in a turn · `pace`: a profile or a `Pace` · `lanes`: partitions at once in each process · `lease`,
    `headroom`: how long a turn may take, and how much of that is kept to store its outcome · `start`: where a new
    consumer begins · `attempts`: failures after which a message is given up · `then`: whether it only becomes a letter,
    or parks its key too.
    """

    batch: int | None
    pace: Profile | Pace
    lanes: int
    lease: Seconds
    headroom: Seconds
    start: Literal["beginning", "end"] | datetime
    attempts: int | None
    then: Then


class DeliverOptions(RelayOptions, total=False):
    """The options of `@outbox.deliver`, as a caller writes them.

    Those of `RelayOptions`, and: `name`: the consumer, by default the function's name; another name is another
    consumer, which begins anew · `mode`: "leased", or "transactional" to move the cursor in the handler's own
    transaction · `chunk`: messages in a call of a handler that takes a list · `transaction`: opens the handler's
    transaction · `keep_writes`: commit what a transactional handler wrote even when it raises `Retry` or `Reject`.
    """

    name: str | None
    mode: Mode
    chunk: int | None
    transaction: Callable[[], Any] | None
    keep_writes: bool


OPTIONS = tuple(DeliverOptions.__annotations__)
"""The names of all options."""


class Handler(NamedTuple):
    """A consumer of a stream: its function, and what was decided about it."""

    consumer: Consumer
    fn: Callable[..., Any]
    form: Form
    is_async: bool
    read: Reader
    rules: Rules
    terms: Terms
    lanes: int = PARTITIONS_AT_ONCE
    chunk: int | None = None
    transaction: Callable[[], Any] | None = None
    keep_writes: bool = False
    relay: Relay | None = None

    @property
    def name(self) -> str:
        """The consumer's name."""
        return self.consumer.name


def declare(fn: Callable[..., Any], options: DeliverOptions) -> Handler:
    """Read a handler and its options; raises for the first thing that is wrong."""
    check_known(options, OPTIONS, "the option of deliver")
    owner = f"{getattr(fn, '__name__', repr(fn))}()"
    name = check_name("consumer", str(options.get("name") or getattr(fn, "__name__", "")))
    mode, chunk = options.get("mode", "leased"), options.get("chunk")
    form, hint = _form(fn, owner, mode)
    if chunk is not None:
        if form != "list":
            raise InvalidOption("chunk", chunk, f"belongs to a handler that takes list[Message[T]]; {owner} does not")
        _whole("chunk", chunk, LARGEST_BATCH)
    pace = _pace(options.get("pace", "default"), options.get("batch"))
    rules = Rules(mode, options.get("attempts"), options.get("then", "letter"), pace)
    _check_transaction(options, mode)
    return Handler(
        Consumer(name, _start(options.get("start", "beginning"))),
        fn,
        form,
        is_async_function(fn),
        reader(hint, owner),
        rules,
        Terms(span(options.get("lease", 30), "lease"), span(options.get("headroom", 2), "headroom")),
        _whole("lanes", options.get("lanes", PARTITIONS_AT_ONCE), MOST_LANES),
        chunk,
        options.get("transaction"),
        options.get("keep_writes", False),
    )


def _whole(option: str, value: int, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise InvalidOption(option, value, f"must be between 1 and {most}")
    return value


def _start(given: Literal["beginning", "end"] | datetime) -> Start:
    return instant(given, "start") if isinstance(given, datetime) else given


def _check_transaction(options: DeliverOptions, mode: Mode) -> None:
    factory: Any = options.get("transaction")
    if mode != "transactional":
        if factory is not None:
            raise InvalidOption("transaction", factory, 'belongs to mode="transactional"')
        if options.get("keep_writes"):
            raise InvalidOption("keep_writes", True, 'belongs to mode="transactional"')
    if factory is not None and not callable(factory):
        why = "must be a function that returns a context manager, such as Session.begin"
        raise InvalidOption("transaction", factory, why)


FORMS = "Message[T] for one message at a time, Batch[T] to walk a batch, or list[Message[T]] for chunks"


def _form(fn: Callable[..., Any], owner: str, mode: Mode) -> tuple[Form, Any]:
    """What the handler takes, and the type of bodies, by its first annotation."""
    try:
        taken = [*inspect.signature(fn).parameters.values()]
        hints = typing.get_type_hints(fn if inspect.isroutine(fn) else type(fn).__call__)
    except Exception as error:
        raise InvalidInput(owner, fn, f"its type hints cannot be resolved ({error}); they say what it takes") from error
    hint = hints.get(taken[0].name) if taken else None
    needed = [one for one in taken[1:] if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    if mode == "transactional":
        if len(needed) != 1 or needed[0].kind not in (needed[0].POSITIONAL_ONLY, needed[0].POSITIONAL_OR_KEYWORD):
            raise InvalidInput(owner, fn, "a transactional handler takes two arguments: messages, and the transaction")
    elif needed:
        raise InvalidInput(owner, fn, f"is called with one argument, but also wants {needed[0].name!r}")
    origin = get_origin(hint) or hint
    if origin is list:
        [inner] = get_args(hint) or (None,)
        if (get_origin(inner) or inner) is Message:
            return "list", _argument(inner)
    if origin is Message:
        return "message", _argument(hint)
    if origin is Batch:
        return "batch", _argument(hint)
    raise InvalidInput(owner, hint, f"its first parameter needs one of these annotations: {FORMS}")


def _argument(hint: Any) -> Any:
    arguments = get_args(hint)
    return arguments[0] if arguments else Any


def _pace(given: batch_size.Profile | Pace, batch: int | None) -> batch_size.Pace:
    """The pace that an option names, with the batch that another one gives."""
    pace = given.stored() if isinstance(given, Pace) else batch_size.pace(given)
    if batch is None:
        return pace
    if type(batch) is not int:
        raise InvalidOption("batch", batch, "must be a whole number")
    return msgspec.structs.replace(pace, batch=batch)
