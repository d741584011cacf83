"""The judge: compares the ledger with the store when all is over. Everything that it finds wrong is a bug.

A process that was frozen beyond its lease does not know that its jobs have passed on: until it learns, it may go on
with a handler or begin one more. That is promised to no one, so such runs are counted apart (`thawed`), and what they
try to store must be refused. A process that got no CPU for a third of its lease, whose store was away for longer than
that, or whose store's clock jumped, is treated in the same way.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any, Final, NamedTuple

from lab.ledger import Line, lines_of
from lab.place import BURST, LEASE, LIMITS, RATE, Place
from stoker import Stoker
from stoker.engines.base import Engine
from stoker.model import ids
from stoker.model.job import FINISHED, Job, Status
from stoker.model.query import Query
from stoker.model.schedule import OCCURRENCE

WORDS: Final = {
    "lost": "a call returned, or a transaction committed, and its job, row, signal or message is not there",
    "doubled": "what happens once happened twice: an end, a stored step, an effect in a transaction, an occurrence",
    "over limit": "more ran at once, or started per second, than a limit or rate allows",
    "stuck": "it is there, and had not ended three minutes after the last fault",
    "wrong": "another value, another order, or only a part of what belongs together",
    "stopped": "a process ended by itself",
}
"""What the judge may say, and what it means."""

NS: Final = 1_000_000_000
STEP: Final = 1.1
"""Ratio of two neighbouring bounds of the times of recovery."""

MOST: Final = {**LIMITS, "once_at_a_time": 1}
"""Jobs of a key that may run at once, by kind."""

TRIPLED: Final = {
    **dict.fromkeys(("plain", "threaded", "hungry", "stored_with_a_row", "rated", "member", "closing"), "n"),
    **dict.fromkeys(("charged", "charged_in_thread", "after_charge", "after_receipt", *LIMITS), "n"),
    "piece": "numbers",
}
"""Kinds whose result is three times this argument."""

MADE: Final = ("tick", "called", "after_charge")
"""Kinds that no producer puts: jobs of the schedule, of durable jobs and of blocks."""


class Run(NamedTuple):
    """One start of a handler for one job."""

    kind: str
    job: str
    who: str
    token: int
    began: int
    ended: int


@dataclass
class Verdict:
    work: Counter[str] = field(default_factory=Counter)
    complaints: dict[str, list[str]] = field(default_factory=lambda: {word: [] for word in WORDS})
    thawed: Counter[str] = field(default_factory=Counter)
    recovery: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))

    def complain(self, word: str, *texts: str) -> None:
        self.complaints[word] += texts

    def recovered(self, after: str, nanoseconds: int) -> None:
        """Count a time of recovery, by the number of the bound below which it is: milliseconds `STEP ** n`."""
        self.recovery[after][max(0, math.ceil(math.log(max(nanoseconds / 1e6, 1), STEP)))] += 1


class Evidence:
    """The ledger, read once."""

    def __init__(self, lines: Iterable[Line], verdict: Verdict) -> None:
        self.verdict = verdict
        self.asked: list[list[Any]] = []
        self.asked_at: dict[str, int] = {}
        self.acked: list[list[Any]] = []
        self.runs: list[Run] = []
        self.starts: dict[str, list[tuple[int, str]]] = defaultdict(list)
        self.claims: Counter[tuple[str, int]] = Counter()
        self.ends: dict[str, list[int]] = defaultdict(list)
        """When a run returned without an error; its outcome was stored later, or refused."""
        self.settled: dict[str, list[tuple[int, str]]] = defaultdict(list)
        self.jumps: list[int] = []
        """When the store's clock jumped."""
        self.suspect: dict[str, list[tuple[int, int]]] = defaultdict(list)
        """When a process may not have known that its claims were lost: from, until."""
        self.delivered: list[tuple[str, int]] = []
        self.signals: dict[str, int] = {}
        self.received: list[int] = []
        self.steps: list[tuple[int, str, str, str, str, Any]] = []
        self._open: dict[tuple[str, str], Run] = {}
        self._by_who: dict[str, dict[str, Run]] = defaultdict(dict)
        self._living: set[str] = set()
        self._awaited: dict[str, tuple[str, int, str]] = {}
        self._frozen: dict[str, int] = {}
        self._away = 0
        self._back = 0
        for line in lines:
            self._read(line)
        for run in self._open.values():
            self.runs.append(run._replace(ended=run.began))  # it died with its process, whose end is not known

    def _read(self, line: Line) -> None:
        at, who, what, rest = line
        self._living.add(who)
        match what:
            case "asked":
                self.asked.append(rest)
                self.asked_at.update(dict.fromkeys(rest[1], at))
            case "acked":
                self.acked.append(rest)
            case "start":
                kind, jobs, tokens = rest
                for job, token in zip(jobs, tokens, strict=True):
                    self._start(Run(kind, job, who, token, at, at))
            case "end":
                _, jobs, returned = rest
                for job in jobs:
                    self._end(who, job, at)
                    if returned:
                        self.ends[job].append(at)
            case "settled":
                self.settled[rest[0]].append((at, rest[1]))
                if self._back:
                    self.verdict.recovered("back", at - self._back)
                    self._back = 0
            case "kill":
                self._stop(rest[0], at, "killed")
                self._living.discard(rest[0])
            case "freeze":
                self._frozen[rest[0]] = at
                for job, run in self._by_who[rest[0]].items():
                    self._awaited[job] = ("frozen", at, run.who)
            case "thaw":
                self.suspect[rest[0]].append((self._frozen.pop(rest[0], at), at))
            case "stall":
                self.suspect[who].append((at - int(rest[0] * NS), at))
                self.verdict.work["stalls"] += 1
            case "jump":
                self.jumps.append(at)
                for one in self._living:
                    self.suspect[one].append((at, at))
            case "away":
                self._away = at
            case "back":
                self._back = at
                if self._away and at - self._away > LEASE / 3 * NS:
                    for one in self._living:
                        self.suspect[one].append((self._away, at))
                self._away = 0
            case "ran" | "seen":
                job, row, *value = rest
                self.steps.append((at, who, what, job, row, value[0] if value else None))
            case "delivered":
                self.delivered.append((rest[0], rest[1]))
            case "signaled":
                self.signals[rest[0]] = rest[1]
            case "received":
                self.received.append(rest[0])

    def _start(self, run: Run) -> None:
        self.starts[run.job].append((run.began, run.who))
        self.claims[run.job, run.token] += 1
        awaited = self._awaited.pop(run.job, None)
        if awaited and awaited[2] != run.who:
            self.verdict.recovered(awaited[0], run.began - awaited[1])
        self._end(run.who, run.job, run.began)
        self._open[run.who, run.job] = run
        self._by_who[run.who][run.job] = run

    def _end(self, who: str, job: str, at: int) -> None:
        if run := self._open.pop((who, job), None):
            del self._by_who[who][job]
            self.runs.append(run._replace(ended=at))
        awaited = self._awaited.get(job)
        if awaited and awaited[2] == who:
            del self._awaited[job]

    def _stop(self, who: str, at: int, how: str) -> None:
        for job in list(self._by_who[who]):
            self._end(who, job, at)
            self._awaited[job] = (how, at, who)
        if who in self._frozen:
            self.suspect[who].append((self._frozen.pop(who), at))

    def suspected(self, who: str, at: int) -> bool:
        """May this process have been wrong about its claims then?"""
        return any(since <= at <= until + LEASE * NS for since, until in self.suspect.get(who, ()))

    def sure(self, run: Run) -> Run | None:
        """The part of a run in which its process surely held the claim."""
        end = run.ended
        for since, until in self.suspect.get(run.who, ()):
            if since <= run.began <= until + LEASE * NS:
                return None
            if run.began < since < end:
                end = since
        return run._replace(ended=end)

    def awake(self, run: Run) -> Iterator[Run]:
        """The parts of a run in which its process was not frozen."""
        began = run.began
        for since, until in sorted(self.suspect.get(run.who, ())):
            if began < since < run.ended:
                yield run._replace(began=began, ended=since)
            if since < run.ended:
                began = max(began, until)
        if began <= run.ended:
            yield run._replace(began=began)


