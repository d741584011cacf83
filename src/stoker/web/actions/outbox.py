"""What a form does to a consumer of a stream, or to letters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from starlette.responses import RedirectResponse, Response

from stoker.admin.outbox import ShownStream
from stoker.model.errors import InvalidInput
from stoker.model.humanize import count
from stoker.outbox.consumers import StreamHandle
from stoker.web.actions.result import ActionResult, Doing, answer, come_from
from stoker.web.forms import Form, moment_of
from stoker.web.pages import job_reveal
from stoker.web.pages.letters import letter_page, path_of
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
    """A form about letters of a stream: which ones, of which consumer, else of all, and the page to go back to."""

    visit: RequestContext
    form: Form
    handle: ShownStream
    chosen: list[str]
    consumer: str | None
    back: str

    def undo(self, text: str, ended: str = "") -> ActionResult:
        """What was done, with the form that takes it back; of many letters an operation would have to."""
        if len(self.chosen) > MOST_UNDONE:
            return ActionResult(Flash(text))
        fields = [("id", one) for one in self.chosen] + [("next", self.back)]
        fields += [("consumer", self.consumer)] if self.consumer else []
        fields += [("ended", ended)] if ended else []
        return ActionResult(Flash(text, f"outbox/letters/{quote(self.handle.name, safe='')}/restore", tuple(fields)))

    async def ended(self) -> str:
        """When the letters were ended, for their undo: all in one step."""
        found = await self.handle.letter(self.chosen[0], consumer=self.consumer)
        return "" if found.ended is None else found.ended.isoformat()

    async def page(self, body: bytes | None = None, mistake: str = "") -> Response:
        """The page of the letter, where the form names one."""
        found = await self.handle.letter(self.chosen[0], consumer=self.consumer)
        return await letter_page(self.visit, self.handle.name, found.consumer, found.id, body, mistake)


MOST_UNDONE = 20
"""A cookie carries the ids of so many letters that can be taken back."""


async def on_letters(verb: str, visit: RequestContext) -> Response:
    """Do one thing to letters of the stream of the address."""
    form = await visit.board.form(visit)
    needs_everything(visit)
    handle = visit.admin.outbox.stream(visit.request.path_params["stream"])
    back = come_from(visit, form.get("next"), "outbox")
    letters = LettersForm(visit, form, handle, form.all("id"), form.get("consumer") or None, back)
    if not letters.chosen:
        raise Problem(422, "invalid", "No letter was named. Nothing was changed.")
    return answer(visit, await LETTER_VERBS[verb](letters), back)


async def _replay(letters: LettersForm) -> ActionResult:
    n = await letters.handle.replay(letters.chosen, consumer=letters.consumer)
    text = f"{count(n, 'letter')} will be delivered again."
    return letters.undo(text) if n else ActionResult(Flash(text))


async def _resolve(letters: LettersForm) -> ActionResult:
    n = await letters.handle.resolve(letters.chosen, consumer=letters.consumer)
    text = f"Resolved {count(n, 'letter')}. {'It stays' if n == 1 else 'They stay'} listed as resolved."
    return letters.undo(text, await letters.ended()) if n else ActionResult(Flash(text))


async def _discard(letters: LettersForm) -> ActionResult:
    n = await letters.handle.discard(letters.chosen, consumer=letters.consumer)
    text = f"Discarded {count(n, 'letter')}. {'It stays' if n == 1 else 'They stay'} listed as discarded."
    return letters.undo(text, await letters.ended()) if n else ActionResult(Flash(text))


async def _restore(letters: LettersForm) -> ActionResult:
    ended = moment_of("ended", letters.form) if letters.form.get("ended") else None
    n = await letters.handle.restore(letters.chosen, ended=ended, consumer=letters.consumer)
    if not n:
        raise Problem(409, "changed", "The letter has changed since. Nothing was undone.")
    return ActionResult(Flash(f"{count(n, 'letter')} {'waits' if n == 1 else 'wait'} for a decision again."))


async def _reveal(letters: LettersForm) -> Response:
    visit = letters.visit
    found = await letters.handle.letter(letters.chosen[0], consumer=letters.consumer)
    await letters.handle.reveal(found.id, consumer=found.consumer)
    grant = job_reveal.give(visit, path_of(found), job_reveal.BODY, (await visit.board.hub.reading()).census.at)
    return RedirectResponse(f"{visit.url(path_of(found), reveal=grant)}#{job_reveal.BODY}", 303)


async def _replace(letters: LettersForm) -> ActionResult | Response:
    body = letters.form.get("payload").replace("\r\n", "\n").strip().encode()
    try:
        new = await letters.handle.replace(letters.chosen[0], body, consumer=letters.consumer)
    except InvalidInput as error:
        return await letters.page(body, str(error))
    return ActionResult(Flash(f"Appended message {new} in its place, and resolved the letter."))


LETTER_VERBS: Final[dict[str, Doing[LettersForm]]] = {
    "replay": _replay,
    "resolve": _resolve,
    "discard": _discard,
    "restore": _restore,
    "reveal": _reveal,
    "replace": _replace,
}
