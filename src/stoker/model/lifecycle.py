"""Decides every change of a job's status, without clock, engine or randomness.

`conclude` turns the outcome of a run into a settlement, one arm per outcome; no other code computes a next status. A
change that is not in `TRANSITIONS` is refused. The state diagram in the docs is drawn from that table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from msgspec.structs import replace

from stoker.model import retry, throttle
from stoker.model.errors import InvalidInput, InvalidTransition, PayloadTooLarge
from stoker.model.ids import text
from stoker.model.job import Claim, Draft, Settlement, Status, after
from stoker.model.markers import PREVIOUS, fill
from stoker.model.outcome import (
    Canceled,
    Crashed,
    Done,
    Expired,
    Failed,
    HandedBack,
    Lost,
    Outcome,
    Panicked,
    Rejected,
    Snoozed,
    Suspended,
    Throttled,
    TimedOut,
    Unfit,
)
from stoker.model.retry import Backoff
from stoker.model.steps import NEVER, Step, is_open
from stoker.model.time import DAY, HOUR, LONGEST, MINUTE, SECOND, Instant, Span, rfc3339

TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.PENDING: frozenset({Status.PENDING, Status.RUNNING, Status.DEAD, Status.CANCELED}),
    Status.RUNNING: frozenset(
        {Status.PENDING, Status.RUNNING, Status.RETRYING, Status.DONE, Status.DEAD, Status.CANCELED}
    ),
    Status.RETRYING: frozenset({Status.PENDING, Status.RUNNING, Status.RETRYING, Status.DEAD, Status.CANCELED}),
    Status.DONE: frozenset(),
    Status.DEAD: frozenset({Status.PENDING, Status.RETRIED, Status.DISCARDED}),
    Status.CANCELED: frozenset({Status.PENDING}),
    Status.DISCARDED: frozenset({Status.PENDING}),
    Status.RETRIED: frozenset(),
}
"""Running to running is a reap: the claim passes to the reaper under a new token. Deleting removes the record from any
status but running and is no transition."""

TOLD = "stoker.told"
"""Metadata key: the timeline knows of the enqueue of a job that was enqueued in a user's transaction."""

SETTLED = frozenset({Status.PENDING, Status.RETRYING, Status.DONE, Status.DEAD, Status.CANCELED})
"""The statuses a settlement may ask for."""

HELD: Span = 2 * LONGEST
"""How long a done member of a group with callbacks is kept, unless its group lets it go: longer than any `keep`."""

KEEP_DONE: Span = 7 * DAY
KEEP_DEAD: Span = 30 * DAY

UNFIT_SINCE = "stoker.unfit_since"
"""Metadata key: when a worker first met the job without being able to run it."""

UNFIT_WHY = "stoker.unfit"
"""Metadata key: why a worker could not open what is sealed of the job."""

HELD_BY = "stoker.held_by"
"""Metadata key: the budget that refused the job its tokens; empty after a run that ended otherwise."""

HELD_FOR = "stoker.held_for"
"""Metadata key: how many tokens that budget refused."""

RESULT_WARNING = "stoker.result_warning"
"""Metadata key: why a job that is done has no result."""


def check_transition(before: Status, after: Status, job: bytes | None = None) -> None:
    """Raise InvalidTransition for anything outside the table."""
    if after not in TRANSITIONS[before]:
        raise InvalidTransition(before, after, None if job is None else text(job))


def check_settlements(settlements: Iterable[Settlement]) -> None:
    """Refuse a status that no run can end in, and a suspension that nothing ends, before anything is written."""
    for settlement in settlements:
        if settlement.status not in SETTLED:
            raise InvalidTransition(Status.RUNNING, settlement.status, text(settlement.id))
        if settlement.wakes is not None and not (
            settlement.status is Status.PENDING and any(is_open(step) for step in settlement.steps)
        ):
            raise InvalidInput("wakes", settlement.wakes, "needs the status pending and an open wait among the steps")


class Rules(msgspec.Struct, frozen=True):
    """What the worker knows beside the claim: the task's policy, the app's default, and a random number.

    `keeps` is the app's retention of what is done, by queue: only for queues without a retention of their own.
    """

    backoff: Backoff | None = None
    default: Backoff | None = retry.DEFAULT_BACKOFF
    keep: Span | None = None
    crash_limit: int | None = 3
    unfit_grace: Span = HOUR
    roll: float = 0.5
    keeps: dict[str, Span] = {}


