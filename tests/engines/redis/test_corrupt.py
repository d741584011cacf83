"""Damaged records: they hinder no other job, operators see them with their raw text and can remove them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest

from stoker.admin import Admin
from stoker.app import Stoker
from stoker.engines.base import CORRUPT
from stoker.engines.redis.record_format import HAS_STATE, ids_of
from stoker.model.groups import into_group, new_group
from stoker.model.ids import JobId, text
from stoker.model.job import Claim, Demand, Draft, Job, Options, Status
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done, Failed
from stoker.model.query import Cancel, Change, Clone, Delete, Discard, Query, Requeue, Retention, Selection, Tally
from stoker.model.time import DAY, SECOND
from stoker.model.unique import Unique
from tests.engines.redis.stand import Stand

pytestmark = pytest.mark.engine("redis")

GARBAGE = b"\xff\xfeno record of ours"


class Bench(Stand):
    """An engine, and the hands to damage what it stored."""

    def key(self, name: str) -> str:
        return self.home.key(name)

    async def add(self, n: int = 1, **options: object) -> list[JobId]:
        drafts = [Draft(self.mint(), "work", b'{"a":1}', **options) for _ in range(n)]  # type: ignore[arg-type]
        return [receipt.id for receipt in await self.engine.jobs.insert(drafts)]

    async def claim(self, n: int = 10) -> list[Claim]:
        await self.engine.jobs.renew("w", [], first=True)
        return await self.engine.jobs.claim(Demand("w", (("default", n),)))

    async def body(self, job: JobId) -> bytes:
        [found] = await self.call("ZRANGEBYLEX", self.key("jobs"), b"[" + job, b"(" + job + b"\1")
        return bytes(found)

    async def break_body(self, job: JobId) -> None:
        await self.lose_body(job)
        await self.call("ZADD", self.key("jobs"), 0, job + b"\0")

    async def lose_body(self, job: JobId) -> None:
        await self.call("ZREM", self.key("jobs"), await self.body(job))

    async def break_state(self, job: JobId) -> None:
        line = self.engine._store.home.of_queue("wait", "default")
        for place in await self.call("ZRANGE", line, 0, -1):
            ids = ids_of(place[10:])
            if job in ids and not place.endswith(HAS_STATE):
                # It has none yet. One that has stands by itself and says so.
                await self.call("ZREM", line, place)
                await self.call("ZADD", line, 0, place[:10] + job + HAS_STATE)
                if rest := b"".join(one for one in ids if one != job):
                    await self.call("ZADD", line, 0, place[:10] + rest)
        await self.call("HSET", self.key("state"), job, GARBAGE)

    async def break_options(self, job: JobId) -> None:
        body = await self.body(job)
        await self.lose_body(job)
        await self.call("ZADD", self.key("jobs"), 0, body.replace(b'{"timeout"', b'["timeout"'))

    async def job(self, job: JobId) -> Job | None:
        return (await self.engine.operator.get([job]))[0]

    async def dead(self) -> list[Job]:
        return (await self.engine.operator.find(Query(statuses=frozenset({Status.DEAD})))).jobs

    async def alter(self, change: Change, *jobs: JobId) -> Tally:
        return await self.engine.operator.alter(Selection(jobs), change)

    async def unread(self) -> list[str]:
        return [text for text in (await self.engine.describe()).warnings if "could not be read" in text]


Damage = Callable[[Bench, JobId], Awaitable[None]]
DAMAGES = {
    "body": Bench.break_body,
    "no body": Bench.lose_body,
    "state": Bench.break_state,
    "options": Bench.break_options,
}


@pytest.fixture
async def bench(redis_url: str, redis_prefix: str) -> AsyncIterator[Bench]:
    async with Bench.on(redis_url, redis_prefix) as found:
        yield found


@pytest.fixture(params=DAMAGES)
def damage(request: pytest.FixtureRequest) -> Damage:
    return DAMAGES[request.param]


async def set_aside(bench: Bench, damage: Damage) -> tuple[JobId, JobId]:
    """A damaged job that a claim met, and a sound one."""
    bad, good = await bench.add(2, options=Options(timeout=SECOND))
    await damage(bench, bad)
    assert [claim.id for claim in await bench.claim()] == [good]
    return bad, good


@pytest.mark.spec("REDISOPS-10")
async def test_a_claim_passes_over_what_cannot_be_read(bench: Bench, damage: Damage) -> None:
    """However many of them stand at the head of the line, the queue does not look empty."""
    bad = await bench.add(5, options=Options(timeout=SECOND))
    good = await bench.add(3)
    for job in bad:
        await damage(bench, job)
    claims = [await bench.claim(1) for _ in range(3)]
    assert [claim.id for [claim] in claims] == good
    assert await bench.claim(1) == []
    assert {job.id for job in await bench.dead()} == set(bad)


@pytest.mark.spec("GROUP-03")
@pytest.mark.parametrize("break_it", [Bench.break_state, Bench.break_options])
@pytest.mark.parametrize("deleted", [False, True])
async def test_a_member_that_cannot_be_read_ends_for_its_group(bench: Bench, break_it: Damage, deleted: bool) -> None:
    """Dead when a claim meets it, canceled when an operator deletes it first."""
    group, drafts = bench.mint(), [Draft(bench.mint(), "work", options=Options(timeout=SECOND)) for _ in range(2)]
    failure = Draft(bench.mint(), "failure")
    await bench.engine.jobs.insert(into_group(group, drafts), group=new_group(group, on_failure=failure, sealed=True))
    await break_it(bench, drafts[0].job_id)
    if deleted:
        assert (await bench.alter(Delete(), drafts[0].job_id)).changed == 1
    [claim] = await bench.claim()
    await bench.engine.jobs.settle([conclude(claim, Done())])
    await bench.engine.groups.sweep()
    [found] = await bench.engine.groups.get([group])
    assert found is not None
    assert (found.done, found.dead, found.canceled) == ((1, 0, 1) if deleted else (1, 1, 0))
    assert await bench.job(failure.job_id) is not None


@pytest.mark.spec("REDISOPS-11", "HEALTH-10")
async def test_what_was_set_aside_is_shown_with_its_raw_text(bench: Bench, damage: Damage) -> None:
    bad, _ = await set_aside(bench, damage)
    [shown] = await bench.dead()
    assert shown == await bench.job(bad)
    assert shown.status is Status.DEAD
    assert (shown.last_error or "").startswith("corrupt record: ")
    assert CORRUPT in shown.metadata
    [named] = [one.read for one in await Admin(Stoker(bench.engine)).health.check() if one.name == "damaged data"]
    assert text(bad) in named
    if damage is Bench.break_state:
        assert GARBAGE in shown.payload
    if damage is Bench.break_options:
        assert shown.payload == b'{"a":1}'
    assert len(await bench.unread()) == 1
    census = await bench.engine.operator.census()
    assert census.by_status()[Status.DEAD] == 1


@pytest.mark.spec("REDISOPS-12")
@pytest.mark.parametrize("change", [Discard(), Delete()], ids=["discard", "delete"])
async def test_what_was_set_aside_can_be_let_go(bench: Bench, damage: Damage, change: Change) -> None:
    bad, good = await set_aside(bench, damage)
    tally = await bench.alter(change, bad)
    assert msgspec.structs.replace(tally, former=()) == Tally(changed=1, changed_ids=(bad,))
    assert await bench.dead() == []
    assert await bench.unread() == []
    assert (await bench.job(bad) is None) == isinstance(change, Delete)
    assert (await bench.engine.operator.census()).by_status()[Status.DEAD] == 0
    assert (await bench.alter(Delete(), bad, good)).cancel_requested == 1


@pytest.mark.spec("REDISOPS-12")
async def test_what_was_set_aside_never_runs_again(bench: Bench, damage: Damage) -> None:
    bad, _ = await set_aside(bench, damage)
    for change in (Requeue(), Clone((bench.mint(),)), Cancel()):
        assert await bench.alter(change, bad) == Tally(refused={Status.DEAD: 1})
    await bench.alter(Discard(), bad)
    assert (await bench.alter(Requeue(), bad)).refused == {Status.DISCARDED: 1}
    assert await bench.claim() == []


@pytest.mark.spec("REDISOPS-12")
async def test_what_was_set_aside_goes_with_its_time(bench: Bench, damage: Damage) -> None:
    bad, _ = await set_aside(bench, damage)
    bench.clock.set(bench.clock() + 31 * DAY)
    assert (await bench.engine.operator.expire(Retention())).jobs == 1
    assert await bench.job(bad) is None
    assert await bench.unread() == []
    assert await bench.call("HLEN", bench.key("corrupt")) == 0


@pytest.mark.spec("REDISOPS-13")
@pytest.mark.parametrize("broken", [Bench.break_body, Bench.break_state], ids=["body", "state"])
@pytest.mark.parametrize("change", [Discard(), Delete()], ids=["discard", "delete"])
async def test_a_damaged_job_that_was_not_claimed_can_be_removed(bench: Bench, broken: Damage, change: Change) -> None:
    """Lists, counts and actions go on beside it; once it is gone no claim meets it."""
    good, bad, later = await bench.add(3, unique=None)
    await broken(bench, bad)
    assert {job.id for job in (await bench.engine.operator.find(Query())).jobs} == {good, bad, later}
    shown = await bench.job(bad)
    assert shown is not None
    assert (shown.status, CORRUPT in shown.metadata) == (Status.DEAD, True)
    assert (await bench.alter(Cancel(), later)).changed == 1
    assert (await bench.alter(Requeue(), bad)).refused == {Status.DEAD: 1}
    assert (await bench.alter(change, bad)).changed == 1
    assert await bench.job(bad) is None
    assert [claim.id for claim in await bench.claim()] == [good]
    assert await bench.dead() == []
    if broken is Bench.break_state:
        counts = (await bench.engine.operator.census()).by_status()
        assert (counts[Status.PENDING], counts[Status.RUNNING], counts[Status.CANCELED]) == (0, 1, 1)


@pytest.mark.spec("REDISOPS-13")
async def test_a_damaged_holder_lets_go_of_its_key(bench: Bench) -> None:
    [job] = await bench.add(unique=Unique("k"))
    [claim] = await bench.claim()
    await bench.engine.jobs.settle([conclude(claim, Failed("again", after=SECOND))])
    await bench.break_state(job)
    assert (await bench.alter(Delete(), job)).changed == 1
    [fresh] = await bench.add(unique=Unique("k"))
    assert fresh != job
    assert (await bench.engine.operator.census()).by_status()[Status.RETRYING] == 0


@pytest.mark.spec("REDISOPS-13")
async def test_a_damaged_running_job_is_lost_to_its_worker(bench: Bench) -> None:
    [job] = await bench.add()
    [claim] = await bench.claim()
    await bench.break_state(job)
    assert (await bench.alter(Delete(), job)).changed == 1
    settled = await bench.engine.jobs.settle([conclude(claim, Done())])
    assert [verdict.value for verdict in settled.verdicts] == ["lost"]
    assert await bench.engine.jobs.reap("w", 5) == []
    assert (await bench.engine.operator.census()).counts == ()
