"""Export and import: jobs of a store as lines, and back into another store."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import islice

import msgspec

from stoker.admin.audit import audited
from stoker.admin.bulk import query_to_change
from stoker.admin.context import OperatorContext
from stoker.model import ids
from stoker.model.archive import Put, read, was_member, written
from stoker.model.filter import Filter
from stoker.model.query import as_of

PAGE = 500
"""Jobs that are read or stored at once."""

MOST_NAMED = 100
"""The most jobs that are named of those that were not stored."""


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """What an import did so far: jobs that are stored now, were there before, or whose unique key another one has.

    `left` names up to 100 of the last. `members` of groups came without their group.
    """

    stored: int = 0
    existing: int = 0
    blocked: int = 0
    members: int = 0
    left: tuple[str, ...] = ()


async def exported(context: OperatorContext, filter_: Filter) -> AsyncIterator[list[bytes]]:
    """The jobs that a filter means and that exist now, oldest first, page by page; each is a line without its end.

    Payloads are whole: nothing is masked. A page is read at one instant, and jobs may change between two of them.
    """
    engine = await context.engine()
    query = await query_to_change(context, filter_, PAGE)
    await audited(context, "jobs.export", f"jobs {filter_}".strip())
    if query is None:
        return
    now = await engine.now()
    query = msgspec.structs.replace(as_of(query, now), ended_by=query.ended_by, order="oldest")
    while True:
        page = await engine.operator.find(query)
        rows = await engine.steps.get([job.id for job in page.jobs], pages=True)
        yield [written(job, steps) for job, steps in zip(page.jobs, rows, strict=True)]
        if page.cursor is None:
            return
        query = msgspec.structs.replace(query, cursor=page.cursor)


async def imported(context: OperatorContext, lines: Iterable[bytes]) -> AsyncIterator[Imported]:
    """Store the jobs of lines as they are, some at a time, and say after each time what was done in all.

    What is stored already is left as it is, so an import that was interrupted is repeated as a whole. A line that is no
    job ends it: what came before is stored.
    """
    engine = await context.engine()
    await audited(context, "jobs.import", "jobs")
    found: Counter[Put] = Counter()
    left: list[str] = []
    members = 0
    for part in _parts(lines):
        jobs = [read(line, number) for number, line in part]
        for one, (_, line), put in zip(jobs, part, await engine.operator.put(jobs), strict=True):
            found[put] += 1
            members += put is Put.STORED and was_member(line)
            if put is Put.BLOCKED and len(left) < MOST_NAMED:
                left.append(ids.text(one.record.id))
        yield Imported(
            stored=found[Put.STORED],
            existing=found[Put.EXISTING],
            blocked=found[Put.BLOCKED],
            members=members,
            left=tuple(left),
        )


def _parts(lines: Iterable[bytes]) -> Iterator[list[tuple[int, bytes]]]:
    """Lines with their numbers, without empty ones, some at a time."""
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    while part := list(islice(numbered, PAGE)):
        yield part
