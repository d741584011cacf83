"""The worker's side of one run in a child: requests to stop go there, the judgement comes back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from stoker.context import CancelToken, Context
from stoker.executors import messages
from stoker.executors.outcomes import DecidedInChild, ProcessDied
from stoker.model import outcome as ends
from stoker.model.errors import StokerError
from stoker.model.outcome import Outcome
from stoker.subprocesses import ChildProcess

if TYPE_CHECKING:
    from stoker.task import Task

STOP_GRACE = 5.0
"""Seconds a handler has to heed a request to stop before its process is killed."""


class Relay(CancelToken):
    """The worker's side of the token: setting a reason tells the child, and starts the clock."""

    __slots__ = ("_process", "_reason", "_timer")

    def __init__(self, process: ChildProcess, reason: str | None) -> None:
        self._process = process
        self._reason: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.reason = reason

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

    def rest(self) -> None:
        """The run is over: stop the clock."""
        if self._timer is not None:
            self._timer.cancel()

    @property
    def requested(self) -> bool:
        """Should this run stop?"""
        return self._reason is not None

    def __bool__(self) -> bool:
        return self._reason is not None


def conclusion(outcome: Outcome, task: Task[..., Any], context: Context) -> Any:
    """The child's judgement, as the value or the exception by which the runner comes to the same one."""
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
    """What middleware reads that catches it."""
    return str(getattr(outcome, "error", None) or getattr(outcome, "why", None) or type(outcome).__name__.lower())


def _value(result: bytes | None, task: Task[..., Any]) -> Any:
    """The result as middleware expects it; what does not fit its own hint goes on as the JSON it is."""
    try:
        return task.signature.decode_result(result)
    except StokerError:
        return msgspec.Raw(result or b"null")
