"""Who asks, through what, and what is hidden from them: shared by all nouns of an `Admin`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import NamedTuple, Self, TypeVar, cast

from stoker import views
from stoker.admin.documents import seals
from stoker.app import Stoker
from stoker.chain_before import not_found
from stoker.engines.base import Engine
from stoker.model import ids
from stoker.model import job as stored
from stoker.model.access import Role, searching
from stoker.model.audit import By, Way
from stoker.model.errors import NotFound, SealedValue
from stoker.model.job import DEFAULT_QUEUE, check_name
from stoker.model.names import Names, hint, in_use, known
from stoker.model.query import Census
from stoker.model.redact import Redaction
from stoker.model.run_origins import RunOrigin

UNNAMED = "unnamed"
"""Who is in the audit log when the caller gave no name."""


UNCHANGED = " Nothing was changed."
CREATE = f"{UNCHANGED} With create=True, --create on the command line, it is set up ahead of its first use."


class OperatorContext(NamedTuple):
    """An app, and the person or program in front of it.

    `by` is a name, `way` how it came here (code, command line, page, token), `request` the id of its request; they are
    in the audit log with every change. Code without a name writes no entries. `redact` masks what it is shown, and
    below the `role` admin a search finds only what it leaves. `queues` are those that it is limited to, and whose
    payloads a search looks into; none means all. Without `payloads` lists leave them out, with results, histories and
    logs: one of 1 MiB takes 0.2 s to mask, and no page shows it. `read` is a job that its request has read already.
    """

    app: Stoker
    by: str | None
    way: str
    redact: Redaction
    request: str | None = None
    role: Role = "admin"
    queues: frozenset[str] = frozenset()
    payloads: bool = True
    read: stored.Job | None = None

    @property
    def searches_as(self) -> Role:
        """The role that bounds its searches."""
        return searching(self.role, self.queues)

    @property
    def sees_everything(self) -> bool:
        """May it see what is masked in what belongs to no queue, as letters?"""
        return self.role == "admin" and not self.queues

    def sees_secrets(self, queue: str) -> bool:
        """May it see what is masked in the jobs of a queue?"""
        return self.role == "admin" and (not self.queues or queue in self.queues)

    def signed(self, reason: str | None = None) -> By | None:
        """Who makes a change, for the audit log; None: code without a name."""
        if self.by is None and self.way == "code":
            return None
        return By(self.by or UNNAMED, cast("Way", self.way), reason, self.request)

    async def engine(self) -> Engine:
        """The opened engine of the running loop."""
        return await self.app.engine()

    async def check_key(self, act: str) -> None:
        """Refuse what stores values, where the store is sealed and this program has no key. Raises `SealedValue`."""
        if self.app.seal is None and (sealed := await seals(await self.engine())):
            keys = ", ".join(sealed)
            why = f"is sealed with key {keys}, and without the key one cannot {act}; name the app that has it, with -A"
            raise SealedValue("the store", keys, why)

    async def names(self, census: Census) -> Names:
        """Every queue and kind that is known: to the store, and to the app that is loaded."""
        engine = await self.engine()
        stored = known(
            census, await engine.control.queues(), await engine.schedules.read(), await engine.control.workers()
        )
        return stored | _of_app(self.app)

    async def known_queue(self, name: str, census: Census | None = None, more: str = CREATE) -> None:
        """Refuse a queue that is not known, with the nearest one and what `more` says. Raises `NotFound`."""
        check_name("queue", name)
        census = census or await (await self.engine()).operator.census()
        if name in in_use(census).queues:
            return
        queues = (await self.names(census)).queues
        if name not in queues:
            raise NotFound(
                f"queue {name!r} is not known: no job, setting, schedule, live worker or task of the app names it. "
                f"{hint(name, queues)}{more}"
            )

    def job(self, found: stored.Job, origins: Mapping[int, RunOrigin] = views.NO_ORIGINS) -> views.Job:
        """A job as people read it, secrets masked."""
        return views.job(self.redact.job(found), origins)

    def listed(self, found: stored.Job) -> views.Job:
        """A job of a list, secrets masked."""
        return self.job(found) if self.payloads else views.job(self.redact.listed(found))

    def listed_payload(self, raw: bytes) -> bytes:
        """A payload in a list, secrets masked."""
        return self.redact.json(raw) if self.payloads else b""

    async def stored(self, job: str) -> stored.Job:
        """The record of a job as it is stored, or as this request has read it already. Raises `NotFound`."""
        if self.read is not None and ids.text(self.read.id) == job:
            return self.read
        engine = await self.engine()
        [found] = await engine.operator.get([ids.parse(job)])
        if found is None:
            raise NotFound.job(job) if self.queues else await not_found(engine, ids.parse(job))
        return found


def _of_app(app: Stoker) -> Names:
    """The queues and kinds that an app's code names, and the queue of jobs that name none."""
    kinds = frozenset((*app.tasks, *app.declared))
    queues = {queue for kind in kinds if (queue := app.queue_of(kind)) is not None}
    default = app.defaults.queue or DEFAULT_QUEUE
    return Names(frozenset({*queues, *app.declarations.queues, default}), kinds)


class Noun:
    """Questions and actions about one thing, for the one who asks."""

    def __init__(self, context: OperatorContext) -> None:
        self._context = context

    def under(self, context: OperatorContext) -> Self:
        """The same, with all that was changed about it, for another one who asks."""
        twin = copy.copy(self)
        twin._context = context  # noqa: SLF001 - it is one of us
        return twin


T = TypeVar("T")


def knowing(noun: T, job: stored.Job) -> T:
    """The same noun for one who has read a job: its next change need not read it again."""
    if not isinstance(noun, Noun):  # one of the user's own
        return noun
    return noun.under(noun._context._replace(read=job))  # noqa: SLF001 - it is one of us
