"""Below the role admin a search finds nothing that is masked, and tells no right guess from a wrong one."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from stoker.admin import Admin, Filter
from stoker.admin import search as module
from stoker.app import Stoker
from stoker.model.access import ROLES, Role
from stoker.model.errors import EngineReadOnly, Forbidden, InvalidInput
from stoker.model.job import Demand, Settlement, Status
from stoker.testing.clock import VirtualClock

CARD = "4111111111111111"
RIGHT, WRONG = CARD[:6], "411112"
BELOW: list[Role] = ["read", "operate"]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine may be busy."""
    monkeypatch.setattr(module, "PATIENCE", 60)


async def failed(app: Stoker, n: int = 3, **payload: Any) -> list[str]:
    """Dead jobs with a card number in payload and error, and a visible city in both."""
    found = []
    for i in range(n):
        draft = app.draft("send", {"card_number": CARD, "city": f"Turin {i}", **payload})
        found.append((await app.enqueue(draft)).id)
    engine = await app.engine()
    await engine.jobs.renew("w", [], first=True)
    error = f"Declined: card_number={CARD} in Turin"
    for one in await engine.jobs.claim(Demand("w", (("default", 100),), 100)):
        await engine.jobs.settle([Settlement(one.id, one.worker, one.token, Status.DEAD, error=error)])
    return found


def context(app: Stoker, role: Role, **given: Any) -> Admin:
    return Admin(app, by="ann", way="page", role=role, **given)


@pytest.mark.spec("SEARCH-01")
@pytest.mark.parametrize("role", BELOW)
@pytest.mark.parametrize("words", ["error:{}", "{}", "is:dead error:{} order:finished", "error:{} error", "payload:{}"])
async def test_a_right_guess_gives_the_same_answer_as_a_wrong_one(app: Stoker, role: Role, words: str) -> None:
    """Jobs, total, cursor and how many were read; also where a page or the walk ends before the jobs do."""
    await failed(app, 5)
    admin = context(app, role)
    if role == "read" and "payload:" in words:
        for guess in (RIGHT, WRONG):
            with pytest.raises(Forbidden, match="payload: needs the role operate"):
                await admin.jobs.find(words.format(guess))
        return
    for limit in (1, 2, 5, 25):
        right, wrong = [await admin.jobs.find(words.format(one), limit=limit, total=True) for one in (RIGHT, WRONG)]
        assert right == wrong
        assert (right.jobs, right.total) == ([], 0)
    grouped = [await admin.jobs.errors(words.format(one)) for one in (RIGHT, WRONG)]
    assert grouped[0] == grouped[1]
    assert grouped[0].groups == []


