"""The lab: its judge finds what is wrong, and a short storm finds nothing."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lab import bugs, results
from lab.__main__ import main
from lab.faults import FAULTS
from lab.judge import (
    NS,
    WORDS,
    Evidence,
    Run,
    Verdict,
    crowded,
    judge_chains,
    judge_counters,
    judge_ends,
    judge_groups,
    judge_limits,
    judge_origins,
    judge_rate,
    judge_results,
    judge_schedule,
    judge_steps,
    judge_unique,
    quantile,
)
from lab.ledger import Ledger, Line, lines_of
from lab.place import LEASE, RATE
from lab.stores import ENGINES
from lab.workloads import WORKLOADS
from stoker.model import ids
from stoker.model.job import Job, Options, Status
from stoker.model.schedule import OCCURRENCE
from stoker.registry import mint
from tests.faults.fork_server import ROOT
from tests.worker.shell import until


class Book:
    """A ledger that a test writes: one entry a second."""

    def __init__(self) -> None:
        self.verdict = Verdict()
        self.stored: dict[str, Job] = {}
        self._lines: list[Line] = []

    def says(self, who: str, what: str, *rest: Any) -> None:
        if what == "start":
            rest = (*rest, [len(self._lines)])  # a token of its own
        self._lines.append(Line((len(self._lines) + 1) * NS, who, what, list(rest)))

    def ran(self, who: str, job: str, kind: str = "plain", *, returned: bool = True) -> None:
        self.says(who, "start", kind, [job])
        self.says(who, "end", kind, [job], returned)

    def job(self, kind: str = "plain", status: Status = Status.DONE, **more: Any) -> str:
        """A job that is stored; its result is that of its arguments."""
        given: dict[str, Any] = {"payload": b'{"n":7,"key":"k"}', "result": b"21", **more}
        id_ = mint()
        record = Job(
            id=id_,
            kind=kind,
            queue="default",
            priority=0,
            budget=1,
            created_at=0,
            scheduled_at=0,
            status=status,
            **given,
        )
        self.stored[ids.text(id_)] = record
        return ids.text(id_)

    @property
    def evidence(self) -> Evidence:
        return Evidence(self._lines, self.verdict)

    @property
    def wrong(self) -> dict[str, int]:
        return {word: len(texts) for word, texts in self.verdict.complaints.items() if texts}


@pytest.fixture
def book() -> Book:
    return Book()


# --- the judge ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("LAB-01")
def test_what_was_acknowledged_must_be_there_and_done(book: Book) -> None:
    fine, open_, dead = book.job(), book.job(status=Status.RETRYING), book.job(status=Status.DEAD)
    gone = ids.text(mint())
    book.says("p", "acked", "jobs", [fine, open_, dead, gone])
    for job in (fine, open_, dead):
        book.ran("w", job)
    judge_ends(book.evidence, book.stored)
    assert book.wrong == {"lost": 1, "stuck": 1, "wrong": 1}
    assert book.verdict.work["acked"] == 4


@pytest.mark.spec("LAB-01")
def test_a_second_end_and_a_start_after_the_end_are_doubled(book: Book) -> None:
    job = book.job()
    book.ran("w", job)
    book.says("w", "settled", job, "done")
    book.ran("v", job)
    book.says("v", "settled", job, "done")
    judge_ends(book.evidence, book.stored)
    assert book.wrong == {"doubled": 2}


@pytest.mark.spec("LAB-01")
def test_a_claim_that_runs_twice_is_doubled(book: Book) -> None:
    job = book.job()
    lines = [Line(n, who, "start", ["plain", [job], [7]]) for n, who in enumerate("vw")]
    judge_ends(Evidence(lines, book.verdict), book.stored)
    assert book.wrong == {"doubled": 1}


@pytest.mark.spec("LAB-02")
def test_a_start_after_the_end_by_a_frozen_process_is_counted_apart(book: Book) -> None:
    job = book.job()
    book.says("lab", "freeze", "w")
    book.ran("v", job)
    book.says("v", "settled", job, "done")
    book.says("lab", "thaw", "w")
    book.ran("w", job)
    judge_ends(book.evidence, book.stored)
    assert not book.wrong
    assert book.verdict.thawed["runs after the end of their job"] == 1


@pytest.mark.spec("LAB-01")
def test_a_result_of_other_arguments_is_wrong(book: Book) -> None:
    book.job(result=b"22")
    judge_results(book.verdict, book.stored)
    assert book.wrong == {"wrong": 1}


@pytest.mark.spec("LAB-01")
def test_runs_of_a_key_side_by_side_are_over_its_limit(book: Book) -> None:
    one, other = book.job("limited_1"), book.job("limited_1")
    book.says("w", "start", "limited_1", [one])
    book.says("v", "start", "limited_1", [other])
    book.says("w", "end", "limited_1", [one], True)
    book.says("v", "end", "limited_1", [other], True)
    judge_limits(book.evidence, book.stored)
    assert book.wrong == {"over limit": 1}


@pytest.mark.spec("LAB-02")
def test_the_run_of_a_killed_process_ends_with_it(book: Book) -> None:
    one, other = book.job("limited_1"), book.job("limited_1")
    book.says("w", "start", "limited_1", [one])
    book.says("lab", "kill", "w", "embedded")
    book.ran("v", other, "limited_1")
    book.ran("v", one, "limited_1")
    judge_limits(book.evidence, book.stored)
    assert not book.wrong
    [seconds] = [quantile(times, 1.0) for after, times in book.verdict.recovery.items() if after == "killed"]
    assert 3.0 <= seconds <= 3.4


@pytest.mark.spec("LAB-01")
def test_more_starts_than_the_rate_allows_are_over_limit(book: Book) -> None:
    def at_pace(microseconds: int) -> Evidence:
        return Evidence(
            [Line(n, "w", "start", ["rated", [f"{n}"], [n * microseconds]]) for n in range(60)], book.verdict
        )

    judge_rate(at_pace(1_000_000 // RATE))
    assert not book.wrong
    judge_rate(at_pace(500_000 // RATE))
    assert set(book.wrong) == {"over limit"}


@pytest.mark.spec("LAB-01")
def test_a_clock_that_jumps_back_shows_the_times_of_other_starts_again(book: Book) -> None:
    again = [
        Line(at, "w", "start", ["rated", [f"{at}"], [at // 1_000 % 2_000_000]]) for at in range(0, 4 * NS, NS // RATE)
    ]
    judge_rate(Evidence([*again[: 2 * RATE], Line(2 * NS, "lab", "jump", []), *again[2 * RATE :]], book.verdict))
    assert not book.wrong
    judge_rate(Evidence(again, book.verdict))
    assert set(book.wrong) == {"over limit"}


@pytest.mark.spec("LAB-01")
def test_a_link_that_begins_before_the_one_before_it_ended_is_wrong(book: Book) -> None:
    links = [book.job("link", result=result) for result in (b"1", b"3", b"6")]
    book.says("p", "asked", "chains", links)
    book.ran("w", links[0], "link", returned=False)
    book.says("v", "start", "link", [links[1]])
    book.ran("w", links[0], "link")
    judge_chains(book.evidence, book.stored)
    assert book.wrong == {"wrong": 1}


@pytest.mark.spec("LAB-01")
def test_a_chain_that_stops_is_lost_also_if_its_producer_was_killed(book: Book) -> None:
    book.says("p", "asked", "chains", [book.job("link"), ids.text(mint()), ids.text(mint())])
    book.says("p", "asked", "chains", [ids.text(mint()) for _ in range(3)])  # was never stored
    judge_chains(book.evidence, book.stored)
    assert book.wrong == {"lost": 1}


@pytest.mark.spec("LAB-01")
def test_a_key_that_a_finished_job_still_holds_is_found(book: Book) -> None:
    holder, refused, early = book.job("once_at_a_time"), ids.text(mint()), ids.text(mint())
    book.says("p", "asked", "unique", [early], "u1")
    book.ran("w", holder, "once_at_a_time")
    book.says("w", "settled", holder, "done")
    book.says("p", "acked", "unique", [holder], "u1", early)
    book.says("p", "asked", "unique", [refused], "u1")
    book.says("p", "acked", "unique", [holder], "u1", refused)
    judge_unique(book.evidence)
    assert book.wrong == {"lost": 1}


@pytest.mark.spec("LAB-01")
def test_a_job_that_no_producer_put_was_stored_twice(book: Book) -> None:
    book.says("p", "asked", "jobs", [book.job()])
    book.job("tick")
    book.job("closing")
    judge_origins(book.evidence, book.stored)
    assert book.wrong == {"doubled": 1}


@pytest.mark.spec("LAB-01")
def test_counters_that_differ_from_the_jobs_are_wrong(book: Book) -> None:
    book.job()
    counted = dict.fromkeys(Status, 0)
    judge_counters(book.verdict, book.stored, {**counted, Status.DONE: 1})
    assert not book.wrong
    judge_counters(book.verdict, book.stored, {**counted, Status.DONE: 2})
    assert book.wrong == {"wrong": 1}


@pytest.mark.spec("LAB-01")
def test_half_a_group_and_one_that_never_closed_are_found(book: Book) -> None:
    book.says("p", "asked", "groups", [book.job("member"), ids.text(mint()), book.job("closing")])
    book.says("p", "asked", "groups", [book.job("member"), ids.text(mint())])
    judge_groups(book.evidence, book.stored)
    assert book.wrong == {"wrong": 1, "lost": 1}


@pytest.mark.spec("LAB-01")
def test_a_doubled_and_a_missing_occurrence_are_found(book: Book) -> None:
    for second in (1, 2, 2, 3, 5):
        book.job("tick", options=Options(metadata={OCCURRENCE: f"2027-01-01T00:00:0{second}+00:00"}))
    judge_schedule(book.verdict, book.stored)
    assert book.wrong == {"doubled": 1, "lost": 1}


@pytest.mark.spec("LAB-01")
def test_a_step_that_runs_after_it_was_seen_and_a_lost_signal_are_found(book: Book) -> None:
    job = book.job("flow", result=b'{"n":7,"answer":null}')
    book.says("w", "ran", job, "first")
    book.says("w", "seen", job, "first", 1)
    book.says("v", "ran", job, "first")
    book.says("v", "seen", job, "first", 2)
    book.says("p", "signaled", job, 49)
    book.job("called")
    judge_steps(book.evidence, book.stored)
    assert book.wrong == {"doubled": 2, "lost": 1}


@pytest.mark.spec("LAB-01")
def test_a_called_job_that_is_missing_or_there_twice_is_found(book: Book) -> None:
    result = b'{"n":7,"answer":null}'
    book.job("flow", result=result)
    book.job("called")
    book.job("called")
    book.job("flow", result=b'{"n":8,"answer":null}', payload=b'{"n":8}')
    book.job("flow", Status.PENDING, payload=b'{"n":9}')  # has not come to its call
    judge_steps(book.evidence, book.stored)
    assert book.wrong == {"doubled": 1, "lost": 1}


def test_an_interval_counts_from_its_beginning_to_its_end() -> None:
    runs = [Run("limited_2", "j", "w", 1, began, ended) for began, ended in ((0, 5), (1, 2), (2, 3), (4, 6))]
    assert crowded(runs, 2) == []
    assert crowded(runs, 1) == [1, 2, 4]


def test_the_ledger_is_read_as_it_was_written(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    ledger.write("acked", "jobs", ["a"])
    ledger.write("back")
    first, second = lines_of(tmp_path / "ledger")
    assert (first.what, first.rest, second.what) == ("acked", ["jobs", ["a"]], "back")
    assert first.who == second.who
    assert first.who.startswith(f"{os.getpid()}.")
    assert first.at < second.at


# --- tables and results -------------------------------------------------------------------------------------------


@pytest.mark.spec("LAB-03")
def test_every_fault_is_done_to_an_engine_or_says_why_not() -> None:
    shown = CliRunner().invoke(main, ["--list"]).output
    assert all(fault.name in shown and set(fault.cannot) < set(ENGINES) for fault in FAULTS)
    assert all(workload.name in shown for workload in WORKLOADS)


@pytest.fixture
def lines() -> list[dict[str, Any]]:
    return results.read()


@pytest.mark.spec("LAB-04")
def test_results_name_what_made_them(lines: list[dict[str, Any]]) -> None:
    needed = {"engine", "seed", "minutes", "server", "settings", "faults", "work", "wrong", "thawed", "recovery"}
    needed |= {"at", "stoker", "revision", "src", "python", "seconds"}
    assert lines
    assert all(needed <= line.keys() and line["engine"] in ENGINES for line in lines)


@pytest.mark.spec("LAB-04")
def test_results_of_the_release_add_up(lines: list[dict[str, Any]]) -> None:
    for engine, found in results.sums(lines).items():
        mine = [line for line in results.current(lines) if line["engine"] == engine]
        assert found.faults["kills"] == sum(line["faults"]["kills"] for line in mine)
        assert found.runs == len(mine)


@pytest.mark.spec("LAB-04")
def test_a_line_names_the_code_at_the_start_and_whether_it_was_edited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost", *words]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    code = tmp_path / "src" / "app.py"
    code.parent.mkdir()
    code.write_text("1")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    monkeypatch.setattr(results, "ROOT", tmp_path)
    maker, revision = results.Maker(), git("rev-parse", "--short", "HEAD")
    line = maker.sign({"engine": "sqlite"})
    assert (line["revision"], line["tree"], line["engine"]) == (revision, "clean", "sqlite")
    code.write_text("2")
    edited = results.Maker()
    git("commit", "-q", "-a", "-m", "two")
    assert maker.tree == "changed"
    assert (maker.made["revision"], edited.tree) == (revision, "dirty")


@pytest.mark.spec("LAB-07")
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--bug", "pays apart", "--engine", "redis"], "on SQLite only"),
        (["--bug", "eats jobs"], "'eats jobs' is not one of"),
        (["--minutes", "0"], "0.0 is not in the range"),
        (["--lull", "-1"], "-1.0 is not in the range"),
        (["--results", "no/such/folder/results.jsonl"], "there is no folder no/such/folder"),
        (["--keep", "no/such/folder"], "does not exist"),
    ],
)
def test_an_impossible_storm_is_refused_before_it_begins(options: list[str], says: str) -> None:
    found = CliRunner().invoke(main, options)
    assert found.exit_code == 2
    assert says in found.output


# --- storms -------------------------------------------------------------------------------------------------------


@pytest.mark.engine("sqlite")
@pytest.mark.spec("LAB-05")
def test_a_short_storm_finds_nothing_wrong(tmp_path: Path) -> None:
    seed, file = secrets.randbits(32), tmp_path / "results.jsonl"
    print(f"seed {seed}")
    options = ["--engine", "sqlite", "--minutes", "0.06", "--seed", str(seed), "--results", str(file)]
    found = CliRunner().invoke(main, [*options, "--keep", str(tmp_path)])
    assert found.exit_code == 0, found.output
    [line] = map(json.loads, file.read_text().splitlines())
    assert line["work"]["runs"] > 0  # on a busy machine not many, and few faults
    assert line["wrong"] == dict.fromkeys(WORDS, 0)
    assert line["settings"]["lease"] == LEASE
    assert line["tree"] in {"clean", "dirty"}


@pytest.mark.engine("sqlite")
@pytest.mark.spec("LAB-08")
def test_a_storm_that_is_told_to_stop_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lab", "--engine", "sqlite", "--minutes", "9", "--results", str(tmp_path / "r")]
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)}) as lab:
        until(lambda: any('"start"' in file.read_text() for file in tmp_path.glob("stoker-lab-*/ledger")))
        lab.terminate()
        assert lab.wait() == 128 + signal.SIGTERM
    assert not [*tmp_path.glob("stoker-lab-*")]
    until(lambda: not members_below(tmp_path))


def members_below(folder: Path) -> list[str]:
    """The processes of a storm whose ledger is in this folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"LAB_LEDGER={folder}".encode() in place.read_bytes():
                found.append(place.parent.name)
    return found


@pytest.mark.engine("sqlite")
@pytest.mark.spec("LAB-06")
@pytest.mark.parametrize("bug", bugs.BUGS)
def test_the_judge_finds_planted_bugs(bug: str, tmp_path: Path, campaign: bool) -> None:
    if not campaign:
        pytest.skip("a storm each: with --campaign")
    file = tmp_path / "results.jsonl"
    options = ["--engine", "sqlite", "--minutes", "0.5", "--results", str(file), "--bug", bug]
    found = CliRunner().invoke(main, options)
    assert found.exit_code == 2
    assert f"{bugs.BUGS[bug]}: " in found.output
    assert not file.exists()
