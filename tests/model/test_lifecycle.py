from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model.errors import InvalidInput, InvalidTransition
from stoker.model.ids import text
from stoker.model.job import ACTIVE, FINISHED, PARENT, Claim, Draft, Options, Settlement, Status
from stoker.model.lifecycle import (
    HELD_BY,
    HELD_FOR,
    KEEP_DEAD,
    KEEP_DONE,
    RESULT_WARNING,
    SETTLED,
    TRANSITIONS,
    UNFIT_SINCE,
    Rules,
    accepts,
    check_settlements,
    check_transition,
    conclude,
    deletes,
    due_again,
    expired,
    expiry,
    spent,
)
from stoker.model.outcome import (
    Canceled,
    Crashed,
    Done,
    Expired,
    Failed,
    HandedBack,
    Held,
    Lost,
    Outcome,
    Panicked,
    Rejected,
    Snoozed,
    Suspended,
    Throttle,
    Throttled,
    TimedOut,
    Unfit,
)
from stoker.model.retry import Backoff, Curve, Fixed, Never
from stoker.model.steps import NEVER, Step, StepState, Wakes
from stoker.model.throttle import FLAT_COOLDOWN, Cool
from stoker.model.time import DAY, HOUR, LONGEST, MINUTE, SECOND

NOW = 1_800_000_000_000_000
ID = b"0123456789abcdef"
CURVE = Curve(on=True, base=10 * SECOND, max=HOUR)

SPANS = st.integers(0, LONGEST)
OUTCOMES: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Done, st.none() | st.binary(), st.none() | st.text()),
    st.builds(Failed, st.text(), st.booleans(), st.none() | SPANS, st.none() | st.integers(0, 2 * NOW)),
    st.builds(TimedOut, SPANS, st.booleans(), st.none() | st.text()),
    st.builds(Rejected, st.text()),
    st.builds(Panicked, st.text()),
    st.builds(Snoozed, SPANS),
    st.builds(Throttled, st.none() | SPANS, st.booleans()),
    st.builds(Suspended, st.just((Step("go", StepState.WAITING),)), st.none() | SPANS, st.sampled_from(Wakes)),
    st.just(HandedBack()),
    st.just(Lost()),
    st.builds(Crashed, st.text(), st.booleans()),
    st.builds(Canceled, st.text()),
    st.just(Expired()),
    st.builds(Unfit, st.text()),
)
ONE_OF_EACH: list[Outcome] = [
    Done(),
    Failed("x"),
    TimedOut(SECOND),
    Rejected("x"),
    Panicked("x"),
    Snoozed(SECOND),
    Throttled(),
    Suspended((Step("go", StepState.WAITING),)),
    HandedBack(),
    Lost(),
    Crashed("x"),
    Canceled(),
    Expired(),
    Unfit("x"),
]


def claimed(**changes: Any) -> Claim:
    fields: dict[str, Any] = {
        "id": ID,
        "kind": "work",
        "queue": "default",
        "payload": b"{}",
        "attempt": 1,
        "base": 0,
        "budget": 5,
        "worker": "w1",
        "token": 42,
        "claimed_at": NOW,
        "created_at": NOW - HOUR,
        "scheduled_at": NOW - HOUR,
    }
    return Claim(**{**fields, **changes})


CLAIMS = st.builds(
    claimed,
    attempt=st.integers(1, 2**40),
    base=st.integers(0, 5),
    budget=st.integers(1, 10),
    crashes=st.integers(0, 2**40),
    cool_count=st.integers(0, 2**40),
    cancel_requested=st.booleans(),
    curve=st.sampled_from([Curve(), CURVE]),
    former=st.none() | st.just("w0"),
    former_at=st.none() | st.just(NOW - HOUR),
    metadata=st.none() | st.just({UNFIT_SINCE: str(NOW - MINUTE)}) | st.just({UNFIT_SINCE: "soon"}),
    options=st.sampled_from([Options(), Options(backoff=Fixed(3)), Options(backoff=Never()), Options(keep=0)]),
)


# --- the table ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("STATUS-03")
@pytest.mark.parametrize(("before", "after"), [*itertools.product(Status, Status)])
def test_whatever_is_not_in_the_table_does_not_happen(before: Status, after: Status) -> None:
    if after in TRANSITIONS[before]:
        check_transition(before, after)
        return
    with pytest.raises(InvalidTransition, match=f"from {before} to {after}") as refused:
        check_transition(before, after, ID)
    assert (refused.value.before, refused.value.after) == (before, after)
    assert refused.value.whose == text(ID)


