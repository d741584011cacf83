"""The live terminal view of `stoker top`: a table for each thing an operator looks at, steered by keys.

It reads the store every two seconds through an admin. When the store does not answer, the last figures stay, with
their time, and the view goes on trying.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal

import click
import msgspec
from msgspec.structs import replace
from rich.text import Text
from textual import work
from textual.app import App, ComposeResult, SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import DataTable, Footer, Input, Static

from stoker.admin import Filter, Operators
from stoker.admin.operations import OperationView
from stoker.admin.overview import Overview
from stoker.cli.operations import tally
from stoker.cli.tables import Layout, cut, squeezed
from stoker.cli.text import one_line, safe
from stoker.cli.top_dialogs import Entry, Page, Question
from stoker.cli.top_views import TABLES, Picture, Table, View, key_of
from stoker.model import humanize
from stoker.model.actions import ACTIONS
from stoker.model.errors import StokerError
from stoker.model.filter import as_value
from stoker.model.findings import Finding
from stoker.model.humanize import count
from stoker.model.time import instant
from stoker.outbox.letters import Letter
from stoker.views import Job

EVERY = 2.0
"""Seconds between two looks at the store."""

SHOWN = 4
"""Findings that are shown above the table."""

LONGEST_NAME = 32
"""A name in a finding is shortened to so many characters, so that the rest of the sentence is seen."""

REQUEUE, CANCEL = ACTIONS["requeue"], ACTIONS["cancel"]
"""The actions on jobs that have a key."""

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
        *(Binding(str(n), f"look('{view}')", view.capitalize(), show=n < 6) for n, view in enumerate(TABLES, 1)),
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
        self.seen = Picture()
        self.looking_at: View = "queues"
        self.held = False

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
            await self.seen.read(self._admin, self.looking_at)
        except StokerError as error:
            self._away(error)
            return
        self._draw()

    def _away(self, error: StokerError) -> None:
        found = self.seen.overview
        since = "" if found is None else f" What you see is from {found.at:%H:%M:%S}."
        text = f"The store does not answer as it should: {one_line(str(error))}{since}"
        self.query_one("#findings", Static).update(Text(text, style=STYLES["bad"]))

    def _draw(self) -> None:
        found = self.seen.overview
        if found is None or not self.is_running:
            return
        self.query_one("#head", Static).update(self._head(found))
        self.query_one("#findings", Static).update(self._findings(found.findings))
        self._fill(TABLES[self.looking_at](self.seen))

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
            text.append(f" {safe(self.seen.filter_text) or 'newest'}", style="italic")
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
            self.seen.filter_text = ""
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
        box.value = self.seen.filter_text
        box.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Look for jobs; a filter that means nothing stays open and says why."""
        try:
            Filter.parse(event.value)
        except StokerError as error:
            self.say(str(error))
            return
        self.seen.filter_text = event.value
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
                self._open(selected, [tally(one) for one in self.seen.operations or () if one.id == selected])
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
        return next((one for one in self.seen.letters or () if selected == key_of(one)), None)

    def show_jobs(self, filter_text: str) -> None:
        """List the jobs of a filter."""
        self.seen.filter_text = filter_text
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
        elif self.looking_at == "jobs" and self.seen.filter_text:
            self.requeue_many(self.seen.filter_text)
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
        job = next((one for one in self.seen.jobs if one.id == selected), None) if self.looking_at == "jobs" else None
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
        self.seen.errors = None
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
