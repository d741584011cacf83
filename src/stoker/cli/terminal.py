"""The live terminal view of `stoker top`: a table for each thing an operator looks at, steered by keys.

It reads the store every two seconds through an admin. When the store does not answer, the last figures stay, with
their time, and the view goes on trying.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar

import click
import msgspec
from msgspec.structs import replace
from rich.markup import escape
from rich.text import Text
from textual import work
from textual.app import App, ComposeResult, SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from stoker.admin import Filter, Operators
from stoker.admin.errors import ErrorPage
from stoker.admin.history import RECENT
from stoker.admin.kinds import KindView
from stoker.admin.operations import OperationView
from stoker.admin.overview import Overview
from stoker.admin.queues import QueueView
from stoker.admin.workers import WorkerView
from stoker.cli.jobs import COLUMNS as JOBS
from stoker.cli.jobs import ERRORS_GO_FIRST, error_columns, labeled, place
from stoker.cli.jobs import GOES_FIRST as JOBS_GO_FIRST
from stoker.cli.operations import COLUMNS as OPERATIONS
from stoker.cli.operations import how_far, tally
from stoker.cli.outbox import LETTERS
from stoker.cli.queues import COLUMNS, FLOW, GOES_FIRST
from stoker.cli.schedules import COLUMNS as SCHEDULES
from stoker.cli.schedules import GOES_FIRST as SCHEDULES_GO_FIRST
from stoker.cli.stats import BARS, Course, courses
from stoker.cli.stats import COLUMNS as COURSES
from stoker.cli.status import KINDS, KINDS_GO_FIRST
from stoker.cli.tables import Columns, Layout, cells, cut, mark, squeezed
from stoker.cli.tables import columns as table_columns
from stoker.cli.text import one_line, safe
from stoker.cli.workers import WORKERS
from stoker.engines.base import Feature
from stoker.model import humanize
from stoker.model.actions import ACTIONS
from stoker.model.errors import StokerError
from stoker.model.filter import as_value
from stoker.model.findings import Finding, Tone
from stoker.model.humanize import count
from stoker.model.time import DAY, instant
from stoker.outbox.letters import Letter
from stoker.views import Job, Schedule

T = TypeVar("T")
View: TypeAlias = Literal["queues", "jobs", "failures", "workers", "kinds", "operations", "schedules", "letters", "day"]
VIEWS: tuple[View, ...] = (
    *("queues", "jobs", "failures", "workers", "kinds"),
    *("operations", "schedules", "letters", "day"),
)
EVERY = 2.0
"""Seconds between two looks at the store."""

SHOWN = 4
"""Findings that are shown above the table."""

LONGEST_NAME = 32
"""A name in a finding is shortened to so many characters, so that the rest of the sentence is seen."""

LISTED = 100
"""Jobs that are listed."""

REQUEUE, CANCEL = ACTIONS["requeue"], ACTIONS["cancel"]
"""The actions on jobs that have a key."""

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

HELP = """\
1 2 3 4   queues, jobs, failures, workers
5 6       kinds, the slowest first; operations, the latest first
7 8       schedules; letters of streams
9         the throughput of a day
enter     open: the jobs of a queue, a kind or an error, everything about a job
escape    back
/         filter jobs: is:dead queue:mail kind:send* since:2h "text"
p         pause the selected queue or schedule
r         resume the selected queue or schedule
R         requeue: the selected job, the dead jobs of the selected queue,
          or the jobs of the selected error; replay the selected letter
A         all: requeue the jobs of the filter, replay the letters of a stream
e         edit: the payload of a job in your editor ($EDITOR), and requeue it;
          when a schedule fires
c         cancel the selected job; one that runs is asked to stop
.         hold the picture, and go on
?         this help
q         quit
"""

STYLES = {"bad": "bold red", "warn": "yellow", "plain": "dim"}


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


class Page(ModalScreen[None]):
    """A text over the view, which any of its keys closes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark", "dismiss", "Back"),
    ]
    CSS = """
    Page { align: center middle; }
    Page > VerticalScroll { width: 90%; height: auto; max-height: 90%; border: round $primary; padding: 0 1; }
    """

    def __init__(self, title: str, text: Text) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        """A scrolling box."""
        with VerticalScroll() as box:
            box.border_title = escape(one_line(self._title))
            yield Static(self._text)


