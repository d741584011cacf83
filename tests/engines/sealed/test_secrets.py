"""What a sealed app stores, on every engine: no secret is in the store, and every reader with the key has it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pydantic
import pytest

from stoker import (
    PREVIOUS,
    RESULTS,
    Chunk,
    Fixed,
    JobFailed,
    JobHandle,
    Outbox,
    Reject,
    Seal,
    Status,
    StepFailed,
    Stoker,
    Unique,
    chain,
    current,
)
from stoker.admin import Admin
from stoker.engines.base import Feature
from stoker.engines.sealed.values import Values
from stoker.errors import InvalidFilter, InvalidInput, SealedValue
from stoker.model import ids
from stoker.model.job import copied
from stoker.model.query import Edit, Selection
from stoker.model.redact import Redaction
from stoker.model.seal import CLOSED, MARK, why_closed, written
from stoker.outbox import Message
from stoker.watching import Changed, Missed
from tests.engines.sealed.conftest import FEW, KEY, OLDER, Sealable
from tests.harness.apps import PATIENCE, drain, working

SECRET = "S3CRET"
"""In everything that must not be found in a store."""


class Answer(msgspec.Struct):
    code: str


def app_with_tasks(store: Sealable, seal: Seal | None = None, **options: Any) -> Stoker:
    jobs = store.app(seal, **options)

    @jobs.task
    async def pay(card: str) -> str:
        run = current()
        run.metadata["note"] = f"{SECRET} noted"
        run.log(f"{SECRET} logged")
        if "quiet" not in card:
            run.progress(0.5, f"{SECRET} half", {"of": f"{SECRET} data"})
            run.emit(f"{SECRET} emitted")
        token = await run.step("token", lambda: f"{SECRET} token of {card}")
        answer = await run.wait("approval", Answer, ask=f"{SECRET} question")
        called = await run.call(echo.draft(f"{SECRET} called"))
        return f"{token}, {answer.code}, {called}"

    @jobs.task
    async def echo(text: str) -> str:
        return text

    @jobs.task
    async def total(texts: list[str]) -> str:
        return " and ".join(texts)

    @jobs.task(attempts=1)
    async def fail(text: str) -> None:
        raise ValueError(f"{SECRET} failed with {text}")

    @jobs.task(attempts=1)
    async def refuse(text: str) -> None:
        raise Reject(f"{SECRET} {text}")

    return jobs


@pytest.mark.spec("SEAL-01")
async def test_no_secret_is_in_the_store(store: Sealable) -> None:
    """Nothing is plain either: the app takes no plain values."""
    jobs = app_with_tasks(store, Seal(keys={"2026-11": KEY}, plain=False))
    pay, echo, total, fail = (jobs.tasks[name] for name in ("pay", "echo", "total", "fail"))
    paid = await pay.enqueue(f"{SECRET} card")
    await drain(jobs)
    with pytest.raises(InvalidInput, match="code"):
        await paid.signal("approval", {"code": 7})
    assert await paid.signal("approval", Answer(f"{SECRET} answer"))
    await drain(jobs)
    expected = f"{SECRET} token of {SECRET} card, {SECRET} answer, {SECRET} called"
    link, callback = echo.draft(PREVIOUS), total.draft(RESULTS)
    await jobs.enqueue(chain(echo.draft(f"{SECRET} first"), echo.draft(f"{SECRET} second").then(echo.draft("x"))))
    await jobs.enqueue(chain(echo.draft(f"{SECRET} link"), link))
    group = await jobs.group([echo.draft(f"{SECRET} member")], then=callback)
    failed = await fail.enqueue(f"{SECRET} argument")
    rejected = await jobs.enqueue(jobs.draft("refuse", [f"{SECRET} by name"]))
    hidden = Unique(f"{SECRET} key", digest=True)
    kept = await jobs.enqueue(jobs.draft("echo", [f"{SECRET} keyed"], unique=hidden, metadata={"who": f"{SECRET} who"}))
    await jobs.schedule("nightly", echo.draft(f"{SECRET} schedule"), every=3600)
    await jobs.schedule_handle("nightly").run_now()
    await drain(jobs)
    outbox = Feature.OUTBOX in jobs.root().features
    heard: list[str] = []
    if outbox:
        heard = await with_messages(jobs)
    assert await paid.result() == expected
    job = await paid.refresh()
    assert set(job.log) == {f"{SECRET} logged"}
    assert f"{SECRET} noted" in job.metadata.values()
    assert f"{SECRET} emitted" in repr([event async for event in paid.watch()])
    assert {step.name: step.value for step in await paid.steps()}["token"] == f"{SECRET} token of {SECRET} card"
    assert await jobs.handle(link.id).result() == f"{SECRET} link"
    assert await group.results() == [f"{SECRET} member"]
    assert await jobs.handle(callback.id).result() == f"{SECRET} member"
    with pytest.raises(JobFailed, match=f"{SECRET} failed with {SECRET} argument"):
        await failed.result()
    with pytest.raises(JobFailed, match=f"{SECRET} {SECRET} by name"):
        await rejected.result()
    assert (await kept.refresh()).metadata["who"] == f"{SECRET} who"
    if outbox:
        assert heard == [f"{SECRET} body", f"{SECRET} header"]
    admin = Admin(jobs)
    [shown] = [one for one in (await admin.jobs.errors()).groups if "failed" in one.error]
    assert shown.frame.endswith(".fail")
    assert {job.id for job in (await admin.jobs.find(f"same_error:{shown.id}")).jobs} == {failed.id}
    await jobs.close()
    assert not store.holds(SECRET)
    assert store.holds("ValueError: sealed ")
    assert store.holds("<locals>.fail")


class Card(pydantic.BaseModel):
    """A result that cannot be stored, and whose refusal quotes it."""

    number: str

    @pydantic.field_serializer("number")
    def refuse(self, number: str) -> str:
        raise ValueError(f"{number} is not to be shown")


INSIDE = f'tool failed:\nTraceback (most recent call last):\n  File "/a/{SECRET}.py", line 1, in {SECRET}\nOSError'
"""The message of an error that shows the traceback of another program."""


@pytest.mark.spec("SEAL-01")
async def test_what_is_quoted_or_tried_again_is_not_in_the_store(store: Sealable) -> None:
    jobs = store.app()
    runs = 0

    @jobs.task(attempts=2, backoff=Fixed(0))
    async def fail(card: str) -> None:
        nonlocal runs
        runs += 1
        error = RuntimeError(INSIDE)
        error.add_note(INSIDE)
        raise error if runs == 1 else ExceptionGroup(f"{card} group", [error]) from KeyError(f"{card} cause")

    @jobs.task(attempts=1)
    def refuse(card: str) -> None:
        raise Reject(f"{card} {INSIDE}")

    @jobs.task
    def show(card: str) -> Card:
        return Card(number=card)

    @jobs.task
    async def careful(card: str) -> str:
        try:
            await current().step("charge", broken, card)
        except StepFailed as error:
            return str(error)
        return "not reached"

    async def broken(card: str) -> None:
        raise ValueError(f"{card} {INSIDE}")

    named = {"stoker.card": f"{SECRET} named"}
    shown = await jobs.enqueue(jobs.draft("show", [SECRET], metadata=named))
    ended = [await jobs.enqueue(jobs.draft(kind, [SECRET])) for kind in ("fail", "refuse", "careful")]
    await drain(jobs)
    record = await shown.refresh()
    assert record.metadata["stoker.card"] == f"{SECRET} named"
    assert SECRET in record.metadata["stoker.result_warning"]
    failed, refused, told = ended
    assert len((await failed.refresh()).history) == 2
    assert (await refused.refresh()).status is Status.DEAD
    assert SECRET in await told.result()
    await jobs.close()
    assert not store.holds(SECRET)


@pytest.mark.spec("SEAL-01")
async def test_what_blocks_and_chunks_store_is_sealed(store: Sealable) -> None:
    jobs = store.app(Seal(keys={"2026-11": KEY}, plain=False))

    @jobs.task
    async def book(card: str) -> str:
        run = current()
        run.emit(f"{card} emitted")
        await run.step("seat", lambda tx: f"{card} seat", tx=True)
        async with run.transaction() as tx:
            run.log(f"{card} logged")
            run.metadata["card"] = card
            await noted.enqueue(f"{card} followed")
            tx.result(f"{card} booked")
        return f"{card} booked"

    @jobs.task(chunk=Chunk(10), attempts=1)
    async def tell(texts: list[str]) -> list[str | BaseException]:
        for text, item in zip(texts, current().items, strict=True):
            item.log(f"{text} logged")
        return [ValueError(text) if "bad" in text else text for text in texts]

    @jobs.task
    def noted(text: str) -> str:
        return text

    told = [await tell.enqueue(f"{SECRET} {what}") for what in ("good", "bad")]
    blocks = Feature.OWN_TRANSACTION in jobs.root().features
    booked = await book.enqueue(SECRET) if blocks else None
    await drain(jobs)
    assert await told[0].result(PATIENCE) == f"{SECRET} good"
    with pytest.raises(JobFailed, match=f"{SECRET} bad"):
        await told[1].result(PATIENCE)
    if booked is not None:
        assert await booked.result(PATIENCE) == f"{SECRET} booked"
        assert (await booked.refresh()).log == (f"{SECRET} logged",)
    await jobs.close()
    assert not store.holds(SECRET)


@pytest.mark.spec("SEAL-01")
async def test_what_operators_change_is_not_in_the_store(store: Sealable) -> None:
    """Nor in the audit log."""
    jobs = app_with_tasks(store)
    admin = Admin(jobs, by="ann")
    made = await admin.jobs.enqueue("echo", [f"{SECRET} enqueued"], delay=3600, metadata={"who": SECRET}, label=SECRET)
    await admin.jobs.edit(made.id, payload=f'["{SECRET} edited"]'.encode())
    [fork] = (await admin.jobs.fork(made.id)).created
    await admin.schedules.create("nightly", jobs.draft("echo", [f"{SECRET} made"]), every=3600)
    await admin.schedules.edit("nightly", jobs.draft("echo", [f"{SECRET} edited"], label=SECRET))
    paid = await jobs.tasks["pay"].enqueue(f"{SECRET} card")
    await drain(jobs)
    assert await admin.jobs.signal(paid.id, "approval", {"code": f"{SECRET} answer"})
    await drain(jobs)
    assert await jobs.handle(fork).result() == f"{SECRET} edited"
    await admin.jobs.reveal(paid.id)
    if Feature.OUTBOX in jobs.root().features:
        await with_messages(jobs)
        [letter] = (await admin.outbox.letters()).letters
        stream = admin.outbox.stream("mail")
        await stream.revealed(letter.id)
        await stream.replace(letter.id, f'"{SECRET} replaced"'.encode())
        await drain(jobs)
    await jobs.close()
    assert not store.holds(SECRET)


async def with_messages(jobs: Stoker) -> list[str]:
    stream: Outbox[str] = Outbox(jobs, stream="mail")
    heard: list[str] = []

    @stream.deliver
    async def listen(message: Message[str]) -> None:
        heard.extend([message.body, message.headers["trace"]])

    @stream.deliver(attempts=1)
    async def give_up(message: Message[str]) -> None:
        raise ValueError(f"{SECRET} reason")

    await stream.append("key", f"{SECRET} body", headers={"trace": f"{SECRET} header"})
    await drain(jobs)
    [letter] = (await stream.letters()).letters
    assert letter.reason.startswith(f"ValueError: {SECRET} reason")
    assert letter.payload == f'"{SECRET} body"'.encode()
    return heard


FORGED = [f"{MARK}2026-11~", written("2026-11", bytes(60)), written("2026-11", bytes(60), bytes(16)), f"{CLOSED}why"]
"""What a stranger may write into a form, and a task into an error."""


@pytest.mark.spec("SEAL-15")
@pytest.mark.parametrize("forged", FORGED)
@pytest.mark.parametrize("store", FEW, indirect=True)
async def test_a_text_that_looks_sealed_is_sealed(store: Sealable, forged: str) -> None:
    """It must not keep what is beside it readable."""
    jobs = store.app()

    @jobs.task(attempts=1)
    async def fail(text: str) -> None:
        current().log(f"{text} {SECRET} logged")
        current().progress(0.5, f"{text} {SECRET} half")
        raise ValueError(f"{SECRET} failed\n{text}")

    @jobs.task
    async def echo(text: str) -> str:
        current().metadata["note"] = f"{text} noted"
        return text

    drafts = [jobs.draft("fail", [text]) for text in (forged, f"{forged} {SECRET}", f"{SECRET}\n{forged}")]
    failed = [await jobs.enqueue(draft) for draft in drafts]
    told = await echo.enqueue(f"{forged} {SECRET} told")
    labeled = await jobs.enqueue(jobs.draft("echo", ["x"], label=f"{forged[:20]} {SECRET}"))
    await drain(jobs)
    for one in failed:
        record = await one.refresh()
        assert record.status is Status.DEAD
        assert f"{SECRET} failed" in (record.last_error or "")
        assert record.log[0].endswith(f"{SECRET} logged")
    if not forged.startswith(CLOSED):
        assert await told.result() == f"{forged} {SECRET} told"
        assert (await told.refresh()).metadata["exec_note"] == f"{forged} {SECRET} told noted"
    assert (await labeled.refresh()).status is Status.DONE
    await jobs.close()
    assert not store.holds(SECRET)


@pytest.mark.spec("SEAL-15")
@pytest.mark.parametrize("store", FEW[:1], indirect=True)
async def test_a_sealed_value_of_another_place_is_sealed_again(store: Sealable) -> None:
    """Its own place keeps it as it is, or the error that it is; no text before it is kept with it."""
    values = Values(Seal(keys={"2026-11": KEY}))
    here, there = bytes(16), bytes(15) + b"1"
    line = values.close_text("line", "log", here)
    assert values.close_text(line, "log", here) == line
    assert values.open_text(values.close_text(line, "log", there), "log", [there]) == line
    result = values.close_json(b'"told"', "result", here, 1_000)
    assert values.close_json(result, "result", here, 1_000) == result
    with pytest.raises(SealedValue, match="result"):
        values.close_json(result, "result", there, 1_000)
    error = values.close_error("ValueError: told", here, here)
    assert values.close_error(error, here, here) == error
    for forged in (f"{SECRET}\n{error}", error.replace("ValueError", SECRET), f"{error}\n{SECRET}"):
        sealed = values.close_error(forged, here, here)
        assert SECRET not in sealed
        assert values.open_error(sealed, [here]) == forged


# --- keys -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("SEAL-02")
@pytest.mark.parametrize("store", FEW, indirect=True)
async def test_a_worker_without_the_key_puts_the_job_back(store: Sealable, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever its grace: a key that one worker lacks must not end jobs. Another worker runs it."""
    jobs = app_with_tasks(store)
    job = await jobs.enqueue(jobs.draft("echo", ["x"]))
    for seal in (Seal(keys={"2026-11": OLDER}), Seal(keys={"other": KEY})):
        wrong = app_with_tasks(store, seal)
        await drain(wrong, unknown_task_grace=0)
        await wrong.close()
        record = await job.refresh()
        assert (record.status, record.attempts) == (Status.PENDING, 0)
        assert "2026-11" in record.metadata["stoker.unfit"]
        await Admin(jobs).jobs.run_now(job.id)
    unsealed = store.plain_app()
    unsealed.task(name="echo")(lambda text: text)
    await drain(unsealed, unknown_task_grace=0)
    assert "no seal=" in (await job.refresh()).metadata["stoker.unfit"]
    await unsealed.close()
    await Admin(jobs).jobs.run_now(job.id)
    await drain(jobs)
    assert await job.result() == "x"
    await jobs.close()


