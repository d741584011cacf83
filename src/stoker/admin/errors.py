"""What goes wrong: the jobs that failed, by error, with what is known of each error."""

from __future__ import annotations

from datetime import datetime

import msgspec

from stoker.admin.bulk import question_of
from stoker.admin.context import OperatorContext
from stoker.admin.documents import error_records, releases
from stoker.admin.search import search
from stoker.model.error_records import OTHER, ErrorGroup, ErrorRecord, error_groups
from stoker.model.filter import FAILED, Filter
from stoker.model.query import LARGEST_PAGE, Page
from stoker.model.releases import new_in
from stoker.model.time import instant, moment

_NAMES = frozenset({"views", "queues", "but_queues", "kinds", "but_kinds"})


class ErrorPage(msgspec.Struct, frozen=True, kw_only=True):
    """Failed jobs by error, the largest group first; `looked_at` jobs were read, back to `since`.

    Not `complete`: there are older jobs, so a group may have more than it counts. Errors of the last seven days whose
    jobs were not met come behind, with a count of 0. `other` is how many jobs died in that time of errors that have no
    group of their own. `hint` is about a queue or kind that is not known.
    """

    groups: list[ErrorGroup]
    looked_at: int
    complete: bool = True
    since: datetime | None = None
    other: int = 0
    hint: str = ""


async def read_errors(
    context: OperatorContext, filter_: Filter, limit: int = LARGEST_PAGE, *, past: bool = True
) -> ErrorPage:
    """Group the newest jobs that a filter means; without statuses those that are dead or retrying.

    Without the `past` only these are counted, and the store is asked once less.
    """
    if not filter_.views:
        filter_ = msgspec.structs.replace(filter_, views=tuple(sorted(FAILED)))
    query, hint = await question_of(context, filter_, limit)
    page = Page([], None, 0) if query is None else await search(context, query)
    engine = await context.engine()
    known = await error_records(engine) if past else []
    meant = filter_ if query is None else msgspec.structs.replace(filter_, kinds=tuple(query.kinds))
    wanted = {one.id: one for one in known if _means(meant, one)}
    now = await engine.now() if known else 0
    mask = context.redact.text
    shown = await releases(engine) if known else []
    groups = [
        msgspec.structs.replace(one, error=mask(one.error), new_in=new_in(shown, instant(one.first), one.releases))
        for one in error_groups(page.jobs, [one for one in known if one.id != OTHER], now)
        if one.count or one.id in wanted
    ]
    since = min((one.created_at for one in page.jobs), default=None)
    return ErrorPage(
        groups=groups,
        looked_at=len(page.jobs),
        complete=page.cursor is None,
        since=None if since is None else moment(since),
        other=sum(sum(one.died.counts) for one in wanted.values() if one.id == OTHER),
        hint="" if groups else hint,
    )


def only(queue: str | None = None, kind: str | None = None) -> Filter:
    """The filter for the errors of a queue or a kind, or of all."""
    return Filter(queues=() if queue is None else (queue,), kinds=() if kind is None else (kind,))


def _means(filter_: Filter, record: ErrorRecord) -> bool:
    """Does a filter mean an error, as far as its record tells? One that asks for more than names means none of them."""
    plain = Filter(**{name: getattr(filter_, name) for name in _NAMES})
    if filter_ != plain or not FAILED & filter_.statuses:
        return False
    if record.id == OTHER:
        return not filter_.has_names
    return any(filter_.admits(queue, kind) for queue in record.queues for kind in record.kinds)
