"""What an account that can write to the store cannot do: hand a value to a handler that no holder of a key made."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from stoker import Seal, Status, current
from stoker.engines.sealed.values import Values
from stoker.model import ids
from stoker.model.job import Job
from stoker.model.outbox.stream import Entry, numbered
from stoker.model.seal import why_closed, written
from stoker.model.steps import Signal, Step, StepState
from tests.engines.sealed.conftest import FEW, KEY, Sealable
from tests.harness.apps import drain

JOB = b"j" * 16
STRICT = Seal(keys={"2026-11": KEY}, plain=False)
VALUES = Values(STRICT)
FORGED = written("2026-11", bytes(60))


def opens(row: Step) -> bool:
    [opened] = VALUES.open_rows([row], [JOB])
    return why_closed(opened.value) is None


@pytest.mark.spec("SEAL-03")
@pytest.mark.parametrize("name", ["think", "think#2", "act:order", "act:order#1", "act:order#2", "call:mail#2", "!07"])
@pytest.mark.parametrize("state", [StepState.DONE, StepState.FAILED, StepState.WAITING, StepState.CALLED])
def test_the_value_of_a_row_opens_in_no_other_row_and_state(name: str, state: StepState) -> None:
    """A result is none of another use or key, and a question is no answer."""
    stored = VALUES.close_step(JOB, Step(name, state, b'{"yes":true}'))
    assert stored.value is not None and b"yes" not in stored.value
    assert VALUES.open_rows([stored], [JOB])[0].value == b'{"yes":true}'
    others = {"think", "think#2", "think#3", "act:order", "act:order#1", "act:order#2", "call:mail", "!08"} - {name}
    assert not any(opens(replace(stored, name=other)) for other in others)
    assert not any(opens(replace(stored, state=other)) for other in StepState if other is not state)


@pytest.mark.spec("SEAL-03")
def test_an_answer_opens_in_the_uses_of_its_wait_alone() -> None:
    """Who signals a name does not know which use of it waits."""
    answer = VALUES.close_signal(Signal(JOB, "approval", b"true")).value
    for name in ("approval", "approval#2"):
        for state in (StepState.EARLY, StepState.DONE):
            assert opens(Step(name, state, answer))
    assert not opens(Step("consent", StepState.DONE, answer))
    again = VALUES.close_step(JOB, VALUES.open_rows([Step("approval#2", StepState.DONE, answer)], [JOB])[0])
    assert opens(again) and not opens(replace(again, name="approval"))


@pytest.mark.spec("SEAL-05")
@pytest.mark.parametrize("state", [StepState.DONE, StepState.FAILED, StepState.CALLED, StepState.EARLY])
def test_a_step_cannot_be_planted_in_plain_text(state: StepState) -> None:
    """Not even without a value: a step that returned nothing would count as finished."""
    for value in (None, b"null", b"true"):
        assert not opens(Step("pay", state, value))


@pytest.mark.spec("SEAL-05")
def test_what_a_store_itself_writes_needs_no_seal() -> None:
    assert opens(Step("pause", StepState.WAITING)), "a sleep asks nothing"
    assert opens(Step("calls:00", StepState.DONE, b"null")), "called jobs have ended"
    assert opens(Step("!03", until=0)), "a page without values"


@pytest.mark.spec("SEAL-14")
def test_a_plain_null_is_sealed_by_a_reseal() -> None:
    job = Job(id=JOB, kind="pay", queue="default", payload=b"[]", priority=0, budget=1, created_at=0, scheduled_at=0)
    plain = Values(Seal(keys={"2026-11": KEY}))
    rows = [Step("pay", value=b"null"), Step("calls:00", value=b"null")]
    [(before, after)] = plain.resealed_rows(job, rows)
    assert before == rows[0]
    assert not opens(before)
    assert VALUES.open_rows([after], [JOB]) == [before]


@pytest.mark.spec("SEAL-05")
@pytest.mark.parametrize("store", FEW, indirect=True)
@pytest.mark.parametrize("note", ["theirs", FORGED])
async def test_metadata_of_others_reach_no_handler(store: Sealable, note: str) -> None:
    """Neither in plain text nor sealed with another key; a worker puts the job back."""
    jobs, plain = store.app(STRICT), store.plain_app()
    seen: list[str] = []

    @jobs.task
    async def pay(card: str) -> None:
        seen.append(current().metadata["account"])

    draft = jobs.draft("pay", ["card"], metadata={"account": "ours"})
    sealed = VALUES.close_draft(draft)
    forged = replace(sealed, options=replace(sealed.options, metadata={"account": note}))
    await (await plain.engine()).jobs.insert([forged])
    await drain(jobs)
    assert seen == []
    assert (await jobs.handle(ids.text(sealed.job_id)).refresh()).status is Status.PENDING
    await plain.close()
    await jobs.close()


@pytest.mark.spec("SEAL-05")
@pytest.mark.parametrize("header", ["theirs", FORGED])
def test_headers_of_others_reach_no_consumer(header: str) -> None:
    """A message with them counts as one that cannot be opened."""
    ours = VALUES.close_entry("mail", Entry(JOB, "key", 0, b'"body"', "json", {"account": "ours"}))
    opened = VALUES.open_message("mail", numbered(ours, 1, 0))
    assert (opened.payload, opened.headers) == (b'"body"', {"account": "ours"})
    forged = VALUES.open_message("mail", numbered(replace(ours, headers={"account": header}), 2, 0))
    assert why_closed(forged.payload) is not None
