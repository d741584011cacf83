"""BullMQ on Redis; its code is in `bullmq.cjs`."""

from __future__ import annotations

from benchmarks.peers.peer import Ask, Peer


class BullPeer(Peer):
    name = "BullMQ"
    environment = "bullmq"
    store = "redis"
    language = "node"
    default = "concurrency 1, `removeOnComplete`"
    tuned = "concurrency 100"
    bulk = "`addBulk` of 1,000"
    finished = "deleted (`removeOnComplete`)"
    jobs = (2_500, 8_000)

    def left(self, ask: Ask) -> int:
        return ask.size("bull:bench:wait", "bull:bench:active", "bull:bench:delayed")


PEERS = (BullPeer(),)
