"""Describing the store and its guarantees, as read from the server.

Beside the settings that durability rests on, it names who keeps the server from cleaning up: the oldest snapshot that
is held, be it by a session, a replication slot or a prepared transaction. Our tables stay fast while one is held for
minutes; after hours every engine on that server suffers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.engines.base import Description
from stoker.engines.postgres.statements import sql
from stoker.engines.postgres.wakeup.listener import CANNOT_LISTEN
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.model.health.facts import Pin
from stoker.model.health.postgres import HELD_FOR, HELD_OVER, OLDEST, REMEDIES

if TYPE_CHECKING:
    from stoker.engines.postgres.store import Store

OLDEST_SERVER = OLDEST // 10_000

_SERVER = sql("describe_server")
_SIZES = sql("describe_sizes")
_PINS = sql("describe_pins")


async def describe(store: Store) -> Description:
    """The description of an open engine. Settings are read in a transaction like those that store jobs."""
    server, sizes, pins = await store.write(lambda _: _asked(), lane="admin")
    return _described(store, server, sizes, pins)


def _asked() -> Exchange[tuple[dict[str, str], list[Row], list[Pin]]]:
    server: dict[str, str] = dict((yield _SERVER, ()))
    sizes: list[Row] = yield _SIZES, ()
    pins = [Pin(*row) for row in (yield _PINS, ())]
    return server, sizes, pins


def _described(store: Store, server: dict[str, str], sizes: list[Row], pins: list[Pin]) -> Description:
    facts = {"where": store.options.where, "schema": store.options.schema, **server}
    facts["pooler"] = "transaction" if store.pooled else "none"
    facts |= {f"{table}_bytes": str(size) for table, size in sizes}
    facts["held_snapshot"] = pins[0].text() if pins else "none"
    return Description(
        engine="postgres",
        version=server["server_version"],
        durable=True,
        durability=_durability(server),
        facts=facts,
        size=sum(size for _, size in sizes),
        warnings=(*_warnings(server, pins), *_deafness(store)),
    )


def _deafness(store: Store) -> list[str]:
    return [CANNOT_LISTEN % store.options.where] if store.pooled and store.options.direct is None else []


def _durability(server: dict[str, str]) -> str:
    if server["fsync"] != "on":
        return "an acknowledged write survives the death of any process, not power loss (fsync=off)"
    level = server["synchronous_commit"]
    if level == "off":
        return (
            "an acknowledged write survives the death of a worker, not a crash of the server (synchronous_commit=off)"
        )
    standbys = server["synchronous_standby_names"]
    if standbys and level != "local":
        return (
            f"an acknowledged write survives power loss and the loss of the primary: it waits for {standbys} "
            f"(fsync=on, synchronous_commit={level})"
        )
    return f"an acknowledged write survives power loss of the primary (fsync=on, synchronous_commit={level})"


def _warnings(server: dict[str, str], pins: list[Pin]) -> list[str]:
    found = []
    if server["fsync"] != "on":
        found.append("fsync is off: power loss can destroy the whole database. Turn it on and restart the server")
    if server["full_page_writes"] != "on":
        found.append(
            "full_page_writes is off: power loss can tear pages. Turn it on unless the file system writes whole pages"
        )
    if server["synchronous_commit"] == "off":
        found.append(
            "synchronous_commit is off for this role or database: a crash of the server loses the last moment of what "
            "was acknowledged. ALTER ROLE ... SET synchronous_commit = on"
        )
    if server["recovery"] == "standby":
        found.append("this server is a standby and takes no writes. Connect to the primary")
    if int(server["server_version_num"]) < OLDEST_SERVER * 10_000:
        found.append(f"Postgres {server['server_version']} is not supported: {OLDEST_SERVER} or newer is needed")
    if server["sees_all_sessions"] == "no":
        found.append(
            "this role cannot see what other roles' sessions do, so an old snapshot may be held unnoticed. "
            "GRANT pg_read_all_stats to it"
        )
    found += [
        f"{pin.text()} keeps the server from removing what is deleted; tables grow until it ends. {REMEDIES[pin.what]}"
        for pin in pins
        if (pin.seconds or 0) >= HELD_FOR or (pin.seconds is None and pin.behind >= HELD_OVER)
    ]
    return found
