"""A Redis Cluster on loopback ports: three masters, a replica each, and how clusters change under their clients."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import redis

from tests.services.handles import RedisServer, kept

SLOTS = 16_384
PATIENCE = 90.0


class Node:
    """One server of the cluster."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.port = server.port
        self.client = redis.Redis(port=server.port, decode_responses=True, socket_timeout=90)
        self.client.response_callbacks.clear()  # replies as Redis sends them
        self.id: str = self.ask("CLUSTER MYID")

    def ask(self, *words: str | int) -> Any:
        """One command; the first word may be two."""
        first, *rest = words
        return self.client.execute_command(*str(first).split(), *rest)  # type: ignore[no-untyped-call]

    def facts(self, *words: str) -> dict[str, str]:
        """The lines of INFO or CLUSTER INFO."""
        return dict(line.split(":", 1) for line in str(self.ask(*words)).splitlines() if ":" in line)

    @property
    def up(self) -> bool:
        return self.server.pid is not None

    @property
    def master(self) -> bool:
        return self.facts("INFO", "replication")["role"] == "master"

    @property
    def synced(self) -> bool:
        """Whether a replica has all its master had when it joined."""
        found = self.facts("INFO", "replication")
        return found["role"] == "slave" and found["master_link_status"] == "up"


class Cluster:
    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes

    @property
    def url(self) -> str:
        return f"redis+cluster://127.0.0.1:{self.nodes[0].port}/0"

    @property
    def masters(self) -> list[Node]:
        return [node for node in self._living() if node.master]

    def slot(self, key: str) -> int:
        return int(self.nodes[0].ask("CLUSTER KEYSLOT", key))

    def owner(self, slot: int) -> Node:
        """The master of a slot, as the cluster sees it."""
        for node in self._living():
            for first, last, (_, port, *_), *_ in node.ask("CLUSTER SLOTS"):
                if int(first) <= slot <= int(last):
                    return self.at(int(port))
        raise LookupError(f"slot {slot} has no master")

    def replica(self, master: Node) -> Node:
        """The replica that follows a master."""
        for node in self._living():
            if node.facts("INFO", "replication").get("master_port") == str(master.port):
                return node
        raise LookupError(f"no replica follows the master on port {master.port}")

    def at(self, port: int) -> Node:
        return next(node for node in self.nodes if node.port == port)

    def set_node_timeout(self, milliseconds: int) -> None:
        """After such a silence a node is taken for dead."""
        for node in self._living():
            node.ask("CONFIG SET", "cluster-node-timeout", milliseconds)

    def kill(self, master: Node) -> Node:
        """Kill -9 a master, and return its replica, which is not promoted yet: see `promoted`."""
        heir = self.replica(master)
        master.server.kill()
        return heir

    def promoted(self, heir: Node) -> None:
        """Wait until a replica is a master that the whole cluster knows, so that every slot is served again."""
        until(lambda: heir.master, "the replica is promoted")
        self.wait_whole()

    def revive(self, node: Node) -> None:
        """Start a killed node; it comes back as a replica, with everything its new master has."""
        node.server.start()
        until(lambda: node.synced, "the node follows its new master")
        self.wait_whole()

    def move(self, slot: int, target: Node) -> int:
        """Move a slot with its keys to another master, as an operator does on a live cluster; how many keys went."""
        source = self.owner(slot)
        target.ask("CLUSTER SETSLOT", slot, "IMPORTING", source.id)
        source.ask("CLUSTER SETSLOT", slot, "MIGRATING", target.id)
        moved = 0
        while keys := source.ask("CLUSTER GETKEYSINSLOT", slot, 10):
            source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 10_000, "KEYS", *keys)
            moved += len(keys)
        for node in (target, source, *self.masters):
            node.ask("CLUSTER SETSLOT", slot, "NODE", target.id)
        return moved

    def wait_whole(self) -> None:
        """Wait until all who live agree that every slot has a master."""
        until(lambda: all(self._whole(node) for node in self._living()), "the cluster is whole")

    def _whole(self, node: Node) -> bool:
        found = node.facts("CLUSTER INFO")
        return found["cluster_state"] == "ok" and found["cluster_slots_ok"] == str(SLOTS)

    def _living(self) -> list[Node]:
        return [node for node in self.nodes if node.up]


@contextlib.contextmanager
def assembled(masters: int, node_timeout: int, settings: dict[str, str]) -> Iterator[Cluster]:
    given = {
        "cluster-enabled": "yes",
        "cluster-node-timeout": str(node_timeout),
        "cluster-replica-validity-factor": "0",  # a replica is promoted however long it was cut off
        **settings,
    }
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(2 * masters) as pool:
        managers = [kept("redis", given) for _ in range(2 * masters)]
        started = [pool.submit(stack.enter_context, manager) for manager in managers]
        nodes = [Node(cast("RedisServer", each.result())) for each in started]
        for node in nodes:
            stack.callback(node.client.close)
        yield join(nodes, masters)


def join(nodes: list[Node], masters: int) -> Cluster:
    """Make a cluster of servers that do not know one another."""
    for number, node in enumerate(nodes):
        node.ask("CLUSTER SET-CONFIG-EPOCH", number + 1)
        if number < masters:
            node.ask("CLUSTER ADDSLOTS", *range(SLOTS * number // masters, SLOTS * (number + 1) // masters))
    for node in nodes:
        for other in nodes:
            if other is not node:
                node.ask("CLUSTER MEET", "127.0.0.1", other.port)
    until(lambda: all(known(node) == len(nodes) for node in nodes), "every node knows every other")
    for number, node in enumerate(nodes[masters:]):
        node.ask("CLUSTER REPLICATE", nodes[number % masters].id)
    cluster = Cluster(nodes)
    until(lambda: all(node.synced for node in nodes[masters:]), "the replicas have caught up")
    cluster.wait_whole()
    return cluster


def known(node: Node) -> int:
    """How many nodes it has shaken hands with, itself included."""
    lines = str(node.ask("CLUSTER NODES")).splitlines()
    return sum("handshake" not in line and "noaddr" not in line and " connected" in line for line in lines)


def until(condition: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(redis.ConnectionError, redis.TimeoutError, LookupError):
            if condition():
                return
        if time.monotonic() > give_up:
            raise AssertionError(f"not within {PATIENCE:g} s: {what}")
        time.sleep(0.02)
