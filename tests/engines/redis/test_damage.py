"""Damage to one key: no other queue, group or subqueue stops, the damage is logged once, and jobs come back."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from stoker.engines.base import CORRUPT, PLACELESS
from stoker.engines.redis.record_format import OFFSET
from stoker.model.budgets import ONLY, Rates
from stoker.model.control import Tuning
from stoker.model.groups import into_group, new_group
from stoker.model.ids import JobId, text
from stoker.model.job import Claim, Demand, Draft, Options, Status, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.limit import Slot
from stoker.model.outcome import Done, Failed, Throttled
from stoker.model.query import Cancel, Change, Delete, Discard, Query, Requeue, Retention, Selection
from stoker.model.retry import Curve
from stoker.model.throttle import Rate
from stoker.model.time import HOUR, MINUTE, SECOND
from tests.engines.redis.stand import Stand

pytestmark = pytest.mark.engine("redis")

DAMAGED, SOUND = "damaged", "sound"
LOGGER = "stoker.engines.redis"


class Bench(Stand):
    """An engine with a damaged queue and a sound one."""

    async def add(self, queue: str, n: int = 1, **options: Any) -> list[JobId]:
        drafts = [Draft(self.mint(), "work", b"{}", queue, **options) for _ in range(n)]
        return [receipt.id for receipt in await self.engine.jobs.insert(drafts)]

    async def limited(self, key: str, n: int = 1, number: int = 2) -> list[JobId]:
        return await self.add(DAMAGED, n, options=Options(limit=Slot("api", key, number)))

    async def claim(self, n: int = 100, worker: str = "w", queues: Sequence[str] = (DAMAGED, SOUND)) -> list[Claim]:
        await self.engine.jobs.renew(worker, [], first=True, lease=HOUR)
        return await self.engine.jobs.claim(Demand(worker, tuple((queue, n) for queue in queues)))

    async def end(self, claims: Sequence[Claim], outcome: Any = None) -> None:
        settled = await self.engine.jobs.settle([conclude(claim, outcome or Done()) for claim in claims])
        assert settled.verdicts == [Verdict.APPLIED] * len(claims)

    async def clean(self) -> None:
        await self.engine.operator.expire(Retention())

    def wait(self, queue: str = DAMAGED) -> str:
        return self.home.of_queue("wait", queue)

    async def counts(self) -> dict[Status, int]:
        return {status: n for status, n in (await self.engine.operator.census()).by_status().items() if n}

    async def running(self) -> list[JobId]:
        return [job.id for job in (await self.engine.operator.find(Query(statuses=frozenset({Status.RUNNING})))).jobs]


@pytest.fixture
async def bench(redis_url: str, redis_prefix: str) -> AsyncIterator[Bench]:
    async with Bench.on(redis_url, redis_prefix) as found:
        yield found


def said(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    found = [one.getMessage() for one in caplog.records if one.name == LOGGER and one.levelno >= logging.WARNING]
    return [one for one in found if text in one]


def keys_of(claims: Sequence[Claim]) -> list[str | None]:
    return [claim.options.limit.key for claim in claims if claim.options.limit is not None]


# --- a foreign member of a waiting set ----------------------------------------------------------------------------

USUAL = OFFSET.to_bytes(2)
"""The priority of a plain job, as an entry begins with it: damage there is met by the next claim."""

FOREIGN = {
    "empty": b"",
    "short": b"x",
    "no due time": USUAL + b"\x00",
    "text": b"a member of another program",
    "as long as an entry": b"abcdefghijklmnopqrstuvwxyz",
    "behind every priority": b"\xff\xff" + b"\xff" * 24,
    "two ids and a rest": USUAL + b"\x00" * 41,
}


@pytest.mark.spec("REDISOPS-14")
@pytest.mark.parametrize("score", [0, -1, 7], ids=["score 0", "score -1", "score 7"])
@pytest.mark.parametrize("member", FOREIGN.values(), ids=FOREIGN)
async def test_a_foreign_member_of_a_waiting_set_stops_no_queue(
    bench: Bench, caplog: pytest.LogCaptureFixture, member: bytes, score: int
) -> None:
    first = await bench.add(DAMAGED, 3, priority=-5)
    second = await bench.add(DAMAGED, 3)
    other = await bench.add(SOUND, 2)
    await bench.add(DAMAGED, delay=HOUR)
    await bench.call("ZADD", bench.wait(), score, member)
    await bench.engine.jobs.ahead([DAMAGED, SOUND])
    assert (await bench.counts())[Status.PENDING] == 9
    if score == 0:
        assert len((await bench.engine.operator.find(Query(order="due"))).jobs) == 9
    claims = [claim for _ in range(4) for claim in await bench.claim(2)]
    assert [claim.id for claim in claims if claim.queue == DAMAGED] == [*first, *second]
    assert [claim.id for claim in claims if claim.queue == SOUND] == other
    bench.clock.set(bench.clock() + 2 * HOUR)
    last = await bench.claim()
    await bench.engine.jobs.ahead([DAMAGED])
    assert len(last) == 1
    await bench.end([*claims, *last])
    assert await bench.counts() == {Status.DONE: 9}
    assert await bench.call("ZCARD", bench.wait()) == 0
    assert len(said(caplog, DAMAGED)) == 1


@pytest.mark.spec("REDISOPS-14")
@pytest.mark.parametrize("member", list(FOREIGN.values())[1:], ids=list(FOREIGN)[1:])
async def test_a_foreign_member_of_a_line_stops_no_subqueue(
    bench: Bench, caplog: pytest.LogCaptureFixture, member: bytes
) -> None:
    mine = await bench.limited("a", 2)
    theirs = await bench.limited("b", 2)
    other = await bench.add(SOUND)
    for name in ("subqueue_entries", "dues"):
        await bench.call("ZADD", bench.home.of_queue(name, DAMAGED), 0, b"api/a\0" + member)
    await bench.engine.jobs.ahead([DAMAGED, SOUND])
    assert (await bench.counts())[Status.PENDING] == 5
    assert len((await bench.engine.operator.find(Query(order="due"))).jobs) == 5
    found = await bench.claim()
    await bench.end(found)
    found += await bench.claim()
    assert {claim.id for claim in found} == {*mine, *theirs, *other}
    assert len(said(caplog, DAMAGED)) == 1


@pytest.mark.spec("REDISOPS-14")
async def test_a_waiting_set_of_another_type_stops_no_other_queue(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.add(DAMAGED)
    [other] = await bench.add(SOUND)
    await bench.call("SET", bench.wait(), "a string")
    for _ in range(3):
        claims = await bench.claim(queues=(DAMAGED, SOUND))
        if claims:
            assert [claim.id for claim in claims] == [other]
    assert await bench.running() == [other]
    assert len(said(caplog, DAMAGED)) == 1


# --- a lost limit hash ----------------------------------------------------------------------------------------------


@pytest.mark.spec("REDISOPS-15")
async def test_lost_states_of_limits_come_back_and_no_limit_is_exceeded(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.limited("a", 4)
    await bench.limited("b", 1)
    held = await bench.claim(3)
    assert keys_of(held) == ["a", "a", "b"]
    waiting = await bench.limited("d", 1)
    await bench.call("DEL", bench.home.of_queue("subqueues", DAMAGED))
    other = await bench.add(SOUND)
    await bench.limited("a", 1)
    await bench.limited("c", 1)
    claims = await bench.claim()
    assert keys_of(claims) == ["c"]  # a subqueue that is new has lost nothing
    assert [claim.id for claim in claims if claim.queue == SOUND] == other
    assert len(said(caplog, "limit")) == 1
    await bench.clean()
    running = {one.name: (one.most, one.running) for one in await bench.engine.control.subqueues(DAMAGED)}
    assert running == {"api/a": (2, 2), "api/b": (2, 1), "api/c": (2, 1), "api/d": (2, 0)}
    found = await bench.claim()
    assert [claim.id for claim in found] == waiting
    await bench.end([*held, *claims, *found])
    found = await bench.claim()
    assert keys_of(found) == ["a", "a"]
    await bench.end(found)
    found = await bench.claim()
    assert keys_of(found) == ["a"]
    await bench.end(found)
    assert await bench.call("EXISTS", bench.home.of_queue("subqueues", DAMAGED)) == 0
    assert await bench.engine.control.subqueues(DAMAGED) == []


# --- a string at a group's key --------------------------------------------------------------------------------------


@pytest.mark.spec("REDISOPS-16")
@pytest.mark.parametrize("damage", ["string", "no numbers", "callbacks"])
async def test_a_group_that_cannot_be_read_stops_no_other(
    bench: Bench, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    groups = [bench.mint(), bench.mint()]
    callbacks = [Draft(bench.mint(), "then", queue=SOUND) for _ in groups]
    for group, callback in zip(groups, callbacks, strict=True):
        members = [Draft(bench.mint(), "work", queue=DAMAGED) for _ in range(3)]
        await bench.engine.jobs.insert(into_group(group, members), group=new_group(group, then=callback, sealed=True))
    key = bench.home.group(groups[0])
    if damage == "string":
        await bench.call("DEL", key)
        await bench.call("SET", key, "a string")
        await bench.call("ZADD", bench.home.key("groups"), 0, key)
    elif damage == "no numbers":
        await bench.call("HDEL", key, "t", "d")
    else:
        await bench.call("HSET", key, "f", b"{")
    claims = await bench.claim()
    canceled, *settled = [claim for claim in claims if claim.options.group == groups[0]]
    other = [claim for claim in claims if claim.options.group == groups[1]]
    await bench.end(settled[:1])
    await bench.end(settled[1:])
    assert (await bench.engine.operator.alter(Selection((canceled.id,)), Cancel())).cancel_requested == 1
    await bench.end([canceled])
    await bench.end(other)
    for _ in range(2):
        await bench.engine.groups.sweep()
    assert [claim.id for claim in await bench.claim()] == [callbacks[1].job_id]
    assert len(said(caplog, "group")) == 1
    assert (await bench.engine.groups.get([groups[1]]))[0] is not None
    assert len((await bench.engine.diagnose()).damaged) == 1
    if damage == "string":
        await bench.call("DEL", key)
        await bench.clean()
        assert (await bench.engine.diagnose()).damaged == ()


# --- a cut entry -----------------------------------------------------------------------------------------------------


async def cut(bench: Bench, key: str, by: int) -> None:
    """Cut the end off the only member of a sorted set."""
    [member] = await bench.call("ZRANGE", key, 0, -1)
    await bench.call("ZREM", key, member)
    await bench.call("ZADD", key, 0, member[:-by])


@pytest.mark.spec("REDISOPS-17")
@pytest.mark.parametrize("by", [7, 16, 20])
async def test_jobs_of_a_cut_waiting_entry_are_claimed(bench: Bench, caplog: pytest.LogCaptureFixture, by: int) -> None:
    jobs = await bench.add(DAMAGED, 4)
    other = await bench.add(SOUND)
    await cut(bench, bench.wait(), by)
    found = await bench.claim()
    assert {claim.id for claim in found} >= {*jobs[:2], *other}
    if by % 16:
        assert len(said(caplog, DAMAGED)) == 1
        await bench.clean()
        found += await bench.claim()
        assert sorted(claim.id for claim in found) == sorted([*jobs, *other])
    await bench.end(found)


@pytest.mark.spec("REDISOPS-17")
async def test_jobs_of_a_cut_line_are_claimed(bench: Bench) -> None:
    jobs = await bench.limited("a", 4, number=9)
    for name in ("subqueue_entries", "dues"):
        await cut(bench, bench.home.of_queue(name, DAMAGED), 7)
    found = await bench.claim()
    assert [claim.id for claim in found] == jobs[:3]
    await bench.clean()
    found += await bench.claim()
    assert [claim.id for claim in found] == jobs
    await bench.end(found)
    assert await bench.engine.control.subqueues(DAMAGED) == []


@pytest.mark.spec("REDISOPS-17")
@pytest.mark.parametrize("settled", [False, True], ids=["reaped", "settled"])
async def test_no_claim_of_a_cut_lease_stays_running(
    bench: Bench, caplog: pytest.LogCaptureFixture, settled: bool
) -> None:
    """The worker is dead; one that is alive settles what it runs."""
    jobs = await bench.add(DAMAGED, 4)
    claims = await bench.claim()
    await cut(bench, bench.home.held("w"), 7)
    if settled:
        await bench.end(claims[:1])
    bench.clock.set(bench.clock() + 2 * HOUR)
    await bench.engine.jobs.renew("v", [], first=True, lease=HOUR)
    taken = await bench.engine.jobs.reap("v", 10)
    assert [claim.id for claim in taken] == jobs[settled:3]
    await bench.clean()
    taken += await bench.engine.jobs.reap("v", 10)
    assert [claim.id for claim in taken] == jobs[settled:]
    await bench.end(taken, Failed("lost", after=SECOND))
    assert await bench.running() == []
    bench.clock.set(bench.clock() + MINUTE)
    assert len(await bench.claim(worker="v")) == 4 - settled
    assert len(said(caplog, "lease")) == 1


# --- what is missing ------------------------------------------------------------------------------------------------

OUTCOMES: dict[Status, Any] = {
    Status.PENDING: None,
    Status.RUNNING: None,
    Status.DONE: Done(b"1"),
    Status.DEAD: Failed("no", retry=False),
    Status.RETRYING: Failed("no", after=HOUR),
}


@pytest.mark.spec("FAULT-44")
@pytest.mark.parametrize("limited", [False, True], ids=["plain", "limited"])
@pytest.mark.parametrize("change", [Delete(), Discard()], ids=["delete", "discard"])
@pytest.mark.parametrize("status", OUTCOMES)
async def test_a_job_without_its_state_is_shown_named_and_removed(
    bench: Bench, status: Status, change: Change, limited: bool
) -> None:
    """Nothing says where it stands. A waiting job that never ran has no state: it loses its entry instead."""
    jobs = await (bench.limited("a", 3, number=9) if limited else bench.add(DAMAGED, 3))
    later = await bench.add(DAMAGED, 1, delay=HOUR)
    if status is Status.PENDING:
        for key in (bench.home.of_queue(name, DAMAGED) for name in ("wait", "subqueue_entries", "dues")):
            for member in await bench.call("ZRANGE", key, 0, -1):
                if jobs[1] in member:
                    score = await bench.call("ZSCORE", key, member)
                    await bench.call("ZREM", key, member)
                    await bench.call("ZADD", key, score, member.replace(jobs[1], b""))
    else:
        claims = await bench.claim()
        if OUTCOMES[status] is not None:
            await bench.end(claims, OUTCOMES[status])
        assert await bench.call("HDEL", bench.home.key("state"), jobs[1]) == 1
    shown = {job.id: job for job in (await bench.engine.operator.find(Query())).jobs}
    assert [CORRUPT in shown[job].metadata for job in (*jobs, *later)] == [False, True, False, False]
    assert (shown[jobs[1]].status, shown[jobs[1]].kind) == (Status.DEAD, "work")
    assert await bench.engine.operator.get([jobs[1]]) == [shown[jobs[1]]]
    [named] = (await bench.engine.diagnose()).damaged
    assert named == f"job {text(jobs[1])} cannot be read: {PLACELESS}"
    assert (await bench.engine.operator.alter(Selection((jobs[1],)), Requeue())).refused == {Status.DEAD: 1}
    assert (await bench.engine.operator.alter(Selection((jobs[1],)), change)).changed == 1
    facts = await bench.engine.diagnose()
    assert facts.damaged == ()
    assert [one for one in facts.counters if one.counter != one.found] == []
    pending = {Status.PENDING: 3} if status is Status.PENDING else {status: 2, Status.PENDING: 1}
    assert await bench.counts() == pending


@pytest.mark.spec("FAULT-44")
async def test_a_running_job_without_its_state_ends_with_its_worker(bench: Bench) -> None:
    """Its claim does not stay when no worker runs it."""
    jobs = await bench.add(DAMAGED, 3)
    claims = await bench.claim()
    await bench.call("DEL", bench.home.key("state"))
    settled = await bench.engine.jobs.settle([conclude(claim, Done()) for claim in claims])
    assert settled.verdicts == [Verdict.LOST] * 3
    await bench.engine.jobs.renew("v", [], first=True, lease=HOUR)
    assert await bench.engine.jobs.reap("v", 10, dead=["w"]) == []
    assert await bench.counts() == {Status.DEAD: 3}
    assert {job.id for job in (await bench.engine.operator.find(Query(statuses=frozenset({Status.DEAD})))).jobs} == {
        *jobs
    }


@pytest.mark.spec("FAULT-44", "HEALTH-10")
@pytest.mark.parametrize("key", ["jobs", "state"])
async def test_a_check_up_names_jobs_of_which_body_or_state_cannot_be_read(bench: Bench, key: str) -> None:
    jobs = await bench.add(DAMAGED, 3)
    await bench.claim()
    if key == "state":
        await bench.call("HSET", bench.home.key("state"), jobs[1], b"x")
    else:
        [body] = await bench.call("ZRANGEBYLEX", bench.home.key("jobs"), b"[" + jobs[1], b"(" + jobs[1] + b"\1")
        await bench.call("ZREM", bench.home.key("jobs"), body)
        await bench.call("ZADD", bench.home.key("jobs"), 0, body[:30])
    [named] = (await bench.engine.diagnose()).damaged
    assert named.startswith(f"job {text(jobs[1])} cannot be read: ")


@pytest.mark.spec("FAULT-45")
async def test_a_waiting_job_without_a_body_counts_no_longer(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    jobs = await bench.add(DAMAGED, 3)
    await bench.call("ZREMRANGEBYLEX", bench.home.key("jobs"), b"[" + jobs[0], b"(" + jobs[0] + b"\1")
    await bench.clean()
    assert (await bench.counts())[Status.PENDING] == 3
    claims = await bench.claim()
    assert [claim.id for claim in claims] == jobs[1:]
    await bench.clean()
    assert await bench.counts() == {Status.DEAD: 1, Status.RUNNING: 2}
    assert len(said(caplog, DAMAGED)) == 1


@pytest.mark.spec("FAULT-48")
async def test_a_declaration_that_cannot_be_read_counts_as_none(bench: Bench) -> None:
    await bench.engine.control.tune(DAMAGED, Tuning(workers=3), declared=True)
    await bench.call("HSET", bench.home.key("queues"), f"{DAMAGED}/declared", b"{")
    [queue] = await bench.engine.control.queues()
    assert (queue.workers, queue.declared) == (3, None)
    [named] = (await bench.engine.diagnose()).damaged
    assert DAMAGED in named
    await bench.engine.control.tune(DAMAGED, Tuning(workers=4), declared=True)
    assert (await bench.engine.diagnose()).damaged == ()


@pytest.mark.spec("FAULT-48")
@pytest.mark.parametrize(
    ("stored", "is_known"),
    [
        (b"{", False),
        (b"\xff", False),
        (b"[1,2,3]", False),
        (b'[{"":[5.0,1.0,5.0,5.0,1800000000000000]},false,"x"]', True),
    ],
    ids=["cut", "no text", "another shape", "declaration"],
)
async def test_a_budget_that_cannot_be_read_stops_no_other(bench: Bench, stored: bytes, is_known: bool) -> None:
    """It refuses until it is declared anew; one of which only the declaration is lost goes on."""
    for name in ("llm", "sms"):
        await bench.engine.control.tune(name, Rate(5), declared=True)
    await bench.call("HSET", bench.home.key("budgets"), "llm", stored)
    [named] = (await bench.engine.diagnose()).damaged
    assert named.startswith("budget llm: ")
    found = {one.name: one.declared for one in await bench.engine.control.budgets()}
    assert found == ({"llm": None} if is_known else {}) | {"sms": Rates({ONLY: Rate(5)})}
    assert (await bench.engine.control.spend("llm", 1)).granted is is_known
    assert await bench.engine.control.drain("llm") is is_known
    assert (await bench.engine.control.spend("sms", 1)).granted
    await bench.engine.control.tune("llm", Rate(6), declared=True)
    assert (await bench.engine.diagnose()).damaged == ()
    assert [one.declared for one in await bench.engine.control.budgets()] == [Rates({ONLY: Rate(n)}) for n in (6, 5)]


@pytest.mark.spec("REDISOPS-18")
@pytest.mark.parametrize("subqueues", [False, True], ids=["plain", "subqueues"])
@pytest.mark.parametrize("garbage", [b"{", b"\xff", b"[1]", b'"x"'], ids=["cut", "no text", "a list", "a text"])
@pytest.mark.parametrize("field", ["paused", "until", "bucket", "limits", "keep_done", "keep_dead", "count", "workers"])
async def test_a_setting_that_cannot_be_read_stops_no_other_queue(
    bench: Bench, caplog: pytest.LogCaptureFixture, field: str, garbage: bytes, subqueues: bool
) -> None:
    """Where it decides whether jobs start, its queue stands still until it is declared anew, or resumed."""
    jobs = await (bench.limited("a", 2) if subqueues else bench.add(DAMAGED, 2))
    before = await bench.claim(1, queues=(DAMAGED,))
    other = await bench.add(SOUND)
    await bench.engine.control.tune(DAMAGED, Tuning(curve=Curve(on=True)), declared=True)
    await bench.call("HSET", bench.home.key("queues"), f"{DAMAGED}/{field}", garbage)
    stands = field in ("paused", "until", "bucket")
    assert (DAMAGED in (await bench.engine.jobs.ahead([DAMAGED, SOUND])).open) is not stands
    found = await bench.claim()
    assert {claim.id for claim in found} == {*other, *([] if stands else jobs[1:])}
    assert [one.name for one in await bench.engine.control.queues()] == [DAMAGED, SOUND]
    named = (await bench.engine.diagnose()).damaged
    assert len(named) == 1 + stands
    assert f"queue {DAMAGED}: its {field} cannot be read; tune the queue, or start its app anew" in named
    assert len(said(caplog, DAMAGED)) == stands
    await bench.end(before, Throttled(SECOND))
    await bench.end(found)
    await bench.engine.control.tune(DAMAGED, Tuning(curve=Curve(on=True)), declared=True)
    if field == "paused":
        await bench.engine.control.tune(DAMAGED, Tuning(paused=False))
    await bench.clean()
    assert (await bench.engine.diagnose()).damaged == ()
    bench.clock.set(bench.clock() + HOUR)
    await bench.end(await bench.claim())
    assert await bench.counts() == {Status.DONE: 3}
