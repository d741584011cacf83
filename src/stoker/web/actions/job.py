"""What a form does to one job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from stoker.admin.jobs import UNDONE
from stoker.model import ids
from stoker.model.errors import InvalidInput, NotFound
from stoker.model.job import FIRST, Job, Status
from stoker.model.time import moment
from stoker.web.actions.doing import Doing, Done, Question, answer, ask, come_from
from stoker.web.forms import Form, whole
from stoker.web.pages import job_edit, job_facts, job_payload
from stoker.web.pages.shared import check_queue
from stoker.web.problems import Problem
from stoker.web.view import Flash
from stoker.web.visit import Visit

CANCEL = Question(
    "Ask it to stop?",
    "Its worker is told to stop it. A handler that ignores this goes on.",
    "Ask it to stop",
    "Let it run",
)
TAKE_AWAY = Question(
    "Take the claim away?",
    "The job ends now. Its handler may still be running, and what it does from now on is not recorded.",
    "Take the claim away",
    "Leave it with its worker",
)
DELETE = Question("Delete this job?", "Its record and its history are gone for good.", "Delete the job", "Keep it")


@dataclass(frozen=True)
class JobForm:
    """A form about one job: the job as it was before, and the page to go back to."""

    visit: Visit
    form: Form
    before: Job
    back: str

    @property
    def id(self) -> str:
        return ids.text(self.before.id)

    @property
    def kind(self) -> str:
        return self.before.kind

    @property
    def path(self) -> str:
        return f"jobs/{self.id}"

    @property
    def sure(self) -> bool:
        return self.form.get("sure") == "yes"

    def undo(self, text: str, verb: str, **fields: str) -> Done:
        """What was done, with the form that reverts it and comes back here."""
        return Done(Flash(text, f"{self.path}/{verb}", (*fields.items(), ("next", self.back))))

    def asked(self, verb: str, question: Question) -> Response:
        return ask(self.visit, "jobs", f"{self.path}/{verb}", self.kind, self.back, question)


async def run(verb: str, visit: Visit) -> Response:
    """Do one thing to the job of the address."""
    form = await visit.board.form(visit)
    before = await job_facts.stored(visit)
    check_queue(visit, before.queue)
    back = come_from(visit, form.get("next"), f"jobs/{ids.text(before.id)}")
    return answer(visit, await VERBS[verb](JobForm(visit, form, before, back)), back)


async def _requeue(job: JobForm) -> Done:
    if not await job.visit.admin.jobs.requeue(job.id):
        return Done(Flash(f"{job.kind} waits or runs already. Nothing was changed."))
    return Done(Flash(f"Requeued {job.kind}. {await _follows(job)}"))


async def _retry(job: JobForm) -> Done:
    done = await job.visit.admin.jobs.retry(job.id)
    still = (await job.visit.admin.jobs.explain(done.created[0])).still if done.created else ""
    flash = Flash(f"Enqueued a copy of {job.kind}. The old job is kept as retried. {still}".strip())
    return Done(flash, job.visit.url(f"jobs/{done.created[0]}") if done.created else "")


async def _run_now(job: JobForm) -> Done:
    """Put this one first; what keeps it from starting all the same is said."""
    if not await job.visit.admin.jobs.run_now(job.id, first=True):
        return Done(Flash(f"{job.kind} runs already. Nothing was changed."))
    former = {"priority": str(job.before.priority), "at": moment(job.before.scheduled_at).isoformat()}
    text = f"{job.kind} is the first of {job.before.queue} now. {await _still(job)}".strip()
    return Done(Flash(text)) if job.before.priority == FIRST else job.undo(text, "edit", **former)


async def _still(job: JobForm) -> str:
    """What keeps the job from running all the same."""
    return (await job.visit.admin.jobs.explain(job.id)).still


async def _follows(job: JobForm) -> str:
    """When a job runs that was made ready."""
    return await _still(job) or "It runs as soon as a worker is free."


async def _cancel(job: JobForm) -> Done | Response:
    if job.before.status is Status.RUNNING and not job.sure:
        return job.asked("cancel", CANCEL)
    return await _end(job, force=False)


async def _force_cancel(job: JobForm) -> Done | Response:
    return await _end(job, force=True) if job.sure else job.asked("force-cancel", TAKE_AWAY)


async def _end(job: JobForm, *, force: bool) -> Done:
    done = await job.visit.admin.jobs.cancel(job.id, reason=job.form.get("reason") or None, force=force)
    if done.cancel_requested:
        return Done(Flash(f"{job.kind} is running and is asked to stop."))
    return job.undo(f"Canceled {job.kind}.", "restore")


async def _discard(job: JobForm) -> Done:
    await job.visit.admin.jobs.discard(job.id)
    return job.undo(f"Discarded {job.kind}. It is off the dead list and kept.", "restore")


async def _restore(job: JobForm) -> Done:
    return Done(Flash(await restored(job.visit, job.id, job.kind)))


async def _delete(job: JobForm) -> Done | Response:
    if not job.sure:
        return job.asked("delete", DELETE)
    if (await job.visit.admin.jobs.delete(job.id)).cancel_requested:
        return Done(Flash(f"{job.kind} is running and is asked to stop."))
    return Done(Flash(f"Deleted {job.kind}."), job.visit.url("jobs"))


async def _move(job: JobForm) -> Done:
    queue = job.form.get("queue")
    check_queue(job.visit, queue)
    await job.visit.admin.jobs.move(job.id, queue, create=job.form.get("create") == "yes")
    return job.undo(f"Moved {job.kind} to {queue}. {await _still(job)}".strip(), "move", queue=job.before.queue)


async def _prioritize(job: JobForm) -> Done:
    priority = whole("priority", job.form.get("priority"))
    await job.visit.admin.jobs.prioritize(job.id, priority)
    return job.undo(f"{job.kind} has priority {priority}.", "prioritize", priority=str(job.before.priority))


async def _edit(job: JobForm) -> Done | Response:
    try:
        return Done(await job_edit.save(job.visit, job.form, job.before))
    except InvalidInput as error:
        return await job_edit.edit_form(job.visit, str(error), job.form)


async def _edit_back(job: JobForm) -> Done:
    return Done(await job_edit.undo(job.visit, job.before))


async def _reveal(job: JobForm) -> Response:
    return await job_payload.reveal(job.visit, job.form, job.before)


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


VERBS: Final[dict[str, Doing[JobForm]]] = {
    "requeue": _requeue,
    "retry": _retry,
    "run-now": _run_now,
    "cancel": _cancel,
    "force-cancel": _force_cancel,
    "discard": _discard,
    "restore": _restore,
    "delete": _delete,
    "move": _move,
    "prioritize": _prioritize,
    "edit": _edit,
    "edit-back": _edit_back,
    "reveal": _reveal,
}