# --- the judgement ----------------------------------------------------------------------------------------------------


async def examined(place: Place, left: dict[str, int]) -> Verdict:
    """Judge a storm whose workers have ended their work; `left` is what they had not."""
    verdict = Verdict()
    evidence = Evidence(lines_of(place.ledger), verdict)
    async with Stoker(place.url) as jobs:
        engine = await jobs.engine()
        stored = await everything(engine)
        counted = (await engine.operator.census()).by_status()
    if left:
        verdict.complain("stuck", f"when the calm was over: {left}")
    judge_counters(verdict, stored, counted)
    judge_origins(evidence, stored)
    judge_ends(evidence, stored)
    judge_unique(evidence)
    judge_results(verdict, stored)
    judge_limits(evidence, stored)
    judge_rate(evidence)
    judge_chains(evidence, stored)
    judge_groups(evidence, stored)
    judge_schedule(verdict, stored)
    judge_steps(evidence, stored)
    if place.transactional:
        judge_transactions(place, evidence, stored)
        judge_effects(place, verdict, stored)
        judge_messages(place, evidence)
        judge_receipts(place, evidence, stored)
    return verdict


async def everything(engine: Engine) -> dict[str, Job]:
    """Every job of the store by its id."""
    found: dict[str, Job] = {}
    page = await engine.operator.find(Query(order="oldest", limit=1_000))
    while True:
        found.update((ids.text(job.id), job) for job in page.jobs)
        if page.cursor is None:
            return found
        page = await engine.operator.find(Query(order="oldest", limit=1_000, cursor=page.cursor))


