"""Reports what failed: one log line per failed run, with its traceback, and never a flood; every one to error hooks.

A line is written when the store has accepted the outcome, so a run is logged once and what is logged is true. Per kind
and second at most `MOST` are logged; the rest is counted, and the count is logged afterwards. Text of a job stays on
its line or is indented below it, whatever formatter is used: it cannot look like a line of its own.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence

from stoker.codec.error_text import one_line, safe
from stoker.hooks import FailedRun, Listeners
from stoker.model import ids
from stoker.model.budgets import address, read_address, tune_command
from stoker.model.failure_report import FailureReport, error_type, failure_report, in_words
from stoker.model.humanize import count
from stoker.model.ids import JobId
from stoker.model.job import Claim, Settlement, Status, Verdict
from stoker.model.origin import trace_id
from stoker.model.outcome import Done, Failed, Outcome, Snoozed, Throttled

logger = logging.getLogger("stoker.worker")

MOST = 10
"""Failures of one kind that are logged one by one within `WINDOW`."""

WINDOW = 1.0

LONGEST_HEADLINE = 500

HELD_AGAIN = 60.0
"""Seconds between two log lines about a budget that can never grant what jobs ask for."""

HELD_SHOWN = 300.0
"""Seconds for which a worker shows such a budget: a job asks again every minute."""

FAILURES = frozenset({Status.RETRYING, Status.DEAD})
"""What a failed run leaves behind."""


class _Window:
    """One kind within one second."""

    __slots__ = ("count", "dead", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.count = self.dead = 0


class _Held:
    """One budget that cannot grant what a job asks for."""

    __slots__ = ("at", "logged_at", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.at = self.logged_at = -math.inf


class FailureLog:
    """The failures of one worker. `hooks` are the app's error hooks."""

    def __init__(
        self, hooks: Listeners[FailedRun] | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._hooks: Listeners[FailedRun] = Listeners() if hooks is None else hooks
        self._clock = clock
        self._windows: dict[str, _Window] = {}
        self._raised: dict[JobId, BaseException] = {}
        self._traces: dict[JobId, str] = {}
        self._returned: set[str] = set()
        self._held: dict[str, _Held] = {}

    def raised(self, claim: Claim, error: BaseException | None, trace_id: str | None = None) -> None:
        """Keep what a run raised until its outcome is settled, where a hook wants it, and the trace of the run."""
        if self._hooks and error is not None:
            self._raised[claim.id] = error
        if trace_id is not None:
            self._traces[claim.id] = trace_id

    def lost(self, claim: Claim) -> None:
        """Forget what a run raised: the store refused its outcome."""
        self._raised.pop(claim.id, None)
        self._traces.pop(claim.id, None)

    def applied(self, claims: Sequence[Claim], settlements: Sequence[Settlement], verdicts: Sequence[Verdict]) -> None:
        """Log those of a batch that applied and are failures."""
        for claim, settlement, verdict in zip(claims, settlements, verdicts, strict=True):
            if verdict is Verdict.APPLIED:
                self.settled(claim, settlement)

    def settled(self, claim: Claim, settlement: Settlement) -> None:
        """Log a settlement that applied, if it is a failure, and call the error hooks."""
        exception, trace = self._raised.pop(claim.id, None), self._traces.pop(claim.id, None)
        failure = failure_report(claim, settlement)
        if failure is not None and self._admits(claim.kind, dead=failure.dead):
            _log(claim, failure, trace)
        if failure is not None and self._hooks and settlement.status in FAILURES:
            self._hooks.emit(_failed_run(claim, failure, exception))

    def after_block(self, claim: Claim, outcome: Outcome, settled: Settlement) -> None:
        """Log what a handler still did after its block had settled the job: an error, or, once, a lost result.

        A handler that returns the result of its block has lost nothing.
        """
        self.lost(claim)
        if not isinstance(outcome, Done):
            error = str(getattr(outcome, "error", None) or getattr(outcome, "why", None) or type(outcome).__name__)
            if self._admits(claim.kind, dead=False):
                event = "ended otherwise after its transaction was committed"
                _log(claim, FailureReport(False, event, error, "It is done all the same, and does not run again."))
        elif outcome.result not in (None, settled.result) and claim.kind not in self._returned:
            self._returned.add(claim.kind)
            logger.warning(
                "the value that %s returned for job %s is not stored: the job was settled by its transaction before. "
                "Give the value to result(...) of the block. This is logged once per task.",
                claim.kind,
                ids.text(claim.id),
            )

    def put_back(self, claim: Claim, why: str, settlement: Settlement) -> None:
        """Log a job that cannot run in this worker and waits for another one."""
        if self._admits(claim.kind, dead=False):
            then = f"It is put back and tried again {in_words(settlement.after)}."
            _log(claim, FailureReport(False, "cannot run here", why, then))

    def judged(self, claim: Claim, outcome: Outcome) -> None:
        """Log what was odd about the way a handler ended its run: an impossible delay, or an impossible spend."""
        if not isinstance(outcome, Snoozed | Throttled | Failed):
            return
        if outcome.warning is not None and self._admits(claim.kind, dead=False):
            text = "job %s (%s, queue %s) ended its run with an impossible delay. %s"
            logger.warning(text, ids.text(claim.id), claim.kind, claim.queue, outcome.warning, extra=_about(claim))
        if isinstance(outcome, Snoozed) and outcome.held is not None and outcome.held.why is not None:
            self._impossible(claim, outcome.held.budget, outcome.held.tokens, outcome.held.why)

    def _impossible(self, claim: Claim, held_by: str, tokens: int, why: str) -> None:
        budget, measure, _ = read_address(held_by)  # what a bucket can hold is the same for every key
        now, held = self._clock(), self._held.setdefault(address(budget, measure), _Held())
        held.tokens, held.at = tokens if now - held.at > HELD_SHOWN else max(held.tokens, tokens), now
        if now - held.logged_at < HELD_AGAIN:
            return
        held.logged_at = now
        logger.warning(
            "job %s (%s, queue %s) is held by budget %s and can never run: %s. Stoker asks again every minute or so. "
            "`%s` lets it run. This is logged once a minute.",
            ids.text(claim.id),
            claim.kind,
            claim.queue,
            budget,
            why,
            tune_command(budget, measure, tokens),
            extra=_about(claim),
        )

    @property
    def held(self) -> dict[str, int]:
        """The budgets that lately could never grant what a job asked for, with the most tokens asked for."""
        now = self._clock()
        return {name: held.tokens for name, held in self._held.items() if now - held.at <= HELD_SHOWN}

    def flush(self, *, everything: bool = False) -> None:
        """Log how many were left out in windows that are over."""
        now = self._clock()
        for kind, window in list(self._windows.items()):
            if everything or now - window.since >= WINDOW:
                del self._windows[kind]
                _log_rest(kind, window, now)

    def _admits(self, kind: str, *, dead: bool) -> bool:
        now, window = self._clock(), self._windows.get(kind)
        if window is None or now - window.since >= WINDOW:
            if window is not None:
                _log_rest(kind, window, now)
            window = self._windows[kind] = _Window(now)
        window.count += 1
        if window.count <= MOST:
            return True
        window.dead += dead
        return False


def _failed_run(claim: Claim, failure: FailureReport, exception: BaseException | None) -> FailedRun:
    return FailedRun(
        job=ids.text(claim.id),
        kind=claim.kind,
        queue=claim.queue,
        attempt=claim.attempt,
        attempts=claim.base + claim.budget,
        dead=failure.dead,
        error=failure.error,
        exception=exception,
        tenant=claim.tenant,
        metadata={**(claim.options.metadata or {}), **(claim.metadata or {})},
    )


def _log(claim: Claim, failure: FailureReport, trace: str | None = None) -> None:
    level = logging.ERROR if failure.dead else logging.WARNING
    if not logger.isEnabledFor(level):
        return
    first, _, rest = failure.error.partition("\n")
    job = ids.text(claim.id)
    text = f"job {job} ({claim.kind}, queue {claim.queue}) {failure.event}: "
    text += f"{one_line(first, LONGEST_HEADLINE).rstrip('.')}. {failure.then}"
    about = _about(claim, trace) | {"error": failure.error, "error_type": error_type(failure.error)}
    record = logger.makeRecord(logger.name, level, __file__, 0, text, (), None, "settled", about)
    if rest:
        # Where the exception itself is gone, or was another process's: formatters print this below the message.
        record.exc_text = "\n".join(f"    {line}" for line in safe(rest).splitlines())
    logger.handle(record)


def _about(claim: Claim, trace: str | None = None) -> dict[str, object]:
    about: dict[str, object] = {"job": ids.text(claim.id), "kind": claim.kind, "queue": claim.queue}
    about |= {"attempt": claim.attempt, "tenant": claim.tenant, "worker": claim.worker}
    return about | {"trace_id": trace or trace_id(claim.options.metadata)}


def _log_rest(kind: str, window: _Window, now: float) -> None:
    more = window.count - MOST
    if more > 0:
        dead = f"; of these jobs {window.dead:,} {'is' if window.dead == 1 else 'are'} dead" if window.dead else ""
        text = "%s of %s within %.1f s not logged one by one%s"
        level = logging.ERROR if window.dead else logging.WARNING
        logger.log(
            level, text, count(more, "more failure"), kind, max(now - window.since, WINDOW), dead, extra={"kind": kind}
        )