@pytest.mark.spec("STATUS-03")
def test_a_refusal_without_an_id_is_a_refusal_too() -> None:
    with pytest.raises(InvalidTransition, match="a job cannot go from done to running"):
        check_transition(Status.DONE, Status.RUNNING)


@pytest.mark.spec("STATUS-03")
def test_the_shape_of_the_table() -> None:
    assert set(TRANSITIONS) == set(Status)
    assert {status for status in Status if not TRANSITIONS[status]} == {Status.DONE, Status.RETRIED}
    for status in FINISHED:
        assert TRANSITIONS[status] & ACTIVE <= {Status.PENDING}
    claimable = {status for status in Status if Status.RUNNING in TRANSITIONS[status]} - {Status.RUNNING}
    assert claimable == {Status.PENDING, Status.RETRYING}
    assert {status for status in Status if Status.DONE in TRANSITIONS[status]} == {Status.RUNNING}


@pytest.mark.spec("STATUS-03")
def test_every_status_can_be_reached_from_an_enqueue() -> None:
    reached = {Status.PENDING}
    while more := {after for before in reached for after in TRANSITIONS[before]} - reached:
        reached |= more
    assert reached == set(Status)


@pytest.mark.spec("STATUS-01", "STATUS-04")
@given(CLAIMS, OUTCOMES)
def test_a_conclusion_is_always_a_legal_settlement_of_its_claim(claim: Claim, outcome: Outcome) -> None:
    settlement = conclude(claim, outcome)
    assert (settlement.id, settlement.worker, settlement.token) == (claim.id, claim.worker, claim.token)
    assert settlement.status in SETTLED <= TRANSITIONS[Status.RUNNING]
    assert settlement.after >= 0
    unblamed = isinstance(outcome, Crashed) and outcome.shared
    assert unblamed or not (settlement.refund and settlement.crash)
    assert accepts(settlement.status, cancel_requested=claim.cancel_requested)
    if settlement.status is Status.RETRYING:
        assert settlement.refund is (settlement.crash and unblamed)
        assert settlement.refund or not spent(claim)
        assert settlement.error is not None
    if settlement.status is Status.PENDING:
        assert settlement.refund
        assert settlement.error is None
    if settlement.status in {Status.DEAD, Status.CANCELED}:
        assert settlement.error is not None
    assert conclude(claim, outcome) == settlement


@pytest.mark.spec("STATUS-04")
@given(CLAIMS, OUTCOMES, st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3))
def test_what_a_run_noted_is_never_dropped(claim: Claim, outcome: Outcome, metadata: dict[str, str]) -> None:
    noted = conclude(claim, outcome, metadata=metadata).metadata or {}
    assert {key: noted[key] for key in metadata} == metadata


# --- one arm after the other ----------------------------------------------------------------------------------------


@pytest.mark.spec("SETTLE-01")
def test_done_carries_result_and_follow_ups() -> None:
    child = Draft(ID, "child")
    settlement = conclude(claimed(ref="here"), Done(b"1", None, (child,)))
    assert settlement == Settlement(ID, "w1", 42, Status.DONE, result=b"1", followups=(child,), ref="here")


@pytest.mark.spec("SETTLE-01")
def test_a_result_that_was_not_kept_leaves_a_warning() -> None:
    settlement = conclude(claimed(), Done(None, "cannot be encoded"), metadata={"a": "b"})
    assert settlement.metadata == {"a": "b", RESULT_WARNING: "cannot be encoded"}


@pytest.mark.spec("SETTLE-03")
@pytest.mark.parametrize(("own", "task", "expected"), [(None, None, None), (5, 7, 5), (None, 7, 7), (0, 7, 0)])
def test_how_long_success_is_kept(own: int | None, task: int | None, expected: int | None) -> None:
    settlement = conclude(claimed(options=Options(keep=own)), Done(), Rules(keep=task))
    assert settlement.keep == expected
    assert deletes(settlement) == (expected == 0)


