"""What a form does to a consumer of a stream, or to letters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from stoker.model.humanize import count
from stoker.outbox.consumers import StreamHandle
from stoker.web.actions.result import ActionResult, Doing, answer, come_from
from stoker.web.forms import Form
from stoker.web.pages.outbox import consumer_path
from stoker.web.pages.shared import needs_everything
from stoker.web.problems import Problem
from stoker.web.request import RequestContext
from stoker.web.view import Flash


@dataclass(frozen=True)
class ConsumerForm:
    """A form about one consumer, and the page to go back to."""

    visit: RequestContext
    form: Form
    stream: str
    name: str
    back: str

    @property
    def handle(self) -> StreamHandle:
        return self.visit.admin.outbox.stream(self.stream)

    def undo(self, text: str, verb: str) -> ActionResult:
        """What was done, with the form that reverts it and comes back here."""
        return ActionResult(Flash(text, f"{consumer_path(self.stream, self.name)}/{verb}", (("next", self.back),)))


async def on_consumer(verb: str, visit: RequestContext) -> Response:
    """Do one thing to the consumer of the address."""
    stream, name = visit.request.path_params["stream"], visit.request.path_params["consumer"]
    form = await visit.board.form(visit)
    needs_everything(visit)
    back = come_from(visit, form.get("next"), consumer_path(stream, name))
    return answer(visit, await CONSUMER_VERBS[verb](ConsumerForm(visit, form, stream, name, back)), back)


async def _pause(one: ConsumerForm) -> ActionResult:
    await one.handle.pause(one.name)
    return one.undo(f"Paused {one.name} of {one.stream}.", "resume")


async def _resume(one: ConsumerForm) -> ActionResult:
    await one.handle.resume(one.name)
    return one.undo(f"Resumed {one.name} of {one.stream}.", "pause")


async def _release(one: ConsumerForm) -> ActionResult:
    await one.handle.release(one.form.get("key"), consumer=one.name)
    return ActionResult(Flash(f"Released the key {one.form.get('key')}."))


CONSUMER_VERBS: Final[dict[str, Doing[ConsumerForm]]] = {"pause": _pause, "resume": _resume, "release": _release}


@dataclass(frozen=True)
class LettersForm:
    """A form about letters of a stream: which ones, and of which consumer, else of all."""

    handle: StreamHandle
    chosen: list[str]
    consumer: str | None


async def on_letters(verb: str, visit: RequestContext) -> Response:
    """Do one thing to letters of the stream of the address."""
    form = await visit.board.form(visit)
    needs_everything(visit)
    handle = visit.admin.outbox.stream(visit.request.path_params["stream"])
    letters = LettersForm(handle, form.all("id"), form.get("consumer") or None)
    if not letters.chosen:
        raise Problem(422, "invalid", "No letter was named. Nothing was changed.")
    return answer(visit, await LETTER_VERBS[verb](letters), come_from(visit, form.get("next"), "outbox"))


async def _replay(letters: LettersForm) -> ActionResult:
    n = await letters.handle.replay(letters.chosen, consumer=letters.consumer)
    return ActionResult(Flash(f"{count(n, 'letter')} will be delivered again."))


async def _discard(letters: LettersForm) -> ActionResult:
    n = await letters.handle.discard(letters.chosen, consumer=letters.consumer)
    return ActionResult(Flash(f"Discarded {count(n, 'letter')}. They stay listed as discarded."))


LETTER_VERBS: Final[dict[str, Doing[LettersForm]]] = {"replay": _replay, "discard": _discard}
