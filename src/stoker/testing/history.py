"""What no store may do, whatever becomes of its processes, its disk and its clock: the laws that judge a history.

    violations = check(entries)          # [] means that all laws hold
    assert not violations, report(violations)

Each law looks at one job, one key or one worker at a time, so a check costs no more than sorting the entries. What
began and was never answered may have happened or not: no law holds it against the store either way.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias

from stoker.model.job import ACTIVE, FINISHED, Status
from stoker.testing.entries import Act, Acts, Entry, History, read

__all__ = ["Entry", "Violation", "check", "read", "report", "LAWS"]

Law: TypeAlias = Callable[[History], Iterator[tuple[str, str]]]

ENDS = frozenset(status.value for status in FINISHED)
LIVE = frozenset(status.value for status in ACTIVE)
WAITS = frozenset({Status.PENDING.value, Status.RETRYING.value})


class Violation(NamedTuple):
    """A law that was broken, by whom, and how it shows."""

    law: str
    whose: str
    words: str


def nothing_is_lost(history: History) -> Iterator[tuple[str, str]]:
    """What was acknowledged is stored in the end, and what is stored was asked for."""
    stored = history.by("stored")
    gone = history.by("erase", sure=False)
    asked = history.by("insert", sure=False)
    for job in history.by("insert"):
        if job not in stored and job not in gone:
            yield job, "was acknowledged and is not stored"
    for job, acts in stored.items():
        if job not in asked:
            yield job, "is stored although no call inserted it"
        if len(acts) > 1:
            yield job, f"is stored {len(acts)} times"


def tokens_rise(history: History) -> Iterator[tuple[str, str]]:
    """Each claim of a job has a higher token than those before it."""
    for job, claims in history.claims().items():
        for former, later in itertools.pairwise(claims):
            if former.entry.token == later.entry.token:
                yield job, f"token {later.entry.token} was handed out twice"
            elif later.ended < former.began:
                yield job, f"token {former.entry.token} was handed out after {later.entry.token}"


def one_claimant(history: History) -> Iterator[tuple[str, str]]:
    """A job is claimed again only after its run was ended, and reaped only from a worker whose lease is over."""
    settled = history.by("settle", sure=False)
    renewed = history.by("renew", group="worker")
    revived = history.by("revive", sure=False)
    deaths = history.deaths()
    for job, claims in history.claims().items():
        waits = [act.entry.token for act in settled.get(job, ()) if act.entry.status in WAITS]
        freed = job in revived
        for former, later in itertools.pairwise(claims):
            between = range(former.entry.token, later.entry.token)
            if later.entry.op != "reap" and not freed and not any(token in between for token in waits):
                yield job, f"was claimed under {later.entry.token} while it ran under {former.entry.token}"
        for claim in claims:
            owner = claim.entry.former
            if claim.entry.op == "reap" and owner and not deaths.get(owner, math.inf) <= claim.ended:
                ends = [act.entry.until for act in renewed.get(owner, ()) if act.ended < claim.began]
                if ends and max(ends) >= claim.entry.at:
                    yield job, f"was reaped from {owner}, which was alive"


def one_end(history: History) -> Iterator[tuple[str, str]]:
    """A job ends once per generation, and stays as it ended."""
    stored = history.by("stored")
    for job, acts in history.by("settle").items():
        ends = [act.entry for act in acts if act.entry.status in ENDS]
        for generation, n in Counter(end.generation for end in ends).items():
            if n > 1:
                yield job, f"ended {n} times in generation {generation}"
        if not ends or job not in stored:
            continue
        last, found = max(ends, key=lambda end: end.generation), stored[job][0].entry
        if found.generation == last.generation and found.status != last.status:
            yield job, f"ended {last.status} and is stored as {found.status}"
    may_end = history.by("settle", "erase", sure=False)
    for job, acts in stored.items():
        if acts[0].entry.status == Status.DONE.value and not any(
            act.entry.status == Status.DONE.value for act in may_end.get(job, ())
        ):
            yield job, "is done although no settlement ended it so"


def no_stale_write(history: History) -> Iterator[tuple[str, str]]:
    """Nothing is accepted from a worker that lost the claim."""
    claims = history.claims()
    for job, acts in history.by("settle").items():
        held = {(claim.entry.worker, claim.entry.token): claim for claim in claims.get(job, ())}
        reaped = {(claim.entry.former, claim.entry.former_at) for claim in held.values() if claim.entry.op == "reap"}
        for act in acts:
            worker, token = act.entry.worker, act.entry.token
            mine = held.get((worker, token))
            if mine is None:
                yield job, f"accepted a settlement of {worker} under {token}, which was never handed out"
            elif (worker, mine.entry.at) in reaped:
                yield job, f"accepted a settlement under {token}, which was reaped"
            elif any(claim.entry.token > token and claim.ended < act.began for claim in held.values()):
                yield job, f"accepted a settlement under {token} after a later claim"
        for token, n in Counter(act.entry.token for act in acts).items():
            if n > 1:
                yield job, f"accepted {n} settlements under {token}"


def starts_count(history: History) -> Iterator[tuple[str, str]]:
    """Every start is an attempt, also one that ends in a crash, and there are no more of them than the budget."""
    settled = history.by("settle", sure=False)
    stored = history.by("stored")
    for job, claims in history.claims().items():
        refunds = [act.entry.token for act in settled.get(job, ()) if act.entry.refund]
        for former, later in itertools.pairwise(claims):
            back = sum(former.entry.token <= token < later.entry.token for token in refunds)
            least = former.entry.attempt + (later.entry.op != "reap") - back
            if later.entry.attempt < least:
                yield job, f"starts attempt {later.entry.attempt} where {least} is due"
        starts = sum(claim.entry.op != "reap" for claim in claims) - len(refunds)
        for claim in claims:
            if 0 < claim.entry.budget < claim.entry.attempt:
                yield job, f"starts attempt {claim.entry.attempt} of {claim.entry.budget}"
        if job in stored and stored[job][0].entry.attempt < starts:
            yield job, f"was started {starts} times and counts {stored[job][0].entry.attempt}"


def effects_match(history: History) -> Iterator[tuple[str, str]]:
    """What handlers wrote in the job's own transaction is there once for each done job, and for no other."""
    effects = history.by("effect")
    if not effects:
        return
    done = {job for job, acts in history.by("stored").items() if acts[0].entry.status == Status.DONE.value}
    for job in sorted(done | effects.keys()):
        n = len(effects.get(job, ()))
        if n != (job in done):
            yield job, f"has {n} effects and is {'done' if job in done else 'not done'}"