@pytest.mark.spec("SETTLE-03")
@pytest.mark.parametrize(("own", "task", "expected"), [(None, None, 9), (5, None, 5), (None, 7, 7), (0, None, 0)])
def test_the_app_speaks_last_and_only_for_some_queues(own: int | None, task: int | None, expected: int) -> None:
    rules = Rules(keep=task, keeps={"q": 9})
    assert conclude(claimed(queue="q", options=Options(keep=own)), Done(), rules).keep == expected
    assert conclude(claimed(queue="other"), Done(), Rules(keeps={"q": 9})).keep is None


@pytest.mark.spec("SETTLE-02")
def test_only_success_deletes() -> None:
    for outcome in ONE_OF_EACH:
        settlement = conclude(claimed(options=Options(keep=0)), outcome)
        assert deletes(settlement) == isinstance(outcome, Done)


@pytest.mark.spec("SETTLE-03")
@given(st.none() | SPANS, SPANS, SPANS)
def test_expiry_by_status(keep: int | None, done: int, dead: int) -> None:
    assert expiry(Status.DONE, NOW, keep, done, dead) == NOW + (done if keep is None else keep)
    for status in FINISHED - {Status.DONE}:
        assert expiry(status, NOW, keep, done, dead) == NOW + dead
    assert KEEP_DONE < KEEP_DEAD


@pytest.mark.spec("COOL-10")
def test_success_says_something_about_the_queue_only_where_it_was_throttled() -> None:
    assert conclude(claimed(), Done()).cool is None
    assert conclude(claimed(cool_count=3), Done()).cool == Cool(3)


@pytest.mark.spec("ATTEMPT-03")
@pytest.mark.parametrize(
    "outcome", [Failed("x"), TimedOut(1), Lost(), Crashed("x")], ids=["fail", "time", "lost", "crash"]
)
@given(st.integers(0, 100), st.integers(1, 100), st.integers(1, 200))
def test_the_budget_decides_whichever_way_a_run_fails(outcome: Outcome, base: int, budget: int, run: int) -> None:
    claim = claimed(attempt=base + run, base=base, budget=budget)
    settlement = conclude(claim, outcome, Rules(crash_limit=None))
    assert spent(claim) == (run >= budget)
    assert settlement.status is (Status.DEAD if run >= budget else Status.RETRYING)
    assert not settlement.refund


@pytest.mark.spec("SETTLE-19")
def test_after_a_first_death_of_its_process_a_job_runs_again_at_once() -> None:
    rules = Rules(backoff=Fixed(20))
    assert conclude(claimed(), Crashed("x"), rules).after == 0
    assert conclude(claimed(curve=CURVE), Crashed("x"), rules).after == 20 * SECOND
    assert conclude(claimed(crashes=1), Crashed("x"), rules).after == 20 * SECOND


@pytest.mark.spec("SETTLE-04")
def test_a_failure_waits_by_the_first_voice() -> None:
    rules = Rules(backoff=Fixed(20), default=Fixed(30))
    assert conclude(claimed(), Failed("x", after=5), rules).after == 5
    assert conclude(claimed(), Failed("x", at=NOW + 9), rules).after == 9
    assert conclude(claimed(), Failed("x", at=NOW + 9, ran=4), rules).after == 5
    assert conclude(claimed(), Failed("x", at=NOW - 9), rules).after == 0
    assert conclude(claimed(options=Options(backoff=Fixed(10))), Failed("x"), rules).after == 10 * SECOND
    assert conclude(claimed(), Failed("x"), rules).after == 20 * SECOND
    assert conclude(claimed(curve=CURVE), Failed("x"), Rules(default=Fixed(30))).after == 20 * SECOND
    assert conclude(claimed(), Failed("x"), Rules(default=Fixed(30))).after == 30 * SECOND
    assert conclude(claimed(), Failed("x"), Rules(default=None)).after == MINUTE


@pytest.mark.spec("SETTLE-04")
def test_a_failure_after_a_requeue_waits_like_the_first_one() -> None:
    assert conclude(claimed(attempt=7, base=6), Failed("x")).after == SECOND
    assert conclude(claimed(attempt=8, base=6), Failed("x")).after == 2 * SECOND


@pytest.mark.spec("SETTLE-05")
@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Rejected("never"), "never"),
        (Panicked("SystemExit: 1"), "panic: SystemExit: 1"),
        (Failed("hopeless", retry=False), "hopeless"),
        (Failed("hopeless", retry=False, after=5), "hopeless"),
    ],
    ids=["rejected", "panicked", "not worth it", "not worth it whatever it asks"],
)
def test_what_ends_a_job_at_once(outcome: Outcome, words: str) -> None:
    settlement = conclude(claimed(budget=99), outcome)
    assert (settlement.status, settlement.error) == (Status.DEAD, words)
    assert not settlement.refund


