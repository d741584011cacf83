"""Whether the keys at hand open what a store has sealed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from stoker.model.health.check import Check, note, ok, warning
from stoker.model.humanize import count

WITHOUT = "Arguments, results, errors and messages are shown as their size, and nothing that has a value can be stored."


class Newest(NamedTuple):
    """The newest jobs of a store, as the keys at hand find them.

    `stale` have a value that the current key has not sealed, and `closed` one that no key here opens.
    """

    jobs: int
    stale: int = 0
    closed: int = 0


UNREAD = Newest(0)


def judge(sealed: Collection[str], keys: Sequence[str], newest: Newest = UNREAD) -> list[Check]:
    """Does this program have the keys that the store names? A store that is not sealed needs no check.

    The first of `keys` seals. The store names others until `stoker reseal` has found nothing that needs them.
    """
    if not sealed:
        return []
    named = _named(sealed)
    if missing := set(sealed) - set(keys):
        read = f"the store is sealed with {named}; {_named(missing)} {'is' if len(missing) == 1 else 'are'} not here"
        if not keys:
            return [note("seal", read, WITHOUT, "name the app whose Seal has the key: -A module:app")]
        back = "A worker of this app puts jobs back that it cannot open."
        return [warning("seal", read, back, f"add {_named(missing)} to Seal(keys=...), behind the current one")]
    if newest.closed:
        read = f"of the newest {count(newest.jobs, 'job')} {newest.closed} cannot be opened with {_named(keys)}"
        back = "Another key has this id, or a value was changed in the store. A worker of this app puts such jobs back."
        return [warning("seal", read, back, "give this app the key that sealed them")]
    if older := set(sealed) - {keys[0]}:
        read = f"the store is sealed with {named}, and the current key is {keys[0]}"
        return [note("seal", read, f"Records may still need {_named(older)}: keep it.", "stoker reseal")]
    if newest.stale:
        read = f"of the newest {count(newest.jobs, 'job')} {newest.stale} are not sealed with the current key {keys[0]}"
        still = "A process with an older key alone, or without seal=, stored them: give it the current key first."
        return [note("seal", read, still, "stoker reseal")]
    return [ok("seal", f"the store is sealed with {named}, and the key is here")]


def _named(keys: Collection[str]) -> str:
    return f"{'key' if len(keys) == 1 else 'keys'} {', '.join(sorted(keys))}"
