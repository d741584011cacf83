"""PgQueuer on Postgres, with asyncpg."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from benchmarks.peers.peer import Ask, Copy, PythonPeer, ran, url


class PgQueuerPeer(PythonPeer):
    name = "PgQueuer"
    environment = "pgqueuer"
    store = "postgres"
    default = "`pgq run`: batches of 10, uvloop"
    tuned = "batches of 500"
    bulk = "`enqueue` with lists of 1,000"
    finished = "deleted, with a row in its log"
    jobs = (2_500, 6_000)
    history = (Copy("pgqueuer_log", {"id": "nextval(pg_get_serial_sequence('pgqueuer_log', 'id'))"}),)

    def prepare(self) -> None:
        async def install() -> None:
            await self.open()
            await self.queries.install()
            await self.close()

        asyncio.run(install())

    async def open(self) -> None:
        import asyncpg
        from pgqueuer.db import AsyncpgDriver
        from pgqueuer.queries import Queries

        self.link = await asyncpg.connect(url())
        self.queries = Queries(AsyncpgDriver(self.link))

    async def enqueue(self, number: int, delay: float | None = None) -> None:
        after = None if delay is None else timedelta(seconds=delay)
        await self.queries.enqueue("noop", b"%d" % number, execute_after=after)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        count = len(numbers)
        await self.queries.enqueue(["noop"] * count, [b"%d" % number for number in numbers], [0] * count)

    async def close(self) -> None:
        await self.link.close()

    def work(self, *, tuned: bool) -> None:
        import asyncpg
        import uvloop
        from pgqueuer import PgQueuer
        from pgqueuer.db import AsyncpgDriver
        from pgqueuer.models import Job

        async def run() -> None:
            queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(url())))

            async def noop(job: Job) -> None:
                ran(int(job.payload or b""))

            queuer.entrypoint("noop")(noop)
            await queuer.run(batch_size=500 if tuned else 10)

        uvloop.run(run())

    def left(self, ask: Ask) -> int:
        return ask.sql("SELECT count(*) FROM pgqueuer")


PEERS = (PgQueuerPeer(),)