PLAIN_RULES = Rules()


def conclude(
    claim: Claim,
    outcome: Outcome,
    rules: Rules = PLAIN_RULES,
    metadata: dict[str, str] | None = None,
    steps: tuple[Step, ...] = (),
) -> Settlement:
    """Turn what happened into the one settlement that follows from it.

    `steps` are rows that the run has not stored yet, such as a failure that its handler caught.
    """
    settlement = _concluded(claim, outcome, rules, metadata)
    return msgspec.structs.replace(settlement, steps=(*steps, *settlement.steps)) if steps else settlement


def _concluded(claim: Claim, outcome: Outcome, rules: Rules, metadata: dict[str, str] | None) -> Settlement:
    if isinstance(outcome, Done):
        return _done(claim, outcome, rules, metadata)
    if claim.metadata is not None and claim.metadata.get(HELD_BY):
        metadata = {**(metadata or {}), HELD_BY: ""}
    if isinstance(outcome, Canceled):
        return _finish(claim, Status.CANCELED, outcome.why, metadata)
    if claim.cancel_requested:
        return _finish(claim, Status.CANCELED, f"canceled by request; the run ended: {_described(outcome)}", metadata)
    match outcome:
        case Expired():
            return _expired(claim, metadata)
        case Rejected(why=why):
            return _finish(claim, Status.DEAD, why, metadata)
        case Panicked(error=error):
            return _finish(claim, Status.DEAD, f"panic: {error}", metadata)
        case Snoozed(after=after, held=held):
            if held is not None:
                metadata = {**(metadata or {}), HELD_BY: held.budget, HELD_FOR: str(held.tokens)}
            return _put_back(claim, after, metadata)
        case Suspended():
            return _suspended(claim, outcome, metadata)
        case HandedBack():
            return _put_back(claim, 0, metadata, due=claim.scheduled_at)
        case Throttled():
            return _throttled(claim, outcome, metadata)
        case Unfit():
            return _unfit(claim, outcome, rules, metadata)
        case Crashed():
            return _crashed(claim, outcome, rules, metadata)
        case Lost():
            return _again(claim, _described(outcome, claim), _curve(claim), metadata)
        case TimedOut():
            return _again(claim, _described(outcome), _delay(claim, None, rules) if outcome.retry else None, metadata)
    return _failed(claim, outcome, rules, metadata)


def spent(claim: Claim) -> bool:
    """Whether this was the last attempt."""
    return claim.attempt - claim.base >= claim.budget


def expired(claim: Claim) -> bool:
    """Whether the job was claimed too late to be started. One that a worker had before was claimed in time."""
    expires = claim.options.expires
    return expires is not None and claim.fresh and claim.claimed_at > claim.created_at + expires


def accepts(status: Status, *, cancel_requested: bool) -> bool:
    """Whether the store may apply this status: after a request to cancel only done and canceled."""
    return not cancel_requested or status in (Status.DONE, Status.CANCELED)


def expiry(status: Status, finished_at: Instant, keep: Span | None, keep_done: Span, keep_dead: Span) -> Instant:
    """Until when a finished job is kept: done jobs by their own `keep`, else the queue's; others by the queue's."""
    if status is Status.DONE:
        return finished_at + (keep_done if keep is None else keep)
    return finished_at + keep_dead


def due_again(settlement: Settlement, now: Instant) -> Instant:
    """When a job that was put back or waits for a retry is due; one that was handed back keeps its scheduled time."""
    return now + settlement.after if settlement.due is None else settlement.due


def kept_as_done(claim: Claim, rules: Rules) -> Span | None:
    """How long a job stays when it is done: its own wish, else its task's, else the app's; None: as its queue says.

    A member of a group whose callbacks may read its result is held until the group lets it go.
    """
    if claim.options.awaited:
        return HELD
    if claim.options.keep is not None:
        return claim.options.keep
    return rules.keeps.get(claim.queue) if rules.keep is None else rules.keep


def deletes(settlement: Settlement) -> bool:
    """Whether this settlement removes the job instead of finishing it."""
    return settlement.status is Status.DONE and settlement.keep == 0


# --- the arms ---------------------------------------------------------------------------------------------------