@pytest.mark.spec("SETTLE-05")
def test_a_spent_backoff_ends_a_job_with_budget_left() -> None:
    claim = claimed(attempt=3, budget=99, options=Options(backoff=Fixed(1, limit=2)))
    assert conclude(claim, Failed("x")).status is Status.DEAD


@pytest.mark.spec("SETTLE-07")
def test_putting_back() -> None:
    assert conclude(claimed(), Snoozed(7)) == Settlement(ID, "w1", 42, Status.PENDING, after=7, refund=True)
    back = Settlement(ID, "w1", 42, Status.PENDING, refund=True, due=NOW - MINUTE)
    assert conclude(claimed(scheduled_at=NOW - MINUTE), HandedBack()) == back


@pytest.mark.spec("SETTLE-22")
def test_only_a_job_that_is_handed_back_keeps_its_scheduled_time() -> None:
    claim = claimed(scheduled_at=NOW - MINUTE)
    assert due_again(conclude(claim, HandedBack()), NOW) == NOW - MINUTE
    assert due_again(conclude(claim, Snoozed(7)), NOW) == NOW + 7


@pytest.mark.spec("COOL-02")
@pytest.mark.parametrize(
    ("outcome", "after", "cool"),
    [
        (Throttled(), FLAT_COOLDOWN, Cool(2, FLAT_COOLDOWN)),
        (Throttled(HOUR), HOUR, Cool(2, HOUR)),
        (Throttled(SECOND), SECOND, Cool(2, SECOND)),
        (Throttled(SECOND, queue=False), SECOND, None),
        (Throttled(None, queue=False), FLAT_COOLDOWN, None),
    ],
)
def test_a_throttle_waits_and_cools(outcome: Throttled, after: int, cool: Cool | None) -> None:
    settlement = conclude(claimed(cool_count=2), outcome)
    assert (settlement.status, settlement.after, settlement.cool) == (Status.PENDING, after, cool)
    assert (settlement.refund, settlement.throttled, settlement.error) == (True, True, None)


@pytest.mark.spec("COOL-02")
@pytest.mark.parametrize(
    ("throttle", "after", "cools"),
    [
        (Throttle(60), 4 * MINUTE, True),
        (Throttle(300), 5 * MINUTE, True),
        (Throttle(0), 4 * MINUTE, True),
        (Throttle(), 4 * MINUTE, True),
        (Throttle(60, queue=False), MINUTE, False),
        (Throttle(300, queue=False), 5 * MINUTE, False),
        (Throttle(queue=False), 4 * MINUTE, False),
    ],
)
def test_of_a_named_time_and_the_queue_s_curve_the_longer_one_counts(
    throttle: Throttle, after: int, cools: bool
) -> None:
    """The curve says 4 minutes. Where only the job waits, the named time counts, be it shorter or longer."""
    claim = claimed(curve=Curve(on=True, base=MINUTE, max=HOUR), cool_count=2)
    settlement = conclude(claim, throttle.outcome(0, str))
    assert (settlement.after, settlement.cool) == (after, Cool(2, after) if cools else None)


@pytest.mark.spec("BUDGET-12")
def test_a_snooze_keeps_the_name_of_the_budget_until_a_run_ends_otherwise() -> None:
    first = conclude(claimed(), Snoozed(SECOND, Held("llm", 50)), metadata={"a": "b"})
    assert (first.status, first.after, first.refund) == (Status.PENDING, SECOND, True)
    assert first.metadata == {"a": "b", HELD_BY: "llm", HELD_FOR: "50"}
    held = claimed(metadata={HELD_BY: "llm", HELD_FOR: "50"})
    assert conclude(held, Snoozed(SECOND, Held("sms", 1))).metadata == {HELD_BY: "sms", HELD_FOR: "1"}
    for outcome in (Snoozed(SECOND), Throttled(), Failed("no"), HandedBack(), Lost()):
        assert conclude(held, outcome).metadata == {HELD_BY: ""}
    assert conclude(claimed(metadata={HELD_BY: ""}), Snoozed(SECOND)).metadata is None
    assert conclude(held, Done()).metadata is None, "a plain success writes nothing more"


