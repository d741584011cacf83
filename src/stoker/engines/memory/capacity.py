"""Standing in line for room, when the store is full and callers would rather wait than fail.

The line belongs to the store: first come, first served, over all twins. Only the first in line tries, so nobody who
wants little room overtakes somebody who wants much. Whoever leaves, served or canceled, lets the next one look.
"""

from __future__ import annotations

from collections.abc import Sequence

from stoker.engines.memory import unit_of_work
from stoker.engines.memory.access import Access
from stoker.engines.memory.waiters import Waiter
from stoker.model.errors import EngineFull
from stoker.model.job import Draft, Receipt


async def in_turn(access: Access, waiting: set[Waiter], drafts: Sequence[Draft]) -> list[Receipt]:
    """Insert as soon as it is this caller's turn and there is room. What can never fit is refused at once."""
    waiter = Waiter()
    with access as store:
        store.crowd.append(waiter)
    waiting.add(waiter)
    try:
        while True:
            with access:
                waiter.rearm()
                if store.crowd[0] is waiter:
                    try:
                        return store.run(unit_of_work.insert, drafts)
                    except EngineFull:
                        if store.capacity is None or len(drafts) > store.capacity:
                            raise
            await waiter.future
    finally:
        waiting.discard(waiter)
        with store.lock:
            if waiter in store.crowd:
                store.crowd.remove(waiter)
            store.admit()
