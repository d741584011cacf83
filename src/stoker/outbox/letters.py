"""Letters as users see them: messages that could not be delivered, and what is done about each.

A pending letter is delivered again by its consumer once it is marked (`replay`), or here and now by a process that has
the handler. `model.outbox.letters` says what may become of a letter.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypedDict, Unpack

import msgspec

from stoker.engines.base import Outbox as Streams
from stoker.executors.threads import Threads
from stoker.model import ids
from stoker.model.audit import By
from stoker.model.errors import (
    InvalidArgument,
    InvalidInput,
    InvalidOption,
    InvalidPayload,
    NotFound,
    StokerError,
    WrongState,
    shown,
)
from stoker.model.origin import trace_id
from stoker.model.outbox import letters as stored
from stoker.model.outbox.delivery import NOTHING_DONE
from stoker.model.outbox.letters import (
    LARGEST_PAGE,
    ClaimLetters,
    Clean,
    Count,
    DiscardLetters,
    GiveBack,
    LetterAction,
    LetterFilter,
    LetterPlace,
    LetterStatus,
    Replay,
    Resolve,
    ResolveLetters,
    RestoreLetters,
    message_of,
)
from stoker.model.outbox.stream import MessageId, entry
from stoker.model.seal import check_open, why_closed
from stoker.model.time import SECOND, Instant, Seconds, Span, moment, span
from stoker.outbox.batch import Batch
from stoker.outbox.calls import Caller
from stoker.outbox.handlers import Handler
from stoker.outbox.message import Message
from stoker.outbox.outcomes import reason_of
from stoker.settings import check_known


class LetterState(msgspec.Struct, frozen=True, kw_only=True):
    """A message that could not be delivered, and why, without what it carries.

    `attempts` counts deliveries. `due`: its consumer is to deliver it again. `ended`: when it was resolved or
    discarded. `trace_id` is that of its `traceparent`. `preview` is how its body begins, with secrets masked, for those
    who may reveal it.
    """

    id: str
    stream: str
    consumer: str
    partition: int
    number: int
    key: str
    type: str
    created: datetime
    reason: str
    attempts: int
    failed: datetime
    status: LetterStatus
    due: bool
    ended: datetime | None
    trace_id: str | None = None
    preview: str = ""


class Letter(LetterState, frozen=True, kw_only=True):
    """A full copy of a message that could not be delivered, and why. A listing goes on behind its `place`."""

    headers: Mapping[str, str]
    payload: bytes
    raw: bool
    place: str


class LetterPage(msgspec.Struct, frozen=True):
    """Letters, latest failure first; `next` goes into `before=` for the page after it, None: there is none."""

    letters: tuple[Letter, ...]
    next: str | None = None


def letter(found: stored.Letter) -> Letter:
    """A stored letter as users see it."""
    return Letter(
        id=ids.text(found.id),
        stream=found.stream,
        consumer=found.consumer,
        partition=found.partition,
        number=found.number,
        key=found.key,
        type=found.type,
        headers=found.headers,
        payload=found.payload,
        raw=found.raw,
        created=moment(found.created),
        reason=found.reason,
        attempts=found.attempts,
        failed=moment(found.failed),
        status=found.status,
        due=found.due,
        ended=None if found.ended is None else moment(found.ended),
        trace_id=trace_id(found.headers),
        place="~".join(map(str, found.place)),
    )


def place(text: str) -> LetterPlace:
    """Where a page ended, from its text."""
    try:
        failed, stream, consumer, partition, number = text.split("~")
        return LetterPlace(int(failed), stream, consumer, int(partition), int(number))
    except ValueError:
        raise InvalidArgument("before", text, "is not the place of a letter; take it from the page before") from None


class LetterTerms(TypedDict, total=False):
    """Which letters of a stream: those of a consumer, a key, a partition, a type."""

    consumer: str | None
    key: str | None
    partition: int | None
    type: str | None


class LetterQuery(LetterTerms, total=False):
    """The same by status: pending, unless another one or None for all is asked for."""

    status: LetterStatus | str | None


class LetterListing(LetterQuery, total=False):
    """A page of them: its size, and the `next` of the page before."""

    limit: int
    before: str | None


def read_filter(
    stream: str | None, ids_: Iterable[str] | None = None, /, *, paged: bool = False, **chosen: Unpack[LetterListing]
) -> LetterFilter:
    """A filter as users write it; only one that is `paged` has a limit."""
    check_known(chosen, (LetterListing if paged else LetterQuery).__annotations__, "the filter of letters")
    terms: dict[str, Any] = {**chosen}
    status, before = terms.pop("status", LetterStatus.PENDING), terms.pop("before", None)
    if status is not None and status not in [*LetterStatus]:
        raise InvalidOption("status", status, f"must be one of {', '.join(LetterStatus)}, or None for all")
    return LetterFilter(
        stream=stream,
        status=None if status is None else LetterStatus(status),
        ids=None if ids_ is None else tuple(ids.parse(one, "letter id") for one in ids_),
        before=None if before is None else place(before),
        **terms,
    )


async def page(streams: Streams, chosen: LetterFilter) -> LetterPage:
    """One page of letters."""
    found = tuple(map(letter, (await streams.letters(chosen)).letters))
    return LetterPage(found, found[-1].place if len(found) == chosen.limit else None)


async def count(streams: Streams, chosen: LetterFilter) -> int:
    """How many letters a filter means."""
    return (await streams.letters(chosen, Count())).n


async def change(streams: Streams, chosen: LetterFilter, action: LetterAction, by: By | None) -> int:
    """Change all letters that a filter means, in steps; returns how many were."""
    changed = 0
    while True:
        n = (await streams.letters(msgspec.structs.replace(chosen, limit=LARGEST_PAGE), action, by=by)).n
        changed += n
        if n < LARGEST_PAGE:
            return changed


async def mark(streams: Streams, chosen: LetterFilter, by: By | None = None) -> int:
    """Have consumers deliver pending letters again."""
    return await change(streams, chosen, Replay(), by)


async def discard(streams: Streams, chosen: LetterFilter, by: By | None = None) -> int:
    """Give letters up."""
    return await change(streams, chosen, DiscardLetters(), by)


async def resolve(streams: Streams, chosen: LetterFilter, by: By | None = None) -> int:
    """Note that letters were dealt with in another way."""
    return await change(streams, chosen, ResolveLetters(), by)


async def restore(streams: Streams, chosen: LetterFilter, ended: Instant | None, by: By | None = None) -> int:
    """Take a replay back, or what ended letters at an instant."""
    return await change(streams, chosen, RestoreLetters(ended), by)


REPLACES: Final = "replaces"
"""The header of a message that was appended for a letter: the id of the letter's message."""

