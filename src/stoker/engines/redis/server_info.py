"""What each server that takes writes reports about itself.

INFO answers nearly everything, and every provider allows it. CONFIG GET adds the rest where it is allowed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stoker.engines.redis.connection import Connection
from stoker.model.errors import EngineError, EngineUnavailable

_CONFIG = ("appendfsync", "no-appendfsync-on-rewrite", "min-replicas-to-write", "save")


class ServerInfo(msgspec.Struct, frozen=True):
    """One server's own report. `config` is empty where CONFIG is not allowed."""

    name: str
    info: dict[str, str]
    config: dict[str, str] = {}

    @property
    def version(self) -> str:
        return self.info.get("valkey_version") or self.info.get("redis_version", "unknown")

    @property
    def product(self) -> str:
        return "Valkey" if self.info.get("server_name") == "valkey" else "Redis"

    @property
    def policy(self) -> str:
        return self.info.get("maxmemory_policy", "unknown")

    @property
    def aof(self) -> bool:
        return self.info.get("aof_enabled") == "1"

    @property
    def fsync(self) -> str:
        return self.config.get("appendfsync", "unknown")

    def number(self, name: str) -> int:
        found = self.info.get(name, "0")
        return int(found) if found.isdecimal() else 0


async def inspect(connection: Connection) -> list[ServerInfo]:
    """Ask every server that takes writes."""
    infos = {name: read_info(reply) for name, reply in (await connection.each_node("INFO")).items()}
    if any(info.get("cluster_enabled") == "1" for info in infos.values()):
        for name, reply in (await connection.each_node("CLUSTER", "INFO")).items():
            infos.setdefault(name, {}).update(read_info(reply))
    configs: dict[str, dict[str, str]] = {}
    for setting in _CONFIG:
        try:
            replies = await connection.each_node("CONFIG", "GET", setting)
        except EngineUnavailable:
            raise
        except EngineError:
            # Some providers forbid CONFIG; `describe` then reports these settings as unknown.
            break
        for name, reply in replies.items():
            configs.setdefault(name, {}).update(_config(reply))
    return [ServerInfo(name, info, configs.get(name, {})) for name, info in sorted(infos.items())]


def read_info(reply: Any) -> dict[str, str]:
    """The fields of an INFO reply, by name."""
    if isinstance(reply, dict):
        return {_text(name): _text(value) for name, value in reply.items()}
    lines = _text(reply).splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def _config(reply: Any) -> dict[str, str]:
    items = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {_text(name): _text(value) for name, value in items}


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
