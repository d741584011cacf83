"""Measure Stoker beside other job systems: `scripts/bench peers`."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import click

from benchmarks.__main__ import terminated
from benchmarks.peers import report
from benchmarks.peers.environments import NotInstalled, environment
from benchmarks.peers.history import Pair
from benchmarks.peers.peer import Peer
from benchmarks.peers.places import Grounds
from benchmarks.peers.records import FILE, Records, revision
from benchmarks.peers.systems import everything
from benchmarks.peers.visits import Spoilt, Visit
from benchmarks.report import machine

STORES = ("sqlite", "redis", "postgres")

TAKES_PART: dict[str, Callable[[Peer], bool]] = {
    "enqueue": lambda _: True,
    "drain": lambda _: True,
    "latency": lambda _: True,
    "steps": lambda peer: peer.stepped > 0,
    "history": lambda peer: peer.keeps,
}


def chosen(names: Sequence[str], stores: Sequence[str]) -> list[Peer]:
    """The named systems, or all, on these stores; Stoker always, to be compared with."""
    known = everything()
    for name in names:
        if name not in {word for peer in known for word in (peer.environment, peer.key)}:
            listed = ", ".join(dict.fromkeys(peer.environment for peer in known))
            raise click.UsageError(f"there is no system {name!r}; there are {listed}")
    return [
        peer
        for peer in known
        if peer.store in (stores or STORES)
        and (not names or peer.environment == "stoker" or not {peer.environment, peer.key}.isdisjoint(names))
    ]


def hardware() -> str:
    """The machine, without what changes from minute to minute."""
    return machine().partition("; scratch")[0].replace(f", load {os.getloadavg()[0]:.1f}", "")


def ready(peers: Sequence[Peer], grounds: Grounds, records: Records, folder: Path) -> dict[str, Path]:
    """Install what is missing and make schemas; what fails is left out with its reason."""
    programs: dict[str, Path] = {}
    for peer in peers:
        try:
            program = environment(peer.environment)
            if peer.store == "postgres":
                place = SimpleNamespace(url=grounds.template(peer))
                Visit(peer, program, place, folder).prepare()  # type: ignore[arg-type]
        except (NotInstalled, Spoilt) as error:
            click.echo(f"{peer.key}: left out: {error}\n{getattr(error, 'log', '')}")
            records.leave_out(peer, str(error))
        else:
            programs[peer.key] = program
            records.describe(peer)
    return programs


def measure(group: str, peers: Sequence[Peer], rounds: int, grounds: Grounds, records: Records, folder: Path) -> None:
    """Every system once in each round; who goes first changes from round to round."""
    run = {"at": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", "revision": revision(), "machine": hardware()}
    load = round(os.getloadavg()[0], 1)
    programs = ready([peer for peer in peers if TAKES_PART[group](peer)], grounds, records, folder)
    there = [peer for peer in peers if peer.key in programs]
    with ExitStack() as ends:
        pairs = {}
        if group == "history":
            pairs = {peer.key: Pair(peer, programs[peer.key], grounds, folder, ends) for peer in there}
        spoilt: list[Peer] = []
        for number in range(rounds + 1):
            shift = number % max(1, len(there))
            last = number == rounds  # only for those who miss a round
            for peer in spoilt if last else [*there[shift:], *there[:shift]]:
                began = time.monotonic()
                try:
                    if group == "history":
                        figures = pairs[peer.key].turn(reverse=number % 2 > 0)
                    else:
                        with grounds.place(peer) as place:
                            figures = getattr(Visit(peer, programs[peer.key], place, folder), group)()
                except Spoilt as error:
                    click.echo(f"{peer.key}: {group}: {error}\n{error.log}")
                    records.spoil(peer, group, str(error))
                    if not last:
                        spoilt.append(peer)
                    continue
                records.add(peer, group, figures, run["at"])
                texts = ", ".join(f"{row} {figure:,.4g}" for row, figure in figures.items())
                click.echo(f"round {number + 1} {peer.key} ({time.monotonic() - began:.0f} s): {texts}")
            if there:
                records.data["runs"][f"{there[0].store}.{group}"] = {**run, "load": load, "servers": grounds.versions()}
            records.save()


@click.command()
@click.argument("names", nargs=-1, metavar="[SYSTEM]...")
@click.option("--store", "stores", multiple=True, type=click.Choice(STORES), help="Only this store; repeatable.")
@click.option(
    "--rows", "groups", multiple=True, type=click.Choice(tuple(TAKES_PART)), help="Only these rows; repeatable."
)
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Visits to each system.")
@click.option("--add", "adding", is_flag=True, help="Keep the rounds that the file has, and add to them.")
@click.option("--json", "file", default=FILE, type=click.Path(dir_okay=False, path_type=Path), help="The results file.")
@click.option("--report", "reporting", is_flag=True, help="Only write tables and charts from the results file.")
@click.option("--list", "listing", is_flag=True, help="Name the systems and end.")
def main(
    names: tuple[str, ...],
    stores: tuple[str, ...],
    groups: tuple[str, ...],
    *,
    rounds: int,
    adding: bool,
    file: Path,
    reporting: bool,
    listing: bool,
) -> None:
    """Measure Stoker and other job systems in turns on the same servers. SYSTEM: only those, and Stoker."""
    peers = chosen(names, stores)
    if listing:
        click.echo("\n".join(peer.key for peer in peers))
        return
    records = Records(file)
    signal.signal(signal.SIGTERM, terminated)
    if not reporting:
        for run in records.data["runs"].values():
            run.setdefault("machine", records.data["machine"])
        records.data["machine"] = hardware()
        for store in stores or STORES:
            for group in groups or TAKES_PART:
                some = [peer for peer in peers if peer.store == store]
                with tempfile.TemporaryDirectory(prefix="stoker-peers-") as name, Grounds(Path(name)) as grounds:
                    if not adding:
                        for peer in some:
                            if peer.key in records.systems:
                                records.forget(peer, group)
                    measure(group, some, rounds, grounds, records, Path(name))
    if file == FILE:
        report.write(records)


if __name__ == "__main__":
    main(prog_name="scripts/bench peers")
