"""Drains beside a million finished jobs, of the systems that keep them.

A million jobs would take a slow system an hour. So one job is run, and its rows are copied in SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.peers.peer import Copy, Peer
from benchmarks.peers.places import Grounds, Place, PostgresPlace, SqlitePlace
from benchmarks.peers.visits import Rows, Visit

FINISHED = 1_000_000
COLUMNS = """
SELECT string_agg(quote_ident(column_name), ', ' ORDER BY ordinal_position)
FROM information_schema.columns
WHERE format('%I.%I', table_schema, table_name)::regclass = '{table}'::regclass AND is_generated = 'NEVER'
"""


def fill(peer: Peer, place: Place, jobs: int) -> None:
    """Add so many finished jobs to a store."""
    if isinstance(place, SqlitePlace):
        from benchmarks.stores import build

        build(place.file, done=jobs)
    else:
        assert isinstance(place, PostgresPlace)
        place.run("SET session_replication_role = replica")  # without the triggers of a new job
        for copy in peer.history:
            place.run(statement(copy, place.text(COLUMNS.format(table=copy.table)), jobs))
        place.run("RESET session_replication_role")
        place.settle_down()


def statement(copy: Copy, columns: str, jobs: int) -> str:
    """The INSERT that copies the rows of one finished job."""
    values = [copy.fresh.get(column, column) for column in columns.split(", ")]
    return (
        f"INSERT INTO {copy.table} ({columns}) SELECT {', '.join(values)} "
        f"FROM (SELECT * FROM {copy.table}) AS one, generate_series(1, {jobs}) AS number"
    )


class Pair:
    """The same system on a store without finished jobs and on one with a million."""

    def __init__(self, peer: Peer, program: Path, grounds: Grounds, folder: Path, ends: ExitStack) -> None:
        self.peer = peer
        self._visits: list[tuple[str, Visit, Callable[..., Any]]] = []
        for row, jobs in (("history.none", 0), ("history.million", FINISHED)):
            place = ends.enter_context(grounds.place(peer))
            if jobs and peer.store == "sqlite":
                fill(peer, place, jobs)
            visit = Visit(peer, program, place, folder)
            ask = ends.enter_context(visit.producer())
            visit.drain_once(ask, peer.latency, 1, 1)
            if jobs and peer.store == "postgres":
                fill(peer, place, jobs)
            self._visits.append((row, visit, ask))

    def turn(self, *, reverse: bool) -> Rows:
        """Drain both, in either order."""
        visits: Sequence[tuple[str, Visit, Callable[..., Any]]] = self._visits[:: -1 if reverse else 1]
        setting = self.peer.latency
        return {
            row: visit.drain_once(ask, setting, 1, self.peer.jobs[setting == "tuned"])[f"drain.{setting}.1"]
            for row, visit, ask in visits
        }
