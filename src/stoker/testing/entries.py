"""What happened in a run, entry by entry; the laws of `history` judge it.

Every process of a run writes entries (see `faults.Recorded`): one when a call begins, one per job when it has answered.
A call that began and never answered, because its process was killed, may have happened or not: no law holds it
against the engine either way. The logs are written by the test, never by what is tested, and put together afterwards;
times are the host's monotonic clock, so "ended before the other began" is exact.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple, TypeAlias

import msgspec

Operation: TypeAlias = Literal[
    "insert",
    "claim",
    "reap",
    "orphan",
    "settle",
    "renew",
    "revive",
    "erase",
    "stored",
    "effect",
    "death",
    "deliver",
    "due",
    "fire",
]
Phase: TypeAlias = Literal["begun", "done", "refused"]


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a history. `call` pairs a beginning with its results inside one process, `who`.

    `begun` announces a call; `done`: it took effect on `job`; `refused`: the store refused it (lost, existing). A call
    that raised has neither: its effect is unknown. `orphan` is a claim that a renewal reported, because the reply to
    the claim itself was lost. `death` is written by the process that kills `who`, just before. `stored` and `effect`
    are what the store held in the end.
    """

    who: str
    call: int
    op: Operation
    phase: Phase = "done"
    mono: int = 0
    job: str = ""
    worker: str = ""
    token: int = 0
    at: int = 0
    until: int = 0
    status: str = ""
    refund: bool = False
    attempt: int = 0
    budget: int = 0
    generation: int = 0
    key: str = ""
    former: str = ""
    former_at: int = 0


class Act(NamedTuple):
    """An entry with the span of its call; `sure` is false for what began and never answered."""

    entry: Entry
    began: float
    ended: float
    sure: bool


Acts: TypeAlias = dict[str, list[Act]]


class History:
    """A run put together: what surely happened and what may have."""

    def __init__(self, entries: Iterable[Entry], *, recovery: float = math.inf) -> None:
        self.recovery = recovery
        every = list(entries)
        begun = {(one.who, one.call): one.mono for one in every if one.phase == "begun"}
        answered = {(one.who, one.call, one.job) for one in every if one.phase != "begun"}
        self.acts: list[Act] = []
        for one in every:
            call = (one.who, one.call)
            if one.phase == "done":
                self.acts.append(Act(one, begun.get(call, one.mono), one.mono, sure=True))
            elif one.phase == "begun" and one.job and (*call, one.job) not in answered:
                self.acts.append(Act(one, one.mono, math.inf, sure=False))

    def by(self, *operations: Operation, sure: bool = True, group: str = "job") -> Acts:
        """What was done, by job, or by another field of the entries."""
        found: Acts = defaultdict(list)
        for act in self.acts:
            if act.entry.op in operations and (act.sure or not sure):
                found[getattr(act.entry, group)].append(act)
        return found

    def claims(self) -> Acts:
        """Per job, every claim that a worker received, in the order of their tokens; an orphan counts once."""
        found = self.by("claim", "reap")
        known = {(job, act.entry.worker, act.entry.token) for job, acts in found.items() for act in acts}
        for job, acts in self.by("orphan").items():
            for act in acts:
                name = (job, act.entry.worker, act.entry.token)
                if name not in known:
                    known.add(name)
                    found[job].append(act)
        for acts in found.values():
            acts.sort(key=lambda act: (act.entry.token, act.ended))
        return found

    def deaths(self) -> dict[str, float]:
        """When each worker died, if it did: its process was killed, which takes all workers of that process along."""
        died = {who: min(act.began for act in acts) for who, acts in self.by("death", group="who").items()}
        home = {act.entry.worker: act.entry.who for act in self.acts if act.entry.worker and act.entry.op == "renew"}
        return {worker: died[who] for worker, who in home.items() if who in died}


_decode = msgspec.json.Decoder(Entry).decode


def read(log: bytes) -> Iterator[Entry]:
    """The entries of a log; a last line that a killed process did not finish is left out."""
    for line in log.split(b"\n")[:-1]:
        yield _decode(line)
