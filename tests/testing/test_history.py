"""The laws of histories: three ways at least to break each, and a good run that breaks none."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from stoker.testing.history import LAWS, Entry, check, read, report

_calls = itertools.count(1)


def did(op: Any, mono: int, /, job: str = "j", *, took: int = 1, who: str = "p", **fields: Any) -> list[Entry]:
    """A call that began at one moment and was answered a little later."""
    call = next(_calls)
    begun = {name: value for name, value in fields.items() if name not in ("attempt", "former", "former_at")}
    return [
        Entry(who=who, call=call, op=op, phase="begun", mono=mono, job=job, **begun),
        Entry(who=who, call=call, op=op, mono=mono + took, job=job, **fields),
    ]


def began(op: Any, at: int, job: str = "j", who: str = "p", **fields: Any) -> list[Entry]:
    """A call that was never answered."""
    return [Entry(who=who, call=next(_calls), op=op, phase="begun", mono=at, job=job, **fields)]


def refused(op: Any, mono: int, /, job: str = "j", **fields: Any) -> list[Entry]:
    begun, done = did(op, mono, job, **fields)
    return [begun, Entry(**{**{name: getattr(done, name) for name in Entry.__struct_fields__}, "phase": "refused"})]


def stored(job: str = "j", status: str = "done", **fields: Any) -> list[Entry]:
    return [Entry(who="survey", call=0, op="stored", mono=1000, job=job, status=status, **fields)]


def insert(at: int = 0, job: str = "j", **fields: Any) -> list[Entry]:
    return did("insert", at, job, **fields)


def claim(at: int, token: int, worker: str = "w", attempt: int = 1, job: str = "j", **fields: Any) -> list[Entry]:
    return did("claim", at, job, worker=worker, token=token, at=token, attempt=attempt, **fields)


def reap(at: int, token: int, former: str, former_at: int, worker: str = "v", attempt: int = 1) -> list[Entry]:
    fields: dict[str, Any] = {"worker": worker, "token": token, "at": token, "attempt": attempt}
    return did("reap", at, former=former, former_at=former_at, **fields)


def orphan(at: int, token: int, worker: str = "w", attempt: int = 1) -> list[Entry]:
    return did("orphan", at, worker=worker, token=token, at=token, attempt=attempt)


def settle(at: int, token: int, worker: str = "w", status: str = "done", job: str = "j", **fields: Any) -> list[Entry]:
    return did("settle", at, job, worker=worker, token=token, status=status, **fields)


def death(at: int, who: str = "p") -> list[Entry]:
    return [Entry(who=who, call=0, op="death", mono=at)]


def renew(at: int, worker: str, until: int, who: str = "p") -> list[Entry]:
    return did("renew", at, "", who=who, worker=worker, until=until)


def deliver(*numbers: int, key: str = "k") -> list[Entry]:
    return [Entry(who="p", call=0, op="deliver", mono=place, key=key, attempt=n) for place, n in enumerate(numbers)]


def fires(op: Any, *instants: int) -> list[Entry]:
    return [Entry(who="p", call=0, op=op, key="cron", at=at) for at in instants]


def effect(job: str = "j", n: int = 1) -> list[Entry]:
    return [Entry(who="survey", call=0, op="effect", job=job)] * n


RUN = [*insert(), *claim(2, 10)]
GOOD: dict[str, list[Entry]] = {
    "a plain run": [*RUN, *settle(4, 10), *stored(attempt=1)],
    "a retry": [*RUN, *settle(4, 10, status="retrying"), *claim(6, 20, attempt=2), *settle(8, 20), *stored(attempt=2)],
    "a hand-back": [
        *RUN, *settle(4, 10, status="pending", refund=True), *claim(6, 20), *settle(8, 20), *stored(attempt=1)
    ],
    "a death and a reap": [
        *renew(1, "w", 100), *RUN, *death(5), *reap(6, 20, "w", 10), *settle(8, 20, "v"), *stored(attempt=1)
    ],
    "a lapse and a zombie": [
        *renew(1, "w", 12), *RUN, *reap(6, 20, "w", 10), *refused("settle", 7, worker="w", token=10, status="done"),
        *settle(8, 20, "v"), *stored(attempt=1),
    ],
    "an insert that was cut off and not stored": [*began("insert", 0)],
    "an insert that was cut off and stored": [*began("insert", 0), *stored(status="pending")],
    "a settlement that was cut off and applied": [
        *RUN, *began("settle", 4, worker="w", token=10, status="done"), *stored(attempt=1)
    ],
    "a settlement that was cut off and did not apply": [
        *RUN, *began("settle", 4, worker="w", token=10, status="done"), *death(5), *reap(6, 20, "w", 10),
        *settle(8, 20, "v"), *stored(attempt=1),
    ],
    "a claim that reached no worker": [
        *insert(), *began("claim", 2, ""), *death(3), *reap(4, 20, "x", 10), *settle(8, 20, "v"), *stored(attempt=1)
    ],
    "a claim whose answer was lost and that comes back": [
        *insert(), *began("claim", 2, ""), *orphan(4, 10), *orphan(5, 10),
        *settle(6, 10, status="pending", refund=True),
        *claim(8, 20), *settle(9, 20), *stored(attempt=1),
    ],
    "a job that was erased": [*RUN, *settle(4, 10), *did("erase", 6)],
    "effects of done jobs": [*RUN, *settle(4, 10), *stored(attempt=1), *effect()],
    "deliveries with a repeated tail": deliver(1, 2, 2, 3),
    "a schedule": [*fires("due", 60, 120), *fires("fire", 60, 120)],
    "a key that is used again": [
        *insert(job="a", key="k"), *claim(2, 10, job="a", key="k"), *settle(4, 10, job="a"),
        *insert(5, job="b", key="k"), *claim(7, 20, job="b", key="k"), *settle(9, 20, job="b"),
        *stored("a", key="k", attempt=1), *stored("b", key="k", attempt=1),
    ],
}  # fmt: skip

TWICE = [*RUN, *settle(4, 10, status="retrying")]
BAD: dict[str, list[list[Entry]]] = {
    "nothing_is_lost": [
        insert(),
        [*insert(job="a"), *insert(job="b"), *stored("a", "pending")],
        [*stored("never-asked-for", "pending")],
        [*insert(), *stored(status="pending"), *stored(status="pending")],
    ],
    "tokens_rise": [
        [*TWICE, *claim(6, 10, attempt=2), *stored(status="running", attempt=2)],
        [*TWICE, *claim(6, 9, attempt=2), *stored(status="running", attempt=2)],
        [*RUN, *reap(6, 10, "w", 10), *stored(status="running", attempt=1)],
    ],
    "one_claimant": [
        [*RUN, *claim(6, 20, "x", 2), *stored(status="running", attempt=2)],
        [*RUN, *settle(4, 10), *claim(6, 20, "x", 2), *stored(attempt=2)],
        [*renew(1, "w", 100), *RUN, *reap(6, 20, "w", 10), *stored(status="running", attempt=1)],
        [*renew(1, "w", 100), *RUN, *reap(6, 20, "w", 10), *death(9), *stored(status="running", attempt=1)],
    ],
    "one_end": [
        [*RUN, *settle(4, 10), *settle(6, 10), *stored(attempt=1)],
        [*TWICE, *claim(6, 20, attempt=2), *settle(8, 20), *settle(9, 10, status="dead"), *stored(attempt=2)],
        [*RUN, *settle(4, 10), *stored(status="pending", attempt=1)],
        [*RUN, *settle(4, 10), *stored(status="dead", attempt=1)],
        [*RUN, *stored(attempt=1)],
    ],
    "no_stale_write": [
        [*RUN, *reap(6, 20, "w", 10), *settle(8, 10), *stored(attempt=1)],
        [*TWICE, *claim(6, 20, "x", 2), *settle(8, 10, status="retrying"), *stored(status="running", attempt=2)],
        [*RUN, *settle(4, 11), *stored(attempt=1)],
        [*RUN, *settle(4, 10, "somebody"), *stored(attempt=1)],
        [*TWICE, *settle(6, 10, status="retrying"), *stored(status="retrying", attempt=1)],
        [*insert(), *orphan(4, 10), *settle(6, 11, status="pending", refund=True), *stored(status="pending")],
    ],
    "starts_count": [
        [*TWICE, *claim(6, 20, attempt=1), *settle(8, 20), *stored(attempt=1)],
        [*RUN, *death(4), *reap(6, 20, "w", 10, attempt=0), *settle(8, 20, "v"), *stored(attempt=1)],
        [*TWICE, *claim(6, 20, attempt=2), *settle(8, 20), *stored(attempt=1)],
        [*insert(), *claim(2, 10, attempt=4, budget=3), *settle(4, 10), *stored(attempt=4)],
    ],
    "effects_match": [
        [*RUN, *settle(4, 10), *stored(attempt=1), *effect(n=2)],
        [*RUN, *stored(status="running", attempt=1), *effect()],
        [*RUN, *settle(4, 10), *stored(attempt=1), *effect("other")],
    ],
    "recovery_is_quick": [
        [*renew(1, "w", 5), *RUN, *death(5), *reap(9_000_000_000, 20, "w", 10), *stored(status="running", attempt=1)],
        [*renew(1, "w", 5), *RUN, *death(5), *stored(status="running", attempt=1)],
        [
            *renew(1, "w", 5), *TWICE, *claim(6, 20, attempt=2), *death(9),
            *reap(8_000_000_000, 30, "w", 20, attempt=2), *stored(status="running", attempt=2),
        ],
    ],
    "keys_are_alone": [
        [*insert(job="a"), *insert(job="b"), *stored("a", "pending", key="k"), *stored("b", "running", key="k")],
        [*insert(job="a"), *insert(job="b"), *stored("a", "retrying", key="k"), *stored("b", "retrying", key="k")],
        [
            *insert(job="a", key="k"), *insert(job="b", key="k"), *claim(2, 10, job="a", key="k"),
            *claim(4, 20, job="b", key="k"), *settle(6, 10, job="a"), *settle(8, 20, job="b"),
            *stored("a", attempt=1), *stored("b", attempt=1),
        ],
    ],
    "order_is_kept": [deliver(1, 3), deliver(2, 1), deliver(1, 2, 1), deliver(0, 1)],
    "fires_once": [
        [*fires("due", 60), *fires("fire", 60, 60)],
        fires("due", 60),
        [*fires("due", 60), *fires("fire", 60, 120)],
    ],
}  # fmt: skip


@pytest.mark.spec("FAULT-71")
@pytest.mark.parametrize("name", GOOD)
def test_what_may_happen_breaks_no_law(name: str) -> None:
    assert report(check(GOOD[name])) == "0 violations"


@pytest.mark.spec("FAULT-71")
@pytest.mark.parametrize(("law", "place"), [(law, place) for law, many in BAD.items() for place in range(len(many))])
def test_what_must_not_happen_is_found(law: str, place: int) -> None:
    assert law in {violation.law for violation in check(BAD[law][place], recovery=2.0)}


@pytest.mark.spec("FAULT-71")
def test_every_law_is_broken_in_three_ways() -> None:
    assert {law.__name__ for law in LAWS} == BAD.keys()
    assert min(map(len, BAD.values())) >= 3


@pytest.mark.spec("FAULT-71")
def test_a_log_whose_last_line_was_cut_off_is_read_up_to_it() -> None:
    log = b'{"who":"p","call":1,"op":"insert","phase":"begun","job":"a"}\n{"who":"p","call":1,"op":"ins'
    assert [entry.job for entry in read(log)] == ["a"]
