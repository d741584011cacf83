"""Budgets: token buckets that handlers spend from by hand, one bucket for each measure.

A budget has one measure without a name (`ONLY`), or several that have names, such as requests and tokens. A spend takes
what it asks of every measure, or nothing. A keyed budget holds only the rates: each key has buckets of its own, which
the store makes full on first use and forgets when they are full again. The store reads the buckets, asks the rules here
and writes the result in one step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from stoker.model.errors import InvalidInput
from stoker.model.humanize import span as span_in_words
from stoker.model.job import check_name
from stoker.model.throttle import Bucket, Grant, Rate, drained, full, level, retuned, spend, wait_hint
from stoker.model.time import SECOND, Instant
from stoker.model.unique import check_text, plain

ONLY = ""
"""The measure of a budget that has one measure without a name."""

MOST_MEASURES = 8

RESERVED = ("budget", "key", "keyed", "n", "name", "rate")
"""What cannot name a measure: these are parameters of `budget`, `tune` and `spend`."""

Buckets: TypeAlias = dict[str, Bucket]
"""A bucket for each measure."""


class Rates(msgspec.Struct, frozen=True):
    """The rate of each measure of a budget. `keyed`: each key has buckets of its own."""

    rates: dict[str, Rate]
    keyed: bool = False

    def __post_init__(self) -> None:
        if not self.rates or len(self.rates) > MOST_MEASURES:
            why = f"must have one rate, or a rate for each of up to {MOST_MEASURES} measures"
            raise InvalidInput("budget", list(self.rates), why)
        if ONLY in self.rates and len(self.rates) > 1:
            raise InvalidInput("rate", self.rates[ONLY], "has no name; give one rate, or a name to every measure")
        for measure, rate in self.rates.items():
            if measure in RESERVED:
                raise InvalidInput("measure", measure, "is a parameter of spend and budget; choose another name")
            if not isinstance(rate, Rate):
                raise InvalidInput(measure or "rate", rate, "must be a Rate, such as Rate(100, per=60)")
        if self.keyed not in (True, False):
            raise InvalidInput("keyed", self.keyed, "must be True or False")
        named = {check_name("measure", name) if name else name: rate for name, rate in self.rates.items()}
        msgspec.structs.force_setattr(self, "rates", named)


def rates_of(given: Rate | Rates) -> Rates:
    """The rates of a budget of which only one rate may be given."""
    return given if isinstance(given, Rates) else Rates({ONLY: given})


class Budget(msgspec.Struct, frozen=True):
    """A budget as stored. `declared` is what an app's code declared last.

    The buckets of a keyed budget hold its rates and when these changed last; no tokens are taken from them.
    """

    name: str
    buckets: Buckets
    declared: Rates | None = None
    keyed: bool = False


class KeyBuckets(msgspec.Struct, frozen=True):
    """The buckets of one key of a budget."""

    key: str
    buckets: Buckets


class Spend(msgspec.Struct, frozen=True):
    """What is asked of a budget: tokens of some measures, of one key if the budget is keyed.

    `corrects`: the difference between what a reservation took and what was used. It is always taken, below zero if
    need be; less than nothing gives tokens back, as far as they fit.
    """

    asked: dict[str, int]
    key: str | None = None
    corrects: bool = False

    def __post_init__(self) -> None:
        if not self.asked:
            raise InvalidInput("spend", self.asked, "asks for nothing; name a measure, such as tokens=100")
        for measure, n in self.asked.items():
            is_number = isinstance(n, int | float) and not isinstance(n, bool) and math.isfinite(n)
            if not is_number or (n < 1 and not self.corrects):
                raise InvalidInput(f"spend({measure or 'n'})", n, "must be a number, at least 1")
        if self.key is not None:
            msgspec.structs.force_setattr(self, "key", check_text("budget key", self.key))
        msgspec.structs.force_setattr(self, "asked", {plain(name): n for name, n in self.asked.items()})

    def of(self, budget: Budget | None, kept: Buckets | None, now: Instant) -> tuple[Buckets | None, Grant]:
        """The buckets afterwards, None where nothing changes, and the answer. `kept` are those of the key."""
        buckets = at_hand(budget, self.key, kept, now)
        if buckets is None or not self.asked.keys() <= buckets.keys():
            return None, Grant(granted=False, wait=wait_hint(None))
        if self.corrects:
            after = {**buckets, **{name: _corrected(buckets[name], n, now) for name, n in self.asked.items()}}
            unneeded = self.key is not None and kept is None and is_full(after, now)
            return None if unneeded else after, Grant(granted=True)
        taken, refused = dict[str, Bucket](), list[Grant]()
        for measure, n in self.asked.items():
            taken[measure], grant = spend(buckets[measure], n, now)
            if not grant.granted:
                refused.append(replace(grant, measure=measure))
        if refused:
            return None, max(refused, key=lambda one: (self.asked[one.measure] > (one.capacity or 0), one.enough))
        return {**buckets, **taken}, Grant(granted=True)


def spend_of(given: int | Spend) -> Spend:
    """What is asked where only a number may be given."""
    return given if isinstance(given, Spend) else Spend({ONLY: given})


def asked_of(n: int | None, measures: Mapping[str, int]) -> dict[str, int]:
    """What a caller asks for who gives a number, or names measures; neither is one token."""
    if n is not None and measures:
        raise InvalidInput("n", n, f"cannot go with {', '.join(measures)}; name every measure")
    return dict(measures) or {ONLY: 1 if n is None else n}


def at_hand(budget: Budget | None, key: str | None, kept: Buckets | None, now: Instant) -> Buckets | None:
    """The buckets that a caller with this key takes from; None: there are none. `kept` are those of the key.

    A key that the store does not know has full ones. Those that were kept under other rates follow the present rates
    from the last change on.
    """
    if budget is None or (key is not None) != budget.keyed:
        return None
    if key is None:
        return budget.buckets
    kept = kept or {}
    return {
        name: retuned(kept[name], one.rate, one.refilled_at) if name in kept else full(one.rate, now)
        for name, one in budget.buckets.items()
    }


def emptied(budget: Budget | None, key: str | None, kept: Buckets | None, now: Instant) -> Buckets | None:
    """The buckets after a drain; None: there are none."""
    buckets = at_hand(budget, key, kept, now)
    return None if buckets is None else {name: drained(one, now) for name, one in buckets.items()}


def _corrected(bucket: Bucket, n: float, now: Instant) -> Bucket:
    left = min(bucket.rate.capacity, level(bucket, now) - n)
    return Bucket(bucket.rate, left, max(now, bucket.refilled_at))


def full_at(buckets: Buckets) -> Instant:
    """When every bucket is full again, if no job takes any tokens."""
    return max(
        one.refilled_at + math.ceil((one.rate.capacity - one.tokens) / one.rate.refill * SECOND)
        for one in buckets.values()
    )


def is_full(buckets: Buckets, now: Instant) -> bool:
    """Is every bucket full?"""
    return full_at(buckets) <= now


def forgets(budget: Budget, now: Instant) -> bool:
    """May the store forget keys whose buckets are full by the rates they were kept under?

    Not while one that was empty when the rates changed last may still fill up: it is not full by the present rates.
    """
    return is_full({name: replace(one, tokens=0.0) for name, one in budget.buckets.items()}, now)


def budgeted(before: Budget | None, name: str, given: Rate | Rates, now: Instant, *, declared: bool = False) -> Budget:
    """A budget under rates; one that exists keeps its tokens as far as they fit.

    `declared`: an app's code declares the rates. It decides which measures there are and whether the budget is keyed;
    each rate counts unless people changed the last one declared. People change rates of measures that there are.
    """
    check_name("budget", name)
    wanted = rates_of(given)
    if before is None:
        return Budget(name, _under({}, wanted.rates, now), wanted if declared else None, wanted.keyed)
    if not declared:
        if unknown := sorted(wanted.rates.keys() - before.buckets.keys()):
            raise InvalidInput("measure", unknown[0] or None, names_a_measure(name, before.buckets))
        return replace(before, buckets={**before.buckets, **_under(before.buckets, wanted.rates, now)})
    last = {} if before.declared is None else before.declared.rates
    people = {m for m, one in before.buckets.items() if one.rate != last.get(m)}
    rates = {m: before.buckets[m].rate if m in people else rate for m, rate in wanted.rates.items()}
    return Budget(name, _under(before.buckets, rates, now), wanted, wanted.keyed)


def _under(before: Buckets, rates: Mapping[str, Rate], now: Instant) -> Buckets:
    return {m: retuned(before[m], rate, now) if m in before else full(rate, now) for m, rate in rates.items()}


def has_measures(name: str, measures: Mapping[str, object]) -> str:
    """Which measures a budget has, as a clause."""
    if ONLY in measures:
        return f"is no measure of budget {name!r}, which has only one and no name for it"
    return f"is no measure of budget {name!r}, which has {', '.join(measures)}"


def names_a_measure(name: str, measures: Mapping[str, object]) -> str:
    """What a user has to say where a measure is missing or not there, as a clause."""
    if ONLY in measures:
        return f"must be left out for budget {name!r}, which has only one and no name for it"
    return f"must be one that budget {name!r} has: {' or '.join(measures)}"


# --- refusals ---------------------------------------------------------------------------------------------------


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """Why a budget refused. `lasting`: no wait helps while its rate stays. `mistaken`: the code asks for too much."""

    why: str
    lasting: bool = False
    mistaken: bool = False


def unfit(name: str, spend: Spend, rates: Rates) -> str | None:
    """Why a budget with such measures can never grant a spend, whatever its rates are; None: it can."""
    if rates.keyed and spend.key is None:
        return f"budget {name!r} has buckets for each key: say whose tokens to take with key="
    if spend.key is not None and not rates.keyed:
        return f"budget {name!r} has no keys, and key={spend.key!r} was given: declare it with keyed=True"
    if unknown := sorted(spend.asked.keys() - rates.rates.keys()):
        measure = repr(unknown[0]) if unknown[0] else "a number without a name"
        return f"{measure} {has_measures(name, rates.rates)}"
    return None


def refusal(name: str, spend: Spend, grant: Grant, declared: Rates | None, stored: Budget | None) -> Refusal:
    """Why a budget refused. `declared` is by the app or else by the store; `stored` may be None if it was not read."""
    rates, measure, capacity = {} if declared is None else declared.rates, grant.measure, grant.capacity
    if capacity is None:
        above = (one for one, n in spend.asked.items() if one in rates and n > rates[one].capacity)
        if (found := next(above, None)) is None:
            return _not_stored(name, spend, declared, stored)
        measure, capacity = found, 0.0
    n, rate = spend.asked[measure], rates.get(measure)
    here, below = f"budget {address_in_words(name, measure, spend.key)}", f"which is below the {n:,} asked for"
    if rate is not None and n > max(rate.capacity, capacity):
        why = f"{here} is declared to hold at most {words(measure, rate.capacity)}, {below}"
        return Refusal(why, lasting=True, mistaken=True)
    if n <= capacity:
        few = f"no {words(measure, 1)[2:]}" if n == 1 else f"fewer than {words(measure, n)}"
        return Refusal(f"{here} has {few} now; it has enough in about {span_in_words(grant.enough)}")
    before = "" if rate is None else f" (its code declares {rate.capacity:,.12g})"
    return Refusal(f"{here} was tuned to hold at most {words(measure, capacity)}{before}, {below}", lasting=True)


def _not_stored(name: str, spend: Spend, declared: Rates | None, stored: Budget | None) -> Refusal:
    """Why a budget refused that is not in the store, or not as it was asked."""
    if declared is not None:
        yet = "declared and not stored yet" if stored is None else "stored otherwise than this app declares it"
        return Refusal(f"budget {name!r} is {yet}: a worker stores it when it starts")
    why = f"no app declares this budget and none is stored: jobs.budget({name!r}, Rate(...)) declares it"
    if stored is not None:
        rates = Rates({measure: one.rate for measure, one in stored.buckets.items()}, stored.keyed)
        why = unfit(name, spend, rates) or f"budget {name!r} has changed meanwhile; ask again"
    return Refusal(why, lasting=True, mistaken=True)


def words(measure: str, n: float) -> str:
    """How many of what is counted: `5,000 tokens`, `1 request`."""
    what = measure or "tokens"
    return f"{n:,.12g} {what.removesuffix('s') if n == 1 else what}"


def address_in_words(name: str, measure: str, key: str | None) -> str:
    """Which bucket: `'llm', measure tokens, key acme`."""
    return repr(name) + (f", measure {measure}" if measure else "") + (f", key {key}" if key is not None else "")


# --- addresses --------------------------------------------------------------------------------------------------


def address(name: str, measure: str, key: str | None = None) -> str:
    """A bucket as one text: `llm/tokens/acme`. No name contains a slash; a key may."""
    return f"{name}/{measure}/{key}" if key is not None else f"{name}/{measure}" if measure else name


def read_address(text: str) -> tuple[str, str, str | None]:
    """Budget, measure and key of an address."""
    name, _, rest = text.partition("/")
    measure, slash, key = rest.partition("/")
    return name, measure, key if slash else None


def tune_command(name: str, measure: str, n: float) -> str:
    """The command that lets a bucket hold so many tokens."""
    return f"stoker limits tune {name}{f' --measure {measure}' if measure else ''} --rate {n:.15g}/TIME"
