"""pg-boss on Postgres; its code is in `pg-boss.cjs`."""

from __future__ import annotations

from benchmarks.peers.peer import Ask, Copy, Peer


class BossPeer(Peer):
    name = "pg-boss"
    environment = "pg-boss"
    store = "postgres"
    language = "node"
    default = "`work` with its defaults: one job per poll, a poll every 2 s"
    tuned = "batches of 1,000, LISTEN/NOTIFY, `burstWhenBatchFull`"
    bulk = "`insert` of 1,000"
    finished = "kept for 7 days"
    jobs = (3, 12_000)
    history = (Copy("pgboss.job", {"id": "gen_random_uuid()"}),)
    latency = "tuned"

    def left(self, ask: Ask) -> int:
        return ask.sql("SELECT count(*) FROM pgboss.job WHERE name = 'bench' AND state < 'completed'")


PEERS = (BossPeer(),)
