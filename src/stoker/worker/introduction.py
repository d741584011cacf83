"""What a worker writes into the store about itself, beside its presence: which release it shows, and its origin."""

from __future__ import annotations

import time
from math import inf

import msgspec

from stoker.documents import readable
from stoker.engines.base import ORIGINS, RELEASES, Engine
from stoker.model import releases, run_origins
from stoker.model.control import Presence
from stoker.model.releases import Release
from stoker.model.run_origins import SEEN_EVERY, RunOrigin
from stoker.model.time import SECOND

_encode = msgspec.json.Encoder().encode


class Introduction:
    """Writes both when they are new to this worker: at its start, and under another id after a lost lease."""

    def __init__(self) -> None:
        self._release = ""
        self._origin = RunOrigin(0)
        self._seen_at = -inf

    async def show(self, engine: Engine, presence: Presence) -> None:
        """Write what is not written yet; a worker that lives long says once a day that it is there."""
        if presence.release != self._release:
            await _show_release(engine, presence.release)
            self._release = presence.release
        if presence.worker != self._origin.worker:
            self._origin, self._seen_at = await _show_origin(engine, presence), time.monotonic()
        elif time.monotonic() - self._seen_at > SEEN_EVERY / SECOND:
            self._origin, self._seen_at = await _seen(engine, self._origin), time.monotonic()


async def _show_release(engine: Engine, name: str) -> None:
    """Note when a release was shown first; of too many the store forgets the oldest."""
    first = _encode(Release(name, await engine.now()))
    if not await engine.documents.swap(RELEASES, name, None, first):
        return
    known = dict(await readable(engine, RELEASES, Release))
    for old in releases.outdated(known):
        await engine.documents.swap(RELEASES, old.name, known[old], None)


async def _show_origin(engine: Engine, presence: Presence) -> RunOrigin:
    """Store the origin of a worker under its number, and remove those that the store forgets.

    A number that another worker has tells nothing from then on: what it stood for would be wrong for one of them.
    """
    worker = presence.worker
    number, now = run_origins.number(worker), await engine.now()
    mine = RunOrigin(number, worker, presence.host, presence.pid, presence.release, now)
    stored = await engine.documents.swap(ORIGINS, str(number), None, _encode(mine))
    known = dict(await readable(engine, ORIGINS, RunOrigin))
    if not stored:
        for other, raw in known.items():
            if other.number == number and other.worker not in ("", worker):
                await engine.documents.swap(ORIGINS, str(number), raw, _encode(RunOrigin(number, seen=now)))
    for old in run_origins.outdated(known):
        await engine.documents.swap(ORIGINS, str(old.number), known[old], None)
    return mine


async def _seen(engine: Engine, before: RunOrigin) -> RunOrigin:
    after = msgspec.structs.replace(before, seen=await engine.now())
    await engine.documents.swap(ORIGINS, str(before.number), _encode(before), _encode(after))
    return after