@pytest.mark.spec("SEARCH-01")
@pytest.mark.parametrize("role", BELOW)
async def test_where_a_walk_ends_does_not_tell_a_guess(
    app: Stoker, role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    await failed(app, 7)
    monkeypatch.setattr(module, "LARGEST_PAGE", 2)
    monkeypatch.setattr(module, "LONGEST_WALK", 4)
    admin = context(app, role)
    right, wrong = [await admin.jobs.find(guess, limit=1, total=True) for guess in (RIGHT, WRONG)]
    assert right == wrong
    assert (right.scanned, right.total, right.complete) == (4, 0, True)
    assert right.cursor is not None
    rest = [await admin.jobs.find(guess, limit=1, cursor=right.cursor) for guess in (RIGHT, WRONG)]
    assert rest[0] == rest[1]
    assert (rest[0].jobs, rest[0].cursor) == ([], None)


@pytest.mark.spec("SEARCH-02")
@pytest.mark.parametrize("order", ["", " order:oldest", " order:finished"])
async def test_what_is_shown_is_found_in_pages(app: Stoker, order: str) -> None:
    jobs = await failed(app, 5)
    expected = jobs if "oldest" in order else jobs[::-1]
    admin = context(app, "operate")
    for words in ("payload:turin", "error:turin", "Turin", "error:turin payload:turin"):
        seen: list[str] = []
        cursor = None
        while True:
            page = await admin.jobs.find(words + order, limit=2, cursor=cursor, total=True)
            assert (page.total, page.complete) == (5, True)
            seen += [one.id for one in page.jobs]
            cursor = page.cursor
            if cursor is None:
                break
        assert seen == expected
    [one] = (await admin.jobs.find('payload:"turin 3"')).jobs
    assert one.id == jobs[3]
    assert (await admin.jobs.find("payload:turin", limit=5)).cursor is None, "the last one was on the page"


@pytest.mark.spec("SEARCH-02")
async def test_readers_find_texts_of_errors_alone(app: Stoker) -> None:
    await failed(app, 2, note="in the payload alone")
    reader = context(app, "read")
    assert len((await reader.jobs.find("Turin")).jobs) == 2
    assert (await reader.jobs.find('"payload alone"')).jobs == []
    assert len((await context(app, "operate").jobs.find('"payload alone"')).jobs) == 2


@pytest.mark.spec("SEARCH-09", "FILTER-12")
async def test_metadata_is_found_as_it_is_shown(app: Stoker) -> None:
    """Every role finds, previews and, if it may act, changes by what it sees; a masked value is no way to guess it."""
    tags = {"customer": "42", "password": RIGHT}
    jobs = [(await app.enqueue(app.draft("send", {}, metadata=one))).id for one in (tags, {"customer": "421"}, {})]
    for role in ROLES:
        admin = context(app, role)
        found = await admin.jobs.find("meta:customer=42", total=True)
        assert ([one.id for one in found.jobs], found.total) == (jobs[:1], 1)
        assert (await admin.jobs.find("meta:customer=4")).jobs == []
        assert (await admin.jobs.preview("meta:customer=42")).count == 1
        guess = f"meta:password={RIGHT}"
        if role == "admin":
            assert (await admin.jobs.preview(guess)).count == 1
            continue
        for ask in (admin.jobs.find, admin.jobs.preview):
            with pytest.raises(Forbidden, match="needs the role admin"):
                await ask(guess)


@pytest.mark.spec("SEARCH-03")
async def test_an_admin_finds_what_is_stored(app: Stoker) -> None:
    """So do the command line and code, which reach the store anyway."""
    await failed(app, 2)
    for admin in (context(app, "admin"), Admin(app, by="ann", way="command line"), Admin(app)):
        for words in (f"payload:{RIGHT}", f"error:{RIGHT}", RIGHT):
            assert (await admin.jobs.find(words, total=True)).total == 2
            assert (await admin.jobs.preview(words)).count == 2
    with pytest.raises(InvalidInput, match="must be one of read, operate, admin"):
        Admin(app, role="root")  # type: ignore[arg-type]


@pytest.mark.spec("SEARCH-04")
@pytest.mark.parametrize("words", ["payload:x", "error:x", "x", "is:dead error:x"])
async def test_a_bulk_action_by_texts_needs_admin(app: Stoker, words: str) -> None:
    await failed(app, 1)
    admin = context(app, "operate")
    for call in (
        lambda: admin.jobs.preview(words),
        lambda: admin.jobs.delete(Filter.parse(words)),
        lambda: admin.operations.start("requeue", words),
    ):
        with pytest.raises(Forbidden, match="needs the role admin, and this is operate"):
            await call()
    able = context(app, "admin")
    done = await able.operations.finish((await able.operations.start("requeue", words)).id)
    with pytest.raises(Forbidden):
        await admin.operations.resume(done.id)


@pytest.mark.spec("SEARCH-05")
async def test_a_look_into_payloads_is_in_the_audit_log_once_a_minute(app: Stoker, clock: VirtualClock) -> None:
    await failed(app, 1)

    async def entries() -> list[tuple[str, str]]:
        found = await Admin(app).audit.list(action="jobs.search")
        return [(one.who, one.target) for one in found]

    ann, bob = context(app, "admin"), Admin(app, by="bob", way="command line")
    await ann.jobs.find("is:dead error:x")
    await Admin(app).jobs.find(f"payload:{CARD}")
    assert await entries() == [], "without payload:, or by code without a name"
    for guess in (CARD, "x", "y"):
        await ann.jobs.find(f"is:dead payload:{guess}")
        await ann.jobs.errors(f"is:dead payload:{guess}")
    said = "jobs is:dead payload:[hidden]"
    assert await entries() == [("ann", said)]
    await bob.jobs.find(f"is:dead payload:{CARD}")
    assert sorted(await entries()) == [("ann", said), ("bob", said)]
    clock.advance(120)
    await ann.jobs.find("is:dead payload:z")
    assert len(await entries()) == 3


@pytest.mark.spec("SEARCH-05")
@pytest.mark.parametrize("away", [EngineReadOnly("this store takes no writes"), None])
async def test_a_store_without_writes_leaves_a_line_of_the_log(
    app: Stoker, away: Exception | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that refuses, and one in which another process writes for long."""
    await failed(app, 1)
    engine = await app.engine()

    async def refused(*_: object) -> bool:
        if away is not None:
            raise away
        await asyncio.sleep(3_600)
        return True

    if away is None:
        monkeypatch.setattr(module, "PATIENCE", 0.01)

    monkeypatch.setattr(engine.control, "lock", refused)
    with caplog.at_level(logging.WARNING, "stoker.audit"):
        assert len((await context(app, "admin").jobs.find(f"payload:{CARD}")).jobs) == 1
    assert "ann (page) searched payloads of jobs payload:[hidden]" in caplog.text
    assert CARD not in caplog.text


@pytest.mark.spec("SEARCH-05")
async def test_operations_do_not_show_what_they_looked_for(app: Stoker) -> None:
    await failed(app, 1)
    admin = context(app, "admin")
    done = await admin.operations.finish((await admin.operations.start("discard", f"payload:{CARD} is:dead")).id)
    assert (done.changed, done.filter) == (1, "is:dead payload:[hidden]")
    [entry] = await admin.audit.list(action="operations.start")
    assert entry.after["filter"] == "is:dead payload:[hidden]"


@pytest.mark.spec("SEARCH-07")
@pytest.mark.parametrize("role", [*BELOW, "admin"])
async def test_the_same_error_does_not_tell_the_same_secret(app: Stoker, role: Role) -> None:
    """A person who may enqueue could try one password after the other until the jobs are one group."""
    engine = await app.engine()
    await engine.jobs.renew("w", [], first=True)
    for _ in range(3):
        await app.enqueue(app.draft("send", {}))
    guesses = ("hunter", "hunter", "wrongo")
    for one, guess in zip(await engine.jobs.claim(Demand("w", (("default", 9),), 9)), guesses, strict=True):
        error = f"RuntimeError: password={guess} rejected"
        await engine.jobs.settle([Settlement(one.id, one.worker, one.token, Status.DEAD, error=error)])
    admin = context(app, role)
    jobs = [one.id for one in (await admin.jobs.find("is:dead")).jobs]
    for job in jobs:
        assert [one.id for one in (await admin.jobs.find(f"same_error:{job}")).jobs] == jobs
    [group] = (await admin.jobs.errors("is:dead")).groups
    assert group.count == 3


@pytest.mark.spec("FILTER-10")
async def test_the_same_error_reads_no_job_that_ended_well_or_was_discarded(app: Stoker) -> None:
    engine = await app.engine()
    await engine.jobs.renew("w", [], first=True)
    for _ in range(2):
        await app.enqueue(app.draft("send", {}))
    for one in await engine.jobs.claim(Demand("w", (("default", 9),), 9)):
        await engine.jobs.settle([Settlement(one.id, one.worker, one.token, Status.DEAD, error="Timeout: after 5 s")])
    admin = context(app, "operate")
    first, second = [one.id for one in (await admin.jobs.find("is:dead")).jobs]
    for _ in range(40):
        await app.enqueue(app.draft("send", {}))
    for one in await engine.jobs.claim(Demand("w", (("default", 99),), 99)):
        await engine.jobs.settle([Settlement(one.id, one.worker, one.token, Status.DONE)])
    await admin.jobs.discard(second)
    found, dead = await admin.jobs.find(f"same_error:{second}"), await admin.jobs.find("is:dead,retrying")
    assert ([one.id for one in found.jobs], found.scanned) == ([first], dead.scanned)
    assert (await admin.jobs.preview(f"same_error:{second}")).count == 1


@pytest.mark.spec("SEARCH-08")
async def test_a_search_in_large_payloads_lets_others_have_their_turns(
    app: Stoker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a page would stand still for minutes, and so would the app around the dashboard."""
    await failed(app, 20, note="x" * module.UNBROKEN)
    turns, seen, shows = 0, list[int](), module._shows

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    def noted(*given: Any) -> bool:
        seen.append(turns)
        return shows(*given)

    monkeypatch.setattr(module, "_shows", noted)
    beside = asyncio.create_task(others())
    found = await Admin(app, role="operate").jobs.find("payload:nowhere")
    beside.cancel()
    assert (found.jobs, found.scanned) == ([], 20)
    assert len(set(seen)) == 20, "a turn between any two"