@pytest.mark.spec("WATCH-17")
@pytest.mark.parametrize("store", FEW, indirect=True)
async def test_a_watcher_without_the_key_is_told_what_it_misses(store: Sealable) -> None:
    """It sees no value, and how many there are; the stream still ends."""
    jobs, unsealed = app_with_tasks(store), store.plain_app()
    job = await jobs.task(name="talk")(lambda: current().emit("a value")).enqueue()
    await drain(jobs)
    *_, missed, ended = [event async for event in unsealed.handle(job.id).watch()]
    assert isinstance(missed, Missed) and missed.count == 1
    assert isinstance(ended, Changed) and ended.ended
    await unsealed.close()
    await jobs.close()


@pytest.mark.spec("SEAL-03")
@pytest.mark.parametrize("store", FEW, indirect=True)
async def test_values_cannot_be_swapped(store: Sealable) -> None:
    """Neither between jobs, nor between fields of one, nor into another kind or tenant, nor into a forged copy."""
    jobs = app_with_tasks(store)
    plain = store.plain_app()
    first, second = [await jobs.enqueue(jobs.draft("echo", [text])) for text in ("mine", "yours")]
    inside = (await plain.engine()).operator
    [one, two] = await inside.get([ids.parse(first.id), ids.parse(second.id)])
    assert one is not None
    assert two is not None
    values = Values(Seal(keys={"2026-11": KEY}))
    assert values.open_job(two).payload == b'["yours"]'
    proof = values.lineage(one, one.id)
    swapped = [
        msgspec.structs.replace(two, payload=one.payload),
        msgspec.structs.replace(two, kind="fail"),
        msgspec.structs.replace(two, tenant="other"),
        msgspec.structs.replace(two, payload=one.payload, options=copied(two.options, one.id, "2026-11~AAAA")),
        msgspec.structs.replace(two, payload=one.payload, options=copied(two.options, one.id, proof)),
    ]
    for forged in swapped:
        assert why_closed(values.open_job(forged).payload) is not None
    within = values.open_job(msgspec.structs.replace(two, result=two.payload))
    assert why_closed(within.result) is not None
    await inside.alter(Selection((two.id,)), Edit(payload=one.payload))
    await drain(jobs)
    assert (await second.refresh()).status is Status.PENDING
    assert await first.result() == "mine"
    await plain.close()
    await jobs.close()


