from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stoker.model.events import (
    Event,
    EventType,
    Point,
    Timings,
    Transition,
    Window,
    in_flight,
    of_alter,
    of_claims,
    of_closing,
    of_insert,
    of_missed,
    of_repair,
    of_settlements,
    off_by,
    transition_of,
    transition_to_pending,
    transition_to_running,
    transitions_of_alter,
    window_of,
    with_record,
)
from stoker.model.groups import Closing, new_group
from stoker.model.job import Claim, Draft, Failure, Job, Options, Receipt, Settlement, Status, Stored, Verdict
from stoker.model.lifecycle import SETTLED, conclude
from stoker.model.outcome import Snoozed, Suspended
from stoker.model.query import Cancel, Clone, Delete, Former, Repair, Restore, RunNow, Tally
from stoker.model.steps import Step, StepState
from stoker.model.time import HOUR, LATEST, MINUTE, SECOND
from stoker.model.unique import Unique

NOW = 5_000_000


def claim(**changes: Any) -> Claim:
    plain = Claim(b"1" * 16, "send", "mail", b"{}", 2, 0, 5, "w1", 9, NOW, NOW - 10, NOW - 5)
    return msgspec.structs.replace(plain, **changes)


def settlement(status: Status) -> Settlement:
    return Settlement(b"1" * 16, "w1", 9, status)


@pytest.mark.spec("EVENT-01")
def test_only_what_was_inserted_is_news() -> None:
    drafts = [Draft(bytes([n]) * 16, f"k{n}", queue=f"q{n}") for n in range(3)]
    receipts = [Receipt(draft.job_id, stored) for draft, stored in zip(drafts, Stored, strict=True)]
    assert of_insert(drafts, receipts, NOW) == [Event(NOW, EventType.ENQUEUED, drafts[0].job_id, "q0", "k0")]
    assert of_insert([], [], NOW) == []


@pytest.mark.spec("EVENT-01")
def test_receipts_that_do_not_fit_the_drafts_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="zip"):
        of_insert([Draft(b"1" * 16, "k")], [], NOW)


@pytest.mark.spec("EVENT-02")
def test_a_fresh_claim_is_a_start_and_a_reaped_one_is_not() -> None:
    fresh, reaped = claim(), claim(former="w0", former_at=NOW - 100)
    assert of_claims([fresh, reaped]) == [Event(NOW, EventType.STARTED, fresh.id, "mail", "send", 2)]
    assert of_claims([]) == []


@pytest.mark.spec("EVENT-03")
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (Status.DONE, EventType.COMPLETED),
        (Status.DEAD, EventType.FAILED),
        (Status.RETRYING, EventType.RETRIED),
        (Status.CANCELED, EventType.CANCELED),
        (Status.PENDING, EventType.RELEASED),
    ],
)
def test_a_settlement_that_applied_is_one_event(status: Status, kind: EventType) -> None:
    [event] = of_settlements([claim()], [settlement(status)], [Verdict.APPLIED], NOW + 30)
    total = 40 if status is Status.DONE else None
    wait = 5 if status is Status.DONE else None
    assert event == Event(NOW + 30, kind, b"1" * 16, "mail", "send", 2, 30, total, wait)


@pytest.mark.spec("EVENT-03")
def test_a_run_that_failed_tells_the_signature_of_its_error() -> None:
    told = {}
    for status in (Status.DEAD, Status.RETRYING, Status.CANCELED, Status.PENDING):
        failed = msgspec.structs.replace(settlement(status), error="Timeout: order 17\nmore")
        [told[status]] = of_settlements([claim()], [failed], [Verdict.APPLIED], NOW)
    assert [one.error for one in told.values()] == ["Timeout: order …", "Timeout: order …", "", ""]


