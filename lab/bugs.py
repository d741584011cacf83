"""Bugs to plant into the processes of a storm, to see the judge find them. SQLite only; never in `src/`."""

from __future__ import annotations

import random
from typing import Any, Final

import msgspec

from stoker import Stoker
from stoker.engines.sqlite import insert, leases
from stoker.model.job import Receipt, Stored
from tests.faults import flows

BUGS: Final = {
    "forgets jobs": "lost",
    "ignores limits": "over limit",
    "ignores rates": "over limit",
    "leaves jobs of the dead": "stuck",
    "pays apart": "doubled",
    "saves later": "doubled",
    "trusts its memory": "doubled",
}
"""The bugs, and the word of the judge that finds each."""


def plant(bug: str) -> None:
    """Plant a bug into this process, before it makes an engine."""
    inserter: Any = insert.Inserter
    store = inserter.insert
    if bug == "forgets jobs":  # one call in twenty is answered and not stored

        async def forget(self: Any, drafts: Any, *args: Any, **more: Any) -> Any:
            if not args and more.get("tx") is None and more.get("group") is None and random.random() < 0.05:
                return [Receipt(draft.job_id, Stored.INSERTED) for draft in drafts]
            return await store(self, drafts, *args, **more)

        inserter.insert = forget
    elif bug == "ignores limits":

        async def ignore(self: Any, drafts: Any, *args: Any, **more: Any) -> Any:
            free = [
                msgspec.structs.replace(one, options=msgspec.structs.replace(one.options, limit=None)) for one in drafts
            ]
            return await store(self, free, *args, **more)

        inserter.insert = ignore
    elif bug == "ignores rates":
        apps: Any = Stoker
        declare = apps.queue

        def unrated(self: Any, name: str, **more: Any) -> Any:
            return declare(self, name, **{**more, "rate": None})

        apps.queue = unrated
    elif bug == "leaves jobs of the dead":
        leases_of: Any = leases.Leases

        async def leave(*_: Any, **__: Any) -> list[Any]:
            return []

        leases_of.reap = leave
    else:
        flows.plant(bug)
