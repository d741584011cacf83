"""Access tokens and operations: small records, changed by compare-and-set."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest

from stoker.engines.base import Engine
from stoker.model.job import Status
from stoker.model.operations import Operation
from stoker.model.time import DAY, SECOND
from stoker.model.tokens import AccessToken, digest
from stoker.testing.conformance.harness import Store, at_once


def _operation(store: Store, name: str = "0", **changes: object) -> Operation:
    plain = Operation(
        id=name, who="maria", action="cancel", filter="is:pending", bound=store.now(), started=store.now()
    )
    return msgspec.structs.replace(plain, **changes)


@pytest.mark.core
@pytest.mark.spec("TOKEN-01")
async def test_tokens_come_back_by_name(store: Store) -> None:
    """As they were stored, through every engine on the store."""
    assert await store.engine.tokens() == []
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
    assert await store.engine.put_token(full)
    assert await store.engine.put_token(plain)
    twin = store.engine.for_loop()
    await twin.open()
    assert await twin.tokens() == [plain, full]
    await twin.close()


@pytest.mark.core
@pytest.mark.spec("TOKEN-02")
async def test_a_token_is_changed_only_as_it_was_seen(store: Store) -> None:
    """A new one only if its name is free, a known one only if no other call changed it meanwhile."""
    token = AccessToken(name="ci", sha256=digest("a"))
    revoked, used = (msgspec.structs.replace(token, **change) for change in ({"revoked": 5}, {"last_used": 6}))
    assert not await store.engine.put_token(revoked, before=token)
    assert await store.engine.put_token(token)
    assert not await store.engine.put_token(msgspec.structs.replace(token, role="admin"))
    assert await store.engine.put_token(revoked, before=token)
    assert not await store.engine.put_token(used, before=token)
    assert await store.engine.tokens() == [revoked]


@pytest.mark.spec("TOKEN-02")
async def test_of_two_changes_of_a_token_one_succeeds(store: Store) -> None:
    """Whichever is first; the other sees what it left."""
    token = AccessToken(name="ci", sha256=digest("a"))
    await store.engine.put_token(token)
    changes = [msgspec.structs.replace(token, last_used=n) for n in range(1, 5)]

    async def work(change: AccessToken, engine: Engine) -> bool:
        return await engine.put_token(change, before=token)

    done = await at_once(store, [partial(work, change) for change in changes])
    assert done.count(True) == 1
    assert await store.engine.tokens() == [changes[done.index(True)]]


@pytest.mark.core
@pytest.mark.spec("OPERATION-01")
async def test_operations_are_stamped_and_listed_latest_first(store: Store) -> None:
    """The one that was started last comes first; whatever it counted comes back."""
    assert await store.engine.operations() == []
    first = _operation(store, "b", change={"queue": "mail", "priority": 5, "force": True}, cursor="c", error="no")
    stored = await store.engine.put_operation(first)
    assert stored == msgspec.structs.replace(first, seen=store.now())
    store.pass_time(SECOND)
    second = await store.engine.put_operation(_operation(store, "a", changed=3, refused={Status.RUNNING: 2}))
    assert await store.engine.operations() == [second, stored]


@pytest.mark.core
@pytest.mark.spec("OPERATION-02")
async def test_an_operation_is_written_only_as_it_was_seen(store: Store) -> None:
    """The walker notices that an operator asked it to stop."""
    running = await store.engine.put_operation(_operation(store))
    assert running is not None
    assert await store.engine.put_operation(_operation(store, changed=1)) is None
    store.pass_time(SECOND)
    page = await store.engine.put_operation(msgspec.structs.replace(running, changed=5), before=running)
    assert page is not None
    assert (page.changed, page.seen) == (5, store.now())
    stopping = await store.engine.put_operation(msgspec.structs.replace(page, state="stopping"), before=page)
    assert await store.engine.put_operation(msgspec.structs.replace(page, changed=9), before=page) is None
    assert await store.engine.operations() == [stopping]