@pytest.mark.spec("RELEASE-05")
def test_a_run_that_failed_tells_the_release_of_its_own_worker() -> None:
    def told(run: Claim, status: Status, error: str | None = "boom") -> str:
        ended = msgspec.structs.replace(settlement(status), error=error)
        [event] = of_settlements([run], [ended], [Verdict.APPLIED], NOW, release="r42")
        return event.release

    assert told(claim(), Status.DEAD) == told(claim(), Status.RETRYING) == "r42"
    assert told(claim(), Status.DONE, None) == "", "a success tells none, and pays nothing for it"
    assert told(claim(former="w0", former_at=NOW - 100), Status.RETRYING) == "", "another worker's run died"


@pytest.mark.spec("EVENT-03", "DURABLE-17")
def test_a_suspension_is_an_event_of_its_own() -> None:
    suspended = conclude(claim(), Suspended((Step("go", StepState.WAITING),)))
    [event] = of_settlements([claim()], [suspended], [Verdict.APPLIED], NOW + 30)
    assert event == Event(NOW + 30, EventType.WAITING, b"1" * 16, "mail", "send", 2, 30)


@pytest.mark.spec("EVENT-14")
def test_a_run_that_died_lasted_from_its_own_start() -> None:
    reaped = claim(former="w0", former_at=NOW - 100)
    [event] = of_settlements([reaped], [settlement(Status.RETRYING)], [Verdict.APPLIED], NOW + 30)
    assert event.duration == 130


@pytest.mark.spec("EVENT-03")
def test_every_settlement_has_an_event() -> None:
    settled = [settlement(status) for status in SETTLED]
    told = of_settlements([claim()] * len(settled), settled, [Verdict.APPLIED] * len(settled), NOW)
    assert len({event.type for event in told}) == len(SETTLED)


@pytest.mark.spec("EVENT-03")
@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if verdict is not Verdict.APPLIED])
@pytest.mark.parametrize("status", sorted(SETTLED))
def test_a_settlement_that_did_not_apply_is_silent(status: Status, verdict: Verdict) -> None:
    assert of_settlements([claim()], [settlement(status)], [verdict], NOW) == []


@pytest.mark.spec("EVENT-03")
@pytest.mark.spec("STATS-02")
def test_a_clock_that_stepped_back_makes_no_negative_duration() -> None:
    [event] = of_settlements([claim()], [settlement(Status.DONE)], [Verdict.APPLIED], NOW - 11)
    assert (event.duration, event.total) == (0, 0)


@pytest.mark.spec("EVENT-04")
def test_starts_and_ends_balance_over_a_life_with_retries() -> None:
    told: list[Event] = []
    for attempt, status in enumerate((Status.RETRYING, Status.PENDING, Status.RETRYING, Status.DONE), 1):
        run = claim(attempt=attempt)
        told += of_claims([run])
        told += of_settlements([run], [settlement(status)], [Verdict.APPLIED], NOW + attempt)
        told += of_settlements([run], [settlement(status)], [Verdict.LOST], NOW + attempt)
    starts = sum(event.type is EventType.STARTED for event in told)
    assert starts == len(told) - starts == 4


@pytest.mark.spec("EVENT-05")
def test_listeners_hear_one_transition_per_settlement() -> None:
    ended = msgspec.structs.replace(settlement(Status.RETRYING), error="no luck")
    heard = transition_of(claim(), ended)
    job = "31313131-3131-3131-3131-313131313131"
    assert heard == Transition(job, "send", "mail", Status.RUNNING, Status.RETRYING, 2, "no luck")
    started = transition_to_running(claim())
    assert started == Transition(job, "send", "mail", Status.PENDING, Status.RUNNING, 2)
    fresh = transition_to_pending(Draft(b"1" * 16, "send", queue="mail"))
    assert fresh == Transition(job, "send", "mail", None, Status.PENDING)
    assert (fresh.before, fresh.attempt, fresh.error) == (None, 0, None)


