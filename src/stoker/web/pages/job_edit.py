"""The forms of a job: to edit it, to say what an action on it needs, and to see its payload or result."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.responses import RedirectResponse, Response

from stoker import views
from stoker.admin.context import knowing
from stoker.model import ids
from stoker.model.actions import ACTIONS, Action, Button
from stoker.model.errors import InvalidInput, NotFound
from stoker.model.job import Job
from stoker.model.query import WAITING
from stoker.model.time import moment
from stoker.web import view
from stoker.web.board import Edited
from stoker.web.forms import Form, whole
from stoker.web.pages import shared
from stoker.web.pages.job_facts import stored
from stoker.web.pages.job_reveal import PARTS, SHOWN_BYTES, give, granted, read, shown, version, visible
from stoker.web.problems import Problem
from stoker.web.request import RequestContext
from stoker.web.view import Flash


async def edit_form(
    visit: RequestContext, mistake: str = "", given: Form | None = None, job: Job | None = None
) -> Response:
    """The form that changes priority, due time or payload of a job that waits or is dead.

    With what was typed where that was refused; `job` if it has been read.
    """
    reading = await visit.board.hub.reading()
    job = job or await stored(visit)
    shared.check_queue(visit, job.queue)
    _check_status(job, ACTIONS["edit"])
    typed = [(name, visit.parameter(name)) for name in ("priority", "at") if visit.parameter(name)]
    fields = Form(typed) if given is None else given
    record = views.job(job)
    revealed = granted(visit, record.id, reading.census.at) == "payload"
    seen = visible(visit, job.payload) if revealed else b""
    context = view.common(visit, "jobs", f"Edit {job.kind}", shared.found(visit, reading)) | {
        "j": record,
        "status": shared.shown_status(record, reading.census.at),
        "now": reading.census.at,
        "mistake": mistake,
        "timed": job.status in WAITING,
        "typed_priority": fields.get("priority", str(job.priority)),
        "typed_at": fields.get("at", f"{moment(job.scheduled_at):%Y-%m-%dT%H:%M:%S}"),
        "typed_payload": shown(seen) if given is None and len(seen) <= SHOWN_BYTES else fields.get("payload"),
        "payload_size": len(job.payload),
        "revealed": revealed,
        "too_long": len(seen) > SHOWN_BYTES,
        "payload_version": version(visit, job.payload),
        "path": f"jobs/{record.id}",
        "requeues": job.status in ACTIONS["requeue"].statuses,
        "grant": visit.parameter("reveal") if revealed else None,
        "back": visit.url(f"jobs/{record.id}"),
        "live_url": "",
    }
    return view.page(visit, "job-edit.html", context, 422 if mistake else 200)


async def save(visit: RequestContext, form: Form, before: Job) -> Flash:
    """Change what the form says differently; raises `InvalidInput` and changes nothing where it cannot be."""
    given: dict[str, Any] = {}
    if (text := form.get("priority").strip()) not in {"", str(before.priority)}:
        given["priority"] = whole("priority", text)
    shown_at = f"{moment(before.scheduled_at):%Y-%m-%dT%H:%M:%S}"
    if before.status in WAITING and (text := form.get("at", shown_at).strip()) not in {shown_at, shown_at[:-3]}:
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            raise InvalidInput("at", text, "must be a time such as 2026-11-16T14:00") from None
        given["at"] = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    if (payload := _payload(visit, form, before)) is not None:
        given["payload"] = payload
    requeues = form.get("then") == "requeue"
    if not given and not requeues:
        return Flash("Nothing was different. The job is as it was.")
    told = ""
    if given:
        await knowing(visit.admin.jobs, before).edit(ids.text(before.id), **given)
        names = {"priority": "priority", "at": "due time", "payload": "payload"}
        told = f"Changed the {' and '.join(names[name] for name in given)} of {before.kind}."
    if requeues:
        await visit.admin.jobs.requeue(ids.text(before.id))
        return Flash(f"{told} Requeued {before.kind}.".strip())
    if "payload" in given:  # the page's cookie must not carry it, so the dashboard remembers it for a while
        after = await stored(visit)  # what was masked and came back is stored as it was
        visit.board.remember(before.id, Edited(before, after.payload))
        return Flash(told, f"jobs/{ids.text(before.id)}/edit-back")
    former = (("priority", str(before.priority)), ("at", moment(before.scheduled_at).isoformat()))
    return Flash(told, f"jobs/{ids.text(before.id)}/edit", former)


def _payload(visit: RequestContext, form: Form, before: Job) -> bytes | None:
    """The payload that a form gives; None where it is empty, or as the page has shown it."""
    text = form.get("payload").replace("\r\n", "\n").strip()
    was = shown(visible(visit, before.payload)).replace("\r\n", "\n").strip()
    if not text or text == was:
        return None
    if form.get("version", version(visit, before.payload)) != version(visit, before.payload):
        raise Problem(409, "changed", f"The payload of {before.kind} was changed meanwhile. Nothing was changed.")
    if was.encode() == visible(visit, before.payload).strip():
        return text.encode()
    try:  # it was indented for reading only
        return msgspec.json.format(text.encode(), indent=-1)
    except msgspec.MsgspecError:
        return text.encode()


async def undo(visit: RequestContext, now: Job) -> Flash:
    """Give a job back what it had before its payload was edited, unless it has changed since."""
    edited = visit.board.edited.get(now.id)
    if edited is None:
        raise NotFound("The dashboard does not remember the payload from before. Nothing was changed.")
    if now.payload != edited.payload:
        raise Problem(409, "changed", f"{now.kind} has changed since. Nothing was undone.")
    before = edited.before
    given: dict[str, Any] = {"payload": visible(visit, before.payload), "priority": before.priority}
    if now.status in WAITING:
        given["at"] = moment(before.scheduled_at)
    await knowing(visit.admin.jobs, now).edit(ids.text(now.id), **given)
    del visit.board.edited[now.id]
    return Flash(f"{now.kind} is as it was before.")


async def parameters(action: Action, button: Button, visit: RequestContext) -> Response:
    """The form that asks what an action needs to know before it is done to a job."""
    assert button.question is not None, "an action with required parameters says what follows"
    reading = await visit.board.hub.reading()
    job = await stored(visit)
    shared.check_queue(visit, job.queue)
    _check_status(job, action)
    words = {"kind": job.kind, "queue": job.queue}
    title, text, yes, no = (one.format(**words) for one in button.question)
    context = view.common(visit, "jobs", title, shared.found(visit, reading)) | {
        "j": views.job(job),
        "action": action,
        "path": f"jobs/{ids.text(job.id)}/{action.name}",
        "text": text,
        "yes": yes,
        "no": no,
        "queue_names": [name for name in shared.queue_names(reading) if name != job.queue],
        "back": visit.url(f"jobs/{ids.text(job.id)}"),
        "live_url": "",
    }
    return view.page(visit, "job-act.html", context)


def _check_status(job: Job, action: Action) -> None:
    """Refuse a form whose action would be refused."""
    if job.status in action.statuses:
        return
    waits = ["waiting"] if action.statuses >= WAITING else []
    which = " and ".join([*waits, *sorted(action.statuses - WAITING if waits else action.statuses)])
    raise Problem(
        409, "wrong_status", f"{job.kind} is {job.status.value}: only {which} jobs are {action.past.lower()}."
    )


async def reveal(visit: RequestContext, form: Form, found: Job) -> Response:
    """Show the payload, the result or the values of steps, or send it as a file; the audit log names the visitor."""
    part = form.get("part") if form.get("part") in PARTS else "payload"
    await visit.admin.audit.write("jobs.reveal", f"job {ids.text(found.id)}")
    if form.get("as") == "file":
        raw = await read(visit, found, part)
        name = f"{ids.text(found.id)}-{part}.json"
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(raw, media_type="application/octet-stream", headers=headers)
    # The page has an address of its own: to reload it sends no form again, and shows the part for a while.
    grant = give(visit, ids.text(found.id), part, (await visit.board.hub.reading()).census.at)
    if form.get("to") == "edit":
        typed = {name: form.get(name) for name in ("priority", "at")}
        return RedirectResponse(visit.url(f"jobs/{ids.text(found.id)}/edit", reveal=grant, **typed), 303)
    return RedirectResponse(f"{visit.url(f'jobs/{ids.text(found.id)}', reveal=grant)}#{part}", 303)
