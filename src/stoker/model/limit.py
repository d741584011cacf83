"""Limits of jobs: how many of one key run at once, and how many start in a time.

A limit counts the jobs of one queue that share its name and its key. `Slot` is what a job carries of it; what a store
makes of it is in `subqueues`.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias, get_args

import msgspec

from stoker.model.errors import InvalidInput, InvalidName
from stoker.model.throttle import Rate
from stoker.model.unique import check_text, keep_plain, plain

MOST_AT_ONCE = 10_000
"""The highest number of jobs of one key that a limit lets run at once."""

Hold: TypeAlias = Literal["running", "retrying"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}")


class Slot(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The limit of one job. `n` jobs of its name and key run at once (None: any number), `rate` of them start.

    `hold="retrying"`: a job keeps its place among the running from its first claim to its end, also while it waits for
    a retry.
    """

    name: str
    key: str | None = None
    n: int | None = None
    hold: Hold = "running"
    rate: Rate | None = None

    def __post_init__(self) -> None:
        keep_plain(self, name=check_limit_name(self.name))
        check_number(self.n, self.rate)
        if self.key is not None:
            keep_plain(self, key=check_text("limit key", self.key))
        if self.hold not in get_args(Hold):
            raise InvalidInput("Limit.hold", self.hold, f"must be one of {', '.join(get_args(Hold))}")
        if self.rate is not None and not isinstance(self.rate, Rate):
            raise InvalidInput("Limit.rate", self.rate, "must be a Rate, such as Rate(5, per=1)")
        if self.hold == "retrying" and self.n is None:
            raise InvalidInput("Limit.hold", self.hold, "keeps one of n places; give a number of jobs too")

    @property
    def subqueue(self) -> str:
        """The name of the subqueue its jobs stand in: no name contains a slash, so keys never collide."""
        return self.name if self.key is None else f"{self.name}/{self.key}"


def check_limit_name(name: str) -> str:
    """Check the name of a limit, the same letters as other names; returns it as a plain `str`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        why = "must be 1-128 of letters, digits, _ . : - and start with a letter, digit or _"
        raise InvalidName("limit name", name, why)
    return plain(name)


def check_number(n: int | None, rate: Rate | None = None) -> None:
    """Check how many jobs a limit lets run at once; None goes only with a rate."""
    if n is None and rate is not None:
        return
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MOST_AT_ONCE:
        more = "" if n is not None else ", or give a rate"
        raise InvalidInput("Limit.n", n, f"must be a whole number from 1 to {MOST_AT_ONCE:,}{more}")
