"""What a form does to a queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from starlette.responses import Response

from stoker.model.actions import Question
from stoker.model.control import Queue, Tuning
from stoker.model.throttle import Rate
from stoker.model.time import HOUR, MINUTE, SECOND, span
from stoker.views import Curve
from stoker.web.actions.result import ActionResult, Doing, answer, ask, come_from
from stoker.web.forms import Form, number, whole
from stoker.web.pages.shared import check_queue, settings
from stoker.web.request import RequestContext
from stoker.web.view import Flash

SHOWN: Final = frozenset({"workers", "rate", "keep_done", "keep_dead", "curve"})
"""The settings that the form has."""


@dataclass(frozen=True)
class QueueForm:
    """A form about one queue: its settings as they were before, and the page to go back to."""

    visit: RequestContext
    form: Form
    before: Queue
    back: str

    @property
    def name(self) -> str:
        return self.before.name

    @property
    def asks(self) -> bool:
        """Does it come from a page about one job, and was not asked yet?"""
        return self.form.get("asks") == "yes" and self.form.get("sure") != "yes"

    def undo(self, text: str, verb: str, *fields: tuple[str, str]) -> ActionResult:
        """What was done, with the form that reverts it and comes back here."""
        return ActionResult(Flash(text, f"queues/{quote(self.name, safe='')}/{verb}", (*fields, ("next", self.back))))


async def run(verb: str, visit: RequestContext) -> Response:
    """Do one thing to the queue of the address."""
    name = visit.request.path_params["name"]
    form = await visit.board.form(visit)
    check_queue(visit, name)
    engine = await visit.board.store.engine()
    before = next((one for one in await engine.control.queues() if one.name == name), Queue(name=name))
    back = come_from(visit, form.get("next"), f"queues/{quote(name, safe='')}")
    return answer(visit, await VERBS[verb](QueueForm(visit, form, before, back)), back)


async def _pause(queue: QueueForm) -> ActionResult:
    minutes = queue.form.get("minutes")
    lasts = span(number("minutes", minutes) * 60, "minutes") if minutes else None
    reason = queue.form.get("reason") or None
    tuning = Tuning(paused=True, pause_for=lasts, reason=reason, by=queue.visit.who.name)
    await queue.visit.admin.queues.tune(queue.name, tuning)
    return queue.undo(f"Paused {queue.name}. Running jobs go on.", "resume")


async def _resume(queue: QueueForm) -> ActionResult | Response:
    if queue.asks:
        return await _asked(queue, "resume", "Resume this queue?", "Resume it", "Leave it paused")
    await queue.visit.admin.queues.tune(queue.name, Tuning(paused=False))
    reason = queue.before.pause.reason if queue.before.pause is not None else None
    return queue.undo(f"Resumed {queue.name}.", "pause", ("reason", reason or ""))


async def _reopen(queue: QueueForm) -> ActionResult | Response:
    if queue.asks:
        return await _asked(queue, "reopen", "End the cool-down?", "End it", "Let it cool down")
    await queue.visit.admin.queues.reopen(queue.name)
    return ActionResult(Flash(f"Ended the cool-down of {queue.name}."))


async def _asked(queue: QueueForm, verb: str, title: str, yes: str, no: str) -> Response:
    """Ask before what was meant for one job reaches all of its queue, with the number of those that start."""
    engine = await queue.visit.board.store.engine()
    due = (await engine.operator.census()).ready(queue.name)
    start = "1 due job of it starts" if due == 1 else f"{due:,} due jobs of it start"
    rate = "" if queue.before.bucket is None else ", at its rate"
    question = Question(title, f"{start} as workers are free{rate}, not this one alone.", yes, no)
    path = f"queues/{quote(queue.name, safe='')}/{verb}"
    return ask(queue.visit, "queues", path, queue.name, queue.back, question)


async def _tune(queue: QueueForm) -> ActionResult:
    await queue.visit.admin.queues.tune(queue.name, _tuning(queue.form, queue.before))
    return queue.undo(f"Tuned {queue.name}.", "tune", *settings(queue.before))


def _tuning(form: Form, before: Queue) -> Tuning:
    if reset := form.get("reset"):
        return Tuning(clear=frozenset(SHOWN if reset == "all" else {reset}))
    clear: set[str] = set()
    given: dict[str, Any] = {}
    if workers := form.get("workers").strip():
        given["workers"] = whole("workers", workers)
    else:
        clear.add("workers")
    if n := form.get("rate_n").strip():
        given["rate"] = Rate(number("rate", n), per=number("rate", form.get("rate_per").strip() or "1"))
    else:
        clear.add("rate")
    waits = {end: form.get(f"curve_{end}").strip() for end in ("base", "max")}
    if any(waits.values()):
        given["curve"] = Curve(**{end: number("curve", text) for end, text in waits.items() if text}).stored()
    else:
        clear.add("curve")
    for field in ("keep_done", "keep_dead"):
        if hours := form.get(field).strip():
            wanted = span(number(field, hours) * HOUR / SECOND, field)
            if abs(wanted - getattr(before, field)) > MINUTE:
                given[field] = wanted
    return Tuning(clear=frozenset(clear), **given)


VERBS: Final[dict[str, Doing[QueueForm]]] = {"pause": _pause, "resume": _resume, "reopen": _reopen, "tune": _tune}