@pytest.mark.spec("EVENT-13")
def test_listeners_get_tenant_metadata_and_group() -> None:
    options = Options(metadata={"trace": "t"}, group=b"2" * 16)
    group = "32323232-3232-3232-3232-323232323232"
    run = msgspec.structs.replace(claim(), tenant="acme", options=options)
    draft = Draft(b"1" * 16, "send", tenant="acme", options=options)
    heard = (transition_of(run, settlement(Status.DONE)), transition_to_running(run), transition_to_pending(draft))
    for one in heard:
        assert (one.tenant, one.metadata, one.group) == ("acme", {"trace": "t"}, group)
    plain = transition_to_running(claim())
    assert (plain.tenant, plain.metadata, plain.group) == (None, {}, None)


def test_windows_points_and_timings_are_plain_values() -> None:
    window = Window(1, 2)
    assert (window.queue, window.job, window.limit) == (None, None, 10_000)
    assert Point("q", "m", 0, 3) == Point("q", "m", 0, 3, sum=0, p50=0, p95=0, p99=0, max=0)
    assert Timings([], []).dropped == 0


@pytest.mark.spec("SCHED-21")
def test_occurrences_that_made_no_job_are_one_event() -> None:
    assert of_missed(bytes(16), "mail", "work", 0, 7) == []
    assert of_missed(bytes(16), "mail", "work", 3, 7) == [
        Event(7, EventType.SCHEDULE_MISSED, bytes(16), "mail", "work", attempt=3)
    ]


@pytest.mark.spec("GROUP-31")
def test_a_group_that_closed_is_an_event_and_so_are_the_callbacks_that_it_stored() -> None:
    plain, keyed = Draft(b"1" * 16, "then", queue="mail"), Draft(b"2" * 16, "tidy", unique=Unique("k"))
    group = new_group(b"g" * 16, then=plain, on_finish=keyed, sealed=True).made(5).close(9, None, 100)
    closed = Event(20, EventType.GROUP_CLOSED, b"g" * 16, "default", "group", duration=4)
    then = Event(20, EventType.ENQUEUED, plain.job_id, "mail", "then")
    tidy = Event(20, EventType.ENQUEUED, keyed.job_id, "default", "tidy")
    assert of_closing(Closing(group, (plain,)), 20) == [closed, then]
    assert of_closing(Closing(group, (plain, keyed)), 20) == [closed, then, tidy]


def former(job: int, status: Status, started: int | None = None) -> Former:
    return Former(bytes([job]) * 16, "send", "mail", status, 2, 9, NOW, None, started)


@pytest.mark.spec("EVENT-07")
def test_an_operators_change_is_told_with_the_true_former_status() -> None:
    tally = Tally(changed=2, former=(former(1, Status.RETRYING, NOW), former(2, Status.RUNNING, NOW - 30)))
    cancel = Cancel("no need")
    assert of_alter(cancel, tally, NOW) == [
        Event(NOW, EventType.CANCELED, b"\1" * 16, "mail", "send", 2),
        Event(NOW, EventType.CANCELED, b"\2" * 16, "mail", "send", 2, 30),
    ]
    told = transitions_of_alter(cancel, tally)
    assert [(one.before, one.after, one.error) for one in told] == [
        (Status.RETRYING, Status.CANCELED, "no need"),
        (Status.RUNNING, Status.CANCELED, "no need"),
    ]
    copied = Tally(changed=1, former=(former(1, Status.DEAD),), created=(b"\3" * 16,))
    clone = Clone((b"\3" * 16,))
    assert of_alter(clone, copied, NOW) == [Event(NOW, EventType.ENQUEUED, b"\3" * 16, "mail", "send")]
    assert [(one.before, one.after) for one in transitions_of_alter(clone, copied)] == [
        (Status.DEAD, Status.RETRIED),
        (None, Status.PENDING),
    ]
    restore = Restore((former(1, Status.RETRYING),))
    [restored] = transitions_of_alter(restore, Tally(changed=1, former=(former(1, Status.CANCELED),)))
    assert (restored.before, restored.after) == (Status.CANCELED, Status.RETRYING)
    assert of_alter(restore, tally, NOW) == []
    assert transitions_of_alter(RunNow(), tally) == []
    deleted = transitions_of_alter(Delete(), Tally(changed=1, former=(former(1, Status.DEAD),)))
    assert [(one.before, one.after) for one in deleted] == [(Status.DEAD, None)]
    assert of_alter(Delete(), tally, NOW) == []


