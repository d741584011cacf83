from __future__ import annotations

import asyncio
import socket
from datetime import UTC, datetime
from typing import Any

import pytest

from stoker.app import Stoker
from stoker.context import METADATA_WARNING, Context, current, running, waiting_for
from stoker.model import ids
from stoker.model.emitted import Ring
from stoker.model.errors import InvalidInput, StokerError
from stoker.model.ids import JobId
from stoker.model.job import LONGEST_LOG, Claim, Draft, Note, Options, Settlement, Verdict
from stoker.model.lifecycle import PLAIN_RULES, Rules
from stoker.model.steps import Save, Step, StepState
from stoker.model.time import SECOND
from stoker.stopping import CancelToken, Stopping


class Host:
    """Hears what a run says."""

    def __init__(self) -> None:
        self.app = Stoker("memory://")
        self.states: dict[Any, Any] = {}
        self.stopping = Stopping()
        self.loop = asyncio.new_event_loop()
        self.loop.close()
        self.shares_store = True
        self.waited: list[tuple[bytes, bool]] = []
        self.notes: list[tuple[float | None, tuple[str, ...]]] = []

    def waits(self, claim: Claim, job: JobId, *, over: bool) -> None:
        self.waited.append((job, over))

    def rules_of(self, kind: str) -> Rules:
        return PLAIN_RULES

    def settled(self, claim: Claim, settlement: Settlement) -> None:
        raise AssertionError

    def emit(self, claim: Claim, ring: Ring, entry: bytes) -> None: ...

    def withhold_notes(self, claim: Claim) -> None:
        raise AssertionError

    def take_note(self, claim: Claim) -> Note | None:
        raise AssertionError

    def release_notes(self, claim: Claim) -> None:
        raise AssertionError

    def note(self, claim: Claim, progress: float | None, lines: tuple[str, ...]) -> None:
        self.notes.append((progress, lines))

    def stepped(self, claim: Claim, state: StepState) -> None:
        raise AssertionError

    async def read_steps(self, job: JobId) -> list[Step]:
        raise AssertionError

    async def save_steps(self, save: Save) -> Verdict:
        raise AssertionError

    def store_now(self, context: Context) -> int:
        raise AssertionError(context)

    def main_line(self, context: Context) -> None:
        raise AssertionError

    def suspend(self, context: Context) -> None:
        raise AssertionError


def context(host: Host | None = None, limit: float | None = None, **more: Any) -> Context:
    claim = Claim(bytes(16), "work", "default", b"{}", 2, 0, 5, "w", 9, 7, 7, 7, **more)
    return Context(claim, host or Host(), limit=limit)


@pytest.mark.spec("CONTEXT-01")
def test_remaining_time_is_the_runs_limit_else_the_jobs_own() -> None:
    assert context().remaining is None
    assert 8 < (context(limit=9).remaining or 0) <= 9
    assert 4 < (context(options=Options(timeout=5 * SECOND)).remaining or 0) <= 5
    late = context(limit=1)
    late.began -= 60
    assert late.remaining == 0


@pytest.mark.spec("CONTEXT-01")
def test_a_run_knows_whether_an_earlier_one_failed() -> None:
    first, again = context(), context(last_error="ValueError: no")
    assert (first.is_retry, first.previous_error) == (False, None)
    assert (again.is_retry, again.previous_error) == (True, "ValueError: no")
    assert (again.attempt, again.token, again.state) == (2, 9, None)


@pytest.mark.spec("CONTEXT-02")
def test_progress_is_a_fraction_and_lines_are_text() -> None:
    host = Host()
    run = context(host)
    run.progress(1)
    run.log("a\0b", "\ud800", *map(str, range(LONGEST_LOG - 1)))
    for wrong in (-1, 2, float("nan")):
        with pytest.raises(InvalidInput, match="between 0 and 1"):
            run.progress(wrong)
    [(progress, _), (_, lines)] = host.notes
    assert progress == 1.0
    assert len(lines) == LONGEST_LOG
    assert lines[0] == "\\ud800"
    "".join(lines).encode()


