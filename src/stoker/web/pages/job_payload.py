"""The payload and the result of a job, hidden until a visitor reveals them."""

from __future__ import annotations

import json

from starlette.responses import Response

from stoker.model import ids
from stoker.model.job import Job
from stoker.web import view
from stoker.web.forms import Form
from stoker.web.pages import job
from stoker.web.visit import Visit

SHOWN_BYTES = 64 * 1024


async def reveal(visit: Visit, form: Form, found: Job) -> Response:
    """Show the payload or the result, or send it as a file; the audit log names the visitor."""
    part = "result" if form.get("part") == "result" else "payload"
    raw = visible(visit, (found.result if part == "result" else found.payload) or b"")
    await visit.admin.audit.write("jobs.reveal", f"job {ids.text(found.id)}")
    if form.get("as") == "file":
        name = f"{ids.text(found.id)}-{part}.json"
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(raw, media_type="application/octet-stream", headers=headers)
    context = await job.load(visit)
    told = {"revealed": shown(raw), "revealed_part": part, "cut": max(len(raw) - SHOWN_BYTES, 0), "live_url": ""}
    return view.page(visit, "job.html", context | told)


def visible(visit: Visit, raw: bytes) -> bytes:
    """The bytes with secrets masked; as they are stored for the role admin."""
    return raw if visit.who.may("admin") else visit.board.redact.json(raw)


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