@pytest.mark.spec("SETTLE-08")
def test_an_unfit_job_is_put_back_ever_longer_and_then_dead() -> None:
    first = conclude(claimed(), Unfit("no task"))
    assert (first.status, first.after, first.metadata) == (Status.PENDING, SECOND, {UNFIT_SINCE: str(NOW)})
    seen = []
    for minutes in (0, 1, 4, 30, 59):
        claim = claimed(metadata={UNFIT_SINCE: str(NOW - minutes * MINUTE)})
        settlement = conclude(claim, Unfit("no task"), metadata={"a": "b"})
        assert settlement.metadata == {"a": "b", UNFIT_SINCE: str(NOW - minutes * MINUTE)}
        seen.append(settlement.after)
    assert seen == [SECOND, MINUTE, 4 * MINUTE, 5 * MINUTE, 5 * MINUTE]
    last = conclude(claimed(metadata={UNFIT_SINCE: str(NOW - HOUR)}), Unfit("no task"))
    assert (last.status, last.error, last.refund) == (Status.DEAD, "no task", False)


@pytest.mark.spec("SETTLE-08")
def test_without_grace_an_unfit_job_is_dead_at_once() -> None:
    assert conclude(claimed(), Unfit("no task"), Rules(unfit_grace=0)).status is Status.DEAD


@pytest.mark.spec("SETTLE-08")
@pytest.mark.parametrize("value", ["", "soon", "-5", "9" * 5_000])
def test_a_mark_that_cannot_be_read_counts_from_now(value: str) -> None:
    settlement = conclude(claimed(metadata={UNFIT_SINCE: value}), Unfit("no task"))
    assert (settlement.status, settlement.metadata) == (Status.PENDING, {UNFIT_SINCE: str(NOW)})


@pytest.mark.spec("SETTLE-08")
def test_a_mark_of_the_future_is_no_wait() -> None:
    settlement = conclude(claimed(metadata={UNFIT_SINCE: str(NOW + DAY)}), Unfit("no task"))
    assert (settlement.status, settlement.after) == (Status.PENDING, SECOND)


@pytest.mark.spec("SETTLE-09")
@pytest.mark.parametrize(
    ("crashes", "limit", "status", "words"),
    [
        (0, 3, Status.RETRYING, "process died under the job: signal 9"),
        (1, 3, Status.RETRYING, "process died under the job: signal 9"),
        (2, 3, Status.DEAD, "process died under the job for the third time: signal 9"),
        (0, 1, Status.DEAD, "process died under the job for the first time: signal 9"),
        (1, 2, Status.DEAD, "process died under the job for the second time: signal 9"),
        (3, 3, Status.DEAD, "process died under the job for the 4th time: signal 9"),
        (9, None, Status.RETRYING, "process died under the job: signal 9"),
    ],
)
def test_crashes_have_a_limit_of_their_own(crashes: int, limit: int | None, status: Status, words: str) -> None:
    settlement = conclude(claimed(crashes=crashes), Crashed("signal 9"), Rules(crash_limit=limit))
    assert (settlement.status, settlement.crash, settlement.error) == (status, True, words)


@pytest.mark.spec("ATTEMPT-06")
@pytest.mark.parametrize("budget", [1, 2, 5])
@pytest.mark.parametrize("backoff", [None, Fixed(7), Never()])
def test_a_death_that_cannot_be_blamed_costs_no_attempt(budget: int, backoff: Backoff | None) -> None:
    """Also on the last attempt, and when the policy would wait no further time; the third crash-end is the end."""
    claim, rules = claimed(attempt=budget, budget=budget), Rules(backoff=backoff)
    for crashes in (0, 1):
        settlement = conclude(msgspec.structs.replace(claim, crashes=crashes), Crashed("signal 9", shared=True), rules)
        assert (settlement.status, settlement.refund, settlement.crash) == (Status.RETRYING, True, True)
        assert "keeps its attempt" in (settlement.error or "")
    waits = claimed(crashes=1, budget=9, options=Options(backoff=Fixed(7)))
    assert conclude(waits, Crashed("signal 9", shared=True), Rules(crash_limit=3)).after == 7 * SECOND
    last = conclude(msgspec.structs.replace(claim, crashes=2), Crashed("signal 9", shared=True), rules)
    assert (last.status, last.refund, last.crash) == (Status.DEAD, False, True)


