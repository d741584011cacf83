"""Run the benchmarks: `scripts/bench`."""

from __future__ import annotations

import logging
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import click

from benchmarks.catalog import GROUPS, Benchmark, chosen, everything
from benchmarks.report import Show, shown
from benchmarks.rows import Row, as_json
from benchmarks.session import Session

UNMEASURED, MISSED = 1, 2


def run(benchmarks: Sequence[Benchmark], session: Session, show: Show) -> tuple[list[Row], bool]:
    """Measure one after the other; one that breaks does not stop the others. All rows, and whether none broke."""
    rows: list[Row] = []
    whole = True
    for benchmark in benchmarks:
        show.began(benchmark.name)
        try:
            found = list(benchmark.measure(session))
        except Exception as error:  # noqa: BLE001 - shown, and the rest goes on
            show.failed(benchmark.name, error)
            whole = False
        else:
            show.measured(found)
            rows += found
    return rows, whole


def terminated(number: int, _frame: FrameType | None) -> None:
    """End in order at SIGTERM."""
    sys.exit(128 + number)  # unwinds: scratch files and other processes go


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--engine", "engines", multiple=True, type=click.Choice(GROUPS), help="Only this group; repeatable.")
@click.option("--quick", is_flag=True, help="Smaller stores and shorter rounds.")
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows to FILE as JSON.")
@click.option("--strict", is_flag=True, help=f"Exit {MISSED} when a bar is missed.")
@click.option("--list", "listing", is_flag=True, help="Name the benchmarks and end.")
def main(
    names: tuple[str, ...], engines: tuple[str, ...], *, quick: bool, file: Path | None, strict: bool, listing: bool
) -> None:
    """Measure Stoker beside what the machine allows. NAME: only benchmarks whose name contains it."""
    benchmarks = chosen(everything(), engines, names)
    if not benchmarks:
        raise click.UsageError(
            "no benchmark of these groups has such a name; --list names them, with --engine redis those on Redis"
        )
    if listing:
        click.echo("\n".join(benchmark.name for benchmark in benchmarks))
        return
    signal.signal(signal.SIGTERM, terminated)
    logger = logging.getLogger("stoker")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder,
            Session(Path(folder), quick=quick) as session,
            shown(len(benchmarks)) as show,
        ):
            rows, whole = run(benchmarks, session, show)
    finally:
        logger.setLevel(level)
    if file is not None:
        file.write_text(as_json(rows), encoding="utf-8")
    missed = [row.name for row in rows if row.passed is False]
    if missed:
        click.echo(f"below the bar: {', '.join(missed)}")
    if not whole:
        sys.exit(UNMEASURED)
    if missed and strict:
        sys.exit(MISSED)


if __name__ == "__main__":
    main(prog_name="scripts/bench")
