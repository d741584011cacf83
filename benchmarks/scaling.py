"""Writes `docs/explanation/scaling.md` and its chart from what `scripts/bench scale` has measured.

`python -m benchmarks.scaling rows.json` takes rows into `benchmarks/results/scale.json`, in place of those with their
names, with the machine and the revision they come from, and writes the page anew; without a file only the latter.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from benchmarks.simulation import Costs, Outcome, simulate

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "scale.json"
PAGE = ROOT / "docs" / "explanation" / "scaling.md"
CHART = ROOT / "docs" / "images" / "scaling.svg"
PART = re.compile(r"(<!-- measured: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)

ENGINES = {"sqlite": "SQLite", "postgres": "Postgres", "redis": "Redis"}
SWEEPS = {
    "processes": "Worker processes",
    "queues": "Queues",
    "backlog": "Jobs that wait",
    "payload": "Bytes of arguments",
}
ROUND_TRIP = 0.0005
"""Seconds between two hosts of one data center and back: assumed, not measured."""

WORKERS = (1, 2, 4, 8, 16, 32)
CORES = (2, 4, 8, 16)
DAY = 86_400
FREEZE = 200_000_000
"""Transaction ids after which Postgres freezes old rows by default (`autovacuum_freeze_max_age`)."""

Rows = dict[str, dict[str, Any]]


def merged(files: Iterable[Path]) -> int:
    """Take measured rows into the results; how many there were."""
    known: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"rows": {}}
    fresh: Rows = {}
    for file in files:
        measured = datetime.fromtimestamp(file.stat().st_mtime, UTC)
        source = {
            "revision": revision(measured),
            "date": measured.date().isoformat(),
            "machine": f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}",
        }
        for row in json.loads(file.read_text()):
            if row["name"].startswith("scale."):
                fresh[row["name"]] = {key: row[key] for key in ("unit", "value", "limit", "ratio")} | source
    known["rows"] = dict(sorted({**known["rows"], **fresh}.items()))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return len(fresh)


def revision(then: datetime) -> str:
    """The last commit of Stoker's own code at a time."""
    command = ["git", "log", "-1", "--format=%h", f"--before={then.isoformat()}", "--", "src"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def results() -> Rows:
    """What is measured so far, by the name of its row."""
    found: Rows = json.loads(RESULTS.read_text())["rows"]
    return found


# --- tables -----------------------------------------------------------------------------------------------------


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def sizes_of(rows: Rows, sweep: str) -> list[int]:
    """The sizes of a row of sizes that any engine was measured at."""
    found = {name.rpartition(".")[2] for name in rows if name.split(".")[2] == sweep}
    return sorted(int(size) for size in found if size.isdecimal())


def sweeps(rows: Rows) -> str:
    """Cost per job at each size, and how many times that of the smallest."""
    lines = []
    for sweep, label in SWEEPS.items():
        for size in sizes_of(rows, sweep):
            cells = []
            for engine in ENGINES:
                row = rows.get(f"scale.{engine}.{sweep}.{size}")
                cells.append("–" if row is None else f"{row['value']:.3g} µs ({row['ratio']:.2f}×)")
            lines.append([f"{label}: {size:,}", *cells])
    for size in sizes_of(rows, "sleepers"):
        found = [rows.get(f"scale.{engine}.sleepers.{size}") for engine in ENGINES]
        told = ["–" if row is None else f"{row['value']:.3g} ms a claim ({row['ratio']:.2f}×)" for row in found]
        lines.append([f"Durable jobs that wait: {size:,}", *told])
    return table(["Size", *ENGINES.values()], lines)


def per_job(rows: Rows) -> str:
    """What a job costs the server and the worker."""
    names = {
        "worker.drain": "CPU of the worker, µs",
        "server.drain": "CPU of the server, to claim and settle, µs",
        "server.enqueue": "CPU of the server, to enqueue by 1,000, µs",
        "server.log": "Write-ahead log, bytes",
        "server.commits": "Commits",
        "server.xids": "Transaction ids",
    }
    servers = ("postgres", "redis")
    lines = []
    for name, label in names.items():
        found = [rows.get(f"scale.{engine}.{name}") for engine in servers]
        lines.append([label, *("–" if row is None else f"{row['value']:.3g}" for row in found)])
    return table(["Per job", *(ENGINES[one] for one in servers)], lines)


def arithmetic(rows: Rows) -> str:
    """What a rate of jobs means for a Postgres server, and for a Redis."""

    def cost(name: str) -> float:
        return float(rows[f"scale.{name}"]["value"])

    postgres = (cost("postgres.server.drain") + cost("postgres.server.enqueue")) / 1e6
    redis = (cost("redis.server.drain") + cost("redis.server.enqueue")) / 1e6
    lines = []
    for rate in (100, 1_000, 5_000, 10_000, 20_000):
        xids = rate * cost("postgres.server.xids")
        lines.append(
            [
                f"{rate:,}",
                f"{rate * postgres:.2f}",
                f"{rate * cost('postgres.server.log') / 1e6:.2f} MB",
                f"{rate * cost('postgres.server.commits'):,.0f}",
                f"{FREEZE / (xids * DAY):,.1f} days" if xids else "–",
                f"{rate * redis:.0%}",
            ]
        )
    heads = [
        "Jobs a second",
        "Postgres: cores",
        "log a second",
        "commits a second",
        "until rows are frozen",
        "Redis: of its core",
    ]
    return table(heads, lines)


# --- more than one machine --------------------------------------------------------------------------------------


def costs(rows: Rows, engine: str) -> Costs:
    """The parameters of the simulation, all measured but the round trip."""

    def cost(name: str) -> float:
        return float(rows[f"scale.{engine}.{name}"]["value"])

    batch = 100 if engine == "redis" else max(1, round(1 / cost("server.commits")))
    sync = cost("server.sync") / 1e3 if engine == "postgres" else 0.0
    server = (cost("server.drain") + cost("server.enqueue")) / 1e6
    return Costs(cost("worker.drain") / 1e6, server, batch, sync, ROUND_TRIP)


def seen(rows: Rows, engine: str, workers: int) -> tuple[float, float]:
    """Jobs a second that were measured on one machine, and what the simulation says of it."""
    measured = 1e6 / rows[f"scale.{engine}.processes.{workers}"]["value"]
    given = costs(rows, engine)
    drain = float(rows[f"scale.{engine}.server.drain"]["value"]) / 1e6  # the jobs were there already
    alone = Costs(given.worker, drain, given.batch, given.sync, 0.0)
    return measured, simulate(alone, workers, os_cores(rows), shared=True).rate


def os_cores(rows: Rows) -> int:
    """The cores of the machine that was measured."""
    return int(next(iter(rows.values()))["machine"].split()[0])


def checked(rows: Rows) -> str:
    """The simulation beside what was seen on one machine."""
    lines, shares = [], []
    for workers in sizes_of(rows, "processes"):
        cells = []
        for engine in ("postgres", "redis"):
            measured, said = seen(rows, engine, workers)
            cells += [f"{measured:,.0f}", f"{said:,.0f}"]
            shares.append(measured / said)
        lines.append([f"{workers}", *cells])
    heads = ["Processes", "Postgres: measured", "simulated", "Redis: measured", "simulated"]
    return table(heads, lines) + f"\nWhat was measured is {min(shares):.0%} to {max(shares):.0%} of what it says.\n"


def limit(found: Outcome, cores: int) -> str:
    """Jobs a second, and what holds them back."""
    if found.server > 0.9:
        return f"{found.rate:,.0f} (server)"
    return f"{found.rate:,.0f} (disk)" if found.disk > 0.9 and cores else f"{found.rate:,.0f}"


def simulated(rows: Rows) -> str:
    """Jobs a second of many worker processes on hosts of their own."""
    postgres, redis = costs(rows, "postgres"), costs(rows, "redis")
    lines = []
    for workers in WORKERS:
        cells = [limit(simulate(postgres, workers, cores), cores) for cores in CORES]
        lines.append([f"{workers}", *cells, limit(simulate(redis, workers, 1), 1)])
    heads = ["Worker processes", *(f"Postgres, {cores} cores" for cores in CORES), "Redis"]
    return table(heads, lines)


def source(rows: Rows) -> str:
    """Where the figures are from; of several runs, what each has measured."""
    told: dict[str, set[str]] = {}
    for name, row in sorted(rows.items(), key=lambda pair: pair[1]["date"]):
        run = f"{row['machine']}; revision {row['revision']}, {row['date']}"
        told.setdefault(run, set()).add(".".join(name.split(".")[1:3]))
    listed = {run: f": {', '.join(sorted(names))}" if len(told) > 1 else "" for run, names in told.items()}
    return "".join(f"- {run}{names}\n" for run, names in listed.items())


# --- chart ------------------------------------------------------------------------------------------------------

WIDTH, HEIGHT, LEFT, TOP = 340, 220, 44, 34
COLORS = {"sqlite": "#3b82c4", "postgres": "#7a5cc0", "redis": "#c8553d"}
STYLE = """<style>
text { font: 12px system-ui, sans-serif; fill: #1f2328 } .axis { stroke: #8b949e; stroke-width: 1 }
.bar { stroke: #8b949e; stroke-dasharray: 4 4 } .small { font-size: 11px; fill: #57606a }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .small { fill: #9da7b1 } }
</style>"""


def chart(rows: Rows) -> str:
    """How many times the cost of the smallest size a job has, for each row of sizes."""
    panels = [_panel(rows, sweep, label, at) for at, (sweep, label) in enumerate(SWEEPS.items())]
    keys = "".join(
        f'<circle cx="{60 + n * 110}" cy="{2 * HEIGHT + 16}" r="5" fill="{COLORS[engine]}"/>'
        f'<text x="{72 + n * 110}" y="{2 * HEIGHT + 20}">{name}</text>'
        for n, (engine, name) in enumerate(ENGINES.items())
    )
    box = f"0 0 {2 * WIDTH} {2 * HEIGHT + 36}"
    drawn = "".join(
        ("<title>Cost of a job as processes, queues, backlog and payloads grow</title>", STYLE, *panels, keys)
    )
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" role="img">{drawn}</svg>\n'


def _panel(rows: Rows, sweep: str, label: str, at: int) -> str:
    sizes = sizes_of(rows, sweep)
    lines = {
        engine: [(size, rows[name]["ratio"]) for size in sizes if (name := f"scale.{engine}.{sweep}.{size}") in rows]
        for engine in ENGINES
    }
    top = max([1.5, *(ratio for points in lines.values() for _, ratio in points)])
    x0, y0 = (at % 2) * WIDTH + LEFT, (at // 2) * HEIGHT + TOP
    across, down = WIDTH - LEFT - 24, HEIGHT - TOP - 40

    def x(size: int) -> float:
        return x0 + across * sizes.index(size) / max(len(sizes) - 1, 1)

    def y(ratio: float) -> float:
        return float(y0 + down * (1 - ratio / top))

    parts = [
        f'<text x="{x0}" y="{y0 - 14}">{label}</text>',
        f'<path class="axis" fill="none" d="M{x0} {y0}V{y0 + down}H{x0 + across}"/>',
        f'<path class="bar" d="M{x0} {y(1.2):.1f}H{x0 + across}"/>',
        *(
            f'<text class="small" text-anchor="end" x="{x0 - 6}" y="{y(n) + 4:.1f}">{n:g}×</text>'
            for n in (1.0, round(top, 1))
        ),
        *(
            f'<text class="small" text-anchor="middle" x="{x(n):.1f}" y="{y0 + down + 16}">{short(n)}</text>'
            for n in sizes
        ),
    ]
    for engine, points in lines.items():
        dots = " ".join(f"{x(size):.1f},{y(ratio):.1f}" for size, ratio in points)
        parts.append(f'<polyline points="{dots}" fill="none" stroke="{COLORS[engine]}" stroke-width="2"/>')
    return "".join(parts)


def short(number: int) -> str:
    """A number that fits under an axis."""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if number >= size:
            return f"{number / size:g} {letter}"
    return str(number)


# --- the page ---------------------------------------------------------------------------------------------------

TABLES = {
    "sizes": sweeps,
    "per job": per_job,
    "arithmetic": arithmetic,
    "check": checked,
    "simulation": simulated,
    "source": source,
}


def page(text: str, rows: Rows) -> str:
    """A page with its tables from the results."""
    return PART.sub(lambda found: f"{found[1]}{TABLES[found[2]](rows)}{found[3]}", text)


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(files: tuple[Path, ...]) -> None:
    """Take rows of `scripts/bench scale --json FILE` in, and write the page about scaling and its chart.

    Rows replace those with their names; the others stay. Without FILES page and chart are written anew.
    """
    if files:
        click.echo(f"{merged(files)} rows taken into {RESULTS.relative_to(ROOT)}")
    rows = results()
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")
    CHART.write_text(chart(rows), encoding="utf-8")
    click.echo(f"written: {PAGE.relative_to(ROOT)}, {CHART.relative_to(ROOT)}")


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.scaling")
