"""Tasks of Django's own kind, in a module that is not discovered: a worker imports them by their path."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from stoker.contrib.django.task_api import base

task = base.task


@task()
def echo(*args: Any, **kwargs: Any) -> Any:
    return [args, kwargs]


@task
def bare(number: int, factor: int = 2) -> int:
    return number * factor


@task(queue_name="mail", priority=10, attempts=3)
async def in_a_loop(text: str) -> str:
    return text.upper()


@task()
def fail() -> None:
    raise ValueError("this task fails")


@task(attempts=1)
def leave() -> None:
    raise SystemExit("this task leaves")


@task()
def odd() -> Any:
    return lambda: None


@task(takes_context=True)
def about(context: Any, word: str) -> list[Any]:
    result = context.task_result
    if context.attempt == 1:
        raise ConnectionError("again")
    earlier = [*map(bool, result.worker_ids), len(result.errors)]
    return [word, context.attempt, result.id, earlier, result.args, result.status, result.worker_ids]


@task(takes_context=True)
async def about_async(context: Any) -> list[str]:
    if context.attempt == 1:
        raise ConnectionError("again")
    return list(context.task_result.worker_ids)


@task(unique=lambda order: f"order-{order}")
def once(order: int) -> int:
    return order


def plain(at: datetime | None = None) -> None:
    """Not a task yet."""


class Holder:
    def method(self) -> None:
        """Never a task."""