REPLACE_WITHIN: Final = 30.0
"""Seconds in which a letter is replaced; after them it can be claimed again."""


def check_json(payload: bytes) -> None:
    """Refuse a body that is no JSON."""
    try:
        msgspec.json.decode(payload)
    except (msgspec.MsgspecError, ValueError) as error:
        raise InvalidPayload("payload", payload, f"must be JSON: {error}") from None


async def replace(streams: Streams, chosen: LetterFilter, payload: bytes, new: MessageId) -> stored.Letter:
    """Append the message of a letter anew, with another body and another id, and resolve the letter; returns it.

    The letter is claimed meanwhile, so that it is replaced once. A process that dies in between leaves it claimed for
    half a minute, perhaps with the new message appended.
    """
    holder = f"replace-{uuid.uuid4().hex}"
    found = (await streams.letters(chosen)).letters
    if not found:
        raise NotFound(f"no letter of stream {shown(chosen.stream)} has this id. Nothing was changed.")
    old = found[0]
    if old.raw:
        raise InvalidInput("payload", f"{len(payload)} bytes", "its message is no JSON, so its body cannot be edited")
    check_open(old.payload, "the letter")
    check_json(payload)
    [state] = await streams.streams([old.stream])
    headers = {**old.headers, REPLACES: ids.text(old.id)}
    made = entry(state.stream, old.key, payload, old.type, id=new, partition=old.partition, headers=headers)
    one = msgspec.structs.replace(chosen, consumer=old.consumer, status=None)
    claimed = (await streams.letters(one, ClaimLetters(holder, span(REPLACE_WITHIN, "span")))).letters
    if not claimed:
        waits = "to be replayed" if old.due else old.status.value
        raise WrongState(f"letter {ids.text(old.id)}", waits, "replace")
    await streams.append(state.stream, [made])
    if not (await streams.letters(one, Resolve(holder, claimed[0].token))).n:
        raise StokerError(
            f"message {ids.text(new)} was appended, but another operator changed letter {ids.text(old.id)} meanwhile. "
            "Look at it before you replay it."
        )
    return old


