"""Whether the keys at hand open what a store has sealed."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from stoker.model.health.check import Check, note, ok

WITHOUT = "Arguments, results, errors and messages are shown as their size, and nothing that has a value can be stored."


def judge(sealed: Collection[str], keys: Sequence[str]) -> list[Check]:
    """Does this program have the keys that the store names? A store that is not sealed needs no check.

    The first of `keys` seals. The store names others until `stoker reseal` has found nothing that needs them.
    """
    if not sealed:
        return []
    named = ", ".join(sorted(sealed))
    if missing := sorted(set(sealed) - set(keys)):
        read = f"the store is sealed with key {named}; key {', '.join(missing)} is not here"
        return [note("seal", read, WITHOUT, "name the app whose Seal has the key: -A module:app")]
    if older := sorted(set(sealed) - {keys[0]}):
        read = f"the store is sealed with key {named}, and the current key is {keys[0]}"
        return [note("seal", read, f"Records may still need key {', '.join(older)}: keep it.", "stoker reseal")]
    return [ok("seal", f"the store is sealed with key {named}, and the key is here")]
