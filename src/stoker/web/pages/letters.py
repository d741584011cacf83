"""Letters by filter, and acting on all of them: see first how many, then an operation does it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote

from markupsafe import Markup
from starlette.responses import Response

from stoker.admin.letter_walk import OnLetters
from stoker.admin.operations import OperationView
from stoker.engines.base import Feature
from stoker.model.errors import InvalidInput, NotFound
from stoker.model.humanize import count
from stoker.model.outbox.letters import LetterStatus
from stoker.outbox.letters import REPLACES, Letter, LetterState
from stoker.web import view
from stoker.web.forms import moment_of, whole
from stoker.web.hub import Reading
from stoker.web.humanize import time
from stoker.web.pages import job_reveal, outbox, shared
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


VERBS: Final[dict[OnLetters, Verb]] = {
    "replay": Verb(
        "Replay",
        "Each is delivered again in the next turn of its consumer, and is a letter again if that fails.",
        "Leave them as they are",
    ),
    "resolve": Verb(
        "Resolve",
        "They were dealt with in another way and are never delivered; they stay listed as resolved.",
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
        "ends": status in {"pending", "parked", "all"},
        "first": not visit.parameter("after"),
    }
    return view.page(visit, "letters.html", context)


def path_of(letter: LetterState) -> str:
    """Where the page of a letter is, below the mount."""
    return f"outbox/letters/{quote(letter.stream, safe='')}/{quote(letter.consumer, safe='')}/{letter.id}"


async def one(visit: RequestContext) -> Response:
    """The letter of the address."""
    given = visit.request.path_params
    return await letter_page(visit, given["stream"], given["consumer"], given["id"])


async def letter_page(
    visit: RequestContext, stream: str, consumer: str, id_: str, body: bytes | None = None, mistake: str = ""
) -> Response:
    """A letter with its reason, headers and the other letters of its key; `body` where it is revealed."""
    if Feature.OUTBOX not in visit.board.store.root().features:
        raise NotFound("This store has no streams.")
    reading, handle = await visit.board.hub.reading(), visit.admin.outbox.stream(stream)
    try:
        found = await handle.letter(id_, consumer=consumer)
    except InvalidInput:
        raise NotFound("No letter has this id.") from None
    may_reveal = visit.may("operate") and visit.who.reaches_all
    if body is None and may_reveal and job_reveal.granted(visit, path_of(found), reading.census.at):
        body = await handle.revealed(id_, consumer=consumer)
    near = (await handle.letters(consumer=consumer, key=found.key, status=None, limit=SHOWN)).letters
    open_ = found.status in {LetterStatus.PENDING, LetterStatus.PARKED}
    context = _common(visit, reading, f"Letter of {stream}, {found.status.value}") | {
        "l": found,
        "facts": _facts(visit, found),
        "near": sorted(near, key=lambda one: one.number),
        "parked": any(one.status is LetterStatus.PARKED for one in near),
        "consumer_path": outbox.consumer_path(stream, consumer),
        "path": f"outbox/letters/{quote(stream, safe='')}",
        "fields": (("id", found.id), ("consumer", consumer)),
        "open": open_ and not found.due,
        "editable": found.status is LetterStatus.PENDING and not found.due and not found.raw,
        "revealed": None if body is None else job_reveal.shown(body),
        "mistake": mistake,
    }
    return view.page(visit, "letter.html", context, 422 if mistake else 200)


def _facts(visit: RequestContext, letter: Letter) -> list[tuple[str, str | Markup, str]]:
    """Name, text and link of what is known."""
    stream, replaces = letter.stream, letter.headers.get(REPLACES, "")
    found: list[tuple[str, str | Markup, str]] = [
        ("Stream", stream, visit.url("outbox")),
        ("Consumer", letter.consumer, visit.url(outbox.consumer_path(stream, letter.consumer))),
        ("Place", f"partition {letter.partition}, number {letter.number:,}", ""),
        ("Key", letter.key, _url(visit, {"stream": stream, "key": letter.key}, status="all")),
        ("Type", letter.type, _url(visit, {"stream": stream, "type": letter.type}, status="all")),
        ("Tries", f"{letter.attempts:,}", ""),
        ("Appended", time(letter.created), ""),
        ("Failed last", time(letter.failed), ""),
        ("Ended", "" if letter.ended is None else time(letter.ended), ""),
        ("Trace", letter.trace_id or "", ""),
        ("Replaces message", replaces, ""),
    ]
    return [(name, text, link) for name, text, link in found if text]


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


def _verb(do: str) -> tuple[OnLetters, Verb]:
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
    visit: RequestContext, do: OnLetters, fields: Fields, of: int, counted_at: datetime | None
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
