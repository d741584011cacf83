"""Steps on Redis: how few calls they take, what a plain job pays for them, and what a cluster does in several steps."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

import pytest

from stoker.engines.redis import RedisClusterEngine, RedisEngine, groups, steps
from stoker.engines.redis.cluster import followups, move
from stoker.engines.redis.connection import Connection
from stoker.engines.redis.keys import SUSPENDED, WAIT
from stoker.engines.redis.record_format import read_step, step
from stoker.engines.redis.store import Store
from stoker.model.control import Tuning
from stoker.model.errors import CorruptRecord, EngineUnavailable
from stoker.model.groups import Swept, into_group
from stoker.model.ids import JobId
from stoker.model.job import Claim, Demand, Draft, Options, Status, Verdict
from stoker.model.lifecycle import Rules, conclude
from stoker.model.limit import Slot
from stoker.model.outcome import Done, Suspended
from stoker.model.query import Cancel, Delete, Move, Retention, Selection
from stoker.model.steps import Save, Signal, Signaled, Step, StepState, Wakes, group_wait
from stoker.model.time import HOUR
from stoker.testing.clock import VirtualClock

GO = Step("go", StepState.WAITING)
DEMAND = Demand("w", (("default", 200), ("kids", 200), ("other", 200)))


def draft(kind: str = "work", **options: Any) -> Draft:
    return Draft(secrets.token_bytes(16), kind, **options)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(1_800_000_000_000_000)


@pytest.fixture
async def engine(redis_url: str, redis_prefix: str, clock: VirtualClock) -> AsyncIterator[RedisEngine]:
    found = RedisEngine(redis_url, prefix=redis_prefix, clock=clock)
    await found.open()
    await found.jobs.renew("w", [], first=True)
    yield found
    await found.close()


@pytest.fixture
async def cluster(
    redis_cluster_url: str, redis_cluster_prefix: str, clock: VirtualClock
) -> AsyncIterator[RedisClusterEngine]:
    found = RedisClusterEngine(redis_cluster_url, prefix=redis_cluster_prefix, clock=clock)
    await found.open()
    await found.jobs.renew("w", [], first=True)
    yield found
    await found.close()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Record the commands of the engine, without those that only give the server a script it does not know yet."""
    commands: list[tuple[Any, ...]] = []
    ask = Connection._ask

    async def noted(self: Connection, given: Sequence[tuple[Any, ...]], **options: Any) -> list[Any]:
        commands.extend(one for one in given if one[0] != "EVAL")
        return await ask(self, given, **options)

    monkeypatch.setattr(Connection, "_ask", noted)
    return commands


async def claims(engine: RedisEngine, n: int = 1, **options: Any) -> list[Claim]:
    await engine.jobs.insert([draft(**options) for _ in range(n)])
    return await engine.jobs.claim(DEMAND)


async def suspend(engine: RedisEngine, claim: Claim, *steps: Step, **more: Any) -> None:
    settled = await engine.jobs.settle([conclude(claim, Suspended(steps or (GO,), **more))])
    assert settled.verdicts == [Verdict.APPLIED]


def call(parent: Claim, *drafts: Draft) -> tuple[JobId, tuple[Draft, ...], Step]:
    """Jobs that a run calls: their group, their drafts and the wait for their end."""
    group = secrets.token_bytes(16)
    return group, tuple(into_group(group, drafts)), Step(group_wait(group), StepState.WAITING)


async def rows(engine: RedisEngine, job: JobId) -> dict[str, StepState]:
    [found] = await engine.steps.get([job])
    return {row.name: row.state for row in found}


# --- one server -------------------------------------------------------------------------------------------------


@pytest.mark.engine("redis")
@pytest.mark.spec("STEP-40")
async def test_a_plain_job_never_touches_steps(engine: RedisEngine, sent: list[tuple[Any, ...]]) -> None:
    """Their keys are not even named."""
    batch = await claims(engine, 10)
    await engine.jobs.settle([conclude(claim, Done(b"1")) for claim in batch])
    assert sent
    assert not [part for command in sent for part in command if "step" in str(part)]


