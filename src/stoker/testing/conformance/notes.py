"""Notes: what a running handler writes on its record, fenced and bounded."""

from __future__ import annotations

import pytest

from stoker.model.job import LONGEST_LOG, Claim, Note, Status, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done, Failed, HandedBack, Snoozed
from stoker.model.query import Cancel, Selection
from stoker.model.time import SECOND
from stoker.testing.conformance.harness import Store


def _note(
    claim: Claim,
    progress: float | None = None,
    metadata: dict[str, str] | None = None,
    lines: tuple[str, ...] = (),
) -> Note:
    return Note(claim.id, claim.worker, claim.token, progress, metadata, lines, claim.ref)


async def _write(store: Store, *notes: Note) -> list[Verdict]:
    return await store.engine.jobs.note(notes)


@pytest.mark.core
@pytest.mark.spec("NOTE-01")
async def test_progress_metadata_and_lines_reach_the_record(store: Store) -> None:
    """One note may carry all three; the job runs on and nothing else changes."""
    job = await store.add()
    claim = await store.take()
    before = await store.job(job)
    assert await _write(store, _note(claim, 0.25, {"page": "7"}, ("one", "zwei ü\n'"))) == [Verdict.APPLIED]
    record = await store.job(job)
    assert (record.progress, record.metadata, record.log) == (0.25, {"page": "7"}, ("one", "zwei ü\n'"))
    assert (record.status, record.token, record.attempts) == (Status.RUNNING, before.token, before.attempts)
    assert (record.scheduled_at, record.history) == (before.scheduled_at, ())
    assert await store.finish(claim, Done()) is Verdict.APPLIED


@pytest.mark.spec("NOTE-01")
@pytest.mark.parametrize("progress", [0.0, 1 / 3, 1.0])
async def test_progress_is_kept_exactly(store: Store, progress: float) -> None:
    """Nothing, everything and a third come back as they were written."""
    job = await store.add()
    await _write(store, _note(await store.take(), progress))
    assert (await store.job(job)).progress == progress


@pytest.mark.spec("NOTE-02")
async def test_later_notes_add_to_earlier_ones(store: Store) -> None:
    """Progress is overwritten, metadata merged, lines appended; what a note leaves out stays."""
    job = await store.add()
    claim = await store.take()
    await _write(store, _note(claim, 0.1, {"a": "1", "b": "1"}, ("one",)))
    await _write(store, _note(claim, None, {"b": "2"}), _note(claim, 0.9, None, ("two", "three")))
    record = await store.job(job)
    assert (record.progress, record.metadata, record.log) == (0.9, {"a": "1", "b": "2"}, ("one", "two", "three"))


@pytest.mark.spec("NOTE-02")
async def test_an_empty_note_changes_nothing(store: Store) -> None:
    """A note without content applies and leaves the record as it is."""
    job = await store.add()
    claim = await store.take()
    await _write(store, _note(claim, 0.5, {"a": "1"}, ("one",)))
    before = await store.snapshot([job])
    assert await _write(store, _note(claim)) == [Verdict.APPLIED]
    assert await store.snapshot([job]) == before


@pytest.mark.spec("NOTE-03")
async def test_the_log_keeps_its_newest_lines(store: Store) -> None:
    """Beyond its limit the oldest lines are dropped, over many notes and within one."""
    job = await store.add()
    claim = await store.take()
    for number in range(LONGEST_LOG + 10):
        await _write(store, _note(claim, lines=(f"line {number}",)))
    log = (await store.job(job)).log
    assert log == tuple(f"line {number}" for number in range(10, LONGEST_LOG + 10))
    await _write(store, _note(claim, lines=tuple(str(number) for number in range(3 * LONGEST_LOG))))
    assert (await store.job(job)).log == tuple(str(number) for number in range(2 * LONGEST_LOG, 3 * LONGEST_LOG))


@pytest.mark.core
@pytest.mark.spec("NOTE-04")
async def test_notes_are_fenced(store: Store) -> None:
    """Wrong worker, wrong token, a job put back and an unknown job: lost, and nothing is written."""
    job = await store.add()
    claim = await store.take("w1")
    await store.enlist("w2")
    before = await store.snapshot([job])
    wrong = [
        Note(job, "w2", claim.token, 0.5, ref=claim.ref),
        Note(job, "w1", claim.token + 1, 0.5, ref=claim.ref),
        Note(job, "w1", claim.token - 1, 0.5, ref=claim.ref),
        Note(store.mint(), "w1", claim.token, 0.5),
    ]
    assert await _write(store, *wrong) == [Verdict.LOST] * 4
    assert await store.snapshot([job]) == before
    await store.finish(claim, Snoozed(SECOND))
    before = await store.snapshot([job])
    assert await _write(store, _note(claim, 0.5, {"a": "1"}, ("late",))) == [Verdict.LOST]
    assert await store.snapshot([job]) == before


@pytest.mark.spec("NOTE-04")
async def test_a_note_for_an_earlier_claim_is_lost(store: Store) -> None:
    """A note of the first run does not land on the second, even by the same worker."""
    job = await store.add()
    old = await store.take("w1")
    await store.finish(old, HandedBack())
    fresh = await store.take("w1")
    assert await _write(store, _note(old, 0.9), _note(fresh, 0.1)) == [Verdict.LOST, Verdict.APPLIED]
    assert (await store.job(job)).progress == 0.1


@pytest.mark.spec("NOTE-04")
async def test_a_finished_job_takes_no_notes(store: Store) -> None:
    """After success a late note is lost."""
    job = await store.add()
    claim = await store.take()
    await store.finish(claim, Done())
    before = await store.snapshot([job])
    assert await _write(store, _note(claim, 1.0, {"a": "1"}, ("late",))) == [Verdict.LOST]
    assert await store.snapshot([job]) == before


@pytest.mark.spec("NOTE-05")
async def test_notes_are_judged_one_by_one_in_order(store: Store) -> None:
    """A lost note does not hinder the others; verdicts come in the order of the notes; no notes give no verdicts."""
    await store.insert(store.draft(), store.draft())
    one, two = await store.claim(n=2)
    lost = Note(one.id, "unknown", one.token, 0.5, ref=one.ref)
    verdicts = await _write(store, _note(one, 0.1), lost, _note(two, 0.2))
    assert verdicts == [Verdict.APPLIED, Verdict.LOST, Verdict.APPLIED]
    assert ((await store.job(one.id)).progress, (await store.job(two.id)).progress) == (0.1, 0.2)
    assert await _write(store) == []


@pytest.mark.spec("NOTE-06")
async def test_metadata_noted_while_running_reaches_the_next_run(store: Store) -> None:
    """What a run noted is in the hands of its retry, together with what its settlement noted."""
    await store.add()
    claim = await store.take()
    await _write(store, _note(claim, metadata={"page": "7", "x": "note"}))
    await store.settle(conclude(claim, Failed("boom", after=0), metadata={"x": "settlement"}))
    metadata = (await store.take()).metadata or {}
    assert (metadata["page"], metadata["x"]) == ("7", "settlement")


@pytest.mark.spec("NOTE-07")
async def test_a_job_that_was_asked_to_stop_may_still_be_noted_on(store: Store) -> None:
    """A handler that is stopping can still write notes; the request stays."""
    job = await store.add()
    claim = await store.take()
    await store.engine.operator.alter(Selection((job,)), Cancel())
    await _write(store, _note(claim, lines=("cleaning up",)))
    record = await store.job(job)
    assert (record.log, record.cancel_requested) == (("cleaning up",), True)
