"""The views of `stoker top`: what each of them reads beside the overview, and the table that it shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias, TypeVar

from stoker.admin import Operators
from stoker.admin.errors import ErrorPage
from stoker.admin.history import RECENT
from stoker.admin.kinds import KindView
from stoker.admin.operations import OperationView
from stoker.admin.overview import Overview
from stoker.admin.queues import QueueView
from stoker.admin.workers import WorkerView
from stoker.cli.jobs import COLUMNS as JOBS
from stoker.cli.jobs import ERRORS_GO_FIRST, error_columns, place
from stoker.cli.jobs import GOES_FIRST as JOBS_GO_FIRST
from stoker.cli.operations import COLUMNS as OPERATIONS
from stoker.cli.operations import EMPTY as NO_OPERATION
from stoker.cli.operations import how_far
from stoker.cli.outbox import LETTERS
from stoker.cli.queues import COLUMNS, FLOW, GOES_FIRST
from stoker.cli.schedules import COLUMNS as SCHEDULES
from stoker.cli.schedules import GOES_FIRST as SCHEDULES_GO_FIRST
from stoker.cli.stats import BARS, Course, courses
from stoker.cli.stats import COLUMNS as COURSES
from stoker.cli.status import KINDS, KINDS_GO_FIRST
from stoker.cli.tables import Columns, cells, labeled, mark
from stoker.cli.tables import columns as table_columns
from stoker.cli.workers import EMPTY as NO_WORKER
from stoker.cli.workers import WORKERS
from stoker.engines.base import Feature
from stoker.model.findings import Tone
from stoker.model.time import DAY
from stoker.outbox.letters import Letter
from stoker.views import Job, Schedule

T = TypeVar("T")
View: TypeAlias = Literal["queues", "jobs", "failures", "workers", "kinds", "operations", "schedules", "letters", "day"]

LISTED = 100
"""Jobs that are listed."""

LOOKING = "Looking …"

SHOWN_KINDS: Columns[KindView] = {
    name: KINDS[name] for name in ("kind", "p50", "p95", "p99", "wait p95", "failed", "runs 1h", "running", "dead")
}

SHOWN_OPERATIONS: Columns[OperationView] = {
    **{name: OPERATIONS[name] for name in ("operation", "state", "done")},
    "so far": how_far,
    **{name: column for name, column in OPERATIONS.items() if name not in {"operation", "state", "done"}},
}
SHOWN_LETTERS: Columns[Letter] = {
    "stream": "stream",
    **{
        name: LETTERS[name]
        for name in ("consumer", "key", "type", "status", "attempts", "failed", "reason", "body", "id")
    },
}


class Table(NamedTuple):
    """What one of the views shows; `keys` name the rows, and `empty` is said if there are none."""

    heads: tuple[str, ...]
    rows: list[list[object]]
    keys: list[str]
    goes_first: Sequence[str]
    empty: str

    @classmethod
    def of(
        cls, columns: Columns[T], found: Sequence[T], keys: list[str], goes_first: Sequence[str], empty: str
    ) -> Table:
        """A table of views."""
        return cls(tuple(columns), [cells(one, columns) for one in found], keys, goes_first, empty)


@dataclass
class Picture:
    """What was read of a store; None: it was not looked for yet. `filter_text` means the jobs that are listed."""

    filter_text: str = ""
    overview: Overview | None = None
    errors: ErrorPage | None = None
    jobs: list[Job] = field(default_factory=list)
    kinds: list[KindView] | None = None
    operations: list[OperationView] | None = None
    schedules: list[Schedule] | None = None
    letters: Sequence[Letter] | None = None
    day: list[Course] | None = None

    async def read(self, admin: Operators, view: View) -> None:
        """Read the overview, and what a view shows beside it."""
        found = await admin.overview(RECENT * 60)
        match view:
            case "jobs":
                self.jobs = (await admin.jobs.find(self.filter_text, limit=LISTED)).jobs
            case "failures":
                self.errors = await admin.jobs.errors()
            case "kinds":
                self.kinds = await admin.kinds.list(sort="p95")
            case "operations":
                self.operations = await admin.operations.list()
            case "schedules":
                self.schedules = await admin.schedules.list()
            case "letters":
                streams = Feature.OUTBOX in (await admin.app.engine()).features
                self.letters = (await admin.outbox.letters(status="pending", limit=LISTED)).letters if streams else ()
            case "day":
                self.day = await courses(admin, None, DAY, DAY // BARS)
            case "queues" | "workers":
                pass
        self.overview = found


def key_of(letter: Letter) -> str:
    """The key of a letter's row."""
    return f"{letter.stream} {letter.consumer} {letter.id}"