def arguments(job: Job) -> dict[str, Any]:
    given: dict[str, Any] = json.loads(job.payload)
    return given


def of_kind(stored: dict[str, Job], *kinds: str) -> Iterator[Job]:
    return (job for job in stored.values() if job.kind in kinds)


def judge_counters(verdict: Verdict, stored: dict[str, Job], counted: Mapping[Status, int]) -> None:
    """The store counts as many jobs of each status as it has."""
    there = Counter(job.status for job in stored.values())
    wrong = [status for status in Status if counted[status] != there[status]]
    verdict.complain(
        "wrong", *(f"the store counts {counted[one]} jobs as {one.value} and has {there[one]}" for one in wrong)
    )


def judge_origins(evidence: Evidence, stored: dict[str, Job]) -> None:
    """Every job was put by a producer, or is of a kind that Stoker makes; others were stored a second time."""
    strange = (name for name, job in stored.items() if job.kind not in MADE and name not in evidence.asked_at)
    evidence.verdict.complain("doubled", *(f"{stored[name].kind} {name} was put by no one" for name in strange))


def judge_unique(evidence: Evidence) -> None:
    """A call that was answered with another job met one that had not ended before the call."""
    for workload, [holder], *more in (one for one in evidence.acked if one[0] == "unique"):
        key, draft = more
        ends = evidence.settled[holder]
        if holder != draft and ends and ends[0][0] < evidence.asked_at[draft]:
            evidence.verdict.complain("lost", f"{workload}: {key} was taken by {holder}, which had ended")


def judge_ends(evidence: Evidence, stored: dict[str, Job]) -> None:
    """What was acknowledged is there and done; a claim ran once, a job ended once and did not begin after its end."""
    verdict = evidence.verdict
    twice = [claim for claim, runs in evidence.claims.items() if runs > 1]
    verdict.complain("doubled", *(f"job {job} began twice under token {token}" for job, token in twice))
    for workload, acked, *_ in evidence.acked:
        verdict.work["acked"] += len(acked)
        verdict.work[f"{workload} acked"] += len(acked)
        gone = [job for job in acked if job not in stored]
        verdict.complain("lost", *(f"{workload}: job {job} is gone" for job in gone))
    for name, job in stored.items():
        verdict.work["jobs"] += 1
        if job.status not in FINISHED:
            verdict.complain("stuck", f"{job.kind} {name} is {job.status.value}: {job.last_error}")
        elif job.status is not Status.DONE:
            verdict.complain("wrong", f"{job.kind} {name} is {job.status.value}: {job.last_error}")
        elif name not in evidence.starts:
            verdict.complain("wrong", f"{job.kind} {name} is done and never began")
        if len(evidence.settled[name]) > 1:
            verdict.complain("doubled", f"{job.kind} {name} ended {len(evidence.settled[name])} times")
        if not evidence.settled[name]:
            continue
        first = evidence.settled[name][0][0]
        for at, who in evidence.starts[name]:
            if at > first and evidence.suspected(who, at):
                verdict.thawed["runs after the end of their job"] += 1
            elif at > first:
                verdict.complain("doubled", f"{job.kind} {name} began in {who} after it had ended")
    verdict.work["runs"] = sum(map(len, evidence.starts.values()))


