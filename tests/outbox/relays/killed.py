"""An app whose relay dies between the publish and the advance: run by `stoker work` in a process of its own.

The environment says where the store and the target are; the first publish of the first process ends it by SIGKILL.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stoker import Stoker
from stoker.outbox import Message, Outbox, Pace, Relay, ToNats, ToRabbit, ToRedisStream

jobs = Stoker(os.environ["KILLED_STORE"])
outbox = Outbox[int](jobs, stream="orders", partitions=4)
DIED = Path(os.environ["KILLED_MARK"])


def target() -> Relay:
    url, name = os.environ["KILLED_TARGET"], os.environ["KILLED_NAME"]
    if url.startswith("nats:"):
        return ToNats(url, name)
    return ToRabbit(url, name) if url.startswith("amqp:") else ToRedisStream(url, name)


class Dying:
    """A relay that publishes, and the first time is killed before it reports that."""

    def __init__(self, inner: Relay) -> None:
        self._inner = inner

    async def open(self) -> None:
        await self._inner.open()

    async def publish(self, messages: Sequence[Message[Any]]) -> None:
        await self._inner.publish(messages)
        if not DIED.exists():
            DIED.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    async def close(self) -> None:
        await self._inner.close()


outbox.relay(Dying(target()), name="out", pace=Pace(batch=10, idle=0.05), batch=None)
