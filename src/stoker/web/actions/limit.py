"""What a form does to a budget, or to a limit by key of a queue."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from starlette.responses import Response

from stoker.model.actions import Question
from stoker.model.humanize import count
from stoker.model.query import LARGEST_PAGE
from stoker.model.throttle import Rate
from stoker.web.actions.result import ActionResult, Doing, answer, ask, come_from
from stoker.web.forms import number, whole
from stoker.web.pages.shared import check_queue, needs_everything
from stoker.web.request import RequestContext
from stoker.web.view import Flash

DRAIN = Question(
    "Drain this budget?",
    "All its tokens are taken away. They come back at its rate; jobs that need one wait until then.",
    "Drain it",
    "Leave its tokens",
)


async def run(verb: str, visit: RequestContext) -> Response:
    """Do one thing to the budget of the address, or to a limit of the queue of the address."""
    return answer(visit, await VERBS[verb](visit), visit.url("limits"))


async def _tune(visit: RequestContext) -> ActionResult:
    name, form = visit.request.path_params["name"], await visit.board.form(visit)
    measure = form.get("measure") or None
    before = await _rate_of(visit, name, measure)
    rate = Rate(number("n", form.get("n")), per=number("per", form.get("per") or "1"))
    await visit.admin.limits.tune(name, rate, measure=measure)
    former = (("n", f"{before.n:g}"), ("per", f"{before.per:g}"), *((("measure", measure),) if measure else ()))
    return ActionResult(Flash(f"Tuned {name}.", f"limits/{quote(name, safe='')}/tune", former))


async def _drain(visit: RequestContext) -> ActionResult | Response:
    name, form = visit.request.path_params["name"], await visit.board.form(visit)
    needs_everything(visit)
    await visit.admin.limits.buckets(name, limit=0)  # raises if there is none of that name
    key = form.get("key") or None
    if form.get("sure") != "yes":
        fields = (("key", key),) if key else ()
        what = f"{name}, key {key}" if key else name
        return ask(visit, "limits", f"limits/{quote(name, safe='')}/drain", what, visit.url("limits"), DRAIN, fields)
    await visit.admin.limits.drain(name, key)
    return ActionResult(Flash(f"Drained {name}, key {key}." if key else f"Drained {name}."))


async def _rate_of(visit: RequestContext, name: str, measure: str | None) -> Rate:
    needs_everything(visit)
    return (await visit.admin.limits.get(name, measure)).rate


async def _set(visit: RequestContext) -> ActionResult | Response:
    """Let another number of each key of a limit run at once."""
    queue, form = visit.request.path_params["name"], await visit.board.form(visit)
    check_queue(visit, queue)
    limit, n, before = form.get("limit"), whole("n", form.get("n")), form.get("before")
    back = come_from(visit, form.get("next"), visit.url("limits", queue=queue).removeprefix(visit.root))
    if form.get("asks") == "yes" and form.get("sure") != "yes":
        fields = (("limit", limit), ("n", str(n)), ("before", before))
        path = f"limits/{quote(queue, safe='')}/set"
        return ask(visit, "limits", path, f"{limit} in {queue}", back, await _reach(visit, queue, limit, n), fields)
    await visit.admin.limits.set(queue, limit, n)
    former = (("limit", limit), *((("n", before),) if before else ()), ("next", back))
    path = f"limits/{quote(queue, safe='')}/{'set' if before else 'clear'}"
    return ActionResult(Flash(f"Limit {limit} of {queue} lets {n:,} of each key run at once.", path, former), back)


async def _reach(visit: RequestContext, queue: str, limit: str, n: int) -> Question:
    """What another number starts: as many more jobs of each full key as wait and have room then."""
    engine = await visit.board.store.engine()
    now = await engine.now()
    keys = await engine.control.subqueues(queue, limit=LARGEST_PAGE)
    full = [one for one in keys if one.limit == limit and one.full and one.due is not None and one.due <= now]
    least = "at least " if len(keys) == LARGEST_PAGE else ""
    start = f"{least}{count(len(full), 'key')} {'is' if len(full) == 1 else 'are'} full with jobs that wait"
    more = sum(max(0, n - one.running) for one in full)
    text = f"It holds for each key: {start}, so that up to {count(more, 'job')} start as workers are free."
    return Question(f"Let {n:,} of each key run at once?", text, f"Let {n:,} run", "Leave the limit")


async def _clear(visit: RequestContext) -> ActionResult:
    """Give a limit back to the number that its jobs bring."""
    queue, form = visit.request.path_params["name"], await visit.board.form(visit)
    check_queue(visit, queue)
    back = come_from(visit, form.get("next"), visit.url("limits", queue=queue).removeprefix(visit.root))
    await visit.admin.limits.clear(queue, form.get("limit"))
    return ActionResult(Flash(f"Limit {form.get('limit')} of {queue} is again what its jobs bring."), back)


VERBS: Final[dict[str, Doing[RequestContext]]] = {"tune": _tune, "drain": _drain, "set": _set, "clear": _clear}
