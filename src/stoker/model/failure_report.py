"""Describes a failed run for the log: how grave it is and what happens next."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from stoker.model.job import Claim, Settlement, Status
from stoker.model.lifecycle import RESULT_WARNING, spent
from stoker.model.time import SECOND, Span


class FailureReport(msgspec.Struct, frozen=True):
    """One run that did not succeed. `dead`: the job is not tried again."""

    dead: bool
    event: str
    error: str
    then: str


def failure_report(claim: Claim, settlement: Settlement) -> FailureReport | None:
    """Return what to report of a settlement that applied; None for success with its result, put-backs and
    cancels by request.
    """
    status, error = settlement.status, settlement.error or "no error recorded"
    failed = f"failed, attempt {claim.attempt} of {claim.base + claim.budget}"
    if status is Status.RETRYING:
        return FailureReport(False, failed, error, f"It runs again {in_words(settlement.after)}.")
    if status is Status.DEAD:
        left = "no attempt is left" if spent(claim) else "it is not tried again"
        return FailureReport(True, failed, error, f"It is dead: {left}.")
    if status is Status.CANCELED and settlement.refund:  # by lifecycle: only a job that expired before its first run
        return FailureReport(False, "was not started", error, "It is canceled.")
    if status is Status.DONE and (why := (settlement.metadata or {}).get(RESULT_WARNING)) is not None:
        return FailureReport(
            False, "is done, but its result cannot be stored", why, "result() raises ResultUnavailable."
        )
    return None


_TYPE: Final = re.compile(r"(?:\w+\.)*[A-Z]\w*(?=: |\n|$)")


def error_type(error: str) -> str | None:
    """The class of an exception, read from its text; None where the text is no exception's, as of a timeout."""
    found = _TYPE.match(error)
    return None if found is None else found[0]


def in_words(wait: Span) -> str:
    """Say how long a wait is: "at once", "in 2.5 s"."""
    return "at once" if wait <= 0 else f"in {round(wait / SECOND, 3):g} s"
