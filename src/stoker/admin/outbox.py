"""Streams for operators: what waits for each consumer, letters, and how to steer them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Unpack

import msgspec

from stoker.admin import letter_walk
from stoker.admin.audit import audited
from stoker.admin.bulk import bound_at
from stoker.admin.context import Noun, OperatorContext
from stoker.codec.error_text import one_line
from stoker.engines.base import outbox_of
from stoker.model.access import includes
from stoker.model.outbox.letters import LetterStatus
from stoker.model.redact import Redaction, with_secrets
from stoker.model.time import moment
from stoker.outbox.consumers import ConsumerState, StreamHandle, StreamState, states, streams_of
from stoker.outbox.letters import (
    Letter,
    LetterListing,
    LetterPage,
    LetterQuery,
    LetterTerms,
    check_json,
    count,
    page,
    read_filter,
)


class LetterPreview(msgspec.Struct, frozen=True):
    """How many letters an action would change, by status, and when they were counted.

    An operation that is given `counted_at` touches none that failed later.
    """

    counts: dict[LetterStatus, int]
    counted_at: datetime

    @property
    def count(self) -> int:
        """How many in all."""
        return sum(self.counts.values())


class OutboxAdmin(Noun):
    """Questions about streams; `stream(name)` has the actions."""

    async def list(self) -> list[StreamState]:
        """Every stream of the store, by name, with its consumers."""
        return [_masked(one, self._context.redact) for one in await states(self._context.app)]

    async def letters(self, *, stream: str | None = None, **chosen: Unpack[LetterListing]) -> LetterPage:
        """List letters of all streams or of one, latest failure first, by the filter of a stream's `letters`."""
        streams = await streams_of(self._context.app)
        return _shown(await page(streams, read_filter(stream, paged=True, **chosen)), self._context)

    async def count_letters(self, *, stream: str | None = None, **chosen: Unpack[LetterQuery]) -> int:
        """Count letters of all streams or of one, by the same filter."""
        return await count(await streams_of(self._context.app), read_filter(stream, **chosen))

    async def preview(
        self,
        action: letter_walk.OnLetters,
        *,
        stream: str | None = None,
        counted_at: datetime | None = None,
        **terms: Unpack[LetterTerms],
    ) -> LetterPreview:
        """Count the letters that an operation would change now, or of those at the moment of an earlier preview."""
        engine = await self._context.engine()
        streams, bound = outbox_of(engine), await bound_at(engine, counted_at)
        fields: dict[str, Any] = {"stream": stream, **terms}
        meant = letter_walk.chosen(fields, letter_walk.up_to(bound))
        counts = {
            status: await count(streams, msgspec.structs.replace(meant, status=status))
            for status in letter_walk.CHANGED[action]
        }
        return LetterPreview(counts, moment(bound))

    def stream(self, name: str) -> ShownStream:
        """A stream to look at and steer: `state`, `letters`, `replay`, `release`, `seek`, `pause`, `resume`, `drop`."""
        return ShownStream(self._context, name)


class ShownStream(StreamHandle):
    """A stream with secrets masked in what it shows."""

    def __init__(self, context: OperatorContext, name: str) -> None:
        super().__init__(context.app, name, by=context.signed())
        self._context = context

    async def state(self) -> StreamState:
        """The stream with its consumers: what waits for each, how old it is, and what failed."""
        return _masked(await super().state(), self._context.redact)

    async def letters(self, **chosen: Unpack[LetterListing]) -> LetterPage:
        """List letters, latest failure first."""
        return _shown(await super().letters(**chosen), self._context)

    async def letter(self, id: str, *, consumer: str | None = None) -> Letter:  # noqa: A002 - as callers say it
        """One letter by the id of its message. Raises `NotFound`."""
        return _letter(await super().letter(id, consumer=consumer), self._context)

    async def reveal(self, id: str, *, consumer: str | None = None) -> bytes:  # noqa: A002 - likewise
        """The body of a letter, with an entry in the audit log; secrets are masked below the role admin."""
        body = await self.revealed(id, consumer=consumer)
        await audited(self._context, "letters.reveal", f"letter {id} of {self.name}")
        return body

    async def revealed(self, id: str, *, consumer: str | None = None) -> bytes:  # noqa: A002 - likewise
        """The same body without an entry, for a page that shows again what its visitor has revealed."""
        found = await super().letter(id, consumer=consumer)
        sees_all = found.raw or self._context.sees_everything
        return found.payload if sees_all else self._context.redact.json(found.payload)

    async def replace(self, id: str, payload: bytes, *, consumer: str | None = None) -> str:  # noqa: A002 - likewise
        """Append the message of a pending letter anew, with this JSON as its body, and resolve the letter.

        Values that come back masked are kept as they are stored; below the role admin one that was changed or left out
        is refused.
        """
        before = await super().letter(id, consumer=consumer)
        check_json(payload)
        payload = with_secrets(before.payload, payload, self._context.redact, may_change=self._context.sees_everything)
        return await super().replace(id, payload, consumer=before.consumer)


LONGEST_PREVIEW, LOOKED_AT = 80, 1_000
"""Characters of a preview, and bytes of a body that are read for it."""


def _shown(found: LetterPage, context: OperatorContext) -> LetterPage:
    return LetterPage(tuple(_letter(one, context) for one in found.letters), found.next)


def _letter(one: Letter, context: OperatorContext) -> Letter:
    """A letter with its secrets masked."""
    return msgspec.structs.replace(
        one,
        payload=one.payload if one.raw else context.listed_payload(one.payload),
        headers=context.redact.values(one.headers),
        reason=context.redact.text(one.reason),
        preview=_preview(one, context.redact) if includes(context.role, "operate") and not context.queues else "",
    )


def _preview(one: Letter, redact: Redaction) -> str:
    """How a body begins, on one line."""
    if one.raw:
        return ""
    if len(one.payload) <= LOOKED_AT:
        return one_line(redact.json(one.payload).decode(errors="replace"), LONGEST_PREVIEW)
    return one_line(redact.text(one.payload[:LOOKED_AT].decode(errors="replace")), LONGEST_PREVIEW)


def _masked(state: StreamState, redact: Redaction) -> StreamState:
    consumers = tuple(_masked_consumer(one, redact) for one in state.consumers)
    return msgspec.structs.replace(state, consumers=consumers)


def _masked_consumer(consumer: ConsumerState, redact: Redaction) -> ConsumerState:
    partitions = tuple(
        one if one.last_error is None else msgspec.structs.replace(one, last_error=redact.text(one.last_error))
        for one in consumer.partitions
    )
    return msgspec.structs.replace(consumer, partitions=partitions)