def _queues(seen: Picture) -> Table:
    found = seen.overview
    if found is None:
        return Table((), [], [], (), LOOKING)
    tones = found.tones
    columns: Columns[QueueView] = {
        **COLUMNS,
        "oldest waits": lambda one: _waits(one, tones.get(one.name, "plain")),
        **FLOW,
    }
    queues = found.worst_first
    return Table.of(columns, queues, [one.name for one in queues], GOES_FIRST, "No queue has been used yet.")


def _waits(one: QueueView, tone: Tone) -> object:
    """How long the oldest due job of a queue has waited, coloured where a finding is about the queue."""
    if not one.ready:
        return ""
    return one.lag if tone == "plain" else mark(one.lag, tone)


def _jobs(seen: Picture) -> Table:
    empty = f"No job matches {seen.filter_text}." if seen.filter_text else "No job has been enqueued yet."
    keys = [one.id for one in seen.jobs]
    return Table.of(labeled(JOBS, seen.jobs), seen.jobs, keys, ("id", *JOBS_GO_FIRST), empty)


def _failures(seen: Picture) -> Table:
    page = seen.errors or ErrorPage(groups=[], looked_at=0)
    empty = LOOKING if seen.errors is None else "No dead or retrying job: nothing has failed."
    return Table.of(error_columns(page), page.groups, [one.id for one in page.groups], ("id", *ERRORS_GO_FIRST), empty)


def _kinds(seen: Picture) -> Table:
    kinds = seen.kinds or []
    empty = LOOKING if seen.kinds is None else "No kind has jobs yet."
    return Table.of(SHOWN_KINDS, kinds, [one.kind for one in kinds], KINDS_GO_FIRST, empty)


def _workers(seen: Picture) -> Table:
    found = [] if seen.overview is None else seen.overview.workers
    workers = sorted(found, key=lambda one: (one.state != "silent", one.state != "stopping", one.host))
    columns: Columns[WorkerView] = {
        "worker": place,
        "state": WORKERS["state"],
        **table_columns("running", "slots"),
        "seen": "seen_at",
        "release": "release",
        "queues": WORKERS["queues"],
    }
    return Table.of(columns, workers, [one.worker for one in workers], ("release",), NO_WORKER)


def _operations(seen: Picture) -> Table:
    found = seen.operations or []
    empty = LOOKING if seen.operations is None else NO_OPERATION
    return Table.of(SHOWN_OPERATIONS, found, [one.id for one in found], ("operation", "by", "left"), empty)


def _schedules(seen: Picture) -> Table:
    found = seen.schedules or []
    empty = LOOKING if seen.schedules is None else "No schedule is in the store."
    return Table.of(SCHEDULES, found, [one.name for one in found], SCHEDULES_GO_FIRST, empty)


def _letters(seen: Picture) -> Table:
    found = seen.letters or ()
    empty = LOOKING if seen.letters is None else "No letter waits for a decision."
    keys = [key_of(one) for one in found]
    return Table.of(SHOWN_LETTERS, found, keys, ("id", "attempts", "consumer", "failed", "body"), empty)


def _day(seen: Picture) -> Table:
    found = seen.day or []
    return Table.of(COURSES, found, [one.name for one in found], ("p50",), LOOKING)


TABLES: Final[dict[View, Callable[[Picture], Table]]] = {
    "queues": _queues,
    "jobs": _jobs,
    "failures": _failures,
    "workers": _workers,
    "kinds": _kinds,
    "operations": _operations,
    "schedules": _schedules,
    "letters": _letters,
    "day": _day,
}
"""The table of each view, in the order of their keys."""
