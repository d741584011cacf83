"""Admin: what an operator asks and does, on any store.

`Admin(jobs)` works in code, `stoker …` on the command line, the dashboard in a browser; all call the same methods.
Scripts without a loop use `jobs.run(admin.jobs.get(...))`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, TypeVar, cast

import msgspec

from stoker.admin.audit import AuditAdmin
from stoker.admin.context import Noun, OperatorContext
from stoker.admin.groups import GroupsAdmin
from stoker.admin.health import HealthAdmin
from stoker.admin.history import HistoryAdmin
from stoker.admin.jobs import JobsAdmin
from stoker.admin.kinds import KindsAdmin
from stoker.admin.limits import LimitsAdmin
from stoker.admin.operations import OperationsAdmin
from stoker.admin.outbox import OutboxAdmin
from stoker.admin.overview import Overview, overview
from stoker.admin.queues import QueuesAdmin
from stoker.admin.schedules import SchedulesAdmin
from stoker.admin.snapshot import List, Snapshot, snapshot
from stoker.admin.tokens import TokensAdmin
from stoker.admin.workers import WorkersAdmin
from stoker.app import Stoker
from stoker.engines.base import Description
from stoker.model.access import ROLES, Role
from stoker.model.audit import WAYS
from stoker.model.errors import InvalidInput
from stoker.model.job import Status
from stoker.model.redact import EVERYTHING_SHOWN, Redaction
from stoker.model.time import Seconds

REDACTED = Redaction()


class QueueStats(msgspec.Struct, frozen=True):
    """How many jobs of a queue are due, and how many are not due yet."""

    queue: str
    due: int
    delayed: int


class Stats(msgspec.Struct, frozen=True):
    """Due and delayed jobs of some queues, and dead ones of all queues, counted at one instant."""

    queues: list[QueueStats]
    dead: int


class Operators(Protocol):
    """What the command line and the dashboard need of an admin: give them another object with these to change it."""

    app: Stoker
    jobs: JobsAdmin
    groups: GroupsAdmin
    queues: QueuesAdmin
    schedules: SchedulesAdmin
    limits: LimitsAdmin
    workers: WorkersAdmin
    kinds: KindsAdmin
    history: HistoryAdmin
    operations: OperationsAdmin
    audit: AuditAdmin
    health: HealthAdmin
    outbox: OutboxAdmin
    tokens: TokensAdmin

    async def overview(self, window: Seconds = 3600) -> Overview:
        """Everything on one screen."""
        ...

    async def stats(self, queues: Sequence[str]) -> Stats:
        """Numbers of some queues."""
        ...

    async def snapshot(self, pages: Mapping[List, int] | None = None, per_page: int = 25) -> Snapshot:
        """Five lists of jobs with numbered pages."""
        ...

    async def describe(self) -> Description:
        """What the store is."""
        ...


_MEMBERS = sorted(name for name in {**Operators.__annotations__, **vars(Operators)} if not name.startswith("_"))


def lacking(found: object) -> list[str]:
    """What an object lacks of an admin.

    Since Python 3.12 `isinstance` with a protocol would overlook what `__getattr__` answers.
    """
    return [name for name in _MEMBERS if not hasattr(found, name)]


N = TypeVar("N", bound=Noun)


def _noun(kind: type[N]) -> cached_property[N]:
    """A noun of an admin, made when it is first used."""
    return cached_property(lambda admin: kind(admin._context))  # noqa: SLF001 - it is one of us


class Admin(Noun):
    """The questions and actions, by noun.

    `by` names who asks, for the audit log and for pauses; `way` says through what, `request` in which request.
    `redact` masks secrets in everything that is shown, by the names beside them; None shows everything. `role` bounds
    what a search may find: below admin only what is shown, as read errors alone.
    """

    jobs = _noun(JobsAdmin)
    queues = _noun(QueuesAdmin)
    schedules = _noun(SchedulesAdmin)
    limits = _noun(LimitsAdmin)
    workers = _noun(WorkersAdmin)
    kinds = _noun(KindsAdmin)
    history = _noun(HistoryAdmin)
    operations = _noun(OperationsAdmin)
    audit = _noun(AuditAdmin)
    health = _noun(HealthAdmin)
    outbox = _noun(OutboxAdmin)
    tokens = _noun(TokensAdmin)
    groups = cached_property[GroupsAdmin](lambda admin: GroupsAdmin(admin._context, admin.operations))  # noqa: SLF001

    def __init__(
        self,
        app: Stoker,
        *,
        by: str | None = None,
        way: str = "code",
        redact: Redaction | None = REDACTED,
        request: str | None = None,
        role: Role = "admin",
    ) -> None:
        if role not in ROLES:
            raise InvalidInput("role", role, f"must be one of {', '.join(ROLES)}")
        if way not in WAYS:
            raise InvalidInput("way", way, f"must be one of {', '.join(WAYS)}")
        self.app = app
        context = OperatorContext(app, by, way, EVERYTHING_SHOWN if redact is None else redact, request, role)
        super().__init__(context)

    async def overview(self, window: Seconds = 3600) -> Overview:
        """Everything on one screen: what needs a person, queues, workers, kinds, and rates over a window."""
        return await overview(self._context, window)

    async def stats(self, queues: Sequence[str]) -> Stats:
        """Due and delayed jobs of these queues, in this order, zeros for unknown ones; dead jobs of all queues."""
        census = await (await self._context.engine()).operator.census()
        counted = [QueueStats(name, census.ready(name), census.later.get(name, 0)) for name in queues]
        return Stats(counted, census.by_status()[Status.DEAD])

    async def snapshot(self, pages: Mapping[List, int] | None = None, per_page: int = 25) -> Snapshot:
        """Five lists of jobs with numbered pages (enqueued, running, retrying, completed, failed), and schedules.

        `pages` gives the page of a list, `{"failed": 2}`. A store that is away gives empty lists, and says so.
        """
        return await snapshot(self._context, pages, per_page)

    async def describe(self) -> Description:
        """What the store is and guarantees, read back now, with its warnings."""
        return await (await self._context.engine()).describe()


def visited(admin: Operators, context: OperatorContext) -> Operators:
    """An admin of the user's own, for a visitor of the dashboard: its changes are signed with the visitor's name.

    What the user replaced in it stays. Nouns that are not made of ours are used as they are.
    """
    twin: Any = admin.under(context) if isinstance(admin, Noun) else _Visited(admin)
    twin.app = context.app
    for name in Operators.__annotations__:
        # A noun that an admin of ours has not made yet is made for the visitor when it is used.
        noun = vars(admin).get(name) if isinstance(admin, Admin) else getattr(admin, name)
        if isinstance(noun, Noun):
            setattr(twin, name, noun.under(context))
    return cast("Operators", twin)


class _Visited:
    """An object of the user's own as one visitor has it: what is not set here is asked of it."""

    def __init__(self, admin: Operators) -> None:
        self._admin = admin

    def __getattr__(self, name: str) -> Any:
        return getattr(self._admin, name)