@pytest.mark.engine("redis")
@pytest.mark.spec("STEP-41")
async def test_steps_of_many_jobs_are_one_call(engine: RedisEngine, sent: list[tuple[Any, ...]]) -> None:
    batch = await claims(engine, 100)
    sent.clear()
    saves = [Save(one.id, one.worker, one.token, (Step("a"), Step("b")), ref=one.ref) for one in batch]
    assert await engine.steps.save(saves) == [Verdict.APPLIED] * 100
    assert len(sent) == 1


@pytest.mark.engine("redis")
@pytest.mark.spec("STEP-41")
async def test_suspensions_and_signals_of_many_jobs_take_few_calls(
    engine: RedisEngine, sent: list[tuple[Any, ...]]
) -> None:
    """A lone signal takes one."""
    needed = []
    for n in (1, 100):
        batch = await claims(engine, n)
        sent.clear()
        await engine.jobs.settle([conclude(one, Suspended((GO, Step("b")))) for one in batch])
        suspended = len(sent)
        answers = await engine.steps.signal([Signal(one.id, "go") for one in batch])
        assert set(answers) == {Signaled.TAKEN}
        needed.append((suspended, len(sent) - suspended))
        again = await engine.jobs.claim(DEMAND)
        assert len(again) == n
        await engine.jobs.settle([conclude(one, Done()) for one in again])
    assert needed == [(1, 1), (1, 3)]


@pytest.mark.engine("redis")
@pytest.mark.spec("STEP-41", "ANSWER-14")
@pytest.mark.parametrize(("question", "needed"), [(None, 1), (b'{"schema":{"type":"integer"}}', 2)])
async def test_a_signal_to_a_suspended_job_is_one_call(
    engine: RedisEngine, sent: list[tuple[Any, ...]], question: bytes | None, needed: int
) -> None:
    """Two if a schema judges its value. What it leaves behind is what a unit of work leaves."""
    store, kept = engine._store, list[Any]()
    for alone in (True, False):
        [claim] = await claims(engine)
        await suspend(engine, claim, Step("go", StepState.WAITING, question, claim.claimed_at + HOUR), after=HOUR)
        sent.clear()
        more = [] if alone else [Signal(secrets.token_bytes(16), "go")]
        assert (await engine.steps.signal([Signal(claim.id, "go", b"7"), *more]))[0] is Signaled.TAKEN
        assert len(sent) == needed or not alone
        call, key = store.connection.call, store.home.key
        row, state = await call("HGET", key("steps"), claim.id + b"go"), await call("HGET", key("state"), claim.id)
        entries = [
            await call("ZRANGE", name, 0, -1, "WITHSCORES")
            for name in (
                key("stepnames"),
                key("asking"),
                *(store.home.of_queue(n, "default") for n in (WAIT, SUSPENDED)),
            )
        ]
        behind = slice(9, None)  # status or state, and the token
        kept.append((row[behind], state[behind], [[one.replace(claim.id, b"") for one in few] for few in entries]))
        [again] = await engine.jobs.claim(DEMAND)
        assert again.id == claim.id
        await engine.jobs.settle([conclude(again, Done(), Rules(keep=0))])
    assert kept[0] == kept[1]


