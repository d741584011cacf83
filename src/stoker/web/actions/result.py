"""What all actions share: their answer, and the question that some ask before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from starlette.responses import Response

from stoker.admin import Bulk
from stoker.admin.jobs import JobsAdmin
from stoker.model.actions import Action, Given, Question
from stoker.web import view
from stoker.web.pages.shared import check_queue
from stoker.web.request import RequestContext
from stoker.web.sign_in import local
from stoker.web.view import Flash

T = TypeVar("T")
Field: TypeAlias = tuple[str, str]


class ActionResult(NamedTuple):
    """What an action did, and the page that says so; without one the page that the form came from."""

    flash: Flash
    to: str = ""


Doing: TypeAlias = Callable[[T], Awaitable[ActionResult | Response]]
"""One action; a page instead of `Done` where more is to be said before anything is done."""


Run: TypeAlias = Callable[[str, RequestContext], Awaitable[Response]]
"""Does what a verb says to what the address names."""


def answer(visit: RequestContext, done: ActionResult | Response, back: str) -> Response:
    """Go on to the page that says what was done, which reads the store anew."""
    if isinstance(done, Response):
        return done
    visit.board.hub.forget()
    return view.redirect(visit, done.to or back, done.flash)


async def act(
    visit: RequestContext, action: Action, target: str | list[str], given: Given, jobs: JobsAdmin | None = None
) -> Bulk:
    """Do an action of the table to one job or several, by the method that the admin has for it.

    The admin may be the user's own. The visitor has the role that the action needs, and reaches the queue it names.
    """
    visit.needs(action.role)
    action.check(given)
    if (queue := given.get("queue")) is not None:
        check_queue(visit, str(queue))
    done: Bulk = await getattr(jobs or visit.admin.jobs, action.method)(target, **given)
    return done


def ask(
    visit: RequestContext,
    page: str,
    path: str,
    name: str,
    back: str,
    question: Question,
    fields: Iterable[Field] = (),
    *,
    destroys: bool = False,
    facts: Sequence[tuple[str, str]] = (),
    reason: str = "",
) -> Response:
    """Say what follows and to what, and ask; the same address with `sure` and the same fields does it.

    `reason` is what becomes of a reason that the visitor may give; empty: none is asked for.
    """
    context = view.common(visit, page, question.title) | {
        "name": name,
        "text": question.text,
        "yes": question.yes,
        "no": question.no,
        "path": path,
        "fields": [field for field in fields if field[0] not in {"next", "sure", "csrf"}],
        "back": back,
        "destroys": destroys,
        "facts": facts,
        "reason": reason,
    }
    return view.page(visit, "confirm.html", context)


def come_from(visit: RequestContext, given: str, otherwise: str) -> str:
    """The page that a form names as the one to go back to, if it is one of ours."""
    return local(visit, given or visit.url(otherwise))