def _done(claim: Claim, outcome: Done, rules: Rules, metadata: dict[str, str] | None) -> Settlement:
    keep = kept_as_done(claim, rules)
    followups = outcome.followups
    if claim.options.then:
        try:
            followups = (*followups, *_next_links(claim, outcome))
        except InvalidInput as error:
            why = f"its result cannot be passed on to the job behind it ({error.field}): {error.why}"
            return _finish(claim, Status.DEAD, f"{why}; nothing behind it was stored", metadata)
    if outcome.warning is not None:
        metadata = {**(metadata or {}), RESULT_WARNING: outcome.warning}
    return Settlement(
        claim.id,
        claim.worker,
        claim.token,
        Status.DONE,
        0,
        False,
        False,
        False,
        None,
        outcome.result,
        keep,
        throttle.Cool(claim.cool_count) if claim.cool_count else None,
        metadata,
        followups,
        claim.ref,
    )


def _next_links(claim: Claim, outcome: Done) -> Iterator[Draft]:
    """What the job's success stores, with its result where `PREVIOUS` stands.

    A copy of a dead job names itself as the parent. Raises if there is no result although one is asked for, or if it
    is too large.
    """
    for draft in claim.options.then:
        link = after(draft, claim.id)
        if where := draft.options.previous:
            if outcome.warning is not None:
                raise InvalidInput(draft.kind, None, outcome.warning)
            try:
                payload = fill(draft.payload, where, PREVIOUS, outcome.result or b"null")
                link = replace(link, payload=payload, options=replace(link.options, previous=()))
            except PayloadTooLarge as error:
                raise InvalidInput(draft.kind, None, f"with it the payload {error.why}") from None
        yield link


def _finish(
    claim: Claim,
    status: Status,
    error: str,
    metadata: dict[str, str] | None,
    *,
    refund: bool = False,
    crash: bool = False,
) -> Settlement:
    return Settlement(
        claim.id,
        claim.worker,
        claim.token,
        status,
        refund=refund,
        crash=crash,
        error=error,
        metadata=metadata,
        ref=claim.ref,
    )


def _noting_told(claim: Claim, metadata: dict[str, str] | None) -> dict[str, str] | None:
    """Note for the next claim, the first attempt again, that this one has put the enqueue on the timeline."""
    return {**(metadata or {}), TOLD: "yes"} if claim.options.untold and claim.attempt == 1 else metadata


def _put_back(claim: Claim, after: Span, metadata: dict[str, str] | None, *, due: Instant | None = None) -> Settlement:
    return Settlement(
        claim.id,
        claim.worker,
        claim.token,
        Status.PENDING,
        after=after,
        refund=True,
        metadata=_noting_told(claim, metadata),
        ref=claim.ref,
        due=due,
    )


def _suspended(claim: Claim, outcome: Suspended, metadata: dict[str, str] | None) -> Settlement:
    due = NEVER if outcome.after is None else outcome.due
    return msgspec.structs.replace(
        _put_back(claim, outcome.after or 0, metadata, due=due),
        steps=outcome.steps,
        wakes=outcome.wakes,
        followups=outcome.called,
        groups=outcome.groups,
    )


def _expired(claim: Claim, metadata: dict[str, str] | None) -> Settlement:
    error = f"expired: not started within {(claim.options.expires or 0) / SECOND:g} s"
    return _finish(claim, Status.CANCELED, error, _noting_told(claim, metadata), refund=True)


def _again(
    claim: Claim, error: str, delay: Span | None, metadata: dict[str, str] | None, *, crash: bool = False
) -> Settlement:
    """Retrying while the budget and the policy allow it, dead otherwise, with the same error text."""
    if delay is None or spent(claim):
        return _finish(claim, Status.DEAD, error, metadata, crash=crash)
    return _retry(claim, error, delay, metadata, crash=crash)


def _retry(
    claim: Claim,
    error: str,
    delay: Span,
    metadata: dict[str, str] | None,
    *,
    refund: bool = False,
    crash: bool = False,
) -> Settlement:
    return Settlement(
        claim.id,
        claim.worker,
        claim.token,
        Status.RETRYING,
        after=delay,
        refund=refund,
        crash=crash,
        error=error,
        metadata=metadata,
        ref=claim.ref,
    )


