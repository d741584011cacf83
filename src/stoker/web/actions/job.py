"""What a form does to one job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from stoker.admin.context import knowing
from stoker.admin.jobs import UNDONE
from stoker.model import answer_form, ids
from stoker.model.access import Role
from stoker.model.actions import ACTIONS, Action, Button
from stoker.model.errors import InvalidInput, NotFound
from stoker.model.job import FIRST, Job, Status
from stoker.model.time import moment
from stoker.web.actions.result import ActionResult, Doing, act, answer, ask, come_from
from stoker.web.forms import Form, given_in
from stoker.web.pages import job_edit, job_facts
from stoker.web.pages.shared import check_queue
from stoker.web.problems import Problem
from stoker.web.request import RequestContext
from stoker.web.view import Flash

BUTTONS: Final = {button.verb or one.name: (one, button) for one in ACTIONS.values() for button in one.buttons}
"""What the table of actions offers for one job, by the last part of its address."""

REASON: Final = "It becomes the last error of the job, and the audit log keeps it."


@dataclass(frozen=True)
class JobForm:
    """A form about one job: the job as it was before, and the page to go back to."""

    visit: RequestContext
    form: Form
    before: Job
    back: str

    @property
    def id(self) -> str:
        return ids.text(self.before.id)

    @property
    def path(self) -> str:
        return f"jobs/{self.id}"


async def run(verb: str, visit: RequestContext) -> Response:
    """Do one thing to the job of the address."""
    form = await visit.board.form(visit)
    before = await job_facts.stored(visit)
    check_queue(visit, before.queue)
    back = come_from(visit, form.get("next"), f"jobs/{ids.text(before.id)}")
    job = JobForm(visit, form, before, back)
    done = await (OWN[verb](job) if verb in OWN else _act(job, verb, *BUTTONS[verb]))
    return answer(visit, done, back)


async def _act(job: JobForm, verb: str, action: Action, button: Button) -> ActionResult | Response:
    """Do an action of the table, after its question, and say what it did."""
    visit, before = job.visit, job.before
    if before.status in button.asks and button.question is not None and job.form.get("sure") != "yes":
        always = button.asks == frozenset(Status)
        takes_reason = any(one.name == "reason" for one in action.parameters)
        return ask(
            visit,
            "jobs",
            f"{job.path}/{verb}",
            before.kind,
            job.back,
            button.question,
            destroys=always,
            facts=await job_facts.briefly(visit, before),
            reason=REASON if takes_reason else "",
        )
    given = {**given_in(job.form, action), **button.given}
    done = await act(visit, action, job.id, given, knowing(visit.admin.jobs, before))
    if done.cancel_requested:
        return ActionResult(Flash(f"{before.kind} is running and is asked to stop."))
    words = {"kind": before.kind, "queue": before.queue, **given}
    if not done:
        return ActionResult(Flash(button.idle.format(**words)))
    after = done.created[0] if done.created else job.id
    if "{still}" in button.done or "{follows}" in button.done:
        still = (await visit.admin.jobs.explain(after)).still
        words |= {"still": still, "follows": still or "It runs as soon as a worker is free."}
    text = button.done.format(**words).strip()
    if action.destroys or done.created:
        return ActionResult(Flash(text), visit.url(f"jobs/{after}" if done.created else "jobs"))
    if not button.undo or ("priority" in button.former and before.priority == FIRST):
        return ActionResult(Flash(text))
    fields = ((name, _former(before)[name]) for name in button.former)
    return ActionResult(Flash(text, f"{job.path}/{button.undo}", (*fields, ("next", job.back))))


def _former(job: Job) -> dict[str, str]:
    """What a job had, as a form sends it."""
    return {"queue": job.queue, "priority": str(job.priority), "at": moment(job.scheduled_at).isoformat()}


async def _restore(job: JobForm) -> ActionResult:
    return ActionResult(Flash(await restored(job.visit, job.id, job.before.kind)))


async def _edit(job: JobForm) -> ActionResult | Response:
    try:
        return ActionResult(await job_edit.save(job.visit, job.form, job.before))
    except InvalidInput as error:
        return await job_edit.edit_form(job.visit, str(error), job.form, job.before)


async def _edit_back(job: JobForm) -> ActionResult:
    return ActionResult(await job_edit.undo(job.visit, job.before))


async def _reveal(job: JobForm) -> Response:
    return await job_edit.reveal(job.visit, job.form, job.before)


async def _signal(job: JobForm) -> ActionResult:
    """Answer a wait with what the fields of its form say."""
    name = job.form.get("name")
    admin = knowing(job.visit.admin.jobs, job.before)
    wait = next((one for one in await admin.steps(job.id) if one.name == name), None)
    value = None
    if wait is not None and wait.waits_for == "signal":
        given = {one.name: job.form.get(f"answer.{one.name}") for one in answer_form.fields(wait.schema)}
        value = answer_form.answer(wait.schema, given)
    if await admin.signal(job.id, name, value):
        return ActionResult(Flash(f"{job.before.kind} has its answer to {name}."))
    return ActionResult(Flash(f"{name} has its answer already, or {job.before.kind} has ended. Nothing was changed."))


async def restored(visit: RequestContext, id_: str, kind: str) -> str:
    """Undo the last cancel or discard of a job, as the audit log has it."""
    entries = await visit.admin.audit.list(3_600, target=f"job {id_}", limit=20)
    entry = next((one for one in entries if one.action in UNDONE), None)
    if entry is None:
        raise NotFound("The audit log has nothing about this job that can be undone.")
    done = await visit.admin.jobs.restore(entry)
    if not done.changed:
        raise Problem(409, "changed", f"{kind} has changed since. Nothing was undone.")
    return f"{kind} is as it was before."


OWN: Final[dict[str, Doing[JobForm]]] = {
    "restore": _restore,
    "edit": _edit,
    "edit-back": _edit_back,
    "reveal": _reveal,
    "signal": _signal,
}
"""What has a form or an answer of its own."""

VERBS: Final[dict[str, Role]] = {
    **{verb: one.role for verb, (one, _) in BUTTONS.items()},
    **{verb: ACTIONS[verb].role if verb in ACTIONS else "operate" for verb in OWN},
}
"""What a form can do to a job, and the role that it needs."""
