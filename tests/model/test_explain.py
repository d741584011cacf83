"""Why a job does not run."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stoker.model.control import QUIET, SHOWN_WITHIN, STOPPED, Pause, Presence, Queue
from stoker.model.explain import Line, Reason, comes_before, explain, held_by, limits_unserved, notes, served, unserved
from stoker.model.groups import GROUP, Group
from stoker.model.ids import text
from stoker.model.job import PARENT, Draft, Failure, Job, Options, Status, chain
from stoker.model.lifecycle import HELD_BY, HELD_FOR, UNFIT_SINCE, UNFIT_WHY
from stoker.model.operator_metrics import Flow
from stoker.model.query import Census, Count
from stoker.model.run_origins import RunOrigin
from stoker.model.schedule import OCCURRENCE, SCHEDULE
from stoker.model.steps import NEVER, Step, StepState, Wakes
from stoker.model.subqueues import SubqueueView
from stoker.model.throttle import Bucket, Cooldown, Rate
from stoker.model.time import SECOND

NOW = 1_000 * SECOND
LATER = NOW + 60 * SECOND
HERE = Presence(worker="w", host="h", pid=7, queues={"mail": 3}, seen_at=NOW)
OTHER = Presence(worker="w", host="h", pid=7, queues={"mail": 3}, kinds={"resize": "app:resize"}, seen_at=NOW)
GONE = Presence(worker="w", host="h", pid=7, queues={"mail": 3}, seen_at=NOW, state=STOPPED)
QUIETED = Presence(worker="w", host="h", pid=7, queues={"mail": 3}, seen_at=NOW, state=QUIET)
LOST = Presence(worker="w", host="h", pid=7, queues={"mail": 3}, seen_at=NOW - 30 * SECOND)
MAIL = Queue(name="mail")


def job(**changes: Any) -> Job:
    fields: dict[str, Any] = {"id": bytes(16), "kind": "send", "queue": "mail", "payload": b"", "priority": 0}
    fields |= {"status": Status.PENDING, "attempts": 0, "base": 0, "budget": 3, "created_at": 0, "scheduled_at": NOW}
    return Job(**{**fields, **changes})


def census(ready: int = 1, *, at: int = NOW) -> Census:
    return Census(at=at, counts=(Count("mail", "send", Status.PENDING, ready),))


def why(one: Job, queue: Queue = MAIL, *present: Presence, ready: int = 1) -> str:
    found = explain(one, queue, present, census(ready))
    return f"{found.reason}: {found.detail}"


@pytest.mark.spec("EXPLAIN-01", "START-05")
@pytest.mark.parametrize(
    "status, says, mends",
    [
        (Status.DONE, "finished: it is done", False),
        (Status.DEAD, "finished: it is dead: ValueError: no", True),
        (Status.CANCELED, "finished: it was canceled: ValueError: no", True),
        (Status.DISCARDED, "finished: it was dead and is discarded", True),
        (Status.RETRIED, "finished: it was dead, and a copy of it was enqueued", False),
    ],
)
def test_a_finished_job_has_ended_in_one_way(status: Status, says: str, mends: bool) -> None:
    error = None if status is Status.DONE else "ValueError: no\nTraceback…\n"
    one = job(status=status, last_error=error, finished_at=NOW)
    assert why(one).startswith(says)
    assert explain(msgspec.structs.replace(one, last_error=None), MAIL, [], census()).detail == says.split(": ")[1]
    found = explain(one, MAIL, [], census())
    assert ("requeue" in found.remedy) == mends
    assert found.first.since == NOW


@pytest.mark.spec("EXPLAIN-01")
def test_a_running_job_is_somewhere() -> None:
    running = {"status": Status.RUNNING, "worker": "w", "started_at": NOW}
    assert why(job(**running), MAIL, HERE) == (
        "running: it runs in worker w on h, process 7 since 1970-01-01T00:16:40Z"
    )
    assert "50% done" in why(job(**running, progress=0.5), MAIL, HERE)
    old = Presence(worker="w", host="h", pid=7, queues={"mail": 3}, seen_at=NOW - SHOWN_WITHIN - 1)
    assert "silent lately" in why(job(**running), MAIL, old)
    assert "silent lately" in why(job(status=Status.RUNNING, worker="gone"), MAIL)
    asked = job(**running, cancel_requested=True, cancel_requested_at=NOW)
    assert why(asked, MAIL, HERE).startswith("canceling: it runs in worker w on h, process 7 and was asked to stop")
    id_ = text(asked.id)
    assert f"`stoker jobs cancel {id_} --force`" in explain(asked, MAIL, [HERE], census()).remedy
    dead, later = job(status=Status.DEAD), job(scheduled_at=LATER)
    assert explain(dead, MAIL, [HERE], census()).remedy == f"`stoker jobs requeue {text(dead.id)}` runs it again."
    assert explain(later, MAIL, [HERE], census()).remedy == f"`stoker jobs run-now {text(later.id)}` starts it at once."
    paused = Queue(name="mail", pause=Pause())
    assert explain(job(), paused, [HERE], census()).remedy == "`stoker queues resume mail` opens it."


@pytest.mark.spec("DURABLE-23")
@pytest.mark.parametrize(
    "rows, says, mends",
    [
        (
            [Step("approval", StepState.WAITING, b'{"ask":"May we?","schema":null}', LATER)],
            "the signal approval (May we?) until 1970-01-01T00:17:40Z",
            "approval VALUE` answers it.",
        ),
        ([Step("go", StepState.WAITING, b'{"ask":null,"schema":null}')], "the signal go", "go VALUE` answers it."),
        ([Step("sleep", StepState.WAITING, None, LATER)], "1970-01-01T00:17:40Z (sleep)", "sleep` ends the sleep."),
        (
            [Step("charge", StepState.WAITING, b'{"kind":"E","error":"E: no\\nTrace","tries":1}', LATER)],
            "the next try of step charge at 1970-01-01T00:17:40Z, which failed: E: no",
            "",
        ),
        (
            [Step("call:x", StepState.CALLED, b'{"job":"00000000-0000-0000-0000-000000000000"}')],
            "job 00000000-0000-0000-0000-000000000000 (call:x)",
            "",
        ),
        (
            [Step(f"s{n}", StepState.WAITING, None, LATER, at=n) for n in range(5)],
            "1970-01-01T00:17:40Z (s0) and 1970-01-01T00:17:40Z (s1) and 1970-01-01T00:17:40Z (s2) and 2 more",
            "s0` ends the sleep.",
        ),
        (
            [
                Step("a nap", StepState.WAITING, None, LATER),
                Step("go", StepState.WAITING, b'{"ask":null,"schema":null}'),
            ],
            "the signal go and 1970-01-01T00:17:40Z (a nap)",
            "go VALUE` answers it.",
        ),
        ([Step("done")], "what its last run left open", ""),
    ],
)
def test_a_suspended_job_waits_for_something(rows: list[Step], says: str, mends: str) -> None:
    for due in (LATER, NEVER):
        one = job(scheduled_at=due, settled=Wakes.ANY)
        found = explain(one, MAIL, [HERE], census(), steps=rows)
        assert (found.reason, found.detail) == (Reason.WAITING, f"it waits for {says}")
        assert found.remedy.endswith(mends)
        assert bool(found.remedy) == bool(mends)
        assert found.first.until == (None if due == NEVER else due)
        assert not found.gates  # it is in no line


@pytest.mark.spec("EXPLAIN-01", "START-05")
@pytest.mark.parametrize(
    "one, queue, present, says",
    [
        (job(scheduled_at=LATER), MAIL, [HERE], "scheduled: it is scheduled until 1970-01-01T00:17:40Z"),
        (
            job(status=Status.RETRYING, attempts=1, scheduled_at=LATER),
            MAIL,
            [HERE],
            "scheduled: it waits for attempt 2 of 3 until 1970-01-01T00:17:40Z",
        ),
        (job(), Queue(name="mail", pause=Pause()), [HERE], "paused: queue 'mail' is paused until it is resumed"),
        (
            job(),
            Queue(name="mail", pause=Pause(LATER, "a migration", "ada")),
            [HERE],
            "paused: queue 'mail' is paused by ada until 1970-01-01T00:17:40Z: a migration",
        ),
        (
            job(),
            Queue(name="mail", cooldown=Cooldown(LATER, 1)),
            [HERE],
            "cooling: queue 'mail' cools down until 1970-01-01T00:17:40Z, because a handler was throttled",
        ),
        (job(metadata={UNFIT_SINCE: "1"}), MAIL, [HERE], "unknown_task: the workers of queue 'mail' cannot run task"),
        (
            job(metadata={UNFIT_SINCE: "1", UNFIT_WHY: "it is sealed with key 'a'"}),
            MAIL,
            [HERE],
            "unknown_task: the workers of queue 'mail' cannot run task 'send': it is sealed with key 'a'",
        ),
        (job(), MAIL, [OTHER], "unknown_task: no worker of queue 'mail' has the task 'send'"),
        (job(), MAIL, [], "no_worker: no worker serves queue 'mail'"),
        (job(), MAIL, [QUIETED], "no_worker: every worker of queue 'mail' is quiet"),
        (job(), MAIL, [GONE], "no_worker: no worker serves queue 'mail'; w on h did until 1970-01-01T00:16:40Z"),
        (
            job(),
            MAIL,
            [GONE, LOST],
            "worker_unhealthy: 1 of the workers of queue 'mail' do not report any more: w on h was last seen",
        ),
        (
            job(),
            Queue(name="mail", bucket=Bucket(Rate(1, per=60), 0, NOW)),
            [HERE],
            "rate_limited: queue 'mail' is at its rate; its next start is at 1970-01-01T00:17:40Z",
        ),
        (job(), MAIL, [HERE], "behind: it waits in queue 'mail' and runs next"),
    ],
)
def test_a_waiting_job_names_the_first_gate(one: Job, queue: Queue, present: list[Presence], says: str) -> None:
    assert why(one, queue, *present).startswith(says)


@pytest.mark.spec("EXPLAIN-06", "BUDGET-12")
def test_a_job_that_a_budget_refused_is_held_by_it() -> None:
    held = {"metadata": {HELD_BY: "llm", HELD_FOR: "50"}, "scheduled_at": LATER}
    found = explain(job(**held), MAIL, [HERE], census(), buckets={"": Bucket(Rate(100), 0, NOW)})
    says = "it is held by budget 'llm', which refused it 50 tokens; it asks again at 1970-01-01T00:17:40Z"
    assert (found.reason, found.detail.partition("; the")[0], found.first.until) == (Reason.HELD_BY_BUDGET, says, LATER)
    assert explain(job(**held), MAIL, [HERE], census()).detail == says, "its rate need not be known"
    tuned = explain(job(**held), MAIL, [HERE], census(), buckets={"": Bucket(Rate(10), 0, NOW)})
    assert tuned.detail == f"{says}, and in vain: the budget holds at most 10"
    assert tuned.remedy == "`stoker limits tune llm --rate 50/TIME` lets it run."
    measured = {"metadata": {HELD_BY: "llm/words/a/b", HELD_FOR: "50"}, "scheduled_at": LATER}
    found = explain(job(**measured), MAIL, [HERE], census(), buckets={"words": Bucket(Rate(1, burst=90), 38, NOW)})
    assert found.detail.startswith("it is held by budget 'llm', measure words, key a/b, which refused it 50 words;")
    assert "; the budget has as many in about 12.0 s, at " in found.detail
    vain = explain(job(**measured), MAIL, [HERE], census(), buckets={"words": Bucket(Rate(1), 1, NOW)})
    assert vain.remedy == "`stoker limits tune llm --measure words --rate 50/TIME` lets it run."
    one = job(metadata={HELD_BY: "llm", HELD_FOR: "many"}, scheduled_at=LATER)
    assert "refused it 1 token;" in why(one, MAIL, HERE)
    for n, counted in (("9" * 19, int("9" * 19)), ("9" * 20, 1)):
        assert held_by(job(metadata={HELD_BY: "llm", HELD_FOR: n}, scheduled_at=LATER), NOW) == ("llm", counted)
    for other in (
        job(metadata={HELD_BY: "", HELD_FOR: "50"}, scheduled_at=LATER),
        job(metadata=held["metadata"]),
        job(**held, status=Status.RETRYING),
    ):
        assert explain(other, MAIL, [HERE], census()).reason is not Reason.HELD_BY_BUDGET


@pytest.mark.spec("EXPLAIN-01")
def test_jobs_before_it_are_counted() -> None:
    assert "with 41 other due jobs" in why(job(), MAIL, HERE, ready=42)
    flow = Flow(minutes=15, completed=150)
    assert explain(job(), MAIL, [HERE], census(41), flow=flow).detail.endswith("last 15 min 4 min at most")
    assert explain(job(), MAIL, [HERE], census(41), flow=Flow(minutes=15)).detail.endswith("time and id")


@pytest.mark.spec("EXPLAIN-04")
def test_chain_group_and_schedule_are_named_beside() -> None:
    def beside(one: Job, group: Group | None = None) -> tuple[str, ...]:
        return explain(one, MAIL, [HERE], census(), group=group).beside

    assert beside(job()) == ()
    first = chain(*(Draft(bytes([n]) * 16, f"step{n}") for n in range(3)))
    assert beside(job(options=first.options)) == ("in its chain step1, step2 come after its success",)
    last = job(options=Options(metadata={PARENT: "p", SCHEDULE: "nightly", OCCURRENCE: "2026-11-16T00:00:00Z"}))
    assert beside(last) == (
        "schedule nightly made it for 2026-11-16T00:00:00Z",
        "in its chain it comes after job p",
    )
    extra = job(metadata={SCHEDULE: "nightly"}, options=first.options.then[0].options)
    assert beside(extra)[0] == "schedule nightly made it beside its timetable"
    assert beside(extra)[-1] == "in its chain step2 comes after its success"
    member = job(options=Options(group=bytes(16)))
    name = "it is a member of group 00000000-0000-0000-0000-000000000000"
    assert beside(member) == (f"{name}, which is not kept any more",)
    assert beside(member, Group(id=bytes(16), total=4, done=1)) == (f"{name}: 3 of 4 have not ended",)
    closed = Group(id=bytes(16), total=4, done=4, closed_at=NOW)
    assert beside(member, closed) == (f"{name}, which is closed: 4 of 4 done",)
    assert beside(job(metadata={GROUP: "g"}, status=Status.RETRIED, successor=bytes(16))) == (
        "the end of group g stored it",
        "job 00000000-0000-0000-0000-000000000000 is its copy",
    )


@pytest.mark.spec("EXPLAIN-02")
def test_every_gate_that_is_shut_is_named() -> None:
    queue = Queue(name="mail", pause=Pause(), cooldown=Cooldown(LATER, 1), bucket=Bucket(Rate(1, per=60), 0, NOW))
    found = explain(job(scheduled_at=LATER), queue, [GONE], census())
    assert [gate.reason for gate in (found.first, *found.gates)] == [
        Reason.SCHEDULED,
        Reason.PAUSED,
        Reason.COOLING,
        Reason.NO_WORKER,
        Reason.RATE_LIMITED,
        Reason.BEHIND,
    ]
    assert "w on h did until" in found.gates[2].detail


@pytest.mark.spec("EXPLAIN-01")
def test_an_unreadable_record_is_named_first() -> None:
    found = explain(job(status=Status.DEAD), MAIL, [], census(), unreadable="options")
    assert (found.reason, found.detail) == (Reason.UNREADABLE, "its record cannot be read: options")


@pytest.mark.spec("START-04")
def test_a_queue_with_due_jobs_and_no_worker_is_found() -> None:
    counts = tuple(Count(queue, "send", Status.PENDING, 3) for queue in ("mail", "maill", "later"))
    found = Census(at=NOW, counts=counts, later={"later": 3})
    assert unserved(found, [MAIL], [HERE]) == {"maill": 3}
    assert unserved(found, [], []) == {"mail": 3, "maill": 3}
    paused = [Queue(name="maill", pause=Pause()), Queue(name="mail", pause=Pause(until=NOW))]
    assert unserved(found, paused, []) == {"mail": 3}, "a paused queue needs no worker; a pause may have ended"
    gone = Presence(worker="w", host="h", pid=1, queues={"mail": 3}, seen_at=NOW, state=STOPPED)
    old = Presence(worker="w", host="h", pid=1, queues={"mail": 3}, seen_at=NOW - SHOWN_WITHIN - 1)
    assert not served("mail", [gone, old], NOW)


@pytest.mark.spec("START-04")
def test_a_limited_queue_without_a_worker_is_found() -> None:
    queues = [Queue(name="mail", workers=3), Queue(name="off", workers=0), Queue(name="free")]
    assert limits_unserved(queues, [HERE], NOW) == {}
    assert limits_unserved(queues, [], NOW) == {"mail": 3}
    assert limits_unserved([Queue(name="mail", workers=3, pause=Pause())], [], NOW) == {}


@pytest.mark.spec("LIMIT-44")
def test_a_full_key_is_named_with_its_holders() -> None:
    """Not for a job that holds a place itself, and not while one is free."""
    holders = tuple(bytes([n]) * 16 for n in range(1, 3))
    full = SubqueueView("mail", "api/x", "api", "x", 2, 2, holders=holders)
    found = explain(job(), MAIL, [HERE], census(), subqueue=full)
    assert found.reason is Reason.KEY_LIMITED
    assert "limit 'api' of queue 'mail' lets 2 run at once for key 'x', and 2 hold a place: " in found.detail
    crowded = msgspec.structs.replace(full, key=None, running=30, most=30)
    detail = explain(job(), MAIL, [HERE], census(), subqueue=crowded).detail
    assert "at once, and 30 hold a place" in detail
    assert detail.endswith(" and 28 more")
    for subqueue, one in (
        (full, job(id=holders[0])),
        (msgspec.structs.replace(full, most=3), job()),
        (msgspec.structs.replace(full, most=None), job()),
    ):
        assert explain(one, MAIL, [HERE], census(), subqueue=subqueue).reason is Reason.BEHIND


@pytest.mark.spec("EXPLAIN-05")
def test_a_job_in_line_says_how_many_come_before_it() -> None:
    flow = Flow(minutes=15, completed=150)

    def words(line: Line | None, **more: Any) -> str:
        queue = msgspec.structs.replace(MAIL, **more)
        return explain(job(), queue, [HERE], census(), line=line, flow=flow).detail

    assert words(Line(0)) == "it waits in queue 'mail' and runs next"
    assert words(Line(1)).startswith("it waits in queue 'mail' behind 1 job, by priority, time and id; at the rate")
    assert "behind 30 jobs, by priority" in words(Line(30))
    assert "behind at least 10,000 jobs" in words(Line(10_000, complete=False))
    assert "those of other keys take turns with it" in words(Line(3), fair=True)
    first, urgent, later = job(), job(priority=-1), job(id=b"\xff" * 16)
    assert [comes_before(one, first) for one in (first, urgent, later)] == [False, True, False]


@pytest.mark.spec("LIMIT-44")
@pytest.mark.parametrize(
    ("before", "said"),
    [(0, "and it is next"), (1, "and 1 has its turn before it"), (1_200, "and 1,200 have their turn before it")],
)
def test_in_a_fair_queue_the_place_in_the_round_is_told(before: int, said: str) -> None:
    found = explain(job(), MAIL, [HERE], census(), turns=before)
    assert found.reason is Reason.BEHIND
    assert "tenants take turns" in found.detail
    assert said in found.detail


@pytest.mark.spec("EXPLAIN-07")
def test_a_job_that_a_budget_holds_is_told_when_it_has_the_tokens() -> None:
    held = job(metadata={HELD_BY: "llm", HELD_FOR: "50"}, scheduled_at=LATER)

    def detail(tokens: float) -> str:
        return explain(held, MAIL, [HERE], census(), buckets={"": Bucket(Rate(60, per=60), tokens, NOW)}).detail

    assert detail(10).endswith(
        "; the budget has as many in about 40.0 s, at 1970-01-01T00:17:20Z, if no other job takes any"
    )
    assert detail(55).endswith("; the budget has as many now")


@pytest.mark.spec("NEED-12", "EXPLAIN-01")
def test_a_job_in_a_misspelt_queue_is_offered_the_one_that_was_meant() -> None:
    misspelt = job(queue="maill")
    near = explain(misspelt, Queue(name="maill"), [HERE], census()).remedy
    assert near == (
        "If maill is a typing error, `stoker jobs move 00000000-0000-0000-0000-000000000000 --to mail` puts it where "
        "it belongs; else start one: `stoker work app:jobs -q maill`."
    )
    assert "--to letters`" in explain(misspelt, Queue(name="maill"), [HERE], census(), home="letters").remedy
    far = explain(job(queue="reports"), Queue(name="reports"), [HERE], census(), home="reports").remedy
    assert far == "Start one: `stoker work app:jobs -q reports`."
    named = explain(job(queue="reports"), Queue(name="reports"), [], census(), app="shop:jobs").remedy
    assert named == "Start one: `stoker work shop:jobs -q reports`."


@pytest.mark.spec("EXPLAIN-08")
def test_an_action_is_told_what_keeps_its_jobs_from_running() -> None:
    paused = Queue(name="mail", pause=Pause())
    assert explain(job(), paused, [HERE], census()).still == (
        "It still waits: queue 'mail' is paused until it is resumed."
    )
    full = Queue(name="mail", bucket=Bucket(Rate(1), 0, NOW))
    assert explain(job(), full, [HERE], census(5)).still == "", "its turn comes by itself"
    queues = [
        paused,
        Queue(name="bills", pause=Pause(until=LATER)),
        Queue(name="cold", cooldown=Cooldown(LATER, 2)),
        Queue(name="open"),
    ]
    assert notes(queues, {"mail", "bills", "cold", "open"}, census()) == [
        (Reason.PAUSED, "Queue mail is paused: its jobs wait until it is resumed."),
        (Reason.PAUSED, "Queue bills is paused: its jobs wait until 1970-01-01T00:17:40Z."),
        (Reason.COOLING, "Queue cold cools down for 1 min and has 0 jobs ready."),
    ]
    assert notes(queues, {"open"}, census()) == [], "the others do not concern these jobs"


@pytest.mark.spec("EXPLAIN-01")
def test_a_job_of_a_silent_worker_is_told_when_its_lease_ends() -> None:
    running = job(status=Status.RUNNING, worker="w", started_at=0)
    quiet = msgspec.structs.replace(HERE, seen_at=NOW - 11 * SECOND, lease=40 * SECOND)
    assert why(running, MAIL, quiet).endswith("takes the job over when its lease ends at 1970-01-01T00:17:09Z")
    assert "because its lease ended at 1970-01-01T00:16:25Z" in why(running, MAIL, LOST)


@pytest.mark.spec("EXPLAIN-09")
def test_the_place_of_the_last_run_is_told() -> None:
    origins = {1: RunOrigin(1, "a", "web-3", 11, "r42"), 2: RunOrigin(2, "b", "web-4", 12)}
    history = (Failure(NOW, 1, "x", 1), Failure(NOW, 2, "x", 1), Failure(NOW, 3, "x", 2))

    def beside(**changes: Any) -> tuple[str, ...]:
        return explain(job(**changes), MAIL, [HERE], census(), origins=origins).beside

    dead = {"status": Status.DEAD, "finished_at": NOW, "history": history}
    assert beside(**dead, origin=1) == ("its last run was on web-3 / 11, release r42",)
    assert beside(status=Status.RETRYING, history=history) == ("its last failed run was on web-4 / 12",)
    running = {"status": Status.RUNNING, "worker": "w", "started_at": NOW, "history": history}
    assert beside() == beside(**running) == beside(**dead, origin=3) == ()


@pytest.mark.spec("EXPLAIN-01")
def test_a_queue_that_was_not_asked_for_hides_no_other() -> None:
    paused = [Queue(name="a", pause=Pause()), Queue(name="b", pause=Pause())]
    assert [text for _, text in notes(paused, {"b"}, census())] == [
        "Queue b is paused: its jobs wait until it is resumed."
    ]


@pytest.mark.spec("EXPLAIN-01")
def test_of_workers_that_are_lost_the_one_that_was_seen_last_is_named() -> None:
    older = msgspec.structs.replace(LOST, worker="v", host="old", seen_at=NOW - 300 * SECOND)
    assert "w on h was last seen" in why(job(), MAIL, older, LOST)
    assert "w on h was last seen" in why(job(), MAIL, LOST, older)