@pytest.mark.engine("redis")
@pytest.mark.spec("ANSWER-01")
async def test_a_signal_in_one_call_leaves_other_cases_alone(engine: RedisEngine) -> None:
    """A job that waits for all answers, or was due, has a limit, or stands in a fair queue: the rules decide."""
    store, clock = engine._store, engine._store.options.clock
    assert isinstance(clock, VirtualClock)

    async def one(n: int, *steps: Step, after: int | None = None, **options: Any) -> Claim:
        await engine.jobs.insert([draft(queue=f"q{n}", **options)])
        [claim] = await engine.jobs.claim(Demand("w", ((f"q{n}", 1),)))
        await suspend(engine, claim, *steps, after=after, **({"wakes": Wakes.ALL} if len(steps) == 2 else {}))
        return claim

    await engine.control.tune("q3", Tuning(fair=True))
    until = Step("go", StepState.WAITING, None, clock.now() + 60)
    both = await one(0, GO, Step("b", StepState.WAITING))
    others = [
        await one(1, until, after=60),
        await one(2, options=Options(limit=Slot("gate", "g", 1))),
        await one(3, tenant="acme"),
    ]
    clock.advance(timedelta(seconds=1))
    for claim in (both, *others):
        assert not await steps._answer_alone(store, store.home, Signal(claim.id, "go"))
        assert await engine.steps.signal([Signal(claim.id, "go")]) == [Signaled.TAKEN]
        assert await engine.steps.signal([Signal(claim.id, "go")]) == [Signaled.ANSWERED]
    again = await engine.jobs.claim(Demand("w", tuple((f"q{n}", 9) for n in range(4))))
    assert {claim.id for claim in again} == {claim.id for claim in others}


@pytest.mark.engine("redis")
@pytest.mark.spec("STEP-41")
async def test_a_suspension_that_ends_a_sleep_takes_one_call(engine: RedisEngine, sent: list[tuple[Any, ...]]) -> None:
    """A finished row counts whatever is stored, so only the rows that are opened are looked at."""
    [claim] = await claims(engine)
    nap = Step("nap", StepState.WAITING, None, claim.claimed_at + HOUR)
    await suspend(engine, claim, nap)
    await engine.steps.signal([Signal(claim.id, "nap")])
    [claim] = await engine.jobs.claim(DEMAND)
    sent.clear()
    await suspend(engine, claim, Step("nap", value=b"null"), GO)
    assert len(sent) == 1
    assert await rows(engine, claim.id) == {"nap": StepState.DONE, "go": StepState.WAITING}
    store = engine._store
    names = await store.connection.call("ZRANGE", store.home.key("stepnames"), 0, -1)
    assert set(names) == {claim.id + b"\0nap", claim.id + b"\1go"}


@pytest.mark.engine("redis")
@pytest.mark.spec("STEP-41")
async def test_a_large_batch_of_values_is_split(engine: RedisEngine, sent: list[tuple[Any, ...]]) -> None:
    """Each call stays below the largest one."""
    batch = await claims(engine, 10)
    sent.clear()
    value = b'"' + b"x" * ((1 << 20) - 2) + b'"'
    saves = [Save(one.id, one.worker, one.token, (Step("a", value=value),), ref=one.ref) for one in batch]
    assert await engine.steps.save(saves) == [Verdict.APPLIED] * 10
    assert len(sent) == 2
    sent.clear()
    assert set(await engine.steps.signal([Signal(one.id, "go", value) for one in batch])) == {Signaled.EARLY}
    assert max(sum(len(part) for part in one if type(part) is bytes) for one in sent) < 9 << 20
    assert [len(one) for one in await engine.steps.get([claim.id for claim in batch])] == [2] * 10


@pytest.mark.engine("redis")
@pytest.mark.spec("STEP-09")
async def test_nothing_is_left_of_the_rows_of_a_removed_job(engine: RedisEngine, clock: VirtualClock) -> None:
    """Rows of others, of ids beside it, stay."""
    first, second = await claims(engine, 2)
    for claim in (first, second):
        await engine.steps.save([Save(claim.id, "w", claim.token, (Step("a"), Step("é"), GO), ref=claim.ref)])
    await engine.jobs.settle([conclude(first, Done())])
    clock.advance(timedelta(days=2))
    await engine.operator.expire(Retention())
    assert (await rows(engine, first.id), len(await rows(engine, second.id))) == ({}, 3)
    store = engine._store
    fields = await store.connection.call("HKEYS", store.home.key("steps"))
    members = await store.connection.call("ZRANGE", store.home.key("stepnames"), 0, -1)
    assert {field[:16] for field in fields} == {member[:16] for member in members} == {second.id}
    assert len(fields) == len(members) == 3


