"""Which queues and kinds are known, so that an empty one can be told from a typing error.

A name is known if jobs have or had it, or if settings, a schedule, a live worker or the loaded app name it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from stoker.model.control import Presence, Queue, live
from stoker.model.errors import nearest, nearest_name
from stoker.model.query import Census
from stoker.model.schedule import Schedule
from stoker.model.time import Instant

MOST_LISTED = 12

AN_APP = "app:jobs"
"""The app in the text of a command where it is not known which one is meant."""


class Names(msgspec.Struct, frozen=True):
    """Queues and kinds, by name."""

    queues: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()

    def __or__(self, other: Names) -> Names:
        return Names(self.queues | other.queues, self.kinds | other.kinds)


def in_use(census: Census) -> Names:
    """The names of stored jobs, and the kinds of those that were."""
    return Names(frozenset(one.queue for one in census.counts), frozenset((*census.kinds(), *census.totals)))


def known(
    census: Census, queues: Iterable[Queue] = (), schedules: Iterable[Schedule] = (), presences: Iterable[Presence] = ()
) -> Names:
    """Every name that the store knows; workers count while they live."""
    templates = [one.template for one in schedules]
    working = live(list(presences), census.at)
    return in_use(census) | Names(
        frozenset(
            (
                *(one.name for one in queues),
                *(one.queue for one in templates),
                *(name for one in working for name in one.queues),
            )
        ),
        frozenset((*(one.kind for one in templates), *(name for one in working for name in one.kinds))),
    )


def listed(names: Iterable[str]) -> str:
    """Names in their order, and how many more there are."""
    shown = sorted(names)
    rest = len(shown) - MOST_LISTED
    return ", ".join(shown[:MOST_LISTED]) + (f" and {rest} more" if rest > 0 else "")


def hint(name: str, known: Iterable[str]) -> str:
    """What to say about a name that is not among these: the nearest one, else which there are."""
    known = list(known)
    return nearest(name, known) or (f"Known are {listed(known)}." if known else "None is known.")


def meant_queue(queue: str, kind: str, home: str | None, presences: Sequence[Presence], now: Instant) -> str | None:
    """The queue that was probably meant by one that no worker serves: the task's own, else the nearest served one.

    `home` is the own queue of the kind, None where the app does not know it. None: nothing else can have been meant.
    """
    if home is not None and home != queue:
        return home
    served = {name for one in live(presences, now) if kind in one.kinds or not one.kinds for name in one.queues} - {
        queue
    }
    return nearest_name(queue, served)


def to_serve(queue: str, app: str) -> str:
    """The command that starts a worker of an app for one queue."""
    return f"stoker work {app} -q {queue}"
