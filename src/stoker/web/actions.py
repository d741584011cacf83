"""Actions: forms below the page they act on. Each answers with a page that says what was done and how to undo it."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from starlette.responses import Response

from stoker.admin import Bulk
from stoker.admin.jobs import UNDONE
from stoker.model import ids
from stoker.model.control import Queue, Tuning
from stoker.model.errors import InvalidInput, NotFound
from stoker.model.job import Status
from stoker.model.throttle import Rate
from stoker.model.time import HOUR, MINUTE, span
from stoker.model.words import count
from stoker.web import view
from stoker.web.board import Form
from stoker.web.pages import job as job_page
from stoker.web.pages import schedules as schedule_page
from stoker.web.pages.schedules import number as _number
from stoker.web.pages.shared import check_queue as check_queue  # noqa: PLC0414 - the API takes it from here
from stoker.web.problems import Problem
from stoker.web.tokens import local
from stoker.web.view import Flash
from stoker.web.visit import Visit

FRONT = -100
"""The priority of a job that was moved to the front."""


# --- one job --------------------------------------------------------------------------------------------------------


async def on_job(visit: Visit) -> Response:
    """Do one thing to one job."""
    verb = visit.request.path_params["verb"]
    if verb == "reveal":
        return await job_page.reveal(visit)
    form = await visit.board.form(visit)
    before = await job_page.stored(visit)
    check_queue(visit, before.queue)
    id_, admin = ids.text(before.id), visit.admin
    back = local(visit, form.get("next") or visit.url(f"jobs/{id_}"))
    path, asked = f"jobs/{id_}", form.get("sure") == "yes"
    if verb in SURE and not asked and (verb != "cancel" or before.status is Status.RUNNING):
        return confirm(visit, verb, f"{path}/{verb}", before.kind, back, *SURE[verb])
    flash: Flash
    if verb == "requeue":
        await admin.jobs.requeue(id_)
        flash = Flash(f"Requeued {before.kind}. It runs as soon as a worker is free.")
    elif verb == "retry":
        done = await admin.jobs.retry(id_)
        flash = Flash(f"Enqueued a copy of {before.kind}. The old job is kept as retried.")
        back = visit.url(f"jobs/{done.created[0]}") if done.created else back
    elif verb == "run-now":
        await admin.jobs.run_now(id_)
        flash = Flash(f"{before.kind} is due now.")
    elif verb in {"cancel", "force-cancel"}:
        done = await admin.jobs.cancel(id_, reason=form.get("reason") or None, force=verb == "force-cancel")
        if done.cancel_requested:
            flash = Flash(f"{before.kind} is running and is asked to stop.")
        else:
            flash = Flash(f"Canceled {before.kind}.", f"{path}/restore", (("next", back),))
    elif verb == "discard":
        await admin.jobs.discard(id_)
        undo = (("next", back),)
        flash = Flash(f"Discarded {before.kind}. It is off the dead list and kept.", f"{path}/restore", undo)
    elif verb == "restore":
        flash = Flash(await restored(visit, id_, before.kind))
    elif verb == "delete":
        done = await admin.jobs.delete(id_)
        stays = bool(done.cancel_requested)
        flash = Flash(f"{before.kind} is running and is asked to stop." if stays else f"Deleted {before.kind}.")
        back = back if stays else visit.url("jobs")
    elif verb == "move":
        await admin.jobs.move(id_, form.get("queue"))
        flash = Flash(
            f"Moved {before.kind} to {form.get('queue')}.", f"{path}/move", (("queue", before.queue), ("next", back))
        )
    elif verb == "edit":
        try:
            flash = await job_page.save(visit, form, before)
        except InvalidInput as error:
            return await job_page.edit_form(visit, str(error), form)
    elif verb == "prioritize":
        priority = _number("priority", form.get("priority") or str(FRONT))
        await admin.jobs.prioritize(id_, int(priority))
        reverse = (("priority", str(before.priority)), ("next", back))
        flash = Flash(f"{before.kind} has priority {priority:g}.", f"{path}/prioritize", reverse)
    else:
        raise Problem(404, "not_found", f"There is no action {verb[:40]}.")
    visit.board.hub.forget()
    return view.redirect(visit, back, flash)


async def restored(visit: Visit, id_: str, kind: str) -> str:
    """Undo the last cancel or discard of a job, as the audit log has it."""
    entries = await visit.admin.audit.list(3_600, target=f"job {id_}", limit=20)
    entry = next((one for one in entries if one.deed.action in UNDONE), None)
    if entry is None:
        raise NotFound("The audit log has nothing about this job that can be undone.")
    done = await visit.admin.jobs.restore(entry)
    if not done.changed:
        raise Problem(409, "changed", f"{kind} has changed since. Nothing was undone.")
    return f"{kind} is as it was before."


SURE: Final = {
    "cancel": (
        "Ask it to stop?",
        "Its worker is told to stop it. A handler that ignores this goes on.",
        "Ask it to stop",
        "Let it run",
    ),
    "force-cancel": (
        "Take the claim away?",
        "The job ends now. Its handler may still be running, and what it does from now on is not recorded.",
        "Take the claim away",
        "Leave it with its worker",
    ),
    "delete": ("Delete this job?", "Its record and its history are gone for good.", "Delete the job", "Keep it"),
}
"""What is asked before: title, consequence, the button that does it, the one that does not."""


def confirm(
    visit: Visit, verb: str, path: str, name: str, back: str, title: str, text: str, yes: str, no: str,
    fields: tuple[tuple[str, str], ...] = (),
) -> Response:  # fmt: skip
    """Say what follows, and ask."""
    context = view.common(visit, "jobs", title) | {
        "name": name,
        "text": text,
        "yes": yes,
        "no": no,
        "path": path,
        "back": back,
        "verb": verb,
        "fields": fields,
    }
    return view.page(visit, "confirm.html", context)


def told(verb: str, done: Bulk) -> str:
    """A tally in words."""
    past = {"requeue": "Requeued", "retry": "Copied", "cancel": "Canceled", "discard": "Discarded", "delete": "Deleted"}
    first = {"run-now": f"{count(done.changed, 'job')} made due"}.get(
        verb, f"{past.get(verb, 'Changed')} {count(done.changed, 'job')}"
    )
    parts = [first]
    if done.cancel_requested:
        parts.append(f"{done.cancel_requested:,} running and asked to stop")
    if done.blocked:
        parts.append(f"{done.blocked:,} left: their key is taken")
    if done.missing:
        parts.append(f"{done.missing:,} gone meanwhile")
    parts += [f"{n:,} left: {status.value}" for status, n in sorted(done.refused.items())]
    return "; ".join(parts) + "."


# --- queues ---------------------------------------------------------------------------------------------------------


async def on_queue(visit: Visit) -> Response:
    """Pause, resume, tune or reopen a queue."""
    name, verb = visit.request.path_params["name"], visit.request.path_params["verb"]
    form = await visit.board.form(visit)
    check_queue(visit, name)
    engine = await visit.board.store.engine()
    known = {queue.name: queue for queue in await engine.queues()}
    before = known.get(name, Queue(name=name))
    path = f"queues/{quote(name, safe='')}"
    back = local(visit, form.get("next") or visit.url(path))
    if verb == "pause":
        minutes = form.get("minutes")
        lasts = span(_number("minutes", minutes) * 60) if minutes else None
        reason = form.get("reason") or None
        await visit.admin.queues.tune(name, Tuning(paused=True, pause_for=lasts, reason=reason, by=visit.who.name))
        flash = Flash(f"Paused {name}. Running jobs go on.", f"{path}/resume", (("next", back),))
    elif verb == "resume":
        await visit.admin.queues.tune(name, Tuning(paused=False))
        reason = before.pause.reason if before.pause is not None else None
        flash = Flash(f"Resumed {name}.", f"{path}/pause", (("reason", reason or ""), ("next", back)))
    elif verb == "reopen":
        await visit.admin.queues.reopen(name)
        flash = Flash(f"Ended the cool-down of {name}.")
    elif verb == "tune":
        await visit.admin.queues.tune(name, _tuning(form, before))
        flash = Flash(f"Tuned {name}.", f"{path}/tune", _fields(before))
    else:
        raise Problem(404, "not_found", f"There is no action {verb[:40]} for a queue.")
    visit.board.hub.forget()
    return view.redirect(visit, back, flash)


def _tuning(form: Form, before: Queue) -> Tuning:
    if form.get("reset"):
        return Tuning(clear=frozenset({"workers", "rate", "keep_done", "keep_dead"}))
    clear: set[str] = set()
    given: dict[str, Any] = {}
    if workers := form.get("workers").strip():
        given["workers"] = int(_number("workers", workers))
    else:
        clear.add("workers")
    if n := form.get("rate_n").strip():
        given["rate"] = Rate(_number("rate", n), per=_number("rate", form.get("rate_per").strip() or "1"))
    else:
        clear.add("rate")
    for field in ("keep_done", "keep_dead"):
        if hours := form.get(field).strip():
            wanted = round(_number(field, hours) * HOUR)
            if abs(wanted - getattr(before, field)) > MINUTE:
                given[field] = wanted
    return Tuning(clear=frozenset(clear), **given)


def _fields(queue: Queue) -> tuple[tuple[str, str], ...]:
    """A form that brings back the settings of a queue."""
    rate = queue.rate
    return (
        ("workers", "" if queue.workers is None else str(queue.workers)),
        ("rate_n", "" if rate is None else f"{rate.n:g}"),
        ("rate_per", "" if rate is None else f"{rate.per:g}"),
        ("keep_done", f"{queue.keep_done / HOUR:g}"),
        ("keep_dead", f"{queue.keep_dead / HOUR:g}"),
    )


# --- schedules and limits -------------------------------------------------------------------------------------------


async def on_schedule(visit: Visit) -> Response:
    """Pause, resume, run, edit or reset a schedule."""
    name, verb = visit.request.path_params["name"], visit.request.path_params["verb"]
    form = await visit.board.form(visit)
    engine = await visit.board.store.engine()
    found = next((one for one in await engine.schedules() if one.name == name), None)
    if found is None:
        raise NotFound(f"There is no schedule {name}.")
    check_queue(visit, found.template.queue)
    handle = visit.admin.schedules
    path = f"schedules/{quote(name, safe='')}"
    back = local(visit, form.get("next") or visit.url(path))
    if verb == "pause":
        await handle.pause(name)
        flash = Flash(f"Paused {name}.", f"{path}/resume", (("next", back),))
    elif verb == "resume":
        await handle.resume(name)
        flash = Flash(f"Resumed {name}.", f"{path}/pause", (("next", back),))
    elif verb == "run-now":
        flash = Flash(f"Enqueued one job of {name}: {await handle.run_now(name)}.")
    elif verb == "edit":
        if form.get("preview"):
            return await schedule_page.page(visit, given=form)
        try:
            flash = await schedule_page.save(visit, form, found)
        except InvalidInput as error:
            return await schedule_page.page(visit, str(error), form)
    elif verb == "reset":
        await visit.board.jobs.schedule_handle(name).reset()
        flash = Flash(f"{name} follows the code again.")
    else:
        raise Problem(404, "not_found", f"There is no action {verb[:40]} for a schedule.")
    visit.board.hub.forget()
    return view.redirect(visit, back, flash)


async def on_limit(visit: Visit) -> Response:
    """Tune or drain a budget."""
    name, verb = visit.request.path_params["name"], visit.request.path_params["verb"]
    form = await visit.board.form(visit)
    if verb in {"set", "clear"}:
        return await _on_key_limit(visit, form, name, verb)
    if not visit.who.reaches_all:
        raise Problem(403, "queue", f"{visit.who.name} is limited to some queues. Nothing was changed.")
    engine = await visit.board.store.engine()
    before = next((one for one in await engine.budgets() if one.name == name), None)
    if before is None:
        raise NotFound(f"There is no budget {name}.")
    path = f"limits/{quote(name, safe='')}"
    if verb == "tune":
        rate = Rate(_number("n", form.get("n")), per=_number("per", form.get("per") or "1"))
        await visit.admin.limits.tune(name, rate)
        rate = before.bucket.rate
        flash = Flash(f"Tuned {name}.", f"{path}/tune", (("n", f"{rate.n:g}"), ("per", f"{rate.per:g}")))
    elif verb == "drain":
        if form.get("sure") != "yes":
            text = "All its tokens are taken away. They come back at its rate; jobs that need one wait until then."
            return confirm(
                visit,
                verb,
                f"{path}/drain",
                name,
                visit.url("limits"),
                "Drain this budget?",
                text,
                "Drain it",
                "Leave its tokens",
            )
        await visit.admin.limits.drain(name)
        flash = Flash(f"Drained {name}.")
    else:
        raise Problem(404, "not_found", f"There is no action {verb[:40]} for a budget.")
    return view.redirect(visit, visit.url("limits"), flash)


async def _on_key_limit(visit: Visit, form: Form, queue: str, verb: str) -> Response:
    """Let another number of each key of a limit run at once, or give it back to what jobs bring."""
    check_queue(visit, queue)
    limit, back = form.get("limit"), visit.url("limits", queue=queue)
    if verb == "clear":
        await visit.admin.limits.clear(queue, limit)
        flash = Flash(f"Limit {limit} of {queue} is again what its jobs bring.")
    else:
        n = int(_number("n", form.get("n")))
        await visit.admin.limits.set(queue, limit, n)
        undo = (("limit", limit),) if not form.get("before") else (("limit", limit), ("n", form.get("before")))
        path = f"limits/{quote(queue, safe='')}/{'set' if form.get('before') else 'clear'}"
        flash = Flash(f"Limit {limit} of {queue} lets {n:,} of each key run at once.", path, undo)
    visit.board.hub.forget()
    return view.redirect(visit, back, flash)


async def theme(visit: Visit) -> Response:
    """Remember light or dark in a cookie."""
    form = await visit.board.form(visit)
    chosen = form.get("theme")
    response = view.redirect(visit, local(visit, form.get("next")))
    if chosen in {"light", "dark"}:
        response.headers.append("set-cookie", visit.board.cookie(visit, view.THEME_COOKIE, chosen, age=31_536_000))
    return response