@pytest.mark.spec("SEAL-04")
async def test_copies_and_replacements_open(store: Sealable) -> None:
    """A retry as a copy, a copy of that, forks and a draft that replaces another carry values of other jobs."""
    jobs = app_with_tasks(store)
    admin = Admin(jobs)
    steps = 0

    @jobs.task(attempts=1, name="stepped")
    async def stepped(text: str) -> str:
        nonlocal steps
        run = current()
        steps += 1
        value = await run.step("one", lambda: f"{text} {steps}")
        if steps < 3:
            raise ValueError("again")
        return f"{value} {run.metadata['who']}"

    job = await jobs.enqueue(jobs.draft("stepped", ["x"], metadata={"who": "me"}))
    await drain(jobs)
    [copy] = (await admin.jobs.retry(job.id)).created
    await drain(jobs)
    [again] = (await admin.jobs.retry(copy)).created
    await drain(jobs)
    assert await jobs.handle(again).result() == "x 1 me"
    [forked] = (await admin.jobs.fork(again)).created
    [kept] = (await admin.jobs.fork(again, after="one")).created
    await drain(jobs)
    assert await jobs.handle(forked).result() == "x 4 me"
    assert await jobs.handle(kept).result() == "x 1 me"
    replaced = Unique("k", mode="replace")
    held = await jobs.enqueue(jobs.draft("echo", ["old"], unique=replaced, delay=60))
    newer = await jobs.enqueue(jobs.draft("echo", ["new"], unique=replaced, metadata={"who": "me"}))
    assert newer.id == held.id
    [beside] = (await admin.jobs.fork(held.id)).created
    await drain(jobs)
    assert await held.result() == "new"
    assert await jobs.handle(beside).result() == "new"
    await admin.jobs.edit((await jobs.enqueue(jobs.draft("echo", ["a"], delay=60))).id, payload=b'["edited"]')
    await jobs.close()