@pytest.mark.engine("redis")
@pytest.mark.spec("STEP-46")
async def test_questions_of_an_older_version_are_found(
    engine: RedisEngine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stored them without the set that they are found by now; nothing of a removed job stays there."""
    first, second, sleeper = sorted(await claims(engine, 3), key=lambda claim: claim.id)
    question = Step("go", StepState.WAITING, b'{"ask":"May we?"}')
    for claim, row in ((first, question), (second, question), (sleeper, GO)):
        await engine.jobs.settle([conclude(claim, Suspended((row,)))])
    store = engine._store
    key = store.home.key("asking")
    await store.connection.call("DEL", key)
    monkeypatch.setattr("stoker.engines.redis.step_rows.READ_AT_ONCE", 1)
    assert await engine.steps.asking() == [second.id, first.id]
    assert await engine.steps.asking(before=second.id) == [first.id]
    await engine.operator.alter(Selection((first.id,)), Delete())
    assert set(await store.connection.call("ZRANGE", key, 0, -1)) == {second.id + b"go", b"complete"}


@pytest.mark.engine("redis")
@pytest.mark.spec("ANSWER-01")
async def test_a_row_is_either_open_or_not(engine: RedisEngine) -> None:
    """An answered wait leaves the range that signals read, and its name is stored once."""
    [claim] = await claims(engine)
    await suspend(engine, claim)
    await engine.steps.signal([Signal(claim.id, "go")])
    store = engine._store
    assert await store.connection.call("ZRANGE", store.home.key("stepnames"), 0, -1) == [claim.id + b"\0go"]


@pytest.mark.engine("redis")
@pytest.mark.spec("STEP-04")
async def test_a_row_that_cannot_be_read_is_named() -> None:
    one = Step("go", StepState.EARLY, b"", 0, 7, 9)
    assert read_step("go", step(one)) == one
    for damaged in (b"", b"9" + step(one)[1:], b"x" * 30):
        with pytest.raises(CorruptRecord, match="step go cannot be read"):
            read_step("go", damaged)


# --- closing a group and waking its caller are two steps --------------------------------------------------------


async def _die(*_: object) -> None:
    """A process that ends before what comes now."""


@pytest.mark.engine("redis")
@pytest.mark.spec("CALL-02")
async def test_a_sweep_wakes_the_caller_that_a_dead_process_did_not(
    engine: RedisEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    [parent] = await claims(engine)
    group, kids, ended = call(parent, draft("kid", queue="kids"))
    await suspend(engine, parent, ended, called=kids, groups=(group,))
    [kid] = await engine.jobs.claim(DEMAND)
    with monkeypatch.context() as patched:
        patched.setattr(Store, "close_groups", _die)
        await engine.jobs.settle([conclude(kid, Done())])
    assert await engine.jobs.claim(DEMAND) == []
    assert await engine.groups.sweep() == Swept(closed=1)
    assert [one.id for one in await engine.jobs.claim(DEMAND)] == [parent.id]
    assert await engine.groups.sweep() == Swept()


@pytest.mark.engine("redis")
@pytest.mark.spec("CALL-02")
async def test_a_caller_that_was_told_is_not_told_anew(engine: RedisEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies between the signal and the note of it: the sweep finds the answer and closes."""
    [parent] = await claims(engine)
    group, kids, ended = call(parent, draft("kid", queue="kids"))
    await suspend(engine, parent, ended, called=kids, groups=(group,))
    [kid] = await engine.jobs.claim(DEMAND)
    run = Store.run

    async def lose(self: Store, script: Any, *args: Any, **more: Any) -> Any:
        if script is groups._WOKEN:
            raise EngineUnavailable("gone")
        return await run(self, script, *args, **more)

    with monkeypatch.context() as patched:
        patched.setattr(Store, "run", lose)
        await engine.jobs.settle([conclude(kid, Done())])
    [again] = await engine.jobs.claim(DEMAND)
    await suspend(engine, again)
    assert await engine.groups.sweep() == Swept(closed=1)
    assert await engine.jobs.claim(DEMAND) == []


# --- a cluster --------------------------------------------------------------------------------------------------


@pytest.mark.engine("redis-cluster")
@pytest.mark.spec("CALL-01", "CALL-03")
async def test_on_a_cluster_children_are_stored_before_the_row(
    cluster: RedisClusterEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that dies in between has started them; the same save once more starts none again."""
    [parent] = await claims(cluster)
    group, kids, ended = call(parent, draft("kid", queue="kids"), draft("kid", queue="kids"))
    save = Save(parent.id, "w", parent.token, (ended,), kids, (group,), parent.ref)
    with monkeypatch.context() as patched:

        async def die(*_: object, **__: object) -> None:
            raise EngineUnavailable("gone")

        elsewhere = followups.call_elsewhere

        async def then_die(store: Store, *args: Any) -> None:
            await elsewhere(store, *args)
            patched.setattr(Store, "work", die)

        patched.setattr(followups, "call_elsewhere", then_die)
        with pytest.raises(EngineUnavailable):
            await cluster.steps.save([save])
    assert await rows(cluster, parent.id) == {}
    found = await cluster.jobs.claim(DEMAND)
    assert sorted(one.id for one in found) == sorted(one.job_id for one in kids)
    await cluster.jobs.settle([conclude(found[0], Done())])
    assert await cluster.steps.save([save]) == [Verdict.APPLIED]
    await cluster.jobs.settle([conclude(found[1], Done())])
    await suspend(cluster, parent, ended)
    assert [one.id for one in await cluster.jobs.claim(DEMAND)] == [parent.id]


@pytest.mark.engine("redis-cluster")
@pytest.mark.spec("STEP-14", "STEP-16")
async def test_on_a_cluster_a_refused_suspension_calls_nobody(cluster: RedisClusterEngine) -> None:
    """Neither one that lost its claim nor one that meets a cancel, also in other queues."""
    [parent] = await claims(cluster)
    group, kids, ended = call(parent, draft("kid", queue="kids"))
    refused = conclude(parent, Suspended((ended,), called=kids, groups=(group,)))
    await cluster.operator.alter(Selection((parent.id,)), Cancel())
    assert (await cluster.jobs.settle([refused])).verdicts == [Verdict.CANCELING]
    await cluster.operator.alter(Selection((parent.id,)), Cancel(force=True))
    assert (await cluster.jobs.settle([refused])).verdicts == [Verdict.LOST]
    assert await cluster.steps.save([Save(parent.id, "w", parent.token, (ended,), kids, (group,), parent.ref)]) == [
        Verdict.LOST
    ]
    assert await cluster.operator.get([kids[0].job_id]) == [None]
    assert await cluster.groups.get([group]) == [None]


@pytest.mark.engine("redis-cluster")
@pytest.mark.spec("CALL-04")
async def test_on_a_cluster_a_caller_waits_for_groups_of_several_queues(cluster: RedisClusterEngine) -> None:
    """One of them in its own queue, one without any job."""
    [parent] = await claims(cluster)
    parts = [call(parent, draft("kid", queue=queue)) for queue in ("default", "kids", "other")] + [call(parent)]
    await suspend(
        cluster,
        parent,
        *(one[2] for one in parts),
        wakes=Wakes.ALL,
        called=tuple(kid for one in parts for kid in one[1]),
        groups=tuple(one[0] for one in parts),
    )
    kids = await cluster.jobs.claim(DEMAND)
    assert len(kids) == 3
    for kid in kids[:2]:
        await cluster.jobs.settle([conclude(kid, Done())])
        assert await cluster.jobs.claim(DEMAND) == []
    await cluster.jobs.settle([conclude(kids[2], Done())])
    assert [one.id for one in await cluster.jobs.claim(DEMAND)] == [parent.id]
    assert set((await rows(cluster, parent.id)).values()) == {StepState.DONE}


@pytest.mark.engine("redis-cluster")
@pytest.mark.spec("STEP-13")
async def test_on_a_cluster_a_suspended_job_moves_with_its_rows(cluster: RedisClusterEngine) -> None:
    [claim] = await claims(cluster)
    await cluster.steps.save([Save(claim.id, "w", claim.token, (Step("a", value=b"1"),), ref=claim.ref)])
    await suspend(cluster, claim)
    for queue in ("other", "default", "kids"):
        assert (await cluster.operator.alter(Selection((claim.id,)), Move(queue))).changed == 1
        assert await rows(cluster, claim.id) == {"a": StepState.DONE, "go": StepState.WAITING}
    store = cluster._store
    for queue in ("other", "default"):
        assert await store.connection.call("EXISTS", store.shard(queue).key("steps")) == 0
    assert await cluster.steps.signal([Signal(claim.id, "go")]) == [Signaled.TAKEN]
    assert [one.queue for one in await cluster.jobs.claim(DEMAND)] == ["kids"]


@pytest.mark.engine("redis-cluster")
@pytest.mark.spec("STEP-13")
async def test_on_a_cluster_a_signal_delivers_a_job_that_is_on_its_way(
    cluster: RedisClusterEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that moved it died in between, in either half of the way."""
    for lost in ("deliver", "_strike_off"):
        [claim] = await claims(cluster)
        await suspend(cluster, claim)
        with monkeypatch.context() as patched:
            patched.setattr(move, lost, _die)
            await cluster.operator.alter(Selection((claim.id,)), Move("other"))
        assert await cluster.steps.signal([Signal(claim.id, "go")]) == [Signaled.TAKEN]
        [again] = await cluster.jobs.claim(DEMAND)
        assert (again.id, again.queue) == (claim.id, "other")
        await cluster.operator.expire(Retention())
        assert await rows(cluster, claim.id) == {"go": StepState.DONE}
        await cluster.jobs.settle([conclude(again, Done())])


@pytest.mark.engine("redis-cluster")
@pytest.mark.spec("STEP-13")
async def test_on_a_cluster_a_job_that_came_back_keeps_its_rows(
    cluster: RedisClusterEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note that it had left is struck off late."""
    [claim] = await claims(cluster)
    await suspend(cluster, claim)
    with monkeypatch.context() as patched:
        patched.setattr(move, "_strike_off", _die)
        await cluster.operator.alter(Selection((claim.id,)), Move("other"))
    await cluster.operator.alter(Selection((claim.id,)), Move("default"))
    await cluster.operator.expire(Retention())
    assert await rows(cluster, claim.id) == {"go": StepState.WAITING}
    assert await cluster.steps.signal([Signal(claim.id, "go")]) == [Signaled.TAKEN]
    [again] = await cluster.jobs.claim(DEMAND)
    assert (again.queue, again.fresh) == ("default", False)


@pytest.mark.engine("redis-cluster")
@pytest.mark.spec("ANSWER-03")
async def test_on_a_cluster_signals_reach_all_queues(cluster: RedisClusterEngine, clock: VirtualClock) -> None:
    found = [(await claims(cluster, queue=queue))[0] for queue in ("default", "kids", "other")]
    for claim in found:
        await suspend(cluster, claim, after=HOUR)
    sent = [Signal(one.id, "go") for one in found] + [Signal(secrets.token_bytes(16), "go")]
    assert await cluster.steps.signal(sent) == [Signaled.TAKEN] * 3 + [Signaled.MISSING]
    assert len(await cluster.jobs.claim(DEMAND)) == 3
    assert [one.status for one in await cluster.operator.get([one.id for one in found]) if one] == [Status.RUNNING] * 3