class Question(ModalScreen[bool]):
    """A question that `y` affirms; everything else declines."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape,q", "answer(False)", "No"),
    ]
    CSS = """
    Question { align: center middle; }
    Question > Static { width: auto; max-width: 90%; border: round $warning; padding: 0 1; }
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """A box with the question."""
        yield Static(Text(f"{one_line(self._text, 400)} (y/n)"))

    def action_answer(self, yes: bool) -> None:
        """Close with the answer."""
        self.dismiss(yes)


class Entry(ModalScreen[str | None]):
    """A line to change; escape leaves it as it was."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Back")]
    CSS = """
    Entry { align: center middle; }
    Entry > Vertical { width: 90%; height: auto; border: round $primary; padding: 0 1; }
    """

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        """A box with the line."""
        with Vertical() as box:
            box.border_title = escape(one_line(self._title))
            yield Input(value=self._text)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Close with what was written."""
        event.stop()
        self.dismiss(event.value)


class Top(App[None]):
    """The live view of one store."""

    TITLE = "stoker top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: auto; padding: 0 1; }
    #findings { height: auto; max-height: 4; padding: 0 1; }
    #said { height: auto; padding: 0 1; color: $text-muted; }
    #empty { height: auto; padding: 0 1; color: $text-muted; }
    DataTable { height: 1fr; }
    DataTable.empty { height: 0; }
    #filter { display: none; height: 3; }
    #filter.open { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(n), f"look('{view}')", view.capitalize(), show=n < 6) for n, view in enumerate(VIEWS, 1)),
        Binding("p", "pause", "Pause"),
        Binding("r", "resume", "Resume"),
        Binding("R,shift+r", "requeue", REQUEUE.label),
        Binding("A,shift+a", "all", "All", show=False),
        Binding("e", "edit", "Edit", show=False),
        Binding("c", "cancel", CANCEL.label),
        Binding("slash", "filter", "Filter"),
        Binding("full_stop", "hold", "Hold", show=False),
        Binding("escape", "leave", "Back", show=False),
        Binding("question_mark", "help", "Help"),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, admin: Operators, *, every: float = EVERY) -> None:
        super().__init__()
        self._admin = admin
        self._every = every
        self._overview: Overview | None = None
        self._errors: ErrorPage | None = None
        self._jobs: list[Job] = []
        self._kinds: list[KindView] | None = None
        self._operations: list[OperationView] | None = None
        self._schedules: list[Schedule] | None = None
        self._letters: Sequence[Letter] | None = None
        self._day: list[Course] | None = None
        self.looking_at: View = "queues"
        self.filter_text = ""
        self.held = False
        self._read_at: datetime | None = None

    # --- the picture --------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """A head, what needs attention, a table, a filter that opens, and the keys."""
        with Vertical():
            yield Static(id="head")
            yield Static(id="findings")
            yield DataTable(id="table", cursor_type="row", zebra_stripes=True)
            yield Static(id="empty")
            yield Static(id="said")
        yield Input(placeholder="is:dead queue:mail kind:send* since:2h", id="filter")
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Look now, and again and again."""
        self.query_one(DataTable).focus()
        self.look()
        self.set_interval(self._every, self._tick)

    def on_resize(self) -> None:
        """Another width has other columns."""
        self._draw()

    def _tick(self) -> None:
        if not self.held:
            self.look()

    @work(exclusive=True, group="look")
    async def look(self) -> None:
        """Read the store and draw; keep the last picture if the store does not answer."""
        try:
            self._overview = await self._admin.overview(RECENT * 60)
            await self._read()
        except StokerError as error:
            self._away(error)
            return
        self._read_at = self._overview.at
        self._draw()

    async def _read(self) -> None:
        """Read what the present table shows beside the overview."""
        admin = self._admin
        match self.looking_at:
            case "jobs":
                self._jobs = (await admin.jobs.find(self.filter_text, limit=LISTED)).jobs
            case "failures":
                self._errors = await admin.jobs.errors()
            case "kinds":
                self._kinds = await admin.kinds.list(sort="p95")
            case "operations":
                self._operations = await admin.operations.list()
            case "schedules":
                self._schedules = await admin.schedules.list()
            case "letters":
                streams = Feature.OUTBOX in (await admin.app.engine()).features
                self._letters = (await admin.outbox.letters(status="pending", limit=LISTED)).letters if streams else ()
            case "day":
                self._day = await courses(admin, None, DAY, DAY // BARS)
            case _:
                pass

    def _away(self, error: StokerError) -> None:
        since = "" if self._read_at is None else f" What you see is from {self._read_at:%H:%M:%S}."
        text = f"The store does not answer as it should: {one_line(str(error))}{since}"
        self.query_one("#findings", Static).update(Text(text, style=STYLES["bad"]))

    def _draw(self) -> None:
        found = self._overview
        if found is None or not self.is_running:
            return
        self.query_one("#head", Static).update(self._head(found))
        self.query_one("#findings", Static).update(self._findings(found.findings))
        self._fill(getattr(self, f"_{self.looking_at}_table")(found))

    def _findings(self, found: Sequence[Finding]) -> Text:
        shown = found if len(found) <= SHOWN else found[: SHOWN - 1]
        lines = [
            Text(
                cut(safe(str(replace(one, name=squeezed(one.name, LONGEST_NAME)))), self.size.width - 2),
                style=STYLES[one.tone],
            )
            for one in shown
        ]
        if len(shown) < len(found):
            lines.append(Text(f"and {len(found) - len(shown):,} more: stoker status", style=STYLES["plain"]))
        return Text("\n").join(lines)

    def _head(self, found: Overview) -> Text:
        counts, flows = found.counts, found.flow
        at_work = sum(one.state == "running" for one in found.workers)
        text = Text()
        text.append(found.verdict, style="bold red" if found.needs_attention else "bold green")
        text.append(f"  {self.looking_at}", style="bold")
        if self.looking_at == "jobs":
            text.append(f" {safe(self.filter_text) or 'newest'}", style="italic")
        if self.held:
            text.append("  held", style="reverse")
        text.append(f"  {found.at:%H:%M:%S} UTC\n", style="dim")
        text.append(f"{counts['ready']:,} ready · {counts['running']:,} running · {counts['retrying']:,} retrying · ")
        text.append(f"{counts['dead']:,} dead · {humanize.count(at_work, 'worker')} · ")
        came, went = flows.per_minute(flows.enqueued), flows.per_minute(flows.completed)
        rates = "rates are not counted yet" if came is None else f"{came:,.0f}/min in, {went:,.0f}/min out"
        text.append(rates)
        return text

    def _fill(self, view: Table) -> None:
        """Show rows, with the cursor on the row that it was on; of no rows, say so."""
        table = self.query_one(DataTable)
        selected = self.selected
        room = self.size.width - 2 * table.cell_padding - (table.scrollbar_size_vertical or 2)
        layout = Layout(view.heads, view.rows, instant(datetime.now(UTC)))
        widths = layout.widths(room, view.goes_first)
        heads, *rows = layout.drawn(widths)
        table.clear(columns=True)
        for head, width in zip(heads, widths.values(), strict=True):
            table.add_column(head, width=width)
        for key, row in zip(view.keys, rows, strict=True):
            table.add_row(*row, key=key)
        if selected in view.keys:
            table.move_cursor(row=view.keys.index(selected), animate=False)
        table.set_class(not rows, "empty")
        self.query_one("#empty", Static).update(Text("" if rows else one_line(view.empty, 400)))

    @property
    def selected(self) -> str | None:
        """The key of the selected row: the name of a queue, an error, a worker or a schedule, or an id."""
        table = self.query_one(DataTable)
        if not table.row_count:
            return None
        return table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value

    def _queues_table(self, found: Overview) -> Table:
        tones = found.tones
        columns: Columns[QueueView] = {
            **COLUMNS,
            "oldest waits": lambda one: _waits(one, tones.get(one.name, "plain")),
            **FLOW,
        }
        queues = found.worst_first
        return Table.of(columns, queues, [one.name for one in queues], GOES_FIRST, "No queue has been used yet.")

    def _jobs_table(self, _: Overview) -> Table:
        empty = f"No job matches {self.filter_text}." if self.filter_text else "No job has been enqueued yet."
        return Table.of(
            labeled(JOBS, self._jobs), self._jobs, [one.id for one in self._jobs], ("id", *JOBS_GO_FIRST), empty
        )

    def _failures_table(self, _: Overview) -> Table:
        page = self._errors or ErrorPage(groups=[], looked_at=0)
        empty = LOOKING if self._errors is None else "No dead or retrying job: nothing has failed."
        return Table.of(
            error_columns(page), page.groups, [one.id for one in page.groups], ("id", *ERRORS_GO_FIRST), empty
        )

    def _kinds_table(self, _: Overview) -> Table:
        kinds = self._kinds or []
        empty = LOOKING if self._kinds is None else "No kind has jobs yet."
        return Table.of(SHOWN_KINDS, kinds, [one.kind for one in kinds], KINDS_GO_FIRST, empty)

    def _workers_table(self, found: Overview) -> Table:
        workers = sorted(found.workers, key=lambda one: (one.state != "silent", one.state != "stopping", one.host))
        columns: Columns[WorkerView] = {
            "worker": place,
            "state": WORKERS["state"],
            **table_columns("running", "slots"),
            "seen": "seen_at",
            "release": "release",
            "queues": WORKERS["queues"],
        }
        return Table.of(columns, workers, [one.worker for one in workers], ("release",), "No worker has shown itself.")

    def _operations_table(self, _: Overview) -> Table:
        found = self._operations or []
        empty = LOOKING if self._operations is None else "No action on many jobs was started yet."
        return Table.of(SHOWN_OPERATIONS, found, [one.id for one in found], ("operation", "by", "left"), empty)

    def _schedules_table(self, _: Overview) -> Table:
        found = self._schedules or []
        empty = LOOKING if self._schedules is None else "No schedule is in the store."
        return Table.of(SCHEDULES, found, [one.name for one in found], SCHEDULES_GO_FIRST, empty)

    def _letters_table(self, _: Overview) -> Table:
        found = self._letters or ()
        empty = LOOKING if self._letters is None else "No letter waits for a decision."
        keys = [f"{one.stream} {one.consumer} {one.id}" for one in found]
        return Table.of(SHOWN_LETTERS, found, keys, ("id", "attempts", "consumer", "failed", "body"), empty)

    def _day_table(self, _: Overview) -> Table:
        found = self._day or []
        return Table.of(COURSES, found, [one.name for one in found], ("p50",), LOOKING)

    # --- keys ---------------------------------------------------------------------------------------------------

    def action_look(self, view: View) -> None:
        """Show another table."""
        self.looking_at = view
        self.query_one(DataTable).clear(columns=True)
        self._draw()
        self.look()

    def action_leave(self) -> None:
        """Close the filter, else go back to the queues."""
        box = self.query_one("#filter", Input)
        if box.has_class("open"):
            box.remove_class("open")
            self.query_one(DataTable).focus()
        else:
            self.filter_text = ""
            self.action_look("queues")

    def action_hold(self) -> None:
        """Stop looking, or look again."""
        self.held = not self.held
        self._draw()

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(Page("keys", Text(HELP)))

    def action_filter(self) -> None:
        """Open the filter."""
        box = self.query_one("#filter", Input)
        box.add_class("open")
        box.value = self.filter_text
        box.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Look for jobs; a filter that means nothing stays open and says why."""
        try:
            Filter.parse(event.value)
        except StokerError as error:
            self.say(str(error))
            return
        self.filter_text = event.value
        event.input.remove_class("open")
        self.query_one(DataTable).focus()
        self.action_look("jobs")

    def on_data_table_row_selected(self) -> None:
        """Open what is selected."""
        selected = self.selected
        if selected is None:
            return
        match self.looking_at:
            case "queues":
                self.show_jobs(f"queue:{selected}")
            case "failures":
                self.show_jobs(f"same_error:{selected}")
            case "kinds":
                self.show_jobs(f"kind:{as_value(selected)}")
            case "jobs":
                self.open_job(selected)
            case "workers":
                self.open_worker(selected)
            case "operations":
                self._open(selected, [tally(one) for one in self._operations or () if one.id == selected])
            case "schedules":
                self.edit_schedule(selected)
            case "letters":
                one = self._letter
                self._open(selected, [] if one is None else [one.reason, "", one.preview])
            case "day":
                pass

    def _open(self, title: str, lines: Sequence[str]) -> None:
        self.push_screen(Page(title, Text(safe("\n".join(lines)))))

    @property
    def _letter(self) -> Letter | None:
        selected = self.selected if self.looking_at == "letters" else None
        return next((one for one in self._letters or () if selected == f"{one.stream} {one.consumer} {one.id}"), None)

    def show_jobs(self, filter_text: str) -> None:
        """List the jobs of a filter."""
        self.filter_text = filter_text
        self.action_look("jobs")

    @work(group="act")
    async def open_job(self, job: str) -> None:
        """Show everything about a job, and why it does not run."""
        await self._tried(self._opened_job(job))

    async def _opened_job(self, job: str) -> None:
        from stoker.cli.jobs import detail_lines, detail_object

        found = await self._admin.jobs.get(job)
        why = await self._admin.jobs.explain(job)
        text = Text()
        text.append(safe(f"{why.reason}: {why.detail}"), style="bold")
        for line in (*(gate.detail for gate in why.gates), *why.beside, why.remedy):
            text.append(safe(f"\n{line}") if line else "")
        text.append("\n")
        for name, lines in detail_lines(detail_object(found)):
            text.append(f"\n{name}: ", style="bold")
            text.append(lines[0] if len(lines) == 1 else "".join(f"\n  {line}" for line in lines))
        self.push_screen(Page(f"{found.job.kind} {job}", text))

    @work(group="act")
    async def open_worker(self, worker: str) -> None:
        """Show what a worker runs."""
        await self._tried(self._opened_worker(worker))

    async def _opened_worker(self, worker: str) -> None:
        running = await self._admin.workers.jobs(worker)
        text = Text("it runs nothing" if not running else "")
        for one in running:
            since = "" if one.job.started_at is None else f" since {one.job.started_at:%H:%M:%S}"
            text.append(
                safe(f"{one.job.kind}{_label(one.job)} {one.job.id}{since}\n"), style="yellow" if one.long else ""
            )
        self.push_screen(Page(f"worker {worker}", text))

    # --- acting -------------------------------------------------------------------------------------------------

    def action_pause(self) -> None:
        """Pause the selected queue or schedule."""
        self._steer("pause")

    def action_resume(self) -> None:
        """Resume the selected queue or schedule."""
        self._steer("resume")

    def _steer(self, verb: Literal["pause", "resume"]) -> None:
        selected = self.selected
        if self.looking_at not in {"queues", "schedules"} or selected is None:
            self.say(f"select a queue to {verb} it, or a schedule")
            return
        noun = self._admin.queues if self.looking_at == "queues" else self._admin.schedules
        self._change(getattr(noun, verb)(selected), f"{self.looking_at[:-1]} {selected} is {verb}d")

    def action_requeue(self) -> None:
        """Requeue the selected job, the dead jobs of a queue or the jobs of an error; more than one is asked for."""
        selected, letter = self.selected, self._letter
        if letter is not None:
            replayed = self._admin.outbox.stream(letter.stream).replay([letter.id], consumer=letter.consumer)
            self._change(replayed, f"letter {letter.id} is delivered again in the next turn")
        elif selected is None or self.looking_at not in {"queues", "failures", "jobs"}:
            self.say(f"select a queue, an error, a job or a letter to {REQUEUE.name}")
        elif self.looking_at == "jobs":
            self._change(self._admin.jobs.requeue(selected), f"job {selected} is {REQUEUE.past.lower()}")
        else:
            dead = f"is:dead queue:{selected}" if self.looking_at == "queues" else f"same_error:{selected}"
            self.requeue_many(dead)

    def action_all(self) -> None:
        """Requeue the jobs of the filter, or replay the letters of the selected one's stream, after a question."""
        letter = self._letter
        if letter is not None:
            self.replay_all(letter.stream)
        elif self.looking_at == "jobs" and self.filter_text:
            self.requeue_many(self.filter_text)
        else:
            self.say("filter jobs, or select a letter")

    def action_edit(self) -> None:
        """Edit the selected job or schedule."""
        selected = self.selected
        if selected is None or self.looking_at not in {"jobs", "schedules"}:
            self.say("select a job or a schedule to edit it")
        elif self.looking_at == "jobs":
            self.edit_job(selected)
        else:
            self.edit_schedule(selected)

    @work(group="act")
    async def edit_schedule(self, name: str) -> None:
        """Ask for another cron expression, and store it."""
        await self._tried(self._edited_schedule(name))

    async def _edited_schedule(self, name: str) -> None:
        found = await self._admin.schedules.get(name)
        cron = await self.push_screen_wait(Entry(f"schedule {name}: when it fires, in {found.tz}", found.cron))
        if cron is None or cron == found.cron:
            self.say("nothing was changed")
            return
        edited = await self._admin.schedules.edit(name, cron=cron)
        self.say(f"schedule {name} is edited: {edited.cron} {edited.tz}")
        self.look()

    @work(group="act")
    async def edit_job(self, job: str) -> None:
        """Open the payload of a job in the user's editor, store what comes back, and requeue a dead one."""
        await self._tried(self._edited_job(job))

    async def _edited_job(self, job: str) -> None:
        found = (await self._admin.jobs.reveal(job)).job
        before = msgspec.json.format(found.payload, indent=2).decode() + "\n"
        try:
            with self.suspend():
                after = click.edit(before, extension=".json")
        except SuspendNotSupported:
            self.say(f"this terminal cannot show an editor: use `stoker jobs edit {job} --payload …`")
            return
        except click.ClickException as error:
            self.say(f"the editor failed: {error.message}")
            return
        if after is None or after == before:
            self.say("nothing was changed")
            return
        requeues = found.status in REQUEUE.statuses
        then = " and requeue it" if requeues else ""
        if not await self.push_screen_wait(Question(f"Save the payload of {found.kind} {job}{then}?")):
            self.say("nothing was changed")
            return
        await self._admin.jobs.edit(job, payload=_compact(after))
        if requeues:
            await self._admin.jobs.requeue(job)
        self.say(f"job {job} is edited{' and requeued' if requeues else ''}")
        self.look()

    @work(group="act")
    async def replay_all(self, stream: str) -> None:
        """Count, ask, and replay the letters of a stream as an operation."""
        await self._tried(self._replayed(stream))

    async def _replayed(self, stream: str) -> None:
        found = await self._admin.outbox.preview("replay", stream=stream)
        if not await self.push_screen_wait(Question(f"Replay {count(found.count, 'letter')} of stream {stream}?")):
            self.say("nothing was changed")
            return
        start = self._admin.operations.start_on_letters
        started = await start("replay", stream=stream, counted_at=found.counted_at, total=found.count)
        ended = await self._admin.operations.finish(started.id)
        self.say(f"replayed {count(ended.changed, 'letter')}")
        self.look()

    def action_cancel(self) -> None:
        """Cancel the selected job, after a question."""
        selected = self.selected
        job = next((one for one in self._jobs if one.id == selected), None) if self.looking_at == "jobs" else None
        if job is None:
            self.say(f"select a job to {CANCEL.name} it")
        else:
            self.cancel_job(job)

    @work(group="act")
    async def cancel_job(self, job: Job) -> None:
        """Ask, with what tells the job from others, and cancel it."""
        await self._tried(self._canceled(job))

    async def _canceled(self, job: Job) -> None:
        since = "" if job.started_at is None else f", running since {job.started_at:%H:%M:%S} on {job.worker}"
        if not await self.push_screen_wait(Question(f"{CANCEL.label} {job.kind}{_label(job)} {job.id}{since}?")):
            self.say("nothing was changed")
            return
        done = await self._admin.jobs.cancel(job.id)
        self.say(f"{job.kind} is asked to stop" if done.cancel_requested else f"{job.kind} is canceled")
        self.look()

    @work(group="act")
    async def requeue_many(self, filter_text: str) -> None:
        """Count, ask, and requeue as an operation."""
        await self._tried(self._requeued_many(filter_text))

    async def _requeued_many(self, filter_text: str) -> None:
        found = await self._admin.jobs.preview(filter_text)
        if not found.count:
            self.say(f"no jobs match {filter_text}")
            return
        shown = f"{found.count:,}" if found.complete else f"more than {found.count:,}"
        if not await self.push_screen_wait(Question(f"{REQUEUE.label} {shown} jobs that match {filter_text}?")):
            self.say("nothing was changed")
            return
        started = await self._admin.operations.start(REQUEUE.name, filter_text, counted_at=found.counted_at)
        ended = await self._admin.operations.finish(started.id, lambda one: self.say(_requeued(one)))
        self.say(_requeued(ended))
        self._errors = None
        self.look()

    @work(group="act")
    async def _change(self, call: Coroutine[Any, Any, object], done: str) -> None:
        async def changed() -> None:
            await call
            self.say(done)
            self.look()

        await self._tried(changed())

    async def _tried(self, call: Coroutine[Any, Any, None]) -> None:
        """Await a call; show a refusal below the table."""
        try:
            await call
        except StokerError as error:
            self.say(str(error))

    def say(self, text: str) -> None:
        """Say something below the table."""
        self.query_one("#said", Static).update(Text(one_line(text, 400)))


def _compact(text: str) -> bytes:
    """JSON without the room that was made for the eye; what is no JSON is left for the admin to refuse."""
    try:
        return msgspec.json.format(text.encode(), indent=-1)
    except msgspec.DecodeError:
        return text.encode()


def _label(job: Job) -> str:
    return "" if job.label is None else f" ({job.label})"


def _requeued(one: OperationView) -> str:
    return f"{REQUEUE.past.lower()} {count(one.changed, 'job')}"


def _waits(one: QueueView, tone: Tone) -> object:
    """How long the oldest due job of a queue has waited, coloured where a finding is about the queue."""
    if not one.ready:
        return ""
    return one.lag if tone == "plain" else mark(one.lag, tone)
