"""Actions on all letters of a filter: a walk page by page, each page one atomic step, latest failure first."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec

from stoker.admin.context import OperatorContext
from stoker.engines.base import outbox_of
from stoker.model.actions import Given
from stoker.model.errors import InvalidInput
from stoker.model.outbox.letters import (
    DiscardLetters,
    LetterAction,
    LetterFilter,
    LetterPlace,
    LetterStatus,
    Replay,
    ResolveLetters,
)
from stoker.model.query import Tally
from stoker.model.time import Instant
from stoker.outbox.letters import LetterTerms, place, read_filter

PAGE = 500
"""How many letters one step changes at most."""

OnLetters: TypeAlias = Literal["replay", "resolve", "discard"]
"""What is done to all letters of a filter."""

LETTER_ACTIONS: Final[dict[str, LetterAction]] = {
    "replay-letters": Replay(),
    "resolve-letters": ResolveLetters(),
    "discard-letters": DiscardLetters(),
}
"""Actions on letters, by the name under which an operation is stored."""

_OPEN: Final = (LetterStatus.PENDING, LetterStatus.PARKED)

CHANGED: Final[dict[OnLetters, tuple[LetterStatus, ...]]] = {
    "replay": (LetterStatus.PENDING,),
    "resolve": _OPEN,
    "discard": _OPEN,
}
"""The statuses of letters that a preview of an action counts."""

FIELDS: Final = ("stream", *LetterTerms.__annotations__)
"""What chooses letters."""


class LetterWalk:
    """One action over letters. Those that fail after it began are not touched, so none is replayed twice.

    `cursor` is the place from which it goes on; None at its beginning and its end.
    """

    def __init__(self, context: OperatorContext, action: str, given: Given, bound: Instant, cursor: str | None) -> None:
        self._context = context
        self._action = LETTER_ACTIONS[action]
        self._given = given
        self._bound = bound
        self.cursor = cursor
        self.ended = False

    async def step(self) -> Tally:
        """Change one page of letters."""
        streams = outbox_of(await self._context.engine())
        before = up_to(self._bound) if self.cursor is None else place(self.cursor)
        found = await streams.letters(chosen(self._given, before), self._action, by=self._context.signed())
        self.ended = found.n < PAGE
        self.cursor = None if self.ended else "~".join(map(str, found.letters[-1].place))
        return Tally(changed=found.n)


def up_to(bound: Instant) -> LetterPlace:
    """The place before all letters that failed up to a moment; what failed at it counts."""
    return LetterPlace(bound + 1, "", "", 0, 0)


def chosen(given: Given, before: LetterPlace | None = None) -> LetterFilter:
    """The letters of one step; an unknown field or a wrong value is refused."""
    if unknown := sorted(given.keys() - {*FIELDS}):
        raise InvalidInput("letters", unknown[0], f"are chosen by {', '.join(FIELDS)}")
    partition = given.get("partition")
    if partition is not None and not isinstance(partition, int):
        raise InvalidInput("partition", partition, "must be a whole number")
    terms: dict[str, Any] = {name: str(value) for name, value in given.items() if value is not None}
    if partition is not None:
        terms["partition"] = partition
    found = read_filter(terms.pop("stream", None), paged=True, status=None, limit=PAGE, **terms)
    return msgspec.structs.replace(found, before=before)


def as_text(given: Given) -> str:
    """The letters that are meant, as people read it; empty: all."""
    return " ".join(f"{name}:{given[name]}" for name in FIELDS if given.get(name) is not None)