@pytest.mark.spec("SEAL-05")
@pytest.mark.parametrize("store", FEW, indirect=True)
async def test_what_was_stored_before_is_still_read(store: Sealable) -> None:
    before = store.plain_app()
    before.declare("echo")
    job = await before.enqueue(before.draft("echo", ["plain"]))
    strict = app_with_tasks(store, Seal(keys={"2026-11": KEY}, plain=False))
    await drain(strict)
    assert "plain=False" in (await job.refresh()).metadata["stoker.unfit"]
    await strict.close()
    jobs = app_with_tasks(store)
    await Admin(jobs).jobs.run_now(job.id)
    await drain(jobs)
    assert await jobs.handle(job.id).result() == "plain"
    with pytest.raises(SealedValue, match="no seal="):
        await job.result()
    await before.close()
    await jobs.close()


@pytest.mark.spec("SEAL-17")
@pytest.mark.parametrize("store", FEW, indirect=True)
async def test_stacks_are_sealed_and_gone_after_a_rotation(store: Sealable) -> None:
    """A line of code may hold what only the app knows; without the key there is no report."""
    jobs, plain, go = store.app(), store.plain_app(), asyncio.Event()

    @jobs.task
    async def hang() -> None:
        await asyncio.wait_for(go.wait(), 47_11_08_15)

    async with working(jobs) as worker:
        job = await hang.enqueue()
        await until_running(job)
        reports = [await Admin(jobs).workers.stack(worker.id) for _ in range(2)]
        assert all(report is not None and "47_11_08_15" in report.stands[0].stack for report in reports)
        assert await Admin(jobs).workers.last_stack(worker.id) == reports[1], "it replaces the first"
        assert await Admin(plain).workers.last_stack(worker.id) is None
        assert not store.holds("47_11_08_15")
        operations = Admin(jobs).operations
        await operations.finish((await operations.start_reseal()).id)
        assert await Admin(jobs).workers.last_stack(worker.id) is None
        go.set()
    await plain.close()
    await jobs.close()