@pytest.mark.spec("EVENT-08")
def test_runs_in_flight_are_starts_without_an_end() -> None:
    def event(kind: EventType, job: bytes, duration: int | None = None) -> Event:
        return Event(NOW, kind, job, "mail", "send", duration=duration)

    ended = [EventType.COMPLETED, EventType.FAILED, EventType.RETRIED, EventType.RELEASED, EventType.WAITING]
    told = [event(kind, b"a") for end in ended for kind in (EventType.ENQUEUED, EventType.STARTED, end)]
    assert in_flight(told) == {}
    told += [event(EventType.STARTED, b"a"), event(EventType.STARTED, b"b"), event(EventType.CANCELED, b"b")]
    assert in_flight(told) == {b"a": 1, b"b": 1}
    told += [event(EventType.CANCELED, b"b", 5), event(EventType.COMPLETED, b"c")]
    assert in_flight(told) == {b"a": 1, b"c": -1}


@pytest.mark.spec("EVENT-09")
def test_the_first_claim_tells_of_an_enqueue_that_was_not_told() -> None:
    untold = Options(untold=True)
    first, again = claim(attempt=1, options=untold), claim(attempt=2, options=untold)
    told = conclude(first, Snoozed(5)).metadata
    enqueued, started = of_claims([first])
    assert (enqueued.type, enqueued.at) == (EventType.ENQUEUED, first.created_at)
    assert (started.type, started.at) == (EventType.STARTED, first.claimed_at)
    others = [again, claim(attempt=1, options=Options(keep=5)), claim(attempt=1, options=untold, metadata=told)]
    assert [event.type for event in of_claims(others)] == [started.type] * 3
    assert conclude(again, Snoozed(5)).metadata is None
    assert len(of_claims([claim(attempt=1, options=untold, metadata={"note": "of the handler"})])) == 2


@pytest.mark.spec("EVENT-10")
def test_a_clock_that_is_wrong_changes_no_duration() -> None:
    one = claim()
    assert off_by([one], one.claimed_at + SECOND - 1) == 0
    assert off_by([one], one.claimed_at - HOUR) == -HOUR
    reaped = msgspec.structs.replace(one, former="w0")
    assert off_by([reaped], one.claimed_at - HOUR) is None
    [started] = of_claims([one], -HOUR)
    assert started.at == one.claimed_at - HOUR
    [right] = of_settlements([one], [settlement(Status.DONE)], [Verdict.APPLIED], one.claimed_at + 7)
    [wrong] = of_settlements([one], [settlement(Status.DONE)], [Verdict.APPLIED], one.claimed_at + 7 - HOUR, -HOUR)
    assert (wrong.duration, wrong.total) == (right.duration, right.total)
    assert right.duration == 7


@pytest.mark.spec("LIMIT-32")
def test_a_repaired_limit_is_an_event() -> None:
    """With the name of the limit and by how many jobs it was wrong."""
    for counted, holders in ((3, 1), (1, 3)):
        assert of_repair(Repair("mail", "api/a", counted, holders), b"i" * 16, 7) == Event(
            7, EventType.LIMIT_REPAIRED, b"i" * 16, "mail", "api", 2
        )


# --- what the record tells -----------------------------------------------------------------------------------------


def stored(status: Status, **changes: Any) -> Job:
    fields: dict[str, Any] = {"attempts": 0, "base": 0, "budget": 5, "created_at": 10, "scheduled_at": 10} | changes
    return Job(id=b"j" * 16, kind="work", queue="q", payload=b"{}", status=status, priority=0, **fields)


