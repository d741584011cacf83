"""Enqueue a job by a form, which is made from the signature of its task."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

import msgspec
from msgspec import Raw
from starlette.responses import Response

from stoker.admin.context import UNCHANGED
from stoker.codec.hints import named
from stoker.model.answer_form import WHOLE, fields, filled
from stoker.model.errors import InvalidInput, NotFound
from stoker.model.job import Stored
from stoker.task import Task
from stoker.web import view
from stoker.web.forms import number, whole
from stoker.web.pages import shared
from stoker.web.problems import Problem
from stoker.web.request import RequestContext
from stoker.web.view import Flash

OPTIONS: Final = ("queue", "delay", "at", "priority", "unique")
"""What may be given beside the arguments."""

ARGUMENT: Final = "argument."
"""How the names of fields begin that hold arguments: an option has the same name in another task."""


async def show(visit: RequestContext) -> Response:
    """The form of a task, or the tasks that there are."""
    kind, queue = visit.parameter("kind"), visit.parameter("queue")
    if kind:
        return await _form_page(visit, _task(visit, kind), {"queue": queue})
    app, reading = visit.board.jobs, await visit.board.hub.reading()
    _check_knows(visit)
    rows = [
        {"kind": name, "queue": own, "about": _about(task), "url": _url(visit, name, queue)}
        for name, task in sorted(app.tasks.items())
        if visit.who.reaches(own := app.queue_of(name) or "")
    ]
    context = view.common(visit, "jobs", "Enqueue a job", shared.found(visit, reading)) | {
        "rows": sorted(rows, key=lambda row: row["queue"] != queue),
        "queue": queue,
        "live_url": "",
    }
    return view.page(visit, "enqueue.html", context)


async def create(visit: RequestContext) -> Response:
    """Enqueue what was filled in; what is wrong stands beside its field, and nothing is stored then."""
    form = await visit.board.form(visit)
    task = _task(visit, form.get("kind"))
    schema, typed = task.signature.schema(), {name: form.get(name).strip() for name in OPTIONS}
    given = {one.name: form.get(f"{ARGUMENT}{one.name}") for one in fields(schema)}
    arguments, wrong = filled(schema, given)
    payload = msgspec.json.encode(arguments)
    wrong = wrong or {name or WHOLE: why for name, why in task.signature.mistakes(payload).items()}
    options = dict[str, Any]()
    for name, read in READ.items():
        try:
            if typed[name]:
                options[name] = read(name, typed[name])
        except InvalidInput as error:
            wrong[name] = error.why
    if gone := [name for name in form.names() if name.startswith(ARGUMENT) and name[len(ARGUMENT) :] not in given]:
        names = ", ".join(name.removeprefix(ARGUMENT) for name in gone)
        wrong[""] = f"The task takes no argument {names}: it has changed since this form was loaded."
    if wrong:
        return await _form_page(visit, task, typed, given, wrong)
    try:
        draft = visit.board.jobs.draft(task.name, Raw(payload), **options)
        shared.check_kind(visit, draft.kind, draft.queue)
        await shared.check_quotas(visit, draft.queue)
        stored = await visit.admin.jobs.enqueue(task.name, Raw(payload), create=False, **options)
    except InvalidInput as error:
        known = error.field if error.field in OPTIONS else ""
        return await _form_page(visit, task, typed, given, {known: error.why if known else str(error)})
    except NotFound as error:  # a queue that is not known: a typing error
        return await _form_page(visit, task, typed, given, {"queue": str(error).partition(UNCHANGED)[0]})
    visit.board.hub.forget()
    new = stored.stored is Stored.INSERTED
    said = f"Enqueued {task.name}." if new else "No job was added: an active one has this key. This is it."
    return view.redirect(visit, visit.url(f"jobs/{stored.id}"), Flash(said))


def link(visit: RequestContext, kind: str = "", queue: str = "") -> str:
    """The address of the form; empty where the visitor may not enqueue, or the dashboard knows no such task."""
    app = visit.board.jobs
    known = kind in app.tasks if kind else bool(app.tasks)
    own = queue or (app.queue_of(kind) if kind else None)
    may = visit.may("operate") and (own is None or visit.who.reaches(own))
    return _url(visit, kind, queue) if known and may else ""


async def _form_page(
    visit: RequestContext,
    task: Task[..., Any],
    typed: dict[str, str],
    given: dict[str, str] | None = None,
    wrong: dict[str, str] | None = None,
) -> Response:
    """The form of a task, with what was typed where that was refused."""
    reading, app, wrong = await visit.board.hub.reading(), visit.board.jobs, wrong or {}
    known = [
        one._replace(help=one.help or named(task.signature.hint_of(one.name)))
        for one in fields(task.signature.schema())
    ]
    options = {name: why for name, why in wrong.items() if name in OPTIONS}
    context = view.common(visit, "jobs", f"Enqueue {task.name}", shared.found(visit, reading)) | {
        "kind": task.name,
        "kind_url": visit.url(f"kinds/{quote(task.name, safe='')}"),
        "about": _about(task),
        "fields": known if task.signature.parameters.parameters else [],
        "typed": given,
        "options": dict.fromkeys(OPTIONS, "") | typed,
        "own_queue": app.queue_of(task.name) or "",
        "queue_names": shared.queue_names(reading),
        "wrong": wrong,
        "mistake": wrong.get("", ""),
        "open": bool(options or any(typed.values())),
        "live_url": "",
    }
    return view.page(visit, "enqueue-form.html", context, 422 if wrong else 200)


def _task(visit: RequestContext, kind: str) -> Task[..., Any]:
    _check_knows(visit)
    found = visit.board.jobs.find_task(kind)
    if found is None:
        raise Problem(404, "not_found", f"The app has no task {kind!r}. Nothing was stored.")
    return found


def _check_knows(visit: RequestContext) -> None:
    if not visit.board.jobs.tasks:
        why = "This dashboard knows the store alone and no task: start it with the app, as in stoker serve app:jobs."
        raise Problem(404, "not_found", why)


def _about(task: Task[..., Any]) -> str:
    """The first line of what the task says about itself."""
    return (inspect.getdoc(task.fn) or "").partition("\n")[0][:200]


def _url(visit: RequestContext, kind: str, queue: str) -> str:
    return visit.url("enqueue", kind=kind, queue=queue)


def _moment(name: str, text: str) -> datetime:
    """A moment as it is typed, in UTC without a zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(name, text, "must be a moment, as in 2026-11-16T14:00") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


READ: Final[dict[str, Any]] = {
    "queue": lambda _, text: text,
    "delay": number,
    "at": _moment,
    "priority": whole,
    "unique": lambda _, text: text,
}
"""How each option is read."""
