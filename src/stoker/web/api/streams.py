"""The outbox: streams with their consumers, and letters that wait for a decision."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, convert

from stoker.admin import Preview
from stoker.admin.letter_walk import OnLetters
from stoker.admin.outbox import ShownStream
from stoker.engines.base import Feature
from stoker.model.errors import NotFound
from stoker.model.outbox.letters import LetterStatus
from stoker.model.outbox.stream import LARGEST_MESSAGE, LONGEST_TYPE
from stoker.model.unique import LONGEST_KEY
from stoker.outbox.consumers import ConsumerState, StreamState
from stoker.outbox.letters import LetterState
from stoker.web.api import types as t
from stoker.web.api.endpoint import Noun, place
from stoker.web.api.operations import NewOperationRecord, begun
from stoker.web.pages import letters as pages
from stoker.web.pages.shared import needs_everything
from stoker.web.problems import Problem
from stoker.web.request import RequestContext

api = Noun("streams")

Key = Annotated[str, Meta(min_length=1, max_length=LONGEST_KEY)]
Type = Annotated[str, Meta(min_length=1, max_length=LONGEST_TYPE)]
Chosen = Annotated[list[t.Uuid], Meta(min_length=1, max_length=1_000)]


class ReleaseBody(t.Strict):
    """Which parked key."""

    key: Key


class SeekBody(t.Strict):
    """Where to: the oldest message that is kept, behind the newest, or a moment (`at`). One of the two is given."""

    to: Literal["beginning", "end"] | None = None
    at: Annotated[datetime, Meta(tz=True)] | None = None


class LettersChosen(t.Strict):
    """Which letters."""

    consumer: t.Name | None = None
    key: Key | None = None
    type: Type | None = None

    def fields(self) -> dict[str, Any]:
        """The filter, without what is not set."""
        found = {name: getattr(self, name, None) for name in pages.FIELDS}
        return {name: value for name, value in found.items() if value is not None}


class LettersQuery(LettersChosen):
    """Which letters."""

    status: LetterStatus | None = None
    limit: t.Limit = 50
    after: Annotated[str, Meta(max_length=400)] | None = None


class LettersBody(t.Strict):
    """Which letters: those of these ids, of one consumer or of all."""

    ids: Chosen
    consumer: t.Name | None = None


class RestoreBody(LettersBody, kw_only=True):
    """Which letters: those that were resolved or discarded at the moment `ended`, or those to be replayed."""

    ended: Annotated[datetime, Meta(tz=True)] | None = None


class LetterChosen(t.Strict):
    """Of which consumer."""

    consumer: t.Name | None = None


class ReplaceBody(LetterChosen, kw_only=True):
    """The new body, as the text of its JSON."""

    payload: Annotated[str, Meta(max_length=LARGEST_MESSAGE)]


class LettersPreview(LettersChosen, kw_only=True):
    """What would be done to which letters: those of all streams where none is named."""

    action: OnLetters
    stream: t.Name | None = None


class LettersOperation(LettersPreview, kw_only=True):
    """An action on the letters that a preview counted: `count` and `counted_at` are its answer.

    Letters that failed later are not touched. If more match, nothing is changed, and the refusal has a new count.
    """

    count: t.Count
    counted_at: t.Moment


class Streams(Struct, kw_only=True):
    """Every stream, by name. `offered`: this store can have streams."""

    streams: list[StreamState]
    offered: bool


class LetterList(Struct, kw_only=True):
    """Letters, latest failure first; `after` goes on behind them, null at the end."""

    letters: list[LetterState]
    after: str | None


class LetterRecord(LetterState, frozen=True, kw_only=True):
    """A letter with its headers; its body is revealed by itself."""

    headers: Mapping[str, str]
    raw: bool


class RevealedLetter(Struct, kw_only=True):
    """The text of a body; secrets are masked unless the role is admin."""

    text: str


class Replaced(Struct, kw_only=True):
    """The id of the message that was appended."""

    message: str


class Changed(Struct, kw_only=True):
    """How many were changed."""

    changed: int


@api.get("/streams")
async def listed(visit: RequestContext) -> Streams:
    """List streams."""
    if Feature.OUTBOX not in visit.board.store.root().features:
        return Streams(streams=[], offered=False)
    return Streams(streams=await visit.admin.outbox.list(), offered=True)


@api.get("/streams/{stream}")
async def read(visit: RequestContext) -> StreamState:
    """Read a stream."""
    return await _stream(visit).state()


@api.post("/streams/{stream}/consumers/{consumer}/pause")
async def pause(visit: RequestContext, given: t.NoBody) -> ConsumerState:  # noqa: ARG001 - nothing is said in it
    """Pause a consumer."""
    await _changed(visit).pause(place(visit, "consumer"))
    return await _after(visit)


@api.post("/streams/{stream}/consumers/{consumer}/resume")
async def resume(visit: RequestContext, given: t.NoBody) -> ConsumerState:  # noqa: ARG001 - nothing is said in it
    """Resume a consumer."""
    await _changed(visit).resume(place(visit, "consumer"))
    return await _after(visit)


@api.post("/streams/{stream}/consumers/{consumer}/release")
async def release(visit: RequestContext, given: ReleaseBody) -> ConsumerState:
    """Release a parked key."""
    await _changed(visit).release(given.key, consumer=place(visit, "consumer"))
    return await _after(visit)


@api.post("/streams/{stream}/consumers/{consumer}/seek")
async def seek(visit: RequestContext, given: SeekBody) -> ConsumerState:
    """Move a consumer to another place of its stream."""
    where = given.to or given.at
    if where is None or None not in (given.to, given.at):
        raise Problem(422, "invalid", "Give one of to and at. Nothing was changed.", field="to")
    await _changed(visit).seek(place(visit, "consumer"), where)
    return await _after(visit)


@api.delete("/streams/{stream}/consumers/{consumer}", role="admin")
async def drop(visit: RequestContext) -> t.Done:
    """Forget a consumer with its position and letters."""
    await _changed(visit).drop(place(visit, "consumer"))
    return t.Done()


@api.get("/streams/{stream}/letters")
async def letters(visit: RequestContext, given: LettersQuery) -> LetterList:
    """List the letters of a stream."""
    handle = _stream(visit)
    await handle.state()
    page = await handle.letters(**given.fields(), status=given.status, limit=given.limit, before=given.after)
    return LetterList(letters=convert(page.letters, list[LetterState], from_attributes=True), after=page.next)


@api.get("/preview/letters")
async def preview(visit: RequestContext, given: LettersPreview) -> Preview:
    """Count the letters that an operation on all of a filter would change."""
    _offered(visit)
    found = await visit.admin.outbox.preview(given.action, **given.fields())
    return Preview(count=found.count, complete=True, counted_at=found.counted_at)


@api.post("/operations/letters", status=202)
async def act_on_letters(visit: RequestContext, given: LettersOperation) -> NewOperationRecord:
    """Replay or discard all letters that a preview counted."""
    needs_everything(visit)
    _offered(visit)
    found, left = await pages.begin(visit, given.action, given.fields(), given.count, given.counted_at)
    return begun(found, left, complete=True)


@api.post("/streams/{stream}/letters/replay")
async def replay(visit: RequestContext, given: LettersBody) -> Changed:
    """Deliver letters again."""
    return Changed(changed=await _changed(visit).replay(given.ids, consumer=given.consumer))


@api.post("/streams/{stream}/letters/discard")
async def discard(visit: RequestContext, given: LettersBody) -> Changed:
    """Give letters up; they stay listed."""
    return Changed(changed=await _changed(visit).discard(given.ids, consumer=given.consumer))


@api.post("/streams/{stream}/letters/resolve")
async def resolve(visit: RequestContext, given: LettersBody) -> Changed:
    """Note that letters were dealt with in another way; they stay listed."""
    return Changed(changed=await _changed(visit).resolve(given.ids, consumer=given.consumer))


@api.post("/streams/{stream}/letters/restore")
async def restore(visit: RequestContext, given: RestoreBody) -> Changed:
    """Take back a replay, or what resolved or discarded letters at a moment."""
    return Changed(changed=await _changed(visit).restore(given.ids, ended=given.ended, consumer=given.consumer))


@api.get("/streams/{stream}/letters/{id}")
async def letter(visit: RequestContext, given: LetterChosen) -> LetterRecord:
    """Read a letter, without its body."""
    found = await _stream(visit).letter(place(visit, "id"), consumer=given.consumer)
    return convert(found, LetterRecord, from_attributes=True)


@api.post("/streams/{stream}/letters/{id}/reveal")
async def reveal_letter(visit: RequestContext, given: LetterChosen) -> RevealedLetter:
    """Show the body of a letter."""
    needs_everything(visit)
    body = await _stream(visit).reveal(place(visit, "id"), consumer=given.consumer)
    return RevealedLetter(text=body.decode(errors="replace"))


@api.post("/streams/{stream}/letters/{id}/replace")
async def replace_letter(visit: RequestContext, given: ReplaceBody) -> Replaced:
    """Append the message of a letter anew with another body, and resolve the letter."""
    handle = _changed(visit)
    new = await handle.replace(place(visit, "id"), given.payload.encode(), consumer=given.consumer)
    return Replaced(message=new)


def _offered(visit: RequestContext) -> None:
    if Feature.OUTBOX not in visit.board.store.root().features:
        raise NotFound("This store has no streams.")


def _stream(visit: RequestContext) -> ShownStream:
    _offered(visit)
    return visit.admin.outbox.stream(place(visit, "stream"))


def _changed(visit: RequestContext) -> ShownStream:
    needs_everything(visit)
    visit.board.hub.forget()
    return _stream(visit)


async def _after(visit: RequestContext) -> ConsumerState:
    state = await _stream(visit).state()
    found = next((one for one in state.consumers if one.name == place(visit, "consumer")), None)
    if found is None:
        raise Problem(409, "changed", "It was done, and the consumer was dropped meanwhile.")
    return found
