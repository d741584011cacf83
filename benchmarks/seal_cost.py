"""What a sealed store costs: arguments and results of jobs encrypted, against a plain store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

from benchmarks.catalog import Benchmark
from benchmarks.group_cost import BATCH
from benchmarks.off_cost import lived
from benchmarks.rows import Row
from benchmarks.session import Session
from benchmarks.sqlite_cost import empty
from benchmarks.stats import FEWEST_ROUNDS, Meter, cost_row, in_turns
from stoker.engines.sealed.engine import sealed
from stoker.engines.sealed.seal import Seal
from stoker.engines.url import engine_from_url

RESULT = b'{"receipt":"0123456789","cents":990}'


def on_sqlite(session: Session) -> Iterator[Row]:
    """A job with arguments and a result on a sealed SQLite store, against a plain one."""
    jobs, seal = session.sized(3_000, 20_000), Seal({"bench": bytes(32)})
    with session.copies(empty(session), 2 * max(session.rounds, FEWEST_ROUNDS)) as paths:
        waiting = [f"sqlite:///{path}" for path in paths]

        def run(*, closed: bool) -> Meter:
            engine = engine_from_url(waiting.pop())
            return asyncio.run(lived(sealed(engine, seal) if closed else engine, jobs, result=RESULT))

        pairs = in_turns(session.rounds, partial(run, closed=True), partial(run, closed=False))
        yield cost_row("seal.sqlite", pairs, None, f"arguments and results, batches of {BATCH}, against a plain store")


BENCHMARKS = [Benchmark("seal.sqlite", ("sqlite",), on_sqlite)]