@pytest.mark.spec("ATTEMPT-06")
def test_a_job_without_a_crash_limit_pays_for_every_death() -> None:
    rules = Rules(crash_limit=None)
    first = conclude(claimed(budget=2), Crashed("signal 9", shared=True), rules)
    assert (first.status, first.refund) == (Status.RETRYING, False)
    assert conclude(claimed(attempt=2, budget=2), Crashed("signal 9", shared=True), rules).status is Status.DEAD


@pytest.mark.spec("LEASE-06")
def test_a_lapse_says_who_and_when() -> None:
    taken = claimed(former="w0", former_at=NOW - MINUTE)
    error = conclude(taken, Lost()).error or ""
    assert error.startswith("visibility timeout: worker w0 ")
    assert error.endswith("2027-01-15T07:59:00Z")
    assert conclude(taken, Lost()).after == 0
    assert conclude(claimed(), Lost()).error == "visibility timeout: the worker stopped renewing its lease"
    assert conclude(claimed(curve=CURVE), Lost()).after == 20 * SECOND


@pytest.mark.spec("SETTLE-05")
def test_a_timeout_says_how_long() -> None:
    assert conclude(claimed(), TimedOut(1_500_000)).error == "timeout: ran longer than 1.5 s"


@pytest.mark.spec("WORKER-33")
def test_a_timeout_that_the_policy_does_not_retry_is_dead() -> None:
    settlement = conclude(claimed(), TimedOut(SECOND, retry=False, remark="asked"))
    assert (settlement.status, settlement.error) == (Status.DEAD, "timeout: ran longer than 1 s\nasked")


@pytest.mark.spec("RETRY-08")
@pytest.mark.parametrize("outcome", [Failed("x", after=SECOND), Failed("x", at=2 * NOW)], ids=["delay", "moment"])
@pytest.mark.parametrize("backoff", [Never(), Fixed(0, limit=0)], ids=["never", "limit"])
def test_a_time_of_the_handlers_own_allows_no_retry(outcome: Failed, backoff: Never | Fixed) -> None:
    assert conclude(claimed(options=Options(backoff=backoff)), outcome).status is Status.DEAD
    assert conclude(claimed(), outcome, Rules(backoff=backoff)).status is Status.DEAD


@pytest.mark.spec("SETTLE-10")
@pytest.mark.parametrize(
    ("changes", "late"),
    [
        ({}, False),
        ({"options": Options(expires=HOUR)}, False),
        ({"options": Options(expires=HOUR - 1)}, True),
        ({"options": Options(expires=0)}, True),
        ({"options": Options(expires=0), "fresh": False}, False),
    ],
    ids=["no limit", "just in time", "too late", "no time at all", "a worker had it before"],
)
def test_what_was_claimed_too_late(changes: dict[str, Any], late: bool) -> None:
    assert expired(claimed(**{"fresh": True, **changes})) is late


@pytest.mark.spec("SETTLE-10")
def test_an_expired_job_is_canceled_at_no_cost() -> None:
    settlement = conclude(claimed(options=Options(expires=90 * SECOND)), Expired())
    assert (settlement.status, settlement.refund) == (Status.CANCELED, True)
    assert settlement.error == "expired: not started within 90 s"


# --- cancel ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("CANCEL-03")
@pytest.mark.parametrize("outcome", ONE_OF_EACH, ids=lambda outcome: type(outcome).__name__)
def test_after_a_request_only_success_is_not_canceled(outcome: Outcome) -> None:
    settlement = conclude(claimed(cancel_requested=True), outcome)
    if isinstance(outcome, Done):
        assert settlement.status is Status.DONE
        return
    assert settlement.status is Status.CANCELED
    assert "cancel" in (settlement.error or "")
    assert (settlement.cool, settlement.throttled, settlement.after) == (None, False, 0)


@pytest.mark.spec("CANCEL-03")
def test_a_canceled_run_tells_how_it_ended() -> None:
    flagged = claimed(cancel_requested=True)
    told = {type(outcome).__name__: conclude(flagged, outcome).error or "" for outcome in ONE_OF_EACH}
    assert told["Failed"].endswith("the run ended: x")
    assert told["TimedOut"].endswith("timeout: ran longer than 1 s")
    assert told["Crashed"].endswith("process died: x")
    assert told["Rejected"].endswith("the run ended: x")
    assert told["Panicked"].endswith("the run ended: x")
    assert told["Unfit"].endswith("the run ended: x")
    assert told["Snoozed"].endswith("snoozed")
    assert "visibility timeout" in told["Lost"]
    assert told["Canceled"] == "canceled while running"