async def clean(streams: Streams, stream: str | None, older_than: Seconds, by: By | None = None) -> int:
    """Delete letters that were resolved or discarded so long ago."""
    return await change(streams, LetterFilter(stream, status=None), Clean(span(older_than, "older_than")), by)


# --- here and now ---------------------------------------------------------------------------------------------------


async def deliver_here(
    streams: Streams, chosen: LetterFilter, handlers: Mapping[str, Handler], deadline: Seconds
) -> int:
    """Deliver letters in this process, each under a claim of its own; returns how many were delivered.

    They come by partition and number. One that fails is pending again, with one attempt more and the new reason.
    """
    limit = span(deadline, "deadline")
    found = await _all(streams, chosen)
    _check_handlers(found, handlers)
    threads = Threads()
    callers = {name: Caller(handlers[name], threads) for name in {one.consumer for one in found}}
    delivered = 0
    try:
        for one in sorted(found, key=lambda one: (one.consumer, one.partition, one.number)):
            delivered += await _claimed(streams, one, handlers[one.consumer], callers[one.consumer], limit)
    finally:
        for caller in callers.values():
            await caller.close()
        threads.close()
    return delivered


async def _all(streams: Streams, chosen: LetterFilter) -> list[stored.Letter]:
    found: list[stored.Letter] = []
    chosen = msgspec.structs.replace(chosen, limit=LARGEST_PAGE)
    while True:
        one = (await streams.letters(chosen)).letters
        found += one
        if len(one) < chosen.limit:
            return found
        chosen = msgspec.structs.replace(chosen, before=one[-1].place)


def _check_handlers(found: Sequence[stored.Letter], handlers: Mapping[str, Handler]) -> None:
    for name in {one.consumer for one in found}:
        if name not in handlers:
            why = f"this process has no handler of that name, so it cannot deliver here (known: {', '.join(handlers)})"
            raise InvalidInput("consumer", name, why)
        if handlers[name].rules.mode == "transactional":
            why = "a transactional consumer delivers letters in its own turns only: replay them without here=True"
            raise InvalidInput("consumer", name, why)


async def _claimed(streams: Streams, one: stored.Letter, handler: Handler, caller: Caller, limit: Span) -> int:
    """Claim one letter and deliver it; returns 1 if that was stored."""
    holder = f"here-{uuid.uuid4().hex}"
    mine = LetterFilter(one.stream, one.consumer, None, partition=one.partition, ids=(one.id,))
    for claimed in (await streams.letters(mine, ClaimLetters(holder, limit))).letters:
        why = await _deliver(claimed, handler, caller, limit / SECOND)
        if why is None:
            return (await streams.letters(mine, Resolve(holder, claimed.token))).n
        await streams.letters(mine, GiveBack(holder, claimed.token, why))
    return 0


async def _deliver(claimed: stored.Letter, handler: Handler, caller: Caller, limit: float) -> str | None:
    """Call the handler with one letter; returns why it was not delivered."""
    if (why := why_closed(claimed.payload)) is not None:
        return f"the message cannot be read: {why}"
    end = time.monotonic() + limit
    only: Message[Any] = Message(message_of(claimed), claimed.stream, handler.read)
    batch = Batch[Any]([only], claimed.partition, claimed.attempts, lambda: end - time.monotonic())
    try:
        async with asyncio.timeout(limit):
            error = await caller.call(batch)
    except TimeoutError:
        return f"the handler did not finish within {limit:g} s"
    if error is not None:
        return reason_of(error)
    batch.finish()
    if batch.rejections:
        return batch.rejections[0].reason
    return None if batch.processed else NOTHING_DONE
