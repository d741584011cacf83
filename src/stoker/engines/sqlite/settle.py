"""The third door: claims end.

Plain successes, which are nearly all, go as a batch: one statement takes the running rows away and counts them, one
writes the finished ones. If the count is not the batch's, somebody lost a claim or was asked to stop; then the whole
transaction is run again, one by one. Every other end goes one by one from the start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from stoker.engines.sql.packing import encode, salvaged, salvaged_log
from stoker.engines.sql.steps import Many, Row, Steps
from stoker.engines.sqlite import moves
from stoker.engines.sqlite.insert import admit
from stoker.engines.sqlite.records import Record, by_seq
from stoker.engines.sqlite.texts import sql
from stoker.engines.sqlite.unit import CODES, COMPLETED, DONE, RUNNING, Mismatch, Unit
from stoker.model.job import LONGEST_LOG, Note, Settlement, Status, Verdict, noted
from stoker.model.lifecycle import accepts, deletes, due_again
from stoker.model.throttle import Cool, cooled

_FENCE = sql("settle_fence")
_FINISH = sql("settle_finish")
_SETTLED = sql("settled")
_HELD = sql("running_held")
_KNOWN = sql("known")
_TROUBLE_OVER = sql("trouble_over")
_APPLIED = Verdict.APPLIED
_DONE = Status.DONE


def settle(unit: Unit, settlements: Sequence[Settlement]) -> Steps[list[Verdict]]:
    """End claims; verdicts in their order."""
    verdicts = [_APPLIED] * len(settlements)
    others, succeeded = list(range(len(settlements))), set[str]()
    if unit.swift:
        others, succeeded = yield from _together(unit, settlements)
    if others:
        left = set(others)
        for place, settlement in enumerate(settlements):
            if place not in left:  # plain, and over already
                succeeded.add(settlement.ref[3])
            else:
                verdicts[place], kind = yield from _one(unit, settlement)
                # What a kind's last error is, is decided by the last of its settlements.
                succeeded.discard(kind)
    for kind in succeeded:
        yield _TROUBLE_OVER, (kind,)
    return verdicts


def _together(unit: Unit, settlements: Sequence[Settlement]) -> Steps[tuple[list[int], set[str]]]:
    """End all that are plain, or `Mismatch`, as for a claim that is ended twice.

    Answers the places of those that are not plain, and the kinds of those that are.
    """
    now = unit.now
    others: list[int] = []
    fences: list[Row] = []
    rows: list[Row] = []
    kinds: defaultdict[tuple[int, str], int] = defaultdict(int)
    keeps: dict[int, int] = {}
    wids: dict[str, int | None] = {}
    for place, settlement in enumerate(settlements):
        if not _is_plain(settlement):
            others.append(place)
            continue
        id_, seq, qid, kind, attempt, claimed = settlement.ref
        worker, token, keep = settlement.worker, settlement.token, settlement.keep
        if worker not in wids:
            wids[worker] = yield from unit.wid(worker)
        if qid not in keeps:
            keeps[qid] = (yield from unit.queue_of(qid)).queue.keep_done
        fences.append((wids[worker], seq, token))
        expires = now + (keeps[qid] if keep is None else keep)
        rows.append((id_, seq, qid, token, attempt, claimed, now, expires, settlement.result))
        kinds[qid, kind] += 1
    if fences:
        applied = yield Many(_FENCE, fences)
        if applied != len(fences):
            raise Mismatch
        yield Many(_FINISH, rows)
    for (qid, kind), n in kinds.items():
        unit.moved(qid, kind, RUNNING, DONE, n)
        unit.count(qid, kind, COMPLETED, n)
    return others, {kind for _, kind in kinds}


def _is_plain(settlement: Settlement) -> bool:
    """A success with nothing to say but its result, of a job that never had trouble."""
    ref = settlement.ref
    return (
        settlement.status is _DONE
        and type(ref) is tuple
        and ref[0] == settlement.id
        and settlement.error is None
        and settlement.keep != 0
        and settlement.cool is None
        and not settlement.metadata
        and not settlement.followups
    )


# --- one by one -------------------------------------------------------------------------------------------------


def _one(unit: Unit, settlement: Settlement) -> Steps[tuple[Verdict, str]]:
    """The verdict, and the kind whose totals it changed."""
    record = yield from held(unit, settlement)
    if record is None:
        return (yield from _too_late(settlement)), ""
    if not accepts(settlement.status, cancel_requested=bool(record.cancel)):
        return Verdict.CANCELING, ""
    yield from moves.leave(record)
    yield from _write_run(unit, record, settlement)
    status = CODES[settlement.status]
    if settlement.status in (Status.PENDING, Status.RETRYING):
        yield from moves.queue_up(unit, record, status, due_again(settlement, unit.now))
    elif deletes(settlement):
        yield from moves.erase(unit, record)
    else:
        if record.past:
            yield from moves.write_past(record)
        yield from moves.finish(unit, record, status, keep=settlement.keep, result=settlement.result)
    error = settlement.error if settlement.status is not Status.CANCELED else None
    yield from moves.total(unit, record, status, error)
    if settlement.cool is not None:
        yield from _cool(unit, record.qid, settlement.cool)
    for draft in settlement.followups:
        # Nobody is left to hear of a refusal, and a key that is taken must not keep the claim from ending.
        refusing = draft.unique is not None and draft.unique.mode == "raise"
        yield from admit(unit, draft, "existing" if refusing else None)
    return _APPLIED, record.kind if error is not None or settlement.status is _DONE else ""


def held(unit: Unit, fence: Settlement | Note) -> Steps[Record | None]:
    """The record of a claim that is exactly this one; None when it is not (any more)."""
    wid = yield from unit.wid(fence.worker)
    seq = fence.ref[1] if type(fence.ref) is tuple else fence.ref
    if seq is None:
        rows = yield _KNOWN, (fence.id,)
        seq = rows[0][0] if rows else None
    if wid is None or seq is None:
        return None
    rows = yield _HELD, (wid, seq)
    if not rows or rows[0][0] != fence.token:
        return None
    record = yield from by_seq(seq)
    return record if record is not None and record.id == fence.id else None


def _too_late(settlement: Settlement) -> Steps[Verdict]:
    """A job whose last run was ended like this under this token was ended by this very settlement."""
    rows = yield _SETTLED, (settlement.id,)
    same = rows and settlement.token > 0 and rows[0] == (CODES[settlement.status], settlement.token)
    return Verdict.REPEATED if same else Verdict.LOST


def _write_run(unit: Unit, record: Record, settlement: Settlement) -> Steps[None]:
    """What every settlement leaves on the record, whatever becomes of the job."""
    if settlement.error is not None:
        yield from moves.blame(unit, record, settlement.error, record.attempts)
    if settlement.refund:
        record.attempts = max(0, record.attempts - 1)
    if settlement.crash:
        record.base, record.crashes = record.base or 0, (record.crashes or 0) + 1
    if settlement.throttled:
        record.base, record.throttles = record.base or 0, (record.throttles or 0) + 1
    if settlement.status is _DONE:
        record.throttles = 0
    record.settled = CODES[settlement.status]
    if settlement.metadata:
        record.base = record.base or 0
        record.metadata = encode(noted(salvaged(record.metadata), settlement.metadata))


def _cool(unit: Unit, qid: int, wish: Cool) -> Steps[None]:
    queue = (yield from unit.queue_of(qid)).queue
    cooldown = cooled(unit.now, queue.cooldown, wish)
    if cooldown != queue.cooldown:
        yield from unit.write_queue(msgspec.structs.replace(queue, cooldown=cooldown))


# --- notes ------------------------------------------------------------------------------------------------------


def note(unit: Unit, notes: Sequence[Note]) -> Steps[list[Verdict]]:
    """Write on running jobs what their handlers want to be known."""
    verdicts = []
    for one in notes:
        record = yield from held(unit, one)
        if record is None:
            verdicts.append(Verdict.LOST)
            continue
        if one.progress is not None:
            record.progress = one.progress
        if one.metadata:
            record.metadata = encode(noted(salvaged(record.metadata), one.metadata))
        if one.lines:
            record.log = encode((*salvaged_log(record.log), *one.lines)[-LONGEST_LOG:])
        yield from moves.write_past(record)
        verdicts.append(_APPLIED)
    return verdicts