async def until_running(job: JobHandle[Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while (await job.refresh()).status is not Status.RUNNING:
            await asyncio.sleep(0.01)


@pytest.mark.spec("SEAL-06")
@pytest.mark.parametrize("store", FEW, indirect=True)
async def test_a_search_inside_is_refused_by_name(store: Sealable) -> None:
    jobs = app_with_tasks(store)
    await jobs.enqueue(jobs.draft("echo", ["x"]))
    admin, plain = Admin(jobs), store.plain_app()
    for word in ("payload:x", "error:x", "meta:who=me", "x"):
        name = word.partition(":")[0] if ":" in word else "text"
        for asking in (admin, Admin(plain)):  # also where the app has no key
            with pytest.raises(InvalidFilter, match=f"^{name}: looks into what is sealed"):
                await asking.jobs.find(word)
    await plain.close()
    with pytest.raises(InvalidFilter):
        await admin.operations.start("cancel", "payload:x")
    assert len((await admin.jobs.find("kind:echo")).jobs) == 1
    await jobs.close()


@pytest.mark.spec("SEAL-07")
@pytest.mark.parametrize("store", FEW, indirect=True)
async def test_without_the_key_sizes_are_shown_and_nothing_is_stored(store: Sealable) -> None:
    jobs = app_with_tasks(store)
    failed = await jobs.enqueue(jobs.draft("fail", ["x"], metadata={"who": "me"}))
    await drain(jobs)
    plain = store.plain_app()
    admin = Admin(plain)
    for redact in (None, Redaction()):
        detail = await Admin(plain, redact=redact).jobs.get(failed.id)
        record = detail.job
        assert detail.arguments == "(sealed with key 2026-11, 5 bytes)"
        assert record.metadata["who"] == "(sealed with key 2026-11, 2 bytes)"
        assert record.last_error is not None
        assert record.last_error.startswith("ValueError: sealed ")
        assert "(sealed with key 2026-11, " in record.last_error
    refused = (
        admin.jobs.enqueue("echo", ["x"]),
        admin.jobs.retry(failed.id),
        admin.jobs.fork(failed.id),
        admin.jobs.signal(failed.id, "approval"),
        admin.jobs.edit(failed.id, payload=b"[]"),
    )
    for attempt in refused:
        with pytest.raises(SealedValue, match="2026-11"):
            await attempt
    assert [one.verdict for one in await admin.health.check() if one.name == "seal"] == ["note"]
    assert [one.verdict for one in await Admin(jobs).health.check() if one.name == "seal"] == ["ok"]
    await plain.close()
    await jobs.close()