@pytest.mark.spec("EVENT-12")
def test_a_job_without_events_has_those_that_its_record_tells_of() -> None:
    """Its enqueue, its failures, its last run, and its end."""
    lives: list[tuple[Job, list[tuple[int, str, int, int | None]]]] = [
        (stored(Status.PENDING), [(10, "enqueued", 0, None)]),
        (stored(Status.RUNNING, attempts=1, started_at=20), [(10, "enqueued", 0, None), (20, "started", 1, None)]),
        (
            stored(Status.DONE, attempts=2, started_at=40, finished_at=45, history=(Failure(30, 1, "boom"),)),
            [(10, "enqueued", 0, None), (30, "retried", 1, None), (40, "started", 2, None), (45, "completed", 2, 5)],
        ),
        (
            stored(Status.DEAD, attempts=1, started_at=20, finished_at=25, history=(Failure(25, 1, "boom"),)),
            [(10, "enqueued", 0, None), (20, "started", 1, None), (25, "failed", 1, None)],
        ),
        (stored(Status.RETRIED, finished_at=25), [(10, "enqueued", 0, None), (25, "failed", 0, None)]),
        (stored(Status.CANCELED, finished_at=25), [(10, "enqueued", 0, None), (25, "canceled", 0, None)]),
    ]
    for job, told in lives:
        found = with_record([], job)
        assert [(one.at, one.type, one.attempt, one.duration) for one in found] == told
        assert with_record(found, job) == found
    assert with_record([], lives[2][0])[-1].total == 35


@pytest.mark.spec("EVENT-12")
def test_events_of_a_job_are_looked_for_in_its_life() -> None:
    """With a minute to spare; of a job that goes on, to the end of time."""
    over = stored(Status.DONE, attempts=1, started_at=20, finished_at=25)
    assert window_of(over, 7) == Window(10 - MINUTE, 25 + MINUTE, job=over.id, limit=7)
    assert window_of(stored(Status.RUNNING)).until == LATEST
    for status in (Status.DEAD, Status.DISCARDED, Status.RETRIED, Status.CANCELED):
        assert window_of(stored(status, started_at=20, finished_at=25)).until == LATEST, "it can still be changed"


@pytest.mark.spec("EVENT-12")
def test_a_run_ends_before_the_next_one_starts() -> None:
    """A settlement and the next claim share a reply: the worker notes the end behind the start that came with it."""
    job = stored(Status.DONE, attempts=2, started_at=30, finished_at=35)
    noted = [
        Event(20, EventType.STARTED, job.id, "q", "work", 1),
        Event(33, EventType.RETRIED, job.id, "q", "work", 1, 10),
        Event(30, EventType.STARTED, job.id, "q", "work", 2),
    ]
    found = [(one.at, one.type, one.attempt) for one in with_record(noted, job)]
    assert found[1:] == [(20, "started", 1), (30, "retried", 1), (30, "started", 2), (35, "completed", 2)]


@pytest.mark.spec("EVENT-12")
def test_a_job_that_starts_at_the_instant_of_its_enqueue_was_enqueued_first() -> None:
    job = stored(Status.DONE, attempts=1, created_at=20, started_at=20, finished_at=20)
    assert [one.type for one in with_record([], job)] == ["enqueued", "started", "completed"]
    started = Event(20, EventType.STARTED, job.id, "q", "work", 1)
    assert [one.type for one in with_record([started], job)] == ["enqueued", "started", "completed"]


@pytest.mark.spec("EVENT-12")
def test_an_event_that_was_stored_stands_as_it_was_stored() -> None:
    job = stored(Status.DONE, attempts=1, started_at=20, finished_at=25)
    started = Event(22, EventType.STARTED, job.id, "q", "work", 1)
    found = with_record([started], job)
    assert [one.type for one in found] == ["enqueued", "started", "completed"]
    assert found[1] is started


@pytest.mark.spec("EVENT-10")
def test_a_clock_is_judged_by_the_claim_that_came_last() -> None:
    early, late = claim(claimed_at=NOW - HOUR), claim(claimed_at=NOW)
    assert off_by([early, late], NOW + 2 * SECOND) == 2 * SECOND
    assert off_by([late], NOW + SECOND) == SECOND
