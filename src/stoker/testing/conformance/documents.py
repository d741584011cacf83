"""Access tokens, sessions, operations and errors: small records, changed by compare-and-set."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest

from stoker.admin import documents
from stoker.admin.kinds import read_points
from stoker.engines.base import Engine
from stoker.model import ids
from stoker.model.audit import AuditQuery, By
from stoker.model.events import Event, EventCount, EventType, Point
from stoker.model.job import Status
from stoker.model.operations import Operation
from stoker.model.query import Retention, Sweep
from stoker.model.same_error import fingerprint
from stoker.model.time import DAY, HOUR, MINUTE, SECOND
from stoker.model.tokens import AccessToken, Session, digest
from stoker.testing.conformance.harness import Store, at_once
from stoker.worker.rollup import write_hour, write_points


def _operation(store: Store, name: str = "0", **changes: object) -> Operation:
    plain = Operation(
        id=name, who="maria", action="cancel", filter="is:pending", bound=store.now(), started=store.now()
    )
    return msgspec.structs.replace(plain, **changes)


@pytest.mark.core
@pytest.mark.spec("ERRORS-01", "ERRORS-02", "ERRORS-05")
async def test_the_roll_up_adds_the_failures_of_a_closed_minute_to_their_errors(store: Store) -> None:
    """Once, whichever worker rolls up and however often; what comes late is added."""
    store.pass_time(MINUTE - store.now() % MINUTE)
    at, first, second = store.now(), *sorted(store.mint() for _ in range(2))
    line = "Timeout: …\nshop/tasks.py in charge"

    def failed(job: bytes, kind: str, after: int = 0) -> Event:
        return Event(at + after, EventType.FAILED, job, "mail", kind, 1, 5, error=line)

    await store.engine.timeline.record([failed(first, "send"), failed(second, "sort", 1)], now=store.now())
    assert await documents.error_records(store.engine) == []
    await write_points(store.engine)
    assert await documents.error_records(store.engine) == [], "its minute is not over"
    store.pass_time(MINUTE)
    mine: dict[int, list[EventCount]] = {}
    await write_points(store.engine, mine)
    [record] = await documents.error_records(store.engine)
    assert (record.id, record.error, record.frame) == (fingerprint(line), "Timeout: …", "shop/tasks.py in charge")
    assert (record.first, record.last, record.sample) == (at, at, ids.text(second))
    assert (record.kinds, record.queues, sum(record.died.counts)) == (("send", "sort"), ("mail",), 2)
    await write_points(store.engine, mine)
    await write_points(store.engine)  # another worker has the lock now
    assert await documents.error_records(store.engine) == [record]
    await store.engine.timeline.record([failed(first, "send", 2)], now=store.now())
    await write_points(store.engine, mine)
    [later] = await documents.error_records(store.engine)
    assert sum(later.died.counts) == 3


@pytest.mark.core
@pytest.mark.spec("STATS-14")
async def test_what_kinds_did_is_known_for_seven_days(store: Store) -> None:
    """By the minute for a day, then by the hour; records that are older go."""
    start = store.now() // HOUR * HOUR
    for hour in range(2):
        points = [Point("send", "kind_completed", start + hour * HOUR + n * MINUTE, 1) for n in range(60)]
        await store.engine.timeline.record([], points, now=store.now())
        await write_hour(store.engine, start + hour * HOUR)

    async def known(days: int) -> list[int]:
        store.clock.set(start + days * DAY)
        await store.engine.operator.expire(Retention(limit=10_000))
        asked = ["kind_completed"], start, start + 2 * HOUR, 30 * MINUTE
        return [one.count for one in await read_points(store.engine, "send", *asked, now=store.now())]

    minutes = await store.engine.timeline.points(start, start + 2 * HOUR, ["kind_completed"])
    assert len(minutes) == 120
    assert await known(1) == [30] * 4
    store.clock.set(start + DAY + 14 * MINUTE)
    await store.engine.operator.expire(Retention(limit=10_000))
    assert await known(7) == [30] * 4
    await write_hour(store.engine, start + 7 * DAY + HOUR)
    assert [one.at for one in await documents.kind_hours(store.engine)] == [start + HOUR]
    await store.engine.timeline.record([], [Point("send", "kind_completed", start + HOUR, 99)], now=store.now())
    await write_hour(store.engine, start + HOUR)
    [record] = await documents.kind_hours(store.engine)
    assert record.points("send")[0].count >= 99, "a record is made anew when its minutes gain points"


@pytest.mark.core
@pytest.mark.spec("TOKEN-01")
async def test_tokens_come_back_by_name(store: Store) -> None:
    """As they were stored, through every engine on the store."""
    assert await documents.tokens(store.engine) == []
    at = store.now()
    full = AccessToken(
        name="ci",
        sha256=digest("secret"),
        role="operate",
        queues=("mail", "bulk"),
        created=at,
        expires=at + DAY,
        revoked=at + 1,
        last_used=at + 2,
    )
    plain = AccessToken(name="all", sha256=digest("other"))
    assert await documents.put_token(store.engine, full)
    assert await documents.put_token(store.engine, plain)
    twin = store.engine.for_loop()
    await twin.open()
    assert await documents.tokens(twin) == [plain, full]
    await twin.close()


@pytest.mark.core
@pytest.mark.spec("TOKEN-02")
async def test_a_token_is_changed_only_as_it_was_seen(store: Store) -> None:
    """A new one only if its name is free, a known one only if no other call changed it meanwhile."""
    token = AccessToken(name="ci", sha256=digest("a"))
    revoked, used = (msgspec.structs.replace(token, **change) for change in ({"revoked": 5}, {"last_used": 6}))
    assert not await documents.put_token(store.engine, revoked, before=token)
    assert await documents.put_token(store.engine, token)
    assert not await documents.put_token(store.engine, msgspec.structs.replace(token, role="admin"))
    assert await documents.put_token(store.engine, revoked, before=token)
    assert not await documents.put_token(store.engine, used, before=token)
    assert await documents.tokens(store.engine) == [revoked]


@pytest.mark.spec("TOKEN-02")
async def test_of_two_changes_of_a_token_one_succeeds(store: Store) -> None:
    """Whichever is first; the other sees what it left."""
    token = AccessToken(name="ci", sha256=digest("a"))
    await documents.put_token(store.engine, token)
    changes = [msgspec.structs.replace(token, last_used=n) for n in range(1, 5)]

    async def work(change: AccessToken, engine: Engine) -> bool:
        return await documents.put_token(engine, change, before=token)

    done = await at_once(store, [partial(work, change) for change in changes])
    assert done.count(True) == 1
    assert await documents.tokens(store.engine) == [changes[done.index(True)]]


@pytest.mark.core
@pytest.mark.spec("TOKEN-04")
async def test_sessions_are_kept_until_they_are_dropped(store: Store) -> None:
    """Through every engine on the store, the latest first; one that is not there is dropped without a word."""
    assert await documents.sessions(store.engine) == []
    at = store.now()
    first, second = (
        Session(sha256=digest(name), token="ann", created=at + n, expires=at + DAY) for n, name in enumerate("ab")
    )
    assert await documents.put_session(store.engine, first)
    assert await documents.put_session(store.engine, second)
    assert not await documents.put_session(store.engine, msgspec.structs.replace(first, token="eve"))
    twin = store.engine.for_loop()
    await twin.open()
    assert await documents.sessions(twin) == [second, first]
    await documents.drop_session(twin, first)
    await documents.drop_session(twin, first)
    await documents.drop_session(twin, msgspec.structs.replace(second, token="eve"))
    await twin.close()
    assert await documents.sessions(store.engine) == [second]
    assert await documents.tokens(store.engine) == []


@pytest.mark.core
@pytest.mark.spec("OPERATION-01")
async def test_operations_are_stamped_and_listed_latest_first(store: Store) -> None:
    """The one that was started last comes first; whatever it counted comes back."""
    assert await documents.operations(store.engine) == []
    first = _operation(store, "b", change={"queue": "mail", "priority": 5, "force": True}, cursor="c", error="no")
    stored = await documents.put_operation(store.engine, first)
    assert stored == msgspec.structs.replace(first, seen=store.now())
    store.pass_time(SECOND)
    second = await documents.put_operation(store.engine, _operation(store, "a", changed=3, refused={Status.RUNNING: 2}))
    assert await documents.operations(store.engine) == [second, stored]


@pytest.mark.core
@pytest.mark.spec("OPERATION-02")
async def test_an_operation_is_written_only_as_it_was_seen(store: Store) -> None:
    """The walker notices that an operator asked it to stop."""
    running = await documents.put_operation(store.engine, _operation(store))
    assert running is not None
    assert await documents.put_operation(store.engine, _operation(store, changed=1)) is None
    store.pass_time(SECOND)
    page = await documents.put_operation(store.engine, msgspec.structs.replace(running, changed=5), before=running)
    assert page is not None
    assert (page.changed, page.seen) == (5, store.now())
    stopping = await documents.put_operation(store.engine, msgspec.structs.replace(page, state="stopping"), before=page)
    assert await documents.put_operation(store.engine, msgspec.structs.replace(page, changed=9), before=page) is None
    assert await documents.operations(store.engine) == [stopping]


@pytest.mark.core
@pytest.mark.spec("AUDIT-06")
async def test_changes_of_tokens_and_operations_are_in_the_log(store: Store) -> None:
    """In the step that makes them, never with a digest; what another call was faster with is not there."""
    maria = By("maria", "command line")
    token = AccessToken(name="ci", sha256=digest("a"), role="operate", queues=("mail",))
    revoked = msgspec.structs.replace(token, revoked=store.now())
    assert await documents.put_token(store.engine, token, by=maria)
    assert not await documents.put_token(store.engine, msgspec.structs.replace(token, role="admin"), by=maria)
    store.pass_time(SECOND)
    assert await documents.put_token(store.engine, revoked, before=token, by=maria)
    store.pass_time(SECOND)
    started = await documents.put_operation(store.engine, _operation(store, change={"reason": "no"}), by=maria)
    assert started is not None
    store.pass_time(SECOND)
    page = await documents.put_operation(store.engine, msgspec.structs.replace(started, changed=5), before=started)
    assert page is not None
    stopping = await documents.put_operation(
        store.engine, msgspec.structs.replace(page, state="stopping"), before=page, by=maria
    )
    assert stopping is not None
    stop, start, revoke, create = await store.engine.audit.read(AuditQuery())
    assert [one.deed.action for one in (create, revoke)] == ["tokens.create", "tokens.revoke"]
    assert create.deed.after == {"role": "operate", "queues": ["mail"]}
    assert (start.deed.action, start.deed.target) == ("operations.start", "operation 0")
    assert start.deed.after == {"action": "cancel", "filter": "is:pending", "reason": "no"}
    assert (stop.deed.action, stop.deed.before) == ("operations.stop", {"state": "running"})
    assert {one.by for one in (stop, start, revoke, create)} == {maria}
    assert [one.at for one in (stop, start)] == [store.now(), store.now() - SECOND]
    assert digest("a") not in str([create, revoke])


@pytest.mark.core
@pytest.mark.spec("OPERATION-04")
async def test_old_operations_are_removed(store: Store) -> None:
    """Thirty days after their last write, unless another time is set; and those that are younger stay."""
    await documents.put_operation(store.engine, _operation(store, "ended", state="done"))
    await documents.put_operation(store.engine, _operation(store, "interrupted"))
    store.pass_time(30 * DAY)
    recent = await documents.put_operation(store.engine, _operation(store, "recent", state="stopped"))
    assert (await store.engine.operator.expire(Retention())).operations == 0
    store.pass_time(SECOND)
    sweep = frozenset({Sweep.OPERATIONS})
    assert (await store.engine.operator.expire(Retention(sweeps=sweep))).operations == 2
    assert await documents.operations(store.engine) == [recent]
    assert (await store.engine.operator.expire(Retention(sweeps=sweep, operations=0))).operations == 1
    assert await documents.operations(store.engine) == []
