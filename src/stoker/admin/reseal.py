"""Seal everything that is stored with the current key: an operation, page by page, which can be resumed."""

from __future__ import annotations

from msgspec.structs import replace

from stoker.admin.context import OperatorContext
from stoker.engines.sealed.engine import SealedEngine, seal_of
from stoker.model.errors import InvalidInput
from stoker.model.query import Query, Tally, read_cursor, write_cursor

PAGE = 200


async def sealed_engine(context: OperatorContext) -> SealedEngine:
    """The engine of an app that seals; an app without keys is refused."""
    engine = seal_of(await context.engine())
    if engine is None:
        why = "has no seal=, so there is no key to seal with; name the app that has one, with -A"
        raise InvalidInput("the app", repr(context.app), why)
    return engine


class ResealWalk:
    """A walk over all jobs, oldest first, and then over the schedules.

    `cursor` is the place from which it goes on; None at its beginning and its end.
    """

    def __init__(self, context: OperatorContext, cursor: str | None) -> None:
        self._context = context
        self._blocked = 0
        self.cursor = cursor
        self.ended = False

    async def step(self) -> Tally:
        """Seal one page of jobs anew; after the last one the schedules."""
        engine = await sealed_engine(self._context)
        after = None if self.cursor is None else read_cursor(self.cursor)
        tally, cursor = await engine.operator.reseal(Query(order="oldest", limit=PAGE, cursor=after))
        self._blocked += tally.blocked
        self.cursor, self.ended = None if cursor is None else write_cursor(cursor), cursor is None
        if not self.ended:
            return tally
        more = await engine.schedules.reseal()
        if not self._blocked:
            await engine.forget_keys()
        return replace(tally, changed=tally.changed + more)
