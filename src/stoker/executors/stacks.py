"""Where a handler stands: its stack on the event loop, or in its thread.

To be called in a thread other than the loop's, so that a handler which blocks the loop is seen, too. What runs is not
stopped for it: a stack may be of a moment later than the one before it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from stoker.codec.error_text import describe_frames
from stoker.context import Context, running
from stoker.executors.threads import Threads
from stoker.model.orders import LARGEST_STACK

DEEPEST = 1_000
"""Coroutines that are followed, one awaiting the other."""

MOST_TASKS = 10
"""Tasks that are shown of those which a handler waits for."""

CALLERS = ("stoker.worker.", "stoker.executors.")
"""Modules that call handlers: what lies outside of them in a stack is not the handler's."""


def stack_of(
    context: Context, task: asyncio.Task[Any], steps: Any, loop: asyncio.AbstractEventLoop, ident: int, threads: Threads
) -> tuple[str, str]:
    """Return what runs a handler, and its stack; `steps` is its coroutine, `ident` the thread of the loop."""
    frames = sys._current_frames()  # noqa: SLF001 - the documented way to a stack
    for thread, variables in threads.calls.copy().items():
        if variables.get(running) is context and thread in frames:
            return f"thread {_name(thread)}", _text(_below(frames[thread]))
    if asyncio.current_task(loop) is task and ident in frames:
        return "the event loop, which it blocks", _text(_below(frames[ident]))
    found, tasks = _waits(steps, task)
    parts = [_text(found)]
    for n, other in enumerate(tasks):
        if n == MOST_TASKS:
            parts.append(f"… {len(tasks) - n:,} more tasks")
            break
        parts.append(f"Task {other.get_name()[:100]}:\n{_text(_waits(other.get_coro(), other)[0])}")
    return "the event loop", _cut("\n".join(part for part in parts if part))


def abandoned(contexts: set[int], threads: Threads) -> Iterator[tuple[Context, str, str]]:
    """Yield the handlers that go on in a thread although their run has ended, but for those of `contexts` by `id`."""
    frames = sys._current_frames()  # noqa: SLF001
    for thread, variables in threads.calls.copy().items():
        context = variables.get(running)
        if context is not None and id(context) not in contexts and thread in frames:
            yield context, f"thread {_name(thread)}, abandoned", _text(_below(frames[thread]))


def _name(thread: int) -> str:
    return next((one.name for one in threading.enumerate() if one.ident == thread), str(thread))


def _text(frames: list[FrameType]) -> str:
    return describe_frames(frames, LARGEST_STACK)


def _cut(text: str) -> str:
    return text.encode()[:LARGEST_STACK].decode(errors="ignore")


def _below(innermost: FrameType | None) -> list[FrameType]:
    """The frames of a thread that a handler is in, the outermost first, without those that called it."""
    found: list[FrameType] = []
    while innermost is not None:
        found.append(innermost)
        innermost = innermost.f_back
    found.reverse()
    modules = [str(frame.f_globals.get("__name__")) for frame in found]
    return found[max((n for n, name in enumerate(modules, 1) if name.startswith(CALLERS)), default=0) :]


def _waits(steps: Any, task: asyncio.Task[Any]) -> tuple[list[FrameType], list[asyncio.Task[Any]]]:
    """Follow a coroutine to what it waits for: return its frames, the outermost first, and the tasks in the end."""
    frames: list[FrameType] = []
    tasks = _tasks_in([getattr(task, "_fut_waiter", None)])
    while steps is not None and len(frames) < DEEPEST:
        frame = _of(steps, "cr_frame", "gi_frame", "ag_frame")
        if frame is not None:
            frames.append(frame)
            if str(frame.f_globals.get("__name__")).startswith("asyncio."):
                tasks += _tasks_in(list(frame.f_locals.values()))
        steps = _of(steps, "cr_await", "gi_yieldfrom", "ag_await")
    return frames, [one for one in dict.fromkeys(tasks) if one is not task and not one.done()]


def _of(steps: Any, *names: str) -> Any:
    """What a coroutine, a generator or an async generator has under its own name for it."""
    return next((found for name in names if (found := getattr(steps, name, None)) is not None), None)


def _tasks_in(values: list[Any]) -> list[asyncio.Task[Any]]:
    """The tasks among what asyncio waits for: a task, what gathers some, a task group, a collection.

    By the types alone: some of the values are the user's own, and may raise whatever they are asked.
    """
    found: list[asyncio.Task[Any]] = []
    for value in values:
        several: Any = value
        if issubclass(type(value), asyncio.TaskGroup):
            several = getattr(value, "_tasks", ())
        elif issubclass(type(value), asyncio.Future):
            several = getattr(value, "_children", [value])
        if type(several) in (set, list, tuple):
            found += [one for one in list(several) if issubclass(type(one), asyncio.Task)]
    return found
