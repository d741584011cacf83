"""The stored job: every step is pure, and what it leaves alone stays."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model.control import Queue
from stoker.model.errors import InvalidTransition
from stoker.model.ids import compose, text
from stoker.model.job import (
    FIRST,
    LARGEST_METADATA,
    LONGEST_HISTORY,
    LONGEST_LOG,
    ORIGINAL,
    OWN_PRIORITY,
    Draft,
    Failure,
    Job,
    Note,
    Options,
    Settlement,
    Status,
)
from stoker.model.lifecycle import SETTLED, TRANSITIONS
from stoker.model.limit import Slot
from stoker.model.query import CANCEL_REASON, Cancel, Edit, Fork
from stoker.model.record import TOTALS, WAITING, Record, due_at
from stoker.model.retry import Curve
from stoker.model.run_origins import number
from stoker.model.steps import Step, StepState, Wakes
from stoker.model.subqueues import keeps_slot
from stoker.model.throttle import Cooldown
from stoker.model.time import DAY, HOUR, SECOND
from stoker.model.unique import SUPERSEDED, Holder, Kept, Unique

NOW = 1_000 * SECOND
QUEUE = Queue(name="mail", keep_done=HOUR, keep_dead=DAY)


def record(**changes: Any) -> Record:
    draft = Draft(compose(1, 1), "send", b'{"to":1}', queue="mail", priority=3, attempts=7)
    return msgspec.structs.replace(Record.drafted(draft, NOW), **changes)


def running(**changes: Any) -> Record:
    return msgspec.structs.replace(record().claimed("w1", NOW), **changes)


def settlement(of: Record, status: Status, **more: Any) -> Settlement:
    return Settlement(of.id, of.worker or "", of.token, status, **more)


# --- a draft is stored ------------------------------------------------------------------------------------------


@pytest.mark.spec("RECORD-01")
def test_a_draft_becomes_a_pending_job() -> None:
    unique, options = Unique("k"), Options(timeout=SECOND)
    draft = Draft(
        compose(1, 2), "send", b"[]", queue="mail", priority=-1, attempts=2, unique=unique, tenant="t", options=options
    )
    stored = Record.drafted(draft, NOW)
    assert (stored.id, stored.kind, stored.payload, stored.queue) == (draft.job_id, "send", b"[]", "mail")
    assert (stored.priority, stored.budget, stored.unique, stored.tenant) == (-1, 2, unique, "t")
    assert (stored.status, stored.created_at, stored.scheduled_at) == (Status.PENDING, NOW, NOW)
    assert stored.options is options


@pytest.mark.spec("FAULT-44")
def test_what_is_nowhere_is_shown_as_dead_and_not_counted() -> None:
    assert record().counted
    assert record(unreadable="no state", finished_at=NOW).counted
    assert record(unreadable="the options").counted
    assert not record(unreadable="no state", status=Status.DEAD).counted


@pytest.mark.spec("RECORD-01")
def test_a_draft_is_due_after_its_delay_or_at_its_moment() -> None:
    assert due_at(Draft(compose(1, 1), "k"), NOW) == NOW
    assert due_at(Draft(compose(1, 1), "k", delay=SECOND), NOW) == NOW + SECOND
    assert due_at(Draft(compose(1, 1), "k", at=5), NOW) == 5


@pytest.mark.spec("RECORD-01")
def test_the_last_error_of_a_job_is_told_once() -> None:
    """Beside the history only where no run ended with it, as with a job that was canceled or set aside."""
    first, last = Failure(NOW, 1, "first"), Failure(NOW + 1, 2, "last")
    for history in ((), (last,), (first, last)):
        failed = record(history=history, last_error=history[-1].error if history else None, finished_at=NOW + 2)
        assert failed.errors == history
        other = msgspec.structs.replace(failed, last_error="set aside")
        assert other.errors == (*history, Failure(NOW + 2, 0, "set aside"))
    assert record(history=(first,), last_error=None).errors == (first,)


# --- keys -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("RECORD-02")
def test_active_jobs_hold_their_key_and_finished_ones_do_not() -> None:
    keyed = record(unique=Unique("k"))
    assert (record().slot, record().held_slot) == (None, None)
    for status in Status:
        held = msgspec.structs.replace(keyed, status=status).held_slot
        assert held == ("send/k" if status in WAITING | {Status.RUNNING} else None)


@pytest.mark.spec("RECORD-02")
def test_how_firmly_a_key_is_held() -> None:
    assert record(unique=Unique("k")).holder is Holder.PENDING
    assert running(unique=Unique("k")).holder is Holder.RUNNING
    assert record(unique=Unique("k"), status=Status.RETRYING).holder is Holder.WEAK
    assert record(status=Status.RETRYING).holder is Holder.WEAK
    assert record(unique=Unique("k", hold="retrying"), status=Status.RETRYING).holder is Holder.STRONG


# --- runs -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("RECORD-03")
def test_a_claim_raises_token_and_attempt_and_forgets_the_last_run() -> None:
    before = record(
        token=NOW + 5, attempts=2, cancel_requested=True, cancel_requested_at=1, settled=Status.RETRYING, former="w0"
    )
    claimed = before.claimed("w1", NOW)
    assert (claimed.status, claimed.worker, claimed.token) == (Status.RUNNING, "w1", NOW + 6)
    assert (claimed.attempts, claimed.started_at) == (3, NOW)
    assert (claimed.cancel_requested, claimed.cancel_requested_at) == (False, None)
    assert (claimed.settled, claimed.former, claimed.former_at) == (None, None, None)
    assert record().claimed("w1", NOW).token == NOW


@pytest.mark.spec("RECORD-03")
def test_a_reaped_claim_changes_hands_under_a_new_token() -> None:
    claimed = running()
    reaped = claimed.reaped("w2", NOW + SECOND)
    assert (reaped.worker, reaped.token, reaped.started_at) == ("w2", NOW + SECOND, NOW + SECOND)
    assert (reaped.former, reaped.former_at, reaped.attempts) == ("w1", NOW, claimed.attempts)
    assert reaped.runs_as("w2", reaped.token)
    assert not reaped.runs_as("w1", claimed.token)
    assert not reaped.runs_as("w2", claimed.token)
    assert not record().runs_as("w2", 0)
    assert claimed.reaped("w2", NOW).token == claimed.token + 1, "also while the clock stands still"


@pytest.mark.spec("RECORD-04")
def test_success_keeps_the_result_and_clears_throttles_and_last_error() -> None:
    before = running(throttles=2, last_error="boom", history=(Failure(1, 1, "boom"),))
    after = before.settle(settlement(before, Status.DONE, result=b"1", metadata={"a": "b"}), NOW, QUEUE)
    assert after is not None
    assert (after.status, after.result, after.throttles, after.last_error) == (Status.DONE, b"1", 0, None)
    assert (after.finished_at, after.expires_at, after.worker) == (NOW, NOW + HOUR, None)
    assert (after.history, after.metadata, after.settled) == (before.history, {"a": "b"}, Status.DONE)
    assert after.ended_by(settlement(before, Status.DONE))
    assert not after.ended_by(settlement(before, Status.DEAD))
    assert not after.ended_by(msgspec.structs.replace(settlement(before, Status.DONE), token=1))


@pytest.mark.spec("RECORD-04")
def test_success_that_is_kept_for_no_time_deletes() -> None:
    before = running()
    assert before.settle(settlement(before, Status.DONE, keep=0), NOW, QUEUE) is None
    kept = before.settle(settlement(before, Status.DONE, keep=5), NOW, QUEUE)
    assert kept is not None
    assert kept.expires_at == NOW + 5


@pytest.mark.spec("RECORD-04")
def test_a_failure_is_the_last_error_and_an_entry_of_the_history() -> None:
    before = running()
    after = before.settle(settlement(before, Status.RETRYING, after=SECOND, error="boom", crash=True), NOW, QUEUE)
    assert after is not None
    assert (after.status, after.scheduled_at, after.worker) == (Status.RETRYING, NOW + SECOND, None)
    assert (after.last_error, after.history) == ("boom", (Failure(NOW, 1, "boom", number("w1")),))
    assert (after.attempts, after.crashes, after.result) == (1, 1, None)


@pytest.mark.spec("RECORD-04")
def test_a_refunded_run_costs_no_attempt() -> None:
    before = running(last_error="old")
    after = before.settle(settlement(before, Status.PENDING, refund=True, throttled=True), NOW, QUEUE)
    assert after is not None
    assert (after.attempts, after.throttles, after.last_error, after.history) == (0, 1, "old", ())


@pytest.mark.spec("RECORD-04")
@given(
    st.sampled_from(sorted(SETTLED)), st.booleans(), st.booleans(), st.none() | st.text(max_size=3), st.integers(0, 40)
)
def test_whatever_a_settlement_says_the_record_stays_whole(
    status: Status, refund: bool, crash: bool, error: str | None, entries: int
) -> None:
    history = tuple(Failure(n, n, "e") for n in range(min(entries, LONGEST_HISTORY)))
    before = running(history=history)
    end = settlement(before, status, refund=refund, crash=crash, error=error, after=3)
    after = before.settle(end, NOW, QUEUE)
    assert after is not None
    assert after.status in TRANSITIONS[Status.RUNNING]
    assert (after.worker, after.settled, after.token) == (None, status, before.token)
    assert (after.finished_at is None) == (after.expires_at is None) == (status in WAITING)
    assert len(after.history) == min(len(history) + (error is not None), LONGEST_HISTORY)
    assert after.attempts == before.attempts - refund
    assert (after.id, after.kind, after.payload, after.created_at) == (
        before.id, before.kind, before.payload, before.created_at,
    )  # fmt: skip
    assert (status in TOTALS) == (status is not Status.PENDING)
    assert before.settle(end, NOW, QUEUE) == after


@pytest.mark.spec("RECORD-05")
def test_notes_add_up() -> None:
    noted = running().note(Note(b"", "", 0, 0.5, {"a": "1"}, ("x",))).note(Note(b"", "", 0, None, {"b": "2"}, ("y",)))
    assert (noted.progress, noted.metadata, noted.log) == (0.5, {"a": "1", "b": "2"}, ("x", "y"))
    many = noted.note(Note(b"", "", 0, lines=tuple(map(str, range(LONGEST_LOG)))))
    assert len(many.log) == LONGEST_LOG
    assert many.log[-1] == str(LONGEST_LOG - 1)


# --- operators --------------------------------------------------------------------------------------------------


@pytest.mark.spec("RECORD-06")
def test_a_running_job_is_asked_to_stop_and_the_first_request_counts() -> None:
    asked = running().asked_to_stop(NOW + 1, Cancel("enough")).asked_to_stop(NOW + 2)
    assert (asked.cancel_requested, asked.cancel_requested_at) == (True, NOW + 1)
    assert asked.metadata == {CANCEL_REASON: "enough"}
    assert asked.status is Status.RUNNING


@pytest.mark.spec("RECORD-06")
def test_cancel_ends_a_job_without_an_entry_of_the_history() -> None:
    ended = record().cancel("no more", NOW, QUEUE)
    assert (ended.status, ended.last_error, ended.history) == (Status.CANCELED, "no more", ())
    assert (ended.finished_at, ended.expires_at) == (NOW, NOW + DAY)
    with pytest.raises(InvalidTransition):
        ended.cancel("again", NOW, QUEUE)


@pytest.mark.spec("RECORD-06")
def test_requeue_starts_a_fresh_budget_and_goes_on_counting() -> None:
    dead = record(
        status=Status.DEAD, attempts=7, crashes=2, started_at=1, finished_at=2, expires_at=3, progress=0.5,
        cancel_requested=True, cancel_requested_at=1, last_error="boom",
    )  # fmt: skip
    again = dead.requeue(NOW)
    assert (again.status, again.scheduled_at, again.base, again.attempts, again.crashes) == (
        Status.PENDING,
        NOW,
        7,
        7,
        0,
    )
    assert (again.started_at, again.finished_at, again.expires_at, again.progress) == (None, None, None, None)
    assert (again.cancel_requested, again.cancel_requested_at, again.last_error) == (False, None, "boom")
    with pytest.raises(InvalidTransition):
        record(status=Status.DONE).requeue(NOW)


@pytest.mark.spec("STEP-35")
def test_a_fork_leaves_key_and_group_to_its_original() -> None:
    group = compose(5, 5)
    one = record(status=Status.DONE, unique=Unique("k"), token=9, options=Options(group=group))
    copy = one.fork(compose(9, 9), Fork((compose(9, 9),), "charge"), NOW)
    assert (copy.unique, copy.options.group, copy.token, copy.payload) == (None, None, 1, one.payload)
    anew = one.fork(compose(9, 9), Fork((compose(9, 9),), None, b"[8]"), NOW)
    assert (anew.token, anew.payload, anew.status) == (0, b"[8]", Status.PENDING)
    for plain in (anew, one.clone(compose(9, 9), NOW)):
        assert plain.options.metadata == {ORIGINAL: text(one.id)}, "what is not sealed has no lineage"


@pytest.mark.spec("RECORD-06")
def test_a_clone_has_not_run_yet_and_its_original_names_it() -> None:
    dead, job = record(status=Status.DEAD, attempts=7, unique=Unique("k"), tenant="t", last_error="x"), compose(9, 9)
    copy = dead.clone(job, NOW + 1)
    assert copy.options == Options(metadata={ORIGINAL: text(dead.id)})
    full = record(status=Status.DEAD, options=Options(metadata={"a": "x" * (LARGEST_METADATA - 1)}))
    assert full.clone(job, NOW).options == full.options, "there is no room for the name of the original"
    assert msgspec.structs.replace(copy, options=Options()) == Record.drafted(
        Draft(job, "send", b'{"to":1}', queue="mail", priority=3, attempts=7, unique=Unique("k"), tenant="t"), NOW + 1
    )
    original = dead.retried_as(job, NOW + 1, QUEUE)
    assert (original.status, original.successor, original.last_error) == (Status.RETRIED, job, "x")
    assert original.expires_at == NOW + 1 + QUEUE.keep_dead
    with pytest.raises(InvalidTransition):
        record().retried_as(job, NOW, QUEUE)


@pytest.mark.spec("RECORD-06")
def test_discarding_keeps_the_time_of_the_end_and_counts_the_retention_anew() -> None:
    gone = record(status=Status.DEAD, finished_at=5, expires_at=6).discard(NOW, QUEUE)
    assert (gone.status, gone.finished_at, gone.expires_at) == (Status.DISCARDED, 5, NOW + QUEUE.keep_dead)
    with pytest.raises(InvalidTransition):
        record().discard(NOW, QUEUE)


@pytest.mark.spec("RECORD-06")
def test_waiting_jobs_change_their_place() -> None:
    waiting = record(scheduled_at=NOW + SECOND)
    assert waiting.run_now(NOW).scheduled_at == NOW
    assert record(scheduled_at=5).run_now(NOW).scheduled_at == 5
    assert waiting.move("other", NOW).queue == "other"
    assert waiting.prioritize(-7).priority == -7


# --- newer jobs with the same key -------------------------------------------------------------------------------


@pytest.mark.spec("RECORD-07")
def test_a_superseded_job_is_dead() -> None:
    dead = record(status=Status.RETRYING, attempts=1).supersede(NOW, QUEUE)
    assert (dead.status, dead.last_error, dead.history) == (Status.DEAD, SUPERSEDED, ())
    assert dead.expires_at == NOW + DAY
    with pytest.raises(InvalidTransition):
        record(status=Status.DONE).supersede(NOW, QUEUE)


@pytest.mark.spec("RECORD-07")
def test_a_replaced_job_keeps_its_id_its_age_and_its_history() -> None:
    before = record(attempts=2, history=(Failure(1, 1, "e"),), metadata={"a": "b"})
    draft = Draft(compose(5, 5), "send", b"2", queue="q", priority=1, delay=SECOND, attempts=3, unique=Unique("k"))
    after = before.replace(draft, NOW + 10)
    assert (after.id, after.created_at, after.history, after.metadata) == (
        before.id, before.created_at, before.history, before.metadata,
    )  # fmt: skip
    assert (after.payload, after.queue, after.priority, after.budget) == (b"2", "q", 1, 3)
    assert (after.scheduled_at, after.unique) == (NOW + 10 + SECOND, Unique("k"))


@pytest.mark.spec("KEY-16")
def test_a_replaced_job_waits_no_longer_than_its_draft_allows() -> None:
    unique = Unique("k", mode="replace", longest=60)
    draft = Draft(compose(5, 5), "send", delay=40 * SECOND, unique=unique)
    first = Record.drafted(draft, NOW)
    assert (first.scheduled_at, first.unique) == (NOW + 40 * SECOND, Unique("k", mode="replace"))
    for after, due in ((10, 50), (20, 60), (50, 60), (90, 60)):  # the last one is overdue and keeps its place
        again = first.replace(draft, NOW + after * SECOND)
        assert again.scheduled_at == NOW + due * SECOND
        assert again.unique == first.unique
    later = msgspec.structs.replace(first, scheduled_at=NOW + 200 * SECOND)
    assert later.replace(draft, NOW + 90 * SECOND).scheduled_at == NOW + 90 * SECOND


@pytest.mark.spec("KEY-18")
def test_a_success_keeps_the_key_from_the_enqueue_on() -> None:
    plain = Record.drafted(Draft(compose(5, 5), "send", unique=Unique("k")), NOW)
    bare = Record.drafted(Draft(compose(5, 6), "send"), NOW)
    keeping = Record.drafted(Draft(compose(5, 7), "send", unique=Unique("k", for_=60)), NOW)
    assert [plain.keeps, bare.keeps] == [None, None]
    assert (keeping.keeps, keeping.kept) == (Kept(keeping.id, NOW + 60 * SECOND), None)
    done = msgspec.structs.replace(keeping, status=Status.DONE)
    assert done.kept == keeping.keeps
    assert done.held_slot is None


@pytest.mark.spec("HOLD-13")
def test_a_newer_limit_holds_no_slot_of_an_earlier_run() -> None:
    slot = Slot("api", "a", 1, "retrying")
    bare = Draft(compose(5, 5), "send", unique=Unique("k", mode="replace"))
    brought = msgspec.structs.replace(bare, options=Options(limit=slot))
    for before in (record(settled=Status.PENDING), record(settled=Status.RETRYING, options=Options(limit=slot))):
        for draft in (brought, bare):
            assert not keeps_slot(before.replace(draft, NOW))
    assert record(settled=Status.PENDING).replace(bare, NOW).settled is Status.PENDING


@pytest.mark.spec("RECORD-09")
@pytest.mark.parametrize("started", [True, False])
def test_a_job_that_cannot_be_read_is_dead_and_holds_no_key(started: bool) -> None:
    claimed = running(unique=Unique("k"))
    dead = claimed.set_aside("no options", NOW, QUEUE, started=started)
    assert (dead.status, dead.last_error, dead.held_slot) == (Status.DEAD, "corrupt record: no options", None)
    assert dead.attempts == (1 if started else 0)
    assert (dead.worker, dead.finished_at, dead.expires_at) == (None, NOW, NOW + DAY)


# --- what leaves the store --------------------------------------------------------------------------------------


@pytest.mark.spec("RECORD-08")
def test_as_job_shows_every_field() -> None:
    stored = running(metadata={"a": "b"})
    job = stored.as_job()
    assert {field: getattr(job, field) for field in Job.__struct_fields__} == {
        field: getattr(stored, field) for field in Job.__struct_fields__
    }


@pytest.mark.spec("RECORD-08")
def test_as_claim_carries_the_fence_and_the_queue() -> None:
    queue = Queue(name="mail", curve=Curve(on=True), cooldown=Cooldown(5, 4))
    claim = running(metadata={"a": "b"}).as_claim(queue, Status.RETRYING)
    assert (claim.worker, claim.token, claim.attempt, claim.claimed_at) == ("w1", NOW, 1, NOW)
    assert (claim.curve, claim.cool_count, claim.before) == (queue.curve, 4, Status.RETRYING)
    assert claim.metadata == {"a": "b"}
    assert running().as_claim(QUEUE).metadata is None
    assert running().as_claim(QUEUE).before is Status.RUNNING


@pytest.mark.spec("ALTER-25")
def test_an_edit_changes_what_it_names_and_nothing_else() -> None:
    before = Record.drafted(Draft(b"1" * 16, "send", payload=b"1"), 5)
    assert before.edit(Edit(priority=3)) == msgspec.structs.replace(before, priority=3)
    everything = before.edit(Edit(payload=b"2", at=9, attempts=7, priority=-1))
    assert everything == msgspec.structs.replace(before, payload=b"2", scheduled_at=9, budget=7, priority=-1)


@pytest.mark.spec("ALTER-26")
def test_a_job_is_restored_only_while_nothing_happened_to_it() -> None:
    queue = Queue(name="default")
    before = Record.drafted(Draft(b"1" * 16, "send", at=9), 5)
    canceled = before.cancel("no", 6, queue)
    former = before.as_former(canceled)
    assert canceled.restorable(former)
    restored = canceled.restore(former, NOW)
    assert msgspec.structs.replace(restored, last_error=None) == before
    assert not restored.restorable(former)
    later = before.cancel("no", 7, queue)
    assert not later.restorable(former)
    assert not msgspec.structs.replace(canceled, token=3).restorable(former)
    dead = msgspec.structs.replace(canceled, status=Status.DEAD)
    discarded = dead.discard(NOW, queue)
    assert not discarded.restorable(former)
    gone = dead.as_former(discarded)
    assert discarded.restorable(gone)
    assert discarded.restore(gone, NOW) == msgspec.structs.replace(dead, expires_at=NOW + queue.keep_dead)
    assert before.as_former(None).ended is None


@pytest.mark.spec("FIRST-01")
def test_a_job_put_first_remembers_its_own_priority() -> None:
    put = record().run_now(NOW, first=True)
    assert (put.priority, put.own_priority, put.metadata) == (FIRST, 3, {OWN_PRIORITY: "3"})
    assert put.run_now(NOW, first=True) == put
    assert record().run_now(NOW).priority == record().run_now(NOW).own_priority == 3, "nobody put it first"
    for noted in ({}, {OWN_PRIORITY: "x"}, {OWN_PRIORITY: "9999"}):
        assert msgspec.structs.replace(put, metadata=noted).own_priority == 0


# --- suspended jobs ---------------------------------------------------------------------------------------------

WAIT = Step("go", StepState.WAITING)


def suspended(wakes: Wakes = Wakes.ANY, **changes: Any) -> Record:
    before = running(attempts=3, crashes=2, **changes)
    ending = settlement(before, Status.PENDING, refund=True, after=HOUR, steps=(WAIT,), wakes=wakes)
    after = before.settle(ending, NOW, QUEUE)
    assert after is not None
    assert after.ended_by(ending)
    assert not after.ended_by(settlement(before, Status.PENDING))
    return after


@pytest.mark.spec("STEP-10")
def test_a_suspension_refunds_the_attempt_and_begins_the_budget_anew() -> None:
    after = suspended()
    assert (after.status, after.settled, after.suspended) == (Status.PENDING, Wakes.ANY, True)
    assert (after.attempts, after.base, after.crashes) == (2, 2, 0)
    assert after.scheduled_at == NOW + HOUR
    assert after.as_job().suspended
    again = after.claimed("w2", NOW)
    assert (again.suspended, again.settled) == (False, None)


@pytest.mark.spec("STEP-11")
def test_a_suspended_job_holds_its_key_like_a_running_one() -> None:
    assert suspended().holder is Holder.RUNNING
    assert record().holder is Holder.PENDING
    snoozed = running().settle(settlement(running(), Status.PENDING, refund=True), NOW, QUEUE)
    assert snoozed is not None
    assert (snoozed.suspended, snoozed.holder) == (False, Holder.PENDING)


@pytest.mark.spec("STEP-12")
@pytest.mark.parametrize(("due", "view"), [(NOW, "ready"), (NOW + 1, "waiting")])
def test_a_suspended_job_is_shown_as_waiting_until_it_is_due(due: int, view: str) -> None:
    shown = msgspec.structs.replace(suspended(), scheduled_at=due).as_job()
    assert shown.view(NOW) == view


@pytest.mark.spec("STEP-20")
def test_an_answer_makes_a_suspended_job_due() -> None:
    job = suspended()
    mine = msgspec.structs.replace(WAIT, token=job.token)
    other = msgspec.structs.replace(mine, name="other")
    assert job.answered(mine, [other], NOW + 5).scheduled_at == NOW + 5
    assert job.answered(mine, [], NOW + 2 * HOUR).scheduled_at == NOW + HOUR
    assert job.answered(WAIT, [], NOW + 5) is job
    every = suspended(Wakes.ALL)
    assert every.answered(mine, [other], NOW + 5) is every
    assert every.answered(mine, [msgspec.structs.replace(other, token=0)], NOW + 5).scheduled_at == NOW + 5


@pytest.mark.spec("STEP-21")
def test_an_answer_wakes_nobody_who_is_not_suspended() -> None:
    job = suspended()
    mine = msgspec.structs.replace(WAIT, token=job.token)
    for other in (
        running(),
        record(scheduled_at=NOW + HOUR),
        msgspec.structs.replace(job, settled=Status.PENDING),
        msgspec.structs.replace(job, status=Status.RETRYING, settled=Status.RETRYING),
        job.cancel("no", NOW, QUEUE),
    ):
        assert other.answered(mine, [], NOW + 5) is other


@pytest.mark.spec("STEP-13")
def test_a_suspended_job_that_gives_its_slot_back_runs_again() -> None:
    """Without its slot it would look as if it had never been suspended, and no signal could wake it."""
    holding = Options(limit=Slot("line", "a", 1, "retrying"))
    job = suspended(options=holding)
    assert keeps_slot(job)
    moved = job.move("other", NOW + 5)
    assert (moved.scheduled_at, keeps_slot(moved)) == (NOW + 5, False)
    canceled = job.cancel("no", NOW, QUEUE)
    restored = canceled.restore(job.as_former(canceled), NOW + 5)
    assert (restored.scheduled_at, keeps_slot(restored)) == (NOW + 5, False)
    plain = suspended()
    assert plain.move("other", NOW + 5).suspended
    assert plain.move("other", NOW + 5).scheduled_at == NOW + HOUR
    ended = plain.cancel("no", NOW, QUEUE)
    assert ended.restore(plain.as_former(ended), NOW + 5) == msgspec.structs.replace(plain, last_error="no")


@pytest.mark.spec("LEASE-06")
def test_a_reaped_run_ends_for_its_former_worker_unless_it_ends_well() -> None:
    """The worker that took it over only settles it; where it succeeds, the outcome is its own."""
    taken = running().reaped("w2", NOW + 1)
    assert taken._origin(Status.DONE) == number("w2")
    assert taken._origin(Status.RETRYING) == number("w1")
    assert running()._origin(Status.RETRYING) == number("w1")
    again = msgspec.structs.replace(running(), status=Status.DEAD, origin=7).requeue(NOW + 2)
    assert again.origin == 0
