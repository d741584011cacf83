"""Tables and charts from the results file: `scripts/bench peers --report`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from benchmarks.children import ROOT
from benchmarks.peers import chart
from benchmarks.peers.peer import Peer
from benchmarks.peers.records import Figure, Records
from benchmarks.peers.systems import everything

STORES = {"sqlite": "SQLite", "redis": "Redis", "postgres": "Postgres"}
SPEED = {
    "one": "enqueue one, µs",
    "many": "enqueue many, jobs/s",
    "drain.default.1": "drain, 1 process, jobs/s",
    "drain.default.2": "2 processes",
    "drain.tuned.1": "tuned, 1 process",
    "drain.tuned.2": "tuned, 2 processes",
}
WAITS = {
    "pickup": "pickup alone, ms",
    "trickle": "pickup in a trickle, ms",
    "due": "late at a due time, ms",
    "cpu.default": "CPU per job, µs",
    "bytes.default": "written per job, bytes",
    "memory.default": "memory, MiB",
}
ENOUGH = 5
"""Rounds."""
MORE_IS_BETTER = ("many", "drain", "steps")
NAMES = SPEED | WAITS
CHARTS = {"peers-drain.svg": chart.drain, "peers-pickup.svg": chart.pickup}


def better(row: str, one: float, other: float) -> bool:
    """Does the first figure beat the second?"""
    return one > other if row.startswith(MORE_IS_BETTER) else one < other


def text(figure: float) -> str:
    """Three digits: more would pretend."""
    size = abs(figure)
    if size >= 100:
        digits = len(str(int(size))) - 3
        return f"{round(figure, -digits):,.0f}"
    return f"{figure:.1f}" if size >= 10 else f"{figure:.2f}"


def cell(figure: Figure | None) -> str:
    """The median, and the lowest and highest round; marked when there are too few of them."""
    if figure is None:
        return "–"
    mark = " †" if figure.rounds < ENOUGH else ""
    return f"{text(figure.middle)} ({text(figure.low)}–{text(figure.high)}){mark}"


def keys(records: Records, store: str) -> list[str]:
    """The systems on a store, Stoker first, the others by name."""
    found = [key for key, entry in records.systems.items() if entry["store"] == store and entry["rows"]]
    return sorted(found, key=lambda key: (not key.startswith("stoker."), records.systems[key]["name"].lower()))


def table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def figures(records: Records, store: str, columns: dict[str, str]) -> str:
    """One table of one store."""
    rows = [
        [records.systems[key]["name"], *(cell(records.figure(key, row)) for row in columns)]
        for key in keys(records, store)
    ]
    if not any(set(row[1:]) - {"–"} for row in rows):
        return f"Not measured yet: `scripts/bench peers --store {store}` does it."
    return table(["", *columns.values()], rows)


def both(records: Records, store: str) -> str:
    """What a store has: speed, then waits and costs."""
    tables = [figures(records, store, columns) for columns in (SPEED, WAITS)]
    return "\n\n".join(dict.fromkeys(tables))


def behind(records: Records, store: str) -> str:
    """Where another system is better than Stoker."""
    lines = []
    for row, name in NAMES.items():
        own = records.figure(f"stoker.{store}", row)
        if own is None:
            continue
        found = [(records.systems[key]["name"], records.figure(key, row)) for key in keys(records, store)[1:]]
        ahead = [(who, it.middle) for who, it in found if it is not None and better(row, it.middle, own.middle)]
        ahead.sort(key=lambda pair: pair[1], reverse=row.startswith(MORE_IS_BETTER))
        if ahead:
            lines.append([name, text(own.middle), ", ".join(f"{who} {text(it)}" for who, it in ahead)])
    missing = [name for row, name in NAMES.items() if records.figure(f"stoker.{store}", row) is None]
    note = f"\n\nNot measured on {STORES[store]} yet: {', '.join(missing)}." if missing else ""
    if not lines:
        return f"On {STORES[store]}: no row that was measured." + note
    return table([f"On {STORES[store]}", "Stoker", "ahead of it"], lines) + note


def settings(records: Records) -> str:
    """Versions and settings of every system."""
    rows: list[list[str]] = []
    for key, entry in sorted(records.systems.items(), key=lambda pair: pair[1]["name"].lower()):
        if any(row[0] == entry["name"] for row in rows):
            continue
        packages = " ".join(entry["packages"]) if key.partition(".")[0] != "stoker" else "this checkout"
        rows.append(
            [
                entry["name"],
                packages,
                entry["default"],
                entry["tuned"],
                entry["bulk"],
                entry["finished"],
                entry["latency"],
            ]
        )
    return table(["", "packages", "default", "tuned", "enqueue many", "a finished job is", "pickup measured"], rows)


def unmeasured(records: Records) -> list[str]:
    """The systems that have no row and were not left out."""
    known = {key for key, entry in records.systems.items() if entry["rows"]} | set(records.data["left_out"])
    return sorted({peer.key for peer in everything()} - known)


def strangers(records: Records) -> Iterator[str]:
    """Rows with rounds of another run than the last one of their store, in other minutes and maybe of other code."""
    for name, run in sorted(records.data["runs"].items()):
        store, _, group = name.partition(".")
        for key, entry in sorted(records.systems.items()):
            rows = [row for row in entry["rows"].values() if entry["store"] == store and row["group"] == group]
            others = {at for row in rows for at in row.get("runs", ())} - {run["at"]}
            if others:
                yield f"{key}, {group}: {', '.join(sorted(others))}"


def circumstances(records: Records) -> str:
    """The machine, the servers, when, which code, and what was left out."""
    runs = records.data["runs"].values()
    servers = {name: words for run in runs for name, words in run["servers"].items()}
    rounds = [len(row["rounds"]) for entry in records.systems.values() for row in entry["rows"].values()]
    machines: dict[str, list[str]] = {}
    for name, run in sorted(records.data["runs"].items()):
        machines.setdefault(run.get("machine", records.data["machine"]), []).append(name)
    lines = [
        *(
            f"- Machine: {one}" + (f" ({', '.join(names)})" if len(machines) > 1 else "")
            for one, names in machines.items()
        ),
        *(f"- {name} {words}" for name, words in sorted(servers.items())),
        f"- Rounds: {min(rounds, default=0)} to {max(rounds, default=0)} per row; † marks fewer than {ENOUGH}",
    ]
    lines += [
        f"- {name}: {run['at']}, Stoker at revision {run['revision']}, load {run['load']} before"
        for name, run in sorted(records.data["runs"].items())
    ]
    lines += [f"- Not in the same minutes: {words}" for words in strangers(records)]
    lines += [
        f"- Did not count: {key}, {group}: {why}"
        for key, entry in sorted(records.systems.items())
        for group, reasons in sorted(entry.get("spoilt", {}).items())
        for why in reasons
    ]
    left_out = records.data["left_out"]
    lines += [f"- Left out: {key}: {why}" for key, why in sorted(left_out.items())] or ["- Left out: none"]
    if waiting := unmeasured(records):
        lines.append(f"- Not measured yet: {', '.join(waiting)}")
    return "\n".join(lines)


def steps(records: Records) -> str:
    """Durable steps."""
    rows = [
        [
            f"{entry['name']} on {STORES[entry['store']]}",
            cell(records.figure(key, "steps")),
            cell(records.figure(key, "resume")),
        ]
        for key, entry in sorted(records.systems.items())
        if records.figure(key, "steps") is not None
    ]
    wanted = (peer for peer in everything() if peer.stepped)
    return table(["", "steps/s, 1 process", "resumes after its answer, ms"], rows) + gaps(records, "steps", wanted)


def history(records: Records) -> str:
    """Drains beside finished jobs."""
    rows = []
    for key, entry in sorted(records.systems.items()):
        none, million = records.figure(key, "history.none"), records.figure(key, "history.million")
        if none and million:
            share = f"{million.middle / none.middle:.0%}"
            rows.append([f"{entry['name']} on {STORES[entry['store']]}", cell(none), cell(million), share])
    wanted = (peer for peer in everything() if peer.keeps)
    heads = ["", "beside none, jobs/s", "beside a million, jobs/s", "share"]
    return table(heads, rows) + gaps(records, "history.million", wanted)


def gaps(records: Records, row: str, wanted: Iterable[Peer]) -> str:
    """A sentence that names the systems without this row; empty if all have it or were left out."""
    left_out = records.data["left_out"]
    missing = [peer for peer in wanted if records.figure(peer.key, row) is None and peer.key not in left_out]
    names = ", ".join(sorted(f"{peer.name} on {STORES[peer.store]}" for peer in missing))
    return f"\n\nNot measured yet: {names}." if names else ""


PARTS: dict[str, Callable[[], str]] = {
    "peers behind": lambda: "\n\n".join(behind(Records(), store) for store in STORES),
    **{f"peers {store}": partial(lambda store: both(Records(), store), store) for store in STORES},
    "peers steps": lambda: steps(Records()),
    "peers history": lambda: history(Records()),
    "peers settings": lambda: settings(Records()),
    "peers circumstances": lambda: circumstances(Records()),
}
"""The generated parts of pages, by their names."""


def charts(records: Records) -> dict[str, str]:
    """The charts, by the names of their files."""
    return {name: draw(records) for name, draw in CHARTS.items()}


def write(records: Records) -> None:
    """Bring pages and charts up to date."""
    from scripts import doc_tables

    for name, image in charts(records).items():
        (ROOT / "docs" / "images" / name).write_text(image, encoding="utf-8")
    doc_tables.main()
