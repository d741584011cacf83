"""Seal everything that is stored with the current key: an operation, page by page, which can be resumed."""

from __future__ import annotations

from typing import Final

from stoker.admin.context import OperatorContext
from stoker.engines.sealed.engine import SealedEngine, seal_of
from stoker.model.errors import InvalidInput
from stoker.model.kept import Part
from stoker.model.query import Query, Tally, read_cursor, write_cursor

PAGE = 200
JOBS, SCHEDULES = "jobs", "schedules"
PARTS: Final = (Part.GROUPS, JOBS, SCHEDULES, *(part for part in Part if part is not Part.GROUPS))
"""In the order of the walk. A group that closes makes jobs, so groups come before these."""


async def sealed_engine(context: OperatorContext) -> SealedEngine:
    """The engine of an app that seals; an app without keys is refused."""
    engine = seal_of(await context.engine())
    if engine is None:
        why = "has no seal=, so there is no key to seal with; name the app that has one, with -A"
        raise InvalidInput("the app", repr(context.app), why)
    return engine


async def total_of(engine: SealedEngine) -> int:
    """How many jobs, schedules and rows beside them a walk comes past."""
    jobs: int = sum((await engine.operator.census()).by_status().values())
    kept: int = sum([await engine.operator.count_kept(part) for part in Part])
    return jobs + kept + len(await engine.schedules.read())


class ResealWalk:
    """A walk over everything that is kept, part by part. `blocked` is what an earlier walk could not open.

    `cursor` is the place from which it goes on, such as `letters:[1,7,""]`; None at its beginning and its end.
    """

    def __init__(self, context: OperatorContext, cursor: str | None, blocked: int = 0) -> None:
        self._context = context
        self._blocked = blocked
        self.cursor = cursor
        self.ended = False

    async def step(self) -> Tally:
        """Seal one page anew; at the end the store names the current key alone, if nothing needs another."""
        engine = await sealed_engine(self._context)
        tally = Tally()
        while tally == Tally() and not self.ended:
            part, _, place = (self.cursor or f"{PARTS[0]}:").partition(":")
            tally, behind = await self._page(engine, part, place or None)
            left = PARTS[PARTS.index(part) + 1 :]
            self.ended = behind is None and not left
            self.cursor = f"{part}:{behind}" if behind is not None else f"{left[0]}:" if left else None
        self._blocked += tally.blocked
        if self.ended and not self._blocked:
            await engine.forget_keys()
        return tally

    async def _page(self, engine: SealedEngine, part: str, place: str | None) -> tuple[Tally, str | None]:
        if part == SCHEDULES:
            return await engine.schedules.reseal(), None
        if part == JOBS:
            after = None if place is None else read_cursor(place)
            tally, cursor = await engine.operator.reseal(Query(order="oldest", limit=PAGE, cursor=after))
            return tally, None if cursor is None else write_cursor(cursor)
        return await engine.operator.reseal_kept(Part(part), place, PAGE)
