"""How rows are shown: a table on a terminal, one line per row in a pipe."""

from __future__ import annotations

import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.rows import Row


class Show(Protocol):
    """What a run tells while it goes on."""

    def began(self, name: str) -> None: ...
    def measured(self, rows: Sequence[Row]) -> None: ...
    def failed(self, name: str, error: BaseException) -> None: ...


def figure(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def verdict(row: Row) -> str:
    return {None: "", True: "pass", False: "FAIL"}[row.passed]


def cells(row: Row) -> tuple[str, ...]:
    ratio = "–" if row.ratio is None else f"{row.ratio:.2f}"
    bar = "" if row.bar is None else row.bar.text(row.unit)
    return row.name, row.unit, figure(row.value), figure(row.limit), ratio, bar, verdict(row), row.note


HEADINGS = ("row", "unit", "value", "limit", "ratio", "bar", "", "")


class Lines:
    """For pipes and logs: every row as soon as it is known."""

    def __init__(self) -> None:
        self._line(HEADINGS)

    def began(self, name: str) -> None:
        pass

    def measured(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._line(cells(row))

    def failed(self, name: str, error: BaseException) -> None:
        print(f"{name}: could not be measured: {error}", flush=True)

    @staticmethod
    def _line(texts: tuple[str, ...]) -> None:
        name, unit, value, limit, ratio, bar, passed, note = texts
        line = f"{name:<32} {unit:<15} {value:>8} {limit:>8} {ratio:>6}  {bar:<18} {passed:<5} {note}"
        print(line.rstrip(), flush=True)


class Board:
    """For terminals: a progress bar while it runs, a table at the end."""

    def __init__(self, console: Console, progress: Progress, total: int) -> None:
        self._console = console
        self._progress = progress
        self._task = progress.add_task("", total=total)
        self._rows: list[Row] = []

    def began(self, name: str) -> None:
        self._progress.update(self._task, description=name)

    def measured(self, rows: Sequence[Row]) -> None:
        self._rows += rows
        self._progress.advance(self._task)

    def failed(self, name: str, error: BaseException) -> None:
        self._console.print(f"{name}: could not be measured: {error}", style="red")
        self._progress.advance(self._task)

    def table(self) -> Table:
        table = Table(*HEADINGS, box=None, header_style="bold")
        for column in table.columns[2:5]:
            column.justify = "right"
        for row in self._rows:
            style = {None: "", True: "green", False: "bold red"}[row.passed]
            *texts, passed, note = cells(row)
            table.add_row(*texts, f"[{style}]{passed}[/]" if style else passed, f"[dim]{note}[/]")
        return table


@contextmanager
def shown(total: int) -> Iterator[Show]:
    """Show a run of so many benchmarks, in the way that suits where the output goes."""
    console = Console()
    print(machine())
    if not console.is_terminal:
        yield Lines()
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    # Few refreshes: drawing would take CPU from what is measured.
    with Progress(*columns, console=console, transient=True, refresh_per_second=1) as progress:
        board = Board(console, progress, total)
        yield board
    console.print(board.table())


def machine() -> str:
    """What the figures were measured on."""
    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        processor = names[0] if names else processor
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return (
        f"{processor}, {os.cpu_count()} cores{load}; {platform.system()} {platform.release()}; "
        f"Python {platform.python_version()}; SQLite {sqlite3.sqlite_version}; scratch files on {file_system()}"
    )


def file_system() -> str:
    """The kind of file system that the scratch files are on: on one in memory an fsync costs nothing."""
    if sys.platform != "linux":
        return "an unknown file system"
    command = ["stat", "--file-system", "--format=%T", tempfile.gettempdir()]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "an unknown file system"
