"""How commands show rows: a table that fits its terminal, tab-separated text in a pipe, or JSON.

A terminal that is too narrow for a table loses whole columns, the least important ones first. Figures, heads and ids
that the next command takes are never cut; of a long name the middle is left out, of a sentence its end. In a pipe
everything is whole and without colour, numbers have no separators, and moments are ISO 8601.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

import click

from stoker.admin.as_json import plain
from stoker.cli.text import one_line, say
from stoker.model import humanize, ids
from stoker.model.time import Instant, instant

T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., Any])

Columns: TypeAlias = dict[str, str | Callable[[T], object]]
"""What a table shows of a view: by the head of each column a field of the view, or a function of it."""

Wrong: TypeAlias = Literal["bad", "warn"]
STYLES: Final = {"bad": "red", "warn": "yellow"}
"""What is wrong has a colour, and nothing else has."""

IDS: Final = frozenset({"id", "group", "operation", "entry"})
"""Columns that are shown whole: an id is typed into the next command."""

PROSE: Final = frozenset({"error", "last error", "reason", "change", "state", "status", "filter", "note"})
"""Columns of sentences, which are cut at their end; of every other text the middle is left out."""

LEAST: Final = 16
"""A text is shortened to so many characters at the least, before a column is dropped for it."""

LEAST_NAME: Final = 24
"""The same of the first column, which says what a row is about."""

GAP: Final = 2


class Figure(str):
    """A figure as text, with its unit: it stands at the right and is never shortened."""

    __slots__ = ()


class Id(str):
    """The id of a job: commands also take it as `0190f3c2…9f1a`, which is how a narrow terminal shows it."""

    __slots__ = ()


class Mark(NamedTuple):
    """A cell that tells of something wrong."""

    value: object
    tone: Wrong


def mark(value: object, tone: Wrong, when: object = True) -> object:
    """The value of a cell, coloured if it tells of something wrong."""
    return Mark(value, tone) if when else value


def columns(*heads: str) -> dict[str, Any]:
    """Columns that show fields: `started=started_at`, or the head alone where it is the field."""
    return {head: field or head for head, _, field in (one.partition("=") for one in heads)}


def labeled(shown: Columns[T], found: Sequence[Any]) -> Columns[T]:
    """The columns of jobs, with their labels behind the kind where one of them has one."""
    if all(one.label is None for one in found):
        return shown
    parts = ({name: what, **({"label": "label"} if name == "kind" else {})} for name, what in shown.items())
    return {name: what for part in parts for name, what in part.items()}


def cells(one: T, columns: Columns[T]) -> list[object]:
    """One line of a table."""
    return [getattr(one, cell) if isinstance(cell, str) else cell(one) for cell in columns.values()]


def as_lines_option(command: C) -> C:
    """Give a command that lists something the options `--json` and `--wide`."""
    text = "One object per line, with every field."
    return wide_option(click.option("--json", "as_json", is_flag=True, help=text)(command))


def wide_option(command: C) -> C:
    """Give a command that shows a table the option `--wide`; `show` finds it in the context."""

    def noted(ctx: click.Context, _: click.Parameter, given: bool) -> None:
        ctx.meta[_WIDE] = given

    text = "Every column, whole, on a terminal of any width."
    return click.option("--wide", is_flag=True, expose_value=False, callback=noted, help=text)(command)


_WIDE = "stoker.wide"


def table(
    found: Iterable[T],
    columns: Columns[T],
    as_json: bool = False,
    as_object: Callable[[T], object] = plain,
    *,
    goes_first: Sequence[str] = (),
    empty: str = "",
) -> None:
    """Print views as a table, or as one object per line with every field.

    On a narrow terminal the columns of `goes_first` are dropped before others. `empty` is said on a terminal if there
    is nothing to show.
    """
    if as_json:
        for one in found:
            say(json.dumps(as_object(one)))
        return
    rows = [cells(one, columns) for one in found]
    if not rows and empty and on_terminal():
        say(empty)
        return
    show(tuple(columns), rows, goes_first=goes_first)


def show(heads: Sequence[str], rows: Iterable[Sequence[object]], *, goes_first: Sequence[str] = ()) -> None:
    """Print rows: a table on a terminal, tab-separated in a pipe."""
    if not on_terminal():
        say("\t".join(heads))
        for row in rows:
            say("\t".join(one_line(in_pipe(cell), _ANY) for cell in row))
        return
    from rich.console import Console

    console = Console(highlight=False)
    ctx = click.get_current_context(silent=True)
    wide = ctx is not None and ctx.meta.get(_WIDE, False)
    drawn = Layout(heads, list(rows), instant(datetime.now(UTC)))
    for line in drawn.lines(None if wide else console.width, goes_first):
        console.print(line, soft_wrap=True)
    if drawn.dropped:
        fits = f"{humanize.count(len(drawn.dropped), 'column')} not shown; --wide shows every one."
        console.print(fits, style="dim", soft_wrap=True)


_ANY = sys.maxsize
"""The length of a text that is not shortened."""


def on_terminal() -> bool:
    """Does a person read this, rather than a program?"""
    return sys.stdout.isatty()


def in_pipe(cell: object) -> str:
    """A cell for programs."""
    value = cell.value if isinstance(cell, Mark) else cell
    if value is None:
        return ""
    if isinstance(value, datetime):
        return humanize.iso(value)
    return humanize.span(value) if isinstance(value, timedelta) else str(value)


def on_screen(cell: object, now: Instant) -> str:
    """A cell for people, as pages show it."""
    value = cell.value if isinstance(cell, Mark) else cell
    if value is None:
        return ""
    if isinstance(value, datetime):
        return humanize.ago(value, now)
    if isinstance(value, timedelta):
        return humanize.span(value)
    return f"{value:,}" if isinstance(value, int) else one_line(str(value), _ANY)


def when(moment: datetime) -> str:
    """A moment as people read it: `3 min ago`, `in 2 h`."""
    return humanize.ago(moment, instant(datetime.now(UTC)))


def is_figure(cell: object) -> bool:
    """Does a cell belong to the right side of its column?"""
    value = cell.value if isinstance(cell, Mark) else cell
    return isinstance(value, int | float | timedelta | datetime | Figure)


class Layout:
    """A table in the room that there is: which columns fit, how wide each is, and its lines."""

    def __init__(self, heads: Sequence[str], rows: Sequence[Sequence[object]], now: Instant) -> None:
        from rich.cells import cell_len

        self._size = cell_len
        self._heads = heads
        self._rows = rows
        self._texts = [[on_screen(cell, now) for cell in row] for row in rows]
        self._natural = [
            max([cell_len(head), *(cell_len(line[at]) for line in self._texts)]) for at, head in enumerate(heads)
        ]
        self._right = [self._all(at, is_figure) for at in range(len(heads))]
        self._job_ids = [self._all(at, lambda cell: isinstance(cell, Id)) for at in range(len(heads))]
        self.dropped: list[str] = []

    def _all(self, at: int, test: Callable[[object], bool]) -> bool:
        there = [row[at] for row, line in zip(self._rows, self._texts, strict=True) if line[at]]
        return bool(there) and all(map(test, there))

    def lines(self, width: int | None, goes_first: Sequence[str] = ()) -> Iterator[Any]:
        """The head and the rows, in so many columns of a terminal; None: as many as they take."""
        from rich.text import Text

        widths = self.widths(width, goes_first)
        for row in self.drawn(widths):
            line = Text((" " * GAP).join(str(cell) for cell in row).rstrip())
            at = 0
            for cell in row:
                line.stylize(cell.style, at, at + len(cell))
                at += len(cell) + GAP
            yield line

    def drawn(self, widths: dict[int, int]) -> Iterator[list[Any]]:
        """The head and the rows as texts, each as wide as its column."""
        from rich.text import Text

        yield [Text(self._padded(at, self._heads[at], room), style="bold") for at, room in widths.items()]
        for row, texts in zip(self._rows, self._texts, strict=True):
            yield [
                Text(
                    self._padded(at, self._shortened(at, texts[at], room), room),
                    style=STYLES[cell.tone] if isinstance(cell := row[at], Mark) else "",
                )
                for at, room in widths.items()
            ]

    def _padded(self, at: int, text: str, room: int) -> str:
        blank = " " * (room - self._size(text))
        return blank + text if self._right[at] else text + blank

    def widths(self, width: int | None, goes_first: Sequence[str] = ()) -> dict[int, int]:
        """How wide each column is that is shown, by its place."""
        kept = dict(enumerate(self._natural))
        if width is None or self._total(kept) <= width:
            return kept
        least = {at: self._least(at) for at in kept}
        named = [self._heads.index(head) for head in goes_first if head in self._heads]
        leaving = [*named, *(at for at in range(len(self._heads) - 1, 0, -1) if at not in named)]
        while len(least) > 1 and self._total(least) > width:
            self.dropped.append(self._heads[leaving[0]])
            del least[leaving.pop(0)]
        self.dropped.sort(key=list(self._heads).index)
        # What room is left goes to the narrowest of the texts that are still shortened.
        for _ in range(width - self._total(least)):
            short = [at for at, room in least.items() if room < self._natural[at] and not self._job_ids[at]]
            if short:
                least[min(short, key=lambda at: least[at])] += 1
        return least

    def _least(self, at: int) -> int:
        if self._job_ids[at]:
            return max(len(self._heads[at]), ids.SHORT)
        if self._right[at] or self._heads[at] in IDS:
            return self._natural[at]
        return min(self._natural[at], max(LEAST if at else LEAST_NAME, self._size(self._heads[at])))

    def _total(self, widths: dict[int, int]) -> int:
        return sum(widths.values()) + GAP * (len(widths) - 1)

    def _shortened(self, at: int, text: str, room: int) -> str:
        if self._size(text) <= room:
            return text
        if self._job_ids[at]:
            return ids.short(text)
        return cut(text, room) if self._heads[at] in PROSE else squeezed(text, room)


def cut(text: str, room: int) -> str:
    """The beginning of a sentence that is too long for so many columns."""
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= room else set_cell_size(text, room - 1).rstrip() + "…"


def squeezed(text: str, room: int) -> str:
    """Both ends of a name that is too long for so many columns: names differ at either one."""
    from rich.cells import cell_len

    if cell_len(text) <= room:
        return text
    kept = list(text)
    while cell_len("".join(kept)) > room - 1:
        del kept[len(kept) // 2]
    at = (len(kept) + 1) // 2
    return f"{''.join(kept[:at])}…{''.join(kept[at:])}"