@pytest.mark.spec("CANCEL-03", "CANCEL-04")
@pytest.mark.parametrize("status", sorted(SETTLED))
def test_what_a_store_accepts_while_a_cancel_is_requested(status: Status) -> None:
    assert accepts(status, cancel_requested=False)
    assert accepts(status, cancel_requested=True) == (status in {Status.DONE, Status.CANCELED})


@pytest.mark.spec("CANCEL-03")
@given(CLAIMS, OUTCOMES)
def test_concluding_again_in_the_knowledge_of_the_request_is_always_accepted(claim: Claim, outcome: Outcome) -> None:
    flagged = msgspec.structs.replace(claim, cancel_requested=True)
    assert accepts(conclude(flagged, outcome).status, cancel_requested=True)


@pytest.mark.spec("SETTLE-16")
@pytest.mark.parametrize("status", Status)
def test_a_run_ends_in_no_other_status(status: Status) -> None:
    good = conclude(claimed(), Done())
    settlements = [good, msgspec.structs.replace(good, status=status)]
    if status in SETTLED:
        check_settlements(settlements)
    else:
        with pytest.raises(InvalidTransition, match=text(good.id)):
            check_settlements(settlements)


@pytest.mark.spec("CHAIN-03")
def test_success_alone_stores_what_comes_behind() -> None:
    behind = Draft(b"b" * 16, "next")
    link = claimed(options=Options(then=(behind,)))
    done = conclude(link, Done(followups=(Draft(b"c" * 16, "own"),)))
    assert [draft.kind for draft in done.followups] == ["own", "next"]
    assert done.followups[1].options.metadata == {PARENT: text(link.id)}
    assert conclude(link, Failed("x")).followups == ()


# --- suspensions ------------------------------------------------------------------------------------------------

OPEN = Step("go", StepState.WAITING)


@pytest.mark.spec("STEP-10")
@pytest.mark.parametrize(("after", "due"), [(MINUTE, None), (0, None), (None, NEVER)])
def test_a_run_that_only_waits_is_put_back_with_its_rows(after: int | None, due: int | None) -> None:
    child, group = Draft(b"c" * 16, "child"), b"g" * 16
    outcome = Suspended((OPEN,), after, Wakes.ALL, (child,), (group,))
    settlement = conclude(claimed(), outcome, metadata={"a": "b"})
    assert (settlement.status, settlement.refund, settlement.after) == (Status.PENDING, True, after or 0)
    assert (settlement.due, settlement.steps, settlement.wakes) == (due, (OPEN,), Wakes.ALL)
    assert (settlement.followups, settlement.groups, settlement.metadata) == ((child,), (group,), {"a": "b"})
    check_settlements([settlement])


@pytest.mark.spec("STEP-14")
def test_a_run_that_shall_stop_is_not_suspended() -> None:
    settlement = conclude(claimed(cancel_requested=True), Suspended((OPEN,), None))
    assert (settlement.status, settlement.steps, settlement.wakes) == (Status.CANCELED, (), None)


@pytest.mark.spec("STEP-06")
@pytest.mark.parametrize("outcome", ONE_OF_EACH, ids=lambda one: type(one).__name__)
def test_rows_that_a_run_did_not_store_go_with_its_end(outcome: Outcome) -> None:
    failed = Step("charge", StepState.FAILED, b'"no"')
    before, after = conclude(claimed(), outcome), conclude(claimed(), outcome, steps=(failed,))
    assert after.steps == (failed, *before.steps)
    assert msgspec.structs.replace(after, steps=before.steps) == before


@pytest.mark.spec("STEP-15")
@pytest.mark.parametrize(
    ("status", "steps"),
    [(Status.PENDING, ()), (Status.PENDING, (Step("a"),)), (Status.DONE, (OPEN,))],
    ids=["no row", "no open row", "another status"],
)
def test_a_suspension_that_nothing_ends_is_refused(status: Status, steps: tuple[Step, ...]) -> None:
    with pytest.raises(InvalidInput, match="an open wait"):
        check_settlements([Settlement(ID, "w", 1, status, steps=steps, wakes=Wakes.ANY)])
