"""What it costs a caller to make a draft, and what the check of its arguments adds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.catalog import Benchmark
from benchmarks.rows import Row
from benchmarks.session import Session
from benchmarks.stats import Meter, cost_row, in_turns
from stoker.app import Stoker
from stoker.engines.memory import MemoryEngine


@dataclass
class Line:
    article: str
    count: int


@dataclass
class Order:
    customer: str
    lines: list[Line]


def _send(to: str, subject: str, tries: int = 3) -> None: ...


def _place(order: Order) -> None: ...


CALLS: dict[str, tuple[Callable[..., None], tuple[Any, ...]]] = {
    "plain": (_send, ("someone@example.org", "a subject of some length")),
    "nested": (_place, (Order("someone@example.org", [Line(f"article {n}", n) for n in range(10)]),)),
}
"""Arguments by shape: two texts, or a dataclass with ten more inside."""


def checked(session: Session, shape: str) -> Iterator[Row]:
    """A draft whose arguments are checked, against one that leaves the check to the worker."""
    fn, args = CALLS[shape]
    count = session.sized(20_000, 100_000)

    def drafts(*, validate: bool) -> Meter:
        app = Stoker(MemoryEngine())
        draft = app.task(name="task", validate=validate)(fn).draft
        with Meter() as meter:
            for _ in range(count):
                draft(*args)
        meter.jobs = count
        return meter

    pairs = in_turns(session.rounds, partial(drafts, validate=True), partial(drafts, validate=False))
    yield cost_row(f"draft.checked.{shape}", pairs, None, "against validate=False")


BENCHMARKS = [Benchmark(f"draft.checked.{shape}", ("worker",), partial(checked, shape=shape)) for shape in CALLS]