def _failed(claim: Claim, outcome: Failed, rules: Rules, metadata: dict[str, str] | None) -> Settlement:
    own = outcome.after if outcome.at is None else max(0, outcome.at - claim.claimed_at - outcome.ran)
    return _again(claim, outcome.error, _delay(claim, own, rules) if outcome.retry else None, metadata)


def _crashed(claim: Claim, outcome: Crashed, rules: Rules, metadata: dict[str, str] | None) -> Settlement:
    """Count a crash-end. A job that did not run alone gets its attempt back: the crash limit ends it, if it must."""
    count, detail = claim.crashes + 1, outcome.detail
    if rules.crash_limit is not None and count >= rules.crash_limit:
        error = f"process died under the job for the {_ordinal(count)} time: {detail}"
        return _finish(claim, Status.DEAD, error, metadata, crash=True)
    error = f"process died under the job: {detail}"
    delay = _delay(claim, None, rules) if claim.crashes else _curve(claim)
    if outcome.shared and rules.crash_limit is not None:
        error += "; it ran other jobs too, so this one keeps its attempt"
        return _retry(claim, error, _curve(claim) if delay is None else delay, metadata, refund=True, crash=True)
    return _again(claim, error, delay, metadata, crash=True)


def _curve(claim: Claim) -> Span:
    """The wait after a death that is probably not the job's fault: the queue's curve, else none."""
    return claim.curve.delay(claim.attempt) if claim.curve.on else 0


def _throttled(claim: Claim, outcome: Throttled, metadata: dict[str, str] | None) -> Settlement:
    delay = throttle.cooldown_delay(claim.curve, claim.cool_count, outcome.retry_after)
    if not outcome.queue and outcome.retry_after is not None:
        delay = outcome.retry_after
    return Settlement(
        claim.id,
        claim.worker,
        claim.token,
        Status.PENDING,
        after=delay,
        refund=True,
        throttled=True,
        cool=throttle.Cool(claim.cool_count, delay) if outcome.queue else None,
        metadata=_noting_told(claim, metadata),
        ref=claim.ref,
    )


def _unfit(claim: Claim, outcome: Unfit, rules: Rules, metadata: dict[str, str] | None) -> Settlement:
    """Put the job back without using an attempt, with a growing delay, until `unfit_grace` is over.

    One that is sealed is never given up for it: a key that a worker lacks must not end jobs.
    """
    noted = (claim.metadata or {}).get(UNFIT_SINCE, "")
    since = int(noted) if noted.isdecimal() and len(noted) < 20 else claim.claimed_at
    waited = max(0, claim.claimed_at - since)
    if outcome.sealed:
        metadata = {**(metadata or {}), UNFIT_WHY: outcome.why}
    elif waited >= rules.unfit_grace:
        return _finish(claim, Status.DEAD, outcome.why, metadata)
    marked = {**(metadata or {}), UNFIT_SINCE: str(since)}
    return _put_back(claim, min(max(waited, SECOND), 5 * MINUTE), marked)


def _delay(claim: Claim, own: Span | None, rules: Rules) -> Span | None:
    return retry.next_delay(
        claim.attempt - claim.base,
        own=own,
        backoff=claim.options.backoff if claim.options.backoff is not None else rules.backoff,
        curve=claim.curve,
        attempt=claim.attempt,
        default=rules.default,
        roll=rules.roll,
    )


def _described(outcome: Outcome, claim: Claim | None = None) -> str:
    """Describe an outcome for the record."""
    match outcome:
        case TimedOut(limit=limit, remark=remark):
            return f"timeout: ran longer than {limit / SECOND:g} s" + (f"\n{remark}" if remark else "")
        case Lost() if claim is not None and claim.former is not None and claim.former_at is not None:
            return (
                f"visibility timeout: worker {claim.former} stopped renewing its lease; "
                f"it had claimed the job at {rfc3339(claim.former_at)}"
            )
        case Lost():
            return "visibility timeout: the worker stopped renewing its lease"
        case Failed(error=error) | Panicked(error=error):
            return error
        case Rejected(why=why) | Unfit(why=why):
            return why
        case Crashed(detail=detail):
            return f"process died: {detail}"
        case _:
            return type(outcome).__name__.lower()


def _ordinal(n: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(n, f"{n}th")
