"""What a visitor revealed of a job or a letter: shown in its page for a while, also when that is loaded again.

A form reveals a part, which the audit log notes. It leads to the page with a grant in the address, which holds for ten
minutes, for this visitor and in this browser: it is sealed with the secret of the browser's cookie, so that every
process of the dashboard knows it and a link that is passed on shows nothing.
"""

from __future__ import annotations

import json
from typing import Any, Final

from stoker.model.job import Job
from stoker.model.seal import sized_json
from stoker.model.time import MINUTE, SECOND, Instant, Span
from stoker.web.csrf import is_seal, seal
from stoker.web.pages import steps
from stoker.web.request import CSRF_COOKIE, RequestContext

SHOWN_BYTES = 64 * 1024

LASTS: Final[Span] = 10 * MINUTE
"""How long a revealed part is shown."""

PARTS: Final = ("payload", "result", "steps")
"""What is hidden of a job."""

BODY: Final = "body"
"""What is hidden of a letter."""


def give(visit: RequestContext, subject: str, part: str, now: Instant) -> str:
    """A grant for one part of one job or letter."""
    until = (now + LASTS) // SECOND
    return f"{part}.{until}.{seal(visit.csrf, _text(visit, subject, part, until))}"


def granted(visit: RequestContext, subject: str, now: Instant) -> str:
    """The part that the address grants; empty: none, or not any more."""
    part, _, rest = visit.parameter("reveal").partition(".")
    until, _, given = rest.partition(".")
    if part not in {*PARTS, BODY} or not until.isdecimal() or len(until) > 12 or int(until) * SECOND <= now:
        return ""
    return part if is_seal(visit.cookie(CSRF_COOKIE), _text(visit, subject, part, int(until)), given) else ""


def _text(visit: RequestContext, subject: str, part: str, until: int) -> str:
    return "\0".join((visit.who.name, subject, part, str(until)))


async def read(visit: RequestContext, job: Job, part: str) -> bytes:
    """A part of a job, as this visitor may see it."""
    raw = job.payload if part == "payload" else job.result or b""
    if part == "steps":
        [rows] = await (await visit.board.store.engine()).steps.get([job.id])
        raw = steps.values(rows)
    return visible(visit, raw)


async def told(visit: RequestContext, job: Job, part: str) -> dict[str, Any]:
    """What the page shows of a part."""
    raw = await read(visit, job, part)
    return {"revealed": shown(raw), "revealed_part": part, "cut": max(len(raw) - SHOWN_BYTES, 0)}


def visible(visit: RequestContext, raw: bytes) -> bytes:
    """The bytes with secrets masked; as they are stored for the role admin."""
    return sized_json(raw) if visit.who.may("admin") else visit.board.redact.json(raw)


def version(visit: RequestContext, raw: bytes) -> str:
    """What tells bytes from others in this browser alone, and nothing of what they are."""
    return seal(visit.csrf, raw.hex())


def shown(raw: bytes) -> str:
    """Bytes as people read them: indented only where that changes nothing but space, else as they are."""
    text = raw[:SHOWN_BYTES].decode(errors="replace")
    if len(raw) > SHOWN_BYTES:
        return text
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return text
    compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if compact.encode() == raw or json.dumps(value).encode() == raw:
        return json.dumps(value, ensure_ascii=False, indent=2)
    return text
