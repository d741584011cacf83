"""What a durable call refuses: where it is written, with nothing stored and nothing stuck."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel, Field, model_serializer, model_validator

from stoker import (
    Chunk,
    EngineError,
    InvalidInput,
    JobFailed,
    NotFound,
    Status,
    StepFailed,
    Stoker,
    StokerError,
    current,
)
from stoker.context import Context
from stoker.durable import stored_rows
from stoker.engines.base import Feature
from stoker.model import ids
from stoker.model.retry import Fixed
from stoker.model.steps import LARGEST_VALUE, MOST_EARLY, Signal
from stoker.testing.clock import VirtualClock
from tests.harness.apps import drain

IN_MEMORY = pytest.mark.parametrize("new_engine", ["memory"], indirect=True)
"""For what is refused before a store is asked."""

UNKNOWN = "01900000-0000-7000-8000-000000000000"


class Approval(msgspec.Struct):
    yes: bool


@Stoker("memory://").task
async def _other() -> None: ...


async def refused(jobs: Stoker, ask: Callable[[Context], Awaitable[Any]]) -> str:
    """The error of a job whose run made this call after a step, and whose next run finds that step and no other row."""

    @jobs.task(name="refused", attempts=1)
    async def flow() -> None:
        await current().step("before", int)
        await ask(current())

    job = await flow.enqueue()
    await drain(jobs)
    with pytest.raises(JobFailed) as failed:
        await job.result()
    assert [step.name for step in await job.steps()] == ["before"]
    return str(failed.value.error)


async def twice(run: Context) -> None:
    await run.step("each", int, key="a")
    await run.step("each", int, key="a")


def of_step(**options: Any) -> Callable[[Context], Awaitable[Any]]:
    return lambda run: run.step("s", int, **options)


REFUSED: dict[str, tuple[Callable[[Context], Awaitable[Any]], str]] = {
    "a name": (lambda run: run.step("a b", int), "step: must be 1-100 of letters, digits"),
    "a key": (of_step(key=""), "key: must be a non-empty text"),
    "no JSON": (lambda run: run.step("s", object), "step s"),
    "NaN": (lambda run: run.step("s", float, "nan"), "step s"),
    "too large": (lambda run: run.step("s", bytes.decode, b"x" * LARGEST_VALUE), "is larger than 1,048,576 bytes"),
    "no function": (lambda run: run.step("s", 5), "fn: must be a function"),  # type: ignore[call-overload]
    "no tries": (of_step(attempts=0), "attempts: must be 1 to"),
    "a backoff": (of_step(attempts=2, backoff=60), "backoff: must be"),
    "no time": (of_step(timeout=0), "timeout: must be"),
    "a negative sleep": (lambda run: run.sleep(-1), "seconds: must"),
    "a naive date": (lambda run: run.sleep_until("tomorrow"), "when: must"),  # type: ignore[arg-type]
    "a negative wait": (lambda run: run.wait("go", timeout=-1), "timeout: must"),
    "a question": (lambda run: run.wait("go", ask=5), "ask: must be a text"),  # type: ignore[call-overload]
    "no draft": (lambda run: run.call(5), "draft: must be a draft"),  # type: ignore[arg-type]
}


@IN_MEMORY
@pytest.mark.spec("DURABLE-18")
@pytest.mark.parametrize("what", REFUSED)
async def test_bad_input_is_refused_where_it_is_written(timed_jobs: Stoker, what: str) -> None:
    ask, words = REFUSED[what]
    assert words in await refused(timed_jobs, ask)


@IN_MEMORY
@pytest.mark.spec("DURABLE-18")
async def test_a_key_used_twice_is_refused(timed_jobs: Stoker) -> None:
    @timed_jobs.task(attempts=1)
    async def flow() -> None:
        await twice(current())

    job = await flow.enqueue()
    await drain(timed_jobs)
    with pytest.raises(JobFailed, match="must be used once in a run"):
        await job.result()
    assert [step.name for step in await job.steps()] == ["each:a"]


@IN_MEMORY
@pytest.mark.spec("DURABLE-11")
@pytest.mark.parametrize("call", ["step", "sleep", "wait", "call"])
async def test_a_durable_call_inside_a_step_is_refused(timed_jobs: Stoker, call: str) -> None:
    @timed_jobs.task
    async def child() -> None: ...

    async def inside() -> None:
        run = current()
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "step": lambda: run.step("inner", int),
            "sleep": lambda: run.sleep(60),
            "wait": lambda: run.wait("go"),
            "call": lambda: run.call(child.draft()),
        }
        await calls[call]()

    assert "stands inside step outer" in await refused(timed_jobs, lambda run: run.step("outer", inside))


@IN_MEMORY
@pytest.mark.spec("DURABLE-11")
async def test_a_chunk_has_no_steps(timed_jobs: Stoker) -> None:
    @timed_jobs.task(chunk=Chunk(1), attempts=1)
    async def index(ns: list[int]) -> None:
        await current().step("s", int)

    job = await index.enqueue(1)
    await drain(timed_jobs)
    with pytest.raises(JobFailed, match=r"current\(\)\.step is one job's"):
        await job.result()


@IN_MEMORY
@pytest.mark.spec("DURABLE-18")
@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (lambda run: run.step_sync("s", int), r"step s of job .*: `step_sync` would block.* `await current\(\)\.step"),
        (lambda run: run.sleep_sync(5), "`sleep_sync` would block"),
        (lambda run: run.wait_sync("s"), "`wait_sync` would block"),
        (lambda run: run.call_sync(_other.draft()), "`call_sync` would block"),
    ],
)
async def test_a_plain_call_in_an_async_handler_is_refused(
    timed_jobs: Stoker, ask: Callable[[Context], Any], why: str
) -> None:
    """It waits for the loop that it stands in: no job of the worker would go on."""

    @timed_jobs.task(attempts=1)
    async def flow() -> None:
        ask(current())

    job = await flow.enqueue()
    await drain(timed_jobs)
    with pytest.raises(JobFailed, match=why):
        await job.result()
    assert await job.steps() == []


@IN_MEMORY
@pytest.mark.spec("DURABLE-18")
async def test_a_plain_step_has_no_time_limit(timed_jobs: Stoker) -> None:
    @timed_jobs.task(attempts=1)
    def flow() -> None:
        current().step_sync("s", int, timeout=5)  # type: ignore[call-overload]

    job = await flow.enqueue()
    await drain(timed_jobs)
    with pytest.raises(JobFailed, match="must not be given in step_sync"):
        await job.result()


@IN_MEMORY
@pytest.mark.spec("DURABLE-18")
async def test_a_called_job_must_leave_a_result(timed_jobs: Stoker) -> None:
    @timed_jobs.task(keep=0)
    async def child() -> None: ...

    assert "keep: must not be 0" in await refused(timed_jobs, lambda run: run.call(child.draft()))


@pytest.mark.spec("DURABLE-18")
@pytest.mark.parametrize("limit", ["MOST_STEPS", "LARGEST_VALUES"])
async def test_a_job_has_room_for_so_many_steps(
    timed_jobs: Stoker, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """The steps before are kept, and the job is not stuck: it may end, and go on in a follow-up."""
    monkeypatch.setattr(stored_rows, limit, 8)

    @timed_jobs.task(attempts=1)
    async def flow() -> str:
        run = current()
        try:
            for _ in range(9):
                await run.step("one", int)
        except StepFailed as failed:
            return f"{failed.step}: {failed.error}"
        return "all"

    job = await flow.enqueue()
    await drain(timed_jobs)
    assert "one#9: a job has room for" in await job.result()
    assert len(await job.steps()) == 8


@IN_MEMORY
@pytest.mark.spec("DURABLE-18")
async def test_waits_and_tries_need_room_too(
    timed_jobs: Stoker, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that is written again needs no room of its own: a try of a step, the end of a sleep."""
    monkeypatch.setattr(stored_rows, "MOST_STEPS", 4)
    monkeypatch.setattr(stored_rows, "LARGEST_VALUES", 12_000)

    def fail() -> None:
        raise ValueError("x" * 8_000)

    @timed_jobs.task(attempts=1)
    async def flow() -> str:
        run = current()
        with suppress(StepFailed):
            await run.step("fails", fail, attempts=4, backoff=Fixed(0))
        try:
            for _ in range(9):
                await run.sleep(60)
        except StepFailed as failed:
            return f"{failed.step}: {failed.error}"
        return "all"

    job = await flow.enqueue()
    for _ in range(5):
        await drain(timed_jobs)
        clock.advance(61)
    assert "sleep#4: a job has room for" in await job.result()
    assert {step.name: step.state for step in await job.steps()} == {
        "fails": "failed",
        **dict.fromkeys(("sleep", "sleep#2", "sleep#3"), "done"),
    }


