"""Whether a run does nothing but wait: from its main line, through tasks, gathers and task groups, all ends in waits.

A run that is suspended although something of it goes on might never be woken; one that keeps its slot only costs the
slot. So whatever is not understood here counts as going on, and nothing but the room of a slot rests on the inner names
of asyncio.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from types import FrameType
from typing import Any

from stoker.model.steps import Wakes

_TASKS = asyncio.tasks.__file__
_TASK_GROUPS = asyncio.taskgroups.__file__


def only_waits(main: asyncio.Task[Any], coroutine: Any, waits: Collection[asyncio.Future[Any]]) -> Wakes | None:
    """What lets this run go on, of which `coroutine` is the handler in the task `main`; None: not only `waits`.

    ANY: the next answer may. ALL: nothing goes on before all of them are answered.
    """
    shape = _Shape(waits)
    if not shape.blocked(getattr(main, "_fut_waiter", None), coroutine):
        return None
    return Wakes.ANY if shape.first_counts else Wakes.ALL


class _Shape:
    """One look at a run. `first_counts`: the end of one of several tasks lets it go on (`asyncio.wait`)."""

    def __init__(self, waits: Collection[asyncio.Future[Any]]) -> None:
        self._waits = waits
        self._seen: set[int] = set()
        self.first_counts = False

    def blocked(self, future: Any, coroutine: Any) -> bool:
        """Does a coroutine that waits for this future wait for nothing but waits?"""
        if future is None or future.done() or id(future) in self._seen:
            return False
        self._seen.add(id(future))
        if any(_is(frame, "wait_for", _TASKS) for frame in _frames(coroutine)):
            return False  # its time limit is in memory only, and a suspension would forget it
        if future in self._waits:
            return True
        if isinstance(future, asyncio.Task):
            return self._task(future)
        children = getattr(future, "_children", None)
        if children is not None:  # asyncio.gather
            return self._all(children)
        return self._all(self._awaited(coroutine))

    def _task(self, task: asyncio.Task[Any]) -> bool:
        return self.blocked(getattr(task, "_fut_waiter", None), task.get_coro())

    def _all(self, futures: Collection[asyncio.Future[Any]]) -> bool:
        left = [one for one in futures if not one.done()]
        return bool(left) and all(
            self._task(one) if isinstance(one, asyncio.Task) else self.blocked(one, None) for one in left
        )

    def _awaited(self, coroutine: Any) -> Collection[asyncio.Future[Any]]:
        """The tasks that a coroutine waits for in a task group or in `asyncio.wait`; none of them: something else."""
        found: Collection[asyncio.Future[Any]] = ()
        for frame in _frames(coroutine):
            group = frame.f_locals.get("self")
            if isinstance(group, asyncio.TaskGroup) and frame.f_code.co_filename == _TASK_GROUPS:
                found = getattr(group, "_tasks", ())
            elif _is(frame, "_wait", _TASKS):
                self.first_counts = True
                found = frame.f_locals["fs"] if frame.f_locals.get("timeout") is None else ()
        return found


def _frames(coroutine: Any) -> Iterator[FrameType]:
    """The frames of a coroutine and of those it awaits, from the outermost on."""
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        yield frame
        coroutine = coroutine.cr_await


def _is(frame: FrameType, name: str, file: str) -> bool:
    return frame.f_code.co_name == name and frame.f_code.co_filename == file