def judge_results(verdict: Verdict, stored: dict[str, Job]) -> None:
    for job in of_kind(stored, *TRIPLED):
        if job.status is Status.DONE and json.loads(job.result or b"null") != 3 * arguments(job)[TRIPLED[job.kind]]:
            verdict.complain("wrong", f"{job.kind} {ids.text(job.id)} has the result {job.result!r} of {job.payload!r}")


def judge_limits(evidence: Evidence, stored: dict[str, Job]) -> None:
    """At no instant ran more jobs of a key than its limit."""
    by_key: dict[str, list[Run]] = defaultdict(list)
    for run in evidence.runs:
        if run.kind in MOST and run.job in stored:
            by_key[arguments(stored[run.job])["key"]].append(run)
            evidence.verdict.work["limited runs"] += 1
    for key, runs in by_key.items():
        most = MOST[runs[0].kind]
        sure = [part for run in runs if (part := evidence.sure(run))]
        evidence.verdict.work["limited runs, judged"] += len(sure)
        over = crowded(sure, most)
        real = crowded([part for run in runs for part in evidence.awake(run)], most)
        evidence.verdict.thawed["runs over a limit"] += max(0, len(real) - len(over))
        evidence.verdict.complain("over limit", *(f"{key}: more than {most} at {at}" for at in over))


def crowded(runs: list[Run], most: int) -> list[int]:
    """The starts at which there were too many."""
    events = sorted([(run.began, 1) for run in runs] + [(run.ended, -1) for run in runs])
    found, running = [], 0
    for at, change in events:
        running += change
        if change > 0 and running > most:
            found.append(at)
    return found


def judge_rate(evidence: Evidence) -> None:
    """The starts fit into the bucket, those of killed workers included; one more is allowed for rounding.

    The token of a claim is the time of the store at which it was made. A clock that jumps back shows the same times
    twice, so the starts between two jumps are judged alone, without those that a jump may have overtaken.
    """
    starts: dict[int, list[int]] = defaultdict(list)
    for run in evidence.runs:
        if run.kind == "rated" and not evidence.suspected(run.who, run.began):
            starts[bisect_left(evidence.jumps, run.began)].append(run.token)
    for tokens in starts.values():
        left, before = float(BURST), 0
        for at in sorted(tokens):
            left = min(BURST, left + RATE * (at - before) / 1e6) - 1
            before = at
            evidence.verdict.work["rated starts"] += 1
            if left < -1:
                evidence.verdict.complain("over limit", f"rated: {-left:.1f} starts too many at {at}")


def judge_chains(evidence: Evidence, stored: dict[str, Job]) -> None:
    """A chain that began has all its links; each begins after a run of the one before, and has its result."""
    acked = {links[0] for workload, links, *_ in evidence.acked if workload == "chains"}
    for links in (links for workload, links, *_ in evidence.asked if workload == "chains"):
        found = [stored.get(job) for job in links]
        if None in found:
            if found[0] is not None and links[0] not in acked:  # of one that was acknowledged, `judge_ends` says it
                evidence.verdict.complain("lost", f"the chain of {links[0]} stops after {found.index(None)} links")
            continue
        values = [json.loads(job.result or b"null") for job in found if job is not None]
        if values != [1, 3, 6]:
            evidence.verdict.complain("wrong", f"the chain of {links[0]} has the results {values}")
        evidence.verdict.complain(
            "wrong",
            *(
                f"link {after} began before {before} had ended"
                for before, after in pairwise(links)
                if early(evidence, before, after)
            ),
        )


