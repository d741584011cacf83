"""How stores write budgets: as JSON, which carries every float exactly."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from stoker.model.budgets import Buckets, Budget, Rates
from stoker.model.health.facts import UNDECLARED
from stoker.model.throttle import Bucket, Rate

Numbers = tuple[float, float, float, float, int]
"""Rate (n, per, burst), tokens, and when there were so many."""

_encode = msgspec.json.Encoder().encode
_read_budget = msgspec.json.Decoder(tuple[dict[str, Numbers], bool, msgspec.Raw]).decode
_read_rates = msgspec.json.Decoder(Rates | None).decode
_read_buckets = msgspec.json.Decoder(dict[str, Numbers]).decode

LOST = "it cannot be read and refuses all tokens; the next start of its app, or `stoker limits tune`, writes it anew"

UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError)
"""What a decoder raises."""


def pack_budget(budget: Budget) -> bytes:
    """A budget without its name."""
    return _encode((_numbers(budget.buckets), budget.keyed, budget.declared))


def read_budget(name: str, stored: bytes | str | None) -> Budget | None:
    """What `pack_budget` wrote. A budget that cannot be read counts as not stored, a declaration as none."""
    if stored is None:
        return None
    try:
        numbers, keyed, declared = _read_budget(stored)
        buckets = _buckets(numbers)
    except UNREADABLE:
        return None
    return Budget(name, buckets, _read_rates(declared) if is_budget(stored) else None, keyed) if buckets else None


def is_budget(stored: bytes | str) -> bool:
    """Can a budget be read, with what an app declared about it?"""
    try:
        numbers, _, declared = _read_budget(stored)
        _read_rates(declared)
        return bool(_buckets(numbers))
    except UNREADABLE:
        return False


def damaged_budgets(stored: Iterable[tuple[str, bytes | str]]) -> list[str]:
    """Each budget of which something cannot be read, by name, and what, in one clause."""
    broken = sorted((name, value) for name, value in stored if not is_budget(value))
    return [f"budget {name}: {LOST if read_budget(name, value) is None else UNDECLARED}" for name, value in broken]


def pack_buckets(buckets: Buckets) -> bytes:
    """The buckets of one key."""
    return _encode(_numbers(buckets))


def read_buckets(stored: bytes | str | None) -> Buckets | None:
    """What `pack_buckets` wrote. Those that cannot be read count as full, as if they were not kept."""
    try:
        return None if stored is None else _buckets(_read_buckets(stored))
    except UNREADABLE:
        return None


def _numbers(buckets: Buckets) -> dict[str, Numbers]:
    return {measure: (*one.rate.numbers, one.tokens, one.refilled_at) for measure, one in buckets.items()}


def _buckets(stored: dict[str, Numbers]) -> Buckets:
    return {m: Bucket(Rate(n, per, burst), tokens, at) for m, (n, per, burst, tokens, at) in stored.items()}