# --- signals ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("DURABLE-04")
async def test_a_signal_to_a_job_that_is_not_there_is_refused(timed_jobs: Stoker) -> None:
    @timed_jobs.task
    async def work() -> None: ...

    with pytest.raises(NotFound, match=UNKNOWN):
        await timed_jobs.handle(UNKNOWN).signal("go")
    job = await work.enqueue()
    await drain(timed_jobs)
    assert await job.signal("go") is False
    for name, value, why in (
        ("a b", None, "signal: must be"),
        ("calls:00", None, "signal: must be"),
        ("go", object(), "signal go"),
        ("go", "x" * LARGEST_VALUE, "is larger than"),
    ):
        with pytest.raises(InvalidInput, match=why):
            await job.signal(name, value)


@pytest.mark.spec("ANSWER-14")
async def test_a_value_that_the_open_wait_does_not_ask_for_is_refused(timed_jobs: Stoker) -> None:
    @timed_jobs.task
    async def flow() -> bool:
        return (await current().wait("approval", Approval)).yes

    job = await flow.enqueue()
    await drain(timed_jobs)
    with pytest.raises(InvalidInput, match=r"signal approval: yes must be of type boolean; got dict\. Nothing"):
        await job.signal("approval", {"yes": "of course"})
    [row] = await job.steps()
    assert row.state == "waiting"
    assert await job.signal("approval", {"yes": True})
    await drain(timed_jobs)
    assert await job.result() is True


