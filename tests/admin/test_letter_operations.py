"""Operations on letters: every letter of a filter once, and none that fails after the operation began."""

from __future__ import annotations

import pytest

from stoker.admin import Admin, documents, letter_walk
from stoker.app import Stoker
from stoker.engines.base import Feature, outbox_of
from stoker.model.errors import InvalidInput, StokerError
from stoker.model.operations import Operation
from stoker.model.outbox.letters import LetterFilter, LetterStatus
from stoker.model.time import moment
from stoker.testing.clock import VirtualClock
from tests.harness.letters import letters


@pytest.fixture
def outboxed(app: Stoker) -> Stoker:
    if Feature.OUTBOX not in app.root().features:
        pytest.skip("this store has no streams")
    return app


async def due(app: Stoker) -> int:
    found = await outbox_of(await app.engine()).letters(LetterFilter(status=LetterStatus.PENDING, limit=1_000))
    return sum(one.due for one in found.letters)


@pytest.mark.spec("BULK-07")
async def test_letters_of_a_filter_are_replayed_page_by_page(
    outboxed: Stoker, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letter_walk, "PAGE", 2)
    engine = await outboxed.engine()
    await letters(engine, 5)
    await letters(engine, 2, stream="bills", type_="Sent", at=9)
    admin = Admin(outboxed, by="ada")
    assert await admin.outbox.count_letters() == 7
    assert [one.type for one in (await admin.outbox.letters(stream="bills")).letters] == ["Sent", "Sent"]
    begun = await admin.operations.start_on_letters("replay", stream="orders", consumer="warehouse", type="Placed")
    assert (begun.noun, begun.action) == ("letter", "replay-letters")
    assert begun.filter == "stream:orders consumer:warehouse type:Placed"
    ended = await admin.operations.finish(begun.id)
    assert (ended.state, ended.changed) == ("done", 5)
    assert await due(outboxed) == 5
    again = await admin.operations.finish((await admin.operations.start_on_letters("replay")).id)
    assert (again.changed, again.filter) == (2, ""), "the others are to be delivered already"
    clock.advance(1)
    gone = await admin.operations.finish((await admin.operations.start_on_letters("discard", stream="bills")).id)
    assert (gone.state, gone.changed) == ("done", 2)
    assert await admin.outbox.count_letters(status="discarded") == 2
    actions = [one.action for one in await admin.audit.list()]
    assert {"operations.start", "letters.replay", "letters.discard"} == set(actions)


@pytest.mark.spec("BULK-07")
async def test_letters_that_fail_after_the_start_are_not_touched(outboxed: Stoker, clock: VirtualClock) -> None:
    engine = await outboxed.engine()
    await letters(engine, 2)
    admin = Admin(outboxed)
    now = await engine.now()
    clock.advance(1)
    await letters(engine, 3, at=20)
    assert (await admin.outbox.preview("discard")).count == 5
    then = await admin.outbox.preview("discard", counted_at=moment(now))
    assert (then.count, then.counts, then.counted_at) == (
        2,
        {LetterStatus.PENDING: 2, LetterStatus.PARKED: 0},
        moment(now),
    )
    late = Operation(id="01", who="", action="replay-letters", filter="", bound=now, started=now, state="stopped")
    assert await documents.put_operation(engine, late) is not None
    await admin.operations.resume("01")
    assert (await admin.operations.finish("01")).changed == 2
    assert await due(outboxed) == 2


@pytest.mark.spec("BULK-07")
async def test_what_chooses_no_letters_is_refused(app: Stoker) -> None:
    admin = Admin(app)
    if Feature.OUTBOX not in app.root().features:
        with pytest.raises(StokerError):
            await admin.operations.start_on_letters("replay")
        return
    with pytest.raises(InvalidInput, match="must be replay, resolve or discard"):
        await admin.operations.start_on_letters("burn")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="are chosen by"):
        letter_walk.chosen({"colour": "red"})
    with pytest.raises(InvalidInput, match="must be a whole number"):
        letter_walk.chosen({"partition": "two"})
    assert await admin.operations.list() == []
