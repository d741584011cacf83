"""How often changes one by one ask the server: it depends on what a call does, never on how many jobs it has."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from stoker.engines.postgres import PostgresEngine
from stoker.engines.postgres.connection import Connection
from stoker.model.budgets import Rates, Spend
from stoker.model.groups import Group
from stoker.model.ids import JobId
from stoker.model.job import Demand, Draft, Options, Settlement, Status, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Suspended
from stoker.model.query import Cancel, Move, Prioritize, Requeue, Selection
from stoker.model.steps import Signal, Signaled, Step, StepState, Wakes
from stoker.model.throttle import Rate
from stoker.model.unique import Unique
from tests.engines.postgres.test_alter import mint

pytestmark = pytest.mark.engine("postgres")


@pytest.fixture
async def engine(postgres_url: str, postgres_schema: str) -> AsyncIterator[PostgresEngine]:
    engine = PostgresEngine(postgres_url, schema=postgres_schema)
    await engine.open()
    await engine.jobs.renew("w", [], first=True)
    yield engine
    await engine.close()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """Record what the engine's connections send."""
    sent = Sent()
    for name in ("run", "touch", "command"):
        method = getattr(Connection, name)

        async def recorded(self: Connection, text: str, *more: Any, method: Any = method) -> Any:
            sent.texts.setdefault(id(self), []).append(text)
            return await method(self, text, *more)

        monkeypatch.setattr(Connection, name, recorded)
    return sent


class Sent:
    """Statements by connection: notifications and looks at groups take others meanwhile."""

    def __init__(self) -> None:
        self.texts: dict[int, list[str]] = {}

    def clear(self) -> None:
        self.texts.clear()

    @property
    def transaction(self) -> list[str]:
        """The statements of the first transaction, from BEGIN to COMMIT."""
        for texts in self.texts.values():
            if texts[0].startswith("BEGIN"):
                return texts[: texts.index("COMMIT") + 1]
        raise AssertionError("no transaction was begun")


async def grouped(engine: PostgresEngine, n: int) -> None:
    """Store jobs with keys as members of one group."""
    group = Group(id=mint(), sealed=True)
    options = Options(group=group.id)
    await engine.jobs.insert(
        [Draft(mint(), "work", unique=Unique(f"k{i}"), options=options) for i in range(n)], group=group
    )


@pytest.mark.spec("LEASE-18")
async def test_a_renewal_is_one_statement_with_orders_and_without(engine: PostgresEngine, sent: Sent) -> None:
    for told in (None, b'{"worker":"w","work":"quiet"}'):
        if told is not None:
            assert await engine.documents.swap("orders", "w", None, told)
        sent.clear()
        renewal = await engine.jobs.renew("w", [])
        assert renewal.orders == (None if told is None else told.decode())
        [texts] = [texts for texts in sent.texts.values() if any("UPDATE" in one for one in texts)]
        assert len(texts) == 1


@pytest.mark.spec("BUDGET-26")
async def test_a_spend_of_a_key_is_two_statements(engine: PostgresEngine, sent: Sent) -> None:
    """One that reads budget and key, one that writes the key; as many as without keys."""
    await engine.control.tune("plain", Rate(100, 1))
    await engine.control.tune("keyed", Rates({"tokens": Rate(100, 1)}, True))
    asked: list[tuple[str, int | Spend]] = [("plain", 1), *[("keyed", Spend({"tokens": 1}, "acme"))] * 2]
    for name, spend in asked:
        sent.clear()
        assert (await engine.control.spend(name, spend)).granted
        begin, *texts, commit = sent.transaction
        assert [begin[:5], commit] == ["BEGIN", "COMMIT"]
        assert len([text for text in texts if "budget" in text]) == 2, texts


@pytest.mark.spec("PGOP-20")
async def test_a_settlement_with_everything_sends_few_statements(engine: PostgresEngine, sent: Sent) -> None:
    """The job has a key and a group; its end stores a follow-up with a key."""
    await grouped(engine, 2)
    [claim] = await engine.jobs.claim(Demand("w", (("default", 1),)))
    followup = Draft(mint(), "next", unique=Unique("next"))
    ended = Settlement(claim.id, "w", claim.token, Status.DONE, ref=claim.ref, followups=(followup,))
    sent.clear()
    assert (await engine.jobs.settle([ended])).verdicts == [Verdict.APPLIED]
    assert len(sent.transaction) <= 10, sent.transaction


@pytest.mark.spec("PGOP-20")
async def test_a_failed_run_is_written_by_one_statement(engine: PostgresEngine, sent: Sent) -> None:
    """Its lease, its error, its next run, its key, its kind's last error, and the counts."""
    await grouped(engine, 1)
    [claim] = await engine.jobs.claim(Demand("w", (("default", 1),)))
    failed = Settlement(claim.id, "w", claim.token, Status.RETRYING, after=1, error="x", ref=claim.ref)
    sent.clear()
    assert (await engine.jobs.settle([failed])).verdicts == [Verdict.APPLIED]
    begin, _, *loads, write, commit = sent.transaction
    assert [begin[:5], commit] == ["BEGIN", "COMMIT"]
    assert [text.split()[0] for text in loads] == ["SELECT"] * 3
    assert write.startswith("WITH part0")


@pytest.mark.spec("PGOP-20")
@pytest.mark.parametrize(("wakes", "statements"), [(Wakes.ANY, 2), (Wakes.ALL, 9)])
async def test_a_signal_sends_few_statements(engine: PostgresEngine, sent: Sent, wakes: Wakes, statements: int) -> None:
    """One that looks and one that answers, where any answer lets the job run.

    Else a look in vain, and a transaction that begins by locking the job, and changes its row where it is.
    """
    [receipt] = await engine.jobs.insert([Draft(mint(), "work")])
    [claim] = await engine.jobs.claim(Demand("w", (("default", 1),)))
    await engine.jobs.settle([conclude(claim, Suspended((Step("go", StepState.WAITING),), wakes=wakes))])
    sent.clear()
    assert await engine.steps.signal([Signal(receipt.id, "go", b"1")]) == [Signaled.TAKEN]
    texts = [text for texts in sent.texts.values() for text in texts if "pg_notify" not in text]
    assert len(texts) == statements, texts


async def waiting(engine: PostgresEngine) -> tuple[JobId, ...]:
    drafts = [Draft(mint(), "work", unique=Unique(f"k{n}")) for n in range(100)]
    return tuple(receipt.id for receipt in await engine.jobs.insert(drafts))


async def dead(engine: PostgresEngine) -> tuple[JobId, ...]:
    jobs = await waiting(engine)
    claims = await engine.jobs.claim(Demand("w", (("default", 100),)))
    await engine.jobs.settle([Settlement(c.id, "w", c.token, Status.DEAD, ref=c.ref, error="x") for c in claims])
    return jobs


@pytest.mark.spec("PGOP-20")
async def test_a_change_of_a_hundred_jobs_sends_few_statements(engine: PostgresEngine, sent: Sent) -> None:
    jobs: Sequence[JobId] = await waiting(engine)
    for change in (Prioritize(5), Move("other"), Cancel()):
        sent.clear()
        assert (await engine.operator.alter(Selection(tuple(jobs)), change)).changed == 100
        assert len(sent.transaction) <= 9, sent.transaction
    jobs = await dead(engine)
    sent.clear()
    assert (await engine.operator.alter(Selection(tuple(jobs)), Requeue())).changed == 100
    assert len(sent.transaction) <= 9, sent.transaction
