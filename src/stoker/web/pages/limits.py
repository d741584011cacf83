"""Limits: rate budgets, rates of queues, and the keys whose places are all taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from msgspec.structs import asdict
from starlette.responses import Response

from stoker.admin.limits import BudgetView, KeyView, budget_views, key_view, rate_view
from stoker.engines.base import Engine
from stoker.model.budgets import Budget, KeyBuckets
from stoker.model.filter import as_value
from stoker.model.humanize import count, span
from stoker.model.job import ACTIVE, Status
from stoker.model.query import Query
from stoker.model.subqueues import SubqueueView
from stoker.model.time import Instant
from stoker.web import view
from stoker.web.hub import Reading, Turns, Want
from stoker.web.pages import shared
from stoker.web.request import RequestContext

QUEUES = 10
"""Queues whose keys are on one page when none is named."""
AT_ONCE = 3
"""Queues whose keys a live page reads again at a time, in turn; each is a store call."""
HOLDERS = 1_000
"""Jobs that run, and that retry, whose keys are looked at."""
SHOWN = 100


class Taken(NamedTuple):
    """Budgets and keys at one instant; `after` is the last key, or queue, where more may follow.

    `spenders` are the emptiest keys of the budget that the address names.
    """

    at: Instant
    budgets: Sequence[Budget]
    spenders: Sequence[KeyBuckets]
    keys: Sequence[SubqueueView]
    after: str | None


def wants(visit: RequestContext) -> list[Want]:
    """Budgets, and the keys of the queue that the address names, else those that jobs hold, queue by queue."""
    wanted, after = visit.parameter("queue"), visit.parameter("after") or None
    budget = visit.parameter("budget")
    if budget:
        shared.needs_everything(visit)  # keys name tenants of every queue
    turns = Turns[str, Sequence[SubqueueView]](AT_ONCE)

    async def read(engine: Engine) -> tuple[Taken, int]:
        budgets = await engine.control.budgets()
        spenders = await engine.control.buckets(budget, limit=SHOWN) if budget else []
        if wanted:
            keys: Sequence[SubqueueView] = await engine.control.subqueues(wanted, after=after, limit=SHOWN)
            more = keys[-1].name if len(keys) == SHOWN else None
            return Taken(await engine.now(), budgets, spenders, keys, more), 3 + bool(budget)
        held = await _held(engine)
        behind = sorted(name for name in held if after is None or name > after)
        shown = behind[:QUEUES]
        keys_of, calls = await turns.read(
            shown, lambda name: engine.control.subqueues(name, names=held[name], limit=SHOWN)
        )
        found = [key for name in shown for key in keys_of[name]]
        more = shown[-1] if len(behind) > QUEUES else None
        return Taken(await engine.now(), budgets, spenders, found, more), 4 + bool(budget) + calls

    return [Want(("limits", wanted, after, budget), read)]


async def _held(engine: Engine) -> dict[str, list[str]]:
    """The keys that jobs hold places of, by queue, those with the most first.

    Jobs that run do, and with `hold="retrying"` those that wait for their next attempt.
    """
    held: dict[str, Counter[str]] = {}
    for status in (Status.RUNNING, Status.RETRYING):
        for job in (await engine.operator.find(Query(statuses=frozenset({status}), limit=HOLDERS))).jobs:
            slot = job.options.limit
            if slot is not None and (status is Status.RUNNING or slot.hold == "retrying"):
                held.setdefault(job.queue, Counter())[slot.subqueue] += 1
    return {queue: [key for key, _ in keys.most_common(SHOWN)] for queue, keys in held.items()}


def _active(reading: Reading, queue: str) -> int:
    sums = reading.census.by_status(queue)
    return sum(n for status, n in sums.items() if status.value in {"pending", "running", "retrying"})


async def show(visit: RequestContext) -> Response:
    """The page of limits."""
    reading = await visit.board.hub.reading()
    taken = await visit.board.hub.wanted(wants(visit)[0])
    return view.page(visit, "limits.html", live_context(visit, reading, taken))


class RateRow(BudgetView, frozen=True, kw_only=True):
    """A measure of a budget or of a key, or the rate of a queue, as the table shows it. `leads`: it is the first."""

    noun: str
    leads: bool = True
    note: str
    refill: str
    next: str
    kinds: Sequence[str] = ()
    quoted: str = ""


class KeyRow(KeyView, frozen=True, kw_only=True):
    """A key as the table shows it, with links to the jobs that hold its places."""

    title: str
    path: str
    quoted: str
    links: list[tuple[str, str]]
    others: int
    waits: str
    may: bool


def live_context(visit: RequestContext, reading: Reading, taken: Taken) -> dict[str, Any]:
    """The two tables."""
    now, wanted, opened = taken.at, visit.parameter("queue"), visit.parameter("budget")
    rows = list[RateRow]()
    for budget in taken.budgets:
        views = budget_views(budget, now)
        rows += [_rate(one, "budget", _whose(one), leads=one is views[0]) for one in views]
        for of_key in taken.spenders if budget.name == opened else ():
            spent = budget_views(budget, now, of_key)
            rows += [_rate(one, "budget", "one of its keys", leads=one is spent[0]) for one in spent]
    kinds = _kinds(reading)
    rows += [
        _rate(
            rate_view(one.name, one.bucket, now),
            "queue",
            "queue",
            kinds=kinds.get(one.name, ()),
            quoted=as_value(one.name),
        )
        for one in reading.queues
        if one.bucket is not None
    ]
    empty = sum(row.tokens < 1 for row in rows)
    keyless = visit.url("limits", queue=wanted)
    full = [one for one in taken.keys if one.full]
    shown = taken.keys if wanted else full
    said = [f"{empty} of {count(len(rows), 'rate')} used up"] if rows else []
    if full:
        said.append(f"{count(len(full), 'key')} at {'its' if len(full) == 1 else 'their'} limit")
    names = [name for name in shared.queue_names(reading) if name == wanted or _active(reading, name)]
    return view.common(visit, "limits", "Limits", shared.found(visit, reading)) | {
        "now": reading.census.at,
        "rows": rows,
        "sub": ", ".join(said) + "." if said else "",
        "keys": [_key(visit, one, now) for one in sorted(shown, key=lambda one: (not one.full, one.queue, one.name))],
        "free": len(taken.keys) - len(full),
        "wanted": wanted,
        "opened": opened,
        "keyless": keyless,
        "queues": [(name, visit.url("limits", queue=name)) for name in names[:50]],
        "more": visit.url("limits", queue=wanted, after=taken.after) if taken.after else "",
        "more_of": "keys" if wanted else "queues",
        "live_url": visit.url("live", page="limits", queue=wanted, after=visit.parameter("after"), budget=opened),
    }


def _rate(one: BudgetView, noun: str, note: str, **more: Any) -> RateRow:
    left = max(one.tokens, 0.0)  # a job that was put first may have taken one ahead
    soon = f"in {span(one.next_token)}" if one.next_token else "now"
    same = asdict(one) | {"tokens": left}
    return RateRow(**same, noun=noun, note=note, refill=one.rate.in_words, next=soon, **more)


def _whose(budget: BudgetView) -> str:
    """Who set a budget's rate, as far as the store knows."""
    what = "budget, for each key" if budget.keyed else "budget"
    if budget.declared is None:
        return f"{what}, not declared in code"
    if budget.declared == budget.rate:
        return f"{what}, as declared in code"
    return f"{what}, changed by people; the code says {budget.declared.in_words}"


def _kinds(reading: Reading) -> dict[str, list[str]]:
    """The kinds of jobs that wait or run in each queue: these take its tokens when they start."""
    found: dict[str, set[str]] = {}
    for one in reading.census.counts:
        if one.n and one.status in ACTIVE:
            found.setdefault(one.queue, set()).add(one.kind)
    return {queue: sorted(kinds) for queue, kinds in found.items()}


def _key(visit: RequestContext, one: SubqueueView, now: Instant) -> KeyRow:
    shown = key_view(one)
    return KeyRow(
        **asdict(shown),
        title=f"{one.limit} = {one.key}" if one.key is not None else one.limit or f"tenant {one.name}",
        path=quote(one.queue, safe=""),
        quoted=as_value(one.queue),
        links=[(id_[-4:], visit.url(f"jobs/{id_}")) for id_ in shown.holders],
        others=max(one.running - len(shown.holders), 0),
        waits="" if one.due is None else f"{span(now - one.due)}" if one.due <= now else "not due yet",
        may=visit.may("operate", one.queue),
    )
