"""Graphile Worker on Postgres; its code is in `graphile-worker.cjs`."""

from __future__ import annotations

from benchmarks.peers.peer import Ask, Peer


class GraphilePeer(Peer):
    name = "Graphile Worker"
    environment = "graphile-worker"
    store = "postgres"
    language = "node"
    default = "`concurrentJobs: 1`"
    tuned = "`concurrentJobs: 96`, a local queue of 1,000, completions batched for 50 ms"
    bulk = "`addJobs` of 1,000"
    finished = "deleted"
    jobs = (1_000, 25_000)

    def left(self, ask: Ask) -> int:
        return ask.sql("SELECT count(*) FROM graphile_worker._private_jobs")


PEERS = (GraphilePeer(),)