def early(evidence: Evidence, before: str, after: str) -> bool:
    """Did a job begin although no run of the one before it had returned? A killed run may have left no line."""
    starts, ends = evidence.starts[after], evidence.ends[before]
    return bool(starts and ends and starts[0][0] < ends[0])


def judge_groups(evidence: Evidence, stored: dict[str, Job]) -> None:
    """A group is stored whole or not at all, and what follows it begins after every member.

    One with an id of its own is stored in steps: it is whole once its call has returned.
    """
    verdict = evidence.verdict
    whole = [jobs for workload, jobs, *_ in evidence.asked if workload == "groups"]
    whole += [jobs for workload, jobs, *_ in evidence.acked if workload == "groups by id"]
    for *members, then in whole:
        there = [job for job in members if job in stored]
        verdict.work["groups"] += bool(there)
        if there and len(there) != len(members):
            verdict.complain("wrong", f"{len(there)} of {len(members)} members of the group before {then} are there")
        if there and then not in stored:
            verdict.complain("lost", f"the group before {then} never closed")
        if any(early(evidence, job, then) for job in there):
            verdict.complain("wrong", f"{then} began before the group had ended")


def judge_schedule(verdict: Verdict, stored: dict[str, Job]) -> None:
    """Every occurrence made one job, from the first to the last."""
    metadata = [job.options.metadata or {} for job in of_kind(stored, "tick")]
    found = sorted(round(datetime.fromisoformat(one[OCCURRENCE]).timestamp()) for one in metadata)
    verdict.work["occurrences"] = len(found)
    for one, next_ in pairwise(found):
        if one == next_:
            verdict.complain("doubled", f"occurrence {one} has two jobs")
        elif next_ != one + 1:
            verdict.complain("lost", f"no occurrence between {one} and {next_}")


def judge_steps(evidence: Evidence, stored: dict[str, Job]) -> None:
    """No step runs after its value was seen, a step keeps its value, no signal and no called job is lost or doubled."""
    verdict = evidence.verdict
    seen: dict[tuple[str, str], Any] = {}
    ran: Counter[tuple[str, str]] = Counter()
    for at, who, what, job, row, value in evidence.steps:
        place = job, row
        if what == "seen":
            if seen.setdefault(place, value) != value:
                verdict.complain("doubled", f"step {row} of {job} is {value} and was {seen[place]}")
            continue
        ran[place] += 1
        if place in seen and evidence.suspected(who, at):
            verdict.thawed["steps after they were stored"] += 1
        elif place in seen:
            verdict.complain("doubled", f"step {row} of {job} ran in {who} after it had returned")
    verdict.work["steps"] = len(seen)
    verdict.work["steps run again"] = sum(n - 1 for n in ran.values())
    verdict.work["signals"] = len(evidence.signals)
    for name, flow in stored.items():
        if flow.kind == "flow" and flow.status is Status.DONE:
            result = json.loads(flow.result or b"null")
            if result["n"] != arguments(flow)["n"] or result["answer"] != seen.get((name, "go")):
                verdict.complain("wrong", f"flow {name} ended with {result}")
            if name in evidence.signals and result["answer"] != evidence.signals[name]:
                verdict.complain("lost", f"the signal of flow {name}: it ended with {result}")
    flows = list(of_kind(stored, "flow"))
    wanted, done = (Counter(arguments(job)["n"] for job in flows if job.status in some) for some in (Status, FINISHED))
    calls = Counter(arguments(job)["n"] for job in of_kind(stored, "called"))
    verdict.complain("lost", *(f"the called job of flow {n}" for n in done - calls))
    verdict.complain("doubled", *(f"the called job of flow {n}" for n in calls - wanted))