class Signed(BaseModel):
    yes: bool
    by: str = Field(alias="signedBy")
    at: datetime | None = None
    price: Decimal = Decimal(1)


@pytest.mark.spec("ANSWER-14")
async def test_a_pydantic_model_is_asked_for_like_any_other_type(timed_jobs: Stoker) -> None:
    @timed_jobs.task
    async def flow() -> str:
        answer = await current().wait("approval", Signed)
        return f"{answer.by} {answer.price}"

    job = await flow.enqueue()
    await drain(timed_jobs)
    for value, why in (({"yes": True}, "signedBy must be there"), ({"yes": 2, "signedBy": "x"}, "yes must be of type")):
        with pytest.raises(InvalidInput, match=f"signal approval: {why}"):
            await job.signal("approval", value)
    [row] = await job.steps()
    assert (row.state, row.schema["required"]) == ("waiting", ["yes", "signedBy"])
    assert await job.signal("approval", Signed(yes=True, signedBy="ada", at=datetime.now(UTC), price=Decimal("9.90")))
    await drain(timed_jobs)
    assert await job.result() == "ada 9.90"


class Short(BaseModel):
    """Travels as "ada:7", which is not what its fields look like."""

    name: str
    n: int

    @model_validator(mode="before")
    @classmethod
    def read(cls, given: Any) -> Any:
        return dict(zip(("name", "n"), given.split(":"), strict=True)) if isinstance(given, str) else given

    @model_serializer
    def write(self) -> str:
        return f"{self.name}:{self.n}"


@pytest.mark.spec("ANSWER-14")
async def test_a_model_with_code_of_its_own_judges_its_values_itself(timed_jobs: Stoker) -> None:
    @timed_jobs.task
    async def flow() -> int:
        return (await current().wait("approval", Short)).n

    job = await flow.enqueue()
    await drain(timed_jobs)
    assert await job.signal("approval", Short(name="ada", n=7))
    await drain(timed_jobs)
    assert await job.result() == 7


@pytest.mark.spec("ANSWER-14", "ANSWER-06")
async def test_an_early_value_is_judged_when_the_job_waits(timed_jobs: Stoker) -> None:
    @timed_jobs.task(attempts=1)
    async def flow() -> bool:
        return (await current().wait("approval", Approval)).yes

    job = await flow.enqueue()
    assert await job.signal("approval", {"yes": "of course"})
    await drain(timed_jobs)
    with pytest.raises(JobFailed, match=r"step approval failed: .* does not fit Approval: .* signal --replace"):
        await job.result()


@pytest.mark.spec("ANSWER-04", "DURABLE-04")
async def test_appended_signals_go_to_one_wait_after_the_other(timed_jobs: Stoker) -> None:
    @timed_jobs.task
    async def agent() -> list[str]:
        heard: list[str] = []
        while not heard or heard[-1] != "bye":
            heard.append(await current().wait("message", str))
        return heard

    job = await agent.enqueue()
    for text in ("hello", "how are you"):
        assert await job.signal("message", text, append=True)
    await drain(timed_jobs)
    assert await job.signal("message", "bye", append=True)
    await drain(timed_jobs)
    assert await job.result() == ["hello", "how are you", "bye"]
    assert await job.signal("message", "late", append=True) is False


@pytest.mark.spec("ANSWER-08")
async def test_a_job_keeps_so_many_early_signals(timed_jobs: Stoker) -> None:
    @timed_jobs.task
    async def work() -> None: ...

    job = await work.enqueue()
    engine = await timed_jobs.engine()
    await engine.steps.signal([Signal(ids.parse(job.id), "m", append=True) for _ in range(MOST_EARLY)])
    with pytest.raises(StokerError, match=r"1000 signals that it did not wait for yet\. This one was not stored"):
        await job.signal("m", append=True)


@pytest.mark.spec("DURABLE-18")
async def test_a_store_without_transactions_refuses_them(timed_jobs: Stoker) -> None:
    """By name, for a step and for a signal; the job goes on without them."""
    if Feature.OUTBOX in (await timed_jobs.engine()).features:
        pytest.skip("it has transactions")

    error = await refused(timed_jobs, lambda run: run.step("s", int, tx=True))
    assert "cannot join a transaction" in error

    @timed_jobs.task
    async def flow() -> None:
        await current().wait("go")

    job = await flow.enqueue()
    await drain(timed_jobs)
    with pytest.raises(EngineError, match="Redis takes no tx="):
        await job.signal("go", tx=object())
    [row] = await job.steps()
    assert row.state == "waiting"
    assert (await job.refresh()).status is Status.PENDING