def recovery_is_quick(history: History) -> Iterator[tuple[str, str]]:
    """Another worker has what a dead one held within `recovery` seconds."""
    deaths = history.deaths()
    settled = history.by("settle", sure=False)
    for job, claims in history.claims().items():
        for place, claim in enumerate(claims):
            died = deaths.get(claim.entry.worker)
            ended = any(act.entry.token == claim.entry.token for act in settled.get(job, ()))
            if died is None or ended:
                continue
            later = [other.ended for other in claims[place + 1 :]]
            waited = (min(later, default=math.inf) - died) / 1e9
            if waited > history.recovery:
                yield job, f"waited {waited:.2f} s for another worker"


def keys_are_alone(history: History) -> Iterator[tuple[str, str]]:
    """A unique key has one active job, and no two jobs run under it at once."""
    for key, acts in history.by("stored", group="key").items():
        active = [act.entry.job for act in acts if act.entry.status in LIVE]
        if key and len(active) > 1:
            yield key, f"is held by {len(active)} active jobs"
    settled = history.by("settle", sure=False)
    for key, acts in history.by("claim", group="key").items():
        spans = sorted((claim.ended, _run_end(claim, settled)) for claim in acts) if key else []
        if any(start < end for (_, end), (start, _) in itertools.pairwise(spans)):
            yield key, "ran twice at once"


def order_is_kept(history: History) -> Iterator[tuple[str, str]]:
    """Of one key everything is delivered in the order it was written; only what came last may come again."""
    for key, acts in history.by("deliver", group="key").items():
        last = 0
        for act in acts:
            if act.entry.attempt not in (last, last + 1) or act.entry.attempt == 0:
                yield key, f"delivered {act.entry.attempt} after {last}"
            last = max(last, act.entry.attempt)


def fires_once(history: History) -> Iterator[tuple[str, str]]:
    """A schedule fires once for each instant it is due, and for no other."""
    due = {(act.entry.key, act.entry.at) for acts in history.by("due").values() for act in acts}
    fired = Counter((act.entry.key, act.entry.at) for acts in history.by("fire").values() for act in acts)
    for key, at in sorted(due | fired.keys()):
        if fired[key, at] != ((key, at) in due):
            yield key, f"fired {fired[key, at]} times at {at}"


def _run_end(claim: Act, settled: Acts) -> float:
    ends = (act.began for act in settled.get(claim.entry.job, ()) if act.entry.token == claim.entry.token)
    return min(ends, default=claim.ended)


LAWS: tuple[Law, ...] = (
    nothing_is_lost,
    tokens_rise,
    one_claimant,
    one_end,
    no_stale_write,
    starts_count,
    effects_match,
    recovery_is_quick,
    keys_are_alone,
    order_is_kept,
    fires_once,
)


def check(entries: Iterable[Entry], *, recovery: float = math.inf) -> list[Violation]:
    """Everything in a history that no correct store could have done. Empty: all is well."""
    history = History(entries, recovery=recovery)
    return [Violation(law.__name__, *found) for law in LAWS for found in law(history)]


def report(violations: list[Violation], most: int = 20) -> str:
    """Violations as lines of text."""
    lines = [f"{one.law}: {one.whose} {one.words}" for one in violations[:most]]
    return "\n".join([f"{len(violations)} violations", *lines])
