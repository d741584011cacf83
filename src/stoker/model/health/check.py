"""One check of a check-up: what was read, how it is judged, what it means, and the command that mends it."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Iterable

import msgspec

from stoker.model.humanize import count


class Grade(enum.StrEnum):
    """How a check is judged. A note is worth knowing; a warning will hurt; what is wrong hurts now."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    WRONG = "wrong"


class Check(msgspec.Struct, frozen=True):
    """The result of one check."""

    name: str
    verdict: Grade
    read: str
    meaning: str = ""
    remedy: str = ""


def worst(checks: Iterable[Check]) -> Grade:
    """The gravest verdict among them; ok without any."""
    order = list(Grade)
    return max((check.verdict for check in checks), key=order.index, default=Grade.OK)


def summary(checks: Collection[Check]) -> str:
    """How many checks there are of each verdict, the gravest first: `9 checks: 1 wrong, 2 notes, 6 ok`."""
    counts = Counter(check.verdict for check in checks)
    named = {Grade.OK: "{} ok", Grade.WRONG: "{} wrong"}
    parts = [named.get(one, count(counts[one], one)).format(counts[one]) for one in reversed(Grade) if counts[one]]
    return f"{count(len(checks), 'check')}: {', '.join(parts)}"


def ok(name: str, read: str) -> Check:
    """A check that found nothing."""
    return Check(name, Grade.OK, read)


def note(name: str, read: str, meaning: str, remedy: str = "") -> Check:
    """Something worth knowing."""
    return Check(name, Grade.NOTE, read, meaning, remedy)


def warning(name: str, read: str, meaning: str, remedy: str) -> Check:
    """Something that will hurt."""
    return Check(name, Grade.WARNING, read, meaning, remedy)


def wrong(name: str, read: str, meaning: str, remedy: str) -> Check:
    """Something that hurts now."""
    return Check(name, Grade.WRONG, read, meaning, remedy)


def or_ok(found: list[Check], name: str, read: str) -> list[Check]:
    """The complaints of a check, or that it found nothing."""
    return found or [ok(name, read)]
