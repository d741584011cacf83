"""Rotation: everything that is stored gets the current key, while a worker runs, and goes on after a stop."""

from __future__ import annotations

import pytest

from stoker import PREVIOUS, RESULTS, Outbox, Seal, Stoker, Unique, chain
from stoker.admin import Admin
from stoker.admin.reseal import PAGE
from stoker.engines.base import Feature
from stoker.engines.sealed.engine import sealed
from stoker.errors import InvalidInput
from stoker.outbox import Message, Pace
from tests.engines.sealed.conftest import KEY, OLDER, Sealable
from tests.engines.sealed.test_secrets import SECRET, Answer, app_with_tasks
from tests.harness.apps import drain, working

OLD, BOTH, NEW = Seal({"old": OLDER}), Seal({"new": KEY, "old": OLDER}), Seal({"new": KEY}, digest=OLDER)


@pytest.mark.spec("SEAL-14")
async def test_reseal_rotates_everything_under_a_running_worker(store: Sealable) -> None:
    before = store.plain_app()
    before.declare("echo")
    plain = await before.enqueue(
        before.draft("echo", [f"{SECRET} plain"], metadata={"who": f"{SECRET} who"}, delay=3600)
    )
    await before.close()
    old = app_with_tasks(store, OLD)
    admin = Admin(old)
    paid = await old.tasks["pay"].enqueue(f"{SECRET} card")
    failed = await old.tasks["fail"].enqueue(f"{SECRET} argument")
    done = await old.tasks["echo"].enqueue(f"{SECRET} done")
    replacing = Unique("k", mode="replace")
    await old.enqueue(old.draft("echo", ["first"], unique=replacing, delay=3600))
    replaced = await old.enqueue(old.draft("echo", [f"{SECRET} replaced"], unique=replacing, delay=3600))
    link = old.tasks["echo"].draft(PREVIOUS)
    first = old.draft("echo", [f"{SECRET} first"], delay=3600)
    chained = await old.enqueue(chain(first, link))
    await old.schedule("nightly", old.tasks["echo"].draft(f"{SECRET} schedule"), every=3600)
    await drain(old)
    [copy] = (await admin.jobs.retry(failed.id)).created
    callback, later = old.tasks["total"].draft(RESULTS), old.draft("echo", [f"{SECRET} member"], delay=3600)
    failing = old.draft("echo", [f"{SECRET} on failure"], metadata={"who": f"{SECRET} who"})
    open_ = await old.group([later], then=callback, on_failure=failing)
    await old.group([old.tasks["echo"].draft("x")], then=old.tasks["echo"].draft(f"{SECRET} callback"))
    await drain(old)
    streams = Feature.OUTBOX in old.root().features
    if streams:
        former, listened = mails(old)
        for body in ("first", "second", "x" * 3_000):
            await former.append("key", f"{SECRET} {body}", headers={"trace": f"{SECRET} header"})
        await drain(old)
        await former.append("key", f"{SECRET} last", headers={"trace": f"{SECRET} header"})
        assert len(listened) == 6
    assert store.holds("~seal1~old~", rows=True)
    await old.close()

    both = app_with_tasks(store, BOTH)
    operations = Admin(both).operations
    async with working(both):
        ended = await operations.finish((await operations.start_reseal()).id)
    assert (ended.state, ended.blocked) == ("done", 0)
    assert ended.total is not None and ended.total <= ended.seen
    await both.close()
    assert not store.holds("~seal1~old~", rows=True)
    assert not store.holds(SECRET, rows=True)

    new = app_with_tasks(store, NEW)
    assert await new.handle(paid.id).signal("approval", Answer(f"{SECRET} answer"))
    for job in (plain.id, chained.id, replaced.id, later.id):
        await Admin(new).jobs.run_now(job)
    mail, heard = mails(new) if streams else (None, [])
    await new.schedule_handle("nightly").run_now()
    await drain(new)
    assert (await new.handle(paid.id).result()).startswith(f"{SECRET} token of {SECRET} card")
    assert f"{SECRET} emitted" in repr([event async for event in new.handle(paid.id).watch()])
    assert await new.handle(callback.id).result() == f"{SECRET} member"
    assert await new.group_handle(open_.id).results() == [f"{SECRET} member"]
    if mail is not None:
        assert heard == [f"{SECRET} last", f"{SECRET} header"]
        found = [letter.payload for letter in (await mail.letters(status=None)).letters]
        assert [one[8:13] for one in sorted(found)] == [b"first", b"last\x22", b"secon", b"xxxxx"]
    assert await new.handle(plain.id).result() == f"{SECRET} plain"
    assert (await new.handle(plain.id).refresh()).metadata["who"] == f"{SECRET} who"
    assert await new.handle(done.id).result() == f"{SECRET} done"
    assert await new.handle(replaced.id).result() == f"{SECRET} replaced"
    assert await new.handle(link.id).result() == f"{SECRET} first"
    for one in (failed.id, copy):
        assert f"{SECRET} failed with {SECRET} argument" in (await new.handle(one).refresh()).history[0].error
    assert [one.verdict for one in await Admin(new).health.check() if one.name == "seal"] == ["ok"]
    assert f"{SECRET} failed" in ((await Admin(new).kinds.get("fail")).last_error or "")
    await new.close()