def judge_transactions(place: Place, evidence: Evidence, stored: dict[str, Job]) -> None:
    """A job that was stored with a row exists if and only if the row does."""
    verdict = evidence.verdict
    rows = {job for (job,) in place.rows("select job from lab_orders")}
    there = {name for name, job in stored.items() if job.kind == "stored_with_a_row"}
    acked = {job for workload, jobs, *_ in evidence.acked if workload == "tx" for job in jobs}
    verdict.work["rows with a job"] = len(rows)
    verdict.complain("lost", *(f"tx: the job {job} of a committed row" for job in rows - there))
    verdict.complain("lost", *(f"tx: the committed row of job {job}" for job in acked - rows))
    verdict.complain("wrong", *(f"tx: the job {job} of a row that was rolled back" for job in there - rows))


def judge_effects(place: Place, verdict: Verdict, stored: dict[str, Job]) -> None:
    """What a block or a step in a transaction wrote is there once, and so is what it enqueued."""
    wanted = {
        "block": Counter(arguments(job)["n"] for job in of_kind(stored, "charged", "charged_in_thread")),
        "step": Counter(arguments(job)["n"] for job in of_kind(stored, "flow")),
    }
    found: dict[str, Counter[int]] = {"block": Counter(), "step": Counter()}
    for n, door in place.rows("select n, door from lab_effects"):
        found[door][n] += 1
    verdict.work["effects"] = sum(found["block"].values()) + sum(found["step"].values())
    followers = Counter(arguments(job)["n"] for job in of_kind(stored, "after_charge"))
    for what, one, other in (
        ("effect of a block", wanted["block"], found["block"]),
        ("effect of a step", wanted["step"], found["step"]),
        ("job of a block", wanted["block"], followers),
    ):
        verdict.complain("lost", *(f"the {what} {n}" for n in one - other))
        verdict.complain("doubled", *(f"the {what} {n}" for n in other - one))


def judge_messages(place: Place, evidence: Evidence) -> None:
    """Each committed message arrived, in the order of its key; a projection has it once."""
    verdict = evidence.verdict
    sent = Counter(place.rows("select key, value from lab_sent"))
    projected = Counter(place.rows("select key, value from lab_projected"))
    delivered = Counter(evidence.delivered)
    verdict.work["messages"] = sent.total()
    verdict.work["deliveries"] = delivered.total()
    verdict.complain("lost", *(f"message {one} to the handler" for one in sent.keys() - delivered.keys()))
    verdict.complain("lost", *(f"message {one} to the projection" for one in sent - projected))
    verdict.complain("doubled", *(f"message {one} to the projection" for one in projected - sent))
    verdict.complain("wrong", *(f"message {one} was rolled back" for one in delivered.keys() - sent.keys()))
    last: Counter[str] = Counter()
    for key, value in dict.fromkeys(evidence.delivered):
        if value != last[key] + 1:
            verdict.complain("wrong", f"message {value} of {key} came after {last[key]}")
        last[key] = value


def judge_receipts(place: Place, evidence: Evidence, stored: dict[str, Job]) -> None:
    """Each received message was handled once, with its job."""
    verdict = evidence.verdict
    rows = Counter(n for (n,) in place.rows("select n from lab_received"))
    jobs = Counter(arguments(job)["n"] for job in of_kind(stored, "after_receipt"))
    verdict.work["receipts"] = len(rows)
    verdict.complain("lost", *(f"inbox: message {n} was received" for n in evidence.received if n not in rows))
    verdict.complain("doubled", *(f"inbox: message {n} was handled {rows[n]} times" for n in rows if rows[n] > 1))
    verdict.complain("lost", *(f"inbox: the job of message {n}" for n in rows - jobs))
    verdict.complain("doubled", *(f"inbox: the job of message {n}" for n in jobs - rows))


def quantile(times: dict[int, int], share: float) -> float:
    """Seconds below which this share of the times of recovery is; 0 without any."""
    numbers = sorted(times)
    if not numbers:
        return 0.0
    sums, total = [], 0
    for number in numbers:
        total += times[number]
        sums.append(total)
    return STEP ** numbers[min(bisect_left(sums, share * total), len(numbers) - 1)] / 1000
