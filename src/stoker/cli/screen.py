"""What `stoker work` shows on a terminal: log lines above, live counters below, a progress bar while draining."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from stoker.cli.text import safe
from stoker.model.errors import StokerError
from stoker.model.job import Status

if TYPE_CHECKING:
    from stoker.supervisor.supervisor import Supervisor

REFRESH = 0.25
SHOWN = (
    (Status.DONE, "done", "green"),
    (Status.RETRYING, "to retry", "yellow"),
    (Status.PENDING, "put back", "cyan"),
    (Status.DEAD, "dead", "red"),
    (Status.CANCELED, "canceled", "magenta"),
)


class Screen:
    """A terminal that log lines and counters share."""

    def __init__(self, *, drain: bool) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)
        self._drain = drain
        self._total = 0
        self._rate = 0.0
        self._last = (time.monotonic(), 0)

    def line(self, text: str) -> None:
        """Print a log line above the counters."""
        self._console.print(escape(safe(text)), soft_wrap=True, markup=True)

    async def show(self, supervisor: Supervisor) -> None:
        """Keep the counters up to date."""
        self._live.start()
        if self._drain:
            self._total = await _due(supervisor)
        while True:
            self._live.update(self._picture(supervisor))
            await asyncio.sleep(REFRESH)

    def close(self, supervisor: Supervisor) -> None:
        """Stop updating and leave on the screen what became of the jobs: the workers are gone by now."""
        self._live.stop()
        outcomes = self._outcomes(supervisor)
        ended = Text.assemble(("drained: " if self._drain else "stopped: ", "bold"))
        self._console.print(ended.append_text(Text(" · ").join(outcomes or [Text("no job was run")])))

    def _picture(self, supervisor: Supervisor) -> RenderableType:
        counters = self._counters(supervisor)
        if not self._drain or not self._total:
            return counters
        finished = sum(supervisor.counts[status] for status in (Status.DONE, Status.DEAD, Status.CANCELED))
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            ProgressBar(total=max(self._total, finished), completed=finished, width=40),
            f"{finished:,} of {max(self._total, finished):,}",
        )
        return Group(bar, counters)

    def _counters(self, supervisor: Supervisor) -> Text:
        facts, counts = supervisor.facts(), supervisor.counts
        state = "stopping" if facts["stopping"] else "ready" if facts["ready"] else "not ready"
        text = Text(f"{facts['workers']}/{facts['processes']} workers {state}", style="bold")
        text.append(f" · {facts['running']} running", style="default")
        text = Text(" · ").join([text, *self._outcomes(supervisor)])
        return text.append(f" · {self._speed(sum(counts.values())):,.0f}/s", style="dim")

    def _outcomes(self, supervisor: Supervisor) -> list[Text]:
        counts = supervisor.counts
        return [Text(f"{counts[status]:,} {label}", style=style) for status, label, style in SHOWN if counts[status]]

    def _speed(self, settled: int) -> float:
        then, before = self._last
        now = time.monotonic()
        if now - then >= 1.0:
            self._rate = (settled - before) / (now - then)
            self._last = (now, settled)
        return self._rate


async def _due(supervisor: Supervisor) -> int:
    """How many jobs are due or wait for a retry, for the length of the bar."""
    try:
        census = await (await supervisor.app.engine()).operator.census()
    except StokerError:
        return 0
    found = census.by_status()
    return found[Status.PENDING] - sum(census.later.values()) + found[Status.RETRYING]