def mails(jobs: Stoker) -> tuple[Outbox[str], list[str]]:
    """A stream with a consumer that listens, and one that sets its key aside."""
    stream: Outbox[str] = Outbox(jobs, stream="mail")
    heard: list[str] = []

    @stream.deliver
    async def listen(message: Message[str]) -> None:
        heard.extend([message.body, message.headers["trace"]])

    @stream.deliver(attempts=1, then="park")
    async def park(message: Message[str]) -> None:
        raise ValueError(f"{SECRET} reason")

    @stream.deliver(attempts=3, pace=Pace(retry_base=3_600, retry_max=3_600))
    async def hold(message: Message[str]) -> None:
        raise ValueError(f"{SECRET} held up")

    return stream, heard


@pytest.mark.spec("SEAL-14")
async def test_a_rotation_that_was_stopped_goes_on_and_leaves_what_it_cannot_open() -> None:
    async with Stoker("memory://", seal=NEW) as jobs:
        jobs.declare("echo")
        await jobs.enqueue_many([jobs.draft("echo", [n]) for n in range(PAGE + 1)])
        operations = Admin(jobs).operations
        started = await operations.start_reseal()
        await operations.stop(started.id)
        stopped = await operations.finish(started.id)
        assert (stopped.state, stopped.seen) == ("stopped", PAGE)
        await operations.resume(started.id)
        ended = await operations.finish(started.id)
        assert (ended.state, ended.seen, ended.total) == ("done", PAGE + 1, PAGE + 1)
        other = jobs.with_engine(sealed((await jobs.engine()).inner.for_loop(), OLD))  # type: ignore[attr-defined]
        others = Admin(other).operations
        left = await others.finish((await others.start_reseal()).id)
        assert (left.state, left.blocked, left.fates["cannot be opened"]) == ("done", PAGE + 1, PAGE + 1)
        await other.close()


@pytest.mark.spec("SEAL-18")
async def test_the_doctor_names_what_a_process_with_another_key_still_stores() -> None:
    """After a reseal: with the older key, with none, and with another key under the current id."""

    async def enqueued(by: Stoker) -> None:
        by.declare("echo")
        await by.enqueue(by.draft("echo", ["x"]))

    async def told(by: Stoker) -> list[tuple[str, str]]:
        checks = await Admin(by).health.check()
        return [(one.verdict, one.read.partition(" jobs ")[2]) for one in checks if one.name == "seal"]

    async with Stoker("memory://", seal=BOTH) as jobs:
        inner = (await jobs.engine()).inner  # type: ignore[attr-defined]
        older, plain = jobs.with_engine(sealed(inner.for_loop(), OLD)), jobs.with_engine(inner.for_loop())
        await enqueued(older)
        operations = Admin(jobs).operations
        await operations.finish((await operations.start_reseal()).id)
        assert await told(jobs) == [("ok", "")]
        for late in (older, plain):
            await enqueued(late)
        assert await told(jobs) == [("note", "2 are not sealed with the current key new")]
        wrong = jobs.with_engine(sealed(inner.for_loop(), Seal({"new": bytes(32)})))
        assert await told(wrong) == [("warning", "2 cannot be opened with key new")]
        await enqueued(jobs)
        assert await told(wrong) == [("warning", "3 cannot be opened with key new")]
        await operations.finish((await operations.start_reseal()).id)
        assert await told(jobs) == [("ok", "")]
        for one in (older, plain, wrong):
            await one.close()


@pytest.mark.spec("SEAL-14")
async def test_an_app_without_keys_cannot_reseal() -> None:
    async with Stoker("memory://") as jobs:
        with pytest.raises(InvalidInput, match="has no seal="):
            await Admin(jobs).operations.start_reseal()