class Mute:
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.spec("CONTEXT-03")
def test_metadata_is_made_fit_to_be_stored() -> None:
    run = context()
    assert run.executed() is None
    run.metadata["a"] = "b"
    wrong: Any = run.metadata
    wrong[7] = None
    wrong["mute"] = Mute()
    kept = run.executed()
    assert kept is not None
    assert (kept["exec_a"], kept["exec_7"]) == ("b", "None")
    assert "cannot be read" in kept["exec_mute"]
    run.metadata["much"] = "x" * 9_000
    assert list(run.executed() or {}) == [METADATA_WARNING]


@pytest.mark.spec("CONTEXT-09")
def test_a_run_reads_what_was_noted_before_it() -> None:
    """The enqueuer's metadata, then what earlier attempts noted, then this run's own; only the last is stored again."""
    earlier = {"exec_page": "7", "exec_from": "run", "stoker.cancel_reason": "no"}
    run = context(options=Options(metadata={"from": "shop", "trace": "t1"}), metadata=earlier)
    assert dict(run.metadata) == {"from": "run", "trace": "t1", "page": "7"}
    assert (run.noted, run.executed()) == ({}, None)
    run.metadata["page"] = "8"
    assert (run.metadata["page"], len(run.metadata), run.metadata.get("none")) == ("8", 3, None)
    assert run.executed() == {"exec_page": "8"}
    del run.metadata["page"]
    assert run.metadata["page"] == "7"
    assert repr(run.metadata) == "{'from': 'run', 'trace': 't1', 'page': '7'}"
    with pytest.raises(KeyError):
        del run.metadata["trace"]


@pytest.mark.spec("CONTEXT-09")
def test_a_run_knows_when_and_where_it_started() -> None:
    assert context().started_at == datetime(1970, 1, 1, 0, 0, 0, 7, tzinfo=UTC)
    assert context().host == socket.gethostname()


@pytest.mark.spec("CONTEXT-04")
def test_follow_ups_are_drafts_or_lists_of_them() -> None:
    run = context()
    one, two, three = (Draft(bytes(15) + bytes([n]), "work") for n in range(3))
    run.follow_up(one, [two], (draft for draft in [three]))
    assert run.followups == [one, two, three]
    wrong: Any = run
    with pytest.raises(TypeError):
        wrong.follow_up(7)
    with pytest.raises(InvalidInput, match="drafts"):
        wrong.follow_up([7])
    assert run.followups == [one, two, three]


@pytest.mark.spec("ID-05")
@pytest.mark.parametrize("way", ["follow_up", "join"])
def test_a_follow_up_has_no_id_that_stoker_derives(way: str) -> None:
    """A handler may have taken the id from a payload that a stranger wrote."""
    run = context(options=Options(group=bytes(16)))
    taken = Draft(ids.occurrence("nightly", 5), "work")
    chain = Draft(bytes(16), "work").then(taken)
    for drafts in (taken, [taken], chain):
        with pytest.raises(InvalidInput, match="version 8"):
            getattr(run, way)(drafts)
    assert run.followups == []


@pytest.mark.spec("CONTEXT-06")
def test_current_is_the_run_this_code_is_part_of() -> None:
    with pytest.raises(StokerError, match="inside a handler"):
        current()
    run = context()
    token = running.set(run)
    assert current() is run
    running.reset(token)


def test_a_token_is_false_until_it_has_a_reason() -> None:
    token = CancelToken()
    before = (bool(token), token.requested)
    token.reason = "enough"
    assert (*before, bool(token), token.requested) == (False, False, True, True)


@pytest.mark.spec("CONTEXT-10")
async def test_stopping_is_a_flag_that_can_be_awaited_from_any_thread() -> None:
    run = context()
    before = (bool(run.stopping), run.stopping.wait(0))
    waiting = [asyncio.ensure_future(_stopped(run.stopping)) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    await asyncio.to_thread(run.stopping.set)
    async with asyncio.timeout(60):
        await waiting[0]
        await run.stopping
    assert (*before, bool(run.stopping), run.stopping.wait(0)) == (False, False, True, True)


async def _stopped(stopping: Stopping) -> None:
    await stopping


def test_the_worker_knows_which_job_a_run_waits_for() -> None:
    host = Host()
    token = running.set(context(host))
    with waiting_for(bytes(16)):
        assert host.waited == [(bytes(16), False)]
    running.reset(token)
    with waiting_for(bytes(16)):
        assert host.waited == [(bytes(16), False), (bytes(16), True)]
