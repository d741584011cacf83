"""Run storms and add up what they found: `scripts/lab`."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from lab import results
from lab.bugs import BUGS
from lab.faults import FAULTS
from lab.judge import quantile
from lab.page import RECOVERED
from lab.stores import ENGINES
from lab.storm import LULL, children_of
from lab.workloads import WORKLOADS
from scripts import doc_tables
from tests.faults.fork_server import ROOT
from tests.faults.sqlite.failing_disk import mounting

WRONG = 2


def listing() -> str:
    """The tables of workloads and faults."""
    lines = ["Workloads"]
    lines += [f"  {one.name:22}{one.what}{' (not on Redis)' * one.transactional}" for one in WORKLOADS]
    lines.append("Faults")
    for fault in FAULTS:
        lines.append(f"  {fault.name:22}{fault.what}")
        lines += [f"  {'':22}not on {engine}: {why}" for engine, why in fault.cannot.items()]
    return "\n".join(lines)


def stormed(engine: str, seed: int, **more: Any) -> dict[str, Any]:
    """One storm in a process of its own, whose mounts and children vanish with it."""
    order = json.dumps({"engine": engine, "seed": seed, **more})
    command = [*(mounting() or ()), sys.executable, "-m", "lab.storm", order]
    maker = results.Maker()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as storm:
        try:
            said = storm.communicate()[0]
        except BaseException:
            for pid in (storm.pid, *children_of(storm.pid)):  # `unshare` passes no signal on
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            storm.communicate()  # until it has ended what it started
            raise
    if storm.returncode:
        raise subprocess.CalledProcessError(storm.returncode, command)
    return maker.sign(json.loads(said.splitlines()[-1]))


def counted(faults: dict[str, int]) -> Iterator[str]:
    """How often there was what, and of what is several things each of them."""
    for count in dict.fromkeys(fault.count for fault in FAULTS if fault.count in faults):
        parts = [fault.name for fault in FAULTS if fault.count == count and fault.name in faults]
        listed = ", ".join(f"{faults[name]} {name}" for name in parts)
        yield f"{faults[count]} {count}" + (f" ({listed})" if len(parts) > 1 else "")


def shown(line: dict[str, Any]) -> str:
    """What one storm found, for people."""
    work, code = line["work"], f"{line['stoker']} ({line['revision']}, {line['tree']})"
    text = [
        f"{line['engine']}, {line['server']}, Python {line['python']}, stoker {code}, seed {line['seed']}",
        "  " + ", ".join(f"{name} {value}" for name, value in line["settings"].items()),
        "  " + ", ".join(counted(line["faults"])),
        "  " + ", ".join(f"{work.get(name, 0):,} {name}" for name in ("acked", "runs", "steps", "messages", "effects")),
        "  " + ", ".join(f"{n} {name}" for name, n in line["wrong"].items()),
    ]
    for after, times in line["recovery"].items():
        found = {int(number): n for number, n in times.items()}
        p50, p99, most = (quantile(found, share) for share in (0.5, 0.99, 1.0))
        what = f"{RECOVERED[after]} ({sum(found.values()):,} seen)"
        text.append(f"  {what}: p50 {p50:.2f} s, p99 {p99:.2f} s, at most {most:.2f} s")
    for word, complaints in line["complaints"].items():
        text += [f"  {word}: {complaint}" for complaint in complaints]
    return "\n".join(text)


@click.command()
@click.option("--engine", "engines", multiple=True, type=click.Choice(ENGINES), help="Only this one; repeatable.")
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="How long the faults go on, on each engine; to end what is open and to judge takes a minute or two more.",
)
@click.option(
    "--lull",
    type=click.FloatRange(min=0),
    default=LULL,
    show_default=True,
    help="Seconds between two faults, on average.",
)
@click.option("--seed", type=int, help="The seed of the faults; without it one is made and printed.")
@click.option(
    "--results",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=results.FILE,
    help="Append to this file; without it to lab/results.jsonl.",
)
@click.option("--keep", type=click.Path(exists=True, file_okay=False), help="Leave ledger and log in this folder.")
@click.option(
    "--bug",
    type=click.Choice(tuple(BUGS)),
    help="Plant a bug into the processes first, to see the judge find it (SQLite); nothing is appended.",
)
@click.option("--list", "lists", is_flag=True, help="Name workloads and faults, and end.")
@click.option("--report", is_flag=True, help="Write the tables of the documentation from the results, and end.")
def main(
    engines: tuple[str, ...],
    minutes: float,
    lull: float,
    seed: int | None,
    file: Path,
    keep: str | None,
    bug: str | None,
    *,
    lists: bool,
    report: bool,
) -> None:
    """Storm each engine: kill, freeze and cut off what works on it, then judge what is left.

    Exits with 2 when something is wrong.
    """
    if lists:
        click.echo(listing())
        return
    if report:
        doc_tables.main()
        return
    if bug and set(engines) - {"sqlite"}:
        raise click.UsageError("bugs are planted into storms on SQLite only: use --engine sqlite")
    if not file.parent.is_dir():
        raise click.UsageError(f"there is no folder {file.parent} for the results")
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    wrong = False
    for engine in engines or (("sqlite",) if bug else ENGINES):
        try:
            number = secrets.randbits(32) if seed is None else seed
            line = stormed(engine, number, minutes=minutes, lull=lull, keep=keep, bug=bug or "")
        except subprocess.CalledProcessError as error:
            click.echo(f"{engine}: the storm broke off, and the reason stands above: {error}", err=True)
            wrong = True
            continue
        click.echo(shown(line))
        wrong = wrong or any(line["wrong"].values())
        if not bug:
            results.append(line, file)
    if wrong:
        sys.exit(WRONG)


if __name__ == "__main__":
    main(prog_name="scripts/lab")
