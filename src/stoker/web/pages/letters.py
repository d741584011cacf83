"""Letters by filter, and acting on all of them: see first how many, then an operation does it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from starlette.responses import Response

from stoker.admin.operations import OperationView
from stoker.engines.base import Feature
from stoker.model.errors import InvalidInput
from stoker.model.humanize import count
from stoker.model.outbox.letters import LetterStatus
from stoker.web import view
from stoker.web.forms import moment_of, whole
from stoker.web.hub import Reading
from stoker.web.pages import outbox, shared
from stoker.web.pages.operations import TYPED_ABOVE, check_typed, grown
from stoker.web.problems import Problem
from stoker.web.request import RequestContext

SHOWN = 50
FIELDS: Final = ("stream", "consumer", "type", "key")
"""What chooses letters, beside their status."""


Fields: TypeAlias = dict[str, Any]
"""A filter, without what is not set; every value is a text."""


class Verb(NamedTuple):
    """What is done to letters: in a title, what follows, and the way out."""

    label: str
    follows: str
    keep: str


VERBS: Final[dict[Literal["replay", "discard"], Verb]] = {
    "replay": Verb(
        "Replay",
        "Each is delivered again in the next turn of its consumer, and is a letter again if that fails.",
        "Leave them as they are",
    ),
    "discard": Verb(
        "Discard",
        "They are given up and never delivered; they stay listed as discarded.",
        "Keep them",
    ),
}


def chosen(values: Mapping[str, str]) -> Fields:
    """The fields of a filter that are set."""
    return {name: values[name] for name in FIELDS if values.get(name)}


async def show(visit: RequestContext) -> Response:
    """The letters of a filter, latest failure first."""
    hub = visit.board.hub
    reading = await hub.reading()
    fields = chosen(visit.request.query_params)
    status = visit.parameter("status", "pending")
    seen: outbox.Seen = await hub.wanted(outbox.wants(visit)[0])
    page = None
    if Feature.OUTBOX in visit.board.store.root().features:
        page = await visit.admin.outbox.letters(
            **fields,
            status=None if status == "all" else status,
            limit=SHOWN,
            before=visit.parameter("after") or None,
        )
    context = _common(visit, reading, "Letters") | {
        "letters": () if page is None else page.letters,
        "older": "" if page is None or page.next is None else _url(visit, fields, status=status, after=page.next),
        "chosen": fields,
        "status": status,
        "statuses": [*(one.value for one in LetterStatus), "all"],
        "stream_names": [one.name for one in seen.streams],
        "consumer_names": sorted({one.name for state in seen.streams for one in state.consumers}),
        "replays": status in {"pending", "all"},
        "discards": status in {"pending", "parked", "all"},
        "first": not visit.parameter("after"),
    }
    return view.page(visit, "letters.html", context)


def _url(visit: RequestContext, fields: Fields, **more: str) -> str:
    return visit.url("outbox/letters", **fields, **more)


def _common(visit: RequestContext, reading: Reading, title: str) -> dict[str, Any]:
    return view.common(visit, "outbox", title, shared.found(visit, reading)) | {
        "now": reading.census.at,
        "may": visit.may("operate") and visit.who.reaches_all,
        "live_url": "",
    }


async def preview(visit: RequestContext) -> Response:
    """What an action on all letters of a filter would do, counted."""
    return await _preview(visit, visit.parameter("do", "replay"), chosen(visit.request.query_params))


async def _preview(visit: RequestContext, wanted: str, fields: Fields, refused: Problem | None = None) -> Response:
    do, verb = _verb(wanted)
    found = await visit.admin.outbox.preview(do, **fields)
    can = found.count
    context = _common(visit, await visit.board.hub.reading(), f"{verb.label} {count(can, 'letter')}?") | {
        "do": do,
        "verb": verb,
        "chosen": fields,
        "rows": [(status.value, n) for status, n in found.counts.items()],
        "can": can,
        "counted_at": found.counted_at.isoformat(),
        "typed": can > TYPED_ABOVE,
        "back": _url(visit, fields),
        "others": [
            (name, one.label, visit.url("operations/letters/new", do=name, **fields)) for name, one in VERBS.items()
        ],
        "refused": "" if refused is None else refused.detail,
    }
    return view.page(visit, "letters-new.html", context, 200 if refused is None else refused.status)


def _verb(do: str) -> tuple[Literal["replay", "discard"], Verb]:
    for name, verb in VERBS.items():
        if name == do:
            return name, verb
    raise InvalidInput("do", do, f"must be one of {', '.join(VERBS)}")


async def start(visit: RequestContext) -> Response:
    """Do what was previewed, in the background."""
    form = await visit.board.form(visit)
    do, _ = _verb(form.get("do"))
    fields = chosen({name: form.get(name) for name in FIELDS})
    of = whole("of", form.get("of") or "0")
    try:
        if of > TYPED_ABOVE:
            check_typed(form, of, "letters")
        found, _ = await begin(visit, do, fields, of, moment_of("counted_at", form))
    except Problem as refused:
        if refused.code != "count":
            raise
        return await _preview(visit, do, fields, refused)
    return view.redirect(visit, visit.url(f"operations/{found.id}"))


async def begin(
    visit: RequestContext, do: Literal["replay", "discard"], fields: Fields, of: int, counted_at: datetime | None
) -> tuple[OperationView, int]:
    """Start an operation on the letters that were counted at a moment, unless they are more; returns their number."""
    shared.needs_everything(visit)
    left = (await visit.admin.outbox.preview(do, **fields, counted_at=counted_at)).count
    if left > of:
        now = await visit.admin.outbox.preview(do, **fields)
        why = f"{count(now.count, 'letter')} would be changed now, and {of:,} were counted before"
        raise grown(why, now.count, now.counted_at)
    begun = await visit.admin.operations.start_on_letters(do, **fields, counted_at=counted_at, total=left)
    visit.board.walking = [*visit.board.walking[-99:], visit.admin]
    visit.board.hub.forget()
    return begun, left
